// SPDX-License-Identifier: Apache-2.0
// What all virtio devices share: the status state machine, kicks and interrupts, snapshot state.
//
// Theory of operation
//
// Status (virtio 1.2 §2.1, §3.1). Bits are only ever added by the driver, in the order ACKNOWLEDGE,
// DRIVER, FEATURES_OK, DRIVER_OK; a step out of order, or a write that drops a bit, is ignored and
// logged, so the device's state depends on legal steps only. FEATURES_OK stays clear when the
// driver chose a feature that was not offered or left out VERSION_1. DRIVER_OK activates the
// device. Writing 0 resets it, from any state.
//
// A device that the guest broke (a malformed ring, a queue outside RAM) gets DEVICE_NEEDS_RESET
// (§2.1.1): virtio_kick() does nothing then, devices drop completions, until the driver resets it.
// No guest action can end the process.
//
// Snapshot. The vCPUs are stopped and the device is quiesced, so all that has happened is in guest
// RAM plus the few indices of struct snap_virtq. Three things can be under way, and virtio_resume()
// settles each without needing anything from the guest:
//  - a kick was sent but not served (the ioeventfd's count is not part of a snapshot): every queue
//  is
//    served once as if kicked;
//  - a used buffer was published but its interrupt was not sent, or was sent and not yet seen: the
//    interrupt is raised again whenever ISR is set or used_event says that the driver may be
//    waiting. One interrupt too many is harmless, one too few hangs the clone;
//  - avail_event in RAM is stale: it is set to next_avail, so that the next add kicks.
#include "vmm/virtio/virtio.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <string.h>

#include "vmm/util/log.h"

#define ISR_RING   1u
#define ISR_CONFIG 2u

/* Requests that a synchronous device serves before other events have their turn. */
#define SERVE_MAX_CHAINS 64

#define STATUS_DRIVER_BITS                                                                    \
	(VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK | \
	 VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_FAILED)

#define STATUS_KNOWN_BITS (STATUS_DRIVER_BITS | VIRTIO_CONFIG_S_NEEDS_RESET)

_Static_assert(VIRTIO_QUEUES_MAX == SNAP_QUEUES_MAX, "snapshot ABI");

void virtio_init(struct virtio_dev *dev, const struct virtio_ops *ops, struct virtio_host *host,
		 unsigned int slot, const void *config, u32 config_len_bytes)
{
	BUG_ON(ops->nqueues > VIRTIO_QUEUES_MAX);
	BUG_ON(ops->queue_max > VIRTQ_SIZE_MAX || (ops->queue_max & (ops->queue_max - 1)));
	*dev = (struct virtio_dev){
		.ops = ops,
		.host = host,
		.slot = slot,
		.config = config,
		.config_len_bytes = config_len_bytes,
	};
	for (unsigned int q = 0; q < ops->nqueues; q++) {
		dev->queues[q].gmem = host->gmem;
		dev->queues[q].size_max = ops->queue_max;
	}
}

void virtio_destroy(struct virtio_dev *dev)
{
	if (!dev)
		return;
	virtio_reset(dev);
	dev->ops->destroy(dev);
}

u64 virtio_features(const struct virtio_dev *dev)
{
	return dev->ops->features | 1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_RING_F_EVENT_IDX;
}

void virtio_reset(struct virtio_dev *dev)
{
	/* First, so that requests that end during ops->reset() do not touch the rings any more. */
	dev->active = false;
	dev->ops->reset(dev);
	dev->status = 0;
	dev->isr = 0;
	dev->features_sel = dev->driver_features_sel = dev->queue_sel = 0;
	dev->driver_features = 0;
	for (unsigned int q = 0; q < VIRTIO_QUEUES_MAX; q++) {
		dev->queues[q] = (struct virtq){
			.gmem = dev->queues[q].gmem,
			.size_max = dev->queues[q].size_max,
		};
	}
}

void virtio_needs_reset(struct virtio_dev *dev)
{
	dev->status |= VIRTIO_CONFIG_S_NEEDS_RESET;
	if (!(dev->status & VIRTIO_CONFIG_S_DRIVER_OK))
		return;
	dev->isr |= ISR_CONFIG;
	dev->host->interrupt(dev->host, dev->slot);
}

static bool virtio_runs(const struct virtio_dev *dev)
{
	return dev->active && !(dev->status & VIRTIO_CONFIG_S_NEEDS_RESET);
}

static int virtio_activate(struct virtio_dev *dev)
{
	int ret = dev->ops->activate ? dev->ops->activate(dev) : 0;

	if (ret < 0) {
		log_guest("virtio-%s: activate: %s", dev->ops->name, strerror(-ret));
		return ret;
	}
	dev->active = true;
	return 0;
}

static void accept_features(struct virtio_dev *dev)
{
	u64 required = 1ull << VIRTIO_F_VERSION_1;

	if ((dev->driver_features & ~virtio_features(dev)) ||
	    (dev->driver_features & required) != required) {
		log_guest("virtio-%s: features 0x%llx refused", dev->ops->name,
			  (unsigned long long)dev->driver_features);
		return;
	}
	dev->status |= VIRTIO_CONFIG_S_FEATURES_OK;
	for (unsigned int q = 0; q < dev->ops->nqueues; q++)
		dev->queues[q].event_idx = virtio_has(dev, VIRTIO_RING_F_EVENT_IDX);
}

/* One bit of a status write, when the steps before it have been made. */
static void add_status_bit(struct virtio_dev *dev, u32 bit, u32 required)
{
	if ((dev->status & required) != required) {
		log_guest("virtio-%s: status bit 0x%x out of order", dev->ops->name, bit);
		return;
	}
	if (bit == VIRTIO_CONFIG_S_FEATURES_OK) {
		accept_features(dev);
		return;
	}
	dev->status |= bit;
	if (bit != VIRTIO_CONFIG_S_DRIVER_OK)
		return;
	/* A device that was broken before tells so now that the driver can be interrupted. */
	if ((dev->status & VIRTIO_CONFIG_S_NEEDS_RESET) || virtio_activate(dev))
		virtio_needs_reset(dev);
}

void virtio_set_status(struct virtio_dev *dev, u32 status)
{
	static const u32 steps[] = {
		VIRTIO_CONFIG_S_ACKNOWLEDGE,
		VIRTIO_CONFIG_S_DRIVER,
		VIRTIO_CONFIG_S_FEATURES_OK,
		VIRTIO_CONFIG_S_DRIVER_OK,
	};
	u32 required = 0;
	u32 added;

	if (status == 0) {
		virtio_reset(dev);
		return;
	}
	if (dev->status & STATUS_DRIVER_BITS & ~status) {
		log_guest("virtio-%s: status 0x%x drops bits of 0x%x", dev->ops->name, status,
			  dev->status);
		return;
	}
	added = status & ~dev->status;
	dev->status |= added & VIRTIO_CONFIG_S_FAILED;
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
		if (added & steps[i])
			add_status_bit(dev, steps[i], required);
		required |= steps[i];
	}
}

bool virtio_queue_configurable(const struct virtio_dev *dev, unsigned int q)
{
	return q < dev->ops->nqueues && !dev->queues[q].ready &&
	       (dev->status & VIRTIO_CONFIG_S_FEATURES_OK) &&
	       !(dev->status & VIRTIO_CONFIG_S_DRIVER_OK);
}

/* §4.2.2.1: a driver may stop a single queue; requests under way end first. */
static void stop_queue(struct virtio_dev *dev, unsigned int q)
{
	int ret = 0;

	if (!dev->queues[q].ready)
		return;
	if (dev->active && dev->ops->quiesce)
		ret = dev->ops->quiesce(dev);
	dev->queues[q].ready = false;
	if (ret < 0)
		virtio_needs_reset(dev);
}

void virtio_set_queue_ready(struct virtio_dev *dev, unsigned int q, bool ready)
{
	struct virtq *vq;

	if (q >= dev->ops->nqueues)
		return;
	if (!ready) {
		stop_queue(dev, q);
		return;
	}
	if (!virtio_queue_configurable(dev, q)) {
		log_guest("virtio-%s: queue %u enabled out of order", dev->ops->name, q);
		return;
	}
	vq = &dev->queues[q];
	if (virtq_validate(vq)) {
		log_guest("virtio-%s: queue %u: bad size or place", dev->ops->name, q);
		virtio_needs_reset(dev);
		return;
	}
	vq->next_avail = vq->next_used = vq->signalled_used = 0;
	vq->ready = true;
}

void virtio_kick(struct virtio_dev *dev, unsigned int q)
{
	int ret;

	do {
		if (!virtio_runs(dev) || q >= dev->ops->nqueues || !dev->queues[q].ready)
			return;
		ret = dev->ops->queue(dev, q);
	} while (ret > 0 && !dev->host->defer);
	if (ret > 0) {
		dev->host->defer(dev->host, dev->slot, q);
	} else if (ret < 0) {
		log_guest("virtio-%s: queue %u: %s, device needs reset", dev->ops->name, q,
			  strerror(-ret));
		virtio_needs_reset(dev);
	}
}

int virtio_serve(struct virtio_dev *dev, unsigned int q,
		 u32 (*serve)(struct virtio_dev *dev, const struct virtq_chain *chain))
{
	struct virtq *vq = &dev->queues[q];
	struct virtq_chain chain;
	unsigned int count;
	int ret = 0;

	for (count = 0; count < SERVE_MAX_CHAINS; count++) {
		ret = virtq_pop(vq, &chain);
		if (ret <= 0)
			break;
		ret = virtq_push(vq, chain.head, serve(dev, &chain));
		if (ret)
			break;
	}
	/* What was done before an error was found is the driver's all the same. */
	virtio_signal(dev, q);
	if (ret < 0)
		return ret;
	return count == SERVE_MAX_CHAINS;
}

void virtio_signal(struct virtio_dev *dev, unsigned int q)
{
	if (!virtio_runs(dev) || !virtq_should_signal(&dev->queues[q]))
		return;
	dev->isr |= ISR_RING;
	dev->host->interrupt(dev->host, dev->slot);
}

/* --- snapshot --- */

void virtio_save(const struct virtio_dev *dev, struct snap_virtio *out)
{
	*out = (struct snap_virtio){
		.slot = dev->slot,
		.id = dev->ops->id,
		.status = dev->status,
		.isr = dev->isr,
		.features_sel = dev->features_sel,
		.driver_features_sel = dev->driver_features_sel,
		.queue_sel = dev->queue_sel,
		.config_generation = dev->config_generation,
		.driver_features = dev->driver_features,
	};
	for (unsigned int q = 0; q < dev->ops->nqueues; q++) {
		const struct virtq *vq = &dev->queues[q];

		out->queues[q] = (struct snap_virtq){
			.size = vq->size,
			.ready = vq->ready,
			.next_avail = vq->next_avail,
			.next_used = vq->next_used,
			.signalled_used = vq->signalled_used,
			.desc_gpa = vq->desc_gpa,
			.avail_gpa = vq->avail_gpa,
			.used_gpa = vq->used_gpa,
		};
	}
	if (dev->ops->save)
		dev->ops->save(dev, out->priv);
}

static bool all_zero(const void *buf, size_t len_bytes)
{
	const u8 *bytes = buf;

	for (size_t i = 0; i < len_bytes; i++) {
		if (bytes[i])
			return false;
	}
	return true;
}

/* The status must be one that virtio_set_status() can lead to. */
static bool status_ok(const struct virtio_dev *dev, const struct snap_virtio *in)
{
	u32 steps = in->status & (VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER |
				  VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK);

	if (in->status & ~(u32)STATUS_KNOWN_BITS)
		return false;
	if (steps != 0 && steps != 0x1 && steps != 0x3 && steps != 0xb && steps != 0xf)
		return false;
	if (!(in->status & VIRTIO_CONFIG_S_FEATURES_OK))
		return true;
	return !(in->driver_features & ~virtio_features(dev)) &&
	       (in->driver_features >> VIRTIO_F_VERSION_1 & 1);
}

static int load_queue(struct virtio_dev *dev, unsigned int q, const struct snap_virtio *in)
{
	const struct snap_virtq *from = &in->queues[q];
	struct virtq *vq = &dev->queues[q];

	if (q >= dev->ops->nqueues)
		return all_zero(from, sizeof(*from)) ? 0 : -EINVAL;
	if (from->ready > 1 || !all_zero(from->reserved, sizeof(from->reserved)))
		return -EINVAL;
	if (from->size > vq->size_max || (from->size & (from->size - 1)))
		return -EINVAL;
	if (from->ready && !(in->status & VIRTIO_CONFIG_S_FEATURES_OK))
		return -EINVAL;
	vq->size = from->size;
	vq->event_idx = (in->status & VIRTIO_CONFIG_S_FEATURES_OK) &&
			(in->driver_features >> VIRTIO_RING_F_EVENT_IDX & 1);
	vq->desc_gpa = from->desc_gpa;
	vq->avail_gpa = from->avail_gpa;
	vq->used_gpa = from->used_gpa;
	/* Any 16-bit value is a legal index; a wrong one hurts the guest alone. */
	vq->next_avail = from->next_avail;
	vq->next_used = from->next_used;
	vq->signalled_used = from->signalled_used;
	if (from->ready && virtq_validate(vq))
		return -EINVAL;
	vq->ready = from->ready;
	return 0;
}

static int load_checked(struct virtio_dev *dev, const struct snap_virtio *in)
{
	int ret;

	if (in->slot != dev->slot || in->id != dev->ops->id)
		return -EINVAL;
	if (in->isr & ~(ISR_RING | ISR_CONFIG) || !status_ok(dev, in))
		return -EINVAL;
	for (unsigned int q = 0; q < VIRTIO_QUEUES_MAX; q++) {
		ret = load_queue(dev, q, in);
		if (ret)
			return ret;
	}
	if (dev->ops->load)
		return dev->ops->load(dev, in->priv);
	return all_zero(in->priv, sizeof(in->priv)) ? 0 : -EINVAL;
}

int virtio_load(struct virtio_dev *dev, const struct snap_virtio *in)
{
	int ret;

	BUG_ON(dev->status || dev->active);
	ret = load_checked(dev, in);
	if (ret) {
		log_err("virtio-%s: snapshot state refused", dev->ops->name);
		virtio_reset(dev);
		return ret;
	}
	dev->status = in->status;
	dev->isr = in->isr;
	dev->features_sel = in->features_sel;
	dev->driver_features_sel = in->driver_features_sel;
	dev->queue_sel = in->queue_sel;
	dev->config_generation = in->config_generation;
	dev->driver_features = in->driver_features;
	return 0;
}

/* Serve, re-arm and look for unseen work on one queue. Return: true if the driver may be waiting.
 */
static bool resume_queue(struct virtio_dev *dev, unsigned int q)
{
	struct virtq *vq = &dev->queues[q];

	if (!vq->ready)
		return false;
	virtio_kick(dev, q);
	/* Devices that leave entries in the queue until they have data did not re-arm it above. */
	if (virtio_runs(dev) && virtq_rearm(vq))
		virtio_needs_reset(dev);
	return virtq_used_unseen(vq);
}

int virtio_resume(struct virtio_dev *dev)
{
	u32 pending_isr = dev->isr;
	bool unseen = false;
	bool raised;
	int ret;

	dev->isr = 0;
	if ((dev->status & VIRTIO_CONFIG_S_DRIVER_OK) &&
	    !(dev->status & VIRTIO_CONFIG_S_NEEDS_RESET)) {
		ret = virtio_activate(dev);
		if (ret)
			return ret;
		for (unsigned int q = 0; q < dev->ops->nqueues; q++)
			unseen |= resume_queue(dev, q);
	}
	/* One interrupt is enough, and serving the queues may have raised it. */
	raised = dev->isr;
	dev->isr |= pending_isr | (unseen ? ISR_RING : 0);
	if (dev->isr && !raised)
		dev->host->interrupt(dev->host, dev->slot);
	return 0;
}
