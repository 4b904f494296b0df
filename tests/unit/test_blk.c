// SPDX-License-Identifier: Apache-2.0
// The block device: every request type, copy on write by the byte, and what a hostile driver sends.
#include "tests/unit/test.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

#include "tests/unit/blk_rig.h"

#define DISK_BYTES (256 * KIB)
#define BASE_BYTES (100 * KIB + 300) /* ends inside a block and inside a sector */

static bool plain;

static int make_base(void)
{
	u8 byte[BASE_BYTES];
	int fd = rig_file();

	for (size_t i = 0; i < sizeof(byte); i++)
		byte[i] = (u8)(1 + i * 7 % 251);
	CHECK_EQ(pwrite(fd, byte, sizeof(byte), 0), sizeof(byte));
	return fd;
}

static u8 base_byte(u64 pos)
{
	return pos < BASE_BYTES ? (u8)(1 + pos * 7 % 251) : 0;
}

static void setup(struct rig *rig)
{
	rig_init(rig, make_base(), rig_file(), DISK_BYTES, plain);
	CHECK_EQ(rig_blk(rig)->ring.plain, plain);
}

static void check_base(const u8 *buf, u64 pos, size_t len)
{
	for (size_t i = 0; i < len; i++)
		CHECK_EQ(buf[i], base_byte(pos + i));
}

static void check_fill(const u8 *buf, u8 value, size_t len)
{
	for (size_t i = 0; i < len; i++)
		CHECK_EQ(buf[i], value);
}

static void test_config(void)
{
	struct virtio_blk_config config;
	struct rig rig;

	setup(&rig);
	for (u32 i = 0; i < sizeof(config); i++)
		virtio_mmio_access(rig.drv.dev, 0x100 + i, (u8 *)&config + i, 1, false);
	CHECK_EQ(config.capacity, DISK_BYTES / 512);
	CHECK_EQ(config.seg_max, 64);
	CHECK_EQ(config.blk_size, 4096);
	CHECK_EQ(config.max_discard_seg, 1);
	CHECK_EQ(config.max_discard_sectors, GIB / 512);
	CHECK_EQ(config.discard_sector_alignment, 8);
	CHECK_EQ(config.max_write_zeroes_seg, 1);
	CHECK_EQ(drv_read(&rig.drv, VIRTIO_MMIO_DEVICE_ID), 2);
	CHECK_EQ(rig.drv.dev->ops->features, 0x6244);
	rig_destroy(&rig);
}

static void test_read_base(void)
{
	struct rig rig;

	setup(&rig);
	memset(rig_data(&rig, 0), 0xee, RIG_DATA_BYTES);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 3, 8192), VIRTIO_BLK_S_OK);
	check_base(rig_data(&rig, 0), 3 * 512, 8192);
	CHECK_EQ(rig_data(&rig, 0)[8192], 0xee);
	CHECK_EQ(drv_used(&rig.drv, 0, 0)->len, 8193);
	/* Across the base's end, which is inside a sector. */
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 100 * 2 - 2, 16384), VIRTIO_BLK_S_OK);
	check_base(rig_data(&rig, 0), 99 * 1024, 16384);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, DISK_BYTES / 512 - 1, 512), VIRTIO_BLK_S_OK);
	check_fill(rig_data(&rig, 0), 0, 512);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 0, 0), VIRTIO_BLK_S_OK);
	CHECK(rig.drv.interrupts > 0);
	rig_destroy(&rig);
}

static void test_write_blocks(void)
{
	struct rig rig;

	setup(&rig);
	memset(rig_data(&rig, 0), 0x5a, 8192);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 16, 8192), VIRTIO_BLK_S_OK);
	CHECK_EQ(blk_map_get(&rig_blk(&rig)->map, 1), BLK_BASE);
	CHECK_EQ(blk_map_get(&rig_blk(&rig)->map, 2), BLK_DELTA);
	CHECK_EQ(blk_map_get(&rig_blk(&rig)->map, 3), BLK_DELTA);
	CHECK_EQ(blk_map_get(&rig_blk(&rig)->map, 4), BLK_BASE);
	CHECK_EQ(lseek(rig.delta_fd, 0, SEEK_DATA), 8192); /* nothing else was copied up */
	CHECK_EQ(lseek(rig.delta_fd, 0, SEEK_END), 16384);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 8, 16384), VIRTIO_BLK_S_OK);
	check_base(rig_data(&rig, 0), 4096, 4096);
	check_fill(rig_data(&rig, 0) + 4096, 0x5a, 8192);
	check_base(rig_data(&rig, 0) + 12288, 16384, 4096);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_FLUSH, 0, 0), VIRTIO_BLK_S_OK);
	rig_destroy(&rig);
}

static void test_write_parts(void)
{
	struct rig rig;

	setup(&rig);
	/* From inside block 1 to inside block 3: copy up, whole block, copy up. */
	memset(rig_data(&rig, 0), 0x77, 2 * 4096);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 11, 2 * 4096), VIRTIO_BLK_S_OK);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 8, 3 * 4096), VIRTIO_BLK_S_OK);
	check_base(rig_data(&rig, 0), 4096, 3 * 512);
	check_fill(rig_data(&rig, 0) + 3 * 512, 0x77, 2 * 4096);
	check_base(rig_data(&rig, 0) + 3 * 512 + 8192, 11 * 512 + 8192, 5 * 512);
	/* Again, now inside the delta: straight to it. */
	memset(rig_data(&rig, 0), 0x78, 512);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 9, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 8, 4096), VIRTIO_BLK_S_OK);
	check_base(rig_data(&rig, 0), 4096, 512);
	check_fill(rig_data(&rig, 0) + 512, 0x78, 512);
	check_base(rig_data(&rig, 0) + 1024, 4096 + 1024, 512);
	check_fill(rig_data(&rig, 0) + 3 * 512, 0x77, 5 * 512);
	/* The block in which the base ends. */
	memset(rig_data(&rig, 0), 0x79, 512);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 207, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 200, 4096), VIRTIO_BLK_S_OK);
	check_base(rig_data(&rig, 0), 200 * 512, 7 * 512);
	check_fill(rig_data(&rig, 0) + 7 * 512, 0x79, 512);
	rig_destroy(&rig);
}

/* Eight writes to the eight sectors of one block in one kick: no copy-up may lose a neighbour. */
static void test_same_block(void)
{
	struct rig rig;

	setup(&rig);
	for (unsigned int i = 0; i < 8; i++) {
		memset(rig_data(&rig, i), (int)(0x80 + i), 512);
		rig_add(&rig, i, VIRTIO_BLK_T_OUT, 40 + i, 512);
	}
	drv_notify(&rig.drv, 0);
	rig_wait(&rig, 8);
	for (unsigned int i = 0; i < 8; i++)
		CHECK_EQ(*rig_status(&rig, i), VIRTIO_BLK_S_OK);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 40, 4096), VIRTIO_BLK_S_OK);
	for (unsigned int i = 0; i < 8; i++)
		check_fill(rig_data(&rig, 0) + i * 512, (u8)(0x80 + i), 512);
	rig_destroy(&rig);
}

static void test_zeroing(void)
{
	struct rig rig;
	struct blk *blk;

	setup(&rig);
	blk = rig_blk(&rig);
	memset(rig_data(&rig, 0), 0x11, 4 * 4096);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 0, 4 * 4096), VIRTIO_BLK_S_OK);
	/* Discard from inside block 0 to inside block 3: only the whole blocks 1 and 2. */
	CHECK_EQ(rig_zero(&rig, VIRTIO_BLK_T_DISCARD, 4, 24, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(blk_map_get(&blk->map, 0), BLK_DELTA);
	CHECK_EQ(blk_map_get(&blk->map, 1), BLK_ZERO);
	CHECK_EQ(blk_map_get(&blk->map, 2), BLK_ZERO);
	CHECK_EQ(blk_map_get(&blk->map, 3), BLK_DELTA);
	CHECK_EQ(lseek(rig.delta_fd, 4096, SEEK_DATA), 3 * 4096); /* the room was given back */
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 0, 4 * 4096), VIRTIO_BLK_S_OK);
	check_fill(rig_data(&rig, 0), 0x11, 4096);
	check_fill(rig_data(&rig, 0) + 4096, 0, 8192);
	check_fill(rig_data(&rig, 0) + 12288, 0x11, 4096);
	/* Part of a discarded block: the rest is zeros, not the base and not the old data. */
	memset(rig_data(&rig, 0), 0x22, 512);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 9, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 8, 4096), VIRTIO_BLK_S_OK);
	check_fill(rig_data(&rig, 0), 0, 512);
	check_fill(rig_data(&rig, 0) + 512, 0x22, 512);
	check_fill(rig_data(&rig, 0) + 1024, 0, 3072);
	/* Write zeroes takes the parts too: in the delta (block 0), in the base (block 5). */
	CHECK_EQ(rig_zero(&rig, VIRTIO_BLK_T_WRITE_ZEROES, 7, 34, 1), VIRTIO_BLK_S_OK);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 0, 6 * 4096), VIRTIO_BLK_S_OK);
	check_fill(rig_data(&rig, 0), 0x11, 7 * 512);
	check_fill(rig_data(&rig, 0) + 7 * 512, 0, 34 * 512);
	check_base(rig_data(&rig, 0) + 41 * 512, 41 * 512, 7 * 512);
	/* Beyond the base all is zero already: nothing to write down. */
	CHECK_EQ(rig_zero(&rig, VIRTIO_BLK_T_WRITE_ZEROES, 300, 100, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(blk_map_get(&blk->map, 40), BLK_BASE);
	rig_destroy(&rig);
}

static void test_refused(void)
{
	const u64 sectors = DISK_BYTES / 512;
	struct rig rig;

	setup(&rig);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, sectors, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, sectors - 1, 1024), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, ~0ull, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 1ull << 55, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 0, 511), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 0, 513), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_do(&rig, 2, 0, 512), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(rig_do(&rig, 0xffffffff, 0, 0), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(rig_zero(&rig, VIRTIO_BLK_T_DISCARD, 0, 8, 1), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(rig_zero(&rig, VIRTIO_BLK_T_WRITE_ZEROES, 0, 8, 2), VIRTIO_BLK_S_UNSUPP);
	CHECK_EQ(rig_zero(&rig, VIRTIO_BLK_T_DISCARD, sectors, 1, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_zero(&rig, VIRTIO_BLK_T_DISCARD, 0, 0xffffffff, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_zero(&rig, VIRTIO_BLK_T_DISCARD, ~0ull, 8, 0), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_zero(&rig, VIRTIO_BLK_T_DISCARD, 0, 0, 0), VIRTIO_BLK_S_OK);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_DISCARD, 0, 32), VIRTIO_BLK_S_IOERR); /* two segments */
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_DISCARD, 0, 15), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(lseek(rig.delta_fd, 0, SEEK_END), 0); /* none of it wrote anything */
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_GET_ID, 0, 20), VIRTIO_BLK_S_OK);
	CHECK_STR((char *)rig_data(&rig, 0), "thaw-scratch");
	rig_destroy(&rig);
}

/* Header in pieces, data in odd pieces, the status alone or behind data in one descriptor. */
static void test_odd_chains(void)
{
	struct rig rig;
	struct drv *drv = &rig.drv;

	setup(&rig);
	rig_header(&rig, 0, VIRTIO_BLK_T_OUT, 0);
	memset(rig_data(&rig, 0), 0x31, 8192);
	drv_desc(drv, 0, 0, RIG_HDR_GPA, 7, VRING_DESC_F_NEXT, 1);
	drv_desc(drv, 0, 1, RIG_HDR_GPA + 7, 8, VRING_DESC_F_NEXT, 2);
	/* The header's last byte (0) and the first 99 of data in one descriptor. */
	*(u8 *)drv_ptr(drv, RIG_DATA_GPA) = 0;
	drv_desc(drv, 0, 2, RIG_DATA_GPA, 100, VRING_DESC_F_NEXT, 3);
	drv_desc(drv, 0, 3, RIG_DATA_GPA + 200, 4096 - 99, VRING_DESC_F_NEXT, 4);
	drv_desc(drv, 0, 4, RIG_HDR_GPA + 63, 1, VRING_DESC_F_WRITE, 0);
	drv_add(drv, 0, 0);
	drv_notify(drv, 0);
	rig_wait(&rig, 1);
	CHECK_EQ(*rig_status(&rig, 0), VIRTIO_BLK_S_OK);
	rig_header(&rig, 0, VIRTIO_BLK_T_IN, 0);
	memset(rig_data(&rig, 0), 0xee, 8192);
	drv_desc(drv, 0, 2, RIG_HDR_GPA + 15, 1, VRING_DESC_F_NEXT, 3);
	drv_desc(drv, 0, 3, RIG_DATA_GPA, 1, VRING_DESC_F_NEXT | VRING_DESC_F_WRITE, 4);
	drv_desc(drv, 0, 4, RIG_DATA_GPA + 1, 4096, VRING_DESC_F_WRITE, 0); /* and the status */
	drv_add(drv, 0, 0);
	drv_notify(drv, 0);
	rig_wait(&rig, 1);
	check_fill(rig_data(&rig, 0), 0x31, 4096);
	CHECK_EQ(rig_data(&rig, 0)[4096], VIRTIO_BLK_S_OK);
	CHECK_EQ(rig_data(&rig, 0)[4097], 0xee);
	/* Too short for a header, but there is room for the answer. */
	drv_desc(drv, 0, 0, RIG_HDR_GPA, 15, VRING_DESC_F_NEXT, 1);
	drv_desc(drv, 0, 1, RIG_HDR_GPA + 63, 1, VRING_DESC_F_WRITE, 0);
	drv_add(drv, 0, 0);
	drv_notify(drv, 0);
	rig_wait(&rig, 1);
	CHECK_EQ(*rig_status(&rig, 0), VIRTIO_BLK_S_IOERR);
	/* No room for an answer: there is no way to fail but this. */
	drv_desc(drv, 0, 0, RIG_HDR_GPA, 16, 0, 0);
	drv_add(drv, 0, 0);
	drv_notify(drv, 0);
	CHECK_EQ(drv_read(drv, VIRTIO_MMIO_STATUS), 0x4f);
	rig_destroy(&rig);
}

/* What fails on the host is an I/O error in the guest, and the map stays true. */
static void test_host_errors(void)
{
	char path[64];
	struct rig rig;
	int full_fd, read_only_fd;

	full_fd = rig_file();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", full_fd);
	read_only_fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(read_only_fd >= 0);
	rig_init(&rig, make_base(), read_only_fd, DISK_BYTES, plain);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 0, 4096), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 9, 512), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 0, 8192), VIRTIO_BLK_S_OK);
	check_base(rig_data(&rig, 0), 0, 8192);
	CHECK_EQ(drv_read(&rig.drv, VIRTIO_MMIO_STATUS), 0xf);
	rig_destroy(&rig);
	close(full_fd);
}

/* The host has room for a block and a bit: the write fails, and no block is half of each. */
static void test_short_write(void)
{
	struct rlimit old, cut;
	struct rig rig;

	setup(&rig);
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
	cut = (struct rlimit){4096 + 1000, old.rlim_max};
	CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
	memset(rig_data(&rig, 0), 0x99, 12288);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &cut), 0);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 0, 12288), VIRTIO_BLK_S_IOERR);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 0, 12288), VIRTIO_BLK_S_OK);
	check_fill(rig_data(&rig, 0), 0x99, 4096);
	check_base(rig_data(&rig, 0) + 4096, 4096, 8192);
	/* Part of a block, now that there is room: from the base, not from what was left behind. */
	memset(rig_data(&rig, 0), 0x98, 512);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 8, 512), VIRTIO_BLK_S_OK);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 8, 4096), VIRTIO_BLK_S_OK);
	check_fill(rig_data(&rig, 0), 0x98, 512);
	check_base(rig_data(&rig, 0) + 512, 4096 + 512, 3584);
	rig_destroy(&rig);
}

/* The same descriptor in the avail ring again and again: more requests than slots. */
static void test_more_than_slots(void)
{
	struct rig rig;

	setup(&rig);
	for (int round = 0; round < 4; round++) {
		for (unsigned int i = 0; i < RIG_QUEUE; i++)
			rig_add(&rig, 0, VIRTIO_BLK_T_IN, 0, 4096);
		drv_notify(&rig.drv, 0);
		rig_wait(&rig, RIG_QUEUE);
	}
	CHECK(rig_blk(&rig)->nreqs <= BLK_REQS_MAX);
	CHECK_EQ(rig_blk(&rig)->nactive, 0);
	rig_destroy(&rig);
}

/* Return: were requests under way when the driver reset the device? */
static bool reset_once(struct rig *rig)
{
	bool busy;

	for (unsigned int i = 0; i < RIG_SLOTS; i++) {
		struct virtio_blk_discard_write_zeroes seg = {.sector = i, .num_sectors = 64};

		/* Overlapping, so that most of them wait; a discard never ends at once. */
		memset(rig_data(rig, i), 0x44, RIG_DATA_BYTES);
		if (i % 2) {
			rig_add(rig, i, VIRTIO_BLK_T_OUT, i, 32768);
		} else {
			memcpy(rig_data(rig, i), &seg, sizeof(seg));
			rig_add(rig, i, VIRTIO_BLK_T_DISCARD, 0, sizeof(seg));
		}
	}
	drv_notify(&rig->drv, 0);
	busy = rig_blk(rig)->nactive > 0;
	drv_write(&rig->drv, VIRTIO_MMIO_STATUS, 0);
	CHECK_EQ(rig_blk(rig)->nactive, 0);
	CHECK_EQ(rig_blk(rig)->ring.inflight, 0);
	memset(drv_ptr(&rig->drv, DRV_QUEUE_GPA), 0, DRV_QUEUE_BYTES);
	drv_start(&rig->drv, RIG_QUEUE);
	return busy;
}

static void test_reset_mid_request(void)
{
	unsigned int busy = 0;
	struct rig rig;

	setup(&rig);
	memset(rig_data(&rig, 0), 0x43, 65536);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 0, 65536), VIRTIO_BLK_S_OK);
	for (int i = 0; i < 50; i++)
		busy += reset_once(&rig);
	CHECK_EQ(busy > 0, !plain);
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_IN, 0, 512), VIRTIO_BLK_S_OK);
	rig_destroy(&rig);
}

static void test_restore(void)
{
	struct snap_virtio state;
	struct rig rig;

	setup(&rig);
	memset(rig_data(&rig, 0), 0x66, 4096);
	rig_add(&rig, 0, VIRTIO_BLK_T_OUT, 0, 4096);
	drv_notify(&rig.drv, 0);
	CHECK_EQ(rig.drv.dev->ops->quiesce(rig.drv.dev), 0);
	CHECK_EQ(rig_blk(&rig)->nactive, 0);
	rig_wait(&rig, 1);
	rig_add(&rig, 1, VIRTIO_BLK_T_IN, 0, 4096); /* made available, not kicked */
	virtio_save(rig.drv.dev, &state);
	virtio_destroy(rig.drv.dev);
	/* In the clone the merged image would be the base; here the delta is. */
	close(rig.base_fd);
	rig.base_fd = rig.delta_fd;
	rig.delta_fd = rig_file();
	CHECK_EQ(blk_create(&rig.drv.host, 3, rig.base_fd, rig.delta_fd, 2 * DISK_BYTES,
			    &rig.drv.dev),
		 0);
	CHECK_EQ(virtio_load(rig.drv.dev, &state), -EINVAL); /* a disk of another size */
	virtio_destroy(rig.drv.dev);
	CHECK_EQ(blk_create(&rig.drv.host, 3, rig.base_fd, rig.delta_fd, DISK_BYTES, &rig.drv.dev),
		 0);
	CHECK_EQ(virtio_load(rig.drv.dev, &state), 0);
	CHECK_EQ(virtio_resume(rig.drv.dev), 0);
	rig_wait(&rig, 1);
	check_fill(rig_data(&rig, 1), 0x66, 4096);
	rig_destroy(&rig);
}

static void test_create_errors(void)
{
	struct virtio_dev *dev;
	struct drv drv;
	int fd = rig_file();
	int pipes[2];

	drv_init(&drv);
	CHECK_EQ(pipe(pipes), 0);
	CHECK_EQ(blk_create(&drv.host, 3, -1, fd, 0, &dev), -EINVAL);
	CHECK_EQ(blk_create(&drv.host, 3, -1, fd, 4095, &dev), -EINVAL);
	CHECK_EQ(blk_create(&drv.host, 3, -1, -1, 4096, &dev), -EBADF);
	CHECK_EQ(blk_create(&drv.host, 3, -1, pipes[1], 4096, &dev), -EINVAL);
	CHECK_EQ(blk_create(&drv.host, 3, pipes[0], fd, 4096, &dev), -EINVAL);
	drv_destroy(&drv);
}

#define BOTH(name)                     \
	static void name##_plain(void) \
	{                              \
		plain = true;          \
		name();                \
	}                              \
	static void name##_ring(void)  \
	{                              \
		plain = false;         \
		name();                \
	}

BOTH(test_config)
BOTH(test_read_base)
BOTH(test_write_blocks)
BOTH(test_write_parts)
BOTH(test_same_block)
BOTH(test_zeroing)
BOTH(test_refused)
BOTH(test_odd_chains)
BOTH(test_host_errors)
BOTH(test_short_write)
BOTH(test_more_than_slots)
BOTH(test_reset_mid_request)
BOTH(test_restore)

#define CASES(name)                            \
	{#name " (io_uring)", name##_ring},    \
	{                                      \
#name " (plain)", name##_plain \
	}

TEST_MAIN(CASES(test_config), CASES(test_read_base), CASES(test_write_blocks),
	  CASES(test_write_parts), CASES(test_same_block), CASES(test_zeroing), CASES(test_refused),
	  CASES(test_odd_chains), CASES(test_host_errors), CASES(test_short_write),
	  CASES(test_more_than_slots), CASES(test_reset_mid_request), CASES(test_restore),
	  {"create_errors", test_create_errors})
