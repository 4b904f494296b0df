/* SPDX-License-Identifier: Apache-2.0 */
/* Hardware-reduced ACPI tables made by hand: RSDP, XSDT, FADT, MADT, DSDT. ACPI 6.5 §5.2; about 1
 * KB together. */
#ifndef THAW_KVM_ACPI_H
#define THAW_KVM_ACPI_H

#include "vmm/util/types.h"

#define ACPI_TABLES_BYTES 0x10000u

struct acpi_config {
	unsigned int nvcpus;
	u32 virtio_slots; /* bit per slot that has a device */
};

/**
 * acpi_build() - the tables into @buf (ACPI_TABLES_BYTES long, zeroed here), which the guest sees
 * at @gpa. Return: bytes used; the RSDP is at @gpa.
 */
size_t acpi_build(void *buf, u64 gpa, const struct acpi_config *cfg);

#endif
