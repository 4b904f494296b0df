/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP for thawd: requests as plain blocking code.
 *
 * libmicrohttpd's epoll threads parse requests and move bytes. A request whose headers are complete
 * is handed to a worker thread, which runs the route's serve() from beginning to end; bodies pass
 * through small bounded buffers, so that a slow client slows its own handler and nobody else, and
 * memory stays flat whatever is transferred. Connections that have no complete request cost no
 * thread.
 *
 * A handler answers exactly once: http_reply_*(), http_stream_begin() or http_upgrade(). One that
 * returns without an answer is answered for with 500 `internal`. It may answer before it has read
 * the body; the rest is dropped then. "100 Continue" is sent when it first reads the body. All
 * functions here are for the handler's thread, unless said otherwise. The client is hostile.
 */
#ifndef THAW_DAEMON_HTTP_H
#define THAW_DAEMON_HTTP_H

#include <jansson.h>
#include <sys/types.h>

#include "vmm/util/types.h"

struct thawd;
struct http_req;

enum http_method {
	HTTP_GET = 1u << 0, /* also answers HEAD: the body is dropped */
	HTTP_PUT = 1u << 1,
	HTTP_POST = 1u << 2,
	HTTP_DELETE = 1u << 3,
	HTTP_PATCH = 1u << 4,
	HTTP_ANY = 1u << 5, /* whatever the method is: proxies */
};

enum http_route_flags {
	HTTP_NO_AUTH = 1u << 0,	  /* answered without a token on TCP, too */
	HTTP_RAW_QUERY = 1u << 1, /* query parameters are not checked against route->query */
	HTTP_RESERVED = 1u << 2,  /* does not wait for others: a part of max_requests is for it */
};

/**
 * struct http_route - one row of a table of routes
 * @pattern: "/v1/sandboxes/{name}/execs/{id}"; a last segment "{rest...}" takes all that is left,
 * slashes included. Values are percent-decoded; one with a NUL, or a "/" in a plain segment, never
 * gets to a handler.
 * @query: NULL-terminated names of the query parameters it knows; NULL: none. Another one is 400
 * `unknown_field`.
 */
struct http_route {
	unsigned int methods; /* enum http_method */
	const char *pattern;
	const char *const *query;
	unsigned int flags; /* enum http_route_flags */
	void (*serve)(struct thawd *thawd, struct http_req *req);
};

/* Tables, each ended by a row without pattern; every part of the API has its own (main.c lists
 * them). */
extern const struct http_route api_core_routes[], api_sandbox_routes[], api_snapshot_routes[],
	api_template_routes[], api_exec_routes[], api_file_routes[], api_port_routes[];

/** http_param() - value of a segment of the pattern; NULL: it has none of that name. */
const char *http_param(const struct http_req *req, const char *name);
/** http_query() - first value of a query parameter, decoded; NULL: not given. */
const char *http_query(const struct http_req *req, const char *name);
/** http_query_all() - call @fn for each value of @name, in order; stops at its first non-zero
 * return, which is returned. */
int http_query_all(const struct http_req *req, const char *name,
		   int (*fn)(void *opaque, const char *value), void *opaque);
/** http_query_u64() - a number in [@min, @max], @otherwise when not given. Return: 0, or -EINVAL:
 * answered with 400. */
int __must_check http_query_u64(struct http_req *req, const char *name, u64 min, u64 max,
				u64 otherwise, u64 *out);
/** http_header() - first value; NULL: not sent. */
const char *http_header(const struct http_req *req, const char *name);
/** http_headers_all() - every header the client sent, in order: for proxies. */
void http_headers_all(const struct http_req *req,
		      void (*fn)(void *opaque, const char *name, const char *value), void *opaque);
const char *http_method_name(const struct http_req *req);
/** http_raw_target() - path and query as they were sent, not decoded. */
const char *http_raw_target(const struct http_req *req);
/** http_accepts() - does the client ask for @type ("text/event-stream")? By name alone: a wildcard
 * does not count. */
bool http_accepts(const struct http_req *req, const char *type);
/** http_wants_upgrade() - "Upgrade: @protocol" with "Connection: upgrade". */
bool http_wants_upgrade(const struct http_req *req, const char *protocol);
/** http_peer() - the client's address; "": it came over the Unix socket. */
const char *http_peer(const struct http_req *req);
bool http_over_tls(const struct http_req *req);
/** http_who() - for the audit log: "uid 0 pid 123" or "token from 127.0.0.1". */
const char *http_who(const struct http_req *req);

/**
 * http_body_read() - the next bytes of the request's body; waits for them.
 * Return: number of bytes, 0 at its end, -ECONNRESET (the client left), -ETIMEDOUT (it sends
 * nothing), or -EMSGSIZE (more than was announced).
 */
ssize_t http_body_read(struct http_req *req, void *buf, size_t max_bytes);
/** http_body_read_or() - the same, but -EAGAIN when @other_fd can be read or is hung up first. */
ssize_t http_body_read_or(struct http_req *req, void *buf, size_t max_bytes, int other_fd);
/** http_body_length() - as announced; -1: unknown (chunked); 0: none. */
s64 http_body_length(const struct http_req *req);

/**
 * http_body_json() - the whole body, which must be one JSON object of at most @max_bytes (0: the
 * usual 4 MiB). No body counts as {}.
 * Return: a reference of the caller's, or NULL: answered already (400, 413, 408).
 */
json_t *http_body_json(struct http_req *req, size_t max_bytes);

/** http_json_known() - every field of @object must be in @fields, a NULL-terminated list. Return:
 * 0, or -EINVAL: answered with 400 `unknown_field`, which names it. */
int __must_check http_json_known(struct http_req *req, const json_t *object,
				 const char *const *fields);

void http_reply_json(struct http_req *req, unsigned int status, json_t *steal);
void http_reply_empty(struct http_req *req, unsigned int status);
/** http_reply_text() - of any type; @text is copied. */
void http_reply_text(struct http_req *req, unsigned int status, const char *type, const char *text,
		     size_t len_bytes);
/**
 * http_reply_error() - {"error":{"code","message","details"}}.
 * @code: of docs/openapi.yaml. @details: stolen; NULL: {}.
 */
void http_reply_error(struct http_req *req, unsigned int status, const char *code, json_t *details,
		      const char *fmt, ...) __printf(5, 6);
/** http_reply_retry() - 503 `capacity` with Retry-After. */
void http_reply_retry(struct http_req *req, unsigned int after_s, const char *fmt, ...)
	__printf(3, 4);
bool http_replied(const struct http_req *req);
/** http_add_header() - to the answer that follows. Both are copied. */
void http_add_header(struct http_req *req, const char *name, const char *value);

/**
 * http_stream_begin() - an answer whose body comes by http_stream_write().
 * @len_bytes: -1: unknown, sent chunked.
 */
void http_stream_begin(struct http_req *req, unsigned int status, const char *type, s64 len_bytes);
/** http_stream_write() - waits while the client takes nothing. What was written is on its way at
 * once. Return: 0, or -EPIPE: the client left, or does not read for longer than the settings
 * allow. */
int __must_check http_stream_write(struct http_req *req, const void *buf, size_t len_bytes);
/** http_stream_fail() - the body can't be completed: the connection is cut, so that the client does
 * not take a part for the whole. */
void http_stream_fail(struct http_req *req);

/* Server-sent events over http_stream_*: @data is one JSON value, stolen; @id may be NULL. */
void http_sse_begin(struct http_req *req);
int __must_check http_sse_send(struct http_req *req, const char *event, const char *id,
			       json_t *data);
/** http_sse_ping() - due when nothing was sent for 10 s. */
int __must_check http_sse_ping(struct http_req *req);

/**
 * http_upgrade() - answer 101 with "Upgrade: @protocol" and what http_add_header() added, and take
 * the connection.
 * Return: a connected stream socket, blocking, which the caller owns and closes before serve()
 * returns, as MHD lets go of the connection then; bytes that the client sent early are the first to
 * be read. -errno: the client is gone.
 */
int __must_check http_upgrade(struct http_req *req, const char *protocol);

/**
 * http_client_fd() - to be polled, with events 0 or POLLRDHUP alone, beside what the handler waits
 * for: POLLHUP, POLLERR or POLLRDHUP mean that the client left. Never to be read. Valid until the
 * answer ends; before http_upgrade() also woken when thawd wants to end (http_stopping()): a client
 * that left and a thawd that ends are not the same. Who asks for it may lose an answer that it
 * gives when thawd ends.
 */
int http_client_fd(const struct http_req *req);
/** http_stopping() - thawd is about to end; streams should. */
bool http_stopping(const struct http_req *req);
/** http_stop_fd() - an eventfd, readable once http_stopping(). */
int http_stop_fd(const struct http_req *req);

#endif
