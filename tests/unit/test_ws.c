// SPDX-License-Identifier: Apache-2.0
// The server's side of a WebSocket, with scripted clients.
#include "vmm/daemon/ws.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/util/util.h"

static char got[4096];
static struct ws ws;
static int client = -1;

static int on_text(void *opaque, const char *text, size_t len_bytes)
{
	(void)opaque;
	snprintf(got + strlen(got), 200, "t:%.*s ", (int)len_bytes, text);
	return strncmp(text, "bad", 3) ? 0 : -EPROTO;
}

static int on_binary(void *opaque, const u8 *data, size_t len_bytes)
{
	(void)opaque, (void)data;
	snprintf(got + strlen(got), 200, "b:%zu ", len_bytes);
	return 0;
}

static const struct ws_ops ops = {on_text, on_binary};

static void begin(void)
{
	int fds[2];

	fd_close(&client);
	ws_destroy(&ws);
	*got = '\0';
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	client = fds[1];
	CHECK_EQ(ws_init(&ws, fds[0], &ops, NULL), 0);
}

/* A frame of less than 126 bytes, masked with zeroes. */
static void say(u8 first, const char *data, size_t len)
{
	u8 frame[200] = {first, (u8)(0x80 | len)};

	memcpy(frame + 6, data, len);
	CHECK_EQ(write(client, frame, 6 + len), (ssize_t)(6 + len));
}

static ssize_t hear(u8 *buf, size_t max)
{
	return recv(client, buf, max, MSG_DONTWAIT);
}

static void test_accept(void)
{
	char out[WS_ACCEPT_CHARS + 1];

	/* The example of RFC 6455, section 1.3. */
	CHECK_EQ(ws_accept_key("dGhlIHNhbXBsZSBub25jZQ==", out), 0);
	CHECK_STR(out, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
	CHECK_EQ(ws_accept_key(NULL, out), -EINVAL);
	CHECK_EQ(ws_accept_key("", out), -EINVAL);
	CHECK_EQ(ws_accept_key("dGhlIHNhbXBsZSBub25jZQ=", out), -EINVAL);
	CHECK_EQ(ws_accept_key("dGhlIHNhbXBsZSBub25j!Q==", out), -EINVAL);
	CHECK_EQ(ws_accept_key("dGhlIHNhbXBsZSBub25jZWFi", out), -EINVAL); /* 18 bytes */
}

static void test_messages(void)
{
	u8 buf[64];

	begin();
	say(0x81, "hi", 2);
	say(0x02, "ab", 2);
	say(0x80, "cd", 2);
	say(0x89, "p", 1);
	CHECK_EQ(ws_receive(&ws), 0);
	CHECK_STR(got, "t:hi b:4 ");
	CHECK(!ws_idle(&ws));
	CHECK(ws_events(&ws, false) == POLLOUT);
	CHECK_EQ(ws_send_some(&ws), 0);
	CHECK_EQ(hear(buf, sizeof(buf)), 3);
	CHECK(!memcmp(buf, "\x8a\x01p", 3));
	CHECK_EQ(ws_binary(&ws, "xyz", 3), 0);
	CHECK_EQ(ws_send_some(&ws), 0);
	CHECK_EQ(hear(buf, sizeof(buf)), 5);
	CHECK(!memcmp(buf, "\x82\x03xyz", 5));
	CHECK(ws_idle(&ws));
}

/* The closing frame stands behind what was queued before it. */
static void test_close(void)
{
	u8 buf[64];

	begin();
	CHECK_EQ(ws_text(&ws, "last"), 0);
	ws_close(&ws, WS_CLOSE_NORMAL);
	CHECK_EQ(ws_text(&ws, "too late"), -EPIPE);
	CHECK(!ws_over(&ws));
	CHECK_EQ(ws_send_some(&ws), 0);
	CHECK_EQ(hear(buf, sizeof(buf)), 6 + 4);
	CHECK(!memcmp(buf, "\x81\x04last\x88\x02\x03\xe8", 10));
	CHECK(ws_over(&ws));
}

static void test_client_closes(void)
{
	u8 buf[64];

	begin();
	say(0x88, "\x03\xe8", 2);
	CHECK_EQ(ws_receive(&ws), 0);
	CHECK_EQ(ws_send_some(&ws), 0);
	CHECK_EQ(hear(buf, sizeof(buf)), 4);
	CHECK_EQ(buf[0], 0x88);
	CHECK(ws_over(&ws));
	begin();
	fd_close(&client);
	CHECK(ws_receive(&ws) < 0);
	CHECK(ws_over(&ws));
}

static void refused(const char *bytes, size_t len, u16 code)
{
	u8 buf[256];
	ssize_t n;

	begin();
	CHECK_EQ(write(client, bytes, len), (ssize_t)len);
	if (ws_receive(&ws))
		return;
	CHECK_EQ(ws_send_some(&ws), 0);
	n = hear(buf, sizeof(buf));
	if (n < 4)
		fprintf(stderr, "not refused: %02x %02x\n", (u8)bytes[0], (u8)bytes[1]);
	CHECK(n >= 4);
	CHECK_EQ(buf[0], 0x88);
	CHECK_EQ(buf[2] << 8 | buf[3], code);
}

static void test_refused(void)
{
	refused("\x81\x02hi", 4, 1002);				/* not masked */
	refused("\xc1\x82\0\0\0\0hi", 8, 1002);			/* reserved bits */
	refused("\x83\x80\0\0\0\0", 6, 1002);			/* opcode */
	refused("\x09\x80\0\0\0\0", 6, 1002);			/* a ping in pieces */
	refused("\x81\x81\0\0\0\0\xff", 7, 1007);		/* not UTF-8 */
	refused("\x82\xff\0\0\1\0\0\0\0\0\0\0\0\0x", 15, 1009); /* too long */
	refused("\x80\x80\0\0\0\0", 6, 1002);			/* of nothing */
	refused("\x81\x83\0\0\0\0"
		"bad",
		9, 1002); /* the owner's word */
}

/* Pings whose answers nobody reads: reading stops, memory does not grow. */
static void test_ping_flood(void)
{
	begin();
	for (int i = 0; i < 2000; i++) {
		u8 ping[6 + 100] = {0x89, 0x80 | 100};

		if (send(client, ping, sizeof(ping), MSG_DONTWAIT) < 0)
			break;
		CHECK_EQ(ws_receive(&ws), 0);
		if (ws_events(&ws, true) & POLLIN)
			continue;
		/* Nothing is read until some have left. */
		CHECK_EQ(ws_receive(&ws), 0);
		CHECK_EQ(ws_events(&ws, true), POLLOUT);
		ws_destroy(&ws);
		fd_close(&client);
		return;
	}
	CHECK(!"it reads on for ever");
}

TEST_MAIN({"accept", test_accept}, {"messages", test_messages}, {"close", test_close},
	  {"client closes", test_client_closes}, {"refused", test_refused},
	  {"ping flood", test_ping_flood})
