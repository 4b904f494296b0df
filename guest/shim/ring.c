// SPDX-License-Identifier: Apache-2.0
/*
 * The output ring of a kept exec.
 *
 * A record is a head of 4 bytes (length; the top bit: stderr) and its bytes. Output of the same
 * stream is added to the last record as long as that is no longer than a data frame, so that a
 * command that prints a byte at a time does not fill the ring with heads. Records wrap around the
 * end of the memory, heads too.
 *
 * Room is made by giving up whole records from the oldest on, never beyond a cursor that counts
 * (`floor`). A cursor that is through with its record is moved to the next one when there is one
 * (`settle`), so that it holds nothing back.
 *
 * The first RING_SMALL_BYTES lie in the connection itself. Nothing is given up there: when it is
 * full its content moves to the front of the big ring, where all positions stay right because
 * nothing has wrapped yet.
 */
#include "guest/shim/ring.h"

#include <string.h>
#include <sys/mman.h>

#define HEAD_BYTES 4u
#define HEAD_ERR   0x80000000u
/* A record may be this long; so may a frame's payload. */
#define RECORD_MAX SHIM_DATA_MAX_BYTES
/* The small ring is left when less than this remains: no read of a handful of bytes. */
#define SMALL_LEFT_MIN 256u

static u32 ring_size(const struct ring *r)
{
	return r->big ? SHIM_RING_BYTES : RING_SMALL_BYTES;
}

static u8 *ring_bytes(struct ring *r)
{
	return r->big ? r->big : r->small;
}

/* Where [pos, pos + len) lies. */
static void ring_iov(struct ring *r, u64 pos, u32 len, struct iovec iov[2])
{
	u32 size = ring_size(r), at = (u32)(pos % size);
	u32 first = MIN(len, size - at);

	iov[0] = (struct iovec){.iov_base = ring_bytes(r) + at, .iov_len = first};
	iov[1] = (struct iovec){.iov_base = ring_bytes(r), .iov_len = len - first};
}

static void ring_get(const struct ring *r, u64 pos, void *out, u32 len)
{
	struct iovec iov[2];

	ring_iov((struct ring *)(uintptr_t)r, pos, len, iov);
	memcpy(out, iov[0].iov_base, iov[0].iov_len);
	memcpy((u8 *)out + iov[0].iov_len, iov[1].iov_base, iov[1].iov_len);
}

static void ring_put_head(struct ring *r, u64 pos, u32 head)
{
	struct iovec iov[2];

	ring_iov(r, pos, HEAD_BYTES, iov);
	memcpy(iov[0].iov_base, &head, iov[0].iov_len);
	memcpy(iov[1].iov_base, (u8 *)&head + iov[0].iov_len, iov[1].iov_len);
}

static u32 ring_head(const struct ring *r, u64 pos)
{
	u32 head;

	ring_get(r, pos, &head, sizeof(head));
	return head;
}

/* The length of the record at @pos; 0 at the place where the next one will be. */
static u32 record_len(const struct ring *r, u64 pos)
{
	return pos < r->head ? ring_head(r, pos) & ~HEAD_ERR : 0;
}

/* Through with a record that will not grow: on to the next. */
static void settle(const struct ring *r, struct ring_cursor *cur)
{
	u32 len;

	while (cur->pos < r->last) {
		len = record_len(r, cur->pos);
		if (cur->in < len)
			return;
		cur->pos += HEAD_BYTES + len;
		cur->in = 0;
	}
}

/* The first position that must stay. */
static u64 ring_floor(const struct ring *r)
{
	return r->reading ? MIN(r->acked.pos, r->view.pos) : r->acked.pos;
}

/* Can more of this stream be added to the last record? Return: how much. */
static u32 record_left(const struct ring *r, bool err)
{
	u32 head;

	if (!r->end)
		return 0;
	head = ring_head(r, r->last);
	return !(head & HEAD_ERR) == !err ? RECORD_MAX - (head & ~HEAD_ERR) : 0;
}

u32 ring_room(const struct ring *r)
{
	const u64 held = r->head - ring_floor(r), unacked = r->end - r->acked.offset;
	const u64 unacked_max = r->ending ? UINT64_MAX : SHIM_RING_UNACKED_MAX;
	u64 room;

	if (unacked >= unacked_max || held + HEAD_BYTES >= SHIM_RING_BYTES)
		return 0;
	room = MIN(unacked_max - unacked, SHIM_RING_BYTES - HEAD_BYTES - held);
	return (u32)MIN(room, (u64)RECORD_MAX);
}

/* Return: false when there is no memory. */
static bool ring_grow(struct ring *r)
{
	void *big = mmap(NULL, SHIM_RING_BYTES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (big == MAP_FAILED)
		return false;
	memcpy(big, r->small, r->head);
	r->big = big;
	return true;
}

static void ring_give_up(struct ring *r, u64 needed)
{
	u32 len;

	while (r->head + needed - r->oldest.pos > SHIM_RING_BYTES) {
		len = record_len(r, r->oldest.pos);
		r->oldest.pos += HEAD_BYTES + len;
		r->oldest.offset += len;
	}
}

u32 ring_reserve(struct ring *r, bool err, u32 want, struct iovec iov[2])
{
	u32 left = record_left(r, err), small_left = 0;

	want = MIN(want, ring_room(r));
	if (left)
		want = MIN(want, left);
	if (!want)
		return 0;
	if (!r->big) {
		if (r->head + HEAD_BYTES < RING_SMALL_BYTES)
			small_left = (u32)(RING_SMALL_BYTES - HEAD_BYTES - r->head);
		if (small_left < SMALL_LEFT_MIN && !ring_grow(r))
			return 0;
		if (!r->big)
			want = MIN(want, small_left);
	}
	if (r->big)
		ring_give_up(r, (u64)want + HEAD_BYTES);
	ring_iov(r, left ? r->head : r->head + HEAD_BYTES, want, iov);
	return want;
}

void ring_commit(struct ring *r, bool err, u32 len_bytes)
{
	if (!len_bytes)
		return;
	if (record_left(r, err)) {
		ring_put_head(r, r->last, ring_head(r, r->last) + len_bytes);
		r->head += len_bytes;
	} else {
		r->last = r->head;
		ring_put_head(r, r->last, len_bytes | (err ? HEAD_ERR : 0));
		r->head += HEAD_BYTES + len_bytes;
	}
	r->end += len_bytes;
	settle(r, &r->acked);
	if (r->reading)
		settle(r, &r->view);
}

u32 ring_read(struct ring *r, u8 *out, u32 max, bool *err)
{
	u32 head, n;

	settle(r, &r->view);
	if (r->view.offset >= r->end)
		return 0;
	head = ring_head(r, r->view.pos);
	*err = head & HEAD_ERR;
	n = MIN(max, (head & ~HEAD_ERR) - r->view.in);
	ring_get(r, r->view.pos + HEAD_BYTES + r->view.in, out, n);
	r->view.in += n;
	r->view.offset += n;
	settle(r, &r->view);
	return n;
}

/* Forward from where @cur is; @offset is not before it. */
static void ring_forward(const struct ring *r, struct ring_cursor *cur, u64 offset)
{
	while (cur->offset < offset) {
		u32 len = record_len(r, cur->pos) - cur->in;
		u32 n = (u32)MIN((u64)len, offset - cur->offset);

		cur->in += n;
		cur->offset += n;
		settle(r, cur);
	}
}

void ring_seek(struct ring *r, u64 offset)
{
	offset = MIN(offset, r->end);
	/* What is acknowledged is most often what is asked for. */
	r->view = offset >= r->acked.offset ? r->acked : r->oldest;
	settle(r, &r->view);
	ring_forward(r, &r->view, offset);
}

void ring_ack(struct ring *r, u64 offset)
{
	ring_forward(r, &r->acked, MIN(offset, r->end));
}

void ring_free(struct ring *r)
{
	if (r->big)
		munmap(r->big, SHIM_RING_BYTES);
	memset(r, 0, offsetof(struct ring, small));
}
