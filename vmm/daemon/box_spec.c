// SPDX-License-Identifier: Apache-2.0
// What a box is to be: reading it strictly.
//
// The same reader takes what clients send and what the database has: a row that a newer thawd wrote
// with a field more is refused rather than half understood.
#include "vmm/daemon/box_spec.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "vmm/daemon/box.h"

#define ENV_MAX_BYTES  (256 * KIB)
#define ARGS_MAX_COUNT 1024
#define ARGS_MAX_BYTES (256 * KIB)

static const struct box_size sizes[] = {
	{"lite", 1, 256 * MIB, 62, 6},	       {"basic", 1, 1 * GIB, 250, 25},
	{"standard-1", 1, 4 * GIB, 500, 50},   {"standard-2", 1, 6 * GIB, 1000, 100},
	{"standard-3", 2, 8 * GIB, 2000, 200}, {"standard-4", 4, 12 * GIB, 4000, 400},
};

#define SIZE_NAMES "lite, basic, standard-1, standard-2, standard-3, standard-4"

int box_refuse(struct box_error *err, unsigned int status, const char *code, json_t *details,
	       const char *fmt, ...)
{
	va_list args;

	if (err->status) {
		json_decref(details);
		return -EINVAL;
	}
	err->status = status;
	err->code = code;
	err->details = details;
	va_start(args, fmt);
	(void)vsnprintf(err->message, sizeof(err->message), fmt, args);
	va_end(args);
	return -EINVAL;
}

static int bad(struct box_error *err, const char *field, const char *why)
{
	return box_refuse(err, 400, "invalid_request", json_pack("{s:s}", "field", field),
			  "field '%s': %s", field, why);
}

const struct box_size *box_size_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		if (!strcmp(sizes[i].name, name))
			return &sizes[i];
	}
	return NULL;
}

const struct box_size *box_size_of(u32 vcpus, u64 memory_bytes)
{
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		if (sizes[i].vcpus == vcpus && sizes[i].memory_bytes == memory_bytes)
			return &sizes[i];
	}
	return NULL;
}

/** No control characters, of C1 (U+0080 to U+009F) neither. @text: UTF-8. */
static bool is_plain(const char *text)
{
	const unsigned char *byte = (const unsigned char *)text;

	for (; *byte; byte++) {
		if (*byte < 0x20 || *byte == 0x7f || (*byte == 0xc2 && byte[1] < 0xa0))
			return false;
	}
	return true;
}

/** A string without NUL inside. */
static const char *text_of(const json_t *value)
{
	const char *text = json_string_value(value);

	return text && strlen(text) == json_string_length(value) ? text : NULL;
}

/** Return: 0 (also: not given, *@out as it was), or -EINVAL. null means 0 if @nullable. */
static int take_number(const json_t *object, const char *field, u64 min, u64 max, bool nullable,
		       u64 *out, struct box_error *err)
{
	const json_t *value = json_object_get(object, field);
	char why[120];

	if (!value)
		return 0;
	if (nullable && json_is_null(value)) {
		*out = 0;
		return 0;
	}
	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    (u64)json_integer_value(value) < min || (u64)json_integer_value(value) > max) {
		snprintf(why, sizeof(why), "expected an integer from %llu to %llu%s",
			 (unsigned long long)min, (unsigned long long)max,
			 nullable ? ", or null" : "");
		return bad(err, field, why);
	}
	*out = (u64)json_integer_value(value);
	return 0;
}

static int take_bool(const json_t *object, const char *field, bool *out, struct box_error *err)
{
	const json_t *value = json_object_get(object, field);

	if (value && !json_is_boolean(value))
		return bad(err, field, "expected true or false");
	if (value)
		*out = json_is_true(value);
	return 0;
}

int box_labels_check(const json_t *labels, struct box_error *err)
{
	const char *key;
	json_t *value;

	if (!json_is_object(labels))
		return bad(err, "labels", "expected an object of strings");
	if (json_object_size(labels) > BOX_LABELS_MAX)
		return bad(err, "labels", "at most 10 labels");
	json_object_foreach((json_t *)labels, key, value)
	{
		const char *text = text_of(value);

		if (!*key || strlen(key) > BOX_LABEL_KEY_MAX || !is_plain(key))
			return bad(err, "labels",
				   "a label's name has 1 to 16 bytes and no control characters");
		if (!text || json_string_length(value) > BOX_LABEL_VALUE_MAX || !is_plain(text))
			return bad(
				err, "labels",
				"a label's value is a string of at most 64 bytes without control "
				"characters");
	}
	return 0;
}

static int take_labels(const json_t *object, struct box_spec *out, struct box_error *err)
{
	const json_t *labels = json_object_get(object, "labels");
	json_t *copy;

	if (labels && box_labels_check(labels, err))
		return -EINVAL;
	copy = labels ? json_deep_copy(labels) : json_object();
	if (!copy)
		return -ENOMEM;
	json_decref(out->labels);
	out->labels = copy;
	return 0;
}

static int take_env(const json_t *object, struct box_spec *out, struct box_error *err)
{
	const json_t *env = json_object_get(object, "env");
	size_t bytes = 0;
	const char *key;
	json_t *value;

	if (env && !json_is_object(env))
		return bad(err, "env", "expected an object of strings");
	json_object_foreach((json_t *)env, key, value)
	{
		if (!*key || strchr(key, '=') || !text_of(value))
			return bad(err, "env",
				   "names have no '=' and are not empty, values are strings, and "
				   "neither has a NUL");
		bytes += strlen(key) + json_string_length(value) + 2;
	}
	if (bytes > ENV_MAX_BYTES)
		return bad(err, "env", "at most 256 KiB together");
	out->env = env ? json_deep_copy(env) : json_object();
	return out->env ? 0 : -ENOMEM;
}

static int take_entrypoint(const json_t *object, struct box_spec *out, struct box_error *err)
{
	const json_t *argv = json_object_get(object, "entrypoint");
	size_t bytes = 0, i;
	json_t *value;

	if (!argv || json_is_null(argv))
		return 0;
	if (!json_is_array(argv) || !json_array_size(argv) ||
	    json_array_size(argv) > ARGS_MAX_COUNT)
		return bad(err, "entrypoint", "expected an array of 1 to 1024 strings");
	json_array_foreach((json_t *)argv, i, value)
	{
		if (!text_of(value) || (!i && !*text_of(value)))
			return bad(err, "entrypoint",
				   "words are strings without a NUL, and the first is not empty");
		bytes += json_string_length(value) + 1;
	}
	if (bytes > ARGS_MAX_BYTES)
		return bad(err, "entrypoint", "at most 256 KiB together");
	out->entrypoint = json_deep_copy(argv);
	return out->entrypoint ? 0 : -ENOMEM;
}

static int take_origin(const json_t *object, const char *default_template, struct box_spec *out,
		       struct box_error *err)
{
	const json_t *template = json_object_get(object, "template");
	const json_t *snapshot = json_object_get(object, "snapshot");
	const char *text;

	if (json_is_null(snapshot))
		snapshot = NULL;
	if (template && snapshot)
		return box_refuse(err, 400, "invalid_request", NULL,
				  "'template' and 'snapshot' can't be combined: a snapshot has its "
				  "template in it");
	if (snapshot) {
		text = text_of(snapshot);
		if (!text || !state_name_ok(text))
			return bad(err, "snapshot", "expected a snapshot's id or name");
		snprintf(out->snapshot, sizeof(out->snapshot), "%s", text);
		return 0;
	}
	text = template ? text_of(template) : default_template;
	if (!text || !*text || !state_name_ok(text))
		return bad(err, "template", STATE_NAME_RULE);
	snprintf(out->template_name, sizeof(out->template_name), "%s", text);
	return 0;
}

static int take_size(const json_t *object, struct box_spec *out, struct box_error *err)
{
	const json_t *name = json_object_get(object, "size");
	bool given = json_object_get(object, "vcpus") || json_object_get(object, "memory_bytes");
	u64 vcpus = 0, scratch = 0;

	if (json_is_null(name))
		name = NULL;
	if (name && given)
		return box_refuse(err, 400, "invalid_request", NULL,
				  "'size' and 'vcpus' or 'memory_bytes' can't be combined");
	if (take_number(object, "vcpus", 1, BOX_VCPUS_MAX, false, &vcpus, err) ||
	    take_number(object, "memory_bytes", BOX_MEMORY_MIN, BOX_MEMORY_MAX, false,
			&out->memory_bytes, err) ||
	    take_number(object, "scratch_bytes", 0, BOX_SCRATCH_MAX, false, &scratch, err))
		return -EINVAL;
	if (out->memory_bytes % MIB || scratch % MIB)
		return bad(err, out->memory_bytes % MIB ? "memory_bytes" : "scratch_bytes",
			   "expected whole MiB");
	out->vcpus = (u32)vcpus;
	out->scratch_bytes = json_object_get(object, "scratch_bytes") ? (s64)scratch : -1;
	if (!name)
		return 0;
	out->size = text_of(name) ? box_size_find(text_of(name)) : NULL;
	if (!out->size)
		return bad(err, "size", "expected one of " SIZE_NAMES);
	out->vcpus = out->size->vcpus;
	out->memory_bytes = out->size->memory_bytes;
	return 0;
}

/** Words between dots, each of which neither begins nor ends with '-'. */
static bool hostname_ok(const char *text)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-";

	for (;;) {
		size_t len = strspn(text, letters);

		if (!len || text[0] == '-' || text[len - 1] == '-' ||
		    (text[len] && text[len] != '.'))
			return false;
		if (!text[len])
			return true;
		text += len + 1;
	}
}

static int take_hostname(const json_t *object, const char *name, struct box_spec *out,
			 struct box_error *err)
{
	const json_t *value = json_object_get(object, "hostname");
	const char *text = value ? text_of(value) : name ? name : "";

	if (!text || strlen(text) >= sizeof(out->hostname) ||
	    ((value || *text) && !hostname_ok(text)))
		return bad(err, "hostname",
			   "expected 1 to 63 letters, digits, '-' and '.', with a letter or digit "
			   "first, last and beside each '.'");
	snprintf(out->hostname, sizeof(out->hostname), "%s", text);
	return 0;
}

static int take_limits(const json_t *object, struct box_spec *out, struct box_error *err)
{
	u64 pids = 0, files = 0;

	if (take_number(object, "inactivity_timeout_ms", 1, BOX_INACTIVITY_MAX_MS, true,
			&out->inactivity_ms, err) ||
	    take_number(object, "hard_timeout_ms", 1, BOX_HARD_MAX_MS, true, &out->hard_ms, err) ||
	    take_number(object, "pids_max", 1, 1u << 22, true, &pids, err) ||
	    take_number(object, "nofile", 1, 1u << 20, true, &files, err) ||
	    take_bool(object, "keep_alive", &out->keep_alive, err) ||
	    take_bool(object, "auto_remove", &out->auto_remove, err))
		return -EINVAL;
	out->pids_max = (u32)pids;
	out->nofile = (u32)files;
	return 0;
}

static int check_known(const json_t *object, const char *const *fields, struct box_error *err)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)object, key, value)
	{
		const char *const *field = fields;

		while (*field && strcmp(*field, key) != 0)
			field++;
		if (!*field)
			return box_refuse(err, 400, "unknown_field",
					  json_pack("{s:s}", "field", key), "unknown field '%.60s'",
					  key);
	}
	return 0;
}

int box_spec_parse(const json_t *object, const char *name, const char *default_template,
		   struct box_spec *out, struct box_error *err)
{
	static const char *const fields[] = {"template",
					     "snapshot",
					     "size",
					     "vcpus",
					     "memory_bytes",
					     "scratch_bytes",
					     "env",
					     "entrypoint",
					     "internet",
					     "labels",
					     "inactivity_timeout_ms",
					     "hard_timeout_ms",
					     "keep_alive",
					     "auto_remove",
					     "pids_max",
					     "nofile",
					     "hostname",
					     "start",
					     "name",
					     NULL};
	bool flag = false;
	int ret;

	*out = (struct box_spec){.scratch_bytes = -1};
	ret = check_known(object, fields, err);
	ret = ret ? ret : take_origin(object, default_template, out, err);
	ret = ret ? ret : take_size(object, out, err);
	ret = ret ? ret : take_bool(object, "internet", &flag, err);
	if (!ret && flag)
		ret = box_refuse(
			err, 400, "unsupported", NULL,
			"'internet': sandboxes have no network yet: leave it out, or false");
	ret = ret ? ret : take_limits(object, out, err);
	ret = ret ? ret : take_hostname(object, name, out, err);
	ret = ret ? ret : take_labels(object, out, err);
	ret = ret ? ret : take_env(object, out, err);
	ret = ret ? ret : take_entrypoint(object, out, err);
	if (ret == -ENOMEM)
		box_refuse(err, 500, "internal", NULL, "out of memory");
	if (ret)
		box_spec_free(out);
	return ret;
}

int box_spec_patch(struct box_spec *spec, const json_t *object, struct box_error *err)
{
	static const char *const fields[] = {"labels", "inactivity_timeout_ms", "hard_timeout_ms",
					     "keep_alive", NULL};
	u64 inactivity_ms = spec->inactivity_ms, hard_ms = spec->hard_ms;
	bool keep_alive = spec->keep_alive;

	if (check_known(object, fields, err) ||
	    take_number(object, "inactivity_timeout_ms", 1, BOX_INACTIVITY_MAX_MS, true,
			&inactivity_ms, err) ||
	    take_number(object, "hard_timeout_ms", 1, BOX_HARD_MAX_MS, true, &hard_ms, err) ||
	    take_bool(object, "keep_alive", &keep_alive, err) ||
	    (json_object_get(object, "labels") && take_labels(object, spec, err)))
		return box_refuse(err, 500, "internal", NULL, "out of memory");
	spec->inactivity_ms = inactivity_ms;
	spec->hard_ms = hard_ms;
	spec->keep_alive = keep_alive;
	return 0;
}
