// SPDX-License-Identifier: Apache-2.0
// Streams of the vsock device: handshake, data, credit, half close, reset, as a Linux guest sees
// them.
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "tests/unit/vsock_rig.h"

#define GUEST_PORT 1024u
#define FIRST_PORT 0x40000000u
#define BOTH	   (VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND)
#define WINDOW	   (256u << 10)

static struct rig rig;

static void open_rig(void)
{
	rig_open(&rig);
	rig_post(&rig, RIG_RX, 64, RIG_BUF_BYTES);
}

/* The guest sends @len bytes of a pattern that depends on the place in the stream. */
static u8 pattern(u64 at)
{
	return (u8)(at * 31 + (at >> 8) * 7);
}

static void guest_send(u32 host_port, u64 at, u32 len)
{
	struct virtio_vsock_hdr hdr = rig_header(VIRTIO_VSOCK_OP_RW, GUEST_PORT, host_port);
	u8 *data = malloc(len);

	for (u32 i = 0; i < len; i++)
		data[i] = pattern(at + i);
	hdr.len = len;
	rig_send(&rig, &hdr, data);
	free(data);
}

static void guest_shutdown(u32 host_port, u32 flags)
{
	struct virtio_vsock_hdr hdr = rig_header(VIRTIO_VSOCK_OP_SHUTDOWN, GUEST_PORT, host_port);

	hdr.flags = flags;
	rig_send(&rig, &hdr, NULL);
}

static void guest_credit(u32 host_port, u32 buf_alloc, u32 fwd_cnt)
{
	struct virtio_vsock_hdr hdr =
		rig_header(VIRTIO_VSOCK_OP_CREDIT_UPDATE, GUEST_PORT, host_port);

	hdr.buf_alloc = buf_alloc;
	hdr.fwd_cnt = fwd_cnt;
	rig_send(&rig, &hdr, NULL);
}

/* Read and check all that @fd has, letting the device go on. Return: bytes. */
static u64 host_read_all(int fd, u64 at)
{
	u64 done = 0;
	u8 buf[8192];
	ssize_t n;

	while ((n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0) {
		for (ssize_t i = 0; i < n; i++)
			CHECK_EQ(buf[i], pattern(at + done + i));
		done += n;
		rig_run(&rig);
	}
	return done;
}

static void test_host_connect(void)
{
	struct rig_packet packet;
	int fds[2];
	char buf[16];

	open_rig();
	rig_pair(fds);
	CHECK_EQ(send(fds[1], "hello", 5, 0), 5); /* before the guest knows of it */
	CHECK_EQ(vsock_connect(rig.dev, GUEST_PORT, fds[0]), 0);
	CHECK_EQ(vsock_connections(rig.dev), 1);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_REQUEST);
	CHECK_EQ(packet.len_bytes, 44);
	CHECK_EQ(packet.hdr.src_port, FIRST_PORT);
	CHECK_EQ(packet.hdr.dst_port, GUEST_PORT);
	CHECK_EQ(packet.hdr.type, VIRTIO_VSOCK_TYPE_STREAM);
	CHECK_EQ(packet.hdr.flags, 0);
	CHECK_EQ(packet.hdr.buf_alloc, WINDOW);
	CHECK_EQ(packet.hdr.fwd_cnt, 0);
	rig_expect_none(&rig);

	rig_send_op(&rig, VIRTIO_VSOCK_OP_RESPONSE, GUEST_PORT, FIRST_PORT);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RW);
	CHECK_EQ(packet.hdr.len, 5);
	CHECK(!memcmp(packet.data, "hello", 5));
	rig_expect_none(&rig);

	CHECK_EQ(send(fds[1], "more", 4, 0), 4);
	rig_run(&rig);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RW);
	CHECK_EQ(packet.hdr.len, 4);
	CHECK(!memcmp(packet.data, "more", 4));

	guest_send(FIRST_PORT, 0, 7);
	CHECK_EQ(host_read_all(fds[1], 0), 7);
	CHECK_EQ(recv(fds[1], buf, sizeof(buf), MSG_DONTWAIT), -1);
	CHECK_EQ(errno, EAGAIN);

	/* Our credit is in every packet. */
	CHECK_EQ(send(fds[1], "x", 1, 0), 1);
	rig_run(&rig);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_RW).hdr.fwd_cnt, 7);
	rig_send_op(&rig, VIRTIO_VSOCK_OP_CREDIT_REQUEST, GUEST_PORT, FIRST_PORT);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_CREDIT_UPDATE).hdr.fwd_cnt, 7);
	rig_expect_none(&rig);
	close(fds[1]);
	rig_close(&rig);
}

static void test_host_refused(void)
{
	struct rig_packet packet;
	int fds[2];

	open_rig();
	rig_pair(fds);
	CHECK_EQ(vsock_connect(rig.dev, 99, fds[0]), 0);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_REQUEST);
	rig_send_op(&rig, VIRTIO_VSOCK_OP_RST, 99, packet.hdr.src_port);
	CHECK(rig_at_end(fds[1]));
	CHECK_EQ(vsock_connections(rig.dev), 0);
	rig_expect_none(&rig);
	close(fds[1]);
	rig_close(&rig);
}

static void test_guest_connect(void)
{
	struct virtio_vsock_hdr hdr = rig_header(VIRTIO_VSOCK_OP_REQUEST, 50000, 1025);
	struct rig_packet packet;

	open_rig();
	rig_send(&rig, &hdr, NULL);
	CHECK_EQ(rig.asked, 1);
	CHECK_EQ(rig.asked_port, 1025);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RESPONSE);
	CHECK_EQ(packet.hdr.src_port, 1025);
	CHECK_EQ(packet.hdr.dst_port, 50000);
	CHECK_EQ(packet.hdr.buf_alloc, WINDOW);
	CHECK_EQ(send(rig.accepted[0], "hi", 2, 0), 2);
	rig_run(&rig);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_RW).hdr.len, 2);

	rig.answer = -ECONNREFUSED;
	hdr.src_port = 50001;
	rig_send(&rig, &hdr, NULL);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	CHECK_EQ(packet.hdr.src_port, 1025);
	CHECK_EQ(packet.hdr.dst_port, 50001);
	CHECK_EQ(packet.hdr.type, VIRTIO_VSOCK_TYPE_STREAM);
	CHECK_EQ(vsock_connections(rig.dev), 1);
	rig_close(&rig);
}

/* The guest's credit is never overrun, the device asks for more once, and goes on when it comes. */
static void test_guest_credit(void)
{
	struct virtio_vsock_hdr hdr;
	struct rig_packet packet;
	u8 data[25000];
	u32 got = 0;
	int fds[2];

	open_rig();
	rig_pair(fds);
	for (u32 i = 0; i < sizeof(data); i++)
		data[i] = pattern(i);
	CHECK_EQ(send(fds[1], data, sizeof(data), 0), sizeof(data));
	CHECK_EQ(vsock_connect(rig.dev, GUEST_PORT, fds[0]), 0);
	rig_expect(&rig, VIRTIO_VSOCK_OP_REQUEST);
	hdr = rig_header(VIRTIO_VSOCK_OP_RESPONSE, GUEST_PORT, FIRST_PORT);
	hdr.buf_alloc = 10000;
	rig_send(&rig, &hdr, NULL);
	while (got < 10000) {
		packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RW);
		CHECK(packet.hdr.len <= RIG_BUF_BYTES - 44);
		CHECK(!memcmp(packet.data, data + got, packet.hdr.len));
		got += packet.hdr.len;
	}
	CHECK_EQ(got, 10000);
	rig_expect(&rig, VIRTIO_VSOCK_OP_CREDIT_REQUEST);
	rig_expect_none(&rig);
	guest_credit(FIRST_PORT, 10000, 0); /* no news: no data, and no second question */
	rig_expect_none(&rig);
	guest_credit(FIRST_PORT, 10000, 1);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RW);
	CHECK_EQ(packet.hdr.len, 1);
	CHECK_EQ(*packet.data, pattern(10000));
	rig_expect(&rig, VIRTIO_VSOCK_OP_CREDIT_REQUEST);

	/* Nonsense (more forwarded than sent, a window that shrank) only stops the stream. */
	guest_credit(FIRST_PORT, 10000, 20000);
	guest_credit(FIRST_PORT, 5000, 1);
	rig_expect_none(&rig);
	guest_credit(FIRST_PORT, 1u << 20, 10001);
	for (got = 10001; got < sizeof(data); got += packet.hdr.len)
		packet = rig_expect(&rig, VIRTIO_VSOCK_OP_RW);
	rig_expect_none(&rig);
	close(fds[1]);
	rig_close(&rig);
}

/* A host process that does not read: the device holds one window, tells no credit, loses nothing.
 */
static void test_host_backpressure(void)
{
	u64 sent = 0, got;
	u32 host_port;
	u32 fwd_cnt = 0;
	struct rig_packet packet;
	int fd;

	open_rig();
	fd = rig_connect(&rig, GUEST_PORT, &host_port);
	while (sent - fwd_cnt < WINDOW) {
		u32 len = MIN(WINDOW - (u32)(sent - fwd_cnt), 60000u);

		guest_send(host_port, sent, len);
		sent += len;
		while (rig_take(&rig, &packet)) {
			CHECK_EQ(packet.hdr.op, VIRTIO_VSOCK_OP_CREDIT_UPDATE);
			fwd_cnt = packet.hdr.fwd_cnt;
		}
	}
	CHECK(sent > WINDOW); /* the socket took some too */
	got = host_read_all(fd, 0);
	CHECK_EQ(got, sent);
	while (rig_take(&rig, &packet))
		fwd_cnt = packet.hdr.fwd_cnt;
	CHECK(sent - fwd_cnt < WINDOW / 2);
	guest_send(host_port, sent, 1000);
	CHECK_EQ(host_read_all(fd, sent), 1000);
	close(fd);
	rig_close(&rig);
}

/* Fill socket and window of a stream. Return: bytes sent. */
static u64 fill_up(u32 host_port)
{
	struct rig_packet packet;
	u64 sent = 0;
	u32 fwd_cnt = 0;

	while (sent - fwd_cnt < WINDOW) {
		u32 len = MIN(WINDOW - (u32)(sent - fwd_cnt), 50000u);

		guest_send(host_port, sent, len);
		sent += len;
		while (rig_take(&rig, &packet))
			fwd_cnt = packet.hdr.fwd_cnt;
	}
	return sent;
}

static void test_credit_abuse(void)
{
	u32 host_port;
	u64 sent;
	int fd;

	open_rig();
	fd = rig_connect(&rig, GUEST_PORT, &host_port);
	/* What the socket took is free again, told or not; what exceeds the window itself never
	 * fits. */
	sent = fill_up(host_port);
	guest_send(host_port, sent, WINDOW);
	rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	CHECK_EQ(vsock_connections(rig.dev), 0);
	CHECK(host_read_all(fd, 0) < sent);
	CHECK(rig_at_end(fd));
	close(fd);
	rig_close(&rig);
}

static void test_half_close(void)
{
	struct rig_packet packet;
	u32 host_port;
	int fd;

	/* The host ends first: its bytes, then the flag; the other direction stays open. */
	open_rig();
	fd = rig_connect(&rig, GUEST_PORT, &host_port);
	CHECK_EQ(send(fd, "bye", 3, 0), 3);
	CHECK_EQ(shutdown(fd, SHUT_WR), 0);
	rig_run(&rig);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_RW).hdr.len, 3);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_SHUTDOWN);
	CHECK_EQ(packet.hdr.flags, VIRTIO_VSOCK_SHUTDOWN_SEND);
	guest_send(host_port, 0, 100);
	CHECK_EQ(host_read_all(fd, 0), 100);
	rig_expect_none(&rig);
	/* Then the guest: all is over, and the guest has the last word. */
	guest_shutdown(host_port, VIRTIO_VSOCK_SHUTDOWN_SEND);
	CHECK(rig_at_end(fd));
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_SHUTDOWN);
	CHECK_EQ(packet.hdr.flags, BOTH);
	CHECK_EQ(vsock_connections(rig.dev), 1);
	rig_send_op(&rig, VIRTIO_VSOCK_OP_RST, GUEST_PORT, host_port);
	CHECK_EQ(vsock_connections(rig.dev), 0);
	rig_expect_none(&rig);
	close(fd);

	/* The guest ends first. */
	fd = rig_connect(&rig, GUEST_PORT, &host_port);
	guest_send(host_port, 0, 10);
	guest_shutdown(host_port, VIRTIO_VSOCK_SHUTDOWN_SEND);
	CHECK_EQ(host_read_all(fd, 0), 10);
	CHECK(rig_at_end(fd));
	CHECK_EQ(send(fd, "still", 5, 0), 5);
	rig_run(&rig);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_RW).hdr.len, 5);
	/* Bytes after it has said that there are none: a protocol error. */
	guest_send(host_port, 10, 1);
	rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	close(fd);

	/* The guest stops receiving: the host can't send any more, but reads on. */
	fd = rig_connect(&rig, GUEST_PORT, &host_port);
	guest_shutdown(host_port, VIRTIO_VSOCK_SHUTDOWN_RCV);
	CHECK_EQ(send(fd, "x", 1, MSG_NOSIGNAL), -1);
	CHECK_EQ(errno, EPIPE);
	guest_send(host_port, 0, 10);
	CHECK_EQ(host_read_all(fd, 0), 10);
	guest_shutdown(host_port, VIRTIO_VSOCK_SHUTDOWN_SEND);
	CHECK(rig_at_end(fd));
	rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	CHECK_EQ(vsock_connections(rig.dev), 0);
	close(fd);
	rig_close(&rig);
}

/* What the guest sent before its end reaches a slow reader, whatever the end looked like. */
static void test_end_with_buffered(u16 op, u32 flags)
{
	struct virtio_vsock_hdr hdr;
	u32 host_port;
	u64 sent;
	int fd;

	open_rig();
	fd = rig_connect(&rig, GUEST_PORT, &host_port);
	sent = fill_up(host_port);
	hdr = rig_header(op, GUEST_PORT, host_port);
	hdr.flags = flags;
	rig_send(&rig, &hdr, NULL);
	if (flags == BOTH)
		rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	rig_expect_none(&rig);
	CHECK_EQ(vsock_connections(rig.dev), flags == VIRTIO_VSOCK_SHUTDOWN_SEND);
	CHECK_EQ(host_read_all(fd, 0), sent);
	CHECK(rig_at_end(fd));
	close(fd);
	rig_close(&rig);
}

static void test_buffered_shutdown(void)
{
	test_end_with_buffered(VIRTIO_VSOCK_OP_SHUTDOWN, VIRTIO_VSOCK_SHUTDOWN_SEND);
}

static void test_buffered_close(void)
{
	test_end_with_buffered(VIRTIO_VSOCK_OP_SHUTDOWN, BOTH);
}

static void test_buffered_reset(void)
{
	test_end_with_buffered(VIRTIO_VSOCK_OP_RST, 0);
}

/* The host process goes: the guest gets its bytes, then both flags; what it still sends is dropped.
 */
static void test_host_close(void)
{
	struct virtio_vsock_hdr hdr = rig_header(VIRTIO_VSOCK_OP_REQUEST, 50000, 7);
	u32 host_port;
	int fd;

	open_rig();
	fd = rig_connect(&rig, GUEST_PORT, &host_port);
	CHECK_EQ(send(fd, "last", 4, 0), 4);
	close(fd);
	rig_run(&rig);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_RW).hdr.len, 4);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_SHUTDOWN).hdr.flags, BOTH);
	rig_expect_none(&rig);
	guest_send(host_port, 0, 50000);
	guest_send(host_port, 50000, 50000);
	CHECK_EQ(vsock_connections(rig.dev), 1);
	guest_shutdown(host_port, BOTH); /* both ends at once */
	rig_expect(&rig, VIRTIO_VSOCK_OP_RST);
	CHECK_EQ(vsock_connections(rig.dev), 0);

	/* The same while the guest gives no credit: no spinning (rig_run() checks), no loss. */
	hdr.buf_alloc = 0;
	rig_send(&rig, &hdr, NULL);
	rig_expect(&rig, VIRTIO_VSOCK_OP_RESPONSE);
	CHECK_EQ(send(rig.accepted[0], "held", 4, 0), 4);
	close(rig.accepted[0]);
	rig.accepted[0] = -1;
	rig_run(&rig);
	rig_expect(&rig, VIRTIO_VSOCK_OP_CREDIT_REQUEST);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_SHUTDOWN).hdr.flags, VIRTIO_VSOCK_SHUTDOWN_RCV);
	rig_expect_none(&rig);
	CHECK(rig.turns < 10);
	hdr.op = VIRTIO_VSOCK_OP_CREDIT_UPDATE;
	hdr.buf_alloc = 4;
	rig_send(&rig, &hdr, NULL);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_RW).hdr.len, 4);
	rig_expect(&rig, VIRTIO_VSOCK_OP_CREDIT_REQUEST); /* the end of file is not known yet */
	hdr.buf_alloc = 100;
	rig_send(&rig, &hdr, NULL);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_SHUTDOWN).hdr.flags, BOTH);
	rig_close(&rig);
}

/* A client that goes before the guest has answered: the guest hears of it by a reset. */
static void test_host_cancel(void)
{
	struct rig_packet packet;
	int fds[2];

	open_rig();
	rig_pair(fds);
	CHECK_EQ(vsock_connect(rig.dev, GUEST_PORT, fds[0]), 0);
	packet = rig_expect(&rig, VIRTIO_VSOCK_OP_REQUEST);
	close(fds[1]);
	rig_run(&rig);
	CHECK_EQ(rig_expect(&rig, VIRTIO_VSOCK_OP_RST).hdr.src_port, packet.hdr.src_port);
	CHECK_EQ(vsock_connections(rig.dev), 0);
	rig_close(&rig);
}

/* 32 MiB each way, in the order sent. */
static void test_bulk(void)
{
	struct rig_packet packet;
	const u64 total = 32ull << 20;
	u64 put = 0, got = 0, guest_got = 0;
	u32 host_port;
	u8 buf[65536];
	int fd;

	open_rig();
	rig_post(&rig, RIG_RX, 128, RIG_BUF_BYTES);
	fd = rig_connect(&rig, GUEST_PORT, &host_port);
	while (got < total || guest_got < total) {
		u32 n = MIN(sizeof(buf), total - put);
		ssize_t sent;

		for (u32 i = 0; i < n; i++)
			buf[i] = pattern(put + i);
		sent = n ? send(fd, buf, n, MSG_DONTWAIT) : 0;
		put += MAX(sent, 0);
		rig_run(&rig);
		while (rig_take(&rig, &packet)) {
			for (u32 i = 0; i < packet.hdr.len; i++)
				CHECK_EQ(packet.data[i], pattern(guest_got + i));
			guest_got += packet.hdr.len;
			rig_post(&rig, RIG_RX, 1, RIG_BUF_BYTES);
		}
		guest_credit(host_port, 256 << 10, guest_got);
		if (got < total) {
			guest_send(host_port, got, 65536);
			got += host_read_all(fd, got);
		}
	}
	CHECK_EQ(got, total);
	CHECK_EQ(guest_got, total);
	close(fd);
	rig_close(&rig);
}

TEST_MAIN({"host connects", test_host_connect}, {"guest refuses", test_host_refused},
	  {"guest connects", test_guest_connect}, {"credit of the guest", test_guest_credit},
	  {"host does not read", test_host_backpressure}, {"credit abuse", test_credit_abuse},
	  {"half close", test_half_close}, {"shutdown with buffered bytes", test_buffered_shutdown},
	  {"close with buffered bytes", test_buffered_close},
	  {"reset with buffered bytes", test_buffered_reset}, {"host closes", test_host_close},
	  {"host cancels", test_host_cancel}, {"bulk", test_bulk})
