// SPDX-License-Identifier: Apache-2.0
/*
 * The host's side of an exec.
 *
 * One poll() loop over the stream, the caller's stdin, whichever of stdout and stderr is behind,
 * its signals and one fd it wants watched. poll, because a stdin that is a regular file can't be in
 * an epoll set. None of the caller's fds is made non-blocking: O_NONBLOCK would be seen by every
 * process that shares them. So a pipe is written with RWF_NOWAIT, or where the kernel has no such
 * thing for pipes, PIPE_BUF bytes at a time after poll() said that it takes some.
 *
 * Two buffers, one a direction, and each is emptied before it is filled again:
 *
 *   guest to host   what is in rx goes out before more is received; a frame's data is passed on as
 * it comes, never collected host to guest   one chunk at a time: the request, a signal, or a piece
 * of stdin. Stdin is read only while the shim has room for it (SHIM_STDIN_WINDOW_BYTES), so the
 * guest always takes the chunk, and a signal waits for one piece of stdin at most
 *
 * A send that fails does not end the exec: the shim closes the stream behind its last frame, and
 * that one may not have been read yet.
 */
#include "vmm/cli/exec.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/shim/frame.h"
#include "vmm/cli/exec_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define RX_BYTES (FRAME_HEADER_BYTES + SHIM_DATA_MAX_BYTES)

struct exec {
	int stream;
	const struct exec_io *io;
	struct exec_result *result;
	bool done;
	bool detach;
	bool attached;	 /* SHIM_ATTACHED has come */
	bool sent_stdin; /* to this stream */

	/* To the guest. */
	const u8 *tx; /* the chunk under way */
	size_t tx_len;
	u8 *request; /* owned; the first chunk, freed when it is sent */
	bool tx_dead;
	bool stdin_open;
	bool eof_due; /* SHIM_STDIN_EOF follows the request: there is no stdin to read */
	u32 window_used;
	u64 signals; /* to be forwarded: bit n-1 is signal n */
	bool resize; /* the terminal's size is to be told */
	struct detach_keys keys;
	bool watching;

	/* From the guest. */
	struct out out, err;
	struct out *data; /* where the current frame's payload goes */
	u32 data_left;
	bool blocked; /* data->fd takes nothing */
	size_t rx_start, rx_len;

	u8 tx_buf[FRAME_HEADER_BYTES + SHIM_DATA_MAX_BYTES];
	u8 rx_buf[RX_BYTES];
};

static void finish(struct exec *e, enum exec_kind kind, int error, const char *text)
{
	e->done = true;
	e->result->kind = kind;
	e->result->error = error;
	if (text) {
		strncpy(e->result->text, text, sizeof(e->result->text) - 1);
		e->result->text[sizeof(e->result->text) - 1] = '\0';
	}
}

/* Pass on what is there of the current data frame. Return: false when there is nothing, or it can't
 * go on. */
static bool pass_data(struct exec *e)
{
	size_t len = MIN((size_t)e->data_left, e->rx_len);
	ssize_t n;

	if (!len)
		return false;
	n = out_write(e->data, e->rx_buf + e->rx_start, len);
	if (n == -EINTR)
		return true;
	if (n == -EAGAIN) {
		e->blocked = true;
		return false;
	}
	if (n < 0) {
		finish(e, EXEC_OUTPUT_ERROR, (int)-n,
		       e->data == &e->out ? "writing stdout" : "writing stderr");
		return false;
	}
	*e->data->count_bytes += (u64)n;
	e->result->cursor += (u64)n;
	e->data_left -= (u32)n;
	e->rx_start += (size_t)n;
	e->rx_len -= (size_t)n;
	return true;
}

static void take_exit(struct exec *e, const u8 *payload)
{
	struct shim_exit body;
	bool ok;

	memcpy(&body, payload, sizeof(body));
	ok = !(body.flags & ~(SHIM_EXIT_DRAINED | SHIM_EXIT_TIMED_OUT | SHIM_EXIT_OOM));
	if (body.kind == SHIM_EXIT_CODE)
		ok = ok && body.value <= 255;
	else
		ok = ok && body.kind == SHIM_EXIT_SIGNAL && body.value >= 1 && body.value <= 64;
	if (!ok || !e->result->pid) {
		finish(e, EXEC_PROTOCOL, EPROTO, "malformed exit frame");
		return;
	}
	e->result->exit_ns = clock_now_ns();
	e->result->value = body.value;
	e->result->drained = body.flags & SHIM_EXIT_DRAINED;
	e->result->timed_out = body.flags & SHIM_EXIT_TIMED_OUT;
	e->result->oom_killed = body.flags & SHIM_EXIT_OOM;
	finish(e, body.kind == SHIM_EXIT_CODE ? EXEC_EXITED : EXEC_SIGNALLED, 0, NULL);
}

static void take_error(struct exec *e, const u8 *payload, u32 len_bytes)
{
	u32 text_len = len_bytes - (u32)sizeof(struct shim_error);
	struct exec_result *result = e->result;
	struct shim_error body;

	memcpy(&body, payload, sizeof(body));
	if (body.stage > SHIM_STAGE_EXEC || !body.error || body.error > 4095) {
		finish(e, EXEC_PROTOCOL, EPROTO, "malformed error frame");
		return;
	}
	result->exit_ns = clock_now_ns();
	result->stage = body.stage;
	/* It ends up on terminals. */
	for (u32 i = 0; i < text_len; i++) {
		u8 c = payload[sizeof(body) + i];

		result->text[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
	}
	result->text[text_len] = '\0';
	finish(e, EXEC_SPAWN_ERROR, (int)body.error, NULL);
}

static void take_credit(struct exec *e, u32 bytes)
{
	if (bytes > e->window_used)
		finish(e, EXEC_PROTOCOL, EPROTO, "credit for stdin that was never sent");
	else
		e->window_used -= bytes;
}

static void take_attached(struct exec *e, const u8 *payload)
{
	struct shim_attached body;

	memcpy(&body, payload, sizeof(body));
	if (!e->io->attach || e->attached) {
		finish(e, EXEC_PROTOCOL, EPROTO, "unexpected frame");
		return;
	}
	e->attached = true;
	/* Its terminal may have been another one's until now. */
	e->resize = e->io->tty;
	e->result->cursor = body.offset;
	e->result->pid = body.pid;
	e->result->started_ns = clock_now_ns();
}

static void take_frame(struct exec *e, const struct shim_frame *frame, const u8 *payload)
{
	switch (frame->type) {
	case SHIM_STARTED:
		e->result->pid = frame_get_u32(payload);
		e->result->started_ns = clock_now_ns();
		if (e->detach)
			finish(e, EXEC_DETACHED, 0, NULL);
		break;
	case SHIM_ATTACHED:
		take_attached(e, payload);
		break;
	case SHIM_STDIN_CREDIT:
		take_credit(e, frame_get_u32(payload));
		break;
	case SHIM_EXIT:
		take_exit(e, payload);
		break;
	case SHIM_ERROR:
		take_error(e, payload, frame->len_bytes);
		break;
	default:
		finish(e, EXEC_PROTOCOL, EPROTO, "unexpected frame");
		break;
	}
}

/* Everything in rx that can be dealt with now. */
static void take_all(struct exec *e)
{
	struct shim_frame frame;
	size_t len;
	int ret;

	while (!e->done && !e->blocked) {
		const u8 *at = e->rx_buf + e->rx_start;

		if (e->data_left) {
			if (!pass_data(e))
				break;
			continue;
		}
		if (e->rx_len < FRAME_HEADER_BYTES)
			break;
		ret = frame_get(at, FRAME_FROM_GUEST, &frame);
		if (ret) {
			finish(e, EXEC_PROTOCOL, -ret, "malformed frame header");
			break;
		}
		len = FRAME_HEADER_BYTES;
		if (frame.type == SHIM_STDOUT || frame.type == SHIM_STDERR) {
			e->data = frame.type == SHIM_STDOUT ? &e->out : &e->err;
			e->data_left = frame.len_bytes;
		} else {
			len += frame.len_bytes;
			if (e->rx_len < len)
				break;
			take_frame(e, &frame, at + FRAME_HEADER_BYTES);
		}
		e->rx_start += len;
		e->rx_len -= len;
	}
	/* An incomplete frame moves to the front: at most a few hundred bytes, since data is passed
	 * on. */
	if (!e->blocked && e->rx_start) {
		memmove(e->rx_buf, e->rx_buf + e->rx_start, e->rx_len);
		e->rx_start = 0;
	}
}

static void receive(struct exec *e)
{
	size_t end = e->rx_start + e->rx_len;
	ssize_t n = recv(e->stream, e->rx_buf + end, RX_BYTES - end, MSG_DONTWAIT);

	if (n > 0) {
		e->rx_len += (size_t)n;
		take_all(e);
	} else if (n == 0) {
		finish(e, EXEC_LOST, 0, "the stream ended before the command did");
	} else if (errno != EAGAIN && errno != EINTR) {
		finish(e, EXEC_LOST, errno, "the stream failed before the command ended");
	}
}

static void put_resize(struct exec *e)
{
	struct shim_size size;

	e->resize = false;
	if (!tty_size_of(e->io->tty_fd, &size))
		return;
	frame_put(e->tx_buf, SHIM_RESIZE, sizeof(size));
	memcpy(e->tx_buf + FRAME_HEADER_BYTES, &size, sizeof(size));
	e->tx = e->tx_buf;
	e->tx_len = FRAME_HEADER_BYTES + sizeof(size);
}

/* The next chunk, if there is one that need not be read first. */
static void next_chunk(struct exec *e)
{
	u32 number;

	free(e->request);
	e->request = NULL;
	if (e->eof_due) {
		e->eof_due = false;
		frame_put(e->tx_buf, SHIM_STDIN_EOF, 0);
		e->tx = e->tx_buf;
		e->tx_len = FRAME_HEADER_BYTES;
		return;
	}
	if (e->resize) {
		put_resize(e);
		return;
	}
	if (!e->signals)
		return;
	number = (u32)__builtin_ctzll(e->signals) + 1;
	e->signals &= e->signals - 1;
	frame_put(e->tx_buf, SHIM_SIGNAL, sizeof(number));
	frame_put_u32(e->tx_buf + FRAME_HEADER_BYTES, number);
	e->tx = e->tx_buf;
	e->tx_len = FRAME_HEADER_BYTES + sizeof(number);
}

static void transmit(struct exec *e)
{
	ssize_t n;

	if (!e->tx_len)
		next_chunk(e);
	while (e->tx_len && !e->tx_dead) {
		n = send(e->stream, e->tx, e->tx_len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0 && errno != EINTR) {
			e->tx_dead = true;
			e->stdin_open = false;
			return;
		}
		if (n > 0) {
			e->tx += n;
			e->tx_len -= (size_t)n;
		}
		if (!e->tx_len)
			next_chunk(e);
	}
}

static bool wants_stdin(const struct exec *e)
{
	return e->stdin_open && !e->tx_len && e->window_used < SHIM_STDIN_WINDOW_BYTES;
}

static void read_stdin(struct exec *e)
{
	size_t room = MIN(SHIM_DATA_MAX_BYTES, SHIM_STDIN_WINDOW_BYTES - e->window_used);
	ssize_t n;

	/* A key that was held back comes first: it has its place. */
	if (e->io->detach_keys && room > 1)
		room--;
	n = read(e->io->stdin_fd, e->tx_buf + FRAME_HEADER_BYTES, room);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0)
		log_warn("stdin: %s; the command sees its end", strerror(errno));
	if (n <= 0) {
		n = 0;
		e->stdin_open = false;
	}
	if (n && e->io->detach_keys) {
		n = (ssize_t)detach_filter(&e->keys, e->tx_buf + FRAME_HEADER_BYTES, (size_t)n);
		if (e->keys.pressed)
			finish(e, EXEC_DETACHED, 0, NULL);
		if (!n)
			return;
	}
	frame_put(e->tx_buf, e->stdin_open ? SHIM_STDIN : SHIM_STDIN_EOF, (u32)n);
	e->window_used += (u32)n;
	e->sent_stdin = true;
	e->tx = e->tx_buf;
	e->tx_len = FRAME_HEADER_BYTES + (size_t)n;
	transmit(e);
}

static void read_signal(struct exec *e)
{
	struct signalfd_siginfo info;

	if (read(e->io->signal_fd, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGWINCH && e->io->tty)
		e->resize = true;
	else if (info.ssi_signo >= 1 && info.ssi_signo <= 64)
		e->signals |= 1ull << (info.ssi_signo - 1);
	transmit(e);
}

static void call_watch(struct exec *e)
{
	int ret = e->io->watch(e->io->opaque);

	if (ret < 0)
		finish(e, EXEC_ABORTED, -ret, NULL);
	else if (ret)
		e->watching = false;
}

/* Return: milliseconds for poll(), or 0 with the exec finished when the time is up. */
static int time_left_ms(struct exec *e)
{
	u64 now_ns;

	if (!e->io->deadline_ns)
		return -1;
	now_ns = clock_now_ns();
	if (now_ns >= e->io->deadline_ns) {
		finish(e, EXEC_TIMEOUT, 0, NULL);
		return 0;
	}
	return (int)MIN((e->io->deadline_ns - now_ns) / 1000000 + 1, (u64)INT_MAX);
}

enum { WAIT_STREAM, WAIT_STDIN, WAIT_OUT, WAIT_SIGNAL, WAIT_WATCH, WAIT_COUNT };

/* Wait once and do what can be done. Return: 0 or -errno. */
static int step(struct exec *e)
{
	struct pollfd fds[WAIT_COUNT] = {
		[WAIT_STREAM] = {.fd = e->stream},
		[WAIT_STDIN] = {.fd = wants_stdin(e) ? e->io->stdin_fd : -1, .events = POLLIN},
		[WAIT_OUT] = {.fd = e->blocked ? e->data->fd : -1, .events = POLLOUT},
		[WAIT_SIGNAL] = {.fd = e->io->signal_fd, .events = POLLIN},
		[WAIT_WATCH] = {.fd = e->watching ? e->io->watch_fd : -1, .events = POLLIN},
	};
	int timeout_ms = time_left_ms(e);

	if (e->done)
		return 0;
	if (!e->blocked)
		fds[WAIT_STREAM].events |= POLLIN;
	if (e->tx_len && !e->tx_dead)
		fds[WAIT_STREAM].events |= POLLOUT;
	/* A hang-up is reported whether asked for or not: while nothing is wanted, it would be a
	 * busy loop. */
	if (!fds[WAIT_STREAM].events)
		fds[WAIT_STREAM].fd = -1;
	if (poll(fds, WAIT_COUNT, timeout_ms) < 0)
		return errno == EINTR ? 0 : -errno;
	if (fds[WAIT_WATCH].revents)
		call_watch(e);
	if (!e->done && fds[WAIT_SIGNAL].revents)
		read_signal(e);
	if (!e->done && fds[WAIT_OUT].revents) {
		e->blocked = false;
		take_all(e);
	}
	if (!e->done && !e->blocked && (fds[WAIT_STREAM].revents & (POLLIN | POLLHUP | POLLERR)))
		receive(e);
	/* The size of the terminal that it has from now on. */
	if (!e->done && e->resize)
		transmit(e);
	if (!e->done && (fds[WAIT_STREAM].revents & (POLLOUT | POLLHUP | POLLERR)))
		transmit(e);
	if (!e->done && fds[WAIT_STDIN].revents && wants_stdin(e))
		read_stdin(e);
	return 0;
}

int exec_run(int stream, const struct exec_request *req, const struct exec_io *io,
	     struct exec_result *result)
{
	size_t len_bytes = 0;
	struct exec *e;
	int ret = 0;

	memset(result, 0, sizeof(*result));
	/* malloc: of the buffers only what is used is touched. */
	e = malloc(sizeof(*e));
	if (!e)
		return -ENOMEM;
	memset(e, 0, offsetof(struct exec, tx_buf));
	e->stream = stream;
	e->io = io;
	e->result = result;
	e->watching = io->watch_fd >= 0;
	e->detach = req && req->detach;
	/* What earlier streams sent may still fill it: a credit tells. */
	e->window_used = io->attach ? SHIM_STDIN_WINDOW_BYTES : 0;
	e->stdin_open = io->stdin_fd >= 0 && (!req || req->with_stdin);
	out_init(&e->out, io->stdout_fd, &result->stdout_bytes);
	out_init(&e->err, io->stderr_fd, &result->stderr_bytes);
	if (req) {
		ret = exec_frame_build(req, &e->request, &len_bytes);
		if (ret)
			goto out_free;
		e->tx = e->request;
		e->tx_len = len_bytes;
		e->eof_due = req->with_stdin && io->stdin_fd < 0;
	}
	transmit(e);
	while (!ret && !e->done)
		ret = step(e);
	result->stdin_unsure = e->sent_stdin && (e->window_used > 0 || e->tx_len > 0);
	free(e->request);
out_free:
	free(e);
	return ret;
}
