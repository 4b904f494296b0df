// SPDX-License-Identifier: Apache-2.0
// The block device against a model: thousands of random requests, several at once, every sector
// compared with an array; then the merged image. And the map alone.
#include "tests/unit/test.h"

#include <errno.h>

#include "tests/unit/blk_rig.h"

#define DISK_SECTORS 512u
#define DISK_BYTES   (DISK_SECTORS * BLK_SECTOR_BYTES)
#define ROUNDS	     1500
#define BATCH	     6

static u32 random_state;

/* xorshift32: the same sequence on every machine. */
static u32 random_below(u32 limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 17;
	random_state ^= random_state << 5;
	return random_state % limit;
}

static u8 model[DISK_BYTES];

struct planned {
	u32 type;
	u32 sector, sectors;
	u8 fill;
};

static int make_base(void)
{
	int fd = rig_file();

	memset(model, 0, sizeof(model));
	/* Data, a hole of two blocks, data up to inside a sector; the rest is past the end. */
	for (size_t i = 0; i < 40000; i++)
		model[i] = (u8)(i * 13 % 255 + 1);
	for (size_t i = 49152; i < 150000; i++)
		model[i] = (u8)(i * 17 % 255 + 1);
	CHECK_EQ(pwrite(fd, model, 40000, 0), 40000);
	CHECK_EQ(pwrite(fd, model + 49152, 150000 - 49152, 49152), 150000 - 49152);
	return fd;
}

static bool overlaps(const struct planned *plan, unsigned int count, const struct planned *next)
{
	for (unsigned int i = 0; i < count; i++) {
		if (plan[i].sector < next->sector + next->sectors &&
		    next->sector < plan[i].sector + plan[i].sectors)
			return true;
	}
	return false;
}

/* A request whose sectors no other of the batch has; its blocks may well be shared. */
static void plan_one(struct planned *plan, unsigned int count)
{
	static const u32 types[] = {VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_OUT,
				    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES};
	struct planned *next = &plan[count];

	do {
		next->type = types[random_below(ARRAY_SIZE(types))];
		next->sectors = 1 + random_below(random_below(4) ? 12 : 100);
		next->sector = random_below(DISK_SECTORS - next->sectors);
		next->fill = (u8)(1 + random_below(255));
	} while (overlaps(plan, count, next));
}

static void send_request(struct rig *rig, unsigned int slot, const struct planned *plan)
{
	struct virtio_blk_discard_write_zeroes seg = {
		.sector = plan->sector,
		.num_sectors = plan->sectors,
	};

	if (plan->type == VIRTIO_BLK_T_IN) {
		memset(rig_data(rig, slot), 0xe7, RIG_DATA_BYTES);
		rig_add(rig, slot, plan->type, plan->sector, plan->sectors * 512);
	} else if (plan->type == VIRTIO_BLK_T_OUT) {
		memset(rig_data(rig, slot), plan->fill, plan->sectors * 512);
		rig_add(rig, slot, plan->type, plan->sector, plan->sectors * 512);
	} else {
		memcpy(rig_data(rig, slot), &seg, sizeof(seg));
		rig_add(rig, slot, plan->type, 0, sizeof(seg));
	}
}

static void check(struct rig *rig, unsigned int slot, const struct planned *plan)
{
	u8 *at = model + plan->sector * 512;
	size_t len = plan->sectors * 512;
	u64 first = ALIGN_UP((u64)plan->sector * 512, BLK_BLOCK_BYTES);
	u64 end = ALIGN_DOWN((u64)plan->sector * 512 + len, BLK_BLOCK_BYTES);

	CHECK_EQ(*rig_status(rig, slot), VIRTIO_BLK_S_OK);
	if (plan->type == VIRTIO_BLK_T_IN)
		CHECK(!memcmp(rig_data(rig, slot), at, len));
	else if (plan->type == VIRTIO_BLK_T_OUT)
		memset(at, plan->fill, len);
	else if (plan->type == VIRTIO_BLK_T_WRITE_ZEROES)
		memset(at, 0, len);
	else if (first < end)
		memset(model + first, 0, end - first);
}

static void check_image(struct rig *rig)
{
	static u8 image[DISK_BYTES];
	int fd = rig_file();

	CHECK_EQ(pwrite(fd, "old content", 11, DISK_BYTES - 11), 11);
	CHECK_EQ(rig->drv.dev->ops->quiesce(rig->drv.dev), 0);
	CHECK_EQ(blk_write_image(rig->drv.dev, fd), 0);
	CHECK_EQ(lseek(fd, 0, SEEK_END), DISK_BYTES);
	CHECK_EQ(pread(fd, image, sizeof(image), 0), DISK_BYTES);
	CHECK(!memcmp(image, model, sizeof(image)));
	close(fd);
}

static void run_model(bool plain, bool with_base)
{
	struct planned plan[BATCH];
	struct rig rig;

	random_state = 20240517;
	if (with_base)
		rig_init(&rig, make_base(), rig_file(), DISK_BYTES, plain);
	else
		rig_init(&rig, -1, rig_file(), DISK_BYTES, plain);
	if (!with_base)
		memset(model, 0, sizeof(model));
	check_image(&rig);
	for (int round = 0; round < ROUNDS; round++) {
		u16 count = (u16)(1 + random_below(BATCH));

		for (unsigned int i = 0; i < count; i++) {
			plan_one(plan, i);
			send_request(&rig, i, &plan[i]);
		}
		drv_notify(&rig.drv, 0);
		rig_wait(&rig, count);
		for (unsigned int i = 0; i < count; i++)
			check(&rig, i, &plan[i]);
		if (round % 100 == 0)
			check_image(&rig);
	}
	check_image(&rig);
	rig_destroy(&rig);
}

static void test_model_ring(void)
{
	run_model(false, true);
	run_model(false, false);
}

static void test_model_plain(void)
{
	run_model(true, true);
	run_model(true, false);
}

static void test_image_is_sparse(void)
{
	struct rig rig;
	int fd = rig_file();

	rig_init(&rig, -1, rig_file(), GIB, true);
	memset(rig_data(&rig, 0), 0x42, 4096);
	memset(rig_data(&rig, 0) + 4096, 0, 4096); /* zeros, as data: a hole of the image */
	CHECK_EQ(rig_do(&rig, VIRTIO_BLK_T_OUT, 8000, 8192), VIRTIO_BLK_S_OK);
	CHECK_EQ(blk_write_image(rig.drv.dev, fd), 0);
	CHECK_EQ(lseek(fd, 0, SEEK_END), GIB);
	CHECK_EQ(lseek(fd, 0, SEEK_DATA), 8000 * 512);
	CHECK_EQ(lseek(fd, 8000 * 512, SEEK_HOLE), 8000 * 512 + 4096);
	CHECK_EQ(lseek(fd, 8000 * 512 + 4096, SEEK_DATA), -1);
	CHECK(blk_write_image(rig.drv.dev, -1) == -EBADF);
	close(fd);
	rig_destroy(&rig);
}

static void test_map(void)
{
	static u8 shadow[300];
	struct blk_map map;

	CHECK_EQ(blk_map_init(&map, 0), -EINVAL);
	CHECK_EQ(blk_map_init(&map, ~0ull), -EINVAL);
	CHECK_EQ(blk_map_init(&map, 300), 0);
	CHECK_EQ(blk_map_run(&map, 0, 300), 300);
	random_state = 7;
	for (int round = 0; round < 3000; round++) {
		u32 count = random_below(100);
		u32 block = random_below(300 - count);
		u8 state = (u8)random_below(3);
		u64 run = 1;

		memset(shadow + block, state, count);
		blk_map_set(&map, block, count, (enum blk_state)state);
		block = random_below(300);
		CHECK_EQ(blk_map_get(&map, block), shadow[block]);
		while (block + run < 300 && shadow[block + run] == shadow[block])
			run++;
		CHECK_EQ(blk_map_run(&map, block, 300 - block), run);
		CHECK_EQ(blk_map_run(&map, block, 1), 1);
	}
	blk_map_destroy(&map);
	blk_map_destroy(&map);
}

TEST_MAIN({"map", test_map}, {"image_is_sparse", test_image_is_sparse},
	  {"model (plain)", test_model_plain}, {"model (io_uring)", test_model_ring})
