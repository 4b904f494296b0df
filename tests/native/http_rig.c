// SPDX-License-Identifier: Apache-2.0
// thawd's HTTP layer with handlers for its tests (test_thawd_http.py): http-rig CONFIG-FILE.
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vmm/daemon/http.h"
#include "vmm/daemon/notes_internal.h"
#include "vmm/daemon/preview.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** The body, as it comes, and that it ended: as "N bytes, digest". */
static void serve_count(struct thawd *thawd, struct http_req *req)
{
	u64 total = 0, sum = 0;
	u8 buf[16384];
	ssize_t got;

	(void)thawd;
	while ((got = http_body_read(req, buf, sizeof(buf))) > 0) {
		for (ssize_t i = 0; i < got; i++)
			sum = sum * 31 + buf[i];
		total += (u64)got;
	}
	if (got < 0)
		http_reply_error(req, 408, "timeout", NULL, "body: %s", strerror((int)-got));
	else
		http_reply_json(req, 200,
				json_pack("{s:I, s:s, s:I}", "bytes", (json_int_t)total, "method",
					  http_method_name(req), "sum",
					  (json_int_t)(sum & 0x7fffffff)));
}

/** The body back, after it has come: an answer can't begin inside of one. */
static void serve_json(struct thawd *thawd, struct http_req *req)
{
	json_t *body = http_body_json(req, 0);

	(void)thawd;
	if (body)
		http_reply_json(req, 200, body);
}

/** N bytes, with their length or without. */
static void serve_bytes(struct thawd *thawd, struct http_req *req)
{
	u8 buf[10000];
	u64 n;

	(void)thawd;
	if (http_query_u64(req, "n", 0, 1ull << 40, 0, &n))
		return;
	http_stream_begin(req, 200, "application/octet-stream",
			  http_query(req, "chunked") ? -1 : (s64)n);
	for (size_t i = 0; i < sizeof(buf); i++)
		buf[i] = (u8)i;
	while (n) {
		size_t len = MIN(n, (u64)sizeof(buf));

		if (http_stream_write(req, buf, len)) {
			fprintf(stderr, "rig: stream ended early\n");
			return;
		}
		n -= len;
	}
	if (http_query(req, "fail"))
		http_stream_fail(req);
}

/** Less than was announced. */
static void serve_short(struct thawd *thawd, struct http_req *req)
{
	(void)thawd;
	http_stream_begin(req, 200, "text/plain", 100);
	(void)!http_stream_write(req, "short", 5);
}

/** An answer before the body. */
static void serve_early(struct thawd *thawd, struct http_req *req)
{
	(void)thawd;
	http_add_header(req, "X-Early", "yes");
	http_reply_error(req, 507, "no_space", NULL, "no space");
}

static void serve_silent(struct thawd *thawd, struct http_req *req)
{
	(void)thawd;
	(void)req;
}

/** Waits for the client to leave, or thawd to end; says so on stderr. */
static void serve_wait(struct thawd *thawd, struct http_req *req)
{
	struct pollfd fds[2] = {{.fd = http_client_fd(req), .events = POLLRDHUP},
				{.fd = http_stop_fd(req), .events = POLLIN}};

	(void)thawd;
	fprintf(stderr, "rig: waits\n");
	if (http_query(req, "stream"))
		http_stream_begin(req, 200, "text/plain", -1);
	poll(fds, 2, 60000);
	fprintf(stderr, "rig: %s\n",
		http_stopping(req) ? "stopping"
		: fds[0].revents   ? "client left"
				   : "time is up");
	if (!http_query(req, "stream"))
		http_reply_empty(req, 204);
}

/** Goes on at thawd's end, and answers then. */
static void serve_late(struct thawd *thawd, struct http_req *req)
{
	struct pollfd stop = {.fd = http_stop_fd(req), .events = POLLIN};

	(void)thawd;
	fprintf(stderr, "rig: waits\n");
	poll(&stop, 1, 60000);
	fprintf(stderr, "rig: %s\n", http_stopping(req) ? "stopping" : "time is up");
	http_reply_empty(req, 204);
}

/** Body or pipe, whichever is first: the pipe is never written, and hung up by ?pipe=1. */
static void serve_either(struct thawd *thawd, struct http_req *req)
{
	int fds[2];
	char buf[100];
	ssize_t got;

	(void)thawd;
	BUG_ON(pipe(fds) < 0);
	if (http_query(req, "pipe"))
		fd_close(&fds[1]);
	got = http_body_read_or(req, buf, sizeof(buf), fds[0]);
	fprintf(stderr, "rig: got %d\n", (int)got);
	fd_close(&fds[0]);
	fd_close(&fds[1]);
	http_reply_json(req, 200, json_pack("{s:i}", "got", (int)got));
}

/** Echoes after an upgrade, until the client shuts its side down; then "bye". */
static void serve_upgrade(struct thawd *thawd, struct http_req *req)
{
	char buf[4096];
	ssize_t got;
	int fd;

	(void)thawd;
	if (!http_wants_upgrade(req, "echo/1")) {
		http_reply_error(req, 400, "invalid_request", NULL, "expected Upgrade: echo/1");
		return;
	}
	fd = http_upgrade(req, "echo/1");
	if (fd < 0) {
		fprintf(stderr, "rig: upgrade: %s\n", strerror(-fd));
		return;
	}
	while ((got = recv(fd, buf, sizeof(buf), 0)) > 0) {
		if (fd_write_full(fd, buf, (size_t)got))
			break;
	}
	(void)!fd_write_full(fd, "bye", 3);
	fd_close(&fd);
	fprintf(stderr, "rig: upgrade ended\n");
}

static void serve_who(struct thawd *thawd, struct http_req *req)
{
	(void)thawd;
	http_reply_json(req, 200,
			json_pack("{s:s, s:s?, s:s?, s:b}", "who", http_who(req), "name",
				  http_param(req, "name"), "rest", http_param(req, "rest"), "sse",
				  http_accepts(req, "text/event-stream")));
}

static void serve_healthz(struct thawd *thawd, struct http_req *req)
{
	(void)thawd;
	http_reply_json(req, 200, json_pack("{s:b}", "ok", 1));
}

static void serve_emit(struct thawd *thawd, struct http_req *req)
{
	u64 n;

	if (http_query_u64(req, "n", 1, 1000000, 1, &n))
		return;
	while (n--)
		event_emit(thawd, "sandbox.started", http_query(req, "sandbox"),
			   json_pack("{s:I}", "left", (json_int_t)n));
	audit_write(thawd, req, "emit", http_query(req, "sandbox"), "ok", NULL);
	http_reply_empty(req, 204);
}

static const char *const bytes_query[] = {"n",	     "chunked", "fail", "stream",
					  "sandbox", "pipe",	NULL};
static const char *const events_query[] = {"sandbox", "since", NULL};

const struct http_route api_core_routes[] = {
	{HTTP_GET, "/healthz", NULL, HTTP_NO_AUTH | HTTP_RESERVED, serve_healthz},
	{HTTP_GET, "/v1/events", events_query, 0, events_serve},
	{HTTP_POST | HTTP_PUT, "/count", NULL, 0, serve_count},
	{HTTP_POST, "/json", NULL, 0, serve_json},
	{HTTP_GET, "/bytes", bytes_query, 0, serve_bytes},
	{HTTP_GET, "/short", NULL, 0, serve_short},
	{HTTP_PUT, "/early", NULL, 0, serve_early},
	{HTTP_GET, "/silent", NULL, 0, serve_silent},
	{HTTP_GET, "/wait", bytes_query, 0, serve_wait},
	{HTTP_GET, "/late", NULL, 0, serve_late},
	{HTTP_POST, "/either", bytes_query, 0, serve_either},
	{HTTP_GET, "/upgrade", NULL, 0, serve_upgrade},
	{HTTP_GET, "/who/{name}", NULL, 0, serve_who},
	{HTTP_ANY, "/any/{rest...}", NULL, HTTP_RAW_QUERY, serve_who},
	{HTTP_POST, "/emit", bytes_query, 0, serve_emit},
	{0, NULL, NULL, 0, NULL},
};
const struct http_route api_sandbox_routes[] = {{0, NULL, NULL, 0, NULL}};
const struct http_route api_snapshot_routes[] = {{0, NULL, NULL, 0, NULL}};
const struct http_route api_template_routes[] = {{0, NULL, NULL, 0, NULL}};
const struct http_route api_exec_routes[] = {{0, NULL, NULL, 0, NULL}};
const struct http_route api_file_routes[] = {{0, NULL, NULL, 0, NULL}};
const struct http_route api_port_routes[] = {{0, NULL, NULL, 0, NULL}};

void preview_serve(struct thawd *thawd, struct http_req *req)
{
	serve_who(thawd, req);
}

int main(int argc, char **argv)
{
	struct thawd thawd = {.start_ns = clock_now_ns()};
	sigset_t set;
	int number, ret;

	log_init("rig");
	heap_prepare();
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (argc != 2 || conf_load(&thawd.conf, argv[1], true))
		return 2;
	ret = notes_start(&thawd);
	if (!ret)
		ret = http_start(&thawd);
	fprintf(stderr, ret ? "rig: fails\n" : "rig: serves\n");
	while (!ret) {
		struct timespec second = {.tv_nsec = 100000000};

		number = sigtimedwait(&set, NULL, &second);
		http_tick(&thawd);
		if (number == SIGTERM)
			break;
		if (number == SIGHUP) {
			notes_reload(&thawd);
			fprintf(stderr, "rig: reload %d\n", http_reload(&thawd));
		}
	}
	http_drain(&thawd);
	http_stop(&thawd);
	notes_stop(&thawd);
	conf_free(&thawd.conf);
	return ret ? 1 : 0;
}
