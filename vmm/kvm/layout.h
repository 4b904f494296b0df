/* SPDX-License-Identifier: Apache-2.0 */
/* The guest physical address map and the interrupt lines: part of the snapshot ABI. */
#ifndef THAW_KVM_LAYOUT_H
#define THAW_KVM_LAYOUT_H

#include "guest/module/thaw_uapi.h"
#include "vmm/util/types.h"

#define VM_VCPUS_MAX	 8
#define VM_RAM_MIN_BYTES (128 * MIB)
#define VM_RAM_MAX_BYTES (64 * GIB)

/* RAM: [0, 3 GiB) and, what does not fit, from 4 GiB on. */
#define LAYOUT_LOW_RAM_END_GPA (3 * GIB)
#define LAYOUT_HIGH_RAM_GPA    (4 * GIB)

#define LAYOUT_ACPI_GPA		0xe0000ull /* RSDP and tables, 64 KiB, e820 type 3 */
#define LAYOUT_VIRTIO_GPA	0xd0010000ull
#define LAYOUT_VIRTIO_STRIDE	0x1000ull
#define LAYOUT_IOAPIC_GPA	0xfec00000ull
#define LAYOUT_LAPIC_GPA	0xfee00000ull
#define LAYOUT_IDENTITY_MAP_GPA 0xfffbc000ull
#define LAYOUT_TSS_GPA		0xfffbd000ull

/* The pmem root stands on the first GiB boundary at or above 4 GiB and the end of RAM. */
#define LAYOUT_PMEM_ALIGN_BYTES GIB

#define LAYOUT_GED_GSI	   9
#define LAYOUT_VIRTIO_GSI  16 /* + slot */
#define LAYOUT_IOAPIC_PINS 24

#define LAYOUT_SLEEP_PORT  0x600 /* ACPI SLEEP_CONTROL_REG: 0x34 = S5 */
#define LAYOUT_RESET_PORT  0x604 /* ACPI RESET_REG: 1 = reset */
#define LAYOUT_SERIAL_PORT 0x3f8 /* transmit-only 8250 for early boot messages */

/* KVM memory slots. */
enum layout_memslot {
	LAYOUT_SLOT_LOW_RAM = 0,
	LAYOUT_SLOT_HIGH_RAM = 1,
	LAYOUT_SLOT_MAILBOX = 2,
	LAYOUT_SLOT_PMEM = 3,
};

/* virtio-mmio slots: the order is ABI; a device that is absent leaves its slot empty. */
enum layout_virtio_slot {
	LAYOUT_VIRTIO_CONSOLE = 0,
	LAYOUT_VIRTIO_RNG = 1,
	LAYOUT_VIRTIO_PMEM = 2,
	LAYOUT_VIRTIO_BLK = 3,
	LAYOUT_VIRTIO_VSOCK = 4,
	LAYOUT_VIRTIO_SLOTS = 5,
};

static inline u64 layout_low_ram_bytes(u64 ram_bytes)
{
	return ram_bytes < LAYOUT_LOW_RAM_END_GPA ? ram_bytes : LAYOUT_LOW_RAM_END_GPA;
}

static inline u64 layout_high_ram_bytes(u64 ram_bytes)
{
	return ram_bytes - layout_low_ram_bytes(ram_bytes);
}

static inline u64 layout_pmem_gpa(u64 ram_bytes)
{
	return ALIGN_UP(LAYOUT_HIGH_RAM_GPA + layout_high_ram_bytes(ram_bytes),
			LAYOUT_PMEM_ALIGN_BYTES);
}

static inline u64 layout_virtio_gpa(unsigned int slot)
{
	return LAYOUT_VIRTIO_GPA + slot * LAYOUT_VIRTIO_STRIDE;
}

#endif
