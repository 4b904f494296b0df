// SPDX-License-Identifier: Apache-2.0
// virtio-pmem (virtio 1.2 §5.19): tells the guest where the read-only root image is mapped.
//
// The mapping itself is a KVM memory slot of the machine; this device only names it. The image is
// read-only, so a flush has nothing to do and always succeeds.
#include <errno.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_pmem.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/util/log.h"
#include "vmm/virtio/devices.h"

#define PMEM_QUEUE_MAX	   16
#define PMEM_FLUSH_OK	   0u
#define PMEM_FLUSH_REFUSED 0xffffffffu /* §5.19.6: -1 */

struct pmem {
	struct virtio_dev dev;
	struct virtio_pmem_config config;
};

static u32 pmem_serve(struct virtio_dev *dev, const struct virtq_chain *chain)
{
	struct virtio_pmem_req req;
	struct virtio_pmem_resp resp = {.ret = PMEM_FLUSH_REFUSED};

	(void)dev;
	if (virtq_chain_read(chain, 0, &req, sizeof(req)) == sizeof(req) &&
	    req.type == VIRTIO_PMEM_REQ_TYPE_FLUSH)
		resp.ret = PMEM_FLUSH_OK;
	else
		log_guest("virtio-pmem: malformed request");
	return (u32)virtq_chain_write(chain, 0, &resp, sizeof(resp));
}

static int pmem_queue(struct virtio_dev *dev, unsigned int q)
{
	return virtio_serve(dev, q, pmem_serve);
}

static void pmem_reset(struct virtio_dev *dev)
{
	(void)dev; /* nothing outlives a request */
}

static void pmem_destroy(struct virtio_dev *dev)
{
	free(container_of(dev, struct pmem, dev));
}

/* Where the guest mapped the image: another place or size after a restore would be another disk. */
static void pmem_save(const struct virtio_dev *dev, u8 priv[VIRTIO_PRIV_BYTES])
{
	const struct pmem *pmem = container_of(dev, struct pmem, dev);

	memcpy(priv, &pmem->config, sizeof(pmem->config));
}

static int pmem_load(struct virtio_dev *dev, const u8 priv[VIRTIO_PRIV_BYTES])
{
	const struct pmem *pmem = container_of(dev, struct pmem, dev);
	u8 expected[VIRTIO_PRIV_BYTES] = {0};

	memcpy(expected, &pmem->config, sizeof(pmem->config));
	return memcmp(priv, expected, sizeof(expected)) ? -EINVAL : 0;
}

static const struct virtio_ops pmem_ops = {
	.name = "pmem",
	.id = VIRTIO_ID_PMEM,
	.nqueues = 1,
	.queue_max = PMEM_QUEUE_MAX,
	.reset = pmem_reset,
	.queue = pmem_queue,
	.save = pmem_save,
	.load = pmem_load,
	.destroy = pmem_destroy,
};

_Static_assert(sizeof(struct virtio_pmem_config) <= VIRTIO_PRIV_BYTES, "saved whole");

int pmem_create(struct virtio_host *host, unsigned int slot, u64 gpa, u64 len_bytes,
		struct virtio_dev **out)
{
	struct pmem *pmem = calloc(1, sizeof(*pmem));

	if (!pmem) {
		log_err("virtio-pmem: out of memory");
		return -ENOMEM;
	}
	pmem->config.start = gpa;
	pmem->config.size = len_bytes;
	virtio_init(&pmem->dev, &pmem_ops, host, slot, &pmem->config, sizeof(pmem->config));
	*out = &pmem->dev;
	return 0;
}
