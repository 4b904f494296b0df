// SPDX-License-Identifier: Apache-2.0
// The IOAPIC: register golden values, messages, masked edges, hostile snapshots.
#include "vmm/kvm/ioapic.h"

#include <errno.h>

#include "tests/unit/test.h"

struct messages {
	unsigned int count;
	u64 address;
	u32 data;
};

static int record(void *opaque, u64 address, u32 data)
{
	struct messages *messages = opaque;

	messages->count++;
	messages->address = address;
	messages->data = data;
	return 0;
}

static u32 reg_read(struct ioapic *ioapic, u32 reg)
{
	u32 value = 0;

	ioapic_access(ioapic, 0x00, &reg, 4, true);
	ioapic_access(ioapic, 0x10, &value, 4, false);
	return value;
}

static void reg_write(struct ioapic *ioapic, u32 reg, u32 value)
{
	ioapic_access(ioapic, 0x00, &reg, 4, true);
	ioapic_access(ioapic, 0x10, &value, 4, true);
}

static void test_registers(void)
{
	struct messages messages = {0};
	struct ioapic ioapic;
	u32 value;

	ioapic_init(&ioapic, record, &messages);
	CHECK_EQ(reg_read(&ioapic, 1), 0x00170011); /* 24 pins, version 0x11 */
	CHECK_EQ(reg_read(&ioapic, 0x10), 0x00010000);
	CHECK_EQ(reg_read(&ioapic, 0x3e), 0x00010000);
	CHECK_EQ(reg_read(&ioapic, 0x3f), 0);
	CHECK_EQ(reg_read(&ioapic, 0x40), 0); /* no 25th pin */
	reg_write(&ioapic, 0x40, 0xffffffff);
	reg_write(&ioapic, 0xff, 0xffffffff);
	reg_write(&ioapic, 0, 0xffffffff);
	CHECK_EQ(reg_read(&ioapic, 0), 0x0f000000);
	/* Delivery status and remote IRR are read-only, the upper half has only a destination. */
	reg_write(&ioapic, 0x12, 0xffffffff);
	CHECK_EQ(reg_read(&ioapic, 0x12), 0x0001afff);
	reg_write(&ioapic, 0x13, 0xffffffff);
	CHECK_EQ(reg_read(&ioapic, 0x13), 0xff000000);
	/* Odd widths and places: ones, and no effect. */
	value = 0;
	ioapic_access(&ioapic, 0x10, &value, 1, false);
	CHECK_EQ(value, 0xff);
	value = 0;
	ioapic_access(&ioapic, 0x04, &value, 4, false);
	CHECK_EQ(value, 0xffffffff);
	ioapic_access(&ioapic, 0x10, &value, 2, true);
	CHECK_EQ(messages.count, 0);
}

static void test_messages(void)
{
	struct messages messages = {0};
	struct ioapic ioapic;

	ioapic_init(&ioapic, record, &messages);
	reg_write(&ioapic, 0x10 + 2 * 20 + 1, 3u << 24); /* pin 20 to APIC 3 */
	reg_write(&ioapic, 0x10 + 2 * 20, 0x41);
	CHECK_EQ(messages.count, 0);
	ioapic_edge(&ioapic, 20);
	CHECK_EQ(messages.count, 1);
	CHECK_EQ(messages.address, 0xfee03000);
	CHECK_EQ(messages.data, 0x41);
	/* Lowest priority, logical destination: redirection hint and mode bits. */
	reg_write(&ioapic, 0x10 + 2 * 20, 0x942);
	ioapic_edge(&ioapic, 20);
	CHECK_EQ(messages.count, 2);
	CHECK_EQ(messages.address, 0xfee0300c);
	CHECK_EQ(messages.data, 0x142);
	/* SMI, INIT, ExtINT: nothing. */
	reg_write(&ioapic, 0x10 + 2 * 20, 0x200);
	ioapic_edge(&ioapic, 20);
	reg_write(&ioapic, 0x10 + 2 * 20, 0x500);
	ioapic_edge(&ioapic, 20);
	reg_write(&ioapic, 0x10 + 2 * 20, 0x700);
	ioapic_edge(&ioapic, 20);
	CHECK_EQ(messages.count, 2);
}

static void test_masked_edge(void)
{
	struct messages messages = {0};
	struct ioapic ioapic;

	ioapic_init(&ioapic, record, &messages);
	ioapic_edge(&ioapic, 23);
	ioapic_edge(&ioapic, 23);
	CHECK_EQ(messages.count, 0);
	reg_write(&ioapic, 0x10 + 2 * 23, 0x30);
	CHECK_EQ(messages.count, 1); /* one, however many came */
	CHECK_EQ(messages.data, 0x30);
	reg_write(&ioapic, 0x10 + 2 * 23, 0x10030);
	reg_write(&ioapic, 0x10 + 2 * 23, 0x30);
	CHECK_EQ(messages.count, 1);
}

static void test_snapshot(void)
{
	struct messages messages = {0};
	struct ioapic ioapic, other;
	struct snap_ioapic snap, bad;

	ioapic_init(&ioapic, record, &messages);
	reg_write(&ioapic, 0x10 + 2 * 16, 0x31);
	reg_write(&ioapic, 0x10 + 2 * 16 + 1, 1u << 24);
	ioapic_edge(&ioapic, 17);
	ioapic_save(&ioapic, &snap);
	CHECK_EQ(snap.pending, 1u << 17);

	ioapic_init(&other, record, &messages);
	CHECK_EQ(ioapic_load(&other, &snap), 0);
	ioapic_edge(&other, 16);
	CHECK_EQ(messages.count, 1);
	CHECK_EQ(messages.address, 0xfee01000);
	reg_write(&other, 0x10 + 2 * 17, 0x55);
	CHECK_EQ(messages.count, 2);
	CHECK_EQ(messages.data, 0x55);

	bad = snap;
	bad.ioregsel = 0x100;
	CHECK_EQ(ioapic_load(&other, &bad), -EINVAL);
	bad = snap;
	bad.id = 1;
	CHECK_EQ(ioapic_load(&other, &bad), -EINVAL);
	bad = snap;
	bad.pending = 1u << 24;
	CHECK_EQ(ioapic_load(&other, &bad), -EINVAL);
	bad = snap;
	bad.pending = 1u << 16; /* an unmasked pin has nothing pending */
	CHECK_EQ(ioapic_load(&other, &bad), -EINVAL);
	bad = snap;
	bad.redir[3] |= 1ull << 14;
	CHECK_EQ(ioapic_load(&other, &bad), -EINVAL);
	bad = snap;
	bad.reserved = 1;
	CHECK_EQ(ioapic_load(&other, &bad), -EINVAL);
}

TEST_MAIN({"registers", test_registers}, {"messages", test_messages},
	  {"masked edge", test_masked_edge}, {"snapshot", test_snapshot})
