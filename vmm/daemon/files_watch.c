// SPDX-License-Identifier: Apache-2.0
// Changes of files as server-sent events.
#include <errno.h>
#include <string.h>

#include "vmm/daemon/files.h"

#define PING_MS 10000

struct watching {
	const struct files_request *req;
	bool begun;
};

static int begin(struct watching *w)
{
	if (!w->begun)
		http_sse_begin(w->req->http);
	w->begun = true;
	return 0;
}

static int send_event(struct watching *w, const struct files_message *m)
{
	static const char *const names[] = {
		[FILES_CREATED] = "create", [FILES_MODIFIED] = "modify",
		[FILES_DELETED] = "delete", [FILES_MOVED] = "move",
		[FILES_ATTRIB] = "attrib",  [FILES_OVERFLOW] = "overflow",
	};
	bool moved = m->event.kind == FILES_MOVED;
	const struct files_str *path = moved ? &m->to : &m->path;
	json_t *data = json_object();

	if (m->event.kind != FILES_OVERFLOW) {
		files_put_name(data, "path", path->bytes, path->len_bytes);
		if (moved)
			files_put_name(data, "from", m->path.bytes, m->path.len_bytes);
		json_object_set_new(data, "directory", json_boolean(m->event.folder));
	}
	return http_sse_send(w->req->http, names[m->event.kind], NULL, data);
}

static int send_note(struct watching *w, const struct files_message *m)
{
	json_t *data = json_pack("{s:s}", "errno", files_errno_name(m->note.error));

	files_put_name(data, "path", m->path.bytes, m->path.len_bytes);
	return http_sse_send(w->req->http, "unwatched", NULL, data);
}

static void last_event(struct watching *w, const char *event, json_t *data)
{
	/* Who has left does not need it. */
	(void)!http_sse_send(w->req->http, event, NULL, data);
}

static void lost(struct watching *w, const struct files_run *run, int err)
{
	if (!w->begun)
		files_run_reply(w->req, run, err);
	else if (err == -EIO)
		last_event(w, "error",
			   json_pack("{s:{s:s,s:s,s:{}}}", "error", "code", "guest_lost", "message",
				     "the sandbox went away", "details"));
}

/* Return: 0; not 0: over. */
static int take_message(struct watching *w, const struct files_message *m)
{
	switch (m->type) {
	case FILES_OPENED:
		return begin(w) || http_sse_send(w->req->http, "ready", NULL, json_object());
	case FILES_EVENT:
		return begin(w) || send_event(w, m);
	case FILES_NOTE:
		return begin(w) || send_note(w, m);
	case FILES_ERROR:
		if (!w->begun)
			files_fail_reply(w->req, m);
		else
			last_event(w, "error", files_fail_json(w->req, m));
		return 1;
	case FILES_DONE:
		if (w->begun)
			last_event(w, "end", json_object());
		return w->begun;
	case FILES_ENTRY:
		break;
	}
	return 0;
}

static void pass_on(struct watching *w, struct files_run *run)
{
	struct files_item item;
	int err;

	while (!http_stopping(w->req->http)) {
		err = files_run_next(run, PING_MS, &item);
		if (err == -EAGAIN) {
			if (w->begun && http_sse_ping(w->req->http))
				return;
			continue;
		}
		if (err || item.kind == FILES_ITEM_END) {
			lost(w, run, err);
			return;
		}
		if (item.kind == FILES_ITEM_MESSAGE && take_message(w, &item.message))
			return;
	}
}

void files_serve_watch(struct thawd *thawd, struct http_req *http)
{
	struct files_request req;
	struct watching w = {.req = &req};
	struct files_run *run = NULL;
	u64 recursive = 0;

	if (files_request_query(thawd, http, "watch", &req) ||
	    http_query_u64(http, "recursive", 0, 1, 0, &recursive))
		goto out;
	run = files_run_start(
		&req, (const char *[]){"watch", req.path, recursive ? "r" : "-", NULL}, false);
	if (run)
		pass_on(&w, run);
out:
	files_run_end(run);
	files_request_free(&req);
}
