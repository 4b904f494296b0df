// SPDX-License-Identifier: Apache-2.0
/*
 * Bytes into a sandbox: a file, or an archive to unpack.
 *
 * The guest opens before it reads, and says so: a file that can't be written is answered before a
 * byte of the body is asked for. From then on, what the guest says goes before what the client
 * does: an error of the guest ends the request at once, however much is still to come; a body that
 * breaks off ends the guest's program where it is, and a part stays.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/files.h"
#include "vmm/daemon/notes.h"

#define WARNINGS_MAX 100

struct writing {
	const struct files_request *req;
	struct files_run *run;
	bool opened, done;
	u64 bytes, count;
	json_t *warnings;
	u64 warnings_total;
};

static void take_note(struct writing *w, const struct files_message *m)
{
	json_t *note;
	char text[FILES_TEXT_MAX_BYTES + 1];

	w->warnings_total++;
	if (!w->warnings || json_array_size(w->warnings) >= WARNINGS_MAX)
		return;
	memcpy(text, m->text.bytes, m->text.len_bytes);
	text[m->text.len_bytes] = '\0';
	for (char *at = text; *at; at++)
		if (*at < ' ' || *at > '~')
			*at = '?';
	note = json_pack("{s:s}", "text", text);
	files_put_name(note, "path", m->path.bytes, m->path.len_bytes);
	json_array_append_new(w->warnings, note);
}

/* Return: 0; 1: answered; -errno: files_run_next()'s. */
static int take(struct writing *w, int wait_ms)
{
	struct files_item item;
	int err = files_run_next(w->run, wait_ms, &item);

	if (err)
		return err;
	if (item.kind == FILES_ITEM_END) {
		w->done = true;
		return 0;
	}
	if (item.kind != FILES_ITEM_MESSAGE)
		return 0;
	switch (item.message.type) {
	case FILES_OPENED:
		w->opened = true;
		break;
	case FILES_NOTE:
		take_note(w, &item.message);
		break;
	case FILES_DONE:
		w->bytes = item.message.done.bytes;
		w->count = item.message.done.count;
		break;
	case FILES_ERROR:
		files_audit(w->req, files_errno_name(item.message.error.error));
		files_fail_reply(w->req, &item.message);
		return 1;
	case FILES_ENTRY:
	case FILES_EVENT:
		break;
	}
	return 0;
}

/* Until it has nothing more to say for now. Return: 0, 1, -errno. */
static int take_what_is_there(struct writing *w)
{
	int err;

	do {
		err = take(w, 0);
	} while (!err && !w->done);
	return err == -EAGAIN ? 0 : err;
}

/* The client is to blame, unless the guest has something to say about it. */
static int body_failed(struct writing *w, ssize_t n)
{
	int err = take_what_is_there(w);

	if (err == 1)
		return 1;
	files_audit(w->req, n == -ETIMEDOUT ? "timeout" : "client_left");
	if (n == -ETIMEDOUT)
		http_reply_error(w->req->http, 408, "timeout", NULL,
				 "%s '%s': the body stopped coming", w->req->operation,
				 w->req->given);
	else
		http_reply_error(w->req->http, 400, "invalid_request", NULL,
				 "%s '%s': the body is not what was announced", w->req->operation,
				 w->req->given);
	return 1;
}

/* Return: 0: all of it was passed on; 1: answered; -errno. */
static int pass_body(struct writing *w, u8 *chunk)
{
	for (;;) {
		size_t room = files_run_room(w->run);
		ssize_t n;
		int err = room ? take_what_is_there(w) : take(w, -1);

		if (err || w->done)
			return err;
		if (!room)
			continue;
		n = http_body_read_or(w->req->http, chunk, room, files_run_fd(w->run));
		if (n == -EAGAIN)
			continue;
		if (n < 0)
			return body_failed(w, n);
		err = files_run_write(w->run, chunk, (size_t)n);
		/* It takes no more: it is about to say why. */
		if (err == -EIO || !n)
			return 0;
		if (err)
			return err;
		metric_add(w->req->thawd, METRIC_BYTES_FILES_IN, (u64)n);
	}
}

/* Return: 0: it went well; 1: answered; -errno: of the run. */
static int run_write(struct writing *w)
{
	u8 *chunk = malloc(SHIM_DATA_MAX_BYTES);
	int err = 0;

	if (!chunk) {
		http_reply_error(w->req->http, 500, "internal", NULL, "out of memory");
		return 1;
	}
	while (!err && !w->opened && !w->done)
		err = take(w, -1);
	if (!err)
		err = pass_body(w, chunk);
	while (!err && !w->done)
		err = take(w, -1);
	free(chunk);
	return err;
}

/* Return: was it done? Else it is answered and audited. */
static bool write_with(struct writing *w, const char *const *args)
{
	int err;

	w->run = files_run_start(w->req, args, true);
	if (!w->run)
		return false;
	err = run_write(w);
	if (err < 0) {
		files_audit(w->req, files_run_code(err));
		files_run_reply(w->req, w->run, err);
	} else if (!err) {
		files_audit(w->req, "ok");
	}
	files_run_end(w->run);
	return !err;
}

void files_serve_write(struct thawd *thawd, struct http_req *http)
{
	const char *mode = http_query(http, "mode");
	struct files_request req;
	struct writing w = {.req = &req};
	char bits[8] = "-";
	u64 append = 0;

	if (!files_request_query(thawd, http, "write", &req) &&
	    !http_query_u64(http, "append", 0, 1, 0, &append) &&
	    !(mode && files_mode_text(http, mode, bits)) &&
	    write_with(&w, (const char *[]){"write", req.path, bits, append ? "ca" : "ct", NULL}))
		http_reply_json(http, 200, json_pack("{s:I}", "size_bytes", (json_int_t)w.bytes));
	files_request_free(&req);
}

void files_serve_tar_in(struct thawd *thawd, struct http_req *http)
{
	struct files_request req;
	struct writing w = {.req = &req};
	u64 privileged = 0;

	w.warnings = json_array();
	if (!files_request_query(thawd, http, "tar_in", &req) &&
	    !http_query_u64(http, "privileged", 0, 1, 0, &privileged) &&
	    write_with(&w, (const char *[]){"tar_in", req.path, privileged ? "p" : "-", NULL}))
		http_reply_json(http, 200,
				json_pack("{s:I,s:I,s:O,s:I}", "entries", (json_int_t)w.count,
					  "size_bytes", (json_int_t)w.bytes, "warnings", w.warnings,
					  "warnings_total", (json_int_t)w.warnings_total));
	json_decref(w.warnings);
	files_request_free(&req);
}
