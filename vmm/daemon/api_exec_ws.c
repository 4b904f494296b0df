// SPDX-License-Identifier: Apache-2.0
/*
 * An exec over a WebSocket: terminals foremost.
 *
 * One message is under way to the client at a time, and the next piece of output is taken from the
 * log when it is gone: a client that reads slowly slows the command and costs one message. Bytes
 * for stdin that the command does not take wait here, and nothing more is read meanwhile.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/api_exec.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/daemon/ws.h"
#include "vmm/util/util.h"

#define CHUNK_BYTES 32768u

struct session {
	struct exec_call *call;
	struct ws ws;
	bool starting; /* the first message is due */
	bool started;  /* call->kept runs, with a reader */
	bool owner;
	bool told_ready, over;
	bool refused; /* over, because the client sent something that can't be */
	u8 *in;	      /* stdin that did not fit yet; owned */
	size_t in_start, in_len;
	bool eof_due; /* behind it */
	struct exec_spec spec;
	u64 sent_bytes, progress_ns;
	u8 chunk[1 + CHUNK_BYTES];
};

/* --- to the client --- */

static void send_json(struct session *s, json_t *steal)
{
	char *text = steal ? json_dumps(steal, JSON_COMPACT) : NULL;

	if (!text || ws_text(&s->ws, text))
		s->ws.failed = true;
	free(text);
	json_decref(steal);
}

static void finish(struct session *s, enum ws_close_code code)
{
	ws_close(&s->ws, code);
	s->over = true;
}

static void send_problem(struct session *s, struct exec_problem *problem, enum ws_close_code code)
{
	send_json(s, json_pack("{s:s, s:o}", "type", "error", "error", exec_problem_json(problem)));
	finish(s, code);
}

static void send_end(struct session *s, const struct kept_view *view)
{
	struct exec_problem problem;
	json_t *message;

	exec_problem_end(&problem, s->call->kept, &view->end);
	if (problem.status) {
		send_problem(s, &problem, WS_CLOSE_NORMAL);
		return;
	}
	message = exec_result_json(s->call->kept, view);
	if (message)
		json_object_set_new(message, "type", json_string("exit"));
	send_json(s, message);
	finish(s, WS_CLOSE_NORMAL);
}

static void send_output(struct session *s, const struct kept_view *view)
{
	const struct kept *kept = s->call->kept;
	bool plain = kept->pty || kept->combined;
	struct exec_log_chunk chunk;
	ssize_t n;

	n = kept_read(&s->call->reader, s->chunk + 1, CHUNK_BYTES, &chunk);
	if (n > 0) {
		s->chunk[0] = (u8)chunk.stream;
		if (ws_binary(&s->ws, s->chunk + plain, (size_t)n + !plain))
			s->ws.failed = true;
	} else if (view->state == KEPT_ENDED) {
		send_end(s, view);
	}
}

/* The next message, if none is under way. */
static void next_message(struct session *s)
{
	struct exec_problem problem;
	struct kept_view view;

	if (!s->started || s->over || !ws_idle(&s->ws))
		return;
	kept_view(s->call->kept, &s->call->reader, &view);
	if (view.taken) {
		exec_problem_set(&problem, 409, "conflict",
				 "another client has attached to exec %s", s->call->kept->id);
		s->owner = false;
		send_problem(s, &problem, WS_CLOSE_NORMAL);
	} else if (!s->told_ready && (view.pid || view.state == KEPT_RUNNING)) {
		s->told_ready = true;
		send_json(s, json_pack("{s:s, s:s, s:I, s:I}", "type", "ready", "id",
				       s->call->kept->id, "pid", (json_int_t)view.pid, "cursor",
				       (json_int_t)MAX(s->call->reader.cursor, view.oldest)));
	} else {
		send_output(s, &view);
	}
}

/* --- from the client --- */

static int take_first(struct session *s, const char *text, size_t len_bytes)
{
	struct exec_spec_limits limits = exec_call_limits(s->call);
	json_t *json = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, NULL);
	struct exec_problem problem = {0};
	struct exec_spec_error error;
	int ret;

	s->starting = false;
	if (!json) {
		exec_problem_set(&problem, 400, "invalid_request", "the first message is not JSON");
		ret = -EINVAL;
	} else {
		ret = exec_spec_json(&s->spec, json, EXEC_FORM_SOCKET, &limits, &error);
		if (ret)
			exec_problem_spec(&problem, &error);
		else
			ret = exec_call_start(s->call, &s->spec, &problem);
	}
	json_decref(json);
	if (ret) {
		send_problem(s, &problem, WS_CLOSE_NORMAL);
		return 0;
	}
	s->started = s->owner = true;
	kept_reader_own(&s->call->reader);
	return 0;
}

static void feed(struct session *s)
{
	ssize_t n;

	while (s->in_len && s->started) {
		n = kept_stdin_push(s->call->kept, s->in + s->in_start, s->in_len);
		if (!n)
			return;
		/* It has ended, or does not read: dropped, as a pipe's writer would see. */
		if (n < 0)
			n = (ssize_t)s->in_len;
		s->in_start += (size_t)n;
		s->in_len -= (size_t)n;
	}
	if (!s->in_len) {
		free(s->in);
		s->in = NULL;
		s->in_start = 0;
		if (s->eof_due)
			(void)!kept_stdin_close(s->call->kept);
		s->eof_due = false;
	}
}

static int take_resize(struct kept *kept, const json_t *json)
{
	json_int_t cols = json_integer_value(json_object_get(json, "cols"));
	json_int_t rows = json_integer_value(json_object_get(json, "rows"));

	if (!kept->pty || cols < 1 || cols > UINT16_MAX || rows < 1 || rows > UINT16_MAX)
		return -EINVAL;
	(void)!kept_resize(kept, (u16)cols, (u16)rows);
	return 0;
}

static int take_message(struct session *s, const json_t *json)
{
	const char *type = json_string_value(json_object_get(json, "type"));
	struct kept *kept = s->call->kept;
	int number;

	if (!type)
		return -EINVAL;
	if (!strcmp(type, "resize"))
		return take_resize(kept, json);
	if (!strcmp(type, "signal")) {
		number = exec_signal_number(json_object_get(json, "signal"));
		if (number < 0)
			return -EINVAL;
		(void)!kept_signal(kept, (u32)number);
		return 0;
	}
	if (strcmp(type, "eof"))
		return -EINVAL;
	s->eof_due = true;
	feed(s);
	return 0;
}

static int on_text(void *opaque, const char *text, size_t len_bytes)
{
	struct session *s = opaque;
	struct exec_problem problem;
	json_t *json;
	int ret;

	if (s->over)
		return 0;
	if (s->starting)
		return take_first(s, text, len_bytes);
	json = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, NULL);
	ret = json ? take_message(s, json) : -EINVAL;
	json_decref(json);
	if (ret) {
		exec_problem_set(&problem, 400, "invalid_request",
				 "not a message that is known here: resize (of a terminal), "
				 "signal, eof");
		s->refused = true;
		send_problem(s, &problem, WS_CLOSE_NORMAL);
	}
	return 0;
}

static int on_binary(void *opaque, const u8 *data, size_t len_bytes)
{
	struct session *s = opaque;
	u8 *more;

	if (s->over || s->eof_due || !len_bytes)
		return 0;
	if (s->starting)
		return -EPROTO;
	/* Several messages can come in one receive; more than that is not read while one waits. */
	if (s->in_len + len_bytes > 2 * WS_MESSAGE_MAX)
		return -EMSGSIZE;
	if (s->in_start)
		memmove(s->in, s->in + s->in_start, s->in_len);
	s->in_start = 0;
	more = realloc(s->in, s->in_len + len_bytes);
	if (!more)
		return -ENOMEM;
	s->in = more;
	memcpy(s->in + s->in_len, data, len_bytes);
	s->in_len += len_bytes;
	feed(s);
	return 0;
}

static const struct ws_ops ops = {.text = on_text, .binary = on_binary};

/* --- the loop --- */

/* Wait for the socket, and for the exec if there is one. */
static unsigned int wait_for(struct session *s, short events, int timeout_ms)
{
	struct http_req *req = s->call->req;
	struct pollfd fds[2] = {{.fd = s->ws.fd, .events = events},
				{.fd = http_stop_fd(req), .events = POLLIN}};

	if (s->started)
		return kept_wait(&s->call->reader, req, s->ws.fd, events, timeout_ms);
	if (poll(fds, 2, timeout_ms) <= 0)
		return 0;
	if (fds[1].revents)
		return KEPT_WOKEN_STOP;
	return KEPT_WOKEN_SOCK |
	       (fds[0].revents & (POLLHUP | POLLERR | POLLRDHUP) ? KEPT_WOKEN_LEFT : 0);
}

/* Is the client as good as gone: takes nothing, or has sent no request? */
static bool stalled(struct session *s, u64 begin_ns)
{
	u64 now_ns = clock_now_ns();

	if (ws_idle(&s->ws) || s->ws.sent_bytes != s->sent_bytes) {
		s->sent_bytes = s->ws.sent_bytes;
		s->progress_ns = now_ns;
	}
	if (s->starting && now_ns - begin_ns > EXEC_FIRST_NS)
		return true;
	return now_ns - s->progress_ns > EXEC_STALL_NS;
}

static int exchange(struct session *s, unsigned int woken, bool may_read)
{
	int ret = 0;

	if (woken & KEPT_WOKEN_SOCK && may_read)
		ret = ws_receive(&s->ws);
	/* Nothing is read, and nothing more will come. */
	if (woken & KEPT_WOKEN_LEFT && !(may_read && ws_events(&s->ws, true) & POLLIN))
		ret = -ECONNRESET;
	if (!ret && !woken)
		ret = ws_idle(&s->ws) ? ws_ping(&s->ws) : 0;
	return ret;
}

static void session_run(struct session *s)
{
	u64 begin_ns = clock_now_ns();
	struct exec_problem problem;
	unsigned int woken;
	bool may_read;
	int ret = 0;

	s->progress_ns = begin_ns;
	while (!ret && !ws_over(&s->ws)) {
		feed(s);
		next_message(s);
		ret = ws_send_some(&s->ws);
		if (ret || ws_over(&s->ws))
			break;
		/* One message after the other, as fast as the client takes them. */
		if (ws_idle(&s->ws) && s->started && !s->over) {
			next_message(s);
			if (!ws_idle(&s->ws))
				continue;
		}
		may_read = !s->in_len;
		woken = wait_for(s, ws_events(&s->ws, may_read), EXEC_PING_MS);
		if (woken & KEPT_WOKEN_STOP) {
			if (s->started && !s->over) {
				exec_problem_stop(&problem, s->call->kept);
				send_problem(s, &problem, WS_CLOSE_GOING_AWAY);
			}
			(void)!ws_send_some(&s->ws);
			return;
		}
		ret = exchange(s, woken, may_read);
		if (!ret && stalled(s, begin_ns))
			ret = -ETIMEDOUT;
	}
	/* Over without an end of ours: the client closed, or vanished. */
	if (s->started && (!s->over || s->refused))
		exec_left(s->call, s->owner);
}

static void session_free(struct session *s)
{
	ws_destroy(&s->ws);
	exec_spec_destroy(&s->spec);
	free(s->in);
	free(s);
}

/* The handshake. Return: a session with an open WebSocket, or NULL: answered, or nobody is there.
 */
static struct session *session_new(struct exec_call *call)
{
	const char *version = http_header(call->req, "Sec-WebSocket-Version");
	char accept[WS_ACCEPT_CHARS + 1];
	struct session *s;
	int fd;

	if (!version || strcmp(version, "13") ||
	    ws_accept_key(http_header(call->req, "Sec-WebSocket-Key"), accept)) {
		http_add_header(call->req, "Sec-WebSocket-Version", "13");
		http_reply_error(call->req, 400, "invalid_request", NULL,
				 "a WebSocket needs Sec-WebSocket-Version: 13 and a "
				 "Sec-WebSocket-Key of 16 bytes in base64");
		return NULL;
	}
	s = malloc(sizeof(*s));
	if (!s) {
		http_reply_error(call->req, 500, "internal", NULL, "out of memory");
		return NULL;
	}
	memset(s, 0, offsetof(struct session, chunk));
	s->call = call;
	s->ws.fd = -1;
	http_add_header(call->req, "Sec-WebSocket-Accept", accept);
	if (call->kept)
		http_add_header(call->req, EXEC_ID_HEADER, call->kept->id);
	fd = http_upgrade(call->req, "websocket");
	if (fd < 0 || ws_init(&s->ws, fd, &ops, s)) {
		session_free(s);
		return NULL;
	}
	return s;
}

void exec_run_socket(struct exec_call *call)
{
	struct session *s = session_new(call);
	struct kept_view view;

	if (!s)
		return;
	s->starting = true;
	session_run(s);
	session_free(s);
	if (!call->kept)
		return;
	kept_view(call->kept, NULL, &view);
	kept_reader_close(&call->reader);
	if (view.state == KEPT_ENDED && view.end.kind == KEPT_FAILED)
		kept_remove(call->kept);
}

void exec_attach_socket(struct exec_call *call, u64 cursor)
{
	struct session *s;
	int ret;

	if (cursor == UINT64_MAX)
		cursor = exec_replay_cursor(call->kept);
	ret = kept_reader_open(&call->reader, call->kept, cursor, true);
	if (ret) {
		http_reply_error(call->req, 500, "internal", NULL, "its log: %s", strerror(-ret));
		return;
	}
	s = session_new(call);
	if (!s)
		return;
	s->started = true;
	s->owner = exec_adopt(call->kept);
	kept_reader_own(&call->reader);
	session_run(s);
	session_free(s);
}
