// SPDX-License-Identifier: Apache-2.0
// A client's request passed on to a server in a sandbox, and its answer passed back.
//
// Theory of operation
//
// Both sides' framing ends here: the client's was checked by http_serve.c, the server's by httpc,
// and what goes out is framed anew, so that nobody can smuggle a request past the other. Headers of
// the connection itself stay (proxy_header_passes()).
//
// The body goes up while the server is watched: one that answers before it has read all is heard.
// If it refuses (status 300 and more) its answer is passed on and the rest of the body is dropped,
// as is usual; if it accepts, the rest is sent, and its answer follows. An answer can't begin
// before the end of the client's body, since HTTP here is half duplex: what needs both at once uses
// a WebSocket or a raw connection.
//
// No wait is for ever: connecting has the setting port_connect_timeout, the body and the head of
// the answer port_head_timeout. Behind the head the server may be as slow as it likes (events), and
// the wait ends when the client leaves.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "vmm/daemon/notes.h"
#include "vmm/daemon/proxy.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/httpc.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define BUF_BYTES	(32 * KIB)
#define MS_NS		((u64)1000000)
#define HEADERS_MAX	144u /* the client's, and ours */
#define ADDED_MAX_BYTES 1024u

struct proxy {
	struct thawd *thawd;
	struct http_req *req;
	const struct box_use *use;
	const struct proxy_call *call;
	struct httpc http;
	bool websocket;
	struct httpc_header headers[HEADERS_MAX];
	size_t nheaders;
	char *cookie, *connection; /* all values of Connection */
	u64 in_bytes, out_bytes;
	u8 buf[BUF_BYTES];
};

static u64 deadline_after(u64 ms)
{
	return clock_now_ns() + ms * MS_NS;
}

static void add(struct proxy *proxy, const char *name, const char *value)
{
	if (value && proxy->nheaders + 1 < HEADERS_MAX)
		proxy->headers[proxy->nheaders++] = (struct httpc_header){name, value};
}

/** is_ours() - headers that say who the client is, and thawd's own: never the client's word. */
static bool is_ours(const struct proxy *proxy, const char *name)
{
	static const char *const ours[] = {"Host",
					   "Forwarded",
					   "X-Forwarded-For",
					   "X-Forwarded-Proto",
					   "X-Forwarded-Host",
					   "X-Forwarded-Prefix",
					   "X-Thaw-Token"};

	for (size_t i = 0; i < ARRAY_SIZE(ours); i++) {
		if (!strcasecmp(ours[i], name))
			return true;
	}
	return !proxy->call->keep_auth && !strcasecmp(name, "Authorization");
}

/** add_connection() - collects the values of Connection. */
static void add_connection(void *opaque, const char *name, const char *value)
{
	char **list = opaque, *joined;

	if (strcasecmp(name, "Connection") != 0 ||
	    asprintf(&joined, "%s%s%s", *list ? *list : "", *list ? "," : "", value) < 0)
		return;
	free(*list);
	*list = joined;
}

static void add_client_header(void *opaque, const char *name, const char *value)
{
	struct proxy *proxy = opaque;

	if (!proxy_header_passes(name, proxy->connection) || is_ours(proxy, name))
		return;
	if (!proxy->call->cookie || strcasecmp(name, "Cookie") != 0) {
		add(proxy, name, value);
		return;
	}
	if (!proxy->cookie) /* a second one is no browser's */
		proxy->cookie = malloc(2 * strlen(value) + 1);
	else
		return;
	if (proxy->cookie && proxy_strip_cookie(value, proxy->call->cookie, proxy->cookie))
		add(proxy, name, proxy->cookie);
}

/** take_headers() - what the server gets to see. */
static void take_headers(struct proxy *proxy)
{
	struct http_req *req = proxy->req;
	const char *host = http_header(req, "Host"), *peer = http_peer(req);

	http_headers_all(req, add_connection, &proxy->connection);
	proxy->websocket = http_wants_upgrade(req, "websocket");
	add(proxy, "Host", proxy->call->host);
	http_headers_all(req, add_client_header, proxy);
	if (*peer)
		add(proxy, "X-Forwarded-For", peer);
	add(proxy, "X-Forwarded-Proto", http_over_tls(req) ? "https" : "http");
	add(proxy, "X-Forwarded-Host", host);
	add(proxy, "X-Forwarded-Prefix", proxy->call->prefix);
	if (proxy->websocket) {
		add(proxy, "Connection", "Upgrade");
		add(proxy, "Upgrade", "websocket");
	} else {
		add(proxy, "Connection", "close");
	}
}

/** receive() - the head of the answer. */
static int receive(struct proxy *proxy, struct httpc_response *response)
{
	proxy->http.deadline_ns = deadline_after(proxy->thawd->conf.port_head_timeout_ms);
	return httpc_receive(&proxy->http, !strcmp(http_method_name(proxy->req), "HEAD"), response);
}

/**
 * send_body() - the client's, to the server. *@answered: the head of the answer came in between.
 * Return: 0, or -errno; -EBADMSG: the client's body broke.
 */
static int send_body(struct proxy *proxy, struct httpc_response *response, bool *answered)
{
	u64 ms = proxy->thawd->conf.port_head_timeout_ms;
	ssize_t got;
	int ret;

	*answered = false;
	for (;;) {
		if (*answered)
			got = http_body_read(proxy->req, proxy->buf, BUF_BYTES);
		else
			got = http_body_read_or(proxy->req, proxy->buf, BUF_BYTES, proxy->http.fd);
		if (got == -EAGAIN) {
			ret = receive(proxy, response);
			if (ret)
				return ret;
			*answered = true;
			if (response->status >= 300 || response->upgraded)
				return 0;
			continue;
		}
		if (got < 0)
			return -EBADMSG;
		proxy->http.deadline_ns = deadline_after(ms);
		ret = got ? httpc_send_body(&proxy->http, proxy->buf, (size_t)got)
			  : httpc_send_end(&proxy->http);
		if (ret == -EPIPE && !*answered) /* it has closed, and may have said why */
			return 0;
		if (ret || !got)
			return ret;
		proxy->in_bytes += (u64)got;
	}
}

/** reply_broken() - the server did not answer as one does. */
static void reply_broken(struct proxy *proxy, int err)
{
	u32 port = proxy->call->port;
	const char *box = box_name(proxy->use->box);
	json_t *details = json_pack("{s:i}", "port", (int)port);

	if (err == -ETIMEDOUT)
		http_reply_error(proxy->req, 504, "timeout", details,
				 "the server on port %u of sandbox '%s' does not answer", port,
				 box);
	else if (err == -EBADMSG)
		http_reply_error(proxy->req, 400, "invalid_request", details,
				 "the request's body was cut short");
	else if (err == -EINVAL)
		http_reply_error(
			proxy->req, 400, "invalid_request", details,
			"the request has a method, path or header that can't be passed on");
	else if (err == -EPIPE || err == -ECONNRESET)
		http_reply_error(proxy->req, 502, "port_closed", details,
				 "the server on port %u of sandbox '%s' closed the connection "
				 "without an answer",
				 port, box);
	else if (err != -ECANCELED)
		http_reply_error(proxy->req, 502, "port_closed", details,
				 "what the server on port %u of sandbox '%s' sent is not HTTP/1.1 "
				 "(%s)",
				 port, box, strerror(-err));
	else
		json_decref(details);
}

static void pass_headers(struct proxy *proxy, const struct httpc_response *response)
{
	char *connection = NULL;

	for (unsigned int i = 0; i < response->nheaders; i++)
		add_connection(&connection, response->headers[i].name, response->headers[i].value);
	for (unsigned int i = 0; i < response->nheaders; i++) {
		const struct httpc_header *header = &response->headers[i];

		if (proxy_header_passes(header->name, connection))
			http_add_header(proxy->req, header->name, header->value);
	}
	free(connection);
}

/** pass_websocket() - from now on both sides speak past thawd. */
static void pass_websocket(struct proxy *proxy)
{
	int fd = http_upgrade(proxy->req, "websocket");
	u64 in_bytes = 0, out_bytes = 0;

	if (fd < 0)
		return;
	proxy_pump(fd, proxy->http.fd, http_stop_fd(proxy->req), &in_bytes, &out_bytes);
	proxy->in_bytes += in_bytes;
	proxy->out_bytes += out_bytes;
	fd_close(&fd);
}

static void pass_body(struct proxy *proxy, const struct httpc_response *response)
{
	ssize_t got;

	http_stream_begin(proxy->req, response->status, NULL, response->length_bytes);
	if (!strcmp(http_method_name(proxy->req), "HEAD"))
		return;
	proxy->http.deadline_ns = 0;
	while ((got = httpc_read(&proxy->http, proxy->buf, BUF_BYTES)) > 0) {
		if (http_stream_write(proxy->req, proxy->buf, (size_t)got))
			return;
		proxy->out_bytes += (u64)got;
	}
	if (got < 0)
		http_stream_fail(proxy->req);
}

static void pass_answer(struct proxy *proxy, const struct httpc_response *response)
{
	pass_headers(proxy, response);
	if (response->upgraded)
		pass_websocket(proxy);
	else if (response->status == 204 || response->status == 304)
		http_reply_empty(proxy->req, response->status);
	else
		pass_body(proxy, response);
}

static void exchange(struct proxy *proxy)
{
	struct httpc_response response = {0};
	bool answered = false;
	int ret;

	take_headers(proxy);
	ret = httpc_send(&proxy->http, http_method_name(proxy->req), proxy->call->target,
			 proxy->headers, http_body_length(proxy->req));
	if (!ret && http_body_length(proxy->req))
		ret = send_body(proxy, &response, &answered);
	if (!ret && !answered)
		ret = receive(proxy, &response);
	if (!ret && response.upgraded && !proxy->websocket)
		ret = -EPROTO;
	if (ret)
		reply_broken(proxy, ret);
	else
		pass_answer(proxy, &response);
	httpc_response_free(&response);
}

void proxy_http(struct thawd *thawd, struct http_req *req, const struct box_use *use,
		const struct proxy_call *call)
{
	struct proxy *proxy = calloc(1, sizeof(*proxy));
	int client = http_client_fd(req), fd, ret;

	if (!proxy) {
		http_reply_error(req, 500, "internal", NULL, "out of memory");
		return;
	}
	*proxy = (struct proxy){.thawd = thawd, .req = req, .use = use, .call = call};
	fd = proxy_connect(thawd, use, call->port,
			   deadline_after(thawd->conf.port_connect_timeout_ms), client);
	ret = fd < 0 ? fd : httpc_init(&proxy->http, fd);
	if (ret < 0) {
		proxy_reply_failed(req, box_name(use->box), call->port, ret);
	} else {
		proxy->http.stop_fd = client;
		proxy->http.stop_events = PROXY_STOP_EVENTS;
		proxy->http.deadline_ns = deadline_after(thawd->conf.port_head_timeout_ms);
		exchange(proxy);
		httpc_free(&proxy->http);
	}
	metric_add(thawd, METRIC_BYTES_PORTS_IN, proxy->in_bytes);
	metric_add(thawd, METRIC_BYTES_PORTS_OUT, proxy->out_bytes);
	fd_close(&fd);
	free(proxy->cookie);
	free(proxy->connection);
	free(proxy);
}
