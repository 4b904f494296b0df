/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports of a sandbox: connections to servers in it, HTTP and WebSocket through them. Servers in a
 * guest are hostile: what they send is checked, nothing they do makes a client wait for ever but
 * not answering, and that has its limit.
 */
#ifndef THAW_DAEMON_PROXY_H
#define THAW_DAEMON_PROXY_H

#include "vmm/daemon/box.h"
#include "vmm/daemon/http.h"
#include "vmm/util/types.h"

/** proxy_connect() - to 127.0.0.1:@port (or ::1) in the sandbox. @deadline_ns: CLOCK_MONOTONIC;
 * @stop_fd: hung up or readable ends the wait with -ECANCELED.
 * Return: a connected, non-blocking socket of the caller's; -ECONNREFUSED (nobody listens),
 * -ENODEV (the machine is gone), -EAGAIN (too many connections), -ETIMEDOUT, -EPROTO, -ECANCELED or
 * what connect(2) said in the guest. Logs nothing. */
int __must_check proxy_connect(struct thawd *thawd, const struct box_use *use, u32 port,
			       u64 deadline_ns, int stop_fd);

/** proxy_reply_failed() - answers for a proxy_connect() that returned @err; not when it is
 * -ECANCELED: nobody is there any more. */
void proxy_reply_failed(struct http_req *req, const char *box, u32 port, int err);

/** proxy_port() - the route's {port}. Return: it, or 0: answered with 400. */
u32 proxy_port(struct http_req *req);

/** proxy_stop_fd() - for proxy_connect() and httpc: the client, whose leaving also means that thawd
 * ends; polled for @events. */
#define PROXY_STOP_EVENTS POLLRDHUP

/** struct proxy_call - one request for a server in a sandbox. */
struct proxy_call {
	u32 port;
	const char *target; /* path and query for the server */
	const char *host;   /* Host for the server */
	const char *prefix; /* X-Forwarded-Prefix, or NULL */
	const char *cookie; /* name of a cookie that the server must not see, or NULL */
	bool keep_auth;	    /* Authorization is the server's, not thawd's */
};

/** proxy_http() - pass the request on and answer with what comes back, WebSocket included. Always
 * answers, unless the client left. */
void proxy_http(struct thawd *thawd, struct http_req *req, const struct box_use *use,
		const struct proxy_call *call);

/**
 * proxy_pump() - carry bytes between two stream sockets, half-closes included, until both
 * directions have ended, one side fails, or @stop_fd is readable. @in_bytes, @out_bytes: how many
 * went from @a to @b, and back. Closes neither.
 */
void proxy_pump(int a, int b, int stop_fd, u64 *in_bytes, u64 *out_bytes);

/*
 * Headers; proxy_headers.c, pure.
 */

/** proxy_header_passes() - is header @name one that goes to the other side? Not those of the
 * connection itself: what RFC 9110 7.6.1 lists, framing, and what @connection, the value of
 * Connection or NULL, names. */
bool proxy_header_passes(const char *name, const char *connection);

/** proxy_strip_cookie() - @value of Cookie without the cookies named @name, into @out of
 * 2 * strlen(@value) + 1 bytes. Return: length; 0: none is left. */
size_t proxy_strip_cookie(const char *value, const char *name, char *out);

/** proxy_cookie() - value of the first cookie named @name in @value of Cookie. Return: length with
 * *@out into @value, or -ENOENT. */
ssize_t proxy_cookie(const char *value, const char *name, const char **out);

/** proxy_strip_query() - @target without query parameters whose decoded name is @name, into @out of
 * strlen(@target) + 1 bytes. */
void proxy_strip_query(const char *target, const char *name, char *out);

/** struct preview_host - "{port}-{name}.{domain}" taken apart. */
struct preview_host {
	u32 port;
	char name[BOX_NAME_MAX + 1];
};
/** preview_host_parse() - of a Host header, a port behind it ignored, case folded. Return: 0 or
 * -EINVAL (not of @domain, or no such form). */
int __must_check preview_host_parse(const char *host, const char *domain, struct preview_host *out);

#endif
