// SPDX-License-Identifier: Apache-2.0
// The vsock device across a snapshot: old packets, new streams, the transport reset and its gate.
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "tests/unit/vsock_rig.h"

static struct rig rig, copy;

static void open_rig(void)
{
	rig_open(&rig);
	rig_post(&rig, RIG_RX, 64, RIG_BUF_BYTES);
}

/* A restore with nothing open: a request made before the vCPUs run is in the ring when they do. */
static void test_restore_plain(void)
{
	u32 host_port;
	int fds[2];

	open_rig();
	rig_post(&rig, RIG_EVENT, 8, sizeof(struct virtio_vsock_event));
	fds[1] = rig_connect(&rig, 9, &host_port);
	rig_send_op(&rig, VIRTIO_VSOCK_OP_RST, 9, host_port);
	close(fds[1]);

	rig_clone(&copy, &rig, false);
	rig_pair(fds);
	CHECK_EQ(vsock_connect(copy.dev, 9, fds[0]), 0);
	rig_expect_none(&copy);
	CHECK_EQ(virtio_resume(copy.dev), 0);
	CHECK(copy.interrupts > 0);
	/* Not a port that the guest may remember. */
	CHECK_EQ(rig_expect(&copy, VIRTIO_VSOCK_OP_REQUEST).hdr.src_port, host_port + 1);
	/* The guest's tx ring is armed: rig_send() checks that the device wants the kick. */
	rig_send_op(&copy, VIRTIO_VSOCK_OP_RESPONSE, 9, host_port + 1);
	CHECK_EQ(send(fds[1], "x", 1, 0), 1);
	rig_run(&copy);
	rig_expect(&copy, VIRTIO_VSOCK_OP_RW);
	CHECK_EQ(rig_used(&copy, RIG_EVENT), 0);
	close(fds[1]);
	rig_close(&copy);
	rig_close(&rig);
}

/* A packet of an old stream, added and kicked but not taken before the snapshot, is answered. */
static void test_restore_old_packet(void)
{
	struct virtio_vsock_hdr hdr;
	const u64 buf[1][2] = {{0xa0000, sizeof(hdr)}};
	u32 host_port;
	int fd;

	open_rig();
	fd = rig_connect(&rig, 9, &host_port);
	hdr = rig_header(VIRTIO_VSOCK_OP_RW, 9, host_port);
	memcpy(rig.ram + buf[0][0], &hdr, sizeof(hdr));
	rig_add(&rig, RIG_TX, 1, buf, false);
	rig_clone(&copy, &rig, false);
	CHECK_EQ(virtio_resume(copy.dev), 0);
	CHECK_EQ(rig_used(&copy, RIG_TX), 1);
	CHECK_EQ(rig_expect(&copy, VIRTIO_VSOCK_OP_RST).hdr.src_port, host_port);
	close(fd);
	rig_close(&copy);
	rig_close(&rig);
}

static u32 take_event(struct rig *which)
{
	const struct virtio_vsock_event *event = (void *)(which->ram + 0x40000);
	u32 id = event[16 * (which->queues[RIG_EVENT].used % RIG_SIZE)].id;

	CHECK_EQ(rig_used(which, RIG_EVENT), 1);
	which->queues[RIG_EVENT].used++;
	return id;
}

/* The gate: event first, nothing else until the driver has put its buffer back. */
static void test_transport_reset(void)
{
	u32 host_port;
	int fds[2];

	open_rig();
	rig_post(&rig, RIG_EVENT, 8, sizeof(struct virtio_vsock_event));
	memset(rig.ram + 0x40000, 0xff, 8 * 64);
	fds[1] = rig_connect(&rig, 9, &host_port);
	rig_clone(&copy, &rig, true);
	close(fds[1]);
	rig_pair(fds);
	CHECK_EQ(vsock_connect(copy.dev, 9, fds[0]), 0);
	CHECK_EQ(virtio_resume(copy.dev), 0);
	rig_run(&copy);
	rig_expect_none(&copy);
	CHECK_EQ(take_event(&copy), VIRTIO_VSOCK_EVENT_TRANSPORT_RESET);

	/* A second generation, taken before the driver handled the event, owes it again. */
	rig_close(&rig);
	rig_clone(&rig, &copy, false);
	CHECK_EQ(virtio_resume(rig.dev), 0);
	CHECK_EQ(take_event(&rig), VIRTIO_VSOCK_EVENT_TRANSPORT_RESET);
	rig_close(&rig);

	rig_send_op(&copy, VIRTIO_VSOCK_OP_RW, 9, host_port);
	rig_expect_none(&copy);
	/* The driver's kick is by EVENT_IDX, so this also checks that it is armed. */
	rig_post(&copy, RIG_EVENT, 1, sizeof(struct virtio_vsock_event));
	CHECK_EQ(rig_expect(&copy, VIRTIO_VSOCK_OP_RST).hdr.src_port, host_port);
	CHECK_EQ(rig_expect(&copy, VIRTIO_VSOCK_OP_REQUEST).hdr.src_port, host_port + 1);
	rig_send_op(&copy, VIRTIO_VSOCK_OP_RESPONSE, 9, host_port + 1);
	CHECK_EQ(vsock_connections(copy.dev), 1);
	close(fds[1]);
	rig_close(&copy);
}

/* No buffer for the event: it comes when one does. */
static void test_transport_reset_late(void)
{
	u32 host_port;
	int fd;

	open_rig();
	fd = rig_connect(&rig, 9, &host_port);
	close(fd);
	rig_clone(&copy, &rig, true);
	rig_close(&rig);
	CHECK_EQ(virtio_resume(copy.dev), 0);
	rig_run(&copy);
	rig_send_op(&copy, VIRTIO_VSOCK_OP_RW, 9, host_port);
	rig_expect_none(&copy);
	rig_post(&copy, RIG_EVENT, 1, sizeof(struct virtio_vsock_event));
	CHECK_EQ(take_event(&copy), VIRTIO_VSOCK_EVENT_TRANSPORT_RESET);
	rig_expect_none(&copy);
	rig_post(&copy, RIG_EVENT, 1, sizeof(struct virtio_vsock_event));
	rig_expect(&copy, VIRTIO_VSOCK_OP_RST);
	rig_close(&copy);
}

static void test_bad_snapshot(void)
{
	/* cid, flag, zeros behind: bytes 8 to 11 are the next port, which may be any. */
	const u8 fixed[] = {0, 7, 12, 15, 16, VIRTIO_PRIV_BYTES - 1};
	struct snap_virtio state;

	open_rig();
	virtio_save(rig.dev, &state);
	for (size_t i = 0; i < ARRAY_SIZE(fixed); i++) {
		struct snap_virtio bad = state;

		bad.priv[fixed[i]] ^= 0x80;
		rig_open_dead(&copy);
		CHECK_EQ(virtio_load(copy.dev, &bad), -EINVAL);
		rig_close(&copy);
	}
	rig_close(&rig);
}

TEST_MAIN({"restore", test_restore_plain}, {"packet from before", test_restore_old_packet},
	  {"transport reset", test_transport_reset},
	  {"transport reset without buffer", test_transport_reset_late},
	  {"bad snapshot", test_bad_snapshot})
