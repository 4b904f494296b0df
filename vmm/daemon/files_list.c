// SPDX-License-Identifier: Apache-2.0
// A folder's content, streamed: what waits is one buffer, whatever its size.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/files.h"
#include "vmm/util/log.h"

#define BUFFER_BYTES ((size_t)32768)

struct listing {
	const struct files_request *req;
	bool begun;
	u64 count;
	size_t used;
	char *buf; /* BUFFER_BYTES */
};

static int flush(struct listing *l)
{
	int err = http_stream_write(l->req->http, l->buf, l->used);

	l->used = 0;
	return err;
}

static int put(struct listing *l, const char *text, size_t len_bytes)
{
	int err = l->used + len_bytes > BUFFER_BYTES ? flush(l) : 0;

	if (err)
		return err;
	if (len_bytes > BUFFER_BYTES)
		return http_stream_write(l->req->http, text, len_bytes);
	memcpy(l->buf + l->used, text, len_bytes);
	l->used += len_bytes;
	return 0;
}

static int begin(struct listing *l)
{
	static const char head[] = "{\"entries\":[";

	if (l->begun)
		return 0;
	l->begun = true;
	http_stream_begin(l->req->http, 200, "application/json", -1);
	return put(l, head, sizeof(head) - 1);
}

static int put_entry(struct listing *l, const struct files_message *m)
{
	json_t *entry = files_stat_json(&m->entry.stat, &m->to);
	const char *slash = memrchr(m->path.bytes, '/', m->path.len_bytes);
	size_t before = slash ? (size_t)(slash + 1 - m->path.bytes) : 0;
	char *text;
	int err;

	files_put_name(entry, "path", m->path.bytes, m->path.len_bytes);
	files_put_name(entry, "name", m->path.bytes + before, m->path.len_bytes - before);
	if (m->entry.error)
		json_object_set_new(entry, "error", json_string(files_errno_name(m->entry.error)));
	text = json_dumps(entry, JSON_COMPACT);
	json_decref(entry);
	if (!text)
		return -ENOMEM;
	err = l->count++ ? put(l, ",", 1) : 0;
	if (!err)
		err = put(l, text, strlen(text));
	free(text);
	return err;
}

/* Return: 0; 1: over, answered. */
static int take_message(struct listing *l, const struct files_message *m)
{
	int err = 0;

	if (m->type == FILES_OPENED)
		err = begin(l);
	else if (m->type == FILES_ENTRY && l->begun)
		err = put_entry(l, m);
	else if (m->type == FILES_ERROR && !l->begun)
		files_fail_reply(l->req, m);
	if (err == -ENOMEM || (m->type == FILES_ERROR && l->begun)) {
		log_warn("sandbox %s: list '%s' broke off", http_param(l->req->http, "name"),
			 l->req->given);
		http_stream_fail(l->req->http);
	}
	return err || m->type == FILES_ERROR;
}

static void pass_on(struct listing *l, struct files_run *run)
{
	struct files_item item;
	int err;

	for (;;) {
		err = files_run_next(run, -1, &item);
		if (err || item.kind == FILES_ITEM_END)
			break;
		if (item.kind == FILES_ITEM_MESSAGE && take_message(l, &item.message))
			return;
	}
	if (!l->begun)
		files_run_reply(l->req, run, err);
	else if (err || put(l, "]}", 2) || flush(l))
		http_stream_fail(l->req->http);
}

void files_serve_list(struct thawd *thawd, struct http_req *http)
{
	struct files_request req;
	struct listing l = {.req = &req};
	struct files_run *run = NULL;
	char depth_text[16];
	u64 depth = 1;

	if (files_request_query(thawd, http, "list", &req) ||
	    http_query_u64(http, "depth", 1, FILES_LIST_DEPTH_MAX, 1, &depth))
		goto out;
	snprintf(depth_text, sizeof(depth_text), "%u", (unsigned int)depth);
	l.buf = malloc(BUFFER_BYTES);
	if (!l.buf) {
		http_reply_error(http, 500, "internal", NULL, "out of memory");
		goto out;
	}
	run = files_run_start(&req, (const char *[]){"list", req.path, depth_text, NULL}, false);
	if (run)
		pass_on(&l, run);
out:
	files_run_end(run);
	free(l.buf);
	files_request_free(&req);
}
