// SPDX-License-Identifier: Apache-2.0
// virtio-rng (virtio 1.2 §5.4): host entropy, at most 4 KiB a request, so that no request is long.
#include <errno.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "vmm/util/log.h"
#include "vmm/virtio/devices.h"

#define RNG_QUEUE_MAX	  8
#define RNG_REQUEST_BYTES 4096

struct rng {
	struct virtio_dev dev;
};

/* Return: bytes of @buf filled; fewer than asked only if the host's generator fails. */
static size_t fill_random(u8 *buf, size_t len_bytes)
{
	size_t done = 0;

	while (done < len_bytes) {
		ssize_t n = getrandom(buf + done, len_bytes - done, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			log_guest("virtio-rng: getrandom: %s", strerror(errno));
			break;
		}
		done += (size_t)n;
	}
	return done;
}

static u32 rng_serve(struct virtio_dev *dev, const struct virtq_chain *chain)
{
	u8 buf[RNG_REQUEST_BYTES];
	size_t n = MIN((size_t)chain->write_bytes, sizeof(buf));

	(void)dev;
	n = fill_random(buf, n);
	n = virtq_chain_write(chain, 0, buf, n);
	explicit_bzero(buf,
		       sizeof(buf)); /* what a guest uses as key stays nowhere in this process */
	return (u32)n;
}

static int rng_queue(struct virtio_dev *dev, unsigned int q)
{
	return virtio_serve(dev, q, rng_serve);
}

static void rng_reset(struct virtio_dev *dev)
{
	(void)dev; /* nothing outlives a request */
}

static void rng_destroy(struct virtio_dev *dev)
{
	free(container_of(dev, struct rng, dev));
}

static const struct virtio_ops rng_ops = {
	.name = "rng",
	.id = VIRTIO_ID_RNG,
	.nqueues = 1,
	.queue_max = RNG_QUEUE_MAX,
	.reset = rng_reset,
	.queue = rng_queue,
	.destroy = rng_destroy,
};

int rng_create(struct virtio_host *host, unsigned int slot, struct virtio_dev **out)
{
	struct rng *rng = calloc(1, sizeof(*rng));

	if (!rng) {
		log_err("virtio-rng: out of memory");
		return -ENOMEM;
	}
	virtio_init(&rng->dev, &rng_ops, host, slot, NULL, 0);
	*out = &rng->dev;
	return 0;
}
