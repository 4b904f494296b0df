// SPDX-License-Identifier: Apache-2.0
// The transport: registers, the status state machine, and what breaks a device.
#include "tests/unit/test.h"

#include <errno.h>

#include "tests/unit/echo.h"

static void test_identity(void)
{
	setup();
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_MAGIC_VALUE), 0x74726976);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_VERSION), 2);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_DEVICE_ID), 42);
	drv_write(&drv, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 0);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_DEVICE_FEATURES), 1u << 3 | 1u << 29);
	drv_write(&drv, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_DEVICE_FEATURES), 1);
	drv_write(&drv, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 2);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_DEVICE_FEATURES), 0);
	for (u64 reg = VIRTIO_MMIO_SHM_LEN_LOW; reg <= VIRTIO_MMIO_SHM_BASE_HIGH; reg += 4)
		CHECK_EQ(drv_read(&drv, reg), 0xffffffff);
	drv_write(&drv, VIRTIO_MMIO_QUEUE_SEL, 1);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_QUEUE_NUM_MAX), 16);
	drv_write(&drv, VIRTIO_MMIO_QUEUE_SEL, 2);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
	CHECK_EQ(drv_read(&drv, 0xc0), 0); /* QueueReset: not offered */
	CHECK_EQ(drv_read(&drv, 0x8), 42);
	drv_write(&drv, VIRTIO_MMIO_DEVICE_ID, 7);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_DEVICE_ID), 42);
}

static void test_widths(void)
{
	static const u32 widths[] = {1, 2, 8};
	u8 buf[8];

	setup();
	for (size_t i = 0; i < ARRAY_SIZE(widths); i++) {
		memset(buf, 0xaa, sizeof(buf));
		virtio_mmio_access(drv.dev, VIRTIO_MMIO_MAGIC_VALUE, buf, widths[i], false);
		CHECK_EQ(buf[0], 0);
		CHECK_EQ(buf[widths[i] - 1], 0);
		CHECK_EQ(widths[i] < 8 ? buf[widths[i]] : 0xaa, 0xaa);
		memset(buf, 1, sizeof(buf));
		virtio_mmio_access(drv.dev, VIRTIO_MMIO_STATUS, buf, widths[i], true);
		CHECK_EQ(STATUS, 0);
	}
	memset(buf, 0xaa, sizeof(buf));
	virtio_mmio_access(drv.dev, VIRTIO_MMIO_VERSION + 2, buf, 4, false);
	CHECK_EQ(buf[0], 0); /* not aligned */
}

static void test_config(void)
{
	u8 buf[8];

	setup();
	virtio_mmio_access(drv.dev, 0x100, buf, 8, false);
	CHECK(!memcmp(buf, "\1\2\3\4\5\6\0\0", 8));
	virtio_mmio_access(drv.dev, 0x103, buf, 1, false);
	CHECK_EQ(buf[0], 4);
	virtio_mmio_access(drv.dev, 0x105, buf, 2, false);
	CHECK(!memcmp(buf, "\6\0", 2));
	memset(buf, 0xff, 8);
	virtio_mmio_access(drv.dev, 0x106, buf, 4, false);
	CHECK(!memcmp(buf, "\0\0\0\0\xff", 5));
	virtio_mmio_access(drv.dev, 0xffc, buf, 4, false);
	CHECK(!memcmp(buf, "\0\0\0\0", 4));
	virtio_mmio_access(drv.dev, 0x100, buf, 8, true); /* read-only */
	CHECK_EQ(config[0], 1);
}

static void test_status_order(void)
{
	setup();
	drv_write(&drv, VIRTIO_MMIO_STATUS, 2); /* DRIVER before ACKNOWLEDGE */
	CHECK_EQ(STATUS, 0);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 1);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 1 | 8);
	CHECK_EQ(STATUS, 1);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 3);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 3 | 4); /* DRIVER_OK before FEATURES_OK */
	CHECK_EQ(STATUS, 3);
	CHECK_EQ(echo->activations, 0);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 2); /* drops a bit */
	CHECK_EQ(STATUS, 3);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 0x30 | 3); /* bits that do not exist */
	CHECK_EQ(STATUS, 3);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 0x80 | 3); /* FAILED */
	CHECK_EQ(STATUS, 0x83);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 0);
	CHECK_EQ(STATUS, 0);
	CHECK_EQ(echo->resets, 1);
}

static void test_features(void)
{
	setup();
	CHECK(drv_negotiate(&drv, ALL_FEATURES));
	CHECK(drv.dev->queues[0].event_idx);
	CHECK(drv_negotiate(&drv, 1ull << 32));
	CHECK(!drv.dev->queues[0].event_idx);
	CHECK(!drv_negotiate(&drv, ALL_FEATURES & ~(1ull << 32))); /* no VERSION_1 */
	CHECK(!drv_negotiate(&drv, ALL_FEATURES | 1ull << 28));	   /* INDIRECT_DESC: not offered */
	CHECK(!drv_negotiate(&drv, ALL_FEATURES | 1ull << 34));	   /* RING_PACKED: not offered */
	CHECK(!drv_negotiate(&drv, ALL_FEATURES | 1ull << 63));
	/* A bit beyond the 64th. */
	drv_write(&drv, VIRTIO_MMIO_STATUS, 0);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 3);
	drv_write(&drv, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
	drv_write(&drv, VIRTIO_MMIO_DRIVER_FEATURES, 1);
	drv_write(&drv, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 2);
	drv_write(&drv, VIRTIO_MMIO_DRIVER_FEATURES, 1);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 0xb);
	CHECK_EQ(STATUS, 3);
	/* Final after FEATURES_OK. */
	CHECK(drv_negotiate(&drv, 1ull << 32));
	drv_write(&drv, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
	drv_write(&drv, VIRTIO_MMIO_DRIVER_FEATURES, 1u << 29);
	CHECK_EQ(drv.dev->driver_features, 1ull << 32);
}

static void test_queue_registers(void)
{
	setup();
	drv_queue_setup(&drv, 0, 8); /* before FEATURES_OK */
	CHECK_EQ(drv.dev->queues[0].size, 0);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_QUEUE_READY), 0);
	CHECK(drv_negotiate(&drv, ALL_FEATURES));
	drv_queue_setup(&drv, 2, 8); /* no such queue */
	CHECK_EQ(STATUS, 0xb);
	drv_queue_setup(&drv, 0, 8);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_QUEUE_READY), 1);
	drv_write(&drv, VIRTIO_MMIO_QUEUE_NUM, 16); /* while enabled */
	drv_write(&drv, VIRTIO_MMIO_QUEUE_DESC_LOW, 0xdead0000);
	CHECK_EQ(drv.dev->queues[0].size, 8);
	CHECK_EQ(drv.dev->queues[0].desc_gpa, DRV_QUEUE_GPA);
	drv_write(&drv, VIRTIO_MMIO_STATUS, 0xf);
	drv_queue_setup(&drv, 1, 8); /* after DRIVER_OK */
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_QUEUE_READY), 0);
	CHECK_EQ(STATUS, 0xf);
	/* Stopping one at run time waits for its requests. */
	drv_write(&drv, VIRTIO_MMIO_QUEUE_SEL, 0);
	drv_write(&drv, VIRTIO_MMIO_QUEUE_READY, 0);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_QUEUE_READY), 0);
	CHECK_EQ(echo->quiesces, 1);
	drv_notify(&drv, 0);
	CHECK_EQ(echo->kicks, 0);
}

static void test_bad_queue(void)
{
	static const u16 sizes[] = {0, 3, 32};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		setup();
		CHECK(drv_negotiate(&drv, ALL_FEATURES));
		drv_queue_setup(&drv, 0, sizes[i]);
		CHECK_EQ(STATUS, 0xb | 0x40);
		CHECK_EQ(drv.interrupts, 0); /* not before DRIVER_OK */
		drv_write(&drv, VIRTIO_MMIO_STATUS, 0x4f);
		CHECK_EQ(STATUS, 0x4f);
		CHECK_EQ(drv.interrupts, 1);
		CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_INTERRUPT_STATUS), 2);
		CHECK_EQ(echo->activations, 0);
	}
	setup();
	CHECK(drv_negotiate(&drv, ALL_FEATURES));
	drv_write(&drv, VIRTIO_MMIO_QUEUE_SEL, 0);
	drv_write(&drv, VIRTIO_MMIO_QUEUE_NUM, 0x10008); /* 8, if cut to 16 bits */
	drv_write(&drv, VIRTIO_MMIO_QUEUE_READY, 1);
	CHECK_EQ(STATUS, 0x4b);
}

static void test_data(void)
{
	setup();
	drv_start(&drv, 8);
	drv_desc(&drv, 0, 3, DRV_BUF_GPA, 16, VRING_DESC_F_WRITE, 0);
	drv_add(&drv, 0, 3);
	drv_notify(&drv, 0);
	CHECK_EQ(drv_used_idx(&drv, 0), 1);
	CHECK_EQ(drv_used(&drv, 0, 0)->id, 3);
	CHECK_EQ(drv_used(&drv, 0, 0)->len, 4);
	CHECK(!memcmp(drv_ptr(&drv, DRV_BUF_GPA), "EEEE", 5));
	CHECK_EQ(drv.interrupts, 1);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_INTERRUPT_STATUS), 1);
	drv_write(&drv, VIRTIO_MMIO_INTERRUPT_ACK, 2);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_INTERRUPT_STATUS), 1);
	drv_write(&drv, VIRTIO_MMIO_INTERRUPT_ACK, 1);
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_INTERRUPT_STATUS), 0);
	/* used_event still 0: the driver has not looked, no second interrupt. */
	drv_add(&drv, 0, 3);
	drv_notify(&drv, 0);
	CHECK_EQ(drv_used_idx(&drv, 0), 2);
	CHECK_EQ(drv.interrupts, 1);
	drv_notify(&drv, 2);
	drv_notify(&drv, 0xffffffff);
}

static void test_needs_reset(void)
{
	setup();
	drv_start(&drv, 8);
	drv_desc(&drv, 0, 0, DRV_BUF_GPA, 16, VRING_DESC_F_WRITE, 0);
	drv_add(&drv, 0, 0);
	drv_add(&drv, 0, 9); /* head outside the queue */
	drv_add(&drv, 0, 0);
	drv_notify(&drv, 0);
	CHECK_EQ(STATUS, 0x4f);
	CHECK_EQ(drv_used_idx(&drv, 0), 1); /* what came before is done */
	CHECK_EQ(drv_read(&drv, VIRTIO_MMIO_INTERRUPT_STATUS), 3);
	echo->kicks = 0;
	drv_notify(&drv, 0);
	CHECK_EQ(echo->kicks, 0); /* nothing until the reset */
	drv_write(&drv, VIRTIO_MMIO_STATUS, 0xf);
	CHECK_EQ(STATUS, 0x4f); /* the driver can't clear it by writing */
	drv_start(&drv, 8);
	memset(drv_ptr(&drv, DRV_QUEUE_GPA), 0, DRV_QUEUE_BYTES);
	drv_desc(&drv, 0, 0, DRV_BUF_GPA, 16, VRING_DESC_F_WRITE, 0);
	drv_add(&drv, 0, 0);
	drv_notify(&drv, 0);
	CHECK_EQ(drv_used_idx(&drv, 0), 1);
	CHECK_EQ(STATUS, 0xf);

	setup();
	echo->activate_ret = -EIO;
	CHECK(drv_negotiate(&drv, ALL_FEATURES));
	drv_write(&drv, VIRTIO_MMIO_STATUS, 0xf);
	CHECK_EQ(STATUS, 0x4f);
}

static void test_bounded_share(void)
{
	setup();
	drv_start(&drv, 16);
	/* One descriptor, made available 16 times a round: more than one call may serve. */
	drv_desc(&drv, 0, 0, DRV_BUF_GPA, 16, VRING_DESC_F_WRITE, 0);
	for (int i = 0; i < 16; i++)
		drv_add(&drv, 0, 0);
	drv_notify(&drv, 0);
	CHECK_EQ(drv.defers, 0);
	echo->queue_ret = 1;
	drv_notify(&drv, 0);
	CHECK_EQ(drv.defers, 1);
	CHECK_EQ(STATUS, 0xf);
	echo->queue_ret = -EIO;
	drv_notify(&drv, 0);
	CHECK_EQ(STATUS, 0x4f);
}

TEST_MAIN({"identity", test_identity}, {"widths", test_widths}, {"config", test_config},
	  {"status_order", test_status_order}, {"features", test_features},
	  {"queue_registers", test_queue_registers}, {"bad_queue", test_bad_queue},
	  {"data", test_data}, {"needs_reset", test_needs_reset},
	  {"bounded_share", test_bounded_share})
