// SPDX-License-Identifier: Apache-2.0
// A hostile block driver: requests of any type and shape, resets and snapshots between them; see
// seeds_virtio.py for the format.
//
// Oracles: the sanitizers; while the rings are sound, no byte of RAM changes outside the writable
// buffers given and the used ring; the base file never changes; the merged image can be written and
// equals what the driver reads back.
#include <errno.h>

#include "tests/unit/test.h"

#include "tests/fuzz/input.h"
#include "tests/unit/blk_rig.h"
#include "vmm/util/log.h"

#define STEPS_MAX   200
#define DISK_BYTES  ((u64)64 * KIB)
#define BASE_BYTES  20000u
#define CHECK_BYTES (112 * KIB) /* of RAM: descriptors point below this, or nowhere */

struct target {
	struct rig rig;
	u16 next_desc;
	bool corrupt; /* the rings were written to: only memory safety can be expected */
};

static u8 shadow[CHECK_BYTES];
static u8 may_write[CHECK_BYTES];

static void allow(u64 gpa, u64 len_bytes)
{
	if (gpa < CHECK_BYTES)
		memset(may_write + gpa, 1, MIN(len_bytes, CHECK_BYTES - gpa));
}

/* RAM as the driver knows it; nothing the device was given before may change any more. */
static void remember(struct target *t)
{
	memcpy(shadow, t->rig.drv.ram, CHECK_BYTES);
	memset(may_write, 0, CHECK_BYTES);
	allow(DRV_QUEUE_GPA + 0x2000, 0x1000); /* the used ring */
}

static void check_ram(struct target *t)
{
	const u8 *ram = t->rig.drv.ram;

	for (size_t page = 0; page < CHECK_BYTES && !t->corrupt; page += PAGE_SIZE_BYTES) {
		if (!memcmp(ram + page, shadow + page, PAGE_SIZE_BYTES))
			continue;
		for (size_t i = page; i < page + PAGE_SIZE_BYTES; i++)
			CHECK(may_write[i] || ram[i] == shadow[i]);
	}
}

static void drain(struct target *t)
{
	CHECK_EQ(t->rig.drv.dev->ops->quiesce(t->rig.drv.dev), 0);
	CHECK_EQ(rig_blk(&t->rig)->nactive, 0);
}

static void step_request(struct target *t, struct input *in)
{
	static const u32 types[] = {VIRTIO_BLK_T_IN,	       VIRTIO_BLK_T_OUT,
				    VIRTIO_BLK_T_FLUSH,	       VIRTIO_BLK_T_GET_ID,
				    VIRTIO_BLK_T_DISCARD,      VIRTIO_BLK_T_OUT,
				    VIRTIO_BLK_T_WRITE_ZEROES, 99};
	struct virtio_blk_outhdr hdr = {.type = types[input_take(in, 1) % 8]};
	u32 ndesc = 1 + input_take(in, 1) % 6;
	u16 head = t->next_desc;

	hdr.sector = input_take(in, 1);
	if (hdr.sector == 255)
		hdr.sector = ~(u64)input_take(in, 4);
	for (u32 i = 0; i < ndesc; i++) {
		u64 gpa = DRV_BUF_GPA + input_take(in, 2) % 0x8000;
		u32 len = input_take(in, 2) % 9000;
		u32 how = input_take(in, 1);
		u16 flags = (i + 1 < ndesc ? VRING_DESC_F_NEXT : 0) |
			    (how & 1 ? VRING_DESC_F_WRITE : 0);

		if (i == 0 && !(how & 1)) {
			memcpy(drv_ptr(&t->rig.drv, gpa), &hdr, sizeof(hdr));
			if (how & 2)
				len = sizeof(hdr);
		}
		if (how & 4)
			len = ALIGN_DOWN(len, (u32)BLK_SECTOR_BYTES) + (how & 1);
		if (how == 0xf8)
			gpa = ~gpa;
		drv_desc(&t->rig.drv, 0, t->next_desc, gpa, len, flags,
			 (t->next_desc + 1) % RIG_QUEUE);
		t->next_desc = (t->next_desc + 1) % RIG_QUEUE;
		if (how & 1)
			allow(gpa, len);
	}
	drv_add(&t->rig.drv, 0, head);
}

static void start(struct target *t)
{
	memset(drv_ptr(&t->rig.drv, DRV_QUEUE_GPA), 0, DRV_QUEUE_BYTES);
	drv_start(&t->rig.drv, RIG_QUEUE);
	t->corrupt = false;
	t->next_desc = 0;
}

static void step_restore(struct target *t)
{
	struct drv *drv = &t->rig.drv;
	struct snap_virtio state;
	int image_fd = rig_file();

	drain(t);
	CHECK_EQ(blk_write_image(drv->dev, image_fd), 0);
	virtio_save(drv->dev, &state);
	virtio_destroy(drv->dev);
	close(t->rig.base_fd);
	close(t->rig.delta_fd);
	t->rig.base_fd = image_fd;
	t->rig.delta_fd = rig_file();
	CHECK_EQ(blk_create(&drv->host, 3, image_fd, t->rig.delta_fd, DISK_BYTES, &drv->dev), 0);
	CHECK_EQ(virtio_load(drv->dev, &state), 0);
	CHECK_EQ(virtio_resume(drv->dev), 0);
}

static void step(struct target *t, struct input *in)
{
	u32 at;

	switch (input_take(in, 1) % 8) {
	case 0:
	case 1:
	case 2:
		step_request(t, in);
		/* The request's own bytes are the driver's. */
		memcpy(shadow, t->rig.drv.ram, CHECK_BYTES);
		break;
	case 3:
	case 4:
		drv_notify(&t->rig.drv, 0);
		check_ram(t);
		break;
	case 5:
		drain(t);
		check_ram(t);
		start(t);
		remember(t);
		break;
	case 6:
		at = DRV_QUEUE_GPA + input_take(in, 2) % DRV_QUEUE_BYTES;
		t->rig.drv.ram[at] = (u8)input_take(in, 1);
		t->corrupt = true;
		break;
	default:
		step_restore(t);
		break;
	}
}

/* All of the disk through the device, against the image. */
static void check_disk(struct target *t)
{
	static u8 image[DISK_BYTES];
	int fd = rig_file();

	drain(t);
	CHECK_EQ(blk_write_image(t->rig.drv.dev, fd), 0);
	CHECK_EQ(pread(fd, image, sizeof(image), 0), DISK_BYTES);
	start(t);
	CHECK_EQ(rig_do(&t->rig, VIRTIO_BLK_T_IN, 0, DISK_BYTES), VIRTIO_BLK_S_OK);
	CHECK(!memcmp(rig_data(&t->rig, 0), image, DISK_BYTES));
	close(fd);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);
int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	static u8 base[BASE_BYTES], base_after[BASE_BYTES];
	struct input in = {data, size};
	struct target t = {0};
	int base_fd, base_copy_fd;

	log_set_level(LOG_ERROR);
	memset(base, 0xb5, sizeof(base));
	base_fd = rig_file();
	CHECK_EQ(pwrite(base_fd, base, sizeof(base), 0), sizeof(base));
	base_copy_fd = dup(base_fd);
	CHECK(base_copy_fd >= 0);
	rig_init(&t.rig, base_fd, rig_file(), DISK_BYTES, true);
	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	t.rig.drv.host.defer = NULL;
	remember(&t);
	for (int i = 0; i < STEPS_MAX && in.left; i++)
		step(&t, &in);
	check_disk(&t);
	CHECK_EQ(pread(base_copy_fd, base_after, sizeof(base_after), 0), sizeof(base_after));
	CHECK(!memcmp(base, base_after, sizeof(base)));
	close(base_copy_fd);
	rig_destroy(&t.rig);
	return 0;
}
