// SPDX-License-Identifier: Apache-2.0
// What to run, as a client says it.
#include "vmm/daemon/exec_spec.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest/shim/parse.h"
#include "vmm/daemon/exec_kept.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/util/util.h"

static const char *const post_fields[] = {
	"argv",	      "env",	    "cwd",	"user",	  "stdin",    "stdin_encoding",
	"timeout_ms", "pty",	    "combined", "detach", "encoding", "max_output_bytes",
	"drain_ms",   "stdin_open", NULL};
static const char *const socket_fields[] = {"argv", "env",	"cwd",	    "user", "timeout_ms",
					    "pty",  "combined", "drain_ms", NULL};
static const char *const entrypoint_fields[] = {"argv", "env", NULL};

static int __printf(3, 4)
	fail(struct exec_spec_error *error, const char *code, const char *fmt, ...)
{
	va_list args;

	error->code = code;
	error->status = !strcmp(code, "too_large") ? 413 : !strcmp(code, "internal") ? 500 : 400;
	va_start(args, fmt);
	vsnprintf(error->text, sizeof(error->text), fmt, args);
	va_end(args);
	return -EINVAL;
}

static int no_memory(struct exec_spec_error *error)
{
	return fail(error, "internal", "out of memory");
}

int exec_spec_new_id(struct exec_spec *spec)
{
	u32 bits = (spec->entrypoint ? KEPT_ID_ENTRYPOINT : 0) |
		   (spec->detached ? KEPT_ID_DETACHED : 0);

	return kept_id_new(bits, spec->raw_id, spec->id);
}

void exec_spec_destroy(struct exec_spec *spec)
{
	free(spec->payload);
	free(spec->in);
	json_decref(spec->argv);
	spec->payload = spec->in = NULL;
	spec->argv = NULL;
}

/* --- fields --- */

static int check_fields(const json_t *json, const char *const *known, struct exec_spec_error *error)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)(uintptr_t)json, key, value)
	{
		const char *const *field = known;

		while (*field && strcmp(*field, key))
			field++;
		if (*field)
			continue;
		snprintf(error->field, sizeof(error->field), "%s", key);
		return fail(error, "unknown_field", "field '%s' is not known here", error->field);
	}
	return 0;
}

static int take_number(const json_t *json, const char *name, u64 max, u64 *out,
		       struct exec_spec_error *error)
{
	const json_t *value = json_object_get(json, name);

	if (!value || json_is_null(value))
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    (u64)json_integer_value(value) > max)
		return fail(error, "invalid_request", "'%s' must be a number from 0 to %llu", name,
			    (unsigned long long)max);
	*out = (u64)json_integer_value(value);
	return 0;
}

static int take_bool(const json_t *json, const char *name, bool *out, struct exec_spec_error *error)
{
	const json_t *value = json_object_get(json, name);

	if (value && !json_is_boolean(value))
		return fail(error, "invalid_request", "'%s' must be true or false", name);
	*out = json_is_true(value);
	return 0;
}

static int take_size(const json_t *pty, const char *name, u16 *out, struct exec_spec_error *error)
{
	u64 value = *out;

	if (take_number(pty, name, UINT16_MAX, &value, error) || !value)
		return fail(error, "invalid_request", "'pty.%s' must be a number from 1 to 65535",
			    name);
	*out = (u16)value;
	return 0;
}

static int take_pty(struct exec_spec *spec, const json_t *json, struct shim_size *size,
		    struct exec_spec_error *error)
{
	static const char *const fields[] = {"cols", "rows", NULL};
	const json_t *pty = json_object_get(json, "pty");

	if (!pty || json_is_false(pty) || json_is_null(pty))
		return 0;
	if (!json_is_true(pty) && !json_is_object(pty))
		return fail(error, "invalid_request", "'pty' must be true or {\"cols\",\"rows\"}");
	*size = (struct shim_size){.cols = EXEC_PTY_COLS, .rows = EXEC_PTY_ROWS};
	spec->pty = true;
	if (!json_is_object(pty))
		return 0;
	if (check_fields(pty, fields, error))
		return -EINVAL;
	return take_size(pty, "cols", &size->cols, error)
		       ?: take_size(pty, "rows", &size->rows, error);
}

static int take_user(const json_t *json, struct shim_exec *head, struct exec_spec_error *error)
{
	const json_t *value = json_object_get(json, "user");
	const char *text = json_string_value(value);
	const char *colon = text ? strchr(text, ':') : NULL;
	u64 uid, gid;
	char number[16];

	if (!value || json_is_null(value))
		return 0;
	if (!colon || colon - text >= (ptrdiff_t)sizeof(number))
		return fail(error, "invalid_request",
			    "'user' must be \"UID:GID\", two numbers: a uid alone would keep "
			    "group 0");
	snprintf(number, sizeof(number), "%.*s", (int)(colon - text), text);
	if (parse_u64(number, 0, UINT32_MAX - 1, &uid) ||
	    parse_u64(colon + 1, 0, UINT32_MAX - 1, &gid))
		return fail(error, "invalid_request",
			    "'user' must be \"UID:GID\", numbers below 4294967295");
	head->uid = (u32)uid;
	head->gid = (u32)gid;
	return 0;
}

static int take_stdin(struct exec_spec *spec, const json_t *json, struct exec_spec_error *error)
{
	const json_t *value = json_object_get(json, "stdin");
	const char *encoding = json_string_value(json_object_get(json, "stdin_encoding"));
	size_t len = json_string_length(value);

	if (json_object_get(json, "stdin_encoding") &&
	    (!encoding || (strcmp(encoding, "utf-8") && strcmp(encoding, "base64"))))
		return fail(error, "invalid_request",
			    "'stdin_encoding' must be \"utf-8\" or \"base64\"");
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_string(value))
		return fail(error, "invalid_request", "'stdin' must be a string");
	if (len > EXEC_STDIN_JSON_MAX)
		return fail(error, "too_large",
			    "'stdin' is longer than 4 MiB: send it by PUT .../execs/ID/stdin or a "
			    "duplex form");
	spec->with_stdin = true;
	if (encoding && !strcmp(encoding, "base64")) {
		int ret = exec_base64_decode(json_string_value(value), len, &spec->in,
					     &spec->in_bytes);

		if (ret == -ENOMEM)
			return no_memory(error);
		return ret ? fail(error, "invalid_request", "'stdin' is not base64") : 0;
	}
	spec->in = malloc(len + 1);
	if (!spec->in)
		return no_memory(error);
	memcpy(spec->in, json_string_value(value), len);
	spec->in_bytes = len;
	return 0;
}

static int take_post(struct exec_spec *spec, const json_t *json, struct exec_spec_error *error)
{
	const char *encoding = json_string_value(json_object_get(json, "encoding"));

	if (json_object_get(json, "encoding") &&
	    (!encoding || (strcmp(encoding, "utf-8") && strcmp(encoding, "base64"))))
		return fail(error, "invalid_request", "'encoding' must be \"utf-8\" or \"base64\"");
	spec->utf8 = !encoding || !strcmp(encoding, "utf-8");
	spec->output_max_bytes = EXEC_OUTPUT_DEFAULT;
	if (take_number(json, "max_output_bytes", EXEC_OUTPUT_MAX, &spec->output_max_bytes,
			error) ||
	    take_bool(json, "detach", &spec->detached, error) ||
	    take_bool(json, "stdin_open", &spec->stdin_open, error))
		return -EINVAL;
	if (take_stdin(spec, json, error))
		return -EINVAL;
	if (spec->stdin_open)
		spec->with_stdin = true;
	if (spec->detached && spec->in_bytes > KEPT_STDIN_MAX)
		return fail(error, "too_large",
			    "'stdin' of a detached exec is at most 256 KiB: send more by PUT "
			    ".../execs/ID/stdin, with \"stdin_open\": true");
	return 0;
}

/* --- the payload --- */

struct text {
	char *buf;
	size_t len, max;
};

static bool text_add(struct text *t, const char *bytes, size_t len)
{
	char *more;

	if (!len)
		return true;
	if (!t->buf || t->len + len > t->max) {
		t->max = MAX(t->max * 2, t->len + len + 256);
		more = realloc(t->buf, t->max);
		if (!more)
			return false;
		t->buf = more;
	}
	memcpy(t->buf + t->len, bytes, len);
	t->len += len;
	return true;
}

/* A JSON string with its NUL, and no other one. */
static bool text_add_json(struct text *t, const json_t *value)
{
	return text_add(t, json_string_value(value), json_string_length(value) + 1);
}

static bool string_ok(const json_t *value)
{
	return json_is_string(value) &&
	       strlen(json_string_value(value)) == json_string_length(value);
}

static int add_argv(struct exec_spec *spec, const json_t *json, struct text *t,
		    struct shim_exec *head, struct exec_spec_error *error)
{
	json_t *argv = json_object_get(json, "argv"), *item;
	size_t i;

	if (!json_is_array(argv) || !json_array_size(argv))
		return fail(error, "invalid_request",
			    "'argv' must be an array of at least one string; there is no shell, "
			    "unless it is [\"sh\", \"-c\", \"...\"]");
	json_array_foreach(argv, i, item)
	{
		if (!string_ok(item) || (!i && !json_string_length(item)))
			return fail(error, "invalid_request",
				    "'argv[%zu]' must be a string without NUL%s", i,
				    i ? "" : ", and not empty");
		if (!text_add_json(t, item))
			return no_memory(error);
	}
	spec->argv = json_incref(argv);
	head->argc = (u32)MIN(json_array_size(argv), (size_t)UINT32_MAX);
	return 0;
}

static int add_env(const json_t *json, struct text *t, struct shim_exec *head,
		   struct exec_spec_error *error)
{
	json_t *env = json_object_get(json, "env"), *value;
	const char *name;

	if (!env || json_is_null(env))
		return 0;
	if (!json_is_object(env))
		return fail(error, "invalid_request", "'env' must be an object of strings");
	json_object_foreach(env, name, value)
	{
		if (!*name || strchr(name, '='))
			return fail(error, "invalid_request",
				    "'env': a name must not be empty or have a '='");
		if (!string_ok(value))
			return fail(error, "invalid_request",
				    "'env.%.60s' must be a string without NUL", name);
		if (!text_add(t, name, strlen(name)) || !text_add(t, "=", 1) ||
		    !text_add_json(t, value))
			return no_memory(error);
		head->envc++;
	}
	return 0;
}

static int add_cwd(const json_t *json, struct text *t, struct shim_exec *head,
		   struct exec_spec_error *error)
{
	const json_t *cwd = json_object_get(json, "cwd");

	if (!cwd || json_is_null(cwd))
		return 0;
	if (!string_ok(cwd) || !json_string_length(cwd))
		return fail(error, "invalid_request", "'cwd' must be a path");
	head->has_cwd = 1;
	return text_add_json(t, cwd) ? 0 : no_memory(error);
}

static int finish(struct exec_spec *spec, struct shim_exec *head, struct shim_exec_ext *ext,
		  const void *strings, size_t strings_bytes, const struct exec_spec_limits *limits,
		  struct exec_spec_error *error)
{
	size_t len = sizeof(*head) + sizeof(*ext) + strings_bytes;

	if (len > SHIM_EXEC_MAX_BYTES || (u64)head->argc + head->envc > SHIM_ARGS_MAX)
		return fail(error, "too_large",
			    "argv, env and cwd are more than 2 MiB or 65536 strings");
	/* A terminal's stdin is the terminal. */
	if (spec->pty)
		spec->with_stdin = true;
	head->flags = SHIM_EXEC_EXT | (spec->with_stdin ? SHIM_EXEC_STDIN : 0);
	ext->flags = SHIM_EXT_KEEP | (spec->pty ? SHIM_EXT_PTY : 0) |
		     (spec->combined && !spec->pty ? SHIM_EXT_COMBINED : 0);
	ext->timeout_ms = spec->timeout_ms;
	ext->pids_max = limits->pids_max;
	ext->nofile = limits->nofile;
	memcpy(ext->id, spec->raw_id, sizeof(ext->id));
	spec->payload = malloc(len);
	if (!spec->payload)
		return no_memory(error);
	memcpy(spec->payload, head, sizeof(*head));
	memcpy(spec->payload + sizeof(*head), ext, sizeof(*ext));
	if (strings_bytes)
		memcpy(spec->payload + sizeof(*head) + sizeof(*ext), strings, strings_bytes);
	spec->payload_bytes = len;
	return 0;
}

int exec_spec_json(struct exec_spec *spec, const json_t *json, enum exec_spec_form form,
		   const struct exec_spec_limits *limits, struct exec_spec_error *error)
{
	const char *const *fields = form == EXEC_FORM_POST     ? post_fields
				    : form == EXEC_FORM_SOCKET ? socket_fields
							       : entrypoint_fields;
	struct shim_exec_ext ext = {0};
	struct shim_exec head = {0};
	u64 timeout_ms = 0, drain_ms = 0;
	struct text text = {0};
	int ret = -EINVAL;

	*spec = (struct exec_spec){.with_stdin = form == EXEC_FORM_SOCKET};
	spec->entrypoint = spec->detached = form == EXEC_FORM_ENTRYPOINT;
	if (!json_is_object(json))
		return fail(error, "invalid_request", "the request must be a JSON object");
	if (check_fields(json, fields, error) || add_argv(spec, json, &text, &head, error) ||
	    add_env(json, &text, &head, error) || add_cwd(json, &text, &head, error) ||
	    take_user(json, &head, error) ||
	    take_number(json, "timeout_ms", UINT32_MAX, &timeout_ms, error) ||
	    take_number(json, "drain_ms", PARSE_DRAIN_MAX_MS, &drain_ms, error) ||
	    take_bool(json, "combined", &spec->combined, error) ||
	    take_pty(spec, json, &ext.size, error) ||
	    (form == EXEC_FORM_POST && take_post(spec, json, error)))
		goto out;
	spec->timeout_ms = (u32)timeout_ms;
	head.drain_ms = (u32)drain_ms;
	if (exec_spec_new_id(spec)) {
		ret = fail(error, "internal", "no random bytes");
		goto out;
	}
	ret = finish(spec, &head, &ext, text.buf, text.len, limits, error);
out:
	free(text.buf);
	return ret;
}

/* --- from a frame --- */

static json_t *argv_json(const struct parse_exec *parsed)
{
	json_t *argv = json_array();

	for (u32 i = 0; i < parsed->argc; i++) {
		json_t *word = json_string(parsed->argv[i]);

		/* Not UTF-8: what it looks like is all that this is for. */
		json_array_append_new(argv, word ? word : json_string("?"));
	}
	return argv;
}

int exec_spec_frame(struct exec_spec *spec, u8 *payload, size_t len_bytes,
		    const struct exec_spec_limits *limits, struct exec_spec_error *error)
{
	s64 nslots = parse_exec_slots(payload, len_bytes);
	struct shim_exec_ext ext = {0}, wanted = {0};
	size_t at = sizeof(struct shim_exec);
	struct parse_exec parsed;
	struct shim_exec head;
	char **slots;
	int ret;

	if (nslots < 0)
		return fail(error, "invalid_request", "malformed SHIM_EXEC frame");
	slots = calloc((size_t)nslots, sizeof(*slots));
	if (!slots)
		return no_memory(error);
	ret = parse_exec(payload, len_bytes, slots, &parsed);
	if (!ret)
		spec->argv = argv_json(&parsed);
	free(slots);
	if (ret || !spec->argv)
		return fail(error, "invalid_request", "malformed SHIM_EXEC frame");
	memcpy(&head, payload, sizeof(head));
	if (head.flags & SHIM_EXEC_EXT) {
		memcpy(&wanted, payload + at, sizeof(wanted));
		at += sizeof(wanted);
	}
	if (head.flags & SHIM_EXEC_DETACH || wanted.flags & SHIM_EXT_FILES)
		return fail(error, "invalid_request",
			    "a SHIM_EXEC frame over HTTP can't be detached or for thaw-files: use "
			    "POST with \"detach\", or .../files");
	spec->with_stdin = head.flags & SHIM_EXEC_STDIN;
	spec->stdin_open = spec->with_stdin;
	spec->pty = wanted.flags & SHIM_EXT_PTY;
	spec->combined = wanted.flags & SHIM_EXT_COMBINED;
	spec->timeout_ms = wanted.timeout_ms;
	if (spec->pty)
		ext.size = wanted.size;
	return finish(spec, &head, &ext, payload + at, len_bytes - at, limits, error);
}
