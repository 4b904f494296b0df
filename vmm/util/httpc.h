/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small strict HTTP/1.1 client over a connected stream socket: for the CLI, which talks to thawd,
 * and for thawd's port proxy, which talks to servers inside guests. The peer is hostile: heads are
 * limited, ambiguous framing (both lengths, differing lengths, bad chunks) is refused, and nothing
 * is read past what the head says.
 *
 * Blocking calls with a deadline. One request at a time: it is sent whole before its answer is
 * received, and the answer's body is read to its end before the next request. Not a general client:
 * no redirects, cookies, TLS, compression.
 */
#ifndef THAW_UTIL_HTTPC_H
#define THAW_UTIL_HTTPC_H

#include <sys/types.h>

#include "vmm/util/types.h"

#define HTTPC_HEAD_MAX_BYTES 65536u
#define HTTPC_HEADERS_MAX    128u

struct httpc_header {
	const char *name, *value; /* in the response's own buffer */
};

struct httpc {
	int fd;	     /* the caller's */
	int stop_fd; /* polled beside: readable or hung up ends any wait with -ECANCELED; -1: none
		      */
	short stop_events; /* what to poll stop_fd for, beside hang-ups; httpc_init() sets POLLIN */
	u64 deadline_ns; /* CLOCK_MONOTONIC, of every wait; 0: none. May be changed between calls */
	/* internal */
	char *buf;
	size_t start, used;
	u64 body_left;
	s64 send_left; /* of the request's body; -1: chunked and not ended */
	u8 body_kind, body_state;
	bool keep_alive, upgrade_asked;
};

struct httpc_response {
	unsigned int status;
	struct httpc_header headers[HTTPC_HEADERS_MAX];
	unsigned int nheaders;
	s64 length_bytes; /* of the body; -1: unknown (chunked, or to the end of the stream). Of a
			     HEAD's answer: as announced, -1 if it was not */
	bool upgraded;	  /* 101: the socket is the new protocol's, see httpc_take_early() */
	char *head;	  /* owned */
};

/** httpc_init() - over @fd. httpc_free() frees, and leaves @fd open. Return: 0 or -ENOMEM. */
int __must_check httpc_init(struct httpc *http, int fd);
void httpc_free(struct httpc *http);

/** httpc_connect_unix() - a socket connected to @path. Return: the fd or -errno. */
int __must_check httpc_connect_unix(const char *path);

/**
 * httpc_send() - request line and headers.
 * @target: as it goes on the wire; must have no space, control character or non-ASCII byte.
 * @headers: NULL-name-terminated, or NULL; Host is added if missing. A value with CR, LF or another
 * control character is refused, and so are Content-Length and Transfer-Encoding: @body_bytes says.
 * @body_bytes: Content-Length; -1: chunked; 0 and no method that has one: none.
 * Return: 0, -EINVAL (also: CONNECT; the answer before has not been read to its end), -E2BIG (more
 * than HTTPC_HEAD_MAX_BYTES), -EPIPE, -ETIMEDOUT, -ECANCELED, -ENOMEM or -errno.
 */
int __must_check httpc_send(struct httpc *http, const char *method, const char *target,
			    const struct httpc_header *headers, s64 body_bytes);
/**
 * httpc_send_body() / httpc_send_end() - body bytes (framed if chunked); its end, due when it is
 * chunked. -EPIPE: the peer has closed, and may have said why: httpc_receive() is worth a try.
 * Return: 0, -EINVAL (more or less than announced), -EPIPE, -ETIMEDOUT, -ECANCELED or -errno.
 */
int __must_check httpc_send_body(struct httpc *http, const void *buf, size_t len_bytes);
int __must_check httpc_send_end(struct httpc *http);

/** httpc_receive() - the next final response's head (1xx but 101 are passed over, up to 16 of them;
 * a 101 that nobody asked for is -EPROTO). Not a byte behind the head is taken from the socket.
 * @is_head: it answers a HEAD. httpc_response_free() is due after success. Return: 0, -EPROTO
 * (malformed or ambiguous), -E2BIG, -EPIPE (closed before or inside the head), -ETIMEDOUT,
 * -ECANCELED, -ENOMEM or -errno. */
int __must_check httpc_receive(struct httpc *http, bool is_head, struct httpc_response *response);
void httpc_response_free(struct httpc_response *response);
/** httpc_header() - the first value of @name, whatever its case; NULL: there is none. */
const char *httpc_header(const struct httpc_response *response, const char *name);

/** httpc_read() - next bytes of the body, as many as are there. Trailers are checked and dropped.
 * Return: number, 0 at its end, -EPIPE (cut short), -EPROTO, -EINVAL (@max_bytes is 0), or as
 * httpc_receive(). */
ssize_t httpc_read(struct httpc *http, void *buf, size_t max_bytes);

/** httpc_take_early() - after 101: bytes of the new protocol that were taken from the socket with
 * the head. There are none, since httpc_receive() leaves them: @fd can be handed on as it is.
 * Return: 0. */
size_t httpc_take_early(struct httpc *http, void *buf, size_t max_bytes);
/** httpc_reusable() - may another request be sent on this connection? No: the peer wants it closed
 * or has closed it, it has sent something unasked, or a body is not at its end. */
bool httpc_reusable(const struct httpc *http);

/** httpc_url_encode() - @text as one path segment or query value, into @out: all but letters,
 * digits and "-._~" as %XX. Return: 0 or -ENAMETOOLONG. */
int __must_check httpc_url_encode(const char *text, char *out, size_t out_bytes);

#endif
