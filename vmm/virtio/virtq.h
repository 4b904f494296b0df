/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split virtqueues, device side. virtio 1.2 §2.7.
 *
 * The guest can write rings and descriptors at any time. Each 16-byte descriptor is copied once,
 * then checked, then used; the indices are read once a step. A chain is bounded by the queue's
 * size, in descriptors, and by 32 bits in bytes.
 */
#ifndef THAW_VIRTIO_VIRTQ_H
#define THAW_VIRTIO_VIRTQ_H

#include <sys/uio.h>

#include "vmm/kvm/gmem.h"
#include "vmm/util/types.h"

#define VIRTQ_SIZE_MAX	  256
#define VIRTIO_QUEUES_MAX 3

struct virtq {
	const struct gmem *gmem;
	u16 size_max;
	u16 size;
	bool ready;
	bool event_idx; /* VIRTIO_F_RING_EVENT_IDX negotiated */
	u64 desc_gpa, avail_gpa, used_gpa;
	u16 next_avail; /* next entry of the avail ring to take */
	u16 next_used;	/* next entry of the used ring to fill = used->idx as we last wrote it */
	u16 signalled_used; /* used index at the last interrupt decision */
};

/** One request: readable (driver to device) buffers first, then writable ones, as host iovecs
 * already checked. */
struct virtq_chain {
	u16 head;
	unsigned int nread, nwrite;
	u32 read_bytes, write_bytes;
	struct iovec iov[VIRTQ_SIZE_MAX]; /* nread entries, then nwrite */
};

/** virtq_validate() - the rings lie in RAM, aligned, and the size is a power of two <= size_max.
 * Return: 0 or -EINVAL. */
int __must_check virtq_validate(const struct virtq *vq);

/**
 * virtq_pop() - take the next available chain.
 * Return: 1 and @chain; 0 when there is none (the avail event is re-armed and re-checked, so a
 * later add will kick); -EBADMSG when the ring or chain is malformed: the device needs a reset.
 */
int __must_check virtq_pop(struct virtq *vq, struct virtq_chain *chain);

/**
 * virtq_unpop() - give back the chain just popped (not yet completed), because it can't be served
 * now. The kick is not re-armed for it: the device must pop again by itself when it can.
 */
void virtq_unpop(struct virtq *vq);

/** virtq_push() - chain @head is done, @len_bytes were written into it; visible to the guest before
 * this returns. Return: 0 or -EBADMSG. */
int __must_check virtq_push(struct virtq *vq, u16 head, u32 len_bytes);

/** virtq_should_signal() - does the driver want an interrupt for what was pushed since the last
 * call? (§2.7.7, §2.7.10) */
bool virtq_should_signal(struct virtq *vq);

/**
 * virtq_rearm() - ask for a kick at the next add: avail_event = next_avail (nothing to do without
 * EVENT_IDX). virtq_pop() does it when it finds nothing; alone it is for virtio_resume(). Return: 0
 * or -EBADMSG.
 */
int __must_check virtq_rearm(struct virtq *vq);

/** virtq_used_unseen() - may the driver be waiting for an interrupt for something in the used ring?
 * No side effect; for virtio_resume(). */
bool virtq_used_unseen(const struct virtq *vq);

/** virtq_avail_idx() - the driver's avail index now. Return: 0..65535, or -EBADMSG. */
int virtq_avail_idx(const struct virtq *vq);

/** virtq_chain_read() - copy up to @len_bytes from the readable part at @offset. Return: bytes
 * copied. */
size_t virtq_chain_read(const struct virtq_chain *chain, size_t offset, void *dst,
			size_t len_bytes);

/** virtq_chain_write() - copy up to @len_bytes into the writable part at @offset. Return: bytes
 * copied. */
size_t virtq_chain_write(const struct virtq_chain *chain, size_t offset, const void *src,
			 size_t len_bytes);

#endif
