// SPDX-License-Identifier: Apache-2.0
// What a block request does to the files: one ring operation after the other.
//
// Theory of operation
//
// The disk is a base file that is never written, a delta file that belongs to this VM, and a map
// that says for each 4 KiB block which of them holds it (or that it is zero). A request is a
// position that moves from `pos` to `end`; blk_req_step() looks at the map, starts the one
// operation that covers the most from there, and blk_req_done() moves the position when it is over.
// Short results need no code of their own that way.
//
//  read   a run of blocks of one state: a ring read into the guest's buffers, or zeros without I/O.
//         What a file does not have (end of file) is zeros.
//  write  whole blocks, and parts of blocks that are in the delta already, go straight from the
//  guest's
//         buffers to the delta. Part of any other block is copied up first: base block (or zeros)
//         into the bounce buffer, the guest's bytes on top, all of it to the delta.
//  zeroes whole blocks become BLK_ZERO in the map and their room in the delta is freed; the parts
//  at
//         both ends are written like data, from zeros. A discard leaves those parts alone.
//
// A block becomes BLK_DELTA only after all of it is in the delta. So a write that fails half way
// leaves the map true: a block reads as before or as written, never as a hole in the delta. A block
// becomes BLK_ZERO before its room is freed: nobody reads the delta there from then on, and a later
// partial write copies up zeros, not what the delta still holds.
//
// Two requests that write in one block never run together (blk.c sees to it): two copy-ups of one
// block would lose one of the writes. Reads are not ordered: a read beside a write of the same
// block sees the old or the new data of each sector, as on a real disk.
#include <errno.h>
#include <string.h>

#include "vmm/util/log.h"
#include "vmm/virtio/blk.h"

/* Of one request, when the kernel was interrupted or short of memory. */
#define BLK_RETRIES_MAX 8

static u64 block_of(u64 pos)
{
	return pos / BLK_BLOCK_BYTES;
}

static bool is_zeroing(const struct blk_req *req)
{
	return req->type == VIRTIO_BLK_T_DISCARD || req->type == VIRTIO_BLK_T_WRITE_ZEROES;
}

/* Is there base data at @pos, that is: must a file be read for a BLK_BASE block? */
static bool base_has(const struct blk *blk, u64 pos)
{
	return pos < blk->base_bytes;
}

/* --- the guest's buffers --- */

/* Make the ring operation cover the next @len_bytes of data: the last buffer is cut meanwhile. */
static void iov_cut(struct blk_req *req, u64 len_bytes)
{
	struct iovec *iov = &req->chain.iov[req->iov_next];
	unsigned int n = 0;
	u64 sum_bytes = 0;

	while (sum_bytes < len_bytes)
		sum_bytes += iov[n++].iov_len;
	req->iov_cut_bytes = sum_bytes - len_bytes;
	iov[n - 1].iov_len -= req->iov_cut_bytes;
	req->io.iov = iov;
	req->io.niov = n;
}

static void iov_uncut(struct blk_req *req)
{
	req->io.iov[req->io.niov - 1].iov_len += req->iov_cut_bytes;
	req->iov_cut_bytes = 0;
}

enum iov_use {
	IOV_SKIP, /* they are done */
	IOV_ZERO, /* fill with zeros */
	IOV_COPY, /* copy out into a buffer */
};

/* Consume the next @len_bytes of data. @buf: for IOV_COPY. */
static void iov_consume(struct blk_req *req, u64 len_bytes, enum iov_use use, u8 *buf)
{
	while (len_bytes) {
		struct iovec *iov = &req->chain.iov[req->iov_next];
		size_t n = MIN(len_bytes, (u64)iov->iov_len);

		if (use == IOV_ZERO)
			memset(iov->iov_base, 0, n);
		else if (use == IOV_COPY)
			buf = (u8 *)memcpy(buf, iov->iov_base, n) + n;
		iov->iov_base = (u8 *)iov->iov_base + n;
		iov->iov_len -= n;
		len_bytes -= n;
		if (!iov->iov_len)
			req->iov_next++;
	}
}

/* --- starting operations --- */

static void start_io(struct blk_req *req, enum blk_step step, enum ring_op op, unsigned int file,
		     u64 offset_bytes, u64 len_bytes)
{
	req->step = step;
	req->io.op = op;
	req->io.file = file;
	req->io.offset_bytes = offset_bytes;
	req->io.len_bytes = len_bytes;
	/* As many slots as requests, one operation a request, offsets below the disk's end. */
	BUG_ON(ring_queue(&req->blk->ring, &req->io));
}

static void start_guest_io(struct blk_req *req, enum blk_step step, unsigned int file,
			   u64 len_bytes)
{
	req->step_bytes = len_bytes;
	iov_cut(req, len_bytes);
	start_io(req, step, step == BLK_STEP_READ ? RING_READ : RING_WRITE, file, req->pos,
		 len_bytes);
}

/* The bounce buffer to or from the whole block at req->pos. */
static void start_bounce_io(struct blk_req *req, enum blk_step step, unsigned int file)
{
	req->bounce_iov = (struct iovec){req->bounce, sizeof(req->bounce)};
	req->io.iov = &req->bounce_iov;
	req->io.niov = 1;
	start_io(req, step, step == BLK_STEP_COPY_READ ? RING_READ : RING_WRITE, file,
		 ALIGN_DOWN(req->pos, BLK_BLOCK_BYTES), sizeof(req->bounce));
}

/* Bytes from @req->pos on, up to its end, that are in blocks of one state. */
static u64 run_bytes(const struct blk_req *req)
{
	u64 block = block_of(req->pos);
	u64 count = blk_map_run(&req->blk->map, block, block_of(req->end - 1) - block + 1);

	return MIN(req->end, (block + count) * BLK_BLOCK_BYTES) - req->pos;
}

/* Return: true while there is more to do at once, false when the ring has the request. */
static bool step_read(struct blk_req *req)
{
	struct blk *blk = req->blk;
	enum blk_state state = blk_map_get(&blk->map, block_of(req->pos));
	u64 len_bytes = run_bytes(req);

	if (state == BLK_DELTA) {
		start_guest_io(req, BLK_STEP_READ, BLK_FILE_DELTA, len_bytes);
		return false;
	}
	if (state == BLK_BASE && base_has(blk, req->pos)) {
		len_bytes = MIN(len_bytes, blk->base_bytes - req->pos);
		start_guest_io(req, BLK_STEP_READ, BLK_FILE_BASE, len_bytes);
		return false;
	}
	iov_consume(req, len_bytes, IOV_ZERO, NULL);
	req->pos += len_bytes;
	return true;
}

/* The bounce buffer holds the block's old content: put the new bytes on top and write it. */
static void merge_and_write(struct blk_req *req)
{
	u64 offset = req->pos % BLK_BLOCK_BYTES;

	if (is_zeroing(req))
		memset(req->bounce + offset, 0, req->step_bytes);
	else
		iov_consume(req, req->step_bytes, IOV_COPY, req->bounce + offset);
	start_bounce_io(req, BLK_STEP_COPY_WRITE, BLK_FILE_DELTA);
}

/* Part of the block at req->pos, @len_bytes from there on, by way of the bounce buffer. */
static void step_part(struct blk_req *req, enum blk_state state, u64 len_bytes)
{
	req->step_bytes = len_bytes;
	if (state == BLK_DELTA) {
		start_bounce_io(req, BLK_STEP_COPY_READ, BLK_FILE_DELTA);
	} else if (state == BLK_BASE && base_has(req->blk, ALIGN_DOWN(req->pos, BLK_BLOCK_BYTES))) {
		start_bounce_io(req, BLK_STEP_COPY_READ, BLK_FILE_BASE);
	} else {
		memset(req->bounce, 0, sizeof(req->bounce));
		merge_and_write(req);
	}
}

static void step_write(struct blk_req *req)
{
	enum blk_state state = blk_map_get(&req->blk->map, block_of(req->pos));
	u64 whole_end = ALIGN_DOWN(req->end, BLK_BLOCK_BYTES);
	u64 offset = req->pos % BLK_BLOCK_BYTES;

	if (state != BLK_DELTA && (offset || req->pos >= whole_end)) {
		step_part(req, state, MIN(req->end - req->pos, BLK_BLOCK_BYTES - offset));
		return;
	}
	/* Up to the last whole block; the rest of the request, if any, is the next step. */
	start_guest_io(req, BLK_STEP_WRITE, BLK_FILE_DELTA,
		       (req->pos < whole_end ? whole_end : req->end) - req->pos);
}

/* Return: as step_read(). */
static bool step_zero(struct blk_req *req)
{
	struct blk *blk = req->blk;
	enum blk_state state = blk_map_get(&blk->map, block_of(req->pos));
	u64 whole_end = ALIGN_DOWN(req->end, BLK_BLOCK_BYTES);
	u64 offset = req->pos % BLK_BLOCK_BYTES;
	u64 part_bytes = MIN(req->end - req->pos, BLK_BLOCK_BYTES - offset);

	if (state == BLK_ZERO || (state == BLK_BASE && !base_has(blk, req->pos))) {
		req->pos += run_bytes(req);
		return true;
	}
	if (offset || req->pos >= whole_end) {
		if (req->type == VIRTIO_BLK_T_DISCARD) {
			req->pos += part_bytes;
			return true;
		}
		step_part(req, state, part_bytes);
		return false;
	}
	req->step_bytes = whole_end - req->pos;
	blk_map_set(&blk->map, block_of(req->pos), block_of(req->step_bytes), BLK_ZERO);
	start_io(req, BLK_STEP_PUNCH, RING_DISCARD, BLK_FILE_DELTA, req->pos, req->step_bytes);
	return false;
}

void blk_req_step(struct blk_req *req)
{
	if (req->type == VIRTIO_BLK_T_FLUSH) {
		start_io(req, BLK_STEP_FLUSH, RING_FDATASYNC, BLK_FILE_DELTA, 0, 0);
		return;
	}
	while (req->pos < req->end) {
		if (req->type == VIRTIO_BLK_T_OUT) {
			step_write(req);
			return;
		}
		if (!(is_zeroing(req) ? step_zero(req) : step_read(req)))
			return;
	}
	blk_req_complete(req, VIRTIO_BLK_S_OK);
}

/* --- results: each returns 0 to go on or -errno --- */

static int done_read(struct blk_req *req, s64 result)
{
	iov_uncut(req);
	if (result < 0)
		return (int)result;
	if (result == 0) {
		/* The end of the file: the hole behind it. */
		iov_consume(req, req->step_bytes, IOV_ZERO, NULL);
		req->pos += req->step_bytes;
		return 0;
	}
	iov_consume(req, (u64)result, IOV_SKIP, NULL);
	req->pos += (u64)result;
	return 0;
}

static int done_write(struct blk_req *req, s64 result)
{
	struct blk_map *map = &req->blk->map;
	u64 pos;

	iov_uncut(req);
	if (result < 0)
		return (int)result;
	pos = req->pos + (u64)result;
	/* A short write that ends inside a block: unless the rest is there already, do it again. */
	if (pos % BLK_BLOCK_BYTES && blk_map_get(map, block_of(pos)) != BLK_DELTA)
		pos = ALIGN_DOWN(pos, BLK_BLOCK_BYTES);
	if (pos <= req->pos)
		return -EIO;
	blk_map_set(map, block_of(req->pos), block_of(pos - 1) - block_of(req->pos) + 1, BLK_DELTA);
	iov_consume(req, pos - req->pos, IOV_SKIP, NULL);
	req->pos = pos;
	return 0;
}

/* Return: 0, -errno, or 1 when the next operation is under way. */
static int done_copy_read(struct blk_req *req, s64 result)
{
	if (result < 0)
		return (int)result;
	/* Regular files read short at their end only. */
	memset(req->bounce + result, 0, sizeof(req->bounce) - (size_t)result);
	merge_and_write(req);
	return 1;
}

static int done_copy_write(struct blk_req *req, s64 result)
{
	if (result < 0)
		return (int)result;
	if (result != sizeof(req->bounce))
		return -EIO;
	blk_map_set(&req->blk->map, block_of(req->pos), 1, BLK_DELTA);
	req->pos += req->step_bytes;
	return 0;
}

static int done_punch(struct blk_req *req, s64 result)
{
	/* Without hole punching the blocks are zero all the same; only the room is not freed. */
	if (result < 0 && result != -EOPNOTSUPP)
		return (int)result;
	req->pos += req->step_bytes;
	return 0;
}

static int take_result(struct blk_req *req, s64 result)
{
	switch (req->step) {
	case BLK_STEP_READ:
		return done_read(req, result);
	case BLK_STEP_WRITE:
		return done_write(req, result);
	case BLK_STEP_COPY_READ:
		return done_copy_read(req, result);
	case BLK_STEP_COPY_WRITE:
		return done_copy_write(req, result);
	case BLK_STEP_PUNCH:
		return done_punch(req, result);
	case BLK_STEP_FLUSH:
		return result < 0 ? (int)result : 0;
	}
	return -EIO;
}

void blk_req_done(struct ring_req *io, s64 result)
{
	struct blk_req *req = container_of(io, struct blk_req, io);
	int ret;

	if (!blk_runs(req->blk)) {
		blk_req_release(req);
		return;
	}
	if ((result == -EINTR || result == -EAGAIN) && req->retries < BLK_RETRIES_MAX) {
		/* Nothing was done: the same operation again. */
		req->retries++;
		BUG_ON(ring_queue(&req->blk->ring, io));
		return;
	}
	ret = take_result(req, result);
	if (ret < 0) {
		log_guest("virtio-blk: request type %u at byte %llu: %s", req->type,
			  (unsigned long long)req->pos, strerror(-ret));
		blk_req_complete(req, VIRTIO_BLK_S_IOERR);
	} else if (ret == 0) {
		if (req->step == BLK_STEP_FLUSH)
			blk_req_complete(req, VIRTIO_BLK_S_OK);
		else
			blk_req_step(req);
	}
}
