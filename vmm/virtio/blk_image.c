// SPDX-License-Identifier: Apache-2.0
// The scratch disk as one sparse file: base, delta and map merged, for a snapshot.
//
// Only data is copied: holes of base and delta are jumped over with SEEK_DATA, and blocks that hold
// nothing but zeros become holes of the image. System calls used (the seccomp filter must allow
// them): lseek, pread64, pwrite64, ftruncate.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"
#include "vmm/virtio/blk.h"

#define IMAGE_CHUNK_BYTES (256 * KIB)

struct image {
	int out_fd;
	u8 *buf; /* IMAGE_CHUNK_BYTES */
};

static bool block_is_zero(const u8 *block)
{
	/* The first byte is zero and each byte equals the one before it. */
	return !block[0] && !memcmp(block, block + 1, BLK_BLOCK_BYTES - 1);
}

/* Write @len_bytes of image->buf at @pos, leaving out zero blocks. @pos is at a block's start. */
static int write_blocks(const struct image *image, u64 pos, u64 len_bytes)
{
	u64 start = 0;
	u64 i = 0;
	int ret;

	while (i < len_bytes) {
		while (i < len_bytes && block_is_zero(image->buf + i))
			i += BLK_BLOCK_BYTES;
		start = i;
		while (i < len_bytes && !block_is_zero(image->buf + i))
			i += BLK_BLOCK_BYTES;
		if (i == start)
			continue;
		ret = fd_pwrite_full(image->out_fd, image->buf + start, i - start, pos + start);
		if (ret)
			return ret;
	}
	return 0;
}

/* Return: bytes read, fewer than @len_bytes only at the end of the file, or -errno. */
static ssize_t read_chunk(int fd, u8 *buf, size_t len_bytes, u64 pos)
{
	size_t done = 0;

	while (done < len_bytes) {
		ssize_t n = pread(fd, buf + done, len_bytes - done, (off_t)(pos + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

/* Copy whole blocks [@pos, @end) of @fd; what lies behind its end of file is zeros. */
static int copy_data(const struct image *image, int fd, u64 pos, u64 end)
{
	while (pos < end) {
		size_t want = MIN(end - pos, (u64)IMAGE_CHUNK_BYTES);
		ssize_t n = read_chunk(fd, image->buf, want, pos);
		size_t whole;
		int ret;

		if (n <= 0)
			return (int)n;
		whole = ALIGN_UP((size_t)n, BLK_BLOCK_BYTES);
		memset(image->buf + n, 0, whole - (size_t)n);
		ret = write_blocks(image, pos, whole);
		if (ret)
			return ret;
		pos += whole;
	}
	return 0;
}

/* As copy_data(), jumping over holes of @fd. */
static int copy_sparse(const struct image *image, int fd, u64 pos, u64 end)
{
	while (pos < end) {
		off_t data = lseek(fd, (off_t)pos, SEEK_DATA);
		off_t hole;
		int ret;

		if (data < 0)
			return errno == ENXIO ? 0 : -errno;
		if ((u64)data >= end)
			return 0;
		hole = lseek(fd, data, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		pos = ALIGN_DOWN((u64)data, BLK_BLOCK_BYTES);
		ret = copy_data(image, fd, pos, MIN(end, ALIGN_UP((u64)hole, BLK_BLOCK_BYTES)));
		if (ret)
			return ret;
		pos = ALIGN_UP((u64)hole, BLK_BLOCK_BYTES);
	}
	return 0;
}

static int write_runs(const struct blk *blk, const struct image *image)
{
	u64 block = 0;
	int ret = 0;

	while (block < blk->map.nblocks && !ret) {
		u64 count = blk_map_run(&blk->map, block, blk->map.nblocks - block);
		u64 pos = block * BLK_BLOCK_BYTES;
		u64 end = pos + count * BLK_BLOCK_BYTES;

		switch (blk_map_get(&blk->map, block)) {
		case BLK_DELTA:
			ret = copy_sparse(image, blk->delta_fd, pos, end);
			break;
		case BLK_BASE:
			end = MIN(end, ALIGN_UP(blk->base_bytes, BLK_BLOCK_BYTES));
			if (pos < end)
				ret = copy_sparse(image, blk->base_fd, pos, end);
			break;
		case BLK_ZERO:
			break;
		}
		block += count;
	}
	return ret;
}

int blk_write_image(struct virtio_dev *dev, int out_fd)
{
	struct blk *blk = container_of(dev, struct blk, dev);
	struct image image = {.out_fd = out_fd};
	int ret = 0;

	BUG_ON(blk->nactive);
	image.buf = malloc(IMAGE_CHUNK_BYTES);
	if (!image.buf)
		ret = -ENOMEM;
	/* To nothing first: what the file held before must not show through the holes. */
	if (!ret && (ftruncate(out_fd, 0) < 0 || ftruncate(out_fd, (off_t)blk->size_bytes) < 0))
		ret = -errno;
	if (!ret)
		ret = write_runs(blk, &image);
	if (ret)
		log_err("virtio-blk: write disk image: %s", strerror(-ret));
	free(image.buf);
	return ret;
}
