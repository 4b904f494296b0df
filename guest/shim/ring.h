/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of a kept exec: a ring of records, so that what stdout and stderr printed can be read
 * again in the order in which it came. Pure but for one mmap; fuzzed.
 *
 * Offsets count output bytes, of both together, from the exec's start. Between `acked` and `end`
 * nothing is ever given up, and while it is read from (`reading`) nothing from `view` on: then
 * there is no room, and the command waits.
 */
#ifndef THAW_SHIM_RING_H
#define THAW_SHIM_RING_H

#include <sys/uio.h>

#include "guest/shim/proto.h"
#include "vmm/util/types.h"

/** What an exec that prints little makes do with: no memory beside its connection's is touched. */
#define RING_SMALL_BYTES 2048u

/** A place in the output: @in bytes into the record whose head is at @pos. */
struct ring_cursor {
	u64 pos;    /* ring bytes since the start, heads of records included */
	u64 offset; /* output bytes since the start */
	u32 in;
};

struct ring {
	u8 *big;  /* SHIM_RING_BYTES once small is too small; owned */
	u64 head; /* where the next record goes; positions are taken modulo the size */
	u64 last; /* head of the last record, if there is one (end > 0) */
	u64 end;  /* output so far */
	struct ring_cursor oldest, acked, view;
	bool reading;
	bool ending; /* no more comes than what is in the pipes: SHIM_RING_UNACKED_MAX is lifted */
	u8 small[RING_SMALL_BYTES];
};

/** ring_free() - give its memory back; zeroes it. A ring of zeroes is an empty one. */
void ring_free(struct ring *r);

/** ring_room() - how many bytes could be added now; 0: wait for ring_ack() or ring_read(). */
u32 ring_room(const struct ring *r);

/**
 * ring_reserve() - room for output.
 * @err: it is stderr's
 * @want: at most so many bytes
 * @iov: two; where to put them, in this order
 *
 * Return: bytes in @iov, at most @want; 0 when there is no room (ring_room() is 0), or no memory.
 */
u32 ring_reserve(struct ring *r, bool err, u32 want, struct iovec iov[2]);

/** ring_commit() - @len_bytes of what the last ring_reserve() gave were filled. */
void ring_commit(struct ring *r, bool err, u32 len_bytes);

/**
 * ring_read() - what is at r->view, and move it.
 * @out: takes up to @max bytes, all of stdout or all of stderr: *@err
 * Return: bytes; 0 at the end.
 */
u32 ring_read(struct ring *r, u8 *out, u32 max, bool *err);

/** ring_seek() - view to @offset, or to the nearest place that there is. */
void ring_seek(struct ring *r, u64 offset);

/** ring_ack() - what is before @offset (at most r->end) may be given up. Never goes back. */
void ring_ack(struct ring *r, u64 offset);

#endif
