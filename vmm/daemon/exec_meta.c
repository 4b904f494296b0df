// SPDX-License-Identifier: Apache-2.0
// An exec as JSON: in its meta file, and in answers.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/daemon/exec_guest.h"
#include "vmm/daemon/exec_table.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/* kept->lock is held. */
static json_t *end_json(const struct kept *kept)
{
	const struct kept_end *end = &kept->end;

	if (kept->state != KEPT_ENDED)
		return json_null();
	return json_pack("{s:i, s:I, s:I, s:I, s:i, s:I, s:s, s:I, s:I, s:I}", "kind",
			 (int)end->kind, "value", (json_int_t)end->value, "flags",
			 (json_int_t)end->flags, "stage", (json_int_t)end->stage, "error",
			 end->error, "time_ns", (json_int_t)end->time_ns, "text", end->text,
			 "output_end", (json_int_t)kept->log.end, "stdout_bytes",
			 (json_int_t)kept->log.count[EXEC_STDOUT], "stderr_bytes",
			 (json_int_t)kept->log.count[EXEC_STDERR]);
}

json_t *kept_meta_json(struct kept *kept)
{
	json_t *meta;

	pthread_mutex_lock(&kept->lock);
	meta = json_pack("{s:O, s:b, s:b, s:b, s:b, s:I, s:I, s:I, s:o}", "argv", kept->argv, "pty",
			 kept->pty, "combined", kept->combined, "detached", kept->detached,
			 "with_stdin", kept->with_stdin, "timeout_ms", (json_int_t)kept->timeout_ms,
			 "started_ns", (json_int_t)kept->started_ns, "pid", (json_int_t)kept->pid,
			 "end", end_json(kept));
	pthread_mutex_unlock(&kept->lock);
	return meta;
}

int kept_meta_save(struct kept *kept)
{
	json_t *meta = kept_meta_json(kept);
	char *text = meta ? json_dumps(meta, JSON_COMPACT) : NULL;
	char tmp[PATH_MAX];
	int fd = -1, ret = -ENOMEM;

	if (!text)
		goto out;
	snprintf(tmp, sizeof(tmp), "%.*s.tmp", PATH_MAX - 8, kept->meta_path);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		ret = -errno;
		goto out;
	}
	ret = fd_write_full(fd, text, strlen(text));
	if (!ret && rename(tmp, kept->meta_path) < 0)
		ret = -errno;
	if (ret)
		unlink(tmp);
out:
	/* A machine that has gone takes its folder with it. */
	if (ret && ret != -ENOENT)
		log_err("%s: %s", kept->meta_path, strerror(-ret));
	fd_close(&fd);
	free(text);
	json_decref(meta);
	return ret;
}

static u64 number(const json_t *object, const char *name)
{
	json_int_t value = json_integer_value(json_object_get(object, name));

	return value > 0 ? (u64)value : 0;
}

static void end_take(struct kept *kept, const json_t *json)
{
	struct kept_end end = {
		.kind = (enum kept_end_kind)number(json, "kind"),
		.value = (u32)number(json, "value"),
		.flags = (u32)number(json, "flags"),
		.stage = (u32)number(json, "stage"),
		.error = (int)number(json, "error"),
		.time_ns = number(json, "time_ns"),
	};
	const char *text = json_string_value(json_object_get(json, "text"));

	if (!json_is_object(json) || end.kind > KEPT_LOST)
		return;
	if (end.kind <= KEPT_SIGNALLED && !exec_guest_exit_ok(end.kind, end.value, end.flags))
		return;
	snprintf(end.text, sizeof(end.text), "%s", text ? text : "");
	kept->end = end;
	kept->state = KEPT_ENDED;
	kept->log.end = MAX(kept->log.end, number(json, "output_end"));
	kept->log.count[EXEC_STDOUT] = number(json, "stdout_bytes");
	kept->log.count[EXEC_STDERR] = number(json, "stderr_bytes");
}

void kept_meta_take(struct kept *kept, const json_t *meta)
{
	json_t *argv = json_object_get(meta, "argv"), *item;
	bool strings = json_is_array(argv);
	size_t i;

	json_array_foreach(argv, i, item) strings = strings && json_is_string(item);
	pthread_mutex_lock(&kept->lock);
	if (strings) {
		json_decref(kept->argv);
		kept->argv = json_incref(argv);
	}
	kept->pty = json_is_true(json_object_get(meta, "pty"));
	kept->combined = json_is_true(json_object_get(meta, "combined"));
	kept->with_stdin = json_is_true(json_object_get(meta, "with_stdin"));
	kept->timeout_ms = (u32)number(meta, "timeout_ms");
	kept->started_ns = number(meta, "started_ns");
	kept->pid = (u32)number(meta, "pid");
	end_take(kept, json_object_get(meta, "end"));
	pthread_mutex_unlock(&kept->lock);
}

int kept_exit_code(const struct kept_end *end)
{
	if (end->flags & SHIM_EXIT_TIMED_OUT)
		return 124;
	switch (end->kind) {
	case KEPT_EXITED:
		return (int)end->value;
	case KEPT_SIGNALLED:
		return 128 + (int)end->value;
	case KEPT_FAILED:
	case KEPT_LOST:
	default:
		return -1;
	}
}

void kept_exit_json(const struct kept_end *end, json_t *object)
{
	int code = kept_exit_code(end);
	char name[16];

	json_object_set_new(object, "exit_code", code < 0 ? json_null() : json_integer(code));
	json_object_set_new(object, "signal",
			    end->kind == KEPT_SIGNALLED
				    ? json_string(exec_signal_name(end->value, name))
				    : json_null());
	json_object_set_new(object, "timed_out", json_boolean(end->flags & SHIM_EXIT_TIMED_OUT));
	json_object_set_new(object, "oom_killed", json_boolean(end->flags & SHIM_EXIT_OOM));
}

json_t *kept_json(struct kept *kept)
{
	struct kept_view view;
	bool ended;
	json_t *object;

	kept_view(kept, NULL, &view);
	ended = view.state == KEPT_ENDED;
	if (!ended)
		view.end = (struct kept_end){.kind = KEPT_LOST};
	object = json_pack(
		"{s:s, s:O, s:o, s:s, s:b, s:b, s:b, s:b, s:o, s:o, s:b, s:I, s:I, s:I, s:I}", "id",
		kept->id, "argv", kept->argv, "pid",
		view.pid ? json_integer(view.pid) : json_null(), "state",
		ended ? "ended" : "running", "detached", kept->detached, "pty", kept->pty,
		"combined", kept->combined, "entrypoint", kept->entrypoint, "started",
		exec_time_json(kept->started_ns), "ended",
		ended ? exec_time_json(view.end.time_ns) : json_null(), "lost",
		ended && view.end.kind == KEPT_LOST, "output_bytes", (json_int_t)view.output_end,
		"stdout_bytes", (json_int_t)view.out_bytes, "stderr_bytes",
		(json_int_t)view.err_bytes, "oldest_cursor", (json_int_t)view.oldest);
	if (object)
		kept_exit_json(&view.end, object);
	return object;
}
