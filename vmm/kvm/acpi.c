// SPDX-License-Identifier: Apache-2.0
// Hand-made ACPI tables for a hardware-reduced machine. ACPI 6.5 §5.2 (tables), §20 (AML).
//
// Layout from the given address on: RSDP, XSDT, FADT, MADT, DSDT, each on a 64-byte boundary. What
// matters in them:
//  - FADT: HW_REDUCED_ACPI, so that no SCI, PM timer or fixed button exists; IAPC_BOOT_ARCH says
//  "no VGA, no CMOS clock, no 8042", which spares a boot 40,000 exits;
//    sleep and reset are byte-wide I/O ports.
//  - MADT: one local APIC a vCPU (APIC id = index) and the IOAPIC with GSI base 0.
//  - DSDT: AML written by the small emitter below. A virtio-mmio node (LNRO0005) for each slot that
//  has a device, the THAW0001 node, the VM generation device and
//    the generic event device that stands for its interrupt.
//
// Package lengths in AML come before what they count, and their own size depends on their value.
// The emitter always uses the two-byte form (§20.2.4; up to 4095 bytes), so that a length can be
// filled in afterwards without moving anything.
#include "vmm/kvm/acpi.h"

#include <string.h>

#include "vmm/kvm/layout.h"
#include "vmm/util/log.h"

struct acpi_header {
	char signature[4];
	u32 len_bytes;
	u8 revision;
	u8 checksum;
	char oem_id[6];
	char oem_table_id[8];
	u32 oem_revision;
	char creator_id[4];
	u32 creator_revision;
} __attribute__((packed));

struct acpi_rsdp {
	char signature[8];
	u8 checksum;
	char oem_id[6];
	u8 revision;
	u32 rsdt_gpa;
	u32 len_bytes;
	u64 xsdt_gpa;
	u8 extended_checksum;
	u8 reserved[3];
} __attribute__((packed));

/** Generic Address Structure, §5.2.3.2. */
struct acpi_gas {
	u8 space; /* 1: I/O port */
	u8 bit_width;
	u8 bit_offset;
	u8 access_size; /* 1: byte */
	u64 address;
} __attribute__((packed));

/** FADT revision 6, §5.2.9; fields that a hardware-reduced machine leaves zero are folded into
 * pads. */
struct acpi_fadt {
	struct acpi_header header;
	u32 facs;
	u32 dsdt_gpa32;
	u8 pad0[65];
	u16 iapc_boot_arch;
	u8 pad1;
	u32 flags;
	struct acpi_gas reset_reg;
	u8 reset_value;
	u16 arm_boot_arch;
	u8 minor_version;
	u64 x_facs;
	u64 x_dsdt;
	u8 pad2[96];
	struct acpi_gas sleep_control;
	struct acpi_gas sleep_status;
	char hypervisor_vendor[8];
} __attribute__((packed));

struct acpi_madt_lapic {
	u8 type; /* 0 */
	u8 len_bytes;
	u8 processor_uid;
	u8 apic_id;
	u32 flags; /* 1: enabled */
} __attribute__((packed));

struct acpi_madt_ioapic {
	u8 type; /* 1 */
	u8 len_bytes;
	u8 id;
	u8 reserved;
	u32 address;
	u32 gsi_base;
} __attribute__((packed));

_Static_assert(sizeof(struct acpi_header) == 36, "ACPI 6.5 table 5.4");
_Static_assert(sizeof(struct acpi_rsdp) == 36, "ACPI 6.5 table 5.3");
_Static_assert(sizeof(struct acpi_fadt) == 276, "ACPI 6.5 table 5.9");
_Static_assert(offsetof(struct acpi_fadt, iapc_boot_arch) == 109, "ACPI 6.5 table 5.9");
_Static_assert(offsetof(struct acpi_fadt, x_dsdt) == 140, "ACPI 6.5 table 5.9");
_Static_assert(offsetof(struct acpi_fadt, sleep_control) == 244, "ACPI 6.5 table 5.9");

#define FADT_WBINVD	  (1u << 0)
#define FADT_PWR_BUTTON	  (1u << 4) /* no fixed power button */
#define FADT_SLP_BUTTON	  (1u << 5) /* no fixed sleep button */
#define FADT_RESET_REG	  (1u << 10)
#define FADT_HW_REDUCED	  (1u << 20)
#define FADT_BOOT_NO_VGA  (1u << 2)
#define FADT_BOOT_NO_CMOS (1u << 5)
#define ACPI_RESET_VALUE  1
#define ACPI_S5_TYPE	  5
#define ACPI_VGEN_NOTIFY  0x80 /* "VM generation changed" */

/* AML opcodes, ACPI 6.5 §20.3. */
#define AML_ZERO    0x00
#define AML_NAME    0x08
#define AML_BYTE    0x0a
#define AML_DWORD   0x0c
#define AML_STRING  0x0d
#define AML_SCOPE   0x10
#define AML_BUFFER  0x11
#define AML_PACKAGE 0x12
#define AML_METHOD  0x14
#define AML_EXT	    0x5b
#define AML_DEVICE  0x82 /* after AML_EXT */
#define AML_ARG0    0x68
#define AML_NOTIFY  0x86
#define AML_LEQUAL  0x93
#define AML_IF	    0xa0

struct aml {
	u8 *buf;
	size_t used_bytes;
	size_t max_bytes;
};

static void aml_byte(struct aml *aml, u8 value)
{
	BUG_ON(aml->used_bytes == aml->max_bytes);
	aml->buf[aml->used_bytes++] = value;
}

static void aml_le32(struct aml *aml, u32 value)
{
	for (unsigned int i = 0; i < 4; i++)
		aml_byte(aml, (u8)(value >> (8 * i)));
}

static void aml_text(struct aml *aml, const char *text)
{
	for (; *text; text++)
		aml_byte(aml, (u8)*text);
}

static void aml_string(struct aml *aml, const char *text)
{
	aml_byte(aml, AML_STRING);
	aml_text(aml, text);
	aml_byte(aml, 0);
}

static void aml_int(struct aml *aml, u32 value)
{
	if (value <= 0xff) {
		aml_byte(aml, AML_BYTE);
		aml_byte(aml, (u8)value);
	} else {
		aml_byte(aml, AML_DWORD);
		aml_le32(aml, value);
	}
}

/** Leaves room for a package length; what follows is counted until aml_close(). */
static size_t aml_open(struct aml *aml)
{
	size_t mark = aml->used_bytes;

	aml_byte(aml, 0);
	aml_byte(aml, 0);
	return mark;
}

static void aml_close(struct aml *aml, size_t mark)
{
	size_t len_bytes = aml->used_bytes - mark;

	BUG_ON(len_bytes > 0xfff);
	aml->buf[mark] = (u8)(0x40 | (len_bytes & 0xf));
	aml->buf[mark + 1] = (u8)(len_bytes >> 4);
}

static size_t aml_open_device(struct aml *aml, const char *name)
{
	size_t mark;

	aml_byte(aml, AML_EXT);
	aml_byte(aml, AML_DEVICE);
	mark = aml_open(aml);
	aml_text(aml, name);
	return mark;
}

static void aml_name(struct aml *aml, const char *name)
{
	aml_byte(aml, AML_NAME);
	aml_text(aml, name);
}

static void aml_name_string(struct aml *aml, const char *name, const char *text)
{
	aml_name(aml, name);
	aml_string(aml, text);
}

static void aml_name_int(struct aml *aml, const char *name, u32 value)
{
	aml_name(aml, name);
	aml_int(aml, value);
}

/** _CRS of a memory window (if @mem_bytes) and an edge-triggered, active-high, exclusive interrupt
 * (if @gsi >= 0). §6.4.3. */
static void aml_crs(struct aml *aml, u32 mem_gpa, u32 mem_bytes, int gsi)
{
	u8 template_bytes = (u8)((mem_bytes ? 12 : 0) + (gsi >= 0 ? 9 : 0) + 2);
	size_t mark;

	aml_name(aml, "_CRS");
	aml_byte(aml, AML_BUFFER);
	mark = aml_open(aml);
	aml_int(aml, template_bytes);
	if (mem_bytes) {
		aml_text(aml, "\x86\x09"); /* Memory32Fixed, 9 bytes follow */
		aml_byte(aml, 0);
		aml_byte(aml, 1); /* read-write */
		aml_le32(aml, mem_gpa);
		aml_le32(aml, mem_bytes);
	}
	if (gsi >= 0) {
		aml_text(aml, "\x89\x06"); /* Extended Interrupt, 6 bytes follow */
		aml_byte(aml, 0);
		aml_byte(aml, 3); /* consumer, edge */
		aml_byte(aml, 1); /* one interrupt */
		aml_le32(aml, (u32)gsi);
	}
	aml_byte(aml, 0x79); /* end tag; checksum 0 = not used */
	aml_byte(aml, 0);
	aml_close(aml, mark);
}

static void aml_virtio_device(struct aml *aml, unsigned int slot)
{
	char name[5] = {'V', '0', '0', (char)('0' + slot), '\0'};
	size_t mark = aml_open_device(aml, name);

	aml_name_string(aml, "_HID", "LNRO0005");
	aml_name_int(aml, "_UID", slot);
	aml_name_int(aml, "_CCA", 1);
	aml_crs(aml, (u32)layout_virtio_gpa(slot), (u32)LAYOUT_VIRTIO_STRIDE,
		LAYOUT_VIRTIO_GSI + (int)slot);
	aml_close(aml, mark);
}

static void aml_thaw_device(struct aml *aml)
{
	size_t mark = aml_open_device(aml, "THAW");

	aml_name_string(aml, "_HID", "THAW0001");
	aml_name_int(aml, "_UID", 0);
	aml_crs(aml, (u32)THAW_GPA, THAW_NODE_BYTES, -1);
	aml_close(aml, mark);
}

/** The VM generation device: Linux finds it by _CID and the 16-byte ID by ADDR, a package {low,
 * high}. */
static void aml_vgen_device(struct aml *aml)
{
	size_t mark = aml_open_device(aml, "VGEN"), package;

	aml_name_string(aml, "_HID", "THAW0002");
	aml_name_string(aml, "_CID", "VM_Gen_Counter");
	aml_name_string(aml, "_DDN", "VM_Gen_Counter");
	aml_name(aml, "ADDR");
	aml_byte(aml, AML_PACKAGE);
	package = aml_open(aml);
	aml_byte(aml, 2);
	aml_int(aml, (u32)THAW_CONTROL_GPA + THAW_VMGENID_OFFSET);
	aml_int(aml, 0);
	aml_close(aml, package);
	aml_close(aml, mark);
}

/** The generic event device: Method (_EVT, 1, Serialized) { If (Arg0 == GSI) { Notify (VGEN, 0x80)
 * } }. §5.6.9. */
static void aml_ged_device(struct aml *aml)
{
	size_t mark = aml_open_device(aml, "GED0"), method, condition;

	aml_name_string(aml, "_HID", "ACPI0013");
	aml_name_int(aml, "_UID", 0);
	aml_crs(aml, 0, 0, LAYOUT_GED_GSI);
	aml_byte(aml, AML_METHOD);
	method = aml_open(aml);
	aml_text(aml, "_EVT");
	aml_byte(aml, 1 | 1 << 3); /* one argument, serialized */
	aml_byte(aml, AML_IF);
	condition = aml_open(aml);
	aml_byte(aml, AML_LEQUAL);
	aml_byte(aml, AML_ARG0);
	aml_int(aml, LAYOUT_GED_GSI);
	aml_byte(aml, AML_NOTIFY);
	aml_text(aml, "VGEN");
	aml_int(aml, ACPI_VGEN_NOTIFY);
	aml_close(aml, condition);
	aml_close(aml, method);
	aml_close(aml, mark);
}

/** The body of the DSDT. Return: its length in bytes. */
static size_t acpi_dsdt_body(u8 *buf, size_t max_bytes, u32 virtio_slots)
{
	struct aml aml = {.buf = buf, .max_bytes = max_bytes};
	size_t mark;

	aml_byte(&aml, AML_SCOPE);
	mark = aml_open(&aml);
	aml_text(&aml, "\\_SB_");
	for (unsigned int slot = 0; slot < LAYOUT_VIRTIO_SLOTS; slot++) {
		if (virtio_slots & 1u << slot)
			aml_virtio_device(&aml, slot);
	}
	aml_thaw_device(&aml);
	aml_vgen_device(&aml);
	aml_ged_device(&aml);
	aml_close(&aml, mark);

	/* Name (\_S5, Package () { 5, 0, 0, 0 }): what Linux writes to the sleep control port.
	 * §7.4.2. */
	aml_name(&aml, "\\_S5_");
	aml_byte(&aml, AML_PACKAGE);
	mark = aml_open(&aml);
	aml_byte(&aml, 4);
	aml_int(&aml, ACPI_S5_TYPE);
	for (unsigned int i = 0; i < 3; i++)
		aml_byte(&aml, AML_ZERO);
	aml_close(&aml, mark);
	return aml.used_bytes;
}

/** @bytes as a number that makes the sum of all @len_bytes zero modulo 256. */
static u8 acpi_checksum(const void *bytes, size_t len_bytes)
{
	const u8 *p = bytes;
	u8 sum = 0;

	while (len_bytes--)
		sum = (u8)(sum + *p++);
	return (u8)-sum;
}

static void acpi_finish(struct acpi_header *header, const char *signature, u8 revision,
			size_t len_bytes)
{
	memcpy(header->signature, signature, 4);
	header->len_bytes = (u32)len_bytes;
	header->revision = revision;
	memcpy(header->oem_id, "THAW  ", 6);
	memcpy(header->oem_table_id, "THAWVMM ", 8);
	header->oem_revision = 1;
	memcpy(header->creator_id, "THAW", 4);
	header->creator_revision = 1;
	header->checksum = 0;
	header->checksum = acpi_checksum(header, len_bytes);
}

static struct acpi_gas acpi_port(u16 port)
{
	return (struct acpi_gas){.space = 1, .bit_width = 8, .access_size = 1, .address = port};
}

static size_t acpi_fadt(void *at, u64 dsdt_gpa)
{
	struct acpi_fadt fadt = {
		.dsdt_gpa32 = (u32)dsdt_gpa,
		.iapc_boot_arch = FADT_BOOT_NO_VGA | FADT_BOOT_NO_CMOS,
		.flags = FADT_WBINVD | FADT_PWR_BUTTON | FADT_SLP_BUTTON | FADT_RESET_REG |
			 FADT_HW_REDUCED,
		.reset_reg = acpi_port(LAYOUT_RESET_PORT),
		.reset_value = ACPI_RESET_VALUE,
		.minor_version = 5,
		.x_dsdt = dsdt_gpa,
		.sleep_control = acpi_port(LAYOUT_SLEEP_PORT),
		.sleep_status = acpi_port(LAYOUT_SLEEP_PORT + 1),
		.hypervisor_vendor = {'T', 'H', 'A', 'W'},
	};

	acpi_finish(&fadt.header, "FACP", 6, sizeof(fadt));
	memcpy(at, &fadt, sizeof(fadt));
	return sizeof(fadt);
}

static size_t acpi_madt(u8 *at, unsigned int nvcpus)
{
	struct acpi_madt_ioapic ioapic = {
		.type = 1, .len_bytes = sizeof(ioapic), .address = (u32)LAYOUT_IOAPIC_GPA};
	u32 lapic_gpa = (u32)LAYOUT_LAPIC_GPA;
	size_t used = sizeof(struct acpi_header);

	memcpy(at + used, &lapic_gpa, 4);
	used += 8; /* address, flags: no PC-AT compatible PIC */
	for (unsigned int i = 0; i < nvcpus; i++) {
		struct acpi_madt_lapic lapic = {.len_bytes = sizeof(lapic),
						.processor_uid = (u8)i,
						.apic_id = (u8)i,
						.flags = 1};

		memcpy(at + used, &lapic, sizeof(lapic));
		used += sizeof(lapic);
	}
	memcpy(at + used, &ioapic, sizeof(ioapic));
	used += sizeof(ioapic);
	acpi_finish((struct acpi_header *)at, "APIC", 5, used);
	return used;
}

size_t acpi_build(void *buf, u64 gpa, const struct acpi_config *cfg)
{
	struct acpi_rsdp rsdp = {.revision = 2, .len_bytes = sizeof(rsdp)};
	const size_t xsdt = 0x40, fadt = 0x80, madt = 0x1c0;
	const size_t dsdt = ALIGN_UP(madt + 44 + VM_VCPUS_MAX * 8 + 12, (size_t)0x40);
	u8 *base = buf;
	u64 pointers[2] = {gpa + fadt, gpa + madt};
	size_t dsdt_bytes = sizeof(struct acpi_header);

	BUG_ON(cfg->nvcpus < 1 || cfg->nvcpus > VM_VCPUS_MAX);
	BUG_ON(fadt + sizeof(struct acpi_fadt) > madt);
	memset(base, 0, ACPI_TABLES_BYTES);

	dsdt_bytes += acpi_dsdt_body(base + dsdt + dsdt_bytes,
				     ACPI_TABLES_BYTES - dsdt - dsdt_bytes, cfg->virtio_slots);
	acpi_finish((struct acpi_header *)(base + dsdt), "DSDT", 2, dsdt_bytes);
	acpi_fadt(base + fadt, gpa + dsdt);
	acpi_madt(base + madt, cfg->nvcpus);
	memcpy(base + xsdt + sizeof(struct acpi_header), pointers, sizeof(pointers));
	acpi_finish((struct acpi_header *)(base + xsdt), "XSDT", 1,
		    sizeof(struct acpi_header) + sizeof(pointers));

	memcpy(rsdp.signature, "RSD PTR ", 8);
	memcpy(rsdp.oem_id, "THAW  ", 6);
	rsdp.xsdt_gpa = gpa + xsdt;
	rsdp.checksum = acpi_checksum(&rsdp, 20); /* the ACPI 1.0 part */
	rsdp.extended_checksum = acpi_checksum(&rsdp, sizeof(rsdp));
	memcpy(base, &rsdp, sizeof(rsdp));
	return dsdt + dsdt_bytes;
}
