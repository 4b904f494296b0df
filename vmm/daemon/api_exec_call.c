// SPDX-License-Identifier: Apache-2.0
// What the handlers of execs share: the call, errors, the result.
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "vmm/daemon/api_exec.h"
#include "vmm/daemon/exec_table.h"
#include "vmm/daemon/notes.h"
#include "vmm/util/util.h"

static int find_exec(struct exec_call *call)
{
	const char *id = http_param(call->req, "id");

	if (!id)
		return 0;
	call->kept = kept_find(thawd_execs(call->thawd), call->name, id);
	if (call->kept)
		return 0;
	http_reply_error(call->req, 404, "not_found", NULL,
			 "sandbox %s has no exec %.40s: it was never there, has been deleted, or "
			 "ended so long ago that it is forgotten",
			 call->name, id);
	return -ENOENT;
}

int exec_call_begin(struct exec_call *call, struct thawd *thawd, struct http_req *req)
{
	*call = (struct exec_call){.thawd = thawd, .req = req, .name = http_param(req, "name")};
	return box_use(thawd, req, &call->use) ?: find_exec(call);
}

int exec_call_begin_read(struct exec_call *call, struct thawd *thawd, struct http_req *req)
{
	const char *name = http_param(req, "name");
	struct box_use running = {0};

	if (!box_use_quiet(thawd, name, &running)) {
		box_use_end(thawd, &running);
		return exec_call_begin(call, thawd, req);
	}
	*call = (struct exec_call){.thawd = thawd, .req = req, .name = name};
	if (box_use_any(thawd, req, &call->use))
		return -ENOENT;
	exec_box_left(thawd, &call->use);
	return find_exec(call);
}

void exec_call_end(struct exec_call *call)
{
	kept_reader_close(&call->reader);
	kept_put(call->kept);
	call->kept = NULL;
	box_use_end(call->thawd, &call->use);
}

struct exec_spec_limits exec_call_limits(const struct exec_call *call)
{
	struct box_limits limits = {0};

	box_limits(&call->use, &limits);
	return (struct exec_spec_limits){limits.pids_max, limits.nofile};
}

/* --- problems --- */

void exec_problem_set(struct exec_problem *problem, unsigned int status, const char *code,
		      const char *fmt, ...)
{
	va_list args;

	*problem = (struct exec_problem){.status = status, .code = code, .error = EIO};
	va_start(args, fmt);
	vsnprintf(problem->text, sizeof(problem->text), fmt, args);
	va_end(args);
}

void exec_problem_spec(struct exec_problem *problem, const struct exec_spec_error *error)
{
	exec_problem_set(problem, error->status, error->code, "%s", error->text);
	problem->error = EINVAL;
	if (!strcmp(error->code, "unknown_field"))
		problem->details = json_pack("{s:s}", "field", error->field);
}

static void problem_start(struct exec_problem *problem, const struct exec_call *call, int error)
{
	const char *name = call->name;

	switch (error) {
	case -EAGAIN:
		exec_problem_set(problem, 429, "too_many",
				 "sandbox %s runs %u commands already, the most that the setting "
				 "exec_max allows: wait for one, or kill one",
				 name, execs_settings(thawd_execs(call->thawd))->running_max);
		break;
	case -ENODEV:
		exec_problem_set(problem, 502, "guest_lost",
				 "sandbox %s: its machine has just gone", name);
		break;
	case -ETIMEDOUT:
		exec_problem_set(problem, 502, "guest_lost",
				 "sandbox %s does not answer (setting guest_timeout)", name);
		break;
	case -ECANCELED:
		exec_problem_set(problem, 503, "capacity",
				 "thawd is about to end: the command was not started");
		break;
	case -ENOSPC:
	case -EDQUOT:
		exec_problem_set(problem, 507, "no_space",
				 "the state folder of thawd is full: the exec can't be recorded");
		break;
	default:
		exec_problem_set(problem, 500, "internal", "the exec can't be started: %s",
				 strerror(-error));
		break;
	}
	problem->error = -error;
}

static void problem_failed(struct exec_problem *problem, const struct kept *kept,
			   const struct kept_end *end)
{
	static const char *const stages[] = {"request", "setup", "cwd", "exec"};
	const char *stage = stages[end->stage <= SHIM_STAGE_EXEC ? end->stage : 0];
	const char *name = strerrorname_np(end->error);
	const char *word = json_string_value(json_array_get(kept->argv, 0));
	const char *text = *end->text ? end->text : strerror(end->error);

	if (end->stage == SHIM_STAGE_REQUEST && end->error == EAGAIN)
		exec_problem_set(problem, 429, "too_many",
				 "the guest runs as many commands as it can: wait for one, or kill "
				 "one");
	else if (end->stage == SHIM_STAGE_REQUEST)
		exec_problem_set(problem, 400, "invalid_request", "the guest refuses it: %s", text);
	else
		exec_problem_set(problem, 422, "spawn_failed", "'%.100s' was not started: %s: %s",
				 word ? word : "?", stage, text);
	problem->stage = end->stage;
	problem->error = end->error;
	problem->details = json_pack("{s:s, s:s}", "stage", stage, "errno", name ? name : "EIO");
}

void exec_problem_end(struct exec_problem *problem, const struct kept *kept,
		      const struct kept_end *end)
{
	*problem = (struct exec_problem){0};
	if (end->kind == KEPT_FAILED) {
		problem_failed(problem, kept, end);
	} else if (end->kind == KEPT_LOST && !(end->flags & SHIM_EXIT_TIMED_OUT)) {
		exec_problem_set(problem, 502, "guest_lost",
				 "exec %s: how it ended is not known: %s", kept->id, end->text);
		problem->details = json_pack("{s:s}", "id", kept->id);
	}
}

void exec_problem_stop(struct exec_problem *problem, const struct kept *kept)
{
	exec_problem_set(
		problem, 503, "capacity",
		"thawd ends; the command goes on, and .../execs/%s/logs has its output when "
		"thawd is back",
		kept->id);
	problem->details = json_pack("{s:s}", "id", kept->id);
}

json_t *exec_problem_json(struct exec_problem *problem)
{
	json_t *details = problem->details ? problem->details : json_object();

	problem->details = NULL;
	return json_pack("{s:s, s:s, s:o}", "code", problem->code, "message", problem->text,
			 "details", details);
}

void exec_problem_reply(struct http_req *req, struct exec_problem *problem)
{
	json_t *details = problem->details;

	problem->details = NULL;
	if (problem->status == 503)
		http_add_header(req, "Retry-After", "1");
	http_reply_error(req, problem->status, problem->code, details, "%s", problem->text);
}

/* --- the beginning --- */

static void audit(const struct exec_call *call, const struct exec_spec *spec, const char *result)
{
	json_t *details = json_pack("{s:s, s:o, s:I}", "id", spec->id, "argv0",
				    json_incref(json_array_get(spec->argv, 0)), "argc",
				    (json_int_t)json_array_size(spec->argv));

	if (details && execs_settings(thawd_execs(call->thawd))->audit_argv)
		json_object_set(details, "argv", spec->argv);
	audit_write(call->thawd, call->req, "exec", call->name, result, details);
}

int exec_call_start(struct exec_call *call, const struct exec_spec *spec,
		    struct exec_problem *problem)
{
	int ret = kept_start(call->thawd, &call->use, spec, http_client_fd(call->req), &call->kept);

	if (ret) {
		problem_start(problem, call, ret);
		audit(call, spec, problem->code);
		return ret;
	}
	audit(call, spec, "ok");
	ret = kept_reader_open(&call->reader, call->kept, 0, !spec->detached);
	if (ret) {
		kept_kill(call->kept);
		problem_start(problem, call, ret);
	}
	return ret;
}

json_t *exec_result_json(const struct kept *kept, const struct kept_view *view)
{
	u64 ns = view->end.time_ns > kept->started_ns ? view->end.time_ns - kept->started_ns : 0;
	json_t *object = json_pack("{s:s, s:o, s:b, s:I, s:I, s:f}", "id", kept->id, "pid",
				   view->pid ? json_integer(view->pid) : json_null(), "drained",
				   (view->end.flags & SHIM_EXIT_DRAINED) != 0, "stdout_bytes",
				   (json_int_t)view->out_bytes, "stderr_bytes",
				   (json_int_t)view->err_bytes, "duration_ms", (double)ns / 1e6);

	if (object)
		kept_exit_json(&view->end, object);
	return object;
}

void exec_feed_some(struct kept *kept, struct exec_feed *feed)
{
	ssize_t n = 1;

	while (feed->len_bytes && n > 0) {
		n = kept_stdin_push(kept, feed->data, feed->len_bytes);
		if (n > 0) {
			feed->data += n;
			feed->len_bytes -= (size_t)n;
		}
	}
	/* It has ended, or closed: nobody reads the rest. */
	if (n < 0)
		*feed = (struct exec_feed){0};
	if (feed->len_bytes || !feed->close)
		return;
	feed->close = false;
	(void)!kept_stdin_close(kept);
}

void exec_left(struct exec_call *call, bool owner)
{
	struct kept *kept = call->kept;

	if (owner && !kept->pty && !kept->detached)
		kept_kill(kept);
}

bool exec_adopt(struct kept *kept)
{
	bool orphan;

	pthread_mutex_lock(&kept->lock);
	orphan = kept->orphan;
	kept->orphan = false;
	pthread_mutex_unlock(&kept->lock);
	return orphan;
}

u64 exec_replay_cursor(struct kept *kept)
{
	struct kept_view view;

	kept_view(kept, NULL, &view);
	return view.output_end - MIN(view.output_end, (u64)KEPT_REPLAY_BYTES);
}
