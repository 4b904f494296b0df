// SPDX-License-Identifier: Apache-2.0
// Bytes from a sandbox: a file, or a folder as an archive.
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "vmm/daemon/files.h"
#include "vmm/daemon/notes.h"
#include "vmm/util/log.h"

/* One range of bytes, as a request names it. */
struct range {
	bool given, last; /* last: the last @from bytes */
	u64 from, length; /* length: INT64_MAX: to the end */
};

/* Digits; what is larger than any file is as large as can be. Return: what follows, or NULL. */
static const char *digits(const char *at, u64 *out)
{
	const char *start = at;

	for (*out = 0; *at >= '0' && *at <= '9'; at++)
		*out = MIN(*out * 10 + (u64)(*at - '0'), (u64)INT64_MAX / 16);
	return at == start ? NULL : at;
}

/*
 * What is not one range of bytes is as if it had not been sent (RFC 9110, 14.2), and so is one that
 * is only to be used if nothing changed: that is not checked here.
 */
static struct range range_of(struct http_req *http)
{
	const char *at = http_header(http, "Range");
	struct range out = {.length = INT64_MAX}, none = {.length = INT64_MAX};
	u64 to;

	if (!at || http_header(http, "If-Range") || !strcmp(http_method_name(http), "HEAD") ||
	    strncasecmp(at, "bytes=", 6))
		return none;
	at += 6;
	out.given = true;
	out.last = *at == '-';
	at = digits(at + out.last, &out.from);
	if (!at)
		return none;
	if (out.last)
		return *at ? none : out;
	if (*at++ != '-')
		return none;
	if (!*at)
		return out;
	at = digits(at, &to);
	if (!at || *at || to < out.from)
		return none;
	out.length = to - out.from + 1;
	return out;
}

static void add_last_modified(struct http_req *http, const struct files_stat *st)
{
	static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
	static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
					     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
	time_t at = (time_t)st->mtime_s;
	char text[64];
	struct tm tm;

	if (st->mtime_s < 0 || st->mtime_s > 253402300799)
		return;
	gmtime_r(&at, &tm);
	snprintf(text, sizeof(text), "%s, %02d %s %04d %02d:%02d:%02d GMT", days[tm.tm_wday],
		 tm.tm_mday, months[tm.tm_mon], tm.tm_year + 1900, tm.tm_hour, tm.tm_min,
		 tm.tm_sec);
	http_add_header(http, "Last-Modified", text);
}

/* Return: bytes that are to follow; -1: not known; -ERANGE: answered with 416. */
static s64 begin(const struct files_request *req, const struct range *range,
		 const struct files_opened *opened)
{
	bool sized = opened->flags & FILES_SIZED, part = range->given && sized;
	bool head = !strcmp(http_method_name(req->http), "HEAD");
	u64 size = opened->stat.size_bytes;
	char text[96];
	s64 length;

	if (sized)
		http_add_header(req->http, "Accept-Ranges", "bytes");
	if (part && !opened->length_bytes) {
		snprintf(text, sizeof(text), "bytes */%" PRIu64, size);
		http_add_header(req->http, "Content-Range", text);
		http_reply_error(req->http, 416, "invalid_request",
				 json_pack("{s:I}", "size_bytes", (json_int_t)size),
				 "the range begins behind the file's end: it has %" PRIu64 " bytes",
				 size);
		return -ERANGE;
	}
	if (part) {
		snprintf(text, sizeof(text), "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64,
			 opened->offset_bytes, opened->offset_bytes + opened->length_bytes - 1,
			 size);
		http_add_header(req->http, "Content-Range", text);
	}
	add_last_modified(req->http, &opened->stat);
	length = !sized ? -1 : (s64)(head ? size : opened->length_bytes);
	http_stream_begin(req->http, part ? 206 : 200, "application/octet-stream", length);
	return length;
}

struct reading {
	const struct files_request *req;
	const struct range *range; /* NULL: an archive */
	struct files_run *run;
	bool begun;
	s64 announced_bytes; /* -1: not known */
	u64 got_bytes, done_bytes;
};

/* Return: 0; 1: it is over, answered; -errno: files_run_next()'s. */
static int take_message(struct reading *r, const struct files_message *m)
{
	if (m->type == FILES_OPENED && !r->begun) {
		/* thaw-files moves the range into the file; a guest that does not is out of line.
		 */
		if (m->opened.offset_bytes > m->opened.stat.size_bytes ||
		    m->opened.length_bytes > m->opened.stat.size_bytes - m->opened.offset_bytes) {
			http_reply_error(r->req->http, 502, "guest_lost", NULL,
					 "sandbox %s, %s: a range outside of the file",
					 http_param(r->req->http, "name"), r->req->operation);
			return 1;
		}
		r->begun = true;
		if (r->range)
			r->announced_bytes = begin(r->req, r->range, &m->opened);
		else
			http_stream_begin(r->req->http, 200, "application/x-tar", -1);
		return r->announced_bytes == -ERANGE ? 1 : 0;
	}
	if (m->type == FILES_DONE)
		r->done_bytes = m->done.bytes;
	if (m->type == FILES_NOTE)
		log_info("sandbox %s: %s '%s' leaves out: %.*s: %.*s",
			 http_param(r->req->http, "name"), r->req->operation, r->req->given,
			 (int)MIN(m->path.len_bytes, (size_t)200), m->path.bytes,
			 (int)m->text.len_bytes, m->text.bytes);
	if (m->type != FILES_ERROR)
		return 0;
	if (!r->begun) {
		files_fail_reply(r->req, m);
		return 1;
	}
	log_warn("sandbox %s: %s '%s' broke off: %s: %.*s", http_param(r->req->http, "name"),
		 r->req->operation, r->req->given, files_errno_name(m->error.error),
		 (int)m->text.len_bytes, m->text.bytes);
	http_stream_fail(r->req->http);
	return 1;
}

static int take_data(struct reading *r, const struct files_item *item)
{
	int err;

	if (!r->begun)
		return 0; /* the message before it ends this */
	r->got_bytes += item->len_bytes;
	if (r->announced_bytes >= 0 && r->got_bytes > (u64)r->announced_bytes) {
		http_stream_fail(r->req->http);
		return 1;
	}
	metric_add(r->req->thawd, METRIC_BYTES_FILES_OUT, item->len_bytes);
	err = http_stream_write(r->req->http, item->data, item->len_bytes);
	return err ? 1 : 0;
}

static void pass_on(struct reading *r)
{
	struct files_item item;
	int err = 0;

	while (!err) {
		err = files_run_next(r->run, -1, &item);
		if (err)
			break;
		if (item.kind == FILES_ITEM_MESSAGE)
			err = take_message(r, &item.message);
		else if (item.kind == FILES_ITEM_DATA)
			err = take_data(r, &item);
		else if (item.kind == FILES_ITEM_END)
			break;
	}
	if (err > 0)
		return;
	if (!r->begun)
		files_run_reply(r->req, r->run, err);
	else if (err || r->done_bytes != r->got_bytes)
		http_stream_fail(r->req->http); /* fewer than announced: the HTTP layer sees that */
}

void files_serve_read(struct thawd *thawd, struct http_req *http)
{
	struct range range = range_of(http);
	char from[32], length[32] = "-";
	struct files_request req;
	struct reading r = {.req = &req, .range = &range, .announced_bytes = -1};

	if (files_request_query(thawd, http, "read", &req))
		goto out;
	snprintf(from, sizeof(from), "%s%" PRIu64, range.last ? "-" : "", range.from);
	if (!strcmp(http_method_name(http), "HEAD"))
		snprintf(length, sizeof(length), "0");
	else if (range.length != INT64_MAX)
		snprintf(length, sizeof(length), "%" PRIu64, range.length);
	r.run = files_run_start(&req, (const char *[]){"read", req.path, from, length, NULL},
				false);
	if (r.run)
		pass_on(&r);
	files_run_end(r.run);
out:
	files_request_free(&req);
}

void files_serve_tar_out(struct thawd *thawd, struct http_req *http)
{
	struct files_request req;
	struct reading r = {.req = &req, .announced_bytes = -1};

	if (files_request_query(thawd, http, "tar_out", &req))
		goto out;
	r.run = files_run_start(&req, (const char *[]){"tar_out", req.path, NULL}, false);
	if (r.run)
		pass_on(&r);
	files_run_end(r.run);
out:
	files_request_free(&req);
}
