/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user-space IOAPIC of the split irqchip: 24 pins, edge-triggered in practice, each interrupt
 * sent as an MSI by KVM_SIGNAL_MSI. Intel 82093AA data sheet §3; runs under the device lock.
 */
#ifndef THAW_KVM_IOAPIC_H
#define THAW_KVM_IOAPIC_H

#include "vmm/snapshot/format.h"
#include "vmm/util/types.h"

struct ioapic {
	/** Delivers one message. Return: 0 or -errno; KVM_SIGNAL_MSI in the VMM, a recorder in unit
	 * tests. */
	int (*send_msi)(void *opaque, u64 address, u32 data);
	void *opaque;
	u32 ioregsel;
	u32 id;
	u64 redir[24];
	u32 pending; /* bit per pin: an edge came while it was masked */
};

/** ioapic_init() - all pins masked. */
void ioapic_init(struct ioapic *ioapic, int (*send_msi)(void *opaque, u64 address, u32 data),
		 void *opaque);

/** ioapic_access() - bus_fn for LAYOUT_IOAPIC_GPA. */
void ioapic_access(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write);

/** ioapic_edge() - a rising edge on @pin: sent, or remembered while the pin is masked and sent when
 * it is unmasked. */
void ioapic_edge(struct ioapic *ioapic, unsigned int pin);

/** ioapic_save() / ioapic_load() - snapshot section; load refuses (-EINVAL) values that the
 * registers could not hold. */
void ioapic_save(const struct ioapic *ioapic, struct snap_ioapic *out);
int __must_check ioapic_load(struct ioapic *ioapic, const struct snap_ioapic *in);

#endif
