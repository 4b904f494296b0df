// SPDX-License-Identifier: Apache-2.0
// Bodies of requests.
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/util/util.h"

#define MS_NS ((u64)1000000)

static u64 body_deadline(const struct http_req *req)
{
	return clock_now_ns() + req->http->thawd->conf.body_timeout_ms * MS_NS;
}

/** want_body() - a client that waits for "100 Continue" gets it. With the lock held. */
static void want_body(struct http_req *req)
{
	if (req->want_body)
		return;
	req->want_body = true;
	http_req_unlock_resume(req);
	http_req_lock(req);
}

/** take() - with the lock held, which is given back: what is there, or @ret when nothing is. */
static ssize_t take(struct http_req *req, void *buf, size_t max_bytes, ssize_t ret)
{
	if (req->in.used)
		ret = (ssize_t)http_ring_take(&req->in, buf, max_bytes);
	else if (!ret && !req->body_done)
		ret = -ECONNRESET;
	if (ret < 0)
		req->body_failed = true;
	http_req_unlock_resume(req);
	return ret;
}

/** body_read() - http_body_read() with a deadline for the wait. */
static ssize_t body_read(struct http_req *req, void *buf, size_t max_bytes, u64 deadline_ns)
{
	int ret = 0;

	if (!max_bytes)
		return 0;
	http_req_lock(req);
	want_body(req);
	while (!req->in.used && !req->body_done && req->mhd && !ret)
		ret = http_req_wait(req, deadline_ns);
	return take(req, buf, max_bytes, ret);
}

ssize_t http_body_read_or(struct http_req *req, void *buf, size_t max_bytes, int other_fd)
{
	u64 deadline_ns = body_deadline(req), now_ns;
	struct pollfd fds[2] = {{.fd = other_fd, .events = POLLIN | POLLRDHUP}, {.events = POLLIN}};
	ssize_t ret = 0;
	eventfd_t ignored;

	if (!max_bytes)
		return 0;
	http_req_lock(req);
	want_body(req);
	if (req->body_fd < 0)
		req->body_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (req->body_fd < 0)
		ret = -errno;
	fds[1].fd = req->body_fd;
	while (!req->in.used && !req->body_done && req->mhd && !ret) {
		http_req_unlock(req);
		now_ns = clock_now_ns();
		if (now_ns >= deadline_ns)
			ret = -ETIMEDOUT;
		else if (poll(fds, 2, (int)((deadline_ns - now_ns) / MS_NS) + 1) < 0 &&
			 errno != EINTR)
			ret = -errno;
		else if (fds[0].revents)
			return -EAGAIN;
		(void)!eventfd_read(fds[1].fd, &ignored);
		http_req_lock(req);
	}
	return take(req, buf, max_bytes, ret);
}

ssize_t http_body_read(struct http_req *req, void *buf, size_t max_bytes)
{
	return body_read(req, buf, max_bytes, body_deadline(req));
}

s64 http_body_length(const struct http_req *req)
{
	return req->length_bytes;
}

/** read_all() - the body into *@out, of at most @max_bytes. Return: length, or -errno. */
static ssize_t read_all(struct http_req *req, size_t max_bytes, char **out)
{
	u64 deadline_ns = body_deadline(req);
	size_t used = 0, room = 0;
	ssize_t got;

	*out = NULL;
	if (req->length_bytes > 0 && (u64)req->length_bytes > max_bytes)
		return -EMSGSIZE;
	do {
		if (room - used < 4096) {
			char *more;

			room = room ? room * 2 : 8192;
			more = realloc(*out, room);
			if (!more)
				return -ENOMEM;
			*out = more;
		}
		got = body_read(req, *out + used, room - used, deadline_ns);
		if (got < 0)
			return got;
		used += (size_t)got;
		if (used > max_bytes)
			return -EMSGSIZE;
	} while (got);
	return (ssize_t)used;
}

/** too_deep() - more brackets inside each other than a request has: jansson would use the stack. */
static bool too_deep(const char *text, size_t len_bytes)
{
	unsigned int depth = 0;
	bool string = false;

	for (size_t i = 0; i < len_bytes; i++) {
		char c = text[i];

		if (string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				string = false;
		} else if (c == '"') {
			string = true;
		} else if (c == '{' || c == '[') {
			if (++depth > HTTP_JSON_DEPTH)
				return true;
		} else if ((c == '}' || c == ']') && depth) {
			depth--;
		}
	}
	return false;
}

json_t *http_json_parse(const char *text, size_t len_bytes, char *why, size_t why_bytes)
{
	json_error_t error;
	json_t *json;

	if (!len_bytes)
		return json_object();
	if (too_deep(text, len_bytes)) {
		snprintf(why, why_bytes, "brackets are more than %u deep", HTTP_JSON_DEPTH);
		return NULL;
	}
	json = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, &error);
	if (!json) {
		snprintf(why, why_bytes, "line %d, column %d: %s", error.line, error.column,
			 error.text);
		return NULL;
	}
	if (!json_is_object(json)) {
		snprintf(why, why_bytes, "it is not an object");
		json_decref(json);
		return NULL;
	}
	return json;
}

static void reply_unread(struct http_req *req, int err, size_t max_bytes)
{
	if (err == -EMSGSIZE)
		http_reply_error(req, 413, "too_large",
				 json_pack("{s:I}", "max_bytes", (json_int_t)max_bytes),
				 "the body is larger than %zu bytes", max_bytes);
	else if (err == -ETIMEDOUT)
		http_reply_error(req, 408, "timeout", NULL,
				 "the body did not arrive within %llu ms",
				 (unsigned long long)req->http->thawd->conf.body_timeout_ms);
	else if (err == -ENOMEM)
		http_reply_error(req, 500, "internal", NULL, "out of memory");
	else
		http_reply_error(req, 400, "invalid_request", NULL, "the body was cut short");
}

json_t *http_body_json(struct http_req *req, size_t max_bytes)
{
	char *text = NULL, why[256] = "";
	json_t *json = NULL;
	ssize_t len;

	if (!max_bytes)
		max_bytes = req->http->thawd->conf.max_json_bytes;
	len = read_all(req, max_bytes, &text);
	if (len < 0) {
		reply_unread(req, (int)len, max_bytes);
	} else {
		json = http_json_parse(text, (size_t)len, why, sizeof(why));
		if (!json)
			http_reply_error(req, 400, "invalid_request", NULL,
					 "the body must be one JSON object: %s", why);
	}
	free(text);
	return json;
}

int http_json_known(struct http_req *req, const json_t *object, const char *const *fields)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)object, key, value)
	{
		const char *const *field = fields;

		while (*field && strcmp(*field, key))
			field++;
		if (*field)
			continue;
		http_reply_error(req, 400, "unknown_field", json_pack("{s:s}", "field", key),
				 "unknown field '%.200s'", key);
		return -EINVAL;
	}
	return 0;
}
