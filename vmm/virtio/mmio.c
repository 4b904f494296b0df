// SPDX-License-Identifier: Apache-2.0
// The virtio-mmio transport: one 4 KiB register page a device. virtio 1.2 §4.2.2, version 2 only.
//
// Registers are 32 bits wide and take aligned 32-bit accesses only (§4.2.2.2); any other access to
// them reads 0 and writes nothing. Configuration space, from 0x100 on, can be read in 1, 2, 4 or 8
// bytes and is never writable. What a register write may do in which state is decided in virtio.c;
// here a write to a register that is not writable now is dropped and logged.
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <string.h>

#include "vmm/util/log.h"
#include "vmm/virtio/virtio.h"

#define MMIO_MAGIC   0x74726976u /* "virt" */
#define MMIO_VERSION 2u
#define MMIO_VENDOR  0x57414854u /* "THAW" */

/* §4.2.2.2: a shared memory region that is not there has all ones as length and base. */
#define MMIO_SHM_ABSENT 0xffffffffu

/*
 * No feature has this bit. It stands in driver_features for a bit beyond 63, so that FEATURES_OK is
 * refused to a driver that chose one.
 */
#define FEATURE_BEYOND (1ull << 63)

static u32 read_queue_register(const struct virtio_dev *dev, u64 offset)
{
	if (dev->queue_sel >= dev->ops->nqueues)
		return 0;
	if (offset == VIRTIO_MMIO_QUEUE_NUM_MAX)
		return dev->queues[dev->queue_sel].size_max;
	return dev->queues[dev->queue_sel].ready;
}

static u32 read_features(const struct virtio_dev *dev)
{
	if (dev->features_sel > 1)
		return 0;
	return (u32)(virtio_features(dev) >> (32 * dev->features_sel));
}

static u32 read_register(const struct virtio_dev *dev, u64 offset)
{
	switch (offset) {
	case VIRTIO_MMIO_MAGIC_VALUE:
		return MMIO_MAGIC;
	case VIRTIO_MMIO_VERSION:
		return MMIO_VERSION;
	case VIRTIO_MMIO_DEVICE_ID:
		return dev->ops->id;
	case VIRTIO_MMIO_VENDOR_ID:
		return MMIO_VENDOR;
	case VIRTIO_MMIO_DEVICE_FEATURES:
		return read_features(dev);
	case VIRTIO_MMIO_QUEUE_NUM_MAX:
	case VIRTIO_MMIO_QUEUE_READY:
		return read_queue_register(dev, offset);
	case VIRTIO_MMIO_INTERRUPT_STATUS:
		return dev->isr;
	case VIRTIO_MMIO_STATUS:
		return dev->status;
	case VIRTIO_MMIO_SHM_LEN_LOW:
	case VIRTIO_MMIO_SHM_LEN_HIGH:
	case VIRTIO_MMIO_SHM_BASE_LOW:
	case VIRTIO_MMIO_SHM_BASE_HIGH:
		return MMIO_SHM_ABSENT;
	case VIRTIO_MMIO_CONFIG_GENERATION:
		return dev->config_generation;
	default:
		return 0;
	}
}

static void set_low(u64 *field, u32 value)
{
	*field = (*field & ~0xffffffffull) | value;
}

static void set_high(u64 *field, u32 value)
{
	*field = (*field & 0xffffffffull) | (u64)value << 32;
}

static void write_queue_register(struct virtio_dev *dev, u64 offset, u32 value)
{
	struct virtq *vq;

	if (!virtio_queue_configurable(dev, dev->queue_sel)) {
		log_guest("virtio-%s: queue register 0x%llx not writable now", dev->ops->name,
			  (unsigned long long)offset);
		return;
	}
	vq = &dev->queues[dev->queue_sel];
	switch (offset) {
	case VIRTIO_MMIO_QUEUE_NUM:
		/* 0 is what virtq_validate() refuses. */
		vq->size = value <= vq->size_max && !(value & (value - 1)) ? (u16)value : 0;
		break;
	case VIRTIO_MMIO_QUEUE_DESC_LOW:
		set_low(&vq->desc_gpa, value);
		break;
	case VIRTIO_MMIO_QUEUE_DESC_HIGH:
		set_high(&vq->desc_gpa, value);
		break;
	case VIRTIO_MMIO_QUEUE_AVAIL_LOW:
		set_low(&vq->avail_gpa, value);
		break;
	case VIRTIO_MMIO_QUEUE_AVAIL_HIGH:
		set_high(&vq->avail_gpa, value);
		break;
	case VIRTIO_MMIO_QUEUE_USED_LOW:
		set_low(&vq->used_gpa, value);
		break;
	case VIRTIO_MMIO_QUEUE_USED_HIGH:
		set_high(&vq->used_gpa, value);
		break;
	default:
		break;
	}
}

static void write_features(struct virtio_dev *dev, u32 value)
{
	/* From FEATURES_OK on the choice is final (§3.1.1). */
	if (dev->status & VIRTIO_CONFIG_S_FEATURES_OK || !(dev->status & VIRTIO_CONFIG_S_DRIVER)) {
		log_guest("virtio-%s: features written out of order", dev->ops->name);
		return;
	}
	if (dev->driver_features_sel == 0)
		set_low(&dev->driver_features, value);
	else if (dev->driver_features_sel == 1)
		set_high(&dev->driver_features, value);
	else if (value)
		dev->driver_features |= FEATURE_BEYOND;
}

static void write_register(struct virtio_dev *dev, u64 offset, u32 value)
{
	switch (offset) {
	case VIRTIO_MMIO_DEVICE_FEATURES_SEL:
		dev->features_sel = value;
		break;
	case VIRTIO_MMIO_DRIVER_FEATURES:
		write_features(dev, value);
		break;
	case VIRTIO_MMIO_DRIVER_FEATURES_SEL:
		dev->driver_features_sel = value;
		break;
	case VIRTIO_MMIO_QUEUE_SEL:
		dev->queue_sel = value;
		break;
	case VIRTIO_MMIO_QUEUE_NUM:
	case VIRTIO_MMIO_QUEUE_DESC_LOW:
	case VIRTIO_MMIO_QUEUE_DESC_HIGH:
	case VIRTIO_MMIO_QUEUE_AVAIL_LOW:
	case VIRTIO_MMIO_QUEUE_AVAIL_HIGH:
	case VIRTIO_MMIO_QUEUE_USED_LOW:
	case VIRTIO_MMIO_QUEUE_USED_HIGH:
		write_queue_register(dev, offset, value);
		break;
	case VIRTIO_MMIO_QUEUE_READY:
		virtio_set_queue_ready(dev, dev->queue_sel, value & 1);
		break;
	case VIRTIO_MMIO_QUEUE_NOTIFY:
		virtio_kick(dev, value);
		break;
	case VIRTIO_MMIO_INTERRUPT_ACK:
		dev->isr &= ~value;
		break;
	case VIRTIO_MMIO_STATUS:
		virtio_set_status(dev, value);
		break;
	default:
		/* Read-only and unknown registers, and SHMSel: there is no region to select. */
		break;
	}
}

static void read_config(const struct virtio_dev *dev, u64 offset, void *data, u32 len_bytes)
{
	u64 left_bytes;

	memset(data, 0, len_bytes);
	if (offset >= dev->config_len_bytes)
		return;
	left_bytes = dev->config_len_bytes - offset;
	memcpy(data, (const u8 *)dev->config + offset, MIN((u64)len_bytes, left_bytes));
}

void virtio_mmio_access(struct virtio_dev *dev, u64 offset, void *data, u32 len_bytes,
			bool is_write)
{
	u32 value = 0;

	if (offset >= VIRTIO_MMIO_CONFIG) {
		if (!is_write)
			read_config(dev, offset - VIRTIO_MMIO_CONFIG, data, len_bytes);
		return;
	}
	if (len_bytes != sizeof(value) || offset % sizeof(value)) {
		log_guest("virtio-%s: %u-byte access to register 0x%llx", dev->ops->name, len_bytes,
			  (unsigned long long)offset);
		if (!is_write)
			memset(data, 0, len_bytes);
		return;
	}
	if (is_write) {
		memcpy(&value, data, sizeof(value));
		write_register(dev, offset, value);
	} else {
		value = read_register(dev, offset);
		memcpy(data, &value, sizeof(value));
	}
}
