// SPDX-License-Identifier: Apache-2.0
// Boxes: their rows in the database, and the object that clients get.
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "vmm/daemon/box_internal.h"
#include "vmm/util/log.h"

static const char *const reason_names[] = {
	[BOX_EXITED] = "exited",
	[BOX_IDLE] = "idle",
	[BOX_HARD_TIMEOUT] = "hard_timeout",
	[BOX_STOP_ASKED] = "stopped",
	[BOX_DESTROYED] = "destroyed",
	[BOX_LOST] = "lost",
	[BOX_START_FAILED] = "failed",
};

static const char *const pool_names[] = {
	[BOX_POOL_NONE] = "none",
	[BOX_POOL_HIT] = "hit",
	[BOX_POOL_MISS] = "miss",
};

const char *box_reason_name(enum box_reason reason)
{
	return reason_names[reason];
}

/** Index of @text in @names, or -1. */
static int index_of(const char *const *names, int count, const char *text)
{
	for (int i = 0; i < count; i++) {
		if (text && !strcmp(names[i], text))
			return i;
	}
	return -1;
}

static json_t *text_or_null(const char *text)
{
	return *text ? json_string(text) : json_null();
}

static json_t *time_or_null(s64 time_ms)
{
	char text[32];

	if (!time_ms)
		return json_null();
	utc_text(time_ms, text);
	return json_string(text);
}

json_t *box_stop_json(const struct box_stop *stop)
{
	if (!stop->set)
		return json_null();
	return json_pack("{s:s, s:o, s:o, s:o}", "reason", reason_names[stop->reason], "exit_code",
			 stop->exit_code < 0 ? json_null() : json_integer(stop->exit_code),
			 "message", text_or_null(stop->message), "time",
			 time_or_null(stop->time_ms));
}

/** With the box's lock. */
static json_t *row_json(const struct box *box)
{
	json_t *stop = box->stop.set ? json_pack("{s:s, s:i, s:s, s:I}", "reason",
						 reason_names[box->stop.reason], "exit_code",
						 box->stop.exit_code, "message", box->stop.message,
						 "time", (json_int_t)box->stop.time_ms)
				     : json_null();

	return json_pack(
		"{s:o, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:i, s:I, s:I, s:I, s:I, s:I, "
		"s:I, s:s, s:I, s:o}",
		"spec", box_spec_json(&box->spec), "template", box->spec.template_name, "base",
		box->base, "token", box->token, "parent", box->parent, "snapshot", box->snapshot,
		"from", box->from, "entrypoint_exec", box->entrypoint_exec, "forked", box->forked,
		"deleting", box->deleting, "vcpus", (int)box->vcpus, "memory_bytes",
		(json_int_t)box->memory_bytes, "scratch_bytes", (json_int_t)box->scratch_bytes,
		"incarnation", (json_int_t)box->incarnation, "created", (json_int_t)box->created_ms,
		"started", (json_int_t)box->started_ms, "last_activity", (json_int_t)box->last_ms,
		"pool", pool_names[box->pool], "start_us", (json_int_t)box->start_us, "stop", stop);
}

int box_save(struct box *box)
{
	char machine[SANDBOX_ID_CHARS + 1], *text = NULL;
	enum box_state state;
	json_t *row;
	int ret;

	pthread_mutex_lock(&box->lock);
	row = row_json(box);
	state = box->state;
	memcpy(machine, box->machine, sizeof(machine));
	pthread_mutex_unlock(&box->lock);
	if (row)
		text = json_dumps(row, JSON_COMPACT);
	json_decref(row);
	if (!text) {
		log_err("sandbox '%s': out of memory", box->name);
		return -ENOMEM;
	}
	ret = db_box_put(box->boxes->db, box->name, box_state_name(state), machine, text);
	free(text);
	/* What the row does not say yet, it is to say as soon as it can. */
	atomic_store(&box->unsaved, ret != 0);
	if (ret)
		super_unsaved(box->boxes);
	return ret;
}

int box_refuse_row(int ret, struct box_error *err, const char *fmt, ...)
{
	char text[sizeof(err->message)];
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (ret == -EBUSY) {
		err->retry_s = BOX_RETRY_S;
		return box_refuse(err, 503, "capacity", NULL, "%s", text);
	}
	if (ret == -ENOSPC)
		return box_refuse(err, 507, "no_space", NULL, "%s", text);
	return box_refuse(err, 500, "internal", NULL, "%s", text);
}

int box_enter(struct box *box, enum box_state state, struct box_error *err)
{
	enum box_state before;
	struct log_keep keep;
	int ret;

	pthread_mutex_lock(&box->lock);
	before = box->state;
	box->state = state;
	pthread_cond_broadcast(&box->changed);
	pthread_mutex_unlock(&box->lock);
	log_keep_begin(&keep, false);
	ret = box_save(box);
	log_keep_end(&keep);
	if (!ret)
		return 0;
	box_set_state(box, before);
	(void)box_refuse_row(ret, err, "sandbox '%s': its state can't be written: %s", box->name,
			     keep.text);
	return ret;
}

static void take_text(const json_t *row, const char *key, char *out, size_t bytes)
{
	const char *text = json_string_value(json_object_get(row, key));

	snprintf(out, bytes, "%s", text ? text : "");
}

static s64 take_integer(const json_t *row, const char *key)
{
	return json_integer_value(json_object_get(row, key));
}

static void take_stop(const json_t *row, struct box_stop *stop)
{
	const json_t *object = json_object_get(row, "stop");
	int reason = index_of(reason_names, BOX_REASONS,
			      json_string_value(json_object_get(object, "reason")));

	if (!json_is_object(object) || reason < 0)
		return;
	stop->set = true;
	stop->reason = (enum box_reason)reason;
	stop->exit_code = (int)take_integer(object, "exit_code");
	stop->time_ms = take_integer(object, "time");
	take_text(object, "message", stop->message, sizeof(stop->message));
}

static void take_row(struct box *box, const json_t *row)
{
	int pool = index_of(pool_names, ARRAY_SIZE(pool_names),
			    json_string_value(json_object_get(row, "pool")));

	take_text(row, "template", box->spec.template_name, sizeof(box->spec.template_name));
	take_text(row, "base", box->base, sizeof(box->base));
	take_text(row, "token", box->token, sizeof(box->token));
	take_text(row, "parent", box->parent, sizeof(box->parent));
	take_text(row, "snapshot", box->snapshot, sizeof(box->snapshot));
	take_text(row, "from", box->from, sizeof(box->from));
	take_text(row, "entrypoint_exec", box->entrypoint_exec, sizeof(box->entrypoint_exec));
	box->forked = json_is_true(json_object_get(row, "forked"));
	box->deleting = json_is_true(json_object_get(row, "deleting"));
	box->vcpus = (u32)take_integer(row, "vcpus");
	box->memory_bytes = (u64)take_integer(row, "memory_bytes");
	box->scratch_bytes = (u64)take_integer(row, "scratch_bytes");
	box->incarnation = (u64)take_integer(row, "incarnation");
	box->created_ms = take_integer(row, "created");
	box->started_ms = take_integer(row, "started");
	box->last_ms = take_integer(row, "last_activity");
	box->start_us = (u64)take_integer(row, "start_us");
	box->pool = pool < 0 ? BOX_POOL_NONE : (enum box_pool)pool;
	take_stop(row, &box->stop);
}

static int find_state(const char *text)
{
	for (int i = 0; i < BOX_STATES; i++) {
		if (!strcmp(box_state_name((enum box_state)i), text))
			return i;
	}
	return -1;
}

static int load_one(void *opaque, const char *name, const char *state, const char *machine,
		    const char *data)
{
	struct box *box = NULL, *existing;
	struct boxes *boxes = opaque;
	struct box_error err = {0};
	struct box_spec spec;
	json_t *row = json_loads(data, 0, NULL);
	int number = find_state(state);

	if (!box_name_ok(name) || number < 0 || !json_is_object(row) ||
	    box_spec_parse(json_object_get(row, "spec"), name, NULL, &spec, &err)) {
		log_err("thawd.db: sandbox '%s': its row is damaged: %s", name,
			err.status ? err.message : "not what thawd wrote");
		json_decref(err.details);
		json_decref(row);
		return -EUCLEAN;
	}
	box = boxes_add(boxes, name, &spec, &existing, NULL);
	if (box) {
		box->state = (enum box_state)number;
		snprintf(box->machine, sizeof(box->machine), "%s", machine);
		take_row(box, row);
		box->busy = false;
		box_put(box);
	}
	json_decref(row);
	return box ? 0 : -ENOMEM;
}

int boxes_load(struct boxes *boxes)
{
	return db_box_each(boxes->db, load_one, boxes);
}

/** With the box's lock: when it stops unless something happens. */
static json_t *expires_json(const struct box *box)
{
	struct timer_times times;
	u64 now_ms = box->boxes->now_ms(), due_ms;

	if (box->state != BOX_RUNNING)
		return json_null();
	super_times(box, &times);
	(void)timer_check(&times, now_ms, &due_ms);
	return due_ms == TIMER_NEVER ? json_null()
				     : time_or_null(utc_now_ms() + (s64)(due_ms - now_ms));
}

static json_t *size_json(const struct box *box)
{
	u32 vcpus = box->vcpus ? box->vcpus : box->spec.vcpus;
	u64 memory = box->memory_bytes ? box->memory_bytes : box->spec.memory_bytes;
	u64 scratch = box->base[0]		     ? box->scratch_bytes
		      : box->spec.scratch_bytes >= 0 ? (u64)box->spec.scratch_bytes
						     : 0;

	return json_pack("{s:o, s:i, s:I, s:I}", "name",
			 box->spec.size ? json_string(box->spec.size->name) : json_null(), "vcpus",
			 (int)MAX(vcpus, 1u), "memory_bytes", (json_int_t)memory, "scratch_bytes",
			 (json_int_t)scratch);
}

static json_t *number_or_null(u64 value)
{
	return value ? json_integer((json_int_t)value) : json_null();
}

/** With the box's lock. */
static json_t *spec_part(const struct box *box)
{
	const struct box_spec *spec = &box->spec;
	const struct conf *conf = &box->boxes->thawd->conf;
	u64 inactivity_ms = spec->inactivity_ms ? spec->inactivity_ms : conf->inactivity_timeout_ms;

	return json_pack("{s:s, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:b, s:b, s:o, s:o, s:s}",
			 "template", spec->template_name, "snapshot", text_or_null(spec->snapshot),
			 "env", json_deep_copy(spec->env), "entrypoint",
			 spec->entrypoint ? json_deep_copy(spec->entrypoint) : json_null(),
			 "internet", 0, "labels", json_deep_copy(spec->labels),
			 "inactivity_timeout_ms", number_or_null(inactivity_ms), "hard_timeout_ms",
			 number_or_null(spec->hard_ms), "keep_alive", spec->keep_alive,
			 "auto_remove", spec->auto_remove, "pids_max",
			 number_or_null(spec->pids_max), "nofile", number_or_null(spec->nofile),
			 "hostname", spec->hostname);
}

/** With the box's lock. */
static json_t *run_part(const struct box *box)
{
	json_t *start = box->start_us ? json_pack("{s:s, s:f}", "pool", pool_names[box->pool], "ms",
						  (double)box->start_us / 1000.0)
				      : json_null();

	return json_pack(
		"{s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", box->name,
		"id", box->pid_fd >= 0 ? json_string(box->machine) : json_null(), "state",
		box_state_name(box->state), "parent", text_or_null(box->parent), "size",
		size_json(box), "created", time_or_null(box->created_ms), "started",
		time_or_null(box->started_ms), "last_activity", time_or_null(box->last_ms),
		"expires", expires_json(box), "start", start, "stop", box_stop_json(&box->stop),
		"entrypoint_exec", text_or_null(box->entrypoint_exec));
}

json_t *box_json(struct box *box)
{
	json_t *object, *spec;

	pthread_mutex_lock(&box->lock);
	object = run_part(box);
	spec = spec_part(box);
	pthread_mutex_unlock(&box->lock);
	if (!object || !spec || json_object_update(object, spec)) {
		json_decref(object);
		object = NULL;
	}
	json_decref(spec);
	return object;
}
