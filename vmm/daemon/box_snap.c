// SPDX-License-Identifier: Apache-2.0
// Snapshots that are kept: rows of the database, and names in keep/.
//
// A snapshot is kept (sandbox_keep()) as long as it has a row here, or a box that is paused in it
// or starts from it. What is not kept goes when nothing runs from it and nothing stands on it
// (sandbox_sweep.c).
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/cli/lineage.h"
#include "vmm/daemon/box_internal.h"
#include "vmm/util/log.h"

static int load_one(void *opaque, const char *id, const char *data)
{
	struct boxes *boxes = opaque;
	json_t *row = json_loads(data, 0, NULL);

	if (sandbox_is_snap(id) && json_is_object(row))
		return json_object_set_new(boxes->snaps, id, row) ? -ENOMEM : 0;
	json_decref(row);
	log_err("thawd.db: snapshot '%.63s': its row is damaged", id);
	return -EUCLEAN;
}

int snaps_load(struct boxes *boxes)
{
	return db_snap_each(boxes->db, load_one, boxes);
}

/** With the snapshots' lock. */
static json_t *find_locked(struct boxes *boxes, const char *name)
{
	json_t *row, *found = json_object_get(boxes->snaps, name);
	const char *id;

	json_object_foreach(boxes->snaps, id, row)
	{
		const char *its = json_string_value(json_object_get(row, "name"));

		if (!found && its && !strcmp(its, name))
			found = row;
	}
	return found;
}

json_t *snaps_find(struct boxes *boxes, const char *name)
{
	json_t *found;

	pthread_mutex_lock(&boxes->snap_lock);
	found = find_locked(boxes, name);
	found = found ? json_deep_copy(found) : NULL;
	pthread_mutex_unlock(&boxes->snap_lock);
	return found;
}

int snaps_resolve(struct boxes *boxes, struct box_spec *spec, struct box_error *err)
{
	json_t *row;

	if (!spec->snapshot[0])
		return 0;
	row = snaps_find(boxes, spec->snapshot);
	if (!row)
		return box_refuse(err, 404, "not_found", NULL,
				  "no snapshot '%s': GET /v1/snapshots lists them", spec->snapshot);
	snprintf(spec->snapshot, sizeof(spec->snapshot), "%s",
		 json_string_value(json_object_get(row, "id")));
	snprintf(spec->template_name, sizeof(spec->template_name), "%s",
		 json_string_value(json_object_get(row, "template")));
	json_decref(row);
	return 0;
}

struct needed {
	const char *id;
	json_t *by; /* names; NULL: whether is enough */
	bool starts_only, found;
};

static bool needs_it(void *opaque, struct box *box)
{
	struct needed *needed = opaque;
	bool does;

	pthread_mutex_lock(&box->lock);
	does = !box->gone &&
	       (!strcmp(box->spec.snapshot, needed->id) || !strcmp(box->snapshot, needed->id) ||
		(!needed->starts_only && box->pid_fd >= 0 && !strcmp(box->from, needed->id)));
	pthread_mutex_unlock(&box->lock);
	needed->found |= does;
	if (does && needed->by && json_array_append_new(needed->by, json_string(box->name)))
		return false;
	return needed->by || !does;
}

void snaps_unkeep(struct boxes *boxes, const char *id)
{
	struct needed needed = {.id = id, .starts_only = true};
	bool listed;

	if (!sandbox_is_snap(id))
		return;
	pthread_mutex_lock(&boxes->snap_lock);
	listed = json_object_get(boxes->snaps, id) != NULL;
	if (!listed)
		boxes_each(boxes, needs_it, &needed);
	if (!listed && !needed.found && sandbox_keep(&boxes->thawd->state, id, false))
		log_warn("snapshot '%s' stays", id);
	pthread_mutex_unlock(&boxes->snap_lock);
	super_sweep(boxes);
}

/** Bytes that file @file of the snapshot takes of the disk. */
static u64 usage_of(const struct state *state, const char *id, const char *file)
{
	char path[PATH_MAX], suffix[32];
	struct stat st;

	snprintf(suffix, sizeof(suffix), "/%s", file);
	state_path(state, "templates", id, suffix, path);
	return lstat(path, &st) ? 0 : (u64)st.st_blocks * 512;
}

static json_t *row_of(struct box *box, const struct box_snapshot *snapshot, const char *name,
		      const json_t *labels)
{
	const struct state *state = &box->boxes->thawd->state;
	char now[32];

	utc_text(utc_now_ms(), now);
	return json_pack("{s:s, s:o, s:s, s:s, s:s, s:I, s:I, s:f, s:o}", "id", snapshot->id,
			 "name", name ? json_string(name) : json_null(), "sandbox", box->name,
			 "template", box->spec.template_name, "created", now, "memory_bytes",
			 (json_int_t)usage_of(state, snapshot->id, "memory"), "disk_bytes",
			 (json_int_t)usage_of(state, snapshot->id, "disk"), "pause_ms",
			 snapshot->pause_ms, "labels",
			 labels ? json_deep_copy(labels) : json_object());
}

static int name_taken(const char *name, struct box_error *err)
{
	return box_refuse(err, 409, "conflict", NULL, "there is a snapshot '%s' already", name);
}

/** @row, a new reference, becomes the snapshot's. Return: 0 or -errno with @err. */
static int add_row(struct boxes *boxes, const char *id, json_t *row, struct box_error *err)
{
	const char *name = json_string_value(json_object_get(row, "name"));
	char *text = row ? json_dumps(row, JSON_COMPACT) : NULL;
	int ret = text ? 0 : -ENOMEM;

	pthread_mutex_lock(&boxes->snap_lock);
	/* Another one may have come by that name while this one was written. */
	if (!ret && name && find_locked(boxes, name))
		ret = -EEXIST;
	if (!ret)
		ret = db_snap_put(boxes->db, id, text);
	if (!ret)
		ret = json_object_set(boxes->snaps, id, row) ? -ENOMEM : 0;
	pthread_mutex_unlock(&boxes->snap_lock);
	free(text);
	if (ret == -EEXIST)
		name_taken(name, err);
	else if (ret)
		(void)box_refuse_row(ret, err, "snapshot '%s' can't be written down: %s", id,
				     strerror(-ret));
	return ret;
}

int snaps_make(struct box *box, struct http_req *req, const char *name, const json_t *labels,
	       json_t **out, struct box_error *err)
{
	struct boxes *boxes = box->boxes;
	struct box_snapshot snapshot;
	json_t *row = name ? snaps_find(boxes, name) : NULL;
	int ret;

	json_decref(row);
	if (row)
		return name_taken(name, err);
	ret = box_begin(box, req);
	if (ret)
		return box_refuse_begin(box, ret, err);
	if (box->state != BOX_RUNNING)
		ret = box_refuse(err, 409, "wrong_state",
				 json_pack("{s:s}", "state", box_state_name(box->state)),
				 "sandbox '%s' is %s: only of a running one a snapshot can be made",
				 box->name, box_state_name(box->state));
	else
		ret = box_snapshot(box, &snapshot, err);
	row = ret ? NULL : row_of(box, &snapshot, name, labels);
	box_done(box);
	if (ret)
		return ret;
	ret = add_row(boxes, snapshot.id, row, err);
	if (ret) {
		json_decref(row);
		snaps_unkeep(boxes, snapshot.id);
		return ret;
	}
	metric_add(boxes->thawd, METRIC_SNAPSHOTS, 1);
	event_emit(boxes->thawd, "snapshot.created", box->name,
		   json_pack("{s:s}", "id", snapshot.id));
	*out = row;
	return 0;
}

/** Names of what could not be without @id. */
static json_t *dependents_of(struct boxes *boxes, const char *id)
{
	struct needed needed = {.id = id, .by = json_array()};
	struct state_names names;
	struct log_keep keep;

	boxes_each(boxes, needs_it, &needed);
	log_keep_begin(&keep, true);
	if (!lineage_dependents(&boxes->thawd->state, id, &names)) {
		for (size_t i = 0; i < names.count; i++)
			(void)!json_array_append_new(needed.by, json_string(names.names[i]));
		state_names_free(&names);
	}
	log_keep_end(&keep);
	return needed.by;
}

static int remove_row(struct boxes *boxes, const char *id, const char *box_name)
{
	int ret = db_snap_delete(boxes->db, id);

	if (ret)
		return ret;
	pthread_mutex_lock(&boxes->snap_lock);
	(void)json_object_del(boxes->snaps, id);
	pthread_mutex_unlock(&boxes->snap_lock);
	event_emit(boxes->thawd, "snapshot.deleted", box_name, json_pack("{s:s}", "id", id));
	snaps_unkeep(boxes, id);
	return 0;
}

int snaps_remove(struct boxes *boxes, const char *name, struct box_error *err)
{
	json_t *row = snaps_find(boxes, name), *dependents;
	const char *id = json_string_value(json_object_get(row, "id"));
	const char *box_name = json_string_value(json_object_get(row, "sandbox"));
	int ret = 0;

	if (!row)
		return box_refuse(err, 404, "not_found", NULL, "no snapshot '%.63s'", name);
	dependents = dependents_of(boxes, id);
	if (json_array_size(dependents)) {
		ret = box_refuse(err, 409, "conflict", json_pack("{s:O}", "dependents", dependents),
				 "snapshot '%s' is needed by %zu others: delete those first", name,
				 json_array_size(dependents));
	} else {
		ret = remove_row(boxes, id, box_name);
		if (ret)
			(void)box_refuse_row(ret, err, "snapshot '%s' can't be deleted: %s", name,
					     strerror(-ret));
	}
	json_decref(dependents);
	json_decref(row);
	return ret;
}

json_t *snaps_list(struct boxes *boxes, const char *box_name)
{
	json_t *list = json_array(), *row;
	const char *id;

	pthread_mutex_lock(&boxes->snap_lock);
	json_object_foreach(boxes->snaps, id, row)
	{
		const char *its = json_string_value(json_object_get(row, "sandbox"));

		if (!box_name || (its && !strcmp(its, box_name)))
			(void)!json_array_append_new(list, json_deep_copy(row));
	}
	pthread_mutex_unlock(&boxes->snap_lock);
	return list;
}

void snaps_prune(struct boxes *boxes, json_t *removed)
{
	json_t *list = snaps_list(boxes, NULL), *row;
	size_t i;

	json_array_foreach(list, i, row)
	{
		const char *id = json_string_value(json_object_get(row, "id"));
		struct box_error err = {0};

		if (!snaps_remove(boxes, id, &err))
			(void)!json_array_append_new(
				removed, json_pack("{s:s, s:s}", "kind", "snapshot", "name", id));
		json_decref(err.details);
	}
	json_decref(list);
}
