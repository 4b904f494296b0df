// SPDX-License-Identifier: Apache-2.0
// Guest memory: boundaries, wraps, regions that touch.
#include "vmm/kvm/gmem.h"

#include <errno.h>

#include "tests/unit/test.h"

#define LOW_BYTES  0x4000ull
#define HIGH_GPA   0x100000000ull
#define HIGH_BYTES 0x2000ull

static u8 low[LOW_BYTES], high[HIGH_BYTES];

static struct gmem make(void)
{
	struct gmem gmem = {0};

	CHECK_EQ(gmem_add(&gmem, 0, LOW_BYTES, low), 0);
	CHECK_EQ(gmem_add(&gmem, HIGH_GPA, HIGH_BYTES, high), 0);
	return gmem;
}

static void test_add(void)
{
	struct gmem gmem = {0};

	CHECK_EQ(gmem_add(&gmem, 0x1000, 0, low), -EINVAL);
	CHECK_EQ(gmem_add(&gmem, 0x1000, 0x1000, NULL), -EINVAL);
	CHECK_EQ(gmem_add(&gmem, ~0ull - 0xfff, 0x2000, low), -EINVAL);
	CHECK_EQ(gmem_add(&gmem, 0x1000, 0x1000, low), 0);
	CHECK_EQ(gmem_add(&gmem, 0x1000, 0x1000, low), -EINVAL);
	CHECK_EQ(gmem_add(&gmem, 0x1fff, 1, low), -EINVAL);
	CHECK_EQ(gmem_add(&gmem, 0, 0x1001, low), -EINVAL);
	CHECK_EQ(gmem_add(&gmem, 0, 0x10000, low), -EINVAL);
	CHECK_EQ(gmem_add(&gmem, 0x2000, 0x1000, low), 0); /* they may touch */
	CHECK_EQ(gmem_add(&gmem, 0x8000, 0x1000, low), -ENOSPC);
}

static void test_ptr(void)
{
	struct gmem gmem = make();

	CHECK(gmem_ptr(&gmem, 0, 1) == low);
	CHECK(gmem_ptr(&gmem, 0, LOW_BYTES) == low);
	CHECK(gmem_ptr(&gmem, LOW_BYTES - 1, 1) == low + LOW_BYTES - 1);
	CHECK(gmem_ptr(&gmem, HIGH_GPA + 5, HIGH_BYTES - 5) == high + 5);

	CHECK(!gmem_ptr(&gmem, 0, 0));
	CHECK(!gmem_ptr(&gmem, 0, LOW_BYTES + 1));
	CHECK(!gmem_ptr(&gmem, LOW_BYTES - 1, 2));
	CHECK(!gmem_ptr(&gmem, LOW_BYTES, 1));
	CHECK(!gmem_ptr(&gmem, HIGH_GPA - 1, 2));
	CHECK(!gmem_ptr(&gmem, HIGH_GPA + HIGH_BYTES, 1));
	CHECK(!gmem_ptr(&gmem, 1, ~0ull)); /* gpa + len wraps to a small sum */
	CHECK(!gmem_ptr(&gmem, HIGH_GPA + 1, ~0ull - HIGH_GPA));
	CHECK(!gmem_ptr(&gmem, ~0ull, 1));
	CHECK(!gmem_ptr(&gmem, ~0ull, ~0ull));
}

static void test_adjacent_regions_are_two(void)
{
	struct gmem gmem = {0};

	/* Not contiguous in the host: an access across the seam would run out of the first. */
	CHECK_EQ(gmem_add(&gmem, 0, 0x1000, low), 0);
	CHECK_EQ(gmem_add(&gmem, 0x1000, 0x1000, high), 0);
	CHECK(!gmem_ptr(&gmem, 0xfff, 2));
	CHECK(gmem_ptr(&gmem, 0x1000, 1) == high);
}

static void test_copy(void)
{
	struct gmem gmem = make();
	u8 in[4] = {1, 2, 3, 4}, out[4] = {0};

	memset(high, 0xee, sizeof(high));
	CHECK_EQ(gmem_write(&gmem, HIGH_GPA + HIGH_BYTES - 4, in, 4), 0);
	CHECK_EQ(gmem_read(&gmem, HIGH_GPA + HIGH_BYTES - 4, out, 4), 0);
	CHECK(!memcmp(in, out, 4));
	CHECK_EQ(high[HIGH_BYTES - 5], 0xee);
	CHECK_EQ(gmem_write(&gmem, HIGH_GPA + HIGH_BYTES - 3, in, 4), -EFAULT);
	CHECK_EQ(high[HIGH_BYTES - 3], 2);
	CHECK_EQ(gmem_read(&gmem, HIGH_GPA - 1, out, 1), -EFAULT);
	CHECK(!memcmp(in, out, 4));
}

TEST_MAIN({"add", test_add}, {"ptr", test_ptr},
	  {"adjacent regions are two", test_adjacent_regions_are_two}, {"copy", test_copy})
