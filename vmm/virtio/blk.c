// SPDX-License-Identifier: Apache-2.0
// virtio-blk (virtio 1.2 §5.2): the scratch disk of a VM. The device, its queue, the life of a
// request.
//
// Theory of operation
//
// Requests are popped straight into one of BLK_REQS_MAX slots, checked, and put at the end of the
// active list. A request that writes starts only when no earlier active request that writes touches
// one of its blocks; all others start at once. Started ones run as blk_io.c says. The list is in
// order of arrival and its first member can always start, so nothing waits for ever.
//
// When no slot is free the rest stays in the queue: a guest can put one descriptor into the avail
// ring any number of times, so the queue's size alone is no bound. `starved` remembers that,
// because such entries bring no further kick.
//
// Completions come by the ring's eventfd on the event loop, but blk_pump() looks for them right
// after each submission too: what the page cache served is answered without a turn of the loop.
//
// io_uring reads and writes guest RAM directly. The RAM stays mapped for the life of the process
// and reset() waits for what is in flight, so the kernel never writes to memory that has become
// something else. A driver that resets mid-request finds its buffers quiet afterwards.
#include "vmm/virtio/blk.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define BLK_SEG_MAX  64
#define BLK_CALL_MAX 256 /* requests taken before other events have their turn */

static struct blk *to_blk(struct virtio_dev *dev)
{
	return container_of(dev, struct blk, dev);
}

bool blk_runs(const struct blk *blk)
{
	return blk->dev.active && !(blk->dev.status & VIRTIO_CONFIG_S_NEEDS_RESET);
}

/* --- the active list --- */

static void list_append(struct blk *blk, struct blk_req *req)
{
	req->next = NULL;
	req->prev = blk->last;
	if (blk->last)
		blk->last->next = req;
	else
		blk->first = req;
	blk->last = req;
	blk->nactive++;
}

void blk_req_release(struct blk_req *req)
{
	struct blk *blk = req->blk;

	if (req->prev)
		req->prev->next = req->next;
	else
		blk->first = req->next;
	if (req->next)
		req->next->prev = req->prev;
	else
		blk->last = req->prev;
	blk->nactive--;
	blk->rescan = true;
	req->next = blk->free_reqs;
	blk->free_reqs = req;
}

void blk_req_complete(struct blk_req *req, u8 status)
{
	struct blk *blk = req->blk;

	*(volatile u8 *)req->status_hva = status;
	if (virtq_push(&blk->dev.queues[0], req->chain.head, req->used_bytes))
		blk->bad_queue = true;
	blk_req_release(req);
}

/* Does an earlier request write in a block that @req writes in? */
static bool must_wait(const struct blk_req *req)
{
	for (const struct blk_req *other = req->prev; other; other = other->prev) {
		if (req->first_block < other->end_block && other->first_block < req->end_block)
			return true;
	}
	return false;
}

static void start_ready(struct blk *blk)
{
	struct blk_req *req, *next;

	while (blk->rescan) {
		blk->rescan = false;
		for (req = blk->first; req; req = next) {
			next = req->next; /* starting can complete and free it, and no other */
			if (req->started || must_wait(req))
				continue;
			req->started = true;
			blk_req_step(req);
		}
	}
}

/* --- taking requests --- */

static bool have_slot(const struct blk *blk)
{
	return blk->free_reqs || blk->nreqs < BLK_REQS_MAX;
}

/* A free slot, which stays in the free list. One never used before only when there is no other. */
static struct blk_req *peek_slot(struct blk *blk)
{
	struct blk_req *req = blk->free_reqs;

	if (!req) {
		req = &blk->reqs[blk->nreqs++];
		req->blk = blk;
		req->io.done = blk_req_done;
		req->next = NULL;
		blk->free_reqs = req;
	}
	return req;
}

/* Return: 1 when a request was taken, 0 when there is none or no slot, -errno. */
static int take_request(struct blk *blk)
{
	struct blk_req *req;
	u8 status;
	int ret;

	blk->starved = !have_slot(blk);
	if (blk->starved)
		return 0;
	req = peek_slot(blk);
	ret = virtq_pop(&blk->dev.queues[0], &req->chain);
	if (ret <= 0)
		return ret;
	ret = blk_req_split_status(req);
	if (ret)
		return ret;
	blk->free_reqs = req->next;
	req->retries = 0;
	req->started = false;
	list_append(blk, req);
	status = blk_req_prepare(req);
	/* A final answer waits for nobody. */
	if (status != VIRTIO_BLK_S_OK || req->type == VIRTIO_BLK_T_GET_ID) {
		blk_req_complete(req, status);
	} else if (!must_wait(req)) {
		req->started = true;
		blk_req_step(req);
	}
	return 1;
}

/* --- running --- */

/* Submit, take what is complete, start what that allows, until nothing moves. Return: 0 or -errno.
 */
static int blk_pump(struct blk *blk)
{
	int ret;

	do {
		if (blk_runs(blk))
			start_ready(blk);
		ret = ring_submit(&blk->ring);
		if (ret)
			return ret;
		ret = ring_reap(&blk->ring, 0);
		if (ret < 0)
			return ret;
	} while (blk->ring.unsubmitted || (blk->rescan && blk_runs(blk)));
	return blk->bad_queue ? -EBADMSG : 0;
}

static int blk_queue(struct virtio_dev *dev, unsigned int q)
{
	struct blk *blk = to_blk(dev);
	unsigned int count = 0;
	int ret = 0;

	(void)q;
	do {
		while (count < BLK_CALL_MAX && (ret = take_request(blk)) > 0)
			count++;
		if (count < BLK_CALL_MAX && ret < 0)
			break;
		ret = blk_pump(blk);
	} while (!ret && count < BLK_CALL_MAX && blk->starved && have_slot(blk));
	virtio_signal(dev, 0);
	/* The kernel is short of memory: what was queued stays so, to be submitted by the next
	 * call. */
	if (ret == -EAGAIN || ret == -EBUSY || ret == -ENOMEM)
		return blk->ring.unsubmitted == blk->ring.inflight;
	if (ret < 0)
		return ret;
	return count >= BLK_CALL_MAX;
}

static void blk_ring_event(struct ev_handler *handler, u32 events)
{
	struct blk *blk = container_of(handler, struct blk, ring_handler);

	(void)events;
	/* Even when the device is broken: the eventfd must be read and requests freed. */
	if (ring_reap(&blk->ring, 0) < 0)
		log_guest("virtio-blk: completions can't be read");
	virtio_kick(&blk->dev, 0);
}

/* Everything started ends, everything that waits starts and ends. */
static int blk_drain(struct blk *blk)
{
	int ret = 0;

	while (!ret && blk->nactive) {
		if (blk_runs(blk))
			start_ready(blk);
		else if (!blk->ring.inflight)
			blk_req_release(blk->first);
		ret = ring_drain(&blk->ring);
	}
	return ret;
}

static int blk_quiesce(struct virtio_dev *dev)
{
	struct blk *blk = to_blk(dev);
	int ret = blk_drain(blk);
	u64 one = 1;

	if (ret)
		log_err("virtio-blk: drain: %s", strerror(-ret));
	virtio_signal(dev, 0);
	/* If the VM goes on: what is left in the queue has no completion to wait for any more. */
	if (blk->starved && write(blk->ring.event_fd, &one, sizeof(one)) < 0)
		log_debug("virtio-blk: eventfd: %s", strerror(errno));
	return ret;
}

static int blk_activate(struct virtio_dev *dev)
{
	return to_blk(dev)->failed ? -EIO : 0;
}

static void blk_reset(struct virtio_dev *dev)
{
	struct blk *blk = to_blk(dev);
	int ret = blk_drain(blk);

	if (ret) {
		log_err("virtio-blk: reset: %s", strerror(-ret));
		blk->failed = true;
	}
	blk->starved = blk->rescan = blk->bad_queue = false;
}

static void blk_free(struct blk *blk)
{
	/* Requests that could not be ended may still be written to by the kernel: left alone. */
	if (blk->failed)
		return;
	ring_destroy(&blk->ring);
	blk_map_destroy(&blk->map);
	free(blk->reqs);
	free(blk);
}

static void blk_destroy(struct virtio_dev *dev)
{
	struct blk *blk = to_blk(dev);

	ev_del(dev->host->ev, &blk->ring_handler);
	blk_free(blk);
}

static void blk_save(const struct virtio_dev *dev, u8 priv[VIRTIO_PRIV_BYTES])
{
	const struct blk *blk = container_of(dev, const struct blk, dev);

	memcpy(priv, &blk->size_bytes, sizeof(blk->size_bytes));
}

static int blk_load(struct virtio_dev *dev, const u8 priv[VIRTIO_PRIV_BYTES])
{
	u8 expected[VIRTIO_PRIV_BYTES] = {0};

	memcpy(expected, &to_blk(dev)->size_bytes, sizeof(u64));
	return memcmp(priv, expected, sizeof(expected)) ? -EINVAL : 0;
}

static const struct virtio_ops blk_ops = {
	.name = "blk",
	.id = VIRTIO_ID_BLOCK,
	.nqueues = 1,
	.queue_max = VIRTQ_SIZE_MAX,
	.features = 1ull << VIRTIO_BLK_F_SEG_MAX | 1ull << VIRTIO_BLK_F_BLK_SIZE |
		    1ull << VIRTIO_BLK_F_FLUSH | 1ull << VIRTIO_BLK_F_DISCARD |
		    1ull << VIRTIO_BLK_F_WRITE_ZEROES,
	.activate = blk_activate,
	.reset = blk_reset,
	.queue = blk_queue,
	.quiesce = blk_quiesce,
	.save = blk_save,
	.load = blk_load,
	.destroy = blk_destroy,
};

/* --- creation --- */

static void fill_config(struct blk *blk)
{
	u32 zero_sectors = BLK_ZERO_MAX_BYTES / BLK_SECTOR_BYTES;

	blk->config = (struct virtio_blk_config){
		.capacity = blk->size_bytes / BLK_SECTOR_BYTES,
		.seg_max = BLK_SEG_MAX,
		.blk_size = BLK_BLOCK_BYTES,
		.max_discard_sectors = zero_sectors,
		.max_discard_seg = 1,
		.discard_sector_alignment = BLK_BLOCK_BYTES / BLK_SECTOR_BYTES,
		.max_write_zeroes_sectors = zero_sectors,
		.max_write_zeroes_seg = 1,
		.write_zeroes_may_unmap = 1,
	};
}

static int check_files(struct blk *blk)
{
	struct stat st;

	if (blk->base_fd >= 0) {
		if (fstat(blk->base_fd, &st) < 0)
			return -errno;
		if (!S_ISREG(st.st_mode))
			return -EINVAL;
		blk->base_bytes = MIN((u64)st.st_size, blk->size_bytes);
	}
	if (fstat(blk->delta_fd, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? 0 : -EINVAL;
}

static int start_ring(struct blk *blk)
{
	int files[2] = {blk->delta_fd, blk->base_fd};
	int ret = ring_init(&blk->ring, BLK_REQS_MAX, files, blk->base_fd >= 0 ? 2 : 1,
			    RING_RESTRICT | RING_EVENTFD);

	if (ret)
		return ret;
	blk->ring_handler = (struct ev_handler){.fn = blk_ring_event, .fd = blk->ring.event_fd};
	ret = ev_add(blk->dev.host->ev, &blk->ring_handler, EPOLLIN);
	if (ret)
		ring_destroy(&blk->ring);
	return ret;
}

int blk_create(struct virtio_host *host, unsigned int slot, int base_fd, int delta_fd,
	       u64 size_bytes, struct virtio_dev **out)
{
	struct blk *blk;
	int ret;

	if (size_bytes == 0 || size_bytes % BLK_BLOCK_BYTES || size_bytes > INT64_MAX) {
		log_err("virtio-blk: disk of %llu bytes", (unsigned long long)size_bytes);
		return -EINVAL;
	}
	blk = calloc(1, sizeof(*blk));
	if (!blk)
		return -ENOMEM;
	blk->base_fd = base_fd;
	blk->delta_fd = delta_fd;
	blk->size_bytes = size_bytes;
	/* 1 MiB of which little is ever used: see heap_prepare(). */
	blk->reqs = calloc(BLK_REQS_MAX, sizeof(*blk->reqs));
	ret = blk->reqs ? check_files(blk) : -ENOMEM;
	if (ret)
		goto err_free;
	ret = blk_map_init(&blk->map, size_bytes / BLK_BLOCK_BYTES);
	if (ret)
		goto err_free;
	fill_config(blk);
	virtio_init(&blk->dev, &blk_ops, host, slot, &blk->config, sizeof(blk->config));
	ret = start_ring(blk);
	if (ret)
		goto err_free;
	*out = &blk->dev;
	return 0;
err_free:
	log_err("virtio-blk: create: %s", strerror(-ret));
	blk_map_destroy(&blk->map);
	free(blk->reqs);
	free(blk);
	return ret;
}
