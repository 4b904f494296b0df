// SPDX-License-Identifier: Apache-2.0
// The vsock device itself: hostile packets and rings, limits, restore, transport reset, fairness.
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_config.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "tests/unit/vsock_rig.h"
#include "vmm/virtio/vsock_table.h"

#define FIRST_PORT 0x40000000u

static struct rig rig;

static void open_rig(void)
{
	rig_open(&rig);
	rig_post(&rig, RIG_RX, 64, RIG_BUF_BYTES);
}

static bool broken(const struct rig *which)
{
	return which->dev->status & VIRTIO_CONFIG_S_NEEDS_RESET;
}

/* Every packet that belongs to nothing: a RST, but for a RST. */
static void test_unknown(void)
{
	const u16 ops[] = {VIRTIO_VSOCK_OP_INVALID,
			   VIRTIO_VSOCK_OP_RESPONSE,
			   VIRTIO_VSOCK_OP_SHUTDOWN,
			   VIRTIO_VSOCK_OP_RW,
			   VIRTIO_VSOCK_OP_CREDIT_UPDATE,
			   VIRTIO_VSOCK_OP_CREDIT_REQUEST,
			   VIRTIO_VSOCK_OP_CREDIT_REQUEST + 1,
			   0xffff};
	struct virtio_vsock_hdr hdr;
	struct rig_packet packet;

	open_rig();
	for (size_t i = 0; i < ARRAY_SIZE(ops); i++) {
		rig_send_op(&rig, ops[i], 1000 + i, 2000);
		packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
		CHECK_EQ(packet.len_bytes, 44);
		CHECK_EQ(packet.hdr.src_port, 2000);
		CHECK_EQ(packet.hdr.dst_port, 1000 + i);
		rig_expect_none(&rig);
	}
	rig_send_op(&rig, VIRTIO_VSOCK_OP_RST, 1000, 2000);
	rig_expect_none(&rig);

	hdr = rig_header(VIRTIO_VSOCK_OP_REQUEST, 1000, 2000);
	hdr.type = VIRTIO_VSOCK_TYPE_SEQPACKET;
	rig_send(&rig, &hdr, NULL);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	CHECK_EQ(packet.hdr.type, VIRTIO_VSOCK_TYPE_SEQPACKET);
	CHECK_EQ(rig.asked, 0);

	hdr.type = VIRTIO_VSOCK_TYPE_STREAM;
	hdr.src_cid = 4;
	rig_send(&rig, &hdr, NULL);
	hdr.src_cid = 3;
	hdr.dst_cid = 1ull << 32 | 2;
	rig_send(&rig, &hdr, NULL);
	rig_expect_none(&rig);
	CHECK_EQ(rig.asked, 0);
	rig_close(&rig);
}

/* Operations that do not fit the state end a stream, with a RST and the end of file. */
static void test_wrong_state(void)
{
	const u16 connected[] = {VIRTIO_VSOCK_OP_REQUEST, VIRTIO_VSOCK_OP_RESPONSE,
				 VIRTIO_VSOCK_OP_INVALID, 77};
	const u16 requested[] = {VIRTIO_VSOCK_OP_REQUEST, VIRTIO_VSOCK_OP_RW,
				 VIRTIO_VSOCK_OP_SHUTDOWN};
	struct rig_packet packet;
	u32 host_port;
	int fds[2];

	open_rig();
	for (size_t i = 0; i < ARRAY_SIZE(connected); i++) {
		fds[1] = rig_connect(&rig, 9, &host_port);
		rig_send_op(&rig, connected[i], 9, host_port);
		rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
		CHECK(rig_at_end(fds[1]));
		close(fds[1]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(requested); i++) {
		rig_pair(fds);
		CHECK_EQ(vsock_connect(rig.dev, 9, fds[0]), 0);
		packet = rig_expect(&rig, VIRTIO_VSOCK_OP_REQUEST);
		rig_send_op(&rig, requested[i], 9, packet.hdr.src_port);
		rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
		CHECK(rig_at_end(fds[1]));
		close(fds[1]);
	}
	CHECK_EQ(vsock_connections(rig.dev), 0);
	rig_expect_none(&rig);
	rig_close(&rig);
}

static void add_raw(const void *bytes, u32 len_bytes)
{
	const u64 buf[1][2] = {{0xa0000, len_bytes}};
	u16 old = rig.queues[RIG_TX].avail;

	memcpy(rig.ram + buf[0][0], bytes, len_bytes);
	rig_add(&rig, RIG_TX, 1, buf, false);
	rig_kick_if_wanted(&rig, RIG_TX, old);
	rig_run(&rig);
}

static void test_header_lies(void)
{
	struct virtio_vsock_hdr hdr;
	u32 host_port;
	int fd;

	/* More payload than the chain has: the stream ends, none of it is taken. */
	open_rig();
	fd = rig_connect(&rig, 9, &host_port);
	hdr = rig_header(VIRTIO_VSOCK_OP_RW, 9, host_port);
	hdr.len = 1;
	add_raw(&hdr, sizeof(hdr));
	rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	CHECK(rig_at_end(fd));
	close(fd);
	hdr.len = 0xffffffff;
	hdr.op = VIRTIO_VSOCK_OP_REQUEST;
	add_raw(&hdr, sizeof(hdr));
	rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	CHECK_EQ(rig.asked, 0);
	CHECK(!broken(&rig));

	/* Not even a header: the driver is broken; the sockets do not wait for it. */
	fd = rig_connect(&rig, 9, &host_port);
	add_raw(&hdr, sizeof(hdr) - 1);
	CHECK(broken(&rig));
	CHECK(rig_at_end(fd));
	CHECK_EQ(vsock_connections(rig.dev), 0);
	close(fd);
	rig_close(&rig);

	/* An rx buffer that can't hold a byte of data. */
	rig_open(&rig);
	rig_post(&rig, RIG_RX, 1, VSOCK_HDR_BYTES);
	rig_send_op(&rig, VIRTIO_VSOCK_OP_RW, 1, 2);
	CHECK(broken(&rig));
	rig_close(&rig);
}

/* Without rx buffers the device answers nothing, keeps little, and loses nothing. */
static void test_rx_shortage(void)
{
	struct virtio_vsock_hdr hdr = rig_header(VIRTIO_VSOCK_OP_RW, 0, 5);
	struct rig_packet packet;
	u32 n = 0;

	rig_open(&rig);
	for (u32 i = 0; i < 200; i++) {
		const u64 buf[1][2] = {{0xa0000 + 64 * i, sizeof(hdr)}};
		u16 old = rig.queues[RIG_TX].avail;

		hdr.src_port = 100 + i;
		memcpy(rig.ram + buf[0][0], &hdr, sizeof(hdr));
		rig_add(&rig, RIG_TX, 1, buf, false);
		rig_kick_if_wanted(&rig, RIG_TX, old);
		rig_run(&rig);
	}
	CHECK_EQ(rig_used(&rig, RIG_TX), VSOCK_RST_MAX);
	for (u32 turn = 0; turn < 200; turn++) {
		rig_post(&rig, RIG_RX, 1, RIG_BUF_BYTES);
		CHECK(rig_take(&rig, &packet));
		CHECK_EQ(packet.hdr.op, VIRTIO_VSOCK_OP_RST);
		CHECK_EQ(packet.hdr.dst_port, 100 + n++);
	}
	CHECK_EQ(rig_used(&rig, RIG_TX), 200);
	rig_post(&rig, RIG_RX, 1, RIG_BUF_BYTES);
	rig_expect_none(&rig);
	rig_close(&rig);
}

/* Streams and RSTs take turns at scarce buffers; one with a single byte does not wait for the rest.
 */
static void test_fairness(void)
{
	const u8 order[] = {0, 1, 2, 0, 1, 0, 1, 0, 1};
	struct rig_packet packet;
	static u8 data[100000];
	u32 ports[3];
	int fds[3];

	rig_open(&rig);
	rig_post(&rig, RIG_RX, 8, RIG_BUF_BYTES);
	for (u32 i = 0; i < 3; i++)
		fds[i] = rig_connect(&rig, 9, &ports[i]);
	/* Use all buffers up. */
	for (u32 i = 0; i < 8; i++)
		rig_send_op(&rig, VIRTIO_VSOCK_OP_RW, 1, 2);
	for (u32 i = 0; i < 3; i++) {
		CHECK(send(fds[i], data, i == 2 ? 1 : sizeof(data), 0) > 0);
		rig_run(&rig);
	}
	while (rig_take(&rig, &packet))
		CHECK_EQ(packet.hdr.op, VIRTIO_VSOCK_OP_RST);
	for (u32 n = 0; n < ARRAY_SIZE(order); n++) {
		rig_post(&rig, RIG_RX, 1, RIG_BUF_BYTES);
		CHECK(rig_take(&rig, &packet));
		CHECK_EQ(packet.hdr.src_port, ports[order[n]]);
		CHECK_EQ(packet.hdr.len, order[n] == 2 ? 1 : RIG_BUF_BYTES - 44);
	}
	for (u32 i = 0; i < 3; i++)
		rig_send_op(&rig, VIRTIO_VSOCK_OP_RW, 1, 2);
	for (u32 n = 0; n < 6; n++) {
		rig_post(&rig, RIG_RX, 1, RIG_BUF_BYTES);
		CHECK(rig_take(&rig, &packet));
		CHECK_EQ(packet.hdr.op, n % 2 ? VIRTIO_VSOCK_OP_RW : VIRTIO_VSOCK_OP_RST);
	}
	for (u32 i = 0; i < 3; i++)
		close(fds[i]);
	rig_close(&rig);
}

static void raise_fd_limit(rlim_t want)
{
	struct rlimit limit;

	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_max < want)
		SKIP("the hard limit of open files is too low");
	limit.rlim_cur = MAX(limit.rlim_cur, want);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void test_thousand(void)
{
	static int fds[1000];
	static u32 ports[1000];
	u8 byte;

	raise_fd_limit(2200);
	open_rig();
	for (u32 i = 0; i < 1000; i++)
		fds[i] = rig_connect(&rig, 9, &ports[i]);
	CHECK_EQ(vsock_connections(rig.dev), 1000);
	for (u32 i = 0; i < 1000; i++) {
		struct virtio_vsock_hdr hdr = rig_header(VIRTIO_VSOCK_OP_RW, 9, ports[i]);

		byte = i % 251;
		hdr.len = 1;
		rig_send(&rig, &hdr, &byte);
	}
	for (u32 i = 0; i < 1000; i++) {
		CHECK_EQ(recv(fds[i], &byte, 1, MSG_DONTWAIT), 1);
		CHECK_EQ(byte, i % 251);
		CHECK_EQ(send(fds[i], &byte, 1, 0), 1);
	}
	rig_run(&rig);
	for (u32 i = 0; i < 1000; i++) {
		struct rig_packet packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RW);

		CHECK_EQ(*packet.data, (packet.hdr.src_port - FIRST_PORT) % 251);
	}
	rig_expect_none(&rig);
	/* The driver resets the device: every client sees the end. */
	virtio_set_status(rig.dev, 0);
	CHECK_EQ(vsock_connections(rig.dev), 0);
	for (u32 i = 0; i < 1000; i++) {
		CHECK(rig_at_end(fds[i]));
		close(fds[i]);
	}
	rig_close(&rig);
}

/* The table is full: the guest is refused first, and ends that the guest owes are collected. */
static void test_full(void)
{
	u32 ports[VSOCK_CONN_MAX - VSOCK_GUEST_CONN_MAX];
	int fds[2];

	raise_fd_limit(2 * VSOCK_CONN_MAX + 100);
	open_rig();
	for (u32 i = 0; i < VSOCK_GUEST_CONN_MAX; i++) {
		rig_send_op(&rig, VIRTIO_VSOCK_OP_REQUEST, 100 + i, 5);
		CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_RESPONSE).hdr.buf_alloc,
			 i < 128 ? VSOCK_WINDOW_BYTES : VSOCK_WINDOW_SMALL_BYTES);
	}
	rig_send_op(&rig, VIRTIO_VSOCK_OP_REQUEST, 99, 5);
	rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	for (u32 i = 0; i < ARRAY_SIZE(ports); i++) {
		fds[1] = rig_connect(&rig, 9, &ports[i]);
		if (i > 0)
			rig.accepted[rig.naccepted++] = fds[1];
	}
	close(rig.accepted[--rig.naccepted]); /* the newest but owed ends first */
	rig_run(&rig);
	rig_expect(&rig, VIRTIO_VSOCK_OP_SHUTDOWN);
	rig_pair(fds);
	CHECK_EQ(vsock_connect(rig.dev, 9, fds[0]), 0);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_RST).hdr.src_port, ports[ARRAY_SIZE(ports) - 1]);
	rig_expect(&rig, VIRTIO_VSOCK_OP_REQUEST);
	rig.accepted[rig.naccepted++] = fds[1];
	rig_pair(fds);
	CHECK_EQ(vsock_connect(rig.dev, 9, fds[0]), -EMFILE);
	CHECK(rig_at_end(fds[1]));
	close(fds[1]);
	CHECK_EQ(vsock_connections(rig.dev), VSOCK_CONN_MAX);
	rig_close(&rig);
}

static int connect_unwatchable(struct vsock_owner *owner, u32 port)
{
	(void)owner;
	(void)port;
	return open("/proc/self/exe", O_RDONLY | O_CLOEXEC); /* EPERM of epoll */
}

/* A guest's request that makes room in the full table, with one place left for RSTs, and then gets
 * no connection: its own RST still has a place. */
static void test_full_of_resets(void)
{
	const u32 nhost = VSOCK_CONN_MAX - 1;
	u32 host_port = 0;
	int fd;

	raise_fd_limit(2 * VSOCK_CONN_MAX + 100);
	open_rig();
	rig_send_op(&rig, VIRTIO_VSOCK_OP_REQUEST, 100, 5);
	rig_expect(&rig, VIRTIO_VSOCK_OP_RESPONSE);
	for (u32 i = 0; i < nhost; i++) {
		fd = rig_connect(&rig, 9, &host_port);
		rig.accepted[rig.naccepted++] = fd;
	}
	close(rig.accepted[--rig.naccepted]); /* its reset is owed by the guest */
	rig_run(&rig);
	rig_expect(&rig, VIRTIO_VSOCK_OP_SHUTDOWN);
	/* 64 RSTs for the guest's buffers, and all but one that the FIFO holds. */
	for (u32 i = 0; i < 64 + VSOCK_RST_MAX - 1; i++)
		rig_send_op(&rig, VIRTIO_VSOCK_OP_RW, 1000 + i, 7);
	rig.owner.guest_connect = connect_unwatchable;
	rig_send_op(&rig, VIRTIO_VSOCK_OP_REQUEST, 99, 5);
	CHECK(!broken(&rig));
	rig_close(&rig);
}

/* The guest closes and gives up before it has a buffer for our RST: what it sent is not lost. */
static void test_reset_behind_shutdown(void)
{
	struct virtio_vsock_hdr hdr;
	struct rig_packet packet;
	static u8 data[50000];
	u32 host_port, got = 0;
	ssize_t n;
	int fd;

	open_rig();
	fd = rig_connect(&rig, 9, &host_port);
	hdr = rig_header(VIRTIO_VSOCK_OP_RW, 9, host_port);
	hdr.len = sizeof(data);
	for (u32 i = 0; i < 8; i++) /* more than the socket takes */
		rig_send(&rig, &hdr, data);
	/* Use the rx buffers up. */
	do
		rig_send_op(&rig, VIRTIO_VSOCK_OP_RW, 5, 6);
	while (rig_take(&rig, &packet));
	hdr = rig_header(VIRTIO_VSOCK_OP_SHUTDOWN, 9, host_port);
	hdr.flags = VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND;
	rig_send(&rig, &hdr, NULL);
	rig_send_op(&rig, VIRTIO_VSOCK_OP_RST, 9, host_port);
	CHECK_EQ(vsock_connections(rig.dev), 0);
	while ((n = recv(fd, data, sizeof(data), MSG_DONTWAIT)) > 0) {
		got += (u32)n;
		rig_run(&rig);
	}
	CHECK_EQ(got, 8 * sizeof(data));
	CHECK(rig_at_end(fd));
	close(fd);
	rig_close(&rig);
}

/* A request made before there is a driver waits for it, and outlives the driver's first reset. */
static void test_early_connect(void)
{
	int fds[2];

	rig_open_dead(&rig);
	rig_pair(fds);
	CHECK_EQ(vsock_connect(rig.dev, 9, fds[0]), 0);
	rig_run(&rig);
	rig_start_driver(&rig);
	rig_post(&rig, RIG_RX, 4, RIG_BUF_BYTES);
	rig_expect(&rig, VIRTIO_VSOCK_OP_REQUEST);
	close(fds[1]);
	rig_close(&rig);
}

/* Clients of the text protocol hear of the guest's answer, before anything else. */
static void test_announce(void)
{
	struct virtio_vsock_hdr hdr = rig_header(VIRTIO_VSOCK_OP_RW, 1024, FIRST_PORT);
	char buf[32];
	int fds[2];

	open_rig();
	rig_pair(fds);
	CHECK_EQ(vsock_connect_announce(rig.dev, 1024, fds[0]), 0);
	rig_expect(&rig, VIRTIO_VSOCK_OP_REQUEST);
	CHECK_EQ(recv(fds[1], buf, sizeof(buf), MSG_DONTWAIT), -1);
	rig_send_op(&rig, VIRTIO_VSOCK_OP_RESPONSE, 1024, FIRST_PORT);
	hdr.len = 2;
	rig_send(&rig, &hdr, "hi");
	CHECK_EQ(recv(fds[1], buf, sizeof(buf), MSG_DONTWAIT), 10);
	CHECK(!memcmp(buf, "OK 1024\nhi", 10));
	close(fds[1]);
	rig_close(&rig);
}

TEST_MAIN({"unknown packets", test_unknown}, {"wrong state", test_wrong_state},
	  {"header lies", test_header_lies}, {"rx shortage", test_rx_shortage},
	  {"fairness", test_fairness}, {"1000 streams", test_thousand}, {"full table", test_full},
	  {"full of resets", test_full_of_resets},
	  {"reset behind shutdown", test_reset_behind_shutdown},
	  {"early connect", test_early_connect}, {"announce", test_announce})
