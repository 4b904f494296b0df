// SPDX-License-Identifier: Apache-2.0
// Split virtqueues, device side: taking chains, giving them back, deciding on notifications.
//
// Theory of operation (virtio 1.2 §2.7)
//
// A queue is three arrays in guest RAM. The driver fills descriptors and appends chain heads to the
// avail ring; the device takes them in order and appends (head, bytes written) to the used ring.
// Both sides only ever add to their own 16-bit index, which wraps; the ring slot is index modulo
// size.
//
// The guest may write any byte of this at any time, so:
//  - every index, ring entry and descriptor is loaded exactly once, with an atomic load, into a
//  local
//    that is then checked and used (a second load could see another value than the one checked);
//  - rings are found by gmem_ptr() at each step. Their place was checked when the queue was enabled
//    and the RAM table never changes, so a failure here can only come of a broken caller: it is
//    reported like a malformed ring, not asserted;
//  - a chain has at most `size` descriptors (§2.7.5.3.1 forbids longer ones; a loop ends here too)
//  and
//    less than 2^32 bytes.
//
// Order of memory accesses. vCPUs run while this code does:
//  1. avail->idx is loaded with acquire before the ring entry and the descriptors: otherwise
//  entries
//     could be read that the driver has not written yet.
//  2. The used element is stored before used->idx (release): otherwise the driver could read an old
//     element. Data of the request was written earlier still, so the same release covers it.
//  3. Before sleeping: store avail_event, full fence, load avail->idx again. The driver does: store
//     avail->idx, full fence, load avail_event. With both fences at least one side sees the other's
//     store. Without ours, the device could miss the new entry while the driver still sees the old
//     avail_event and does not kick: the queue would hang.
//  4. Before the interrupt decision: store used->idx, full fence, load used_event (or the avail
//     flags). The mirror image: without it a driver that has just gone to sleep gets no interrupt.
//
// EVENT_IDX and snapshots. avail_event and used_event live in guest RAM, which the snapshot holds;
// next_avail, next_used and signalled_used are saved beside it (virtio.c). All that must be true
// after a restore is what is true before any sleep: avail_event == next_avail when the device waits
// for a kick. virtio_resume() sees to that with virtq_rearm(), whatever the memory says.
#include "vmm/virtio/virtq.h"

#include <errno.h>
#include <linux/virtio_ring.h>
#include <string.h>

#define AVAIL_FLAGS_OFF 0
#define AVAIL_IDX_OFF	2
#define AVAIL_RING_OFF	4
#define USED_IDX_OFF	2
#define USED_RING_OFF	4
#define USED_ELEM_BYTES 8
#define DESC_BYTES	16

static u64 avail_len_bytes(const struct virtq *vq)
{
	return AVAIL_RING_OFF + 2 * (u64)vq->size + 2;
}

static u64 used_len_bytes(const struct virtq *vq)
{
	return USED_RING_OFF + USED_ELEM_BYTES * (u64)vq->size + 2;
}

static u8 *avail_ring(const struct virtq *vq)
{
	return gmem_ptr(vq->gmem, vq->avail_gpa, avail_len_bytes(vq));
}

static u8 *used_ring(const struct virtq *vq)
{
	return gmem_ptr(vq->gmem, vq->used_gpa, used_len_bytes(vq));
}

/* The alignment of all 16-bit accesses below is that of the rings, which virtq_validate() checked.
 */
static u16 load16(const void *ptr)
{
	return __atomic_load_n((const u16 *)ptr, __ATOMIC_RELAXED);
}

static u16 load16_acquire(const void *ptr)
{
	return __atomic_load_n((const u16 *)ptr, __ATOMIC_ACQUIRE);
}

/* Has the event index @event been passed by the move from @old to @new? (§2.7.10.1, modulo 2^16) */
static bool need_event(u16 event, u16 new, u16 old)
{
	return (u16)(new - event - 1) < (u16)(new - old);
}

int virtq_validate(const struct virtq *vq)
{
	if (vq->size == 0 || vq->size > vq->size_max || (vq->size & (vq->size - 1)))
		return -EINVAL;
	if (vq->desc_gpa % 16 || vq->avail_gpa % 2 || vq->used_gpa % 4)
		return -EINVAL;
	if (!gmem_ptr(vq->gmem, vq->desc_gpa, DESC_BYTES * (u64)vq->size))
		return -EINVAL;
	if (!avail_ring(vq) || !used_ring(vq))
		return -EINVAL;
	return 0;
}

int virtq_avail_idx(const struct virtq *vq)
{
	const u8 *avail = avail_ring(vq);

	if (!avail)
		return -EBADMSG;
	return load16_acquire(avail + AVAIL_IDX_OFF);
}

/* Copy descriptor @index; each field is loaded once. */
static void load_desc(const u8 *table, u16 index, struct vring_desc *out)
{
	const struct vring_desc *desc = (const void *)(table + DESC_BYTES * (size_t)index);

	out->addr = __atomic_load_n(&desc->addr, __ATOMIC_RELAXED);
	out->len = __atomic_load_n(&desc->len, __ATOMIC_RELAXED);
	out->flags = __atomic_load_n(&desc->flags, __ATOMIC_RELAXED);
	out->next = __atomic_load_n(&desc->next, __ATOMIC_RELAXED);
}

/* Append one checked descriptor to the chain. An empty one adds nothing but still counts as a link.
 */
static int chain_add(const struct virtq *vq, struct virtq_chain *chain,
		     const struct vring_desc *desc)
{
	bool writable = desc->flags & VRING_DESC_F_WRITE;
	u32 *sum_bytes = writable ? &chain->write_bytes : &chain->read_bytes;
	u32 total_bytes;
	void *hva;

	if (desc->flags & VRING_DESC_F_INDIRECT)
		return -EBADMSG; /* not offered */
	if (!writable && chain->nwrite)
		return -EBADMSG; /* §2.7.4.2: readable ones come first */
	if (desc->len == 0)
		return 0;
	if (__builtin_add_overflow(chain->read_bytes + chain->write_bytes, desc->len, &total_bytes))
		return -EBADMSG;
	hva = gmem_ptr(vq->gmem, desc->addr, desc->len);
	if (!hva)
		return -EBADMSG;
	chain->iov[chain->nread + chain->nwrite] = (struct iovec){hva, desc->len};
	*sum_bytes += desc->len;
	if (writable)
		chain->nwrite++;
	else
		chain->nread++;
	return 0;
}

static int walk_chain(const struct virtq *vq, u16 head, struct virtq_chain *chain)
{
	const u8 *table = gmem_ptr(vq->gmem, vq->desc_gpa, DESC_BYTES * (u64)vq->size);
	struct vring_desc desc;
	u16 index = head;
	int ret;

	chain->head = head;
	chain->nread = chain->nwrite = 0;
	chain->read_bytes = chain->write_bytes = 0;
	if (!table)
		return -EBADMSG;
	for (unsigned int links = 0; links < vq->size; links++) {
		if (index >= vq->size)
			return -EBADMSG;
		load_desc(table, index, &desc);
		ret = chain_add(vq, chain, &desc);
		if (ret)
			return ret;
		if (!(desc.flags & VRING_DESC_F_NEXT))
			return 0;
		index = desc.next;
	}
	return -EBADMSG; /* a loop, or longer than the queue */
}

int virtq_rearm(struct virtq *vq)
{
	u8 *used = used_ring(vq);
	u16 *event;

	if (!used)
		return -EBADMSG;
	if (!vq->event_idx)
		return 0; /* used->flags stays 0: every add kicks */
	event = (u16 *)(used + USED_RING_OFF + USED_ELEM_BYTES * (size_t)vq->size);
	/* Not stored when it is there already: that would make a clone copy the page for nothing.
	 */
	if (load16(event) != vq->next_avail)
		__atomic_store_n(event, vq->next_avail, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* order 3 above */
	return 0;
}

/* How many entries wait, re-arming the driver's kick when there is none. */
static int pending_or_rearm(struct virtq *vq, const u8 *avail)
{
	u16 pending = load16_acquire(avail + AVAIL_IDX_OFF) - vq->next_avail;
	int ret;

	if (pending == 0) {
		ret = virtq_rearm(vq);
		if (ret)
			return ret;
		pending = load16_acquire(avail + AVAIL_IDX_OFF) - vq->next_avail;
	}
	return pending;
}

int virtq_pop(struct virtq *vq, struct virtq_chain *chain)
{
	const u8 *avail;
	int pending;
	u16 head;
	int ret;

	if (!vq->ready)
		return 0;
	avail = avail_ring(vq);
	if (!avail)
		return -EBADMSG;
	pending = pending_or_rearm(vq, avail);
	if (pending <= 0)
		return pending;
	if (pending > vq->size)
		return -EBADMSG; /* more entries than the ring can hold */
	head = load16(avail + AVAIL_RING_OFF + 2 * (size_t)(vq->next_avail & (vq->size - 1)));
	ret = walk_chain(vq, head, chain);
	if (ret)
		return ret;
	vq->next_avail++;
	return 1;
}

void virtq_unpop(struct virtq *vq)
{
	vq->next_avail--;
}

int virtq_push(struct virtq *vq, u16 head, u32 len_bytes)
{
	struct vring_used_elem *elem;
	u8 *used;

	if (!vq->ready || head >= vq->size)
		return -EBADMSG;
	used = used_ring(vq);
	if (!used)
		return -EBADMSG;
	elem = (void *)(used + USED_RING_OFF +
			USED_ELEM_BYTES * (size_t)(vq->next_used & (vq->size - 1)));
	__atomic_store_n(&elem->id, head, __ATOMIC_RELAXED);
	__atomic_store_n(&elem->len, len_bytes, __ATOMIC_RELAXED);
	vq->next_used++;
	__atomic_store_n((u16 *)(used + USED_IDX_OFF), vq->next_used, __ATOMIC_RELEASE);
	return 0;
}

/* The used_event index that the driver published behind the avail ring. */
static u16 load_used_event(const struct virtq *vq, const u8 *avail)
{
	return load16(avail + AVAIL_RING_OFF + 2 * (size_t)vq->size);
}

bool virtq_should_signal(struct virtq *vq)
{
	const u8 *avail = avail_ring(vq);
	u16 old = vq->signalled_used;

	if (!avail || !vq->ready || old == vq->next_used)
		return false;
	vq->signalled_used = vq->next_used;
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* order 4 above */
	if (!vq->event_idx)
		return !(load16(avail + AVAIL_FLAGS_OFF) & VRING_AVAIL_F_NO_INTERRUPT);
	return need_event(load_used_event(vq, avail), vq->next_used, old);
}

bool virtq_used_unseen(const struct virtq *vq)
{
	const u8 *avail = avail_ring(vq);

	if (!avail || !vq->ready)
		return false;
	if (!vq->event_idx)
		return !(load16(avail + AVAIL_FLAGS_OFF) & VRING_AVAIL_F_NO_INTERRUPT);
	return load_used_event(vq, avail) != vq->next_used;
}

/* Copy between @buf and @niov buffers from @offset on, in the direction asked. */
static size_t iov_copy(const struct iovec *iov, unsigned int niov, size_t offset, void *buf,
		       size_t len_bytes, bool to_iov)
{
	size_t done = 0;

	for (unsigned int i = 0; i < niov && done < len_bytes; i++) {
		size_t n;

		if (offset >= iov[i].iov_len) {
			offset -= iov[i].iov_len;
			continue;
		}
		n = MIN(iov[i].iov_len - offset, len_bytes - done);
		if (to_iov)
			memcpy((u8 *)iov[i].iov_base + offset, (u8 *)buf + done, n);
		else
			memcpy((u8 *)buf + done, (u8 *)iov[i].iov_base + offset, n);
		done += n;
		offset = 0;
	}
	/* The caller checks its copy: the compiler must not go back to guest memory for it. */
	__asm__ volatile("" ::: "memory");
	return done;
}

size_t virtq_chain_read(const struct virtq_chain *chain, size_t offset, void *dst, size_t len_bytes)
{
	return iov_copy(chain->iov, chain->nread, offset, dst, len_bytes, false);
}

size_t virtq_chain_write(const struct virtq_chain *chain, size_t offset, const void *src,
			 size_t len_bytes)
{
	/* iov_copy() only reads @src when it copies towards the iovecs. */
	return iov_copy(chain->iov + chain->nread, chain->nwrite, offset, (void *)(uintptr_t)src,
			len_bytes, true);
}
