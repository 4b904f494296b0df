// SPDX-License-Identifier: Apache-2.0
// A deep queue of large transfers between one file and memory.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"

/*
 * Every slot is in exactly one place: on the free list, on the retry list, or in the ring. done()
 * runs inside ring_reap() and only moves slots between lists; queueing is left to the callers of
 * this file, because a completion handler that queues could find the ring full.
 *
 * After the first failure nothing new is started, but what is in flight is waited for: the memory
 * belongs to the kernel until then.
 */
struct bulk_slot {
	struct ring_req req;
	struct iovec iov;
	struct bulk *bulk;
	struct bulk_slot *next;
	u8 *bounce;	/* NULL: straight into the caller's memory */
	void *dest;	/* with a bounce buffer: where its content goes, */
	u64 dest_bytes; /* and how much of it */
};

struct bulk {
	struct ring *ring;
	int error;
	unsigned int inflight;
	u64 part_bytes; /* of one transfer at most */
	struct bulk_slot *free, *retry;
	struct bulk_slot slots[BULK_DEPTH];
};

static void slot_push(struct bulk_slot **list, struct bulk_slot *slot)
{
	slot->next = *list;
	*list = slot;
}

static struct bulk_slot *slot_pop(struct bulk_slot **list)
{
	struct bulk_slot *slot = *list;

	*list = slot->next;
	return slot;
}

static void slot_done(struct ring_req *req, s64 result)
{
	struct bulk_slot *slot = container_of(req, struct bulk_slot, req);
	struct bulk *bulk = slot->bulk;

	bulk->inflight--;
	if (result == -EINTR || result == -EAGAIN) {
		slot_push(&bulk->retry, slot);
		return;
	}
	if (result == 0)
		result = req->op == RING_WRITE ? -EIO : -ENODATA;
	if (result > 0 && (u64)result > req->len_bytes)
		result = -EIO;
	if (result < 0) {
		if (!bulk->error)
			bulk->error = (int)result;
		slot_push(&bulk->free, slot);
		return;
	}
	req->offset_bytes += (u64)result;
	req->len_bytes -= (u64)result;
	slot->iov.iov_base = (u8 *)slot->iov.iov_base + result;
	slot->iov.iov_len = req->len_bytes;
	if (!req->len_bytes && slot->bounce)
		memcpy(slot->dest, slot->bounce, slot->dest_bytes);
	slot_push(req->len_bytes ? &bulk->retry : &bulk->free, slot);
}

static bool is_transient(int ret)
{
	return ret == -EAGAIN || ret == -EBUSY || ret == -ENOMEM;
}

static int slot_start(struct bulk *bulk, struct bulk_slot *slot)
{
	int ret = ring_queue(bulk->ring, &slot->req);

	if (ret) {
		slot_push(&bulk->free, slot);
		return ret;
	}
	bulk->inflight++;
	/* Submitted one by one, so that the device works while the caller looks at the next
	 * megabyte. What is not taken now is in bulk_reap(). */
	ret = ring_submit(bulk->ring);
	return is_transient(ret) ? 0 : ret;
}

/** bulk_reap() - let something complete. */
static int bulk_reap(struct bulk *bulk)
{
	int ret = ring_submit(bulk->ring);

	/* The kernel is short of memory for requests: ring_drain() knows how to wait for that. */
	if (is_transient(ret))
		return ring_drain(bulk->ring);
	if (ret)
		return ret;
	ret = ring_reap(bulk->ring, 1);
	return ret < 0 ? ret : 0;
}

/** bulk_wait() - let something complete, and start again what came back short. */
static int bulk_wait(struct bulk *bulk)
{
	int ret;

	if (bulk->inflight) {
		ret = bulk_reap(bulk);
		if (ret)
			return ret;
	}
	while (bulk->retry) {
		struct bulk_slot *slot = slot_pop(&bulk->retry);

		if (bulk->error) {
			slot_push(&bulk->free, slot);
			continue;
		}
		ret = slot_start(bulk, slot);
		if (ret)
			return ret;
	}
	return 0;
}

struct bulk *bulk_new(struct ring *ring, enum ring_op op)
{
	struct bulk *bulk = calloc(1, sizeof(*bulk));

	if (!bulk)
		return NULL;
	bulk->ring = ring;
	bulk->part_bytes = BULK_MAX_BYTES;
	for (unsigned int i = 0; i < BULK_DEPTH; i++) {
		struct bulk_slot *slot = &bulk->slots[i];

		slot->bulk = bulk;
		slot->req.op = op;
		slot->req.iov = &slot->iov;
		slot->req.niov = 1;
		slot->req.done = slot_done;
		slot_push(&bulk->free, slot);
	}
	return bulk;
}

struct bulk *bulk_new_fixed(struct ring *ring, void *bounce, u64 part_bytes)
{
	struct bulk *bulk = bulk_new(ring, RING_READ_FIXED);

	if (!bulk)
		return NULL;
	bulk->part_bytes = part_bytes;
	for (unsigned int i = 0; bounce && i < BULK_DEPTH; i++) {
		bulk->slots[i].bounce = (u8 *)bounce + i * part_bytes;
		bulk->slots[i].req.buf = i;
	}
	return bulk;
}

/** @buf: the registered buffer, where the slot has none of its own. */
static void slot_fill(struct bulk_slot *slot, void *hva, u64 offset_bytes, u64 len_bytes,
		      unsigned int buf)
{
	slot->req.offset_bytes = offset_bytes;
	slot->req.len_bytes = len_bytes;
	slot->iov.iov_base = slot->bounce ? slot->bounce : hva;
	slot->iov.iov_len = len_bytes;
	slot->dest = hva;
	slot->dest_bytes = len_bytes;
	if (!slot->bounce)
		slot->req.buf = buf;
}

int bulk_add(struct bulk *bulk, void *hva, u64 offset_bytes, u64 len_bytes)
{
	return bulk_add_fixed(bulk, hva, offset_bytes, len_bytes, 0);
}

int bulk_add_fixed(struct bulk *bulk, void *hva, u64 offset_bytes, u64 len_bytes, unsigned int buf)
{
	int ret;

	while (len_bytes) {
		u64 part_bytes = MIN(len_bytes, bulk->part_bytes);
		struct bulk_slot *slot;

		while (!bulk->free && !bulk->error) {
			ret = bulk_wait(bulk);
			if (ret)
				return ret;
		}
		if (bulk->error)
			return bulk->error;
		slot = slot_pop(&bulk->free);
		slot_fill(slot, hva, offset_bytes, part_bytes, buf);
		ret = slot_start(bulk, slot);
		if (ret)
			return ret;
		hva = (u8 *)hva + part_bytes;
		offset_bytes += part_bytes;
		len_bytes -= part_bytes;
	}
	return 0;
}

int bulk_end(struct bulk *bulk)
{
	int ret = 0;

	while (!ret && (bulk->inflight || bulk->retry))
		ret = bulk_wait(bulk);
	if (ret && bulk->inflight) {
		/*
		 * The ring itself failed and completions are still owed. They would be delivered to
		 * these slots, so they stay allocated: a leak of 4 KiB in a process that is about
		 * to end, rather than a use after free.
		 */
		log_err("transfer ring failed with %u requests in flight", bulk->inflight);
		return ret;
	}
	if (!ret)
		ret = bulk->error;
	free(bulk);
	return ret;
}
