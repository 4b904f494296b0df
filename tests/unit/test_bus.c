// SPDX-License-Identifier: Apache-2.0
// Bus dispatch: order, overlap, accesses that straddle an end or hit nothing.
#include "vmm/kvm/bus.h"

#include <errno.h>

#include "tests/unit/test.h"

struct call {
	unsigned int count;
	u64 offset;
	u32 len_bytes;
	bool is_write;
	u8 data[8];
};

static void record(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write)
{
	struct call *call = opaque;

	call->count++;
	call->offset = offset;
	call->len_bytes = len_bytes;
	call->is_write = is_write;
	if (is_write)
		memcpy(call->data, data, len_bytes);
	else
		memset(data, 0x5a, len_bytes);
}

static void test_add(void)
{
	struct bus bus = {0};

	CHECK_EQ(bus_add(&bus, 0x10, 0, record, NULL), -EINVAL);
	CHECK_EQ(bus_add(&bus, 0x10, 4, NULL, NULL), -EINVAL);
	CHECK_EQ(bus_add(&bus, ~0ull, 2, record, NULL), -EINVAL);
	CHECK_EQ(bus_add(&bus, 0x20, 0x10, record, NULL), 0);
	CHECK_EQ(bus_add(&bus, 0x2f, 1, record, NULL), -EINVAL);
	CHECK_EQ(bus_add(&bus, 0x1f, 2, record, NULL), -EINVAL);
	CHECK_EQ(bus_add(&bus, 0, 0x100, record, NULL), -EINVAL);
	CHECK_EQ(bus_add(&bus, 0x30, 1, record, NULL), 0);
	CHECK_EQ(bus_add(&bus, 0x1f, 1, record, NULL), 0);
	for (u64 i = bus.nranges; i < BUS_RANGES_MAX; i++)
		CHECK_EQ(bus_add(&bus, 0x1000 * i, 1, record, NULL), 0);
	CHECK_EQ(bus_add(&bus, 0x100000, 1, record, NULL), -ENOSPC);
	for (unsigned int i = 1; i < bus.nranges; i++)
		CHECK(bus.ranges[i - 1].base < bus.ranges[i].base);
}

static void test_dispatch(void)
{
	struct call calls[3] = {0};
	struct bus bus = {0};
	u64 data = 0x1122334455667788ull;

	CHECK_EQ(bus_add(&bus, 0x3000, 0x1000, record, &calls[2]), 0);
	CHECK_EQ(bus_add(&bus, 0x1000, 0x1000, record, &calls[0]), 0);
	CHECK_EQ(bus_add(&bus, 0x2000, 0x1000, record, &calls[1]), 0);

	CHECK(bus_access(&bus, 0x2ffc, &data, 4, true));
	CHECK_EQ(calls[1].count, 1);
	CHECK_EQ(calls[1].offset, 0xffc);
	CHECK_EQ(calls[1].len_bytes, 4);
	CHECK(calls[1].is_write && !memcmp(calls[1].data, &data, 4));
	CHECK(bus_access(&bus, 0x1000, &data, 8, false));
	CHECK_EQ(data, 0x5a5a5a5a5a5a5a5aull);
	CHECK(bus_access(&bus, 0x3fff, &data, 1, true));
	CHECK_EQ(calls[2].offset, 0xfff);
	CHECK_EQ(calls[0].count, 1);
}

static void test_nobody(void)
{
	struct call call = {0};
	struct bus bus = {0};
	u64 data = 0;

	CHECK(!bus_access(&bus, 0x1000, &data, 8, false));
	CHECK_EQ(data, ~0ull);
	CHECK_EQ(bus_add(&bus, 0x1000, 0x1000, record, &call), 0);
	data = 0;
	CHECK(!bus_access(&bus, 0xfff, &data, 1, false));
	CHECK_EQ(data, 0xff);
	data = 0;
	CHECK(!bus_access(&bus, 0x1ffe, &data, 4, false)); /* straddles the end */
	CHECK_EQ(data, 0xffffffffull);
	CHECK(!bus_access(&bus, 0xffe, &data, 4, true)); /* and the start */
	CHECK(!bus_access(&bus, 0x2000, &data, 1, true));
	CHECK(!bus_access(&bus, ~0ull, &data, 8, true));
	CHECK_EQ(call.count, 0);
}

TEST_MAIN({"add", test_add}, {"dispatch", test_dispatch}, {"nobody answers", test_nobody})
