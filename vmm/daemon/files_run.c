// SPDX-License-Identifier: Apache-2.0
/*
 * One run of thaw-files in a guest.
 *
 * Two layers of frames come from it: the shim's (guest/shim/proto.h), of which STDOUT carries data
 * that is passed on as it comes, and STDERR pieces of thaw-files' own (guest/files/proto.h), which
 * are put together in `control`. The guest is hostile: every frame is checked, and in its place.
 *
 * The stream is read only when the caller wants the next item, so a caller that waits for its
 * client holds the guest's program up. The client is watched meanwhile: when it leaves, the caller
 * closes the stream, and the shim kills what runs.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/shim/frame.h"
#include "vmm/daemon/files.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/util.h"

#define RX_BYTES      (FRAME_HEADER_BYTES + SHIM_DATA_MAX_BYTES)
#define CONTROL_BYTES (FILES_FRAME_MAX_BYTES + SHIM_DATA_MAX_BYTES)
/* The two pipes have no order between them: data may overtake the frame that announces it. */
#define HELD_MAX_BYTES (4 * SHIM_DATA_MAX_BYTES)
/* While thawd ends, what does not move does not hold it up. */
#define ENDING_MS 2000

struct files_run {
	struct thawd *thawd;
	struct http_req *http;
	struct box_use use;
	int fd;
	u64 start_by_ns; /* the guest has begun with it by then, or is stuck */
	bool stdin_open, started, last, failed, ended;
	u32 window_used;
	u32 data_left; /* payload of a STDOUT frame that is still to come */
	size_t rx_start, rx_len;
	size_t control_start, control_len, control_room;
	u8 *control;
	bool spoken; /* the first message has been handed out: data may be */
	size_t held_len;
	u8 *held;
	enum { WHY_GUEST, WHY_BUSY, WHY_OLD } why_kind;
	char why[FILES_WHY_BYTES];
	u8 rx[RX_BYTES];
};

static int __printf(2, 3) broken(struct files_run *run, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(run->why, sizeof(run->why), fmt, args);
	va_end(args);
	run->ended = true;
	return -EIO;
}

/* Return: 0: the stream is ready for @events; -EAGAIN, -EPIPE. */
static int wait_for(struct files_run *run, short events, int wait_ms)
{
	struct pollfd fds[2] = {
		{.fd = run->fd, .events = events},
		{.fd = http_client_fd(run->http), .events = POLLRDHUP},
	};
	bool ending = http_stopping(run->http);
	int n;

	if (ending) {
		/* Its fd is awake for good. */
		fds[1].fd = -1;
		wait_ms = wait_ms < 0 ? ENDING_MS : MIN(wait_ms, ENDING_MS);
	}
	do {
		n = poll(fds, 2, wait_ms);
	} while (n < 0 && errno == EINTR);
	if (fds[0].revents)
		return 0;
	if (!n)
		return ending ? -EPIPE : -EAGAIN;
	if (fds[1].revents && http_stopping(run->http))
		return wait_for(run, events, wait_ms);
	return -EPIPE;
}

static int send_all(struct files_run *run, const u8 *data, size_t len_bytes)
{
	while (len_bytes) {
		ssize_t n = send(run->fd, data, len_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		int err;

		if (n >= 0) {
			data += n;
			len_bytes -= (size_t)n;
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return -EIO;
		err = wait_for(run, POLLOUT, -1);
		if (err)
			return err;
	}
	return 0;
}

static u8 *put_string(u8 *at, const char *text)
{
	size_t n = strlen(text) + 1;

	memcpy(at, text, n);
	return at + n;
}

static int send_exec(struct files_run *run, const struct files_request *req,
		     const char *const *args, bool with_stdin)
{
	struct box_limits limits = {0};
	struct shim_exec exec = {
		.flags = SHIM_EXEC_EXT | (with_stdin ? SHIM_EXEC_STDIN : 0u),
		.argc = 1,
		.uid = req->uid,
		.gid = req->gid,
	};
	struct shim_exec_ext ext = {.flags = SHIM_EXT_FILES};
	size_t len = sizeof(exec) + sizeof(ext) + sizeof(FILES_PROGRAM);
	u8 *frame, *at;
	int err;

	box_limits(&run->use, &limits);
	ext.nofile = limits.nofile;
	for (size_t i = 0; args[i]; i++) {
		exec.argc++;
		len += strlen(args[i]) + 1;
	}
	frame = malloc(FRAME_HEADER_BYTES + len);
	if (!frame)
		return -ENOMEM;
	frame_put(frame, SHIM_EXEC, (u32)len);
	at = frame + FRAME_HEADER_BYTES;
	memcpy(at, &exec, sizeof(exec));
	memcpy(at + sizeof(exec), &ext, sizeof(ext));
	at = put_string(at + sizeof(exec) + sizeof(ext), FILES_PROGRAM);
	for (size_t i = 0; args[i]; i++)
		at = put_string(at, args[i]);
	err = send_all(run, frame, FRAME_HEADER_BYTES + len);
	free(frame);
	return err;
}

struct files_run *files_run_start(const struct files_request *req, const char *const *args,
				  bool with_stdin)
{
	struct files_run *run = calloc(1, sizeof(*run));
	int err;

	if (!run) {
		http_reply_error(req->http, 500, "internal", NULL, "out of memory");
		return NULL;
	}
	run->thawd = req->thawd;
	run->http = req->http;
	run->fd = -1;
	if (box_use(req->thawd, req->http, &run->use)) {
		free(run);
		return NULL;
	}
	run->stdin_open = with_stdin;
	run->start_by_ns = clock_now_ns() + req->thawd->conf.guest_timeout_ms * 1000000;
	run->fd = box_stream(req->thawd, &run->use, run->start_by_ns, http_client_fd(req->http));
	err = run->fd < 0 ? run->fd : send_exec(run, req, args, with_stdin);
	if (err == -ECANCELED) /* the client left, or thawd ends */
		err = -EPIPE;
	if (!err)
		return run;
	if (err != -EPIPE)
		err = broken(run, "no stream to it: %s", strerror(run->fd < 0 ? -run->fd : EPIPE));
	files_run_reply(req, run, err);
	files_run_end(run);
	return NULL;
}

void files_run_end(struct files_run *run)
{
	if (!run)
		return;
	fd_close(&run->fd);
	box_use_end(run->thawd, &run->use);
	free(run->control);
	free(run->held);
	free(run);
}

static int more_control(struct files_run *run, const u8 *data, size_t len_bytes)
{
	size_t need;

	if (!len_bytes)
		return 0;
	if (run->control_start) {
		memmove(run->control, run->control + run->control_start, run->control_len);
		run->control_start = 0;
	}
	need = run->control_len + len_bytes;
	if (need > run->control_room) {
		/* A complete frame is taken before more is added, so it never grows further. */
		size_t room = MIN(MAX(need, (size_t)4096) * 2, (size_t)CONTROL_BYTES);
		u8 *more = need > CONTROL_BYTES ? NULL : realloc(run->control, room);

		if (!more)
			return broken(run, "its answer is too large");
		run->control = more;
		run->control_room = room;
	}
	memcpy(run->control + run->control_len, data, len_bytes);
	run->control_len = need;
	return 0;
}

static int spawn_error(struct files_run *run, const u8 *payload, u32 len_bytes)
{
	u32 stage = frame_get_u32(payload), error = frame_get_u32(payload + 4);

	if (stage == SHIM_STAGE_EXEC && error == ENOENT) {
		run->why_kind = WHY_OLD;
		return broken(run, "it was made before thaw had this: build its template again");
	}
	if (stage == SHIM_STAGE_REQUEST && error == EAGAIN)
		run->why_kind = WHY_BUSY;
	return broken(run, "it could not start the operation: %.*s", (int)len_bytes - 8,
		      (const char *)payload + 8);
}

static int ended(struct files_run *run, const u8 *payload)
{
	u32 kind = frame_get_u32(payload), value = frame_get_u32(payload + 4);
	u32 flags = frame_get_u32(payload + 8);

	if (kind == SHIM_EXIT_SIGNAL)
		return broken(run, "the operation was killed there by signal %u%s", value,
			      flags & SHIM_EXIT_OOM ? " for want of memory" : "");
	if (!run->last || run->control_len || value != (run->failed ? 1u : 0u))
		return broken(run, "the operation ended without its last word");
	run->ended = true;
	return 0;
}

/* A frame of the shim's but STDOUT, whole. Return: 0; 1: *@out is filled; -errno. */
static int control_frame(struct files_run *run, const struct shim_frame *frame, const u8 *payload,
			 struct files_item *out)
{
	u32 credit;

	switch (frame->type) {
	case SHIM_STARTED:
		if (run->started)
			return broken(run, "it started twice");
		run->started = true;
		return 0;
	case SHIM_STDERR:
		return run->started ? more_control(run, payload, frame->len_bytes)
				    : broken(run, "output before the start");
	case SHIM_STDIN_CREDIT:
		credit = frame_get_u32(payload);
		if (credit > run->window_used)
			return broken(run, "more credit than was used");
		run->window_used -= credit;
		*out = (struct files_item){.kind = FILES_ITEM_ROOM};
		return 1;
	case SHIM_EXIT:
		*out = (struct files_item){.kind = FILES_ITEM_END};
		return ended(run, payload) ? -EIO : 1;
	case SHIM_ERROR:
		return spawn_error(run, payload, frame->len_bytes);
	default:
		return broken(run, "an answer of another kind (%u)", frame->type);
	}
}

/* What was received, one step. Return: 0: something was done; 1: *@out is filled; -EAGAIN: more is
 * needed; -EIO. */
static int digest(struct files_run *run, struct files_item *out)
{
	const u8 *at = run->rx + run->rx_start;
	struct shim_frame frame;

	if (run->data_left && run->rx_len) {
		size_t n = MIN((size_t)run->data_left, run->rx_len);

		*out = (struct files_item){.kind = FILES_ITEM_DATA, .data = at, .len_bytes = n};
		run->data_left -= (u32)n;
		run->rx_start += n;
		run->rx_len -= n;
		return 1;
	}
	if (run->data_left || run->rx_len < FRAME_HEADER_BYTES)
		return -EAGAIN;
	if (frame_get(at, FRAME_FROM_GUEST, &frame))
		return broken(run, "a malformed frame");
	if (frame.type == SHIM_STDOUT) {
		if (!run->started)
			return broken(run, "output before the start");
		run->data_left = frame.len_bytes;
		run->rx_start += FRAME_HEADER_BYTES;
		run->rx_len -= FRAME_HEADER_BYTES;
		return 0;
	}
	if (run->rx_len < FRAME_HEADER_BYTES + frame.len_bytes)
		return frame.len_bytes > SHIM_DATA_MAX_BYTES ? broken(run, "a frame too long")
							     : -EAGAIN;
	run->rx_start += FRAME_HEADER_BYTES + frame.len_bytes;
	run->rx_len -= FRAME_HEADER_BYTES + frame.len_bytes;
	return control_frame(run, &frame, at + FRAME_HEADER_BYTES, out);
}

/* Return: 1: a frame of thaw-files is there; 0: none; -EIO. */
static int next_message(struct files_run *run, struct files_item *out)
{
	ssize_t n =
		files_frame_get(run->control + run->control_start, run->control_len, &out->message);

	if (n < 0)
		return broken(run, "a malformed message");
	if (!n)
		return 0;
	if (run->last)
		return broken(run, "a message behind the last");
	run->last = out->message.type == FILES_DONE || out->message.type == FILES_ERROR;
	run->failed = out->message.type == FILES_ERROR;
	out->kind = FILES_ITEM_MESSAGE;
	run->control_start += (size_t)n;
	run->control_len -= (size_t)n;
	return 1;
}

static int hold(struct files_run *run, const struct files_item *item)
{
	if (!run->held)
		run->held = malloc(HELD_MAX_BYTES);
	if (!run->held || item->len_bytes > HELD_MAX_BYTES - run->held_len)
		return broken(run, "data before its announcement");
	memcpy(run->held + run->held_len, item->data, item->len_bytes);
	run->held_len += item->len_bytes;
	return 0;
}

/* As wait_for(); for its beginning a guest has not all the time there is. */
static int wait_for_guest(struct files_run *run, int wait_ms)
{
	u64 now_ns = clock_now_ns(), left_ms;
	int err;

	if (run->started)
		return wait_for(run, POLLIN, wait_ms);
	left_ms = run->start_by_ns > now_ns ? (run->start_by_ns - now_ns) / 1000000 + 1 : 0;
	if (wait_ms >= 0 && (u64)wait_ms < left_ms)
		return wait_for(run, POLLIN, wait_ms);
	err = wait_for(run, POLLIN, (int)left_ms);
	return err == -EAGAIN ? broken(run, "it does not answer") : err;
}

static int receive(struct files_run *run, int wait_ms)
{
	ssize_t n;
	int err;

	memmove(run->rx, run->rx + run->rx_start, run->rx_len);
	run->rx_start = 0;
	for (;;) {
		n = recv(run->fd, run->rx + run->rx_len, sizeof(run->rx) - run->rx_len,
			 MSG_DONTWAIT);
		if (n > 0) {
			run->rx_len += (size_t)n;
			return 0;
		}
		if (!n || (errno != EAGAIN && errno != EINTR))
			return broken(run, "it went away");
		err = wait_for_guest(run, wait_ms);
		if (err)
			return err;
	}
}

int files_run_next(struct files_run *run, int wait_ms, struct files_item *out)
{
	int ret;

	if (run->ended)
		return run->why[0] ? -EIO : broken(run, "nothing comes behind the end");
	if (run->spoken && run->held_len) {
		*out = (struct files_item){
			.kind = FILES_ITEM_DATA, .data = run->held, .len_bytes = run->held_len};
		run->held_len = 0;
		return 0;
	}
	for (;;) {
		ret = run->control_len ? next_message(run, out) : 0;
		run->spoken |= ret == 1;
		if (!ret)
			ret = digest(run, out);
		if (ret == 1 && out->kind == FILES_ITEM_DATA && !run->spoken)
			ret = hold(run, out);
		if (ret == -EAGAIN)
			ret = receive(run, wait_ms);
		if (ret)
			return ret < 0 ? ret : 0;
	}
}

int files_run_fd(const struct files_run *run)
{
	return run->fd;
}

size_t files_run_room(const struct files_run *run)
{
	return MIN((size_t)(SHIM_STDIN_WINDOW_BYTES - run->window_used),
		   (size_t)SHIM_DATA_MAX_BYTES);
}

int files_run_write(struct files_run *run, const void *data, size_t len_bytes)
{
	u8 head[FRAME_HEADER_BYTES];
	int err;

	frame_put(head, len_bytes ? SHIM_STDIN : SHIM_STDIN_EOF, (u32)len_bytes);
	err = send_all(run, head, sizeof(head));
	if (!err)
		err = send_all(run, data, len_bytes);
	run->window_used += (u32)len_bytes;
	return err;
}

const char *files_run_code(int err)
{
	return err == -EPIPE ? "client_left" : "guest_lost";
}

void files_run_reply(const struct files_request *req, const struct files_run *run, int err)
{
	const char *name = http_param(req->http, "name");

	if (http_replied(req->http))
		return;
	if (err == -EPIPE && http_stopping(req->http))
		http_reply_retry(req->http, 1, "thawd is about to end");
	else if (err == -EPIPE) /* nobody is there to read it */
		http_reply_error(req->http, 400, "invalid_request", NULL, "the client left");
	else if (run->why_kind == WHY_BUSY)
		http_reply_error(req->http, 429, "too_many", NULL,
				 "sandbox %s runs as many operations as it can: try again", name);
	else if (run->why_kind == WHY_OLD)
		http_reply_error(req->http, 400, "unsupported", NULL,
				 "sandbox %s has no file operations: %s", name, run->why);
	else
		http_reply_error(req->http, 502, "guest_lost", NULL, "sandbox %s, %s: %s", name,
				 req->operation,
				 run->why[0] ? run->why : "an answer of another kind");
}
