// SPDX-License-Identifier: Apache-2.0
// The server's side of one WebSocket.
#include "vmm/daemon/ws.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <wslay/wslay.h>

#include "vmm/daemon/exec_text.h"
#include "vmm/util/util.h"

#define KEY_CHARS  24
#define GUID	   "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
#define QUEUED_MAX 8 /* answers to pings and the like that a client may leave unread */

/* --- SHA-1: all that the handshake needs of it is one short message --- */

static u32 rol(u32 value, u32 bits)
{
	return value << bits | value >> (32 - bits);
}

static void sha1_block(u32 state[5], const u8 *block)
{
	u32 w[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];

	for (int i = 0; i < 16; i++)
		w[i] = (u32)block[4 * i] << 24 | (u32)block[4 * i + 1] << 16 |
		       (u32)block[4 * i + 2] << 8 | block[4 * i + 3];
	for (int i = 16; i < 80; i++)
		w[i] = rol(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
	for (int i = 0; i < 80; i++) {
		u32 f, k, t;

		if (i < 20) {
			f = (b & c) | (~b & d);
			k = 0x5a827999;
		} else if (i < 40 || i >= 60) {
			f = b ^ c ^ d;
			k = i < 40 ? 0x6ed9eba1 : 0xca62c1d6;
		} else {
			f = (b & c) | (b & d) | (c & d);
			k = 0x8f1bbcdc;
		}
		t = rol(a, 5) + f + e + k + w[i];
		e = d;
		d = c;
		c = rol(b, 30);
		b = a;
		a = t;
	}
	state[0] += a;
	state[1] += b;
	state[2] += c;
	state[3] += d;
	state[4] += e;
}

/* Of KEY_CHARS + GUID: 60 bytes, that is two blocks. */
static void sha1_key(const u8 *text, size_t len_bytes, u8 out[20])
{
	u32 state[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
	u8 blocks[128] = {0};
	u64 bits = (u64)len_bytes * 8;

	memcpy(blocks, text, len_bytes);
	blocks[len_bytes] = 0x80;
	for (int i = 0; i < 8; i++)
		blocks[127 - i] = (u8)(bits >> (8 * i));
	sha1_block(state, blocks);
	sha1_block(state, blocks + 64);
	for (int i = 0; i < 20; i++)
		out[i] = (u8)(state[i / 4] >> (24 - 8 * (i % 4)));
}

int ws_accept_key(const char *key, char out[WS_ACCEPT_CHARS + 1])
{
	u8 text[KEY_CHARS + sizeof(GUID)], digest[20], *raw = NULL;
	size_t raw_bytes = 0;
	char *accept;
	int ret;

	if (!key || strlen(key) != KEY_CHARS)
		return -EINVAL;
	ret = exec_base64_decode(key, KEY_CHARS, &raw, &raw_bytes);
	free(raw);
	if (ret || raw_bytes != 16)
		return -EINVAL;
	memcpy(text, key, KEY_CHARS);
	memcpy(text + KEY_CHARS, GUID, sizeof(GUID));
	sha1_key(text, KEY_CHARS + sizeof(GUID) - 1, digest);
	accept = exec_base64(digest, sizeof(digest));
	if (!accept)
		return -EINVAL;
	memcpy(out, accept, WS_ACCEPT_CHARS + 1);
	free(accept);
	return 0;
}

/* --- wslay's callbacks --- */

static ssize_t on_recv(wslay_event_context_ptr ctx, uint8_t *buf, size_t len, int flags,
		       void *opaque)
{
	struct ws *ws = opaque;
	ssize_t n;

	(void)flags;
	do
		n = recv(ws->fd, buf, len, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n > 0)
		return n;
	wslay_event_set_error(ctx, n < 0 && errno == EAGAIN ? WSLAY_ERR_WOULDBLOCK
							    : WSLAY_ERR_CALLBACK_FAILURE);
	return -1;
}

static ssize_t on_send(wslay_event_context_ptr ctx, const uint8_t *data, size_t len, int flags,
		       void *opaque)
{
	struct ws *ws = opaque;
	ssize_t n;

	(void)flags;
	do
		n = send(ws->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n >= 0) {
		ws->sent_bytes += (u64)n;
		return n;
	}
	wslay_event_set_error(ctx,
			      errno == EAGAIN ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
	return -1;
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *msg,
		       void *opaque)
{
	struct ws *ws = opaque;
	int ret = 0;

	(void)ctx;
	if (msg->opcode == WSLAY_TEXT_FRAME)
		ret = ws->ops->text(ws->opaque, (const char *)msg->msg, msg->msg_length);
	else if (msg->opcode == WSLAY_BINARY_FRAME)
		ret = ws->ops->binary(ws->opaque, msg->msg, msg->msg_length);
	if (ret)
		ws_close(ws, WS_CLOSE_PROTOCOL);
}

int ws_init(struct ws *ws, int fd, const struct ws_ops *ops, void *opaque)
{
	const struct wslay_event_callbacks callbacks = {
		.recv_callback = on_recv,
		.send_callback = on_send,
		.on_msg_recv_callback = on_message,
	};
	wslay_event_context_ptr ctx;

	*ws = (struct ws){.fd = fd, .ops = ops, .opaque = opaque};
	if (wslay_event_context_server_init(&ctx, &callbacks, ws)) {
		fd_close(&ws->fd);
		return -ENOMEM;
	}
	wslay_event_config_set_max_recv_msg_length(ctx, WS_MESSAGE_MAX);
	ws->ctx = ctx;
	return 0;
}

void ws_destroy(struct ws *ws)
{
	if (ws->ctx)
		wslay_event_context_free(ws->ctx);
	ws->ctx = NULL;
	fd_close(&ws->fd);
}

static bool reads(const struct ws *ws)
{
	return wslay_event_want_read(ws->ctx) &&
	       wslay_event_get_queued_msg_count(ws->ctx) < QUEUED_MAX;
}

short ws_events(const struct ws *ws, bool may_read)
{
	short events = 0;

	if (may_read && reads(ws))
		events |= POLLIN;
	if (!ws_idle(ws))
		events |= POLLOUT;
	return events ? events : POLLRDHUP;
}

int ws_receive(struct ws *ws)
{
	if (!reads(ws))
		return 0;
	if (wslay_event_recv(ws->ctx)) {
		ws->failed = true;
		return -ECONNRESET;
	}
	return 0;
}

static int send_queued(struct ws *ws)
{
	if (!wslay_event_want_write(ws->ctx) || !wslay_event_send(ws->ctx))
		return 0;
	ws->failed = true;
	return -EPIPE;
}

int ws_send_some(struct ws *ws)
{
	int ret = send_queued(ws);

	/* wslay sends control frames before messages that were queued earlier. */
	if (ret || !ws->close_due || wslay_event_want_write(ws->ctx))
		return ret;
	(void)!wslay_event_queue_close(ws->ctx, (uint16_t)ws->close_due, NULL, 0);
	ws->close_due = 0;
	return send_queued(ws);
}

bool ws_idle(const struct ws *ws)
{
	return !ws->close_due && !wslay_event_want_write(ws->ctx);
}

static int queue(struct ws *ws, u8 opcode, const void *data, size_t len_bytes)
{
	const struct wslay_event_msg msg = {.opcode = opcode, .msg = data, .msg_length = len_bytes};

	if (ws->close_due)
		return -EPIPE;
	switch (wslay_event_queue_msg(ws->ctx, &msg)) {
	case 0:
		return 0;
	case WSLAY_ERR_NO_MORE_MSG:
		return -EPIPE;
	default:
		return -ENOMEM;
	}
}

int ws_text(struct ws *ws, const char *text)
{
	return queue(ws, WSLAY_TEXT_FRAME, text, strlen(text));
}

int ws_binary(struct ws *ws, const void *data, size_t len_bytes)
{
	return queue(ws, WSLAY_BINARY_FRAME, data, len_bytes);
}

int ws_ping(struct ws *ws)
{
	return queue(ws, WSLAY_PING, NULL, 0);
}

void ws_close(struct ws *ws, enum ws_close_code code)
{
	if (!wslay_event_get_close_sent(ws->ctx) && !ws->close_due)
		ws->close_due = code;
}

bool ws_over(const struct ws *ws)
{
	return ws->failed || (wslay_event_get_close_sent(ws->ctx) && ws_idle(ws));
}
