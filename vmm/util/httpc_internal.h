/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the HTTP client. */
#ifndef THAW_UTIL_HTTPC_INTERNAL_H
#define THAW_UTIL_HTTPC_INTERNAL_H

#include "vmm/util/httpc.h"

enum httpc_body_kind {
	HTTPC_BODY_NONE,
	HTTPC_BODY_LENGTH,
	HTTPC_BODY_CHUNKED,
	HTTPC_BODY_TO_END, /* of the stream */
};

enum httpc_body_state {
	HTTPC_DONE,	  /* no body, or it has been read */
	HTTPC_CHUNK_SIZE, /* a line with a chunk's size comes next */
	HTTPC_DATA,	  /* body_left bytes; HTTPC_BODY_TO_END: any number */
	HTTPC_CHUNK_END,  /* the line end behind a chunk */
	HTTPC_TRAILER,
	HTTPC_BROKEN, /* malformed or cut short: nothing more can be read */
};

/** httpc_is_token() - @len bytes of RFC 9110's token, at least one. */
bool httpc_is_token(const char *text, size_t len);
/** httpc_is_value() - no control characters but tabs. */
bool httpc_is_value(const char *text, size_t len);

/**
 * httpc_parse_head() - one head.
 * @head: @len bytes, up to and with the empty line, and a NUL behind them; it is cut into strings,
 * which @response then points into.
 * @http: what the body will be like is set up in it. Return: 0, -EPROTO or -E2BIG.
 */
int __must_check httpc_parse_head(struct httpc *http, char *head, size_t len, bool is_head,
				  struct httpc_response *response);

/** httpc_recv() - recv(2) with waiting. Return: number, 0 at the end of the stream, or -errno. */
ssize_t httpc_recv(struct httpc *http, void *buf, size_t max_bytes, int flags);

#endif
