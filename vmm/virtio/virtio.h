/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtio device as the transport (mmio.c), the machine (vmm/kvm/vm.c) and the snapshot see it.
 * virtio 1.2 §2, §4.2.
 *
 * Everything here runs under the VM's device lock: on the event loop, or on a vCPU thread inside a
 * register access.
 */
#ifndef THAW_VIRTIO_VIRTIO_H
#define THAW_VIRTIO_VIRTIO_H

#include "vmm/kvm/gmem.h"
#include "vmm/snapshot/format.h"
#include "vmm/util/ev.h"
#include "vmm/virtio/virtq.h"

struct virtio_dev;

/* VIRTIO_F_VERSION_1 and VIRTIO_F_RING_EVENT_IDX are offered by the transport for every device. */

struct virtio_ops {
	const char *name;
	u32 id;		      /* virtio 1.2 §5 device type */
	unsigned int nqueues; /* <= VIRTIO_QUEUES_MAX */
	u16 queue_max;	      /* largest queue size, a power of two <= VIRTQ_SIZE_MAX */
	u64 features;	      /* device-specific bits offered */
	/** DRIVER_OK was written, or a restored device is about to run. NULL: nothing to do.
	 * Return: 0 or -errno (=> NEEDS_RESET). */
	int (*activate)(struct virtio_dev *dev);
	/** The driver wrote status 0, or the VM ends; in any state. Must leave no request in flight
	 * and no host resource of the session. dev->active is false already: what ends meanwhile
	 * must not touch the rings. */
	void (*reset)(struct virtio_dev *dev);
	/** Queue @q was kicked: take what is there; idempotent, called again if in doubt.
	 * Return: 0; < 0 => DEVICE_NEEDS_RESET; > 0: a bounded share was done, call again after
	 * other events (a guest that adds for ever must not hold the device lock for ever). */
	int (*queue)(struct virtio_dev *dev, unsigned int q);
	/** Wait until no request is in flight (all completions are in the used rings). NULL: never
	 * any. Return: 0 or -errno. */
	int (*quiesce)(struct virtio_dev *dev);
	/** Device-specific state, fixed layout, zero-padded to VIRTIO_PRIV_BYTES. NULL: none. */
	void (*save)(const struct virtio_dev *dev, u8 priv[VIRTIO_PRIV_BYTES]);
	/** The reverse; @priv is hostile. Return: 0 or -EINVAL. */
	int (*load)(struct virtio_dev *dev, const u8 priv[VIRTIO_PRIV_BYTES]);
	/** Free the device (embeds virtio_dev). reset was called before. */
	void (*destroy)(struct virtio_dev *dev);
};

/** What a device needs of its machine; lives as long as the device. */
struct virtio_host {
	const struct gmem *gmem;
	struct ev *ev;
	/** Raise the device's interrupt line (edge). */
	void (*interrupt)(struct virtio_host *host, unsigned int slot);
	/** Have virtio_kick() called for queue @q from the event loop, after other events. NULL:
	 * virtio_kick() goes on by itself instead. */
	void (*defer)(struct virtio_host *host, unsigned int slot, unsigned int q);
};

struct virtio_dev {
	const struct virtio_ops *ops;
	struct virtio_host *host;
	unsigned int slot;
	const void *config; /* config space, read-only for the driver; owned by the device */
	u32 config_len_bytes;

	/* transport state, owned by mmio.c */
	u32 status;
	u32 isr;
	u32 features_sel, driver_features_sel, queue_sel;
	u32 config_generation;
	u64 driver_features; /* chosen bits; from FEATURES_OK on a subset of the offered */
	bool active;	     /* ops->activate succeeded and no reset since */
	struct virtq queues[VIRTIO_QUEUES_MAX];
};

/** virtio_init() - set up the common part, first thing of a device; @config is kept by pointer. */
void virtio_init(struct virtio_dev *dev, const struct virtio_ops *ops, struct virtio_host *host,
		 unsigned int slot, const void *config, u32 config_len_bytes);

/** virtio_destroy() - reset and free @dev; NULL is fine. */
void virtio_destroy(struct virtio_dev *dev);

/** virtio_reset() - back to the state after virtio_init(): the driver wrote status 0. */
void virtio_reset(struct virtio_dev *dev);

/**
 * virtio_set_status() - the driver writes the device status (virtio 1.2 §2.1): 0 resets; else the
 * legal steps are taken, illegal ones are ignored and logged. DRIVER_OK activates the device.
 */
void virtio_set_status(struct virtio_dev *dev, u32 status);

/** virtio_queue_configurable() - may the driver write queue @q's size and addresses now? (after
 * FEATURES_OK, before DRIVER_OK, not while enabled) */
bool virtio_queue_configurable(const struct virtio_dev *dev, unsigned int q);

/** virtio_set_queue_ready() - enable queue @q (bad size or place => NEEDS_RESET), or stop it. */
void virtio_set_queue_ready(struct virtio_dev *dev, unsigned int q, bool ready);

/** virtio_features() - all bits offered to the driver. */
u64 virtio_features(const struct virtio_dev *dev);

/** virtio_has() - true if the driver accepted feature bit @bit. */
static inline bool virtio_has(const struct virtio_dev *dev, unsigned int bit)
{
	return (dev->driver_features >> bit) & 1;
}

/**
 * virtio_mmio_access() - one access to the device's register page (virtio 1.2 §4.2.2).
 * @offset: in the page; @data: @len_bytes of the bus (1, 2, 4 or 8), read from or written to.
 */
void virtio_mmio_access(struct virtio_dev *dev, u64 offset, void *data, u32 len_bytes,
			bool is_write);

/** virtio_kick() - an ioeventfd or QueueNotify of queue @q; deals with results of ops->queue. */
void virtio_kick(struct virtio_dev *dev, unsigned int q);

/**
 * virtio_serve() - the whole ops->queue of a device that answers at once: pop, @serve (returns the
 * bytes it wrote into the chain), push, one signal. Return: as ops->queue.
 */
int virtio_serve(struct virtio_dev *dev, unsigned int q,
		 u32 (*serve)(struct virtio_dev *dev, const struct virtq_chain *chain));

/** virtio_signal() - buffers of queue @q were pushed: interrupt the driver if it wants that. */
void virtio_signal(struct virtio_dev *dev, unsigned int q);

/** virtio_needs_reset() - mark the device broken (virtio 1.2 §2.1.1) and tell the driver. */
void virtio_needs_reset(struct virtio_dev *dev);

/** virtio_save() - quiesced device into its snapshot section. */
void virtio_save(const struct virtio_dev *dev, struct snap_virtio *out);

/**
 * virtio_load() - state from a snapshot (hostile) into a fresh device of the same type: validated
 * like a driver's writes. Return: 0 or -EINVAL (logged).
 */
int __must_check virtio_load(struct virtio_dev *dev, const struct snap_virtio *in);

/**
 * virtio_resume() - after virtio_load() and before the vCPUs run: activate, process every ready
 * queue once as if kicked, re-arm the avail event, and raise the interrupt if any queue has used
 * buffers the driver may not have seen. Without this a clone whose snapshot fell between a kick and
 * its processing waits for ever. Return: 0 or -errno.
 */
int __must_check virtio_resume(struct virtio_dev *dev);

#endif
