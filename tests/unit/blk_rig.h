/* SPDX-License-Identifier: Apache-2.0 */
/* A guest's block driver for tests: builds requests, waits for their answers. */
#ifndef THAW_TESTS_UNIT_BLK_RIG_H
#define THAW_TESTS_UNIT_BLK_RIG_H

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "tests/unit/driver.h"
#include "vmm/virtio/blk.h"

#define RIG_QUEUE      128	   /* more than the device has slots */
#define RIG_HDR_GPA    DRV_BUF_GPA /* slot i: 64 bytes; header, then status at +63 */
#define RIG_DATA_GPA   (MIB)	   /* slot i: RIG_DATA_BYTES */
#define RIG_DATA_BYTES ((u64)64 * KIB)
#define RIG_SLOTS      16 /* three descriptors each */

struct rig {
	struct drv drv;
	int base_fd, delta_fd;
};

static inline struct blk *rig_blk(struct rig *rig)
{
	return container_of(rig->drv.dev, struct blk, dev);
}

static inline int rig_file(void)
{
	int fd = memfd_create("disk", MFD_CLOEXEC);

	CHECK(fd >= 0);
	return fd;
}

static inline u8 *rig_data(struct rig *rig, unsigned int slot)
{
	return drv_ptr(&rig->drv, RIG_DATA_GPA + slot * RIG_DATA_BYTES);
}

static inline u8 *rig_status(struct rig *rig, unsigned int slot)
{
	return drv_ptr(&rig->drv, RIG_HDR_GPA + slot * 64 + 63);
}

/* Write the header of @slot. */
static inline void rig_header(struct rig *rig, unsigned int slot, u32 type, u64 sector)
{
	struct virtio_blk_outhdr *hdr = drv_ptr(&rig->drv, RIG_HDR_GPA + slot * 64);

	*hdr = (struct virtio_blk_outhdr){.type = type, .sector = sector};
	*rig_status(rig, slot) = 0xff;
}

/* Make a request of header, @len_bytes of data (0: none) and status available; no kick. */
static inline void rig_add(struct rig *rig, unsigned int slot, u32 type, u64 sector, u32 len_bytes)
{
	bool in = type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_GET_ID;
	u64 hdr_gpa = RIG_HDR_GPA + slot * 64;
	u16 d = (u16)(slot * 3);

	CHECK(slot < RIG_SLOTS);
	rig_header(rig, slot, type, sector);
	drv_desc(&rig->drv, 0, d, hdr_gpa, 16, VRING_DESC_F_NEXT, len_bytes ? d + 1 : d + 2);
	drv_desc(&rig->drv, 0, d + 1, RIG_DATA_GPA + slot * RIG_DATA_BYTES, len_bytes,
		 VRING_DESC_F_NEXT | (in ? VRING_DESC_F_WRITE : 0), d + 2);
	drv_desc(&rig->drv, 0, d + 2, hdr_gpa + 63, 1, VRING_DESC_F_WRITE, 0);
	drv_add(&rig->drv, 0, d);
}

/* Serve completions until @count more used entries are there than the test has taken. */
static inline void rig_wait(struct rig *rig, u16 count)
{
	struct blk *blk = rig_blk(rig);
	struct pollfd pfd = {.fd = blk->ring.event_fd, .events = POLLIN};

	while ((u16)(drv_used_idx(&rig->drv, 0) - rig->drv.queues[0].seen) < count) {
		CHECK_EQ(poll(&pfd, 1, 10000), 1);
		blk->ring_handler.fn(&blk->ring_handler, EPOLLIN);
	}
	CHECK_EQ((u16)(drv_used_idx(&rig->drv, 0) - rig->drv.queues[0].seen), count);
	rig->drv.queues[0].seen += count;
}

/* One request from kick to answer. Return: its status. */
static inline u8 rig_do(struct rig *rig, u32 type, u64 sector, u32 len_bytes)
{
	rig_add(rig, 0, type, sector, len_bytes);
	drv_notify(&rig->drv, 0);
	rig_wait(rig, 1);
	return *rig_status(rig, 0);
}

/* Discard or write zeroes. */
static inline u8 rig_zero(struct rig *rig, u32 type, u64 sector, u32 sectors, u32 flags)
{
	struct virtio_blk_discard_write_zeroes *seg = (void *)rig_data(rig, 0);

	*seg = (struct virtio_blk_discard_write_zeroes){
		.sector = sector, .num_sectors = sectors, .flags = flags};
	return rig_do(rig, type, 0, sizeof(*seg));
}

/* A started driver over @base_fd (or -1) and a new delta. */
static inline void rig_init(struct rig *rig, int base_fd, int delta_fd, u64 size_bytes, bool plain)
{
	drv_init(&rig->drv);
	rig->base_fd = base_fd;
	rig->delta_fd = delta_fd;
	if (plain)
		CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	CHECK_EQ(blk_create(&rig->drv.host, 3, base_fd, delta_fd, size_bytes, &rig->drv.dev), 0);
	CHECK_EQ(unsetenv("THAW_IO"), 0);
	drv_start(&rig->drv, RIG_QUEUE);
}

static inline void rig_destroy(struct rig *rig)
{
	drv_destroy(&rig->drv);
	close(rig->delta_fd);
	if (rig->base_fd >= 0)
		close(rig->base_fd);
}

#endif
