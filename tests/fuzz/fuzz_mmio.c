// SPDX-License-Identifier: Apache-2.0
// Register sequences on each device, with RAM written in between and snapshots taken anywhere; see
// seeds_virtio.py for the format.
//
// Oracles: the sanitizers; the state machine's invariants after every step; a snapshot of any state
// loads again and gives the same bytes.
#include <fcntl.h>
#include <unistd.h>

#include "tests/unit/test.h"

#include "tests/fuzz/input.h"
#include "tests/unit/driver.h"
#include "vmm/util/log.h"

#define STEPS_MAX  300
#define DISK_BYTES (64 * KIB)

struct target {
	struct drv drv;
	unsigned int kind;
	int disk_fd;
};

static void create(struct target *t)
{
	struct virtio_host *host = &t->drv.host;
	struct virtio_dev **out = &t->drv.dev;

	switch (t->kind) {
	case 0:
		CHECK_EQ(console_create(host, 0, -1, out), 0);
		break;
	case 1:
		CHECK_EQ(rng_create(host, 1, out), 0);
		break;
	case 2:
		CHECK_EQ(pmem_create(host, 2, 4 * GIB, 2 * MIB, out), 0);
		break;
	default:
		CHECK_EQ(blk_create(host, 3, -1, t->disk_fd, DISK_BYTES, out), 0);
		break;
	}
}

static void check_state(const struct virtio_dev *dev)
{
	u32 status = dev->status & 0xf;

	CHECK(status == 0 || status == 1 || status == 3 || status == 0xb || status == 0xf);
	CHECK(!(dev->isr & ~3u));
	if (status & VIRTIO_CONFIG_S_FEATURES_OK)
		CHECK(!(dev->driver_features & ~virtio_features(dev)));
	CHECK(!dev->active || status == 0xf);
	for (unsigned int q = 0; q < VIRTIO_QUEUES_MAX; q++) {
		const struct virtq *vq = &dev->queues[q];

		CHECK(vq->size <= vq->size_max);
		CHECK(!vq->ready || (status & VIRTIO_CONFIG_S_FEATURES_OK));
		CHECK(!vq->ready || virtq_validate(vq) == 0);
	}
}

static void step_access(struct target *t, struct input *in, bool is_write)
{
	static const u32 widths[] = {4, 4, 4, 4, 4, 1, 2, 8};
	u32 len = widths[input_take(in, 1) % 8];
	u64 offset = input_take(in, 2) % 0x1000;
	u8 data[8];

	if (len > 0x1000 - offset)
		return; /* the bus does not pass on what straddles the end */
	for (u32 i = 0; i < len; i++)
		data[i] = is_write ? (u8)input_take(in, 1) : 0xaa;
	virtio_mmio_access(t->drv.dev, offset, data, len, is_write);
}

/* What a real driver does, so that deeper states are easy to reach. */
static void step_start(struct target *t, struct input *in)
{
	u64 features = virtio_features(t->drv.dev);

	if (input_take(in, 1) & 1)
		features &= ~(1ull << VIRTIO_RING_F_EVENT_IDX);
	CHECK(drv_negotiate(&t->drv, features));
	for (unsigned int q = 0; q < t->drv.dev->ops->nqueues; q++)
		drv_queue_setup(&t->drv, q, 8);
	drv_write(&t->drv, VIRTIO_MMIO_STATUS, 0xf);
	CHECK_EQ(drv_read(&t->drv, VIRTIO_MMIO_STATUS), 0xf);
}

static void step_restore(struct target *t)
{
	struct snap_virtio state, again;
	struct virtio_dev *dev = t->drv.dev;

	if (dev->active && dev->ops->quiesce)
		CHECK_EQ(dev->ops->quiesce(dev), 0);
	virtio_save(dev, &state);
	virtio_destroy(dev);
	create(t);
	CHECK_EQ(virtio_load(t->drv.dev, &state), 0);
	virtio_save(t->drv.dev, &again);
	CHECK(!memcmp(&state, &again, sizeof(state)));
	CHECK_EQ(virtio_resume(t->drv.dev), 0);
}

/* A state section straight from the input. */
static void step_hostile_load(struct target *t, struct input *in)
{
	struct snap_virtio state;
	u8 *bytes = (u8 *)&state;

	virtio_save(t->drv.dev, &state);
	for (u32 n = input_take(in, 1) % 8; n; n--) {
		u32 at = input_take(in, 2) % sizeof(state);

		bytes[at] = (u8)input_take(in, 1);
	}
	virtio_destroy(t->drv.dev);
	create(t);
	if (virtio_load(t->drv.dev, &state) == 0)
		CHECK_EQ(virtio_resume(t->drv.dev), 0);
}

static void step(struct target *t, struct input *in)
{
	u32 at;

	switch (input_take(in, 1) % 8) {
	case 0:
	case 1:
		step_access(t, in, true);
		break;
	case 2:
		step_access(t, in, false);
		break;
	case 3:
		at = input_take(in, 2);
		t->drv.ram[at] = (u8)input_take(in, 1);
		break;
	case 4:
		step_start(t, in);
		break;
	case 5:
		drv_notify(&t->drv, input_take(in, 1) % 4);
		break;
	case 6:
		step_restore(t);
		break;
	default:
		step_hostile_load(t, in);
		break;
	}
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);
int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct input in = {data, size};
	struct target t = {.disk_fd = -1};

	log_set_level(LOG_ERROR);
	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	drv_init(&t.drv);
	t.drv.host.defer = NULL; /* bounded by the input: nothing adds while the device works */
	t.kind = input_take(&in, 1) % 4;
	if (t.kind == 3) {
		t.disk_fd = memfd_create("disk", MFD_CLOEXEC);
		CHECK(t.disk_fd >= 0);
	}
	create(&t);
	for (int i = 0; i < STEPS_MAX && in.left; i++) {
		step(&t, &in);
		check_state(t.drv.dev);
	}
	drv_destroy(&t.drv);
	if (t.disk_fd >= 0)
		close(t.disk_fd);
	return 0;
}
