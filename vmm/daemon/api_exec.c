// SPDX-License-Identifier: Apache-2.0
// The routes of execs, and the choice of the form.
#include "vmm/daemon/api_exec.h"

#include <errno.h>
#include <string.h>

#include "vmm/daemon/thawd.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static void serve_exec(struct thawd *thawd, struct http_req *req)
{
	struct exec_problem problem = {0};
	struct exec_spec_error error;
	struct exec_spec_limits limits;
	struct exec_spec spec = {0};
	struct exec_call call;
	json_t *json = NULL;

	if (exec_call_begin(&call, thawd, req))
		goto out;
	if (http_wants_upgrade(req, "thaw-exec/1")) {
		exec_run_frames(&call);
		goto out;
	}
	/* Base64 of the longest stdin, and argv and env of 2 MiB, each byte escaped. */
	json = http_body_json(req, 20 * MIB);
	if (!json)
		goto out;
	limits = exec_call_limits(&call);
	if (exec_spec_json(&spec, json, EXEC_FORM_POST, &limits, &error)) {
		exec_problem_spec(&problem, &error);
		exec_problem_reply(req, &problem);
	} else if (spec.detached) {
		exec_run_detached(&call, &spec);
	} else if (http_accepts(req, "text/event-stream")) {
		exec_run_events(&call, &spec);
	} else if (spec.stdin_open) {
		http_reply_error(req, 400, "invalid_request", NULL,
				 "'stdin_open' needs \"detach\": true or Accept: text/event-stream:"
				 " nobody could know the id to write to");
	} else {
		exec_run_buffered(&call, &spec);
	}
out:
	json_decref(json);
	exec_spec_destroy(&spec);
	exec_call_end(&call);
}

static void serve_socket(struct thawd *thawd, struct http_req *req)
{
	struct exec_call call;

	if (!http_wants_upgrade(req, "websocket")) {
		http_reply_error(req, 400, "invalid_request", NULL,
				 "GET .../exec is for 'Upgrade: websocket'; without it use POST");
		return;
	}
	if (!exec_call_begin(&call, thawd, req))
		exec_run_socket(&call);
	exec_call_end(&call);
}

static void serve_attach(struct thawd *thawd, struct http_req *req)
{
	struct exec_call call;
	u64 cursor;

	if (http_query_u64(req, "cursor", 0, INT64_MAX, UINT64_MAX, &cursor))
		return;
	if (exec_call_begin(&call, thawd, req))
		goto out;
	if (http_wants_upgrade(req, "thaw-exec/1"))
		exec_attach_frames(&call, cursor);
	else if (http_wants_upgrade(req, "websocket"))
		exec_attach_socket(&call, cursor);
	else
		http_reply_error(req, 400, "invalid_request", NULL,
				 "attach is for 'Upgrade: thaw-exec/1' or 'Upgrade: websocket'; "
				 "without them use .../logs?follow=1");
out:
	exec_call_end(&call);
}

#define BOX  "/v1/sandboxes/{name}"
#define EXEC BOX "/execs/{id}"

static const char *const attach_query[] = {"cursor", NULL};
static const char *const stdin_query[] = {"eof", NULL};
static const char *const wait_query[] = {"timeout_ms", NULL};
static const char *const logs_query[] = {"cursor",     "limit_bytes", "stream",
					 "tail_bytes", "follow",      NULL};

const struct http_route api_exec_routes[] = {
	{HTTP_POST, BOX "/exec", NULL, 0, serve_exec},
	{HTTP_GET, BOX "/exec", NULL, 0, serve_socket},
	{HTTP_GET, BOX "/execs", NULL, 0, api_exec_list},
	{HTTP_GET, EXEC, NULL, 0, api_exec_get},
	{HTTP_DELETE, EXEC, NULL, 0, api_exec_delete},
	{HTTP_POST, EXEC "/signal", NULL, 0, api_exec_signal},
	{HTTP_POST, EXEC "/kill", NULL, 0, api_exec_kill},
	{HTTP_POST, EXEC "/resize", NULL, 0, api_exec_resize},
	{HTTP_PUT, EXEC "/stdin", stdin_query, 0, api_exec_stdin},
	{HTTP_GET, EXEC "/attach", attach_query, 0, serve_attach},
	{HTTP_GET, EXEC "/logs", logs_query, 0, api_exec_logs},
	{HTTP_GET, EXEC "/wait", wait_query, 0, api_exec_wait},
	{HTTP_POST, EXEC "/wait-for-log", NULL, 0, api_exec_wait_for_log},
	{0},
};

int execs_start(struct thawd *thawd)
{
	const struct exec_settings settings = {
		.running_max = (u32)thawd->conf.exec_max,
		.log_bytes = thawd->conf.exec_log_bytes,
		.audit_argv = thawd->conf.audit_argv,
	};

	thawd->execs = execs_new(thawd, &settings);
	if (thawd->execs)
		return 0;
	log_err("execs: out of memory");
	return -ENOMEM;
}

void execs_stop(struct thawd *thawd)
{
	execs_free(thawd->execs);
	thawd->execs = NULL;
}

struct execs *thawd_execs(struct thawd *thawd)
{
	return thawd->execs;
}
