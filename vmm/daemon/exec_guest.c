// SPDX-License-Identifier: Apache-2.0
// thawd's end of a shim stream for a kept exec.
#include "vmm/daemon/exec_guest.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "guest/shim/frame.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

int exec_guest_init(struct exec_guest *g, int fd, const struct exec_guest_ops *ops, void *opaque)
{
	*g = (struct exec_guest){.fd = fd, .ops = ops, .opaque = opaque};
	/* malloc: of the buffer only what is used is ever touched. */
	g->rx = malloc(EXEC_GUEST_RX_BYTES);
	if (g->rx)
		return 0;
	exec_guest_destroy(g);
	return -ENOMEM;
}

void exec_guest_destroy(struct exec_guest *g)
{
	fd_close(&g->fd);
	free(g->rx);
	free(g->tx);
	g->rx = g->tx = NULL;
	g->rx_len = g->tx_len = g->tx_max = 0;
}

int exec_guest_put(struct exec_guest *g, enum shim_frame_type type, const void *payload,
		   size_t len_bytes)
{
	size_t need = g->tx_len + FRAME_HEADER_BYTES + len_bytes;
	u8 *tx;

	if (g->tx_start) {
		memmove(g->tx, g->tx + g->tx_start, g->tx_len);
		g->tx_start = 0;
	}
	if (need > g->tx_max) {
		tx = realloc(g->tx, need);
		if (!tx)
			return -ENOMEM;
		g->tx = tx;
		g->tx_max = need;
	}
	frame_put(g->tx + g->tx_len, type, (u32)len_bytes);
	if (len_bytes)
		memcpy(g->tx + g->tx_len + FRAME_HEADER_BYTES, payload, len_bytes);
	g->tx_len = need;
	if (type == SHIM_STDIN)
		g->window_used += (u32)len_bytes;
	return 0;
}

int exec_guest_exec(struct exec_guest *g, const void *payload, size_t len_bytes)
{
	g->state = EXEC_GUEST_FRESH;
	return exec_guest_put(g, SHIM_EXEC, payload, len_bytes);
}

int exec_guest_attach(struct exec_guest *g, const u8 id[SHIM_ID_BYTES], u64 offset)
{
	struct shim_attach body = {.offset = offset};

	memcpy(body.id, id, sizeof(body.id));
	g->state = EXEC_GUEST_ATTACHING;
	g->asked = offset;
	/* What an earlier stream had under way only the shim knows: it gives back what is free. */
	g->window_used = SHIM_STDIN_WINDOW_BYTES;
	return exec_guest_put(g, SHIM_ATTACH, &body, sizeof(body));
}

size_t exec_guest_stdin_room(const struct exec_guest *g)
{
	if (g->tx_len || g->state == EXEC_GUEST_ATTACHING || g->state == EXEC_GUEST_OVER)
		return 0;
	return MIN(SHIM_DATA_MAX_BYTES, SHIM_STDIN_WINDOW_BYTES - g->window_used);
}

int exec_guest_send(struct exec_guest *g)
{
	while (g->tx_len) {
		ssize_t n =
			send(g->fd, g->tx + g->tx_start, g->tx_len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? 0 : -errno;
		g->tx_start += (size_t)n;
		g->tx_len -= (size_t)n;
	}
	/* A request can be 2 MiB; nothing later is of that size. */
	free(g->tx);
	g->tx = NULL;
	g->tx_start = g->tx_max = 0;
	return 0;
}

bool exec_guest_exit_ok(u32 kind, u32 value, u32 flags)
{
	if (flags & ~(u32)(SHIM_EXIT_DRAINED | SHIM_EXIT_TIMED_OUT | SHIM_EXIT_OOM))
		return false;
	if (kind == SHIM_EXIT_CODE)
		return value <= 255;
	return kind == SHIM_EXIT_SIGNAL && value >= 1 && value <= 64;
}

static int take_started(struct exec_guest *g, const u8 *payload)
{
	u32 pid = frame_get_u32(payload);

	if (!pid || pid > INT32_MAX)
		return -EPROTO;
	/* An attached stream may say it again. */
	if (g->state == EXEC_GUEST_RUNNING && g->pid == pid)
		return 0;
	if (g->state == EXEC_GUEST_ATTACHING || g->pid)
		return -EPROTO;
	g->state = EXEC_GUEST_RUNNING;
	g->pid = pid;
	g->ops->started(g->opaque, pid);
	return 0;
}

static int take_attached(struct exec_guest *g, const u8 *payload)
{
	struct shim_attached body;

	memcpy(&body, payload, sizeof(body));
	if (g->state != EXEC_GUEST_ATTACHING || body.offset > body.end ||
	    body.end > UINT64_MAX / 2 || body.state > SHIM_STATE_ENDED || body.pid > INT32_MAX)
		return -EPROTO;
	/* What it once printed it has printed. */
	if (body.offset < g->asked && g->asked != UINT64_MAX)
		return -EPROTO;
	g->offset = body.offset;
	g->state = EXEC_GUEST_RUNNING;
	g->ops->attached(g->opaque, &body);
	if (body.pid) {
		g->pid = body.pid;
		g->ops->started(g->opaque, body.pid);
	}
	return 0;
}

static int take_exit(struct exec_guest *g, const u8 *payload)
{
	struct shim_exit body;

	memcpy(&body, payload, sizeof(body));
	if (g->state != EXEC_GUEST_RUNNING || !g->pid ||
	    !exec_guest_exit_ok(body.kind, body.value, body.flags))
		return -EPROTO;
	g->state = EXEC_GUEST_OVER;
	g->ops->exited(g->opaque, &body);
	return 0;
}

static int take_error(struct exec_guest *g, const u8 *payload, u32 len_bytes)
{
	u32 text_len = len_bytes - (u32)sizeof(struct shim_error);
	char text[SHIM_TEXT_MAX_BYTES + 1];
	struct shim_error body;

	memcpy(&body, payload, sizeof(body));
	if (body.stage > SHIM_STAGE_EXEC || !body.error || body.error > 4095)
		return -EPROTO;
	for (u32 i = 0; i < text_len; i++) {
		u8 c = payload[sizeof(body) + i];

		text[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
	}
	text[text_len] = '\0';
	g->state = EXEC_GUEST_OVER;
	g->ops->failed(g->opaque, &body, text);
	return 0;
}

static int take_credit(struct exec_guest *g, u32 bytes)
{
	if (bytes > g->window_used)
		return -EPROTO;
	g->window_used -= bytes;
	g->ops->room(g->opaque);
	return 0;
}

static int take_frame(struct exec_guest *g, const struct shim_frame *frame, const u8 *payload)
{
	switch (frame->type) {
	case SHIM_STARTED:
		return take_started(g, payload);
	case SHIM_ATTACHED:
		return take_attached(g, payload);
	case SHIM_STDIN_CREDIT:
		return take_credit(g, frame_get_u32(payload));
	case SHIM_EXIT:
		return take_exit(g, payload);
	case SHIM_ERROR:
		return take_error(g, payload, frame->len_bytes);
	default:
		return -EPROTO;
	}
}

static int pass_data(struct exec_guest *g)
{
	size_t len = MIN((size_t)g->data_left, g->rx_len);
	int ret;

	ret = g->ops->output(g->opaque, g->data_stream, g->rx + g->rx_start, len);
	if (ret)
		return ret;
	g->offset += len;
	g->data_left -= (u32)len;
	g->rx_start += len;
	g->rx_len -= len;
	return 0;
}

/* The next frame's header, or all of a frame without data. Return: 1, 0 when there is not enough,
 * or -errno. */
static int next_frame(struct exec_guest *g)
{
	const u8 *at = g->rx + g->rx_start;
	size_t len = FRAME_HEADER_BYTES;
	struct shim_frame frame;
	int ret;

	if (g->rx_len < len)
		return 0;
	ret = frame_get(at, FRAME_FROM_GUEST, &frame);
	if (ret)
		return -EPROTO;
	if (g->state == EXEC_GUEST_OVER)
		return -EPROTO;
	if (frame.type == SHIM_STDOUT || frame.type == SHIM_STDERR) {
		if (g->state != EXEC_GUEST_RUNNING || !g->pid)
			return -EPROTO;
		g->data_stream = frame.type == SHIM_STDOUT ? EXEC_STDOUT : EXEC_STDERR;
		g->data_left = frame.len_bytes;
	} else {
		len += frame.len_bytes;
		if (g->rx_len < len)
			return 0;
		ret = take_frame(g, &frame, at + FRAME_HEADER_BYTES);
		if (ret)
			return ret;
	}
	g->rx_start += len;
	g->rx_len -= len;
	return 1;
}

int exec_guest_receive(struct exec_guest *g)
{
	ssize_t n = recv(g->fd, g->rx + g->rx_len, EXEC_GUEST_RX_BYTES - g->rx_len, MSG_DONTWAIT);
	int ret = 1;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	if (n == 0)
		return -ENODATA;
	g->rx_len += (size_t)n;
	while (ret > 0) {
		if (g->data_left && g->rx_len)
			ret = pass_data(g) ?: 1;
		else if (g->data_left)
			ret = 0;
		else
			ret = next_frame(g);
	}
	/* At most the beginning of a frame that is not data: a few hundred bytes. */
	if (g->rx_start) {
		memmove(g->rx, g->rx + g->rx_start, g->rx_len);
		g->rx_start = 0;
	}
	return ret;
}

/* --- one question, its answers --- */

struct call {
	int fd, stop_fd;
	u64 deadline_ns;
	size_t len;
	u8 buf[FRAME_HEADER_BYTES + sizeof(struct shim_error) + SHIM_TEXT_MAX_BYTES];
};

static int call_wait(const struct call *c, short events)
{
	struct pollfd fds[2] = {{.fd = c->fd, .events = events},
				{.fd = c->stop_fd, .events = POLLIN}};
	u64 now_ns = clock_now_ns();
	int n;

	if (now_ns >= c->deadline_ns)
		return -ETIMEDOUT;
	n = poll(fds, 2, (int)MIN((c->deadline_ns - now_ns) / 1000000 + 1, (u64)INT32_MAX));
	if (n < 0 && errno != EINTR)
		return -errno;
	return n > 0 && fds[1].revents ? -ECANCELED : 0;
}

static int call_send(const struct call *c, const u8 *data, size_t len_bytes)
{
	while (len_bytes) {
		ssize_t n = send(c->fd, data, len_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0) {
			data += n;
			len_bytes -= (size_t)n;
			continue;
		}
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		n = call_wait(c, POLLOUT);
		if (n)
			return (int)n;
	}
	return 0;
}

static int call_fill(struct call *c, size_t want)
{
	while (c->len < want) {
		ssize_t n = recv(c->fd, c->buf + c->len, want - c->len, MSG_DONTWAIT);

		if (n > 0) {
			c->len += (size_t)n;
			continue;
		}
		if (!n)
			return -ENODATA;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		n = call_wait(c, POLLIN);
		if (n)
			return (int)n;
	}
	return 0;
}

static int call_frame(struct call *c, struct shim_frame *frame)
{
	int ret;

	c->len = 0;
	ret = call_fill(c, FRAME_HEADER_BYTES);
	if (ret)
		return ret;
	if (frame_get(c->buf, FRAME_FROM_GUEST, frame) ||
	    frame->len_bytes > sizeof(c->buf) - FRAME_HEADER_BYTES)
		return -EPROTO;
	return call_fill(c, FRAME_HEADER_BYTES + frame->len_bytes);
}

static bool entry_ok(const struct shim_entry *e)
{
	if (e->oldest > e->end || e->end > UINT64_MAX / 2 || e->state > SHIM_STATE_ENDED ||
	    e->pid > INT32_MAX)
		return false;
	return e->state == SHIM_STATE_RUNNING || exec_guest_exit_ok(e->kind, e->value, e->flags);
}

/* Return: 1 to go on, 0 (SHIM_OK), or -errno. */
static int call_take(const struct call *c, const struct shim_frame *frame,
		     void (*entry)(void *opaque, const struct shim_entry *entry), void *opaque)
{
	const u8 *payload = c->buf + FRAME_HEADER_BYTES;
	struct shim_error error;
	struct shim_entry body;

	switch (frame->type) {
	case SHIM_OK:
		return 0;
	case SHIM_ERROR:
		memcpy(&error, payload, sizeof(error));
		return error.error && error.error <= 4095 ? -(int)error.error : -EPROTO;
	case SHIM_ENTRY:
		memcpy(&body, payload, sizeof(body));
		if (!entry || !entry_ok(&body))
			return -EPROTO;
		entry(opaque, &body);
		return 1;
	default:
		return -EPROTO;
	}
}

int exec_guest_call(int fd, enum shim_frame_type type, const void *payload, size_t len_bytes,
		    u64 deadline_ns, int stop_fd,
		    void (*entry)(void *opaque, const struct shim_entry *entry), void *opaque)
{
	struct call c = {.fd = fd, .stop_fd = stop_fd, .deadline_ns = deadline_ns};
	struct shim_frame frame;
	int ret;

	BUG_ON(len_bytes > SHIM_ID_BYTES);
	frame_put(c.buf, type, (u32)len_bytes);
	if (len_bytes)
		memcpy(c.buf + FRAME_HEADER_BYTES, payload, len_bytes);
	ret = call_send(&c, c.buf, FRAME_HEADER_BYTES + len_bytes);
	/* 512 is more than the shim keeps, and an end for one that never stops. */
	for (int i = 0; !ret && i < 512; i++) {
		ret = call_frame(&c, &frame);
		if (ret)
			break;
		ret = call_take(&c, &frame, entry, opaque);
		if (ret <= 0)
			return ret;
		ret = 0;
	}
	return ret ? ret : -EPROTO;
}
