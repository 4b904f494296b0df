/* SPDX-License-Identifier: Apache-2.0 */
/* The guest's side for tests of virtio devices: fake RAM, rings, and the register writes of a
 * driver. */
#ifndef THAW_TESTS_UNIT_DRIVER_H
#define THAW_TESTS_UNIT_DRIVER_H

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <string.h>
#include <sys/mman.h>

#include "vmm/virtio/devices.h"

#define DRV_RAM_BYTES	(4 * MIB)
#define DRV_QUEUE_GPA	0x2000ull /* rings of queue q: 0x3000 bytes each from here on */
#define DRV_QUEUE_BYTES 0x3000ull
#define DRV_BUF_GPA	0x10000ull /* free for the test's buffers from here on */

struct drv_queue {
	u16 size;
	struct vring_desc *desc;
	u16 *avail; /* flags, idx, ring[size], used_event */
	u16 *used;  /* flags, idx, then 8-byte elements, then avail_event */
	u16 seen;   /* used entries taken */
};

struct drv {
	struct gmem gmem;
	u8 *ram;
	struct ev ev;
	struct virtio_host host;
	struct virtio_dev *dev;
	unsigned int interrupts, defers;
	struct drv_queue queues[VIRTIO_QUEUES_MAX];
};

static inline void drv_interrupt(struct virtio_host *host, unsigned int slot)
{
	(void)slot;
	container_of(host, struct drv, host)->interrupts++;
}

static inline void drv_defer(struct virtio_host *host, unsigned int slot, unsigned int q)
{
	(void)slot;
	(void)q;
	container_of(host, struct drv, host)->defers++;
}

static inline void *drv_ptr(struct drv *drv, u64 gpa)
{
	return drv->ram + gpa;
}

/* RAM at guest address 0 and an event loop; the test creates drv->dev with &drv->host. */
static inline void drv_init(struct drv *drv)
{
	memset(drv, 0, sizeof(*drv));
	drv->ram = mmap(NULL, DRV_RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);
	CHECK(drv->ram != MAP_FAILED);
	CHECK_EQ(gmem_add(&drv->gmem, 0, DRV_RAM_BYTES, drv->ram), 0);
	CHECK_EQ(ev_init(&drv->ev), 0);
	drv->host = (struct virtio_host){
		.gmem = &drv->gmem,
		.ev = &drv->ev,
		.interrupt = drv_interrupt,
		.defer = drv_defer,
	};
}

static inline void drv_destroy(struct drv *drv)
{
	virtio_destroy(drv->dev);
	ev_destroy(&drv->ev);
	CHECK_EQ(munmap(drv->ram, DRV_RAM_BYTES), 0);
}

static inline u32 drv_read(struct drv *drv, u64 offset)
{
	u32 value = 0;

	virtio_mmio_access(drv->dev, offset, &value, sizeof(value), false);
	return value;
}

static inline void drv_write(struct drv *drv, u64 offset, u32 value)
{
	virtio_mmio_access(drv->dev, offset, &value, sizeof(value), true);
}

/* Where queue @q's rings are, as pointers; used by drv_queue_setup() and after a restore. */
static inline void drv_queue_map(struct drv *drv, unsigned int q, u16 size)
{
	u64 gpa = DRV_QUEUE_GPA + q * DRV_QUEUE_BYTES;

	drv->queues[q] = (struct drv_queue){
		.size = size,
		.desc = drv_ptr(drv, gpa),
		.avail = drv_ptr(drv, gpa + 0x1000),
		.used = drv_ptr(drv, gpa + 0x2000),
	};
}

static inline void drv_queue_setup(struct drv *drv, unsigned int q, u16 size)
{
	u64 gpa = DRV_QUEUE_GPA + q * DRV_QUEUE_BYTES;

	drv_queue_map(drv, q, size);
	drv_write(drv, VIRTIO_MMIO_QUEUE_SEL, q);
	drv_write(drv, VIRTIO_MMIO_QUEUE_NUM, size);
	drv_write(drv, VIRTIO_MMIO_QUEUE_DESC_LOW, (u32)gpa);
	drv_write(drv, VIRTIO_MMIO_QUEUE_DESC_HIGH, (u32)(gpa >> 32));
	drv_write(drv, VIRTIO_MMIO_QUEUE_AVAIL_LOW, (u32)(gpa + 0x1000));
	drv_write(drv, VIRTIO_MMIO_QUEUE_AVAIL_HIGH, 0);
	drv_write(drv, VIRTIO_MMIO_QUEUE_USED_LOW, (u32)(gpa + 0x2000));
	drv_write(drv, VIRTIO_MMIO_QUEUE_USED_HIGH, 0);
	drv_write(drv, VIRTIO_MMIO_QUEUE_READY, 1);
}

/* Reset, then up to and with FEATURES_OK; false when that bit was refused. */
static inline bool drv_negotiate(struct drv *drv, u64 features)
{
	drv_write(drv, VIRTIO_MMIO_STATUS, 0);
	drv_write(drv, VIRTIO_MMIO_STATUS, 1);
	drv_write(drv, VIRTIO_MMIO_STATUS, 3);
	drv_write(drv, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
	drv_write(drv, VIRTIO_MMIO_DRIVER_FEATURES, (u32)(features >> 32));
	drv_write(drv, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
	drv_write(drv, VIRTIO_MMIO_DRIVER_FEATURES, (u32)features);
	drv_write(drv, VIRTIO_MMIO_STATUS, 0xb);
	return drv_read(drv, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_FEATURES_OK;
}

/* The whole start of a driver that takes every feature. */
static inline void drv_start(struct drv *drv, u16 size)
{
	CHECK(drv_negotiate(drv, virtio_features(drv->dev)));
	for (unsigned int q = 0; q < drv->dev->ops->nqueues; q++)
		drv_queue_setup(drv, q, size);
	drv_write(drv, VIRTIO_MMIO_STATUS, 0xf);
	CHECK_EQ(drv_read(drv, VIRTIO_MMIO_STATUS), 0xf);
}

#include "tests/unit/driver_ring.h"

#endif
