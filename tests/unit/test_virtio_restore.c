// SPDX-License-Identifier: Apache-2.0
// Snapshots of a device between any two steps of a request; hostile state.
#include "tests/unit/test.h"

#include <errno.h>

#include "tests/unit/echo.h"

/* --- snapshots: the device is saved, destroyed, made anew from the saved bytes; RAM stays --- */

static void restore(void)
{
	struct snap_virtio state;

	virtio_save(drv.dev, &state);
	virtio_destroy(drv.dev);
	new_device();
	drv.interrupts = 0;
	CHECK_EQ(virtio_load(drv.dev, &state), 0);
	CHECK_EQ(virtio_resume(drv.dev), 0);
}

static void add_request(void)
{
	drv_desc(&drv, 0, 0, DRV_BUF_GPA, 16, VRING_DESC_F_WRITE, 0);
	drv_add(&drv, 0, 0);
}

static void test_restore_idle(void)
{
	setup();
	drv_start(&drv, 8);
	echo->secret = 7;
	add_request();
	drv_notify(&drv, 0);
	*drv_used_event(&drv, 0) = 1; /* the driver has seen it and sleeps */
	drv_write(&drv, VIRTIO_MMIO_INTERRUPT_ACK, 1);
	restore();
	CHECK_EQ(echo->secret, 7);
	CHECK_EQ(echo->activations, 1);
	CHECK_EQ(drv.interrupts, 0); /* an idle clone is not woken */
	CHECK_EQ(STATUS, 0xf);
	add_request();
	drv_notify(&drv, 0);
	CHECK_EQ(drv_used_idx(&drv, 0), 2);
	CHECK_EQ(drv.interrupts, 1);
}

/* Between the kick and its processing: the ioeventfd's count is lost with the old process. */
static void test_restore_after_kick(void)
{
	setup();
	drv_start(&drv, 8);
	add_request();
	restore();
	CHECK_EQ(drv_used_idx(&drv, 0), 1);
	CHECK_EQ(drv.interrupts, 1);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_INTERRUPT_STATUS), 1);
	CHECK_EQ(*drv_avail_event(&drv, 0), 1);
}

/*
 * Between push and signal; with the interrupt sent, but not seen by the guest; and acknowledged,
 * but with nothing taken from the ring yet.
 */
static void test_restore_before_signal(void)
{
	for (int state = 0; state < 3; state++) {
		setup();
		drv_start(&drv, 8);
		echo->mute = state == 0;
		add_request();
		drv_notify(&drv, 0);
		CHECK_EQ(drv.interrupts, state > 0);
		if (state == 2)
			drv_write(&drv, VIRTIO_MMIO_INTERRUPT_ACK, 1);
		CHECK_EQ(drv_used_idx(&drv, 0), 1);
		restore();
		CHECK(drv.interrupts >= 1);
		CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_INTERRUPT_STATUS), 1);
		CHECK_EQ(drv_used_idx(&drv, 0), 1); /* not served twice */
	}
}

/* avail_event in RAM is not what the device waits for: the next add would bring no kick. */
static void test_restore_stale_avail_event(void)
{
	setup();
	drv_start(&drv, 8);
	add_request();
	drv_notify(&drv, 0);
	*drv_avail_event(&drv, 0) = 0x1234;
	*drv_avail_event(&drv, 1) = 0x1234; /* a queue that the device does not pop from */
	drv.queues[1].avail[1] = 5;
	restore();
	CHECK_EQ(*drv_avail_event(&drv, 0), 1);
	CHECK_EQ(*drv_avail_event(&drv, 1), 0);
	CHECK_EQ(echo->kicks, 2);
}

static void test_restore_wrapped(void)
{
	setup();
	drv_start(&drv, 8);
	drv.dev->queues[0].next_avail = drv.dev->queues[0].next_used = 0xffff;
	drv.dev->queues[0].signalled_used = 0xffff;
	drv.queues[0].avail[1] = drv.queues[0].used[1] = 0xffff;
	*drv_used_event(&drv, 0) = 0xffff;
	add_request();
	add_request();
	CHECK_EQ(drv.queues[0].avail[1], 1);
	restore();
	CHECK_EQ(drv_used_idx(&drv, 0), 1);
	CHECK_EQ(*drv_avail_event(&drv, 0), 1);
	CHECK(drv.interrupts >= 1);
	*drv_used_event(&drv, 0) = 1;
	drv_write(&drv, VIRTIO_MMIO_INTERRUPT_ACK, 1);
	restore(); /* a second generation */
	CHECK_EQ(drv.interrupts, 0);
	add_request();
	drv_notify(&drv, 0);
	CHECK_EQ(drv_used_idx(&drv, 0), 2);
	CHECK_EQ(drv.interrupts, 1);
}

/* A driver half way through its start, and a device that waits for its reset. */
static void test_restore_other_states(void)
{
	setup();
	CHECK(drv_negotiate(&drv, ALL_FEATURES));
	drv_queue_setup(&drv, 0, 8);
	drv_write(&drv, VIRTIO_MMIO_QUEUE_SEL, 1);
	drv_write(&drv, VIRTIO_MMIO_QUEUE_NUM, 4);
	restore();
	CHECK_EQ(STATUS, 0xb);
	CHECK_EQ(echo->activations, 0);
	CHECK_EQ(drv.dev->queue_sel, 1);
	CHECK_EQ(drv.dev->queues[1].size, 4);
	CHECK(drv.dev->queues[0].event_idx);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 0xf);
	CHECK_EQ(echo->activations, 1);
	echo->queue_ret = -EIO;
	drv_notify(&drv, 0);
	restore();
	CHECK_EQ(STATUS, 0x4f);
	CHECK_EQ(echo->activations, 0);
	CHECK(drv.interrupts >= 1); /* the configuration interrupt was not acknowledged */
	/* Unaccepted features, FEATURES_OK refused. */
	CHECK(!drv_negotiate(&drv, ~0ull));
	restore();
	CHECK_EQ(STATUS, 3);
}

static int load_changed(const struct snap_virtio *state)
{
	int ret;

	virtio_destroy(drv.dev);
	new_device();
	ret = virtio_load(drv.dev, state);
	if (ret)
		CHECK_EQ(drv.dev->status + drv.dev->queues[0].ready, 0); /* left as new */
	return ret;
}

static void test_hostile_state(void)
{
	struct snap_virtio good, bad;

	setup();
	drv_start(&drv, 8);
	virtio_save(drv.dev, &good);
	CHECK_EQ(load_changed(&good), 0);
#define REFUSED(change)                                \
	do {                                           \
		bad = good;                            \
		change;                                \
		CHECK_EQ(load_changed(&bad), -EINVAL); \
	} while (0)
	REFUSED(bad.slot = 3);
	REFUSED(bad.id = 41);
	REFUSED(bad.status = 0x1f);
	REFUSED(bad.status = 0xffffffff);
	REFUSED(bad.status = 7);
	REFUSED(bad.status = 4);
	REFUSED(bad.status = 3); /* queues enabled before FEATURES_OK */
	REFUSED(bad.isr = 4);
	REFUSED(bad.driver_features |= 1ull << 28);
	REFUSED(bad.driver_features = 0);
	REFUSED(bad.queues[0].size = 7);
	REFUSED(bad.queues[0].size = 32);
	REFUSED(bad.queues[0].size = 0);
	REFUSED(bad.queues[0].ready = 2);
	REFUSED(bad.queues[0].reserved[2] = 1);
	REFUSED(bad.queues[0].desc_gpa = DRV_RAM_BYTES);
	REFUSED(bad.queues[0].avail_gpa = ~0ull - 1);
	REFUSED(bad.queues[0].used_gpa |= 1);
	REFUSED(bad.queues[2].size = 8);
	REFUSED(bad.priv[0] = 0xee);
#undef REFUSED
	/* Indices may be anything: they harm the guest alone. */
	bad = good;
	bad.queues[0].next_avail = 0x8000;
	CHECK_EQ(load_changed(&bad), 0);
	CHECK_EQ(virtio_resume(drv.dev), 0);
	CHECK_EQ(STATUS, 0x4f);
}

TEST_MAIN({"restore_idle", test_restore_idle}, {"restore_after_kick", test_restore_after_kick},
	  {"restore_before_signal", test_restore_before_signal},
	  {"restore_stale_avail_event", test_restore_stale_avail_event},
	  {"restore_wrapped", test_restore_wrapped},
	  {"restore_other_states", test_restore_other_states},
	  {"hostile_state", test_hostile_state})
