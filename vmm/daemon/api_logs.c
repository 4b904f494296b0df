// SPDX-License-Identifier: Apache-2.0
// The output of an exec by cursor: pages, the tail, and as events.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/api_exec.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/util/util.h"

#define CHUNK_BYTES 65536u
#define PAGE_BYTES  (1 * MIB)
#define PAGE_MAX    (64 * MIB)

struct logs {
	struct exec_call *call;
	enum exec_stream stream; /* 0: both */
	u64 cursor;		 /* asked for */
	u64 limit_bytes;
	bool follow;
	u64 dropped_bytes, next_cursor;
	json_t *entries;
	/* The entry that is being put together. */
	u8 *data;
	size_t len_bytes;
	struct exec_log_chunk head;
	u8 chunk[CHUNK_BYTES];
};

static const char *stream_name(enum exec_stream stream)
{
	return stream == EXEC_STDOUT ? "stdout" : "stderr";
}

static int take_query(struct logs *l)
{
	struct http_req *req = l->call->req;
	const char *stream = http_query(req, "stream");
	struct kept_view view;
	u64 tail, follow;

	if (stream && strcmp(stream, "stdout") && strcmp(stream, "stderr")) {
		http_reply_error(req, 400, "invalid_request", NULL,
				 "'stream' must be stdout or stderr");
		return -EINVAL;
	}
	if (stream)
		l->stream = !strcmp(stream, "stdout") ? EXEC_STDOUT : EXEC_STDERR;
	if (http_query_u64(req, "cursor", 0, INT64_MAX, UINT64_MAX, &l->cursor) ||
	    http_query_u64(req, "tail_bytes", 0, INT64_MAX, UINT64_MAX, &tail) ||
	    http_query_u64(req, "limit_bytes", 1, PAGE_MAX, PAGE_BYTES, &l->limit_bytes) ||
	    http_query_u64(req, "follow", 0, 1, 0, &follow))
		return -EINVAL;
	if (l->cursor != UINT64_MAX && tail != UINT64_MAX) {
		http_reply_error(req, 400, "invalid_request", NULL,
				 "'cursor' and 'tail_bytes' exclude each other");
		return -EINVAL;
	}
	l->follow = follow;
	kept_view(l->call->kept, NULL, &view);
	if (tail != UINT64_MAX)
		l->cursor = MAX(view.output_end - MIN(tail, view.output_end), view.oldest);
	else if (l->cursor == UINT64_MAX)
		l->cursor = view.oldest;
	return 0;
}

/* --- one page --- */

/* The entry is complete. @more: other output follows, or may; then half a character at its end is
 * left for the next page. */
static int flush_entry(struct logs *l, bool more)
{
	const char *encoding = "";
	size_t len = l->len_bytes;
	json_t *data, *entry;

	if (!len)
		return 0;
	if (more) {
		size_t cut = exec_utf8_cut(l->data, len);

		if (cut && exec_utf8_ok(l->data, cut))
			len = cut;
	}
	data = exec_bytes_json(l->data, len, true, &encoding);
	entry = json_pack("{s:s, s:o, s:s, s:I, s:o}", "stream", stream_name(l->head.stream),
			  "data", data, "encoding", encoding, "cursor", (json_int_t)l->head.cursor,
			  "time", exec_time_json(l->head.time_ns));
	l->next_cursor = l->head.cursor + len;
	l->len_bytes = 0;
	return entry ? json_array_append_new(l->entries, entry) : -ENOMEM;
}

/* Pieces of one stream that stand behind each other become one entry. */
static int add_chunk(struct logs *l, const struct exec_log_chunk *chunk, u64 page_bytes)
{
	if (l->len_bytes &&
	    (l->head.stream != chunk->stream || l->head.cursor + l->len_bytes != chunk->cursor)) {
		int ret = flush_entry(l, false);

		if (ret)
			return ret;
	}
	if (!l->data) {
		l->data = malloc((size_t)page_bytes);
		if (!l->data)
			return -ENOMEM;
	}
	if (!l->len_bytes)
		l->head = *chunk;
	memcpy(l->data + l->len_bytes, l->chunk, chunk->len_bytes);
	l->len_bytes += chunk->len_bytes;
	return 0;
}

static int read_page(struct logs *l, const struct kept_view *view)
{
	struct kept_reader *reader = &l->call->reader;
	u64 ahead = view->output_end > l->cursor ? view->output_end - l->cursor : 0;
	u64 room = MIN(l->limit_bytes, ahead + CHUNK_BYTES), left = room;
	struct exec_log_chunk chunk;
	int ret = 0;
	ssize_t n = 0;

	l->next_cursor = l->cursor;
	while (!ret && left) {
		n = kept_read(reader, l->chunk, (size_t)MIN(left, (u64)CHUNK_BYTES), &chunk);
		if (n <= 0)
			break;
		l->dropped_bytes += chunk.skipped;
		if (l->stream && chunk.stream != l->stream) {
			ret = flush_entry(l, false);
			l->next_cursor = reader->cursor;
			continue;
		}
		ret = add_chunk(l, &chunk, room);
		left -= (u64)n;
	}
	if (n < 0)
		return (int)n;
	if (!ret)
		ret = flush_entry(l,
				  reader->cursor < view->output_end || view->state != KEPT_ENDED);
	return ret;
}

static void reply_page(struct logs *l)
{
	struct http_req *req = l->call->req;
	struct kept_view view;
	bool ended;
	int code, ret;

	l->entries = json_array();
	/* The view first: of one that had ended, all is there. */
	kept_view(l->call->kept, &l->call->reader, &view);
	ret = l->entries ? read_page(l, &view) : -ENOMEM;
	if (ret) {
		http_reply_error(req, 500, "internal", NULL, "reading the log: %s", strerror(-ret));
		return;
	}
	/* What can't be read any more lies behind a reader that has found nothing. */
	ended = view.state == KEPT_ENDED &&
		(l->next_cursor >= view.output_end || !json_array_size(l->entries));
	code = view.state == KEPT_ENDED ? kept_exit_code(&view.end) : -1;
	http_reply_json(req, 200,
			json_pack("{s:O, s:I, s:I, s:b, s:o}", "entries", l->entries, "next_cursor",
				  (json_int_t)l->next_cursor, "dropped_bytes",
				  (json_int_t)l->dropped_bytes, "ended", ended, "exit_code",
				  code < 0 ? json_null() : json_integer(code)));
}

/* --- events --- */

static int send_chunk(struct logs *l, const struct exec_log_chunk *chunk)
{
	struct http_req *req = l->call->req;
	char *text;
	int ret = 0;

	if (chunk->skipped)
		ret = http_sse_send(
			req, "dropped", NULL,
			json_pack("{s:I}", "dropped_bytes", (json_int_t)chunk->skipped));
	if (ret || (l->stream && chunk->stream != l->stream))
		return ret;
	text = exec_base64(l->chunk, chunk->len_bytes);
	if (!text)
		return -ENOMEM;
	ret = http_sse_send(req, stream_name(chunk->stream), NULL,
			    json_pack("{s:s, s:I, s:o}", "data", text, "cursor",
				      (json_int_t)chunk->cursor, "time",
				      exec_time_json(chunk->time_ns)));
	free(text);
	return ret;
}

/* Return: 0 to go on, 1: it is over, or -errno. */
static int follow_step(struct logs *l)
{
	struct exec_call *call = l->call;
	struct exec_problem problem;
	struct exec_log_chunk chunk;
	struct kept_view view;
	int ret = 0;
	ssize_t n;

	kept_view(call->kept, &call->reader, &view);
	while (!ret && (n = kept_read(&call->reader, l->chunk, sizeof(l->chunk), &chunk)) > 0)
		ret = send_chunk(l, &chunk);
	if (ret)
		return ret;
	if (view.state != KEPT_ENDED)
		return l->follow ? 0 : 1;
	exec_problem_end(&problem, call->kept, &view.end);
	if (problem.status)
		ret = http_sse_send(call->req, "error", NULL,
				    json_pack("{s:o}", "error", exec_problem_json(&problem)));
	else
		ret = http_sse_send(call->req, "exit", NULL, exec_result_json(call->kept, &view));
	return ret ? ret : 1;
}

static void follow(struct logs *l)
{
	struct exec_call *call = l->call;
	unsigned int woken;

	http_sse_begin(call->req);
	while (!follow_step(l)) {
		woken = kept_wait(&call->reader, call->req, -1, 0, EXEC_PING_MS);
		if (woken & (KEPT_WOKEN_LEFT | KEPT_WOKEN_STOP))
			return;
		if (!woken && http_sse_ping(call->req))
			return;
	}
}

void api_exec_logs(struct thawd *thawd, struct http_req *req)
{
	struct logs *l = NULL;
	struct exec_call call;
	int ret;

	if (exec_call_begin_read(&call, thawd, req))
		goto out;
	l = malloc(sizeof(*l));
	if (!l) {
		http_reply_error(req, 500, "internal", NULL, "out of memory");
		goto out;
	}
	memset(l, 0, offsetof(struct logs, chunk));
	l->call = &call;
	if (take_query(l))
		goto out;
	ret = kept_reader_open(&call.reader, call.kept, l->cursor, false);
	if (ret)
		http_reply_error(req, 500, "internal", NULL, "its log: %s", strerror(-ret));
	else if (http_accepts(req, "text/event-stream"))
		follow(l);
	else
		reply_page(l);
out:
	if (l) {
		json_decref(l->entries);
		free(l->data);
	}
	free(l);
	exec_call_end(&call);
}
