// SPDX-License-Identifier: Apache-2.0
// An exec as one JSON answer, as events, and detached.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/api_exec.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/util/util.h"

#define CHUNK_BYTES 65536u

static struct exec_feed feed_of(const struct exec_spec *spec)
{
	return (struct exec_feed){
		.data = spec->in,
		.len_bytes = spec->in_bytes,
		/* A detached terminal stays open for those who attach. */
		.close = spec->with_stdin && !spec->stdin_open && !(spec->detached && spec->pty),
	};
}

/* --- one answer --- */

struct collect {
	struct exec_call *call;
	u64 max_bytes;
	u8 *data[3]; /* by enum exec_stream */
	size_t len[3], room[3];
	bool truncated, lost;
	u8 chunk[CHUNK_BYTES];
};

static int collect_add(struct collect *c, enum exec_stream stream, size_t len_bytes)
{
	size_t take = (size_t)MIN((u64)len_bytes, c->max_bytes - c->len[stream]);
	size_t need = c->len[stream] + take;
	u8 *more;

	if (take < len_bytes)
		c->truncated = true;
	if (need > c->room[stream]) {
		size_t room = (size_t)MIN(MAX((u64)need, (u64)c->room[stream] * 2), c->max_bytes);

		more = realloc(c->data[stream], room);
		if (!more)
			return -ENOMEM;
		c->data[stream] = more;
		c->room[stream] = room;
	}
	memcpy(c->data[stream] + c->len[stream], c->chunk, take);
	c->len[stream] = need;
	return 0;
}

/* All that is there. Return: 0, or -errno. */
static int collect_some(struct collect *c)
{
	struct exec_log_chunk chunk;
	ssize_t n;
	int ret;

	while ((n = kept_read(&c->call->reader, c->chunk, sizeof(c->chunk), &chunk)) > 0) {
		c->lost = c->lost || chunk.skipped;
		ret = collect_add(c, chunk.stream, (size_t)n);
		if (ret)
			return ret;
	}
	return (int)n;
}

static void collect_reply(struct collect *c, const struct exec_spec *spec,
			  const struct kept_view *view)
{
	static const char *const names[][2] = {
		[EXEC_STDOUT] = {"stdout", "stdout_encoding"},
		[EXEC_STDERR] = {"stderr", "stderr_encoding"},
	};
	json_t *answer = exec_result_json(c->call->kept, view);
	struct exec_problem problem;

	for (int i = EXEC_STDOUT; answer && i <= EXEC_STDERR; i++) {
		/* The cap may cut a character; half of it is not worth base64 for all the rest. */
		size_t len = c->truncated && spec->utf8 ? exec_utf8_cut(c->data[i], c->len[i])
							: c->len[i];
		const char *encoding = "";
		json_t *value = exec_bytes_json(c->data[i], len, spec->utf8, &encoding);

		if (value && strcmp(encoding, "utf-8") && len != c->len[i]) {
			json_decref(value);
			value = exec_bytes_json(c->data[i], c->len[i], false, &encoding);
		}
		if (!value || json_object_set_new(answer, names[i][0], value) ||
		    json_object_set_new(answer, names[i][1], json_string(encoding))) {
			json_decref(answer);
			answer = NULL;
		}
	}
	if (!answer) {
		exec_problem_set(&problem, 500, "internal", "out of memory for the output");
		exec_problem_reply(c->call->req, &problem);
		return;
	}
	json_object_set_new(answer, "truncated", json_boolean(c->truncated || c->lost));
	http_reply_json(c->call->req, 200, answer);
}

/* Until it has ended. Return: 0 with @view, or the problem. */
static void collect_all(struct collect *c, const struct exec_spec *spec, struct kept_view *view,
			struct exec_problem *problem)
{
	struct exec_feed feed = feed_of(spec);
	struct exec_call *call = c->call;
	unsigned int woken;
	int ret;

	for (;;) {
		exec_feed_some(call->kept, &feed);
		/* The view first: what is read after it has all that it counts. */
		kept_view(call->kept, &call->reader, view);
		ret = collect_some(c);
		if (ret) {
			exec_problem_set(problem, 500, "internal", "reading the output: %s",
					 strerror(-ret));
			kept_kill(call->kept);
			return;
		}
		if (view->state == KEPT_ENDED) {
			exec_problem_end(problem, call->kept, &view->end);
			/* The guest did not say how it ended, but its time is over. */
			return;
		}
		woken = kept_wait(&call->reader, call->req, -1, 0, -1);
		if (woken & KEPT_WOKEN_STOP) {
			exec_problem_stop(problem, call->kept);
			return;
		}
		if (woken & KEPT_WOKEN_LEFT) {
			kept_kill(call->kept);
			exec_problem_set(problem, 499, "internal", "the client left");
			return;
		}
	}
}

void exec_run_buffered(struct exec_call *call, const struct exec_spec *spec)
{
	struct collect *c = malloc(sizeof(*c));
	struct exec_problem problem = {0};
	struct kept_view view;

	if (!c) {
		http_reply_error(call->req, 500, "internal", NULL, "out of memory");
		return;
	}
	memset(c, 0, offsetof(struct collect, chunk));
	c->call = call;
	c->max_bytes = spec->output_max_bytes;
	if (!exec_call_start(call, spec, &problem))
		collect_all(c, spec, &view, &problem);
	if (!problem.status)
		collect_reply(c, spec, &view);
	else if (problem.status == 499)
		http_reply_error(call->req, 400, "invalid_request", NULL, "%s", problem.text);
	else
		exec_problem_reply(call->req, &problem);
	json_decref(problem.details);
	/* One that did not start is nothing that anybody asks for later. */
	if (problem.status && call->kept && problem.stage)
		kept_remove(call->kept);
	for (int i = EXEC_STDOUT; i <= EXEC_STDERR; i++)
		free(c->data[i]);
	free(c);
}

/* --- events --- */

static int send_chunk(struct http_req *req, const struct exec_log_chunk *chunk, const u8 *data)
{
	char *text = exec_base64(data, chunk->len_bytes);
	int ret = -ENOMEM;

	if (text)
		ret = http_sse_send(
			req, chunk->stream == EXEC_STDOUT ? "stdout" : "stderr", NULL,
			json_pack("{s:s, s:I}", "data", text, "cursor", (json_int_t)chunk->cursor));
	free(text);
	return ret;
}

static int send_problem(struct http_req *req, struct exec_problem *problem)
{
	return http_sse_send(req, "error", NULL,
			     json_pack("{s:o}", "error", exec_problem_json(problem)));
}

/* Wait until it runs, or does not. Return: 0: it runs, or nobody knows yet but the client should
 * hear something; else answered, or nobody is there to be. */
static int events_begin(struct exec_call *call, struct exec_feed *feed)
{
	struct exec_problem problem = {0};
	struct kept_view view;
	unsigned int woken;

	for (;;) {
		exec_feed_some(call->kept, feed);
		kept_view(call->kept, &call->reader, &view);
		if (view.state == KEPT_ENDED && view.end.kind == KEPT_FAILED) {
			exec_problem_end(&problem, call->kept, &view.end);
			exec_problem_reply(call->req, &problem);
			kept_remove(call->kept);
			return -EINVAL;
		}
		if (view.state != KEPT_STARTING)
			return 0;
		woken = kept_wait(&call->reader, call->req, -1, 0, EXEC_PING_MS);
		if (!woken)
			return 0;
		if (woken & KEPT_WOKEN_LEFT) {
			exec_left(call, true);
			http_reply_error(call->req, 400, "invalid_request", NULL,
					 "the client left");
			return -EPIPE;
		}
		if (woken & KEPT_WOKEN_STOP)
			return 0;
	}
}

struct events {
	struct exec_call *call;
	struct exec_feed feed;
	bool told_start;
	u8 chunk[CHUNK_BYTES];
};

/* What is there now. Return: 0 to go on, 1: it is over, or -errno: the client has left. */
static int events_step(struct events *e)
{
	struct exec_call *call = e->call;
	struct exec_problem problem;
	struct exec_log_chunk chunk;
	struct kept_view view;
	int ret = 0;
	ssize_t n;

	exec_feed_some(call->kept, &e->feed);
	kept_view(call->kept, &call->reader, &view);
	if (!e->told_start && view.pid) {
		ret = http_sse_send(
			call->req, "start", NULL,
			json_pack("{s:s, s:I}", "id", call->kept->id, "pid", (json_int_t)view.pid));
		e->told_start = true;
	}
	while (!ret && (n = kept_read(&call->reader, e->chunk, sizeof(e->chunk), &chunk)) > 0)
		ret = send_chunk(call->req, &chunk, e->chunk);
	if (ret || view.state != KEPT_ENDED)
		return ret;
	exec_problem_end(&problem, call->kept, &view.end);
	if (problem.status)
		ret = send_problem(call->req, &problem);
	else
		ret = http_sse_send(call->req, "exit", NULL, exec_result_json(call->kept, &view));
	return ret ? ret : 1;
}

static void events_run(struct events *e)
{
	struct exec_call *call = e->call;
	struct exec_problem problem;
	unsigned int woken;
	int ret;

	http_sse_begin(call->req);
	for (;;) {
		ret = events_step(e);
		if (ret)
			break;
		woken = kept_wait(&call->reader, call->req, -1, 0, EXEC_PING_MS);
		if (woken & KEPT_WOKEN_STOP) {
			exec_problem_stop(&problem, call->kept);
			(void)!send_problem(call->req, &problem);
			return;
		}
		if (woken & KEPT_WOKEN_LEFT || (!woken && http_sse_ping(call->req))) {
			ret = -EPIPE;
			break;
		}
	}
	if (ret < 0)
		exec_left(call, true);
}

void exec_run_events(struct exec_call *call, const struct exec_spec *spec)
{
	struct exec_problem problem = {0};
	struct events *e = malloc(sizeof(*e));

	if (!e) {
		http_reply_error(call->req, 500, "internal", NULL, "out of memory");
		return;
	}
	*e = (struct events){.call = call, .feed = feed_of(spec)};
	if (exec_call_start(call, spec, &problem))
		exec_problem_reply(call->req, &problem);
	else if (!events_begin(call, &e->feed))
		events_run(e);
	free(e);
}

/* --- detached --- */

void exec_run_detached(struct exec_call *call, const struct exec_spec *spec)
{
	struct exec_feed feed = feed_of(spec);
	struct exec_problem problem = {0};
	struct kept_view view;

	if (exec_call_start(call, spec, &problem)) {
		exec_problem_reply(call->req, &problem);
		return;
	}
	/* It fits: exec_spec_json() has seen to that. */
	exec_feed_some(call->kept, &feed);
	for (;;) {
		kept_view(call->kept, &call->reader, &view);
		if (view.state != KEPT_STARTING || kept_wait(&call->reader, call->req, -1, 0, -1) &
							   (KEPT_WOKEN_LEFT | KEPT_WOKEN_STOP))
			break;
	}
	if (view.state == KEPT_ENDED)
		exec_problem_end(&problem, call->kept, &view.end);
	if (problem.status) {
		exec_problem_reply(call->req, &problem);
		kept_remove(call->kept);
		return;
	}
	http_add_header(call->req, EXEC_ID_HEADER, call->kept->id);
	http_reply_json(call->req, 202, kept_json(call->kept));
}
