// SPDX-License-Identifier: Apache-2.0
// Boxes: clones of a running one. It stands still only while the snapshot is written; each clone
// succeeds or fails by itself.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/daemon/box_internal.h"
#include "vmm/util/log.h"

#define FORK_WINDOW 16u

struct clone {
	struct box *parent;
	const char *snapshot;
	const json_t *labels; /* NULL: the parent's */
	char name[BOX_NAME_MAX + 1];
	pthread_t thread;
	bool threaded;
	json_t *result;
};

static json_t *error_json(struct box_error *err)
{
	json_t *details = err->details ? err->details : json_object();

	err->details = NULL;
	return json_pack("{s:{s:s, s:s, s:o}}", "error", "code", err->code, "message", err->message,
			 "details", details);
}

/** What a clone is to be. Return: 0 or -ENOMEM. */
static int clone_spec(const struct clone *clone, struct box_spec *spec)
{
	struct box *parent = clone->parent;
	int ret;

	pthread_mutex_lock(&parent->lock);
	ret = box_spec_copy(&parent->spec, spec);
	pthread_mutex_unlock(&parent->lock);
	if (ret)
		return ret;
	snprintf(spec->snapshot, sizeof(spec->snapshot), "%s", clone->snapshot);
	snprintf(spec->hostname, sizeof(spec->hostname), "%s", clone->name);
	if (!clone->labels)
		return 0;
	json_decref(spec->labels);
	spec->labels = json_deep_copy(clone->labels);
	return spec->labels ? 0 : -ENOMEM;
}

static int make_clone(struct clone *clone, struct box **out, struct box_error *err)
{
	struct box *parent = clone->parent, *existing, *box;
	struct boxes *boxes = parent->boxes;
	struct box_spec spec;
	int ret;

	*out = NULL;
	if (clone_spec(clone, &spec))
		return box_refuse(err, 500, "internal", NULL, "out of memory");
	box = boxes_add(boxes, clone->name, &spec, &existing, err);
	if (!box) {
		ret = -EINVAL;
		if (existing)
			ret = box_refuse(err, 409, "conflict", NULL,
					 "there is a sandbox '%s' already", clone->name);
		box_put(existing);
		return ret;
	}
	pthread_mutex_lock(&box->lock);
	snprintf(box->parent, sizeof(box->parent), "%s", parent->name);
	box->forked = true;
	pthread_mutex_unlock(&box->lock);
	ret = box_enter(box, BOX_CREATING, err);
	if (!ret)
		event_emit(boxes->thawd, "sandbox.created", box->name,
			   json_pack("{s:s}", "parent", parent->name));
	ret = ret ? ret : box_start(box, err);
	/* One that never ran is not kept: its memory is the original's at a moment that is over. */
	if (ret && !box->gone)
		(void)box_remove(box, NULL);
	box_done(box);
	if (ret)
		box_put(box);
	else
		*out = box;
	return ret;
}

static void *run_clone(void *opaque)
{
	struct clone *clone = opaque;
	struct box_error err = {0};
	struct box *box;

	if (make_clone(clone, &box, &err))
		clone->result = error_json(&err);
	else
		clone->result = json_pack("{s:o}", "sandbox", box_json(box));
	box_put(box);
	return NULL;
}

static void start_clone(struct clone *clone)
{
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, BOX_STACK_BYTES);
	clone->threaded = !pthread_create(&clone->thread, &attr, run_clone, clone);
	pthread_attr_destroy(&attr);
	if (!clone->threaded)
		(void)run_clone(clone);
}

static json_t *make_clones(struct clone *clones, u64 count)
{
	json_t *list = json_array();

	for (u64 i = 0; i < count + FORK_WINDOW; i++) {
		if (i >= FORK_WINDOW && clones[i - FORK_WINDOW].threaded)
			pthread_join(clones[i - FORK_WINDOW].thread, NULL);
		if (i < count)
			start_clone(&clones[i]);
	}
	for (u64 i = 0; i < count; i++) {
		if (json_array_append_new(list, clones[i].result))
			log_warn("fork: out of memory");
	}
	return list;
}

/** Return: 0 or -errno with @err. */
static int snapshot_of(struct box *box, struct http_req *req, struct box_snapshot *out,
		       struct box_error *err)
{
	int ret = box_begin(box, req);

	if (ret)
		return box_refuse_begin(box, ret, err);
	if (box->state != BOX_RUNNING)
		ret = box_refuse(err, 409, "wrong_state",
				 json_pack("{s:s}", "state", box_state_name(box->state)),
				 "sandbox '%s' is %s: only a running one can be forked", box->name,
				 box_state_name(box->state));
	else
		ret = box_snapshot(box, out, err);
	box_done(box);
	return ret;
}

static int name_clones(struct clone *clones, const json_t *names, u64 count, struct box_error *err)
{
	for (u64 i = 0; i < count; i++) {
		const char *name = json_string_value(json_array_get(names, i));

		if (!names && box_random_name(clones[i].name))
			return box_refuse(err, 500, "internal", NULL, "no random bytes");
		if (names && (!name || !box_name_ok(name)))
			return box_refuse(
				err, 400, "invalid_request", NULL,
				"field 'names': expected names of 1 to 63 of a-z, 0-9 and "
				"'-', which is neither first nor last");
		if (names)
			snprintf(clones[i].name, sizeof(clones[i].name), "%s", name);
	}
	return 0;
}

int box_fork(struct box *box, struct http_req *req, const json_t *names, u64 count,
	     const json_t *labels, json_t **out, struct box_error *err)
{
	struct clone *clones = calloc(count, sizeof(*clones));
	struct thawd *thawd = box->boxes->thawd;
	struct box_snapshot snapshot = {.pause_ms = 0};
	json_t *list;
	int ret;

	if (!clones)
		return box_refuse(err, 500, "internal", NULL, "out of memory");
	ret = name_clones(clones, names, count, err);
	if (!ret)
		ret = snapshot_of(box, req, &snapshot, err);
	if (ret) {
		free(clones);
		return ret;
	}
	metric_add(thawd, METRIC_FORKS, 1);
	metric_observe_ns(thawd, METRIC_FORK_PAUSE_SECONDS, (u64)(snapshot.pause_ms * 1e6));
	for (u64 i = 0; i < count; i++) {
		clones[i].parent = box;
		clones[i].snapshot = snapshot.id;
		clones[i].labels = labels;
	}
	list = make_clones(clones, count);
	free(clones);
	event_emit(thawd, "sandbox.forked", box->name,
		   json_pack("{s:s, s:f, s:I}", "snapshot", snapshot.id, "pause_ms",
			     snapshot.pause_ms, "count", (json_int_t)count));
	/* If all have failed nobody needs it. */
	snaps_unkeep(box->boxes, snapshot.id);
	*out = json_pack("{s:s, s:f, s:o}", "snapshot", snapshot.id, "pause_ms", snapshot.pause_ms,
			 "forks", list);
	return *out ? 0 : box_refuse(err, 500, "internal", NULL, "out of memory");
}
