// SPDX-License-Identifier: Apache-2.0
// Split virtqueues: golden rings, boundaries, and everything a guest can get wrong in them.
#include "tests/unit/test.h"

#include <errno.h>

#include "tests/unit/driver.h"

#define SIZE 8

static struct drv drv;
static struct virtq vq;
static struct virtq_chain chain;

static void setup(u16 size, bool event_idx)
{
	static bool first = true;

	if (first)
		drv_init(&drv);
	first = false;
	memset(drv.ram, 0, DRV_BUF_GPA);
	drv_queue_map(&drv, 0, size);
	vq = (struct virtq){
		.gmem = &drv.gmem,
		.size_max = VIRTQ_SIZE_MAX,
		.size = size,
		.ready = true,
		.event_idx = event_idx,
		.desc_gpa = DRV_QUEUE_GPA,
		.avail_gpa = DRV_QUEUE_GPA + 0x1000,
		.used_gpa = DRV_QUEUE_GPA + 0x2000,
	};
	CHECK_EQ(virtq_validate(&vq), 0);
}

static void test_pop_golden(void)
{
	setup(SIZE, true);
	drv_desc(&drv, 0, 5, 0x10000, 16, VRING_DESC_F_NEXT, 2);
	drv_desc(&drv, 0, 2, 0x20000, 512, VRING_DESC_F_NEXT, 7);
	drv_desc(&drv, 0, 7, 0x30000, 1000, VRING_DESC_F_NEXT | VRING_DESC_F_WRITE, 0);
	drv_desc(&drv, 0, 0, DRV_RAM_BYTES - 1, 1, VRING_DESC_F_WRITE, 0xffff);
	drv_add(&drv, 0, 5);
	CHECK_EQ(virtq_pop(&vq, &chain), 1);
	CHECK_EQ(chain.head, 5);
	CHECK_EQ(chain.nread, 2);
	CHECK_EQ(chain.nwrite, 2);
	CHECK_EQ(chain.read_bytes, 528);
	CHECK_EQ(chain.write_bytes, 1001);
	CHECK(chain.iov[0].iov_base == drv.ram + 0x10000 && chain.iov[0].iov_len == 16);
	CHECK(chain.iov[1].iov_base == drv.ram + 0x20000 && chain.iov[1].iov_len == 512);
	CHECK(chain.iov[2].iov_base == drv.ram + 0x30000 && chain.iov[2].iov_len == 1000);
	CHECK(chain.iov[3].iov_base == drv.ram + DRV_RAM_BYTES - 1 && chain.iov[3].iov_len == 1);
	CHECK_EQ(virtq_pop(&vq, &chain), 0);
}

static void test_empty_descriptors(void)
{
	setup(SIZE, true);
	/* Length 0 at an address that is not RAM: a link and nothing else. */
	drv_desc(&drv, 0, 0, ~0ull, 0, VRING_DESC_F_NEXT, 1);
	drv_desc(&drv, 0, 1, 0x10000, 4, VRING_DESC_F_WRITE, 0);
	drv_add(&drv, 0, 0);
	CHECK_EQ(virtq_pop(&vq, &chain), 1);
	CHECK_EQ(chain.nread, 0);
	CHECK_EQ(chain.nwrite, 1);
	drv_desc(&drv, 0, 0, 0, 0, 0, 0);
	drv_add(&drv, 0, 0);
	CHECK_EQ(virtq_pop(&vq, &chain), 1);
	CHECK_EQ(chain.nread + chain.nwrite, 0);
}

static int pop_one(void)
{
	drv_add(&drv, 0, 0);
	return virtq_pop(&vq, &chain);
}

static void test_malformed_chains(void)
{
	setup(SIZE, true);
	drv_desc(&drv, 0, 0, 0x10000, 1, VRING_DESC_F_NEXT, 0); /* loop */
	CHECK_EQ(pop_one(), -EBADMSG);
	CHECK_EQ(vq.next_avail, 0);

	setup(SIZE, true);
	drv_desc(&drv, 0, 0, 0x10000, 0, VRING_DESC_F_NEXT, 0); /* loop of nothing */
	CHECK_EQ(pop_one(), -EBADMSG);

	setup(SIZE, true);
	drv_desc(&drv, 0, 0, 0x10000, 1, VRING_DESC_F_NEXT, SIZE); /* next outside */
	CHECK_EQ(pop_one(), -EBADMSG);

	setup(SIZE, true);
	drv_add(&drv, 0, SIZE); /* head outside */
	CHECK_EQ(virtq_pop(&vq, &chain), -EBADMSG);

	setup(SIZE, true);
	drv_desc(&drv, 0, 0, 0x10000, 16, VRING_DESC_F_INDIRECT, 0);
	CHECK_EQ(pop_one(), -EBADMSG);

	setup(SIZE, true); /* writable before readable */
	drv_desc(&drv, 0, 0, 0x10000, 16, VRING_DESC_F_NEXT | VRING_DESC_F_WRITE, 1);
	drv_desc(&drv, 0, 1, 0x10000, 16, 0, 0);
	CHECK_EQ(pop_one(), -EBADMSG);
}

static void test_chain_of_queue_size(void)
{
	for (u16 links = SIZE - 1; links <= SIZE; links++) {
		setup(SIZE, true);
		for (u16 i = 0; i < SIZE; i++)
			drv_desc(&drv, 0, i, 0x10000, 1, i < links - 1 ? VRING_DESC_F_NEXT : 0,
				 i + 1);
		CHECK_EQ(pop_one(), 1);
		CHECK_EQ(chain.nread, links);
	}
	/* One more link than the queue has entries. */
	drv_desc(&drv, 0, SIZE - 1, 0x10000, 1, VRING_DESC_F_NEXT, 0);
	CHECK_EQ(pop_one(), -EBADMSG);
}

static void test_bad_addresses(void)
{
	static const struct {
		u64 gpa;
		u32 len;
	} bad[] = {
		{DRV_RAM_BYTES, 1},
		{DRV_RAM_BYTES - 1, 2},
		{0, (u32)DRV_RAM_BYTES + 1},
		{~0ull, 1},
		{~0ull, 2},
		{~0ull - 0xfff, 0x2000},
		{1ull << 63, 16},
		{0x10000, 0xffffffff},
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		setup(SIZE, true);
		drv_desc(&drv, 0, 0, bad[i].gpa, bad[i].len, 0, 0);
		CHECK_EQ(pop_one(), -EBADMSG);
	}
}

static void test_length_sum(void)
{
	struct gmem big = {0};
	u64 len_bytes = 32 * MIB;
	u8 *ram = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(ram != MAP_FAILED);
	CHECK_EQ(gmem_add(&big, 0, len_bytes, ram), 0);
	setup(256, true);
	memcpy(ram, drv.ram, DRV_BUF_GPA);
	vq.gmem = &big;
	/* 127 x 32 MiB is below 4 GiB, 128 x 32 MiB is 4 GiB. */
	for (u16 i = 0; i < 128; i++)
		((struct vring_desc *)(void *)(ram + DRV_QUEUE_GPA))[i] =
			(struct vring_desc){0, (u32)len_bytes, VRING_DESC_F_NEXT, i + 1};
	((struct vring_desc *)(void *)(ram + DRV_QUEUE_GPA))[127].flags = 0;
	*(u16 *)(void *)(ram + DRV_QUEUE_GPA + 0x1002) = 1;
	CHECK_EQ(virtq_pop(&vq, &chain), -EBADMSG);
	((struct vring_desc *)(void *)(ram + DRV_QUEUE_GPA))[126].flags = 0;
	CHECK_EQ(virtq_pop(&vq, &chain), 1);
	CHECK_EQ(chain.read_bytes, 127 * len_bytes);
	CHECK_EQ(munmap(ram, len_bytes), 0);
}

static void test_avail_jump(void)
{
	setup(SIZE, true);
	drv.queues[0].avail[1] = SIZE;
	CHECK_EQ(virtq_pop(&vq, &chain), 1);
	drv.queues[0].avail[1] = SIZE + 2;
	CHECK_EQ(virtq_pop(&vq, &chain), -EBADMSG); /* 9 wait in a ring of 8 */
	setup(SIZE, true);
	drv.queues[0].avail[1] = 0xffff; /* backwards */
	CHECK_EQ(virtq_pop(&vq, &chain), -EBADMSG);
}

static void test_avail_event(void)
{
	setup(SIZE, true);
	*drv_avail_event(&drv, 0) = 0x5555;
	CHECK_EQ(virtq_pop(&vq, &chain), 0);
	CHECK_EQ(*drv_avail_event(&drv, 0), 0);
	for (int i = 0; i < 3; i++)
		drv_add(&drv, 0, 0);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(virtq_pop(&vq, &chain), 1);
	CHECK_EQ(*drv_avail_event(&drv, 0), 0); /* only armed when it runs dry */
	CHECK_EQ(virtq_pop(&vq, &chain), 0);
	CHECK_EQ(*drv_avail_event(&drv, 0), 3);

	setup(SIZE, false);
	*drv_avail_event(&drv, 0) = 0x5555;
	CHECK_EQ(virtq_pop(&vq, &chain), 0);
	CHECK_EQ(*drv_avail_event(&drv, 0), 0x5555); /* not ours without EVENT_IDX */
	CHECK_EQ(drv.queues[0].used[0], 0);	     /* no NO_NOTIFY: every add kicks */
}

static void test_wrap_around(void)
{
	setup(SIZE, true);
	vq.next_avail = vq.next_used = vq.signalled_used = 0xfffe;
	drv.queues[0].avail[1] = 0xfffe;
	for (u16 i = 0; i < 4; i++) {
		drv_desc(&drv, 0, i, 0x10000 + i, 1, 0, 0);
		drv_add(&drv, 0, i);
	}
	CHECK_EQ(drv.queues[0].avail[1], 2);
	for (u16 i = 0; i < 4; i++) {
		CHECK_EQ(virtq_pop(&vq, &chain), 1);
		CHECK_EQ(chain.head, i);
		CHECK_EQ(virtq_push(&vq, chain.head, i), 0);
	}
	CHECK_EQ(virtq_pop(&vq, &chain), 0);
	CHECK_EQ(*drv_avail_event(&drv, 0), 2);
	CHECK_EQ(drv_used_idx(&drv, 0), 2);
	CHECK_EQ(drv_used(&drv, 0, 6)->id, 0);
	CHECK_EQ(drv_used(&drv, 0, 1)->id, 3);
	*drv_used_event(&drv, 0) = 0xffff; /* passed by the move 0xfffe -> 2 */
	CHECK(virtq_should_signal(&vq));
}

static void test_push_golden(void)
{
	static const u8 golden[] = {0, 0, 2, 0, 5, 0, 0, 0, 0x78, 0x56, 0x34, 0x12,
				    1, 0, 0, 0, 0, 0, 0, 0, 0,	  0,	0,    0};

	setup(SIZE, true);
	CHECK_EQ(virtq_push(&vq, 5, 0x12345678), 0);
	CHECK_EQ(virtq_push(&vq, 1, 0), 0);
	CHECK(!memcmp(drv.queues[0].used, golden, sizeof(golden)));
	CHECK_EQ(virtq_push(&vq, SIZE, 0), -EBADMSG);
	vq.ready = false;
	CHECK_EQ(virtq_push(&vq, 0, 0), -EBADMSG);
	CHECK_EQ(virtq_pop(&vq, &chain), 0);
	CHECK_EQ(vq.next_used, 2);
}

static void test_should_signal(void)
{
	static const struct {
		u16 old, new, event;
		bool signal;
	} cases[] = {
		{0, 1, 0, true},
		{0, 1, 1, false},
		{0, 3, 2, true},
		{0, 3, 3, false},
		{5, 6, 4, false},
		{0xffff, 0, 0xffff, true},
		{0xfffe, 1, 0xfffd, false},
		{0xfffe, 1, 0, true},
		{0xfffe, 1, 1, false},
		{7, 7, 7, false},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		setup(SIZE, true);
		vq.signalled_used = cases[i].old;
		vq.next_used = cases[i].new;
		*drv_used_event(&drv, 0) = cases[i].event;
		CHECK_EQ(virtq_should_signal(&vq), cases[i].signal);
		CHECK_EQ(vq.signalled_used, cases[i].new);
		CHECK(!virtq_should_signal(&vq)); /* once */
		CHECK_EQ(virtq_used_unseen(&vq), cases[i].event != cases[i].new);
	}
	setup(SIZE, false);
	vq.next_used = 1;
	CHECK(virtq_should_signal(&vq));
	drv.queues[0].avail[0] = VRING_AVAIL_F_NO_INTERRUPT;
	vq.next_used = 2;
	CHECK(!virtq_should_signal(&vq));
	CHECK(!virtq_used_unseen(&vq));
}

static void test_unpop(void)
{
	setup(SIZE, true);
	drv_desc(&drv, 0, 3, 0x10000, 1, 0, 0);
	drv_add(&drv, 0, 3);
	CHECK_EQ(virtq_pop(&vq, &chain), 1);
	virtq_unpop(&vq);
	CHECK_EQ(virtq_pop(&vq, &chain), 1);
	CHECK_EQ(chain.head, 3);
	CHECK_EQ(virtq_avail_idx(&vq), 1);
}

static void test_chain_copy(void)
{
	u8 buf[16];

	setup(SIZE, true);
	drv_desc(&drv, 0, 0, 0x10000, 3, VRING_DESC_F_NEXT, 1);
	drv_desc(&drv, 0, 1, 0x20000, 5, VRING_DESC_F_NEXT, 2);
	drv_desc(&drv, 0, 2, 0x30000, 2, VRING_DESC_F_NEXT | VRING_DESC_F_WRITE, 3);
	drv_desc(&drv, 0, 3, 0x40000, 4, VRING_DESC_F_WRITE, 0);
	memcpy(drv_ptr(&drv, 0x10000), "abcX", 4);
	memcpy(drv_ptr(&drv, 0x20000), "defghX", 6);
	memset(drv_ptr(&drv, 0x30000), '.', 8);
	memset(drv_ptr(&drv, 0x40000), '.', 8);
	CHECK_EQ(pop_one(), 1);
	CHECK_EQ(virtq_chain_read(&chain, 0, buf, sizeof(buf)), 8);
	CHECK(!memcmp(buf, "abcdefgh", 8));
	CHECK_EQ(virtq_chain_read(&chain, 2, buf, 2), 2);
	CHECK(!memcmp(buf, "cd", 2));
	CHECK_EQ(virtq_chain_read(&chain, 8, buf, 1), 0);
	CHECK_EQ(virtq_chain_read(&chain, SIZE_MAX, buf, 1), 0);
	CHECK_EQ(virtq_chain_write(&chain, 1, "12345678", 8), 5);
	CHECK(!memcmp(drv_ptr(&drv, 0x30000), ".1......", 8));
	CHECK(!memcmp(drv_ptr(&drv, 0x40000), "2345....", 8));
}

static void test_validate(void)
{
	static const u16 bad_sizes[] = {0, 3, 7, 255, 512, 0x8000, 0xffff};
	struct virtq good;

	setup(SIZE, true);
	good = vq;
	for (size_t i = 0; i < ARRAY_SIZE(bad_sizes); i++) {
		vq.size = bad_sizes[i];
		CHECK_EQ(virtq_validate(&vq), -EINVAL);
	}
	vq = good;
	vq.desc_gpa += 8;
	CHECK_EQ(virtq_validate(&vq), -EINVAL);
	vq = good;
	vq.avail_gpa += 1;
	CHECK_EQ(virtq_validate(&vq), -EINVAL);
	vq = good;
	vq.used_gpa += 2;
	CHECK_EQ(virtq_validate(&vq), -EINVAL);
	vq = good;
	vq.used_gpa = DRV_RAM_BYTES - (4 + 8 * SIZE); /* avail_event does not fit */
	CHECK_EQ(virtq_validate(&vq), -EINVAL);
	vq.used_gpa -= 4;
	CHECK_EQ(virtq_validate(&vq), 0);
	vq.desc_gpa = ~0ull & ~15ull;
	CHECK_EQ(virtq_validate(&vq), -EINVAL);
	vq = good;
	vq.avail_gpa = DRV_RAM_BYTES - (6 + 2 * SIZE);
	CHECK_EQ(virtq_validate(&vq), 0);
	vq.avail_gpa += 2;
	CHECK_EQ(virtq_validate(&vq), -EINVAL);
}

TEST_MAIN({"pop_golden", test_pop_golden}, {"empty_descriptors", test_empty_descriptors},
	  {"malformed_chains", test_malformed_chains},
	  {"chain_of_queue_size", test_chain_of_queue_size}, {"bad_addresses", test_bad_addresses},
	  {"length_sum", test_length_sum}, {"avail_jump", test_avail_jump},
	  {"avail_event", test_avail_event}, {"wrap_around", test_wrap_around},
	  {"push_golden", test_push_golden}, {"should_signal", test_should_signal},
	  {"unpop", test_unpop}, {"chain_copy", test_chain_copy}, {"validate", test_validate})
