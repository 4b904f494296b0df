/* SPDX-License-Identifier: Apache-2.0 */
/* The rings of driver.h, which includes this: descriptors, avail and used entries, event indices.
 */
#ifndef THAW_TESTS_UNIT_DRIVER_RING_H
#define THAW_TESTS_UNIT_DRIVER_RING_H

#include "tests/unit/driver.h"

static inline void drv_desc(struct drv *drv, unsigned int q, u16 i, u64 gpa, u32 len, u16 flags,
			    u16 next)
{
	drv->queues[q].desc[i] = (struct vring_desc){gpa, len, flags, next};
}

/* Make @head available; no kick. */
static inline void drv_add(struct drv *drv, unsigned int q, u16 head)
{
	struct drv_queue *queue = &drv->queues[q];

	queue->avail[2 + queue->avail[1] % queue->size] = head;
	__atomic_store_n(&queue->avail[1], queue->avail[1] + 1, __ATOMIC_RELEASE);
}

static inline void drv_notify(struct drv *drv, unsigned int q)
{
	drv_write(drv, VIRTIO_MMIO_QUEUE_NOTIFY, q);
}

static inline u16 drv_used_idx(const struct drv *drv, unsigned int q)
{
	return __atomic_load_n(&drv->queues[q].used[1], __ATOMIC_ACQUIRE);
}

static inline struct vring_used_elem *drv_used(const struct drv *drv, unsigned int q, u16 i)
{
	const struct drv_queue *queue = &drv->queues[q];

	return (struct vring_used_elem *)(void *)&queue->used[2 + 4 * (i % queue->size)];
}

static inline u16 *drv_used_event(const struct drv *drv, unsigned int q)
{
	return &drv->queues[q].avail[2 + drv->queues[q].size];
}

static inline u16 *drv_avail_event(const struct drv *drv, unsigned int q)
{
	return &drv->queues[q].used[2 + 4 * drv->queues[q].size];
}

#endif
