// SPDX-License-Identifier: Apache-2.0
// The API of ports: HTTP through them, raw connections, waiting for them, previews.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/daemon/notes.h"
#include "vmm/daemon/preview.h"
#include "vmm/daemon/proxy.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/httpc.h"
#include "vmm/util/util.h"

#define MS_NS		((u64)1000000)
#define TRY_FIRST_MS	20u
#define TRY_MAX_MS	500u
#define TRY_CONNECT_MS	5000u
#define WAIT_DEFAULT_MS 30000u
#define WAIT_MAX_MS	600000u
#define HTTP_PATH_MAX	2048u

/** behind_port() - of "/v1/sandboxes/NAME/ports/PORT/REST" the part from the slash before REST; "/"
 * when there is none. */
static const char *behind_port(const char *path)
{
	for (unsigned int i = 0; path && i < 5; i++)
		path = strchr(path + 1, '/');
	return path ? path : "/";
}

static void serve_proxy(struct thawd *thawd, struct http_req *req)
{
	struct proxy_call call = {.port = proxy_port(req)};
	char host[32], prefix[BOX_NAME_MAX + 64];
	const char *raw = http_raw_target(req);
	struct box_use use;

	if (!call.port || box_use(thawd, req, &use))
		return;
	if (*raw != '/') /* "http://host/path" */
		raw = strchr(strchr(raw, ':') + 3, '/');
	snprintf(host, sizeof(host), "localhost:%u", call.port);
	snprintf(prefix, sizeof(prefix), "/v1/sandboxes/%s/ports/%u", box_name(use.box), call.port);
	call.target = behind_port(raw);
	call.host = host;
	call.prefix = prefix;
	proxy_http(thawd, req, &use, &call);
	box_use_end(thawd, &use);
}

static void serve_tcp(struct thawd *thawd, struct http_req *req)
{
	u64 deadline_ns = clock_now_ns() + thawd->conf.port_connect_timeout_ms * MS_NS;
	u64 in_bytes = 0, out_bytes = 0;
	u32 port = proxy_port(req);
	struct box_use use;
	int fd, client;

	if (!port)
		return;
	if (!http_wants_upgrade(req, "thaw-tcp/1")) {
		http_reply_error(
			req, 400, "invalid_request", NULL,
			"this needs 'Upgrade: thaw-tcp/1'; HTTP to the port goes to the same "
			"path with '/' behind it");
		return;
	}
	if (box_use(thawd, req, &use))
		return;
	fd = proxy_connect(thawd, &use, port, deadline_ns, http_client_fd(req));
	if (fd < 0) {
		proxy_reply_failed(req, box_name(use.box), port, fd);
	} else {
		client = http_upgrade(req, "thaw-tcp/1");
		if (client >= 0)
			proxy_pump(client, fd, http_stop_fd(req), &in_bytes, &out_bytes);
		fd_close(&client);
	}
	metric_add(thawd, METRIC_BYTES_PORTS_IN, in_bytes);
	metric_add(thawd, METRIC_BYTES_PORTS_OUT, out_bytes);
	fd_close(&fd);
	box_use_end(thawd, &use);
}

/** What a wait is for. */
struct port_wait {
	u32 port;
	u64 timeout_ms;
	char *path; /* NULL: an open port is enough */
	u32 status_min, status_max;
};

static int refuse(struct http_req *req, const char *field, const char *expected)
{
	http_reply_error(req, 400, "invalid_request", json_pack("{s:s}", "field", field),
			 "%s: expected %s", field, expected);
	return -EINVAL;
}

/** take_int() - Return: 0, or -EINVAL: answered. */
static int take_int(struct http_req *req, const json_t *object, const char *field, u64 min, u64 max,
		    u64 *out)
{
	const json_t *value = json_object_get(object, field);
	char expected[80];

	if (!value)
		return 0;
	if (json_is_integer(value) && json_integer_value(value) >= (json_int_t)min &&
	    json_integer_value(value) <= (json_int_t)max) {
		*out = (u64)json_integer_value(value);
		return 0;
	}
	snprintf(expected, sizeof(expected), "a number from %llu to %llu", (unsigned long long)min,
		 (unsigned long long)max);
	return refuse(req, field, expected);
}

static int take_http(struct http_req *req, const json_t *http, struct port_wait *wait)
{
	static const char *const fields[] = {"path", "status_min", "status_max", NULL};
	u64 min = 200, max = 399;
	const json_t *path;

	if (!http)
		return 0;
	if (!json_is_object(http))
		return refuse(req, "http", "an object");
	if (http_json_known(req, http, fields) ||
	    take_int(req, http, "status_min", 100, 599, &min) ||
	    take_int(req, http, "status_max", 100, 599, &max))
		return -EINVAL;
	path = json_object_get(http, "path");
	if (path && (!json_is_string(path) || *json_string_value(path) != '/' ||
		     json_string_length(path) > HTTP_PATH_MAX))
		return refuse(req, "path", "a path that begins with '/'");
	wait->path = strdup(path ? json_string_value(path) : "/");
	wait->status_min = (u32)min;
	wait->status_max = (u32)max;
	return wait->path ? 0 : refuse(req, "path", "memory for it");
}

/** take_wait() - the body. Return: 0, or -EINVAL: answered. */
static int take_wait(struct http_req *req, struct port_wait *wait)
{
	static const char *const fields[] = {"timeout_ms", "http", NULL};
	json_t *body = http_body_json(req, 0);
	int ret = -EINVAL;

	if (!body)
		return ret;
	wait->timeout_ms = WAIT_DEFAULT_MS;
	if (!http_json_known(req, body, fields) &&
	    !take_int(req, body, "timeout_ms", 0, WAIT_MAX_MS, &wait->timeout_ms))
		ret = take_http(req, json_object_get(body, "http"), wait);
	json_decref(body);
	return ret;
}

/** try_http() - Return: 0: answered as is wanted; -EAGAIN: not yet; -ECANCELED, or -EINVAL: the
 * path can't be sent. */
static int try_http(const struct port_wait *wait, int fd, u64 deadline_ns, int stop_fd)
{
	struct httpc_header headers[] = {
		{"Host", "localhost"}, {"Connection", "close"}, {NULL, NULL}};
	struct httpc_response response = {0};
	struct httpc http;
	int ret = httpc_init(&http, fd);

	if (ret)
		return -EAGAIN;
	http.stop_fd = stop_fd;
	http.stop_events = PROXY_STOP_EVENTS;
	http.deadline_ns = deadline_ns;
	ret = httpc_send(&http, "GET", wait->path, headers, 0);
	if (!ret)
		ret = httpc_receive(&http, false, &response);
	if (!ret)
		ret = response.status >= wait->status_min && response.status <= wait->status_max
			      ? 0
			      : -EAGAIN;
	else if (ret != -ECANCELED && ret != -EINVAL)
		ret = -EAGAIN;
	httpc_response_free(&response);
	httpc_free(&http);
	return ret;
}

/** try_port() - once, for no longer than until @deadline_ns. Return: as try_http(), or -ENODEV. */
static int try_port(struct thawd *thawd, const struct box_use *use, const struct port_wait *wait,
		    u64 deadline_ns, int stop_fd)
{
	u64 end_ns = clock_now_ns() + TRY_CONNECT_MS * MS_NS;
	int fd, ret = 0;

	end_ns = MIN(end_ns, deadline_ns);
	fd = proxy_connect(thawd, use, wait->port, end_ns, stop_fd);
	if (fd < 0)
		return fd == -ENODEV || fd == -EPROTO || fd == -ECANCELED ? fd : -EAGAIN;
	if (wait->path)
		ret = try_http(wait, fd, end_ns, stop_fd);
	fd_close(&fd);
	return ret;
}

/** wait_port() - Return: 0: it is open, -EAGAIN: the time is over, or as try_port(). */
static int wait_port(struct thawd *thawd, struct http_req *req, const struct box_use *use,
		     const struct port_wait *wait)
{
	/* At least one try, whatever time there is for more. */
	u64 start_ns = clock_now_ns(), deadline_ns = start_ns + wait->timeout_ms * MS_NS;
	u64 first_ns = start_ns + 1000 * MS_NS;
	struct pollfd left = {.fd = http_client_fd(req), .events = PROXY_STOP_EVENTS};
	unsigned int pause_ms = TRY_FIRST_MS;
	int ret;

	for (;;) {
		u64 now_ns;

		ret = try_port(thawd, use, wait, MAX(deadline_ns, first_ns), left.fd);
		now_ns = clock_now_ns();
		if (ret != -EAGAIN || now_ns >= deadline_ns)
			return ret;
		pause_ms = (unsigned int)MIN((u64)pause_ms, (deadline_ns - now_ns) / MS_NS + 1);
		if (poll(&left, 1, (int)pause_ms) > 0)
			return -ECANCELED;
		pause_ms = MIN(pause_ms * 2, TRY_MAX_MS);
	}
}

static void serve_wait(struct thawd *thawd, struct http_req *req)
{
	struct port_wait wait = {.port = proxy_port(req)};
	u64 start_ns = clock_now_ns();
	struct box_use use;
	int ret;

	if (!wait.port)
		return;
	if (take_wait(req, &wait) || box_use(thawd, req, &use)) {
		free(wait.path);
		return;
	}
	ret = wait_port(thawd, req, &use, &wait);
	if (!ret || ret == -EAGAIN)
		http_reply_json(req, 200,
				json_pack("{s:b, s:I}", "open", !ret, "waited_ms",
					  (json_int_t)((clock_now_ns() - start_ns) / MS_NS)));
	else if (ret == -EINVAL)
		refuse(req, "path", "a path of printable ASCII without blanks");
	else if (http_stopping(req))
		http_reply_retry(req, 1, "thawd is being restarted");
	else
		proxy_reply_failed(req, box_name(use.box), wait.port, ret);
	box_use_end(thawd, &use);
	free(wait.path);
}

static void serve_preview(struct thawd *thawd, struct http_req *req)
{
	const char *domain = thawd->conf.preview_domain;
	char token[33], *url = NULL;
	struct box_use use;

	if (box_use(thawd, req, &use))
		return;
	box_preview_token(thawd, &use, token);
	if (*domain)
		url = preview_url(thawd, box_name(use.box), token);
	http_reply_json(req, 200,
			json_pack("{s:o, s:s, s:o}", "domain",
				  *domain ? json_string(domain) : json_null(), "token", token,
				  "url", url ? json_string(url) : json_null()));
	free(url);
	box_use_end(thawd, &use);
}

/* The first row that fits counts. */
const struct http_route api_port_routes[] = {
	{HTTP_POST, "/v1/sandboxes/{name}/ports/{port}/wait", NULL, 0, serve_wait},
	{HTTP_GET, "/v1/sandboxes/{name}/ports/{port}", NULL, 0, serve_tcp},
	{HTTP_ANY, "/v1/sandboxes/{name}/ports/{port}/{rest...}", NULL, HTTP_RAW_QUERY,
	 serve_proxy},
	{HTTP_GET, "/v1/sandboxes/{name}/preview", NULL, 0, serve_preview},
	{0, NULL, NULL, 0, NULL},
};
