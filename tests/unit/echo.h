/* SPDX-License-Identifier: Apache-2.0 */
/* A virtio device for tests of what all devices share: it answers, and misbehaves when told to. */
#ifndef THAW_TESTS_UNIT_ECHO_H
#define THAW_TESTS_UNIT_ECHO_H

#include "tests/unit/driver.h"

/* A device that answers each chain with 'E' bytes; it can be told to misbehave. */
struct echo {
	struct virtio_dev dev;
	int activate_ret;
	int queue_ret; /* != 0: returned instead of serving */
	unsigned int activations, resets, quiesces, kicks;
	bool mute; /* pop and push, but no signal: the moment between the two */
	u8 secret;
};

static struct drv drv;
static struct echo *echo;
static const u8 config[6] = {1, 2, 3, 4, 5, 6};

static struct echo *to_echo(struct virtio_dev *dev)
{
	return container_of(dev, struct echo, dev);
}

static int echo_activate(struct virtio_dev *dev)
{
	to_echo(dev)->activations++;
	return to_echo(dev)->activate_ret;
}

static void echo_reset(struct virtio_dev *dev)
{
	CHECK(!dev->active);
	to_echo(dev)->resets++;
}

static u32 echo_serve(struct virtio_dev *dev, const struct virtq_chain *chain)
{
	(void)dev;
	return (u32)virtq_chain_write(chain, 0, "EEEE", 4);
}

static int echo_queue(struct virtio_dev *dev, unsigned int q)
{
	struct virtq_chain chain;

	to_echo(dev)->kicks++;
	if (q == 1)
		return 0; /* like a receive queue: buffers wait for data */
	if (to_echo(dev)->queue_ret)
		return to_echo(dev)->queue_ret;
	if (!to_echo(dev)->mute)
		return virtio_serve(dev, q, echo_serve);
	while (virtq_pop(&dev->queues[q], &chain) > 0)
		CHECK_EQ(virtq_push(&dev->queues[q], chain.head, echo_serve(dev, &chain)), 0);
	return 0;
}

static int echo_quiesce(struct virtio_dev *dev)
{
	to_echo(dev)->quiesces++;
	return 0;
}

static void echo_save(const struct virtio_dev *dev, u8 priv[VIRTIO_PRIV_BYTES])
{
	priv[0] = container_of(dev, const struct echo, dev)->secret;
}

static int echo_load(struct virtio_dev *dev, const u8 priv[VIRTIO_PRIV_BYTES])
{
	if (priv[0] == 0xee)
		return -EINVAL;
	to_echo(dev)->secret = priv[0];
	return 0;
}

static void echo_destroy(struct virtio_dev *dev)
{
	free(to_echo(dev));
}

static const struct virtio_ops echo_ops = {
	.name = "echo",
	.id = 42,
	.nqueues = 2,
	.queue_max = 16,
	.features = 1u << 3,
	.activate = echo_activate,
	.reset = echo_reset,
	.queue = echo_queue,
	.quiesce = echo_quiesce,
	.save = echo_save,
	.load = echo_load,
	.destroy = echo_destroy,
};

static void new_device(void)
{
	echo = calloc(1, sizeof(*echo));
	CHECK(echo);
	virtio_init(&echo->dev, &echo_ops, &drv.host, 2, config, sizeof(config));
	drv.dev = &echo->dev;
}

static void setup(void)
{
	if (drv.ram)
		drv_destroy(&drv);
	drv_init(&drv);
	new_device();
}

#define ALL_FEATURES (virtio_features(drv.dev))
#define STATUS	     drv_read(&drv, VIRTIO_MMIO_STATUS)

#endif
