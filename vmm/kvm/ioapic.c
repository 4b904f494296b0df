// SPDX-License-Identifier: Apache-2.0
// The user-space IOAPIC of the split irqchip.
//
// Two registers are visible: IOREGSEL at 0x00 and IOWIN at 0x10. Behind them are the ID, the
// version (0x11, 24 pins), the arbitration ID and one 64-bit redirection entry a pin. Every source
// in this machine is edge-triggered, so there is no remote IRR and no EOI to wait for: an edge
// becomes one MSI, whose address and data are the entry's fields put in the places that the local
// APIC expects (SDM vol. 3, 11.11).
//
// An edge on a masked pin is remembered and sent at the unmask. Real hardware loses it; here a lost
// edge would be a lost virtio interrupt, and a spurious one costs the guest one read of a status
// register.
#include "vmm/kvm/ioapic.h"

#include <errno.h>
#include <string.h>

#include "vmm/kvm/layout.h"
#include "vmm/util/log.h"

#define IOAPIC_REGSEL 0x00
#define IOAPIC_WIN    0x10

#define IOAPIC_REG_ID	   0x00
#define IOAPIC_REG_VERSION 0x01
#define IOAPIC_REG_ARB	   0x02
#define IOAPIC_REG_REDIR   0x10

#define IOAPIC_VERSION	(((LAYOUT_IOAPIC_PINS - 1) << 16) | 0x11)
#define IOAPIC_ID_MASK	0x0f000000u
#define IOAPIC_PIN_MASK ((1u << LAYOUT_IOAPIC_PINS) - 1)

#define REDIR_VECTOR	 0xffull
#define REDIR_DELIVERY	 0x700ull
#define REDIR_LOGICAL	 (1ull << 11)
#define REDIR_MASKED	 (1ull << 16)
#define REDIR_DEST_SHIFT 56
/* Without delivery status (12) and remote IRR (14): nothing ever waits here, and no source is
 * level-triggered. */
#define REDIR_WRITABLE 0xff0000000001afffull

#define DELIVERY_FIXED	0x000ull
#define DELIVERY_LOWEST 0x100ull
#define DELIVERY_NMI	0x400ull

void ioapic_init(struct ioapic *ioapic, int (*send_msi)(void *opaque, u64 address, u32 data),
		 void *opaque)
{
	*ioapic = (struct ioapic){.send_msi = send_msi, .opaque = opaque};
	for (unsigned int pin = 0; pin < LAYOUT_IOAPIC_PINS; pin++)
		ioapic->redir[pin] = REDIR_MASKED;
}

static void ioapic_send(struct ioapic *ioapic, unsigned int pin)
{
	u64 redir = ioapic->redir[pin];
	u64 delivery = redir & REDIR_DELIVERY;
	u64 address = LAYOUT_LAPIC_GPA | (redir >> REDIR_DEST_SHIFT) << 12;
	int ret;

	/* SMI, INIT and ExtINT have no source here; a guest that programs one gets nothing. */
	if (delivery != DELIVERY_FIXED && delivery != DELIVERY_LOWEST && delivery != DELIVERY_NMI) {
		log_guest("ioapic: pin %u: delivery mode %u is not supported", pin,
			  (unsigned int)(delivery >> 8));
		return;
	}
	if (redir & REDIR_LOGICAL)
		address |= 1u << 2;
	if (delivery == DELIVERY_LOWEST)
		address |= 1u << 3;
	ret = ioapic->send_msi(ioapic->opaque, address,
			       (u32)(redir & (REDIR_VECTOR | REDIR_DELIVERY)));
	if (ret < 0)
		log_guest("ioapic: pin %u: message not delivered: %s", pin, strerror(-ret));
}

void ioapic_edge(struct ioapic *ioapic, unsigned int pin)
{
	BUG_ON(pin >= LAYOUT_IOAPIC_PINS);
	if (ioapic->redir[pin] & REDIR_MASKED)
		ioapic->pending |= 1u << pin;
	else
		ioapic_send(ioapic, pin);
}

static u32 ioapic_read(const struct ioapic *ioapic)
{
	u32 reg = ioapic->ioregsel;
	unsigned int pin = (reg - IOAPIC_REG_REDIR) / 2;

	switch (reg) {
	case IOAPIC_REG_ID:
	case IOAPIC_REG_ARB:
		return ioapic->id;
	case IOAPIC_REG_VERSION:
		return IOAPIC_VERSION;
	default:
		if (reg < IOAPIC_REG_REDIR || pin >= LAYOUT_IOAPIC_PINS)
			return 0;
		return (u32)(ioapic->redir[pin] >> (reg & 1 ? 32 : 0));
	}
}

static void ioapic_write(struct ioapic *ioapic, u32 value)
{
	u32 reg = ioapic->ioregsel;
	unsigned int pin = (reg - IOAPIC_REG_REDIR) / 2;
	u64 *redir;

	if (reg == IOAPIC_REG_ID) {
		ioapic->id = value & IOAPIC_ID_MASK;
		return;
	}
	if (reg < IOAPIC_REG_REDIR || pin >= LAYOUT_IOAPIC_PINS)
		return;
	redir = &ioapic->redir[pin];
	if (reg & 1)
		*redir = (*redir & 0xffffffffull) | (u64)value << 32;
	else
		*redir = (*redir & ~0xffffffffull) | value;
	*redir &= REDIR_WRITABLE;
	if (!(*redir & REDIR_MASKED) && (ioapic->pending & 1u << pin)) {
		ioapic->pending &= ~(1u << pin);
		ioapic_send(ioapic, pin);
	}
}

void ioapic_access(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write)
{
	struct ioapic *ioapic = opaque;
	u32 value = 0;

	/* Registers are 32 bits wide and sit on 16-byte boundaries (82093AA §3). */
	if (len_bytes != 4 || (offset != IOAPIC_REGSEL && offset != IOAPIC_WIN)) {
		if (!is_write)
			memset(data, 0xff, len_bytes);
		return;
	}
	if (is_write) {
		memcpy(&value, data, 4);
		if (offset == IOAPIC_REGSEL)
			ioapic->ioregsel = value & 0xff;
		else
			ioapic_write(ioapic, value);
		return;
	}
	value = offset == IOAPIC_REGSEL ? ioapic->ioregsel : ioapic_read(ioapic);
	memcpy(data, &value, 4);
}

void ioapic_save(const struct ioapic *ioapic, struct snap_ioapic *out)
{
	*out = (struct snap_ioapic){
		.ioregsel = ioapic->ioregsel,
		.id = ioapic->id,
		.pending = ioapic->pending,
	};
	memcpy(out->redir, ioapic->redir, sizeof(out->redir));
}

int ioapic_load(struct ioapic *ioapic, const struct snap_ioapic *in)
{
	if (in->ioregsel > 0xff || (in->id & ~IOAPIC_ID_MASK) || (in->pending & ~IOAPIC_PIN_MASK) ||
	    in->reserved)
		return -EINVAL;
	for (unsigned int pin = 0; pin < LAYOUT_IOAPIC_PINS; pin++) {
		if (in->redir[pin] & ~REDIR_WRITABLE)
			return -EINVAL;
		/* An unmasked pin sends at once: it can have nothing pending. */
		if ((in->pending & 1u << pin) && !(in->redir[pin] & REDIR_MASKED))
			return -EINVAL;
	}
	ioapic->ioregsel = in->ioregsel;
	ioapic->id = in->id;
	ioapic->pending = in->pending;
	memcpy(ioapic->redir, in->redir, sizeof(ioapic->redir));
	return 0;
}
