// SPDX-License-Identifier: Apache-2.0
// What a box is to be: written, copied, compared.
#include <errno.h>
#include <string.h>

#include "vmm/daemon/box_spec.h"

void box_spec_free(struct box_spec *spec)
{
	json_decref(spec->env);
	json_decref(spec->labels);
	json_decref(spec->entrypoint);
	spec->env = spec->labels = spec->entrypoint = NULL;
}

int box_spec_copy(const struct box_spec *spec, struct box_spec *out)
{
	*out = *spec;
	out->env = json_deep_copy(spec->env);
	out->labels = json_deep_copy(spec->labels);
	out->entrypoint = spec->entrypoint ? json_deep_copy(spec->entrypoint) : NULL;
	if (out->env && out->labels && !out->entrypoint == !spec->entrypoint)
		return 0;
	box_spec_free(out);
	return -ENOMEM;
}

static json_t *number_or_null(u64 value)
{
	return value ? json_integer((json_int_t)value) : json_null();
}

/** All fields, by the names that clients know; what they leave to others is null. */
static json_t *all_fields(const struct box_spec *spec)
{
	return json_pack(
		"{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:o, s:o, s:s}",
		"template", spec->template_name, "snapshot",
		spec->snapshot[0] ? json_string(spec->snapshot) : json_null(), "size",
		spec->size ? json_string(spec->size->name) : json_null(), "vcpus",
		number_or_null(spec->vcpus), "memory_bytes", number_or_null(spec->memory_bytes),
		"scratch_bytes",
		spec->scratch_bytes >= 0 ? json_integer(spec->scratch_bytes) : json_null(), "env",
		json_deep_copy(spec->env), "entrypoint",
		spec->entrypoint ? json_deep_copy(spec->entrypoint) : json_null(), "labels",
		json_deep_copy(spec->labels), "inactivity_timeout_ms",
		number_or_null(spec->inactivity_ms), "hard_timeout_ms",
		number_or_null(spec->hard_ms), "keep_alive", spec->keep_alive, "auto_remove",
		spec->auto_remove, "pids_max", number_or_null(spec->pids_max), "nofile",
		number_or_null(spec->nofile), "hostname", spec->hostname);
}

json_t *box_spec_json(const struct box_spec *spec)
{
	json_t *object = all_fields(spec);

	if (!object)
		return NULL;
	/* As a client would have written it. */
	(void)json_object_del(object, spec->snapshot[0] ? "template" : "snapshot");
	if (spec->size || !spec->vcpus)
		(void)json_object_del(object, "vcpus");
	if (spec->size || !spec->memory_bytes)
		(void)json_object_del(object, "memory_bytes");
	if (!spec->size)
		(void)json_object_del(object, "size");
	if (spec->scratch_bytes < 0)
		(void)json_object_del(object, "scratch_bytes");
	return object;
}

json_t *box_spec_differences(const struct box_spec *have, const struct box_spec *want)
{
	json_t *list = json_array(), *mine = all_fields(have), *theirs = all_fields(want), *value;
	const char *key;
	int ret = list && mine && theirs ? 0 : -ENOMEM;

	json_object_foreach(mine, key, value)
	{
		json_t *other = json_object_get(theirs, key);

		/* A snapshot has its template in it. */
		if (ret || json_equal(value, other) ||
		    (!strcmp(key, "template") && want->snapshot[0]))
			continue;
		ret = json_array_append_new(list, json_pack("{s:s, s:O, s:O}", "field", key, "have",
							    value, "want", other));
	}
	json_decref(mine);
	json_decref(theirs);
	if (ret) {
		json_decref(list);
		return NULL;
	}
	return list;
}
