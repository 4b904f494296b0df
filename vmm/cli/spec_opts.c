// SPDX-License-Identifier: Apache-2.0
// Options that say what a sandbox of thawd is to be like, and their JSON.
#include "vmm/cli/spec_opts.h"

#include <errno.h>
#include <string.h>

#include "vmm/cli/client.h"
#include "vmm/util/util.h"

int spec_parse_name(void *dest, const char *value, const char **why)
{
	const size_t len = strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-");

	*why = "expected a-z, 0-9 and '-', at most 63, no '-' at an end";
	if (!len || value[len] || len >= CLIENT_NAME_BYTES || value[0] == '-' ||
	    value[len - 1] == '-')
		return -EINVAL;
	*(const char **)dest = value;
	return 0;
}

int spec_parse_size(void *dest, const char *value, const char **why)
{
	static const char *const sizes[] = {"lite",	  "basic",	"standard-1",
					    "standard-2", "standard-3", "standard-4"};

	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		if (!strcmp(value, sizes[i])) {
			*(const char **)dest = value;
			return 0;
		}
	}
	*why = "expected lite, basic or standard-1 to standard-4";
	return -EINVAL;
}

int spec_parse_label(void *dest, const char *value, const char **why)
{
	const size_t key_len = strcspn(value, "=");

	*why = "expected KEY=VALUE or KEY, with up to 16 and 64 bytes";
	if (!key_len || key_len > 16 || (value[key_len] && strlen(value + key_len + 1) > 64))
		return -EINVAL;
	return optparse_strings(dest, value, why);
}

int spec_parse_count(void *dest, const char *value, const char **why)
{
	*why = "expected a number from 1";
	return parse_u64(value, 1, UINT32_MAX, dest);
}

int spec_parse_bytes(void *dest, const char *value, const char **why)
{
	*why = "expected a size such as 512M or 4G";
	return parse_size(value, dest) || !*(u64 *)dest ? -EINVAL : 0;
}

const char *spec_first_given(const struct spec_opts *spec)
{
	if (spec->name)
		return "--name";
	if (spec->labels.count)
		return "--label";
	if (spec->size)
		return "--size";
	if (spec->vcpus)
		return "--vcpus";
	if (spec->memory_bytes)
		return "--memory";
	if (spec->scratch_bytes)
		return "--scratch";
	if (spec->idle_ns)
		return "--idle-timeout";
	if (spec->hard_ns)
		return "--hard-timeout";
	if (spec->keep_alive)
		return "--keep-alive";
	if (spec->internet)
		return "--internet";
	if (spec->pids_max)
		return "--pids-limit";
	return spec->nofile ? "--nofile" : NULL;
}

int spec_check(const struct spec_opts *spec, const char *template_name,
	       struct optparse_result *result)
{
	const char *error = NULL;

	if (spec->size && (spec->vcpus || spec->memory_bytes))
		error = "option --size: can't be combined with --vcpus and --memory";
	else if (!spec->vcpus != !spec->memory_bytes)
		error = "options --vcpus and --memory go together";
	else if (spec->snapshot && template_name)
		error = "option --snapshot: a snapshot has its template: leave TEMPLATE out";
	if (!error)
		return 0;
	snprintf(result->error, sizeof(result->error), "%s", error);
	return -EINVAL;
}

json_t *env_json(char *const *env)
{
	json_t *object = json_object();

	for (; object && *env; env++) {
		const size_t len = strcspn(*env, "=");
		char *name = strndup(*env, len);
		int ret =
			name && json_object_set_new(object, name, json_string(*env + len + 1)) == 0
				? 0
				: -EINVAL;

		free(name);
		if (ret) {
			json_decref(object);
			object = NULL;
		}
	}
	return object;
}

json_t *argv_json(char *const *argv)
{
	json_t *array = json_array();

	for (; array && *argv; argv++) {
		if (json_array_append_new(array, json_string(*argv))) {
			json_decref(array);
			array = NULL;
		}
	}
	return array;
}

json_t *strings_json(const struct optparse_strings *strings)
{
	json_t *array = json_array();

	for (size_t i = 0; array && i < strings->count; i++) {
		if (json_array_append_new(array, json_string(strings->items[i]))) {
			json_decref(array);
			array = NULL;
		}
	}
	return array;
}

json_t *labels_json(const struct optparse_strings *labels)
{
	json_t *object = json_object();

	for (size_t i = 0; object && i < labels->count; i++) {
		const char *equals = strchr(labels->items[i], '=');
		char key[17];

		snprintf(key, sizeof(key), "%.*s", (int)strcspn(labels->items[i], "="),
			 labels->items[i]);
		if (json_object_set_new(object, key, json_string(equals ? equals + 1 : ""))) {
			json_decref(object);
			object = NULL;
		}
	}
	return object;
}

/** Add @value (stolen) unless it was not given. Return: false when it could not be made. */
static bool put(json_t *object, const char *key, bool given, json_t *value)
{
	if (!given) {
		json_decref(value);
		return true;
	}
	return json_object_set_new(object, key, value) == 0;
}

static json_t *number(u64 value)
{
	return json_integer((json_int_t)value);
}

json_t *spec_json(const struct spec_opts *spec, const char *template_name, char *const *env,
		  char *const *entrypoint, const char *hostname)
{
	json_t *object = json_object();
	bool ok = object != NULL;

	ok = ok && put(object, "template", template_name, json_string(template_name));
	ok = ok && put(object, "name", spec->name, json_string(spec->name));
	ok = ok && put(object, "snapshot", spec->snapshot, json_string(spec->snapshot));
	ok = ok && put(object, "size", spec->size, json_string(spec->size));
	ok = ok && put(object, "vcpus", spec->vcpus, number(spec->vcpus));
	ok = ok && put(object, "memory_bytes", spec->memory_bytes, number(spec->memory_bytes));
	ok = ok && put(object, "scratch_bytes", spec->scratch_bytes, number(spec->scratch_bytes));
	ok = ok && put(object, "inactivity_timeout_ms", spec->idle_ns,
		       number(MAX(spec->idle_ns / 1000000, (u64)1)));
	ok = ok && put(object, "hard_timeout_ms", spec->hard_ns,
		       number(MAX(spec->hard_ns / 1000000, (u64)1)));
	ok = ok && put(object, "keep_alive", spec->keep_alive, json_true());
	ok = ok && put(object, "internet", spec->internet, json_true());
	ok = ok && put(object, "pids_max", spec->pids_max, number(spec->pids_max));
	ok = ok && put(object, "nofile", spec->nofile, number(spec->nofile));
	ok = ok && put(object, "hostname", hostname, json_string(hostname));
	if (ok && spec->labels.count)
		ok = json_object_set_new(object, "labels", labels_json(&spec->labels)) == 0;
	if (ok && env && *env)
		ok = json_object_set_new(object, "env", env_json(env)) == 0;
	if (ok && entrypoint && *entrypoint)
		ok = json_object_set_new(object, "entrypoint", argv_json(entrypoint)) == 0;
	if (ok)
		return object;
	json_decref(object);
	return NULL;
}
