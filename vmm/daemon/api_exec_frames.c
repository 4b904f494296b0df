// SPDX-License-Identifier: Apache-2.0
/*
 * `Upgrade: thaw-exec/1`: the connection speaks the shim's frames, and thawd is the shim for it.
 *
 * Nothing is passed on as it came. Frames of the client become requests to the exec, output of the
 * log becomes frames; so a client never sees that the guest's stream broke and came again, and
 * neither side can do to the other what the protocol does not allow.
 *
 * The socket is only written and read when poll() says so, with one frame a direction. While the
 * client does not read, its reader of the log stands still and the command blocks; while the
 * command does not read its stdin, the window keeps the client from sending more.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/shim/frame.h"
#include "vmm/daemon/api_exec.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define BUF_BYTES    (FRAME_HEADER_BYTES + SHIM_DATA_MAX_BYTES)
#define CREDIT_BYTES 65536u

struct frames {
	struct exec_call *call;
	int sock;
	bool owner; /* the exec is run for this client */
	bool told_start, last_queued;
	bool left;
	u32 window_used; /* stdin of the client that was not credited */
	u64 progress_ns; /* when the client last took something, or there was nothing to take */
	size_t tx_start, tx_len, rx_len;
	u8 tx[BUF_BYTES];
	u8 rx[BUF_BYTES];
};

/* --- to the client --- */

static void put(struct frames *f, enum shim_frame_type type, const void *payload, u32 len_bytes)
{
	size_t at;

	if (!f->tx_len)
		f->tx_start = 0;
	at = f->tx_start + f->tx_len;
	BUG_ON(at + FRAME_HEADER_BYTES + len_bytes > sizeof(f->tx));
	frame_put(f->tx + at, type, len_bytes);
	if (len_bytes)
		memcpy(f->tx + at + FRAME_HEADER_BYTES, payload, len_bytes);
	f->tx_len += FRAME_HEADER_BYTES + len_bytes;
}

static void put_error(struct frames *f, u32 stage, int error, const char *text)
{
	struct shim_error head = {.stage = stage, .error = (u32)error};
	u8 body[sizeof(head) + SHIM_TEXT_MAX_BYTES];
	size_t len = MIN(strlen(text), (size_t)SHIM_TEXT_MAX_BYTES);

	memcpy(body, &head, sizeof(head));
	memcpy(body + sizeof(head), text, len);
	put(f, SHIM_ERROR, body, (u32)(sizeof(head) + len));
	f->last_queued = true;
}

static void put_end(struct frames *f, const struct kept_view *view)
{
	const struct kept_end *end = &view->end;
	struct shim_exit body = {.value = end->value, .flags = end->flags};

	if (end->kind == KEPT_FAILED) {
		put_error(f, end->stage, end->error, end->text);
		return;
	}
	f->last_queued = true;
	/* Nobody knows: the stream ends without a last frame. */
	if (end->kind == KEPT_LOST)
		return;
	body.kind = end->kind == KEPT_SIGNALLED ? SHIM_EXIT_SIGNAL : SHIM_EXIT_CODE;
	put(f, SHIM_EXIT, &body, sizeof(body));
}

/* stdin that has gone on to the guest makes room for more. */
static void put_credit(struct frames *f)
{
	struct kept *kept = f->call->kept;
	u8 credit[4];
	u32 free_bytes;

	pthread_mutex_lock(&kept->lock);
	free_bytes = f->window_used - MIN(f->window_used, (u32)kept->in.len);
	pthread_mutex_unlock(&kept->lock);
	if (free_bytes < CREDIT_BYTES)
		return;
	frame_put_u32(credit, free_bytes);
	put(f, SHIM_STDIN_CREDIT, credit, sizeof(credit));
	f->window_used -= free_bytes;
}

static void put_output(struct frames *f, const struct kept_view *view)
{
	struct kept_reader *reader = &f->call->reader;
	struct exec_log_chunk chunk;
	ssize_t n;

	n = kept_read(reader, f->tx + FRAME_HEADER_BYTES, SHIM_DATA_MAX_BYTES, &chunk);
	if (n < 0 || (n > 0 && chunk.skipped)) {
		put_error(f, SHIM_STAGE_SETUP, EIO, "output was lost: the log can't be written");
	} else if (n > 0) {
		frame_put(f->tx, chunk.stream == EXEC_STDOUT ? SHIM_STDOUT : SHIM_STDERR, (u32)n);
		f->tx_len = FRAME_HEADER_BYTES + (size_t)n;
	} else if (view->state == KEPT_ENDED) {
		put_end(f, view);
	}
}

/* What comes next, if nothing waits to be sent. */
static void next_frames(struct frames *f)
{
	struct kept_view view;
	u8 pid[4];

	if (f->tx_len || f->last_queued)
		return;
	f->tx_start = 0;
	/* The view first: output read after it is all that there was when it ended. */
	kept_view(f->call->kept, &f->call->reader, &view);
	if (view.taken) {
		put_error(f, SHIM_STAGE_REQUEST, ESTALE,
			  "another client has taken the command over");
		return;
	}
	if (!f->told_start && view.pid) {
		frame_put_u32(pid, view.pid);
		put(f, SHIM_STARTED, pid, sizeof(pid));
		f->told_start = true;
		return;
	}
	put_credit(f);
	if (!f->tx_len)
		put_output(f, &view);
}

static void send_some(struct frames *f)
{
	ssize_t n;

	for (;;) {
		next_frames(f);
		if (!f->tx_len)
			return;
		n = send(f->sock, f->tx + f->tx_start, f->tx_len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			f->left = errno != EAGAIN;
			return;
		}
		f->tx_start += (size_t)n;
		f->tx_len -= (size_t)n;
		f->progress_ns = clock_now_ns();
	}
}

/* --- from the client --- */

static int take_stdin(struct frames *f, const u8 *data, u32 len_bytes)
{
	ssize_t n;

	if (len_bytes > SHIM_STDIN_WINDOW_BYTES - f->window_used)
		return -EPROTO;
	/* Whole or not at all: a frame that does not fit waits in rx. */
	pthread_mutex_lock(&f->call->kept->lock);
	n = (ssize_t)(KEPT_STDIN_MAX - f->call->kept->in.len);
	pthread_mutex_unlock(&f->call->kept->lock);
	if ((size_t)n < len_bytes)
		return -EAGAIN;
	f->window_used += len_bytes;
	n = len_bytes ? kept_stdin_push(f->call->kept, data, len_bytes) : 0;
	/* To one that has ended, or closed its stdin: dropped, as the shim does. */
	return n == -ENOMEM ? -ENOMEM : 0;
}

static int take_frame(struct frames *f, const struct shim_frame *frame, const u8 *payload)
{
	struct kept *kept = f->call->kept;
	struct shim_size size;
	u32 number;

	switch (frame->type) {
	case SHIM_STDIN:
		return take_stdin(f, payload, frame->len_bytes);
	case SHIM_STDIN_EOF:
		(void)!kept_stdin_close(kept);
		return 0;
	case SHIM_SIGNAL:
		number = frame_get_u32(payload);
		if (number < 1 || number > 64)
			return -EPROTO;
		(void)!kept_signal(kept, number);
		return 0;
	case SHIM_KILL:
		kept_kill(kept);
		return 0;
	case SHIM_RESIZE:
		memcpy(&size, payload, sizeof(size));
		if (!size.cols || !size.rows || !kept->pty)
			return -EPROTO;
		(void)!kept_resize(kept, size.cols, size.rows);
		return 0;
	case SHIM_ACK: /* the log acknowledges */
		return 0;
	default:
		return -EPROTO;
	}
}

/* All whole frames that are there. Return: 0, -EAGAIN: the next one has to wait, or -errno. */
static int take_all(struct frames *f)
{
	struct shim_frame frame;
	size_t at = 0, len;
	int ret = 0;

	while (f->rx_len - at >= FRAME_HEADER_BYTES) {
		ret = frame_get(f->rx + at, FRAME_FROM_HOST, &frame);
		if (!ret && frame.len_bytes > SHIM_DATA_MAX_BYTES)
			ret = -EPROTO;
		if (ret)
			break;
		len = FRAME_HEADER_BYTES + frame.len_bytes;
		if (f->rx_len - at < len)
			break;
		ret = take_frame(f, &frame, f->rx + at + FRAME_HEADER_BYTES);
		if (ret)
			break;
		at += len;
	}
	memmove(f->rx, f->rx + at, f->rx_len - at);
	f->rx_len -= at;
	return ret;
}

static int receive(struct frames *f)
{
	ssize_t n = recv(f->sock, f->rx + f->rx_len, sizeof(f->rx) - f->rx_len, MSG_DONTWAIT);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
		f->left = true;
		return 0;
	}
	if (n > 0)
		f->rx_len += (size_t)n;
	return take_all(f);
}

/* --- the loop --- */

static void run(struct frames *f)
{
	struct exec_call *call = f->call;
	bool stuck = false, refused = false;
	unsigned int woken;
	short events;
	int ret = 0;

	f->progress_ns = clock_now_ns();
	while (!f->left) {
		/* What waits may fit by now. */
		if (stuck)
			ret = take_all(f);
		stuck = ret == -EAGAIN;
		if (ret && !stuck && !f->tx_len && !f->last_queued) {
			put_error(f, SHIM_STAGE_REQUEST, EPROTO, "malformed or unexpected frame");
			refused = true;
		}
		send_some(f);
		if (f->last_queued && !f->tx_len)
			break;
		if (f->tx_len && clock_now_ns() - f->progress_ns > EXEC_STALL_NS)
			break;
		events = (short)((f->tx_len ? POLLOUT : 0) | (stuck || ret ? POLLRDHUP : POLLIN));
		woken = kept_wait(&call->reader, call->req, f->sock, events,
				  f->tx_len ? EXEC_PING_MS : -1);
		if (woken & KEPT_WOKEN_STOP)
			return;
		if (woken & KEPT_WOKEN_SOCK && !ret)
			ret = receive(f);
		else if (woken & KEPT_WOKEN_LEFT)
			f->left = true;
	}
	if (f->left || refused || !f->last_queued)
		exec_left(call, f->owner);
}

/* Bytes of the first frame: exactly @len_bytes, and not for ever. */
static int read_first(int sock, struct http_req *req, u8 *buf, size_t len_bytes, u64 until_ns)
{
	while (len_bytes) {
		struct pollfd fds[2] = {{.fd = sock, .events = POLLIN},
					{.fd = http_stop_fd(req), .events = POLLIN}};
		u64 now_ns = clock_now_ns();
		ssize_t n;

		if (now_ns >= until_ns)
			return -ETIMEDOUT;
		if (poll(fds, 2, (int)((until_ns - now_ns) / 1000000u + 1)) < 0 && errno != EINTR)
			return -errno;
		if (fds[1].revents)
			return -ECANCELED;
		n = recv(sock, buf, len_bytes, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return n ? -errno : -ECONNRESET;
		if (n > 0) {
			buf += n;
			len_bytes -= (size_t)n;
		}
	}
	return 0;
}

/* The payload of SHIM_EXEC. Return: 0 with *@out (free() it), or -errno. */
static int read_request(struct frames *f, u8 **out, size_t *len_bytes)
{
	u64 until_ns = clock_now_ns() + EXEC_FIRST_NS;
	u8 head[FRAME_HEADER_BYTES];
	struct shim_frame frame;
	int ret;

	ret = read_first(f->sock, f->call->req, head, sizeof(head), until_ns);
	if (ret)
		return ret;
	if (frame_get(head, FRAME_FROM_HOST, &frame) || frame.type != SHIM_EXEC)
		return -EPROTO;
	*out = malloc(frame.len_bytes);
	if (!*out)
		return -ENOMEM;
	*len_bytes = frame.len_bytes;
	return read_first(f->sock, f->call->req, *out, frame.len_bytes, until_ns);
}

/* Return: 0: it is started, or -errno: what is to be told is queued. */
static int begin(struct frames *f, struct exec_spec *spec)
{
	struct exec_spec_limits limits = exec_call_limits(f->call);
	struct exec_problem problem = {0};
	struct exec_spec_error error;
	u8 *payload = NULL;
	size_t len = 0;
	int ret = read_request(f, &payload, &len);

	if (ret) {
		put_error(f, SHIM_STAGE_REQUEST, EPROTO, "the first frame must be SHIM_EXEC");
		goto out;
	}
	ret = exec_spec_frame(spec, payload, len, &limits, &error);
	if (ret)
		exec_problem_spec(&problem, &error);
	else
		ret = exec_call_start(f->call, spec, &problem);
	if (ret)
		put_error(f, problem.stage, problem.error, problem.text);
	json_decref(problem.details);
out:
	free(payload);
	return ret;
}

static struct frames *frames_new(struct exec_call *call)
{
	struct frames *f = malloc(sizeof(*f));

	if (!f) {
		http_reply_error(call->req, 500, "internal", NULL, "out of memory");
		return NULL;
	}
	memset(f, 0, offsetof(struct frames, tx));
	f->call = call;
	f->sock = -1;
	return f;
}

static void frames_free(struct frames *f)
{
	fd_close(&f->sock);
	free(f);
}

void exec_run_frames(struct exec_call *call)
{
	struct exec_spec spec = {0};
	struct frames *f = frames_new(call);
	struct kept_view view;

	if (!f)
		return;
	if (exec_spec_new_id(&spec)) {
		http_reply_error(call->req, 500, "internal", NULL, "no random bytes");
		goto out;
	}
	http_add_header(call->req, EXEC_ID_HEADER, spec.id);
	f->sock = http_upgrade(call->req, "thaw-exec/1");
	if (f->sock < 0)
		goto out;
	f->owner = true;
	if (begin(f, &spec)) {
		(void)!fd_write_full(f->sock, f->tx, f->tx_len);
		goto out;
	}
	kept_reader_own(&call->reader);
	run(f);
	kept_view(call->kept, NULL, &view);
	if (view.state == KEPT_ENDED && view.end.kind == KEPT_FAILED) {
		kept_reader_close(&call->reader);
		kept_remove(call->kept);
	}
out:
	exec_spec_destroy(&spec);
	frames_free(f);
}

void exec_attach_frames(struct exec_call *call, u64 cursor)
{
	struct shim_attached body = {0};
	struct frames *f = frames_new(call);
	struct kept_view view;
	int ret;

	if (!f)
		return;
	if (cursor == UINT64_MAX)
		cursor = exec_replay_cursor(call->kept);
	ret = kept_reader_open(&call->reader, call->kept, cursor, true);
	if (ret) {
		http_reply_error(call->req, 500, "internal", NULL, "its log: %s", strerror(-ret));
		goto out;
	}
	http_add_header(call->req, EXEC_ID_HEADER, call->kept->id);
	f->sock = http_upgrade(call->req, "thaw-exec/1");
	if (f->sock < 0)
		goto out;
	f->owner = exec_adopt(call->kept);
	kept_reader_own(&call->reader);
	kept_view(call->kept, &call->reader, &view);
	call->reader.cursor = MAX(call->reader.cursor, view.oldest);
	body = (struct shim_attached){
		.offset = call->reader.cursor,
		.end = view.output_end,
		.pid = view.pid,
		.state = view.state == KEPT_ENDED ? SHIM_STATE_ENDED : SHIM_STATE_RUNNING,
	};
	put(f, SHIM_ATTACHED, &body, sizeof(body));
	f->told_start = view.pid;
	/* What the last client had under way nobody knows: the window is full, and credit says how
	 * much of it is free. */
	f->window_used = SHIM_STDIN_WINDOW_BYTES;
	run(f);
out:
	frames_free(f);
}
