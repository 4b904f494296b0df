// SPDX-License-Identifier: Apache-2.0
// Answers that are whole when they are given.
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/util/log.h"

void http_add_header(struct http_req *req, const char *name, const char *value)
{
	char **slot;

	if (strpbrk(name, "\r\n") || strpbrk(value, "\r\n"))
		return;
	if (req->nextra == HTTP_EXTRA_MAX) {
		log_guest("%s %s: more than %u headers in the answer; '%s' is left out",
			  req->method, req->target.path, HTTP_EXTRA_MAX, name);
		return;
	}
	slot = req->extra[req->nextra];
	slot[0] = strdup(name);
	slot[1] = strdup(value);
	if (slot[0] && slot[1]) {
		req->nextra++;
		return;
	}
	free(slot[0]);
	free(slot[1]);
}

void http_add_extra(struct http_req *req, struct MHD_Response *response)
{
	for (unsigned int i = 0; i < req->nextra; i++) {
		if (MHD_add_response_header(response, req->extra[i][0], req->extra[i][1]) !=
		    MHD_YES)
			log_guest("%s: header '%s' of the answer is not valid; left out",
				  req->method, req->extra[i][0]);
	}
}

/** raw_head() - of an answer that MHD does not send. Return: length, 0: too long. */
static size_t raw_head(const struct http_req *req, unsigned int status, size_t len_bytes, char *out,
		       size_t out_bytes)
{
	int used = snprintf(out, out_bytes,
			    "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\n"
			    "Connection: close\r\nContent-Length: %zu\r\n",
			    status, MHD_get_reason_phrase_for(status), len_bytes);

	for (unsigned int i = 0; i <= req->nextra; i++) {
		size_t left = out_bytes - (size_t)used;
		int more = i < req->nextra ? snprintf(out + used, left, "%s: %s\r\n",
						      req->extra[i][0], req->extra[i][1])
					   : snprintf(out + used, left, "\r\n");

		if (more < 0 || (size_t)more >= left)
			return 0;
		used += more;
	}
	return (size_t)used;
}

/**
 * send_raw() - past MHD, which has sent nothing but perhaps "100 Continue", in the midst of a body
 * that may be long in coming; the connection ends with that. Not over TLS, where the bytes are not
 * ours to write. With the lock held.
 */
static void send_raw(struct http_req *req, unsigned int status, const char *plain)
{
	char head[2048];
	size_t len = plain ? strlen(plain) : 0;
	struct iovec iov[2] = {{head, raw_head(req, status, len, head, sizeof(head))},
			       {(void *)plain, len}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

	if (!iov[0].iov_len)
		return;
	req->raw_sent = true;
	if (sendmsg(req->conn->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		log_debug("%s: %s", req->who, strerror(errno));
}

/** answer_inside() - the body has not come to its end: what is left is dropped as it comes, for so
 * long, and the answer follows, or is sent at once when much may be left. With the lock held. */
static void answer_inside(struct http_req *req, unsigned int status, const char *plain)
{
	bool much = req->body_failed || req->length_bytes < 0 ||
		    (u64)req->length_bytes > HTTP_RING_BYTES;

	if (plain && much && !req->listener->tls)
		send_raw(req, status, plain);
	if (req->body_failed)
		http_conn_cut(req->conn);
	else
		http_conn_set(req->conn, CONN_FRESH);
}

void http_drop_response(struct http_req *req)
{
	struct MHD_Response *response;

	http_req_lock(req);
	response = req->response;
	req->response = NULL;
	http_req_unlock(req);
	if (response)
		MHD_destroy_response(response);
}

void http_answer(struct http_req *req, unsigned int status, struct MHD_Response *response,
		 char *plain)
{
	bool gone;

	BUG_ON(!response);
	http_req_lock(req);
	if (req->answered) {
		http_req_unlock(req);
		log_err("%s %s: a second answer, %u, is dropped", req->method, req->target.path,
			status);
		MHD_destroy_response(response);
		free(plain);
		return;
	}
	req->answered = true;
	req->status = status;
	req->response = response;
	req->plain = plain;
	__atomic_fetch_add(&req->http->answers[MIN(status / 100, 5u)], 1, __ATOMIC_RELAXED);
	if (req->mhd && req->conn && !req->body_done && !req->holds)
		answer_inside(req, status, plain);
	gone = !req->mhd;
	http_req_unlock_resume(req);
	if (gone)
		http_drop_response(req);
}

bool http_replied(const struct http_req *asked)
{
	struct http_req *req = (struct http_req *)asked;
	bool answered;

	http_req_lock(req);
	answered = req->answered;
	http_req_unlock(req);
	return answered;
}

/** reply() - @body is stolen. */
static void reply(struct http_req *req, unsigned int status, const char *type, char *body,
		  size_t len_bytes)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(len_bytes, body, MHD_RESPMEM_MUST_COPY);

	BUG_ON(!response);
	if (type)
		MHD_add_response_header(response, "Content-Type", type);
	http_add_extra(req, response);
	if (type && strcmp(type, "application/json") != 0) {
		free(body);
		body = NULL;
	}
	http_answer(req, status, response, body);
}

void http_reply_json(struct http_req *req, unsigned int status, json_t *steal)
{
	char *text = steal ? json_dumps(steal, JSON_COMPACT) : NULL;
	char *line = NULL;

	json_decref(steal);
	if (!text || asprintf(&line, "%s\n", text) < 0) {
		free(text);
		log_err("%s %s: the answer can't be made into JSON (out of memory, or text that is "
			"not UTF-8)",
			req->method, req->target.path);
		line = strdup(
			"{\"error\":{\"code\":\"internal\",\"message\":\"the answer could not "
			"be made\",\"details\":{}}}\n");
		BUG_ON(!line);
		status = 500;
	} else {
		free(text);
	}
	reply(req, status, "application/json", line, strlen(line));
}

void http_reply_empty(struct http_req *req, unsigned int status)
{
	reply(req, status, NULL, NULL, 0);
}

void http_reply_text(struct http_req *req, unsigned int status, const char *type, const char *text,
		     size_t len_bytes)
{
	char *copy = malloc(len_bytes + 1);

	BUG_ON(!copy);
	memcpy(copy, text, len_bytes);
	copy[len_bytes] = '\0';
	reply(req, status, type, copy, len_bytes);
}

static void reply_error(struct http_req *req, unsigned int status, const char *code,
			json_t *details, const char *fmt, va_list args) __printf(5, 0);
static void reply_error(struct http_req *req, unsigned int status, const char *code,
			json_t *details, const char *fmt, va_list args)
{
	char message[1024];
	json_t *text;

	vsnprintf(message, sizeof(message), fmt, args);
	text = json_string(message);
	if (!text) /* Bytes of the client's that are not UTF-8. */
		text = json_string(code);
	if (!details)
		details = json_object();
	http_reply_json(req, status,
			json_pack("{s:{s:s, s:o, s:o}}", "error", "code", code, "message", text,
				  "details", details));
}

void http_reply_error(struct http_req *req, unsigned int status, const char *code, json_t *details,
		      const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	reply_error(req, status, code, details, fmt, args);
	va_end(args);
}

void http_reply_retry(struct http_req *req, unsigned int after_s, const char *fmt, ...)
{
	char seconds[16];
	va_list args;

	snprintf(seconds, sizeof(seconds), "%u", after_s);
	http_add_header(req, "Retry-After", seconds);
	va_start(args, fmt);
	reply_error(req, 503, "capacity", json_pack("{s:i}", "retry_after_s", (int)after_s), fmt,
		    args);
	va_end(args);
}
