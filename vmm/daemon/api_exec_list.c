// SPDX-License-Identifier: Apache-2.0
// Execs that are there already: list, inspect, wait, signal, stdin, delete.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/api_exec.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/daemon/notes.h"
#include "vmm/util/util.h"

#define CHUNK_BYTES	  65536u
#define DELETE_NS	  (10ull * 1000000000u)
#define WAIT_MAX_MS	  600000u
#define WAIT_OTHERWISE_MS 30000u

void api_exec_list(struct thawd *thawd, struct http_req *req)
{
	json_t *list = json_array();
	struct kept **all = NULL;
	struct exec_call call;
	ssize_t n = 0;

	if (exec_call_begin_read(&call, thawd, req))
		goto out;
	n = kept_list(thawd_execs(thawd), call.name, &all);
	for (ssize_t i = 0; i < n; i++) {
		json_array_append_new(list, kept_json(all[i]));
		kept_put(all[i]);
	}
	if (n < 0)
		http_reply_error(req, 500, "internal", NULL, "out of memory");
	else
		http_reply_json(req, 200, json_pack("{s:O}", "execs", list));
out:
	free(all);
	json_decref(list);
	exec_call_end(&call);
}

void api_exec_get(struct thawd *thawd, struct http_req *req)
{
	struct exec_call call;

	if (!exec_call_begin_read(&call, thawd, req))
		http_reply_json(req, 200, kept_json(call.kept));
	exec_call_end(&call);
}

/* Until it has ended or the time is over. Return: 1: it has, 0: it has not, or -errno: the client
 * left, or thawd ends. */
static int wait_end(struct exec_call *call, u64 until_ns)
{
	struct kept_view view;
	unsigned int woken;
	u64 now_ns;
	int ret = kept_reader_open(&call->reader, call->kept, 0, false);

	if (ret)
		return ret;
	for (;;) {
		kept_view(call->kept, NULL, &view);
		if (view.state == KEPT_ENDED)
			return 1;
		now_ns = clock_now_ns();
		if (now_ns >= until_ns)
			return 0;
		woken = kept_wait(&call->reader, call->req, -1, 0,
				  (int)((until_ns - now_ns) / 1000000u + 1));
		if (woken & (KEPT_WOKEN_LEFT | KEPT_WOKEN_STOP))
			return -ECONNRESET;
	}
}

void api_exec_wait(struct thawd *thawd, struct http_req *req)
{
	struct exec_call call;
	u64 timeout_ms;

	if (http_query_u64(req, "timeout_ms", 0, WAIT_MAX_MS, WAIT_OTHERWISE_MS, &timeout_ms))
		return;
	if (!exec_call_begin_read(&call, thawd, req)) {
		/* Whatever comes first, the answer is how it is now. */
		(void)wait_end(&call, clock_now_ns() + timeout_ms * 1000000u);
		http_reply_json(req, 200, kept_json(call.kept));
	}
	exec_call_end(&call);
}

void api_exec_delete(struct thawd *thawd, struct http_req *req)
{
	struct exec_call call;
	int ret;

	if (exec_call_begin(&call, thawd, req))
		goto out;
	kept_kill(call.kept);
	ret = wait_end(&call, clock_now_ns() + DELETE_NS);
	kept_reader_close(&call.reader);
	audit_write(thawd, req, "exec.delete", call.name, ret > 0 ? "ok" : "guest_lost",
		    json_pack("{s:s}", "id", call.kept->id));
	if (ret > 0) {
		kept_remove(call.kept);
		http_reply_empty(req, 204);
	} else {
		http_reply_error(req, 502, "guest_lost", NULL,
				 "exec %s was told to end, but the guest has not said that it did; "
				 "try again, or destroy the sandbox",
				 call.kept->id);
	}
out:
	exec_call_end(&call);
}

static void reply_ended(struct http_req *req, const struct kept *kept)
{
	http_reply_error(req, 409, "wrong_state", NULL, "exec %s has ended", kept->id);
}

void api_exec_signal(struct thawd *thawd, struct http_req *req)
{
	static const char *const fields[] = {"signal", NULL};
	json_t *json = NULL;
	struct exec_call call;
	int number;

	if (exec_call_begin(&call, thawd, req))
		goto out;
	json = http_body_json(req, 4096);
	if (!json || http_json_known(req, json, fields))
		goto out;
	number = exec_signal_number(json_object_get(json, "signal"));
	if (number < 0) {
		http_reply_error(
			req, 400, "invalid_request", NULL,
			"'signal' must be a name like \"SIGTERM\" or a number from 1 to 64");
	} else if (kept_signal(call.kept, (u32)number)) {
		reply_ended(req, call.kept);
	} else {
		audit_write(thawd, req, "exec.signal", call.name, "ok",
			    json_pack("{s:s, s:i}", "id", call.kept->id, "signal", number));
		http_reply_empty(req, 204);
	}
out:
	json_decref(json);
	exec_call_end(&call);
}

void api_exec_kill(struct thawd *thawd, struct http_req *req)
{
	static const char *const fields[] = {NULL};
	json_t *json = NULL;
	struct exec_call call;

	if (exec_call_begin(&call, thawd, req))
		goto out;
	json = http_body_json(req, 4096);
	if (!json || http_json_known(req, json, fields))
		goto out;
	kept_kill(call.kept);
	audit_write(thawd, req, "exec.kill", call.name, "ok",
		    json_pack("{s:s}", "id", call.kept->id));
	http_reply_empty(req, 204);
out:
	json_decref(json);
	exec_call_end(&call);
}

static u16 take_side(const json_t *json, const char *name)
{
	json_int_t value = json_integer_value(json_object_get(json, name));

	return value >= 1 && value <= UINT16_MAX ? (u16)value : 0;
}

void api_exec_resize(struct thawd *thawd, struct http_req *req)
{
	static const char *const fields[] = {"cols", "rows", NULL};
	json_t *json = NULL;
	struct exec_call call;
	u16 cols, rows;

	if (exec_call_begin(&call, thawd, req))
		goto out;
	json = http_body_json(req, 4096);
	if (!json || http_json_known(req, json, fields))
		goto out;
	cols = take_side(json, "cols");
	rows = take_side(json, "rows");
	if (!cols || !rows)
		http_reply_error(req, 400, "invalid_request", NULL,
				 "'cols' and 'rows' must be numbers from 1 to 65535");
	else if (!call.kept->pty)
		http_reply_error(req, 409, "wrong_state", NULL,
				 "exec %s has no terminal: it was not started with \"pty\"",
				 call.kept->id);
	else if (kept_resize(call.kept, cols, rows))
		reply_ended(req, call.kept);
	else
		http_reply_empty(req, 204);
out:
	json_decref(json);
	exec_call_end(&call);
}

/* --- stdin --- */

static int stdin_problem(struct exec_call *call, ssize_t error)
{
	struct http_req *req = call->req;

	switch (error) {
	case -ESRCH:
		reply_ended(req, call->kept);
		break;
	case -EPIPE:
		http_reply_error(
			req, 409, "wrong_state", NULL,
			"exec %s has no open stdin: start it with \"stdin_open\": true and "
			"do not end it",
			call->kept->id);
		break;
	case -EMSGSIZE:
		http_reply_error(req, 400, "invalid_request", NULL,
				 "more bytes than Content-Length says");
		break;
	case -ETIMEDOUT:
		http_reply_error(req, 408, "invalid_request", NULL,
				 "the body did not come in time");
		break;
	case -ECANCELED:
		http_reply_error(req, 503, "capacity", NULL, "thawd ends");
		break;
	default:
		http_reply_error(req, 500, "internal", NULL, "%s", strerror((int)-error));
		break;
	}
	return (int)error;
}

/* Return: 0, or -errno of kept_stdin_push(), -ECONNRESET, -ECANCELED. */
static int push_all(struct exec_call *call, const u8 *data, size_t len_bytes)
{
	unsigned int woken;
	ssize_t n;

	for (;;) {
		n = kept_stdin_push(call->kept, data, len_bytes);
		if (n < 0)
			return (int)n;
		data += n;
		len_bytes -= (size_t)n;
		if (!len_bytes)
			return 0;
		woken = kept_wait(&call->reader, call->req, -1, 0, -1);
		if (woken & KEPT_WOKEN_STOP)
			return -ECANCELED;
		if (woken & KEPT_WOKEN_LEFT)
			return -ECONNRESET;
	}
}

static int stdin_all(struct exec_call *call, u8 *buf)
{
	ssize_t n;
	int ret;

	/* No byte of a body to one that has no stdin is read. */
	ret = push_all(call, buf, 0);
	while (!ret) {
		n = http_body_read(call->req, buf, CHUNK_BYTES);
		if (n <= 0)
			return (int)n;
		ret = push_all(call, buf, (size_t)n);
	}
	return ret;
}

void api_exec_stdin(struct thawd *thawd, struct http_req *req)
{
	struct exec_call call;
	u8 *buf = NULL;
	u64 eof;
	int ret;

	if (http_query_u64(req, "eof", 0, 1, 0, &eof))
		return;
	if (exec_call_begin(&call, thawd, req))
		goto out;
	buf = malloc(CHUNK_BYTES);
	ret = buf ? kept_reader_open(&call.reader, call.kept, UINT64_MAX, false) : -ENOMEM;
	if (!ret)
		ret = stdin_all(&call, buf);
	/* One that has ended by what it was just sent has no stdin to be ended. */
	if (!ret && eof) {
		ret = kept_stdin_close(call.kept);
		if (ret == -ESRCH)
			ret = 0;
	}
	if (ret)
		stdin_problem(&call, ret);
	else
		http_reply_empty(req, 204);
out:
	free(buf);
	exec_call_end(&call);
}
