// SPDX-License-Identifier: Apache-2.0
// Requests of the exec protocol: an exec's bytes, and the operations that are one question and one
// answer.
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "guest/shim/frame.h"
#include "vmm/cli/exec.h"
#include "vmm/util/util.h"

/* Counts a NULL-terminated array and adds its strings, NULs included, to *@len_bytes. */
static u32 count_strings(char *const *strings, size_t *len_bytes)
{
	u32 n = 0;

	/* More than SHIM_ARGS_MAX is refused anyway: the count needs not be exact then. */
	for (; strings && strings[n] && n <= SHIM_ARGS_MAX; n++)
		*len_bytes += strlen(strings[n]) + 1;
	return n;
}

static u8 *put_strings(u8 *at, char *const *strings, u32 count)
{
	for (u32 i = 0; i < count; i++) {
		size_t len = strlen(strings[i]) + 1;

		memcpy(at, strings[i], len);
		at += len;
	}
	return at;
}

int exec_frame_build(const struct exec_request *req, u8 **out, size_t *len_bytes)
{
	struct shim_exec head = {
		.flags = (req->with_stdin ? SHIM_EXEC_STDIN : 0) |
			 (req->detach ? SHIM_EXEC_DETACH : 0) | (req->ext ? SHIM_EXEC_EXT : 0),
		.has_cwd = req->cwd != NULL,
		.uid = req->uid,
		.gid = req->gid,
		.drain_ms = req->drain_ms,
	};
	size_t len = sizeof(head) + (req->ext ? sizeof(*req->ext) : 0);
	u8 *frame, *at;

	head.argc = count_strings(req->argv, &len);
	head.envc = count_strings(req->env, &len);
	if (head.argc > SHIM_ARGS_MAX || head.envc > SHIM_ARGS_MAX - head.argc)
		return -E2BIG;
	if (!head.argc || !req->argv[0][0] || (req->cwd && !req->cwd[0]))
		return -EINVAL;
	if (req->uid == UINT32_MAX || req->gid == UINT32_MAX)
		return -EINVAL;
	if (req->detach && req->with_stdin)
		return -EINVAL;
	for (u32 i = 0; i < head.envc; i++) {
		const char *eq = strchr(req->env[i], '=');

		if (!eq || eq == req->env[i])
			return -EINVAL;
	}
	if (req->cwd)
		len += strlen(req->cwd) + 1;
	if (len > SHIM_EXEC_MAX_BYTES)
		return -E2BIG;
	frame = malloc(FRAME_HEADER_BYTES + len);
	if (!frame)
		return -ENOMEM;
	frame_put(frame, SHIM_EXEC, (u32)len);
	memcpy(frame + FRAME_HEADER_BYTES, &head, sizeof(head));
	at = frame + FRAME_HEADER_BYTES + sizeof(head);
	if (req->ext) {
		memcpy(at, req->ext, sizeof(*req->ext));
		at += sizeof(*req->ext);
	}
	at = put_strings(at, req->argv, head.argc);
	at = put_strings(at, req->env, head.envc);
	if (req->cwd)
		memcpy(at, req->cwd, strlen(req->cwd) + 1);
	*out = frame;
	*len_bytes = FRAME_HEADER_BYTES + len;
	return 0;
}

int exec_payload_build(const struct exec_request *req, u8 **out, size_t *len_bytes)
{
	int ret = exec_frame_build(req, out, len_bytes);

	if (ret)
		return ret;
	*len_bytes -= FRAME_HEADER_BYTES;
	memmove(*out, *out + FRAME_HEADER_BYTES, *len_bytes);
	return 0;
}

/* Wait until @stream is ready for @events. Return: 0, -ETIMEDOUT or -errno. */
static int wait_ready(int stream, short events, u64 deadline_ns)
{
	struct pollfd fd = {.fd = stream, .events = events};
	int timeout_ms = -1, n;

	for (;;) {
		if (deadline_ns) {
			u64 now_ns = clock_now_ns();

			if (now_ns >= deadline_ns)
				return -ETIMEDOUT;
			timeout_ms = (int)MIN((deadline_ns - now_ns) / 1000000 + 1, (u64)INT_MAX);
		}
		n = poll(&fd, 1, timeout_ms);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
}

/* Return: 0, -EPIPE at the stream's end, -ETIMEDOUT, or -errno. */
static int read_answer(int stream, u8 *buf, size_t len_bytes, u64 deadline_ns)
{
	while (len_bytes) {
		ssize_t n = recv(stream, buf, len_bytes, MSG_DONTWAIT);
		int ret;

		if (!n || (n < 0 && errno == ECONNRESET))
			return -EPIPE;
		if (n > 0) {
			buf += n;
			len_bytes -= (size_t)n;
			continue;
		}
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		ret = wait_ready(stream, POLLIN, deadline_ns);
		if (ret)
			return ret;
	}
	return 0;
}

/* One question with @payload of 4 bytes or none (NULL), one answer of @want without payload. */
static int ask(int stream, enum shim_frame_type type, const u32 *payload, enum shim_frame_type want,
	       u64 deadline_ns)
{
	u8 buf[FRAME_HEADER_BYTES + sizeof(struct shim_error) + SHIM_TEXT_MAX_BYTES];
	const size_t len_bytes = FRAME_HEADER_BYTES + (payload ? sizeof(*payload) : 0);
	struct shim_frame frame;
	u32 error;
	int ret;

	frame_put(buf, type, payload ? sizeof(*payload) : 0);
	if (payload)
		frame_put_u32(buf + FRAME_HEADER_BYTES, *payload);
	/* The first bytes of a stream: they fit its buffer. */
	if (send(stream, buf, len_bytes, MSG_NOSIGNAL) != (ssize_t)len_bytes)
		return errno == ECONNRESET ? -EPIPE : -errno;
	ret = read_answer(stream, buf, FRAME_HEADER_BYTES, deadline_ns);
	if (ret)
		return ret;
	ret = frame_get(buf, FRAME_FROM_GUEST, &frame);
	if (ret)
		return -EPROTO;
	if (frame.type == want && !frame.len_bytes)
		return 0;
	if (frame.type != SHIM_ERROR)
		return -EPROTO;
	ret = read_answer(stream, buf, frame.len_bytes, deadline_ns);
	if (ret)
		return ret;
	error = frame_get_u32(buf + offsetof(struct shim_error, error));
	return error && error <= 4095 ? -(int)error : -EPROTO;
}

int exec_ping(int stream, u64 deadline_ns)
{
	return ask(stream, SHIM_PING, NULL, SHIM_PONG, deadline_ns);
}

int exec_checkpoint(int stream, u64 deadline_ns)
{
	return ask(stream, SHIM_CHECKPOINT, NULL, SHIM_OK, deadline_ns);
}

int exec_poweroff(int stream, u64 deadline_ns)
{
	return ask(stream, SHIM_POWEROFF, NULL, SHIM_OK, deadline_ns);
}

int exec_checkpoint_live(int stream, u64 deadline_ns)
{
	return ask(stream, SHIM_CHECKPOINT_LIVE, NULL, SHIM_OK, deadline_ns);
}

int exec_shutdown(int stream, u32 grace_ms, u64 deadline_ns)
{
	return ask(stream, SHIM_SHUTDOWN, &grace_ms, SHIM_OK, deadline_ns);
}
