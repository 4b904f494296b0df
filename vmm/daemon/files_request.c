// SPDX-License-Identifier: Apache-2.0
// Requests about files, taken apart: paths, users, modes.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/exec_text.h"
#include "vmm/daemon/files.h"
#include "vmm/util/util.h"

static int __printf(2, 3) refuse(struct http_req *http, const char *fmt, ...)
{
	char text[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	http_reply_error(http, 400, "invalid_request", NULL, "%s", text);
	return -EINVAL;
}

/* "uid:gid"; ~0 is what the kernel takes for "no change". */
static int user_of(struct http_req *http, const char *text, u32 *uid, u32 *gid)
{
	char first[16];
	const char *colon = text ? strchr(text, ':') : NULL;
	size_t n = colon ? (size_t)(colon - text) : 0;
	u64 u, g;

	*uid = 0;
	*gid = 0;
	if (!text)
		return 0;
	if (!n || n >= sizeof(first))
		return refuse(http, "user must be \"UID:GID\", two numbers");
	memcpy(first, text, n);
	first[n] = '\0';
	if (parse_u64(first, 0, UINT32_MAX - 1, &u) || parse_u64(colon + 1, 0, UINT32_MAX - 1, &g))
		return refuse(http, "user must be \"UID:GID\", two numbers");
	*uid = (u32)u;
	*gid = (u32)g;
	return 0;
}

/* @given, or below @cwd. NULL: no memory. */
static char *absolute(const char *given, const char *cwd)
{
	char *out = NULL;

	if (given[0] == '/')
		return strdup(given);
	if (asprintf(&out, "%s%s%s", cwd ? cwd : "", cwd && !strcmp(cwd, "/") ? "" : "/", given) <
	    0)
		return NULL;
	return out;
}

/* Takes @given, which may be NULL for want of memory. */
static int take_path(struct files_request *req, char *given, const char *cwd, char **out_given,
		     char **out_path)
{
	char *path;

	*out_given = given;
	if (given && !*given)
		return refuse(req->http, "the path is empty");
	if (cwd && cwd[0] != '/')
		return refuse(req->http, "cwd must be absolute: it begins with a slash");
	path = given ? absolute(given, cwd) : NULL;
	if (!path) {
		http_reply_error(req->http, 500, "internal", NULL, "out of memory");
		return -ENOMEM;
	}
	*out_path = path;
	if (strlen(path) > FILES_PATH_MAX_BYTES) {
		files_fail_local(req, ENAMETOOLONG, strerror(ENAMETOOLONG));
		return -ENAMETOOLONG;
	}
	return 0;
}

static void init(struct files_request *out, struct thawd *thawd, struct http_req *http,
		 const char *operation)
{
	*out = (struct files_request){.thawd = thawd, .http = http, .operation = operation};
}

int files_request_query(struct thawd *thawd, struct http_req *http, const char *operation,
			struct files_request *out)
{
	const char *path = http_query(http, "path");

	init(out, thawd, http, operation);
	if (user_of(http, http_query(http, "user"), &out->uid, &out->gid))
		return -EINVAL;
	if (!path)
		return refuse(http, "the query has no path=");
	return take_path(out, strdup(path), http_query(http, "cwd"), &out->given, &out->path);
}

/* NULL: not there. *@bad: it is no string. */
static const char *string_field(const json_t *body, const char *field, bool *bad)
{
	const json_t *value = json_object_get(body, field);

	*bad = value && !json_is_string(value);
	return json_string_value(value);
}

int files_request_body(struct thawd *thawd, struct http_req *http, const char *operation,
		       const char *const *fields, struct files_request *out)
{
	const char *user, *cwd;
	bool bad_user, bad_cwd;

	init(out, thawd, http, operation);
	out->body = http_body_json(http, 0);
	if (!out->body)
		return -EINVAL;
	if (http_json_known(http, out->body, fields))
		return -EINVAL;
	user = string_field(out->body, "user", &bad_user);
	cwd = string_field(out->body, "cwd", &bad_cwd);
	if (bad_user || bad_cwd)
		return refuse(http, "%s must be a string", bad_user ? "user" : "cwd");
	if (cwd && cwd[0] != '/')
		return refuse(http, "cwd must be absolute: it begins with a slash");
	return user_of(http, user, &out->uid, &out->gid);
}

/* Base64 of bytes without a NUL. Return: the caller's string, or NULL. */
static char *decode(const char *text)
{
	size_t len_bytes;
	char *out;
	u8 *raw;

	if (exec_base64_decode(text, strlen(text), &raw, &len_bytes))
		return NULL;
	out = memchr(raw, 0, len_bytes) ? NULL : strndup((const char *)raw, len_bytes);
	free(raw);
	return out;
}

int files_request_path(struct files_request *req, const char *field, char **given, char **path)
{
	char encoded[32], *bytes;
	const char *text, *b64, *cwd;
	bool bad, bad_b64, ignored;

	snprintf(encoded, sizeof(encoded), "%s_b64", field);
	text = string_field(req->body, field, &bad);
	b64 = string_field(req->body, encoded, &bad_b64);
	cwd = string_field(req->body, "cwd", &ignored);
	if (bad || bad_b64 || !text == !b64)
		return refuse(req->http, "%s must be a string, or %s its bytes in base64", field,
			      encoded);
	if (b64) {
		bytes = decode(b64);
		if (!bytes)
			return refuse(req->http, "%s is no base64 of a path", encoded);
	} else if (strlen(text) != json_string_length(json_object_get(req->body, field))) {
		return refuse(req->http, "%s has a NUL character", field);
	} else {
		bytes = strdup(text);
	}
	return take_path(req, bytes, cwd, given, path);
}

void files_request_free(struct files_request *req)
{
	json_decref(req->body);
	free(req->given);
	free(req->path);
	free(req->given_to);
	free(req->path_to);
}

int files_mode_text(struct http_req *http, const char *text, char out[8])
{
	size_t n = strlen(text);
	unsigned long value;

	if (!n || n > 5 || strspn(text, "01234567") != n)
		return refuse(http, "mode must be octal digits, such as 0644");
	value = strtoul(text, NULL, 8);
	if (value > 07777)
		return refuse(http, "mode %s has bits above 7777", text);
	snprintf(out, 8, "%lo", value);
	return 0;
}

int files_mode_json(struct http_req *http, const json_t *value, char out[8])
{
	if (json_is_string(value))
		return files_mode_text(http, json_string_value(value), out);
	if (!json_is_integer(value) || json_integer_value(value) < 0 ||
	    json_integer_value(value) > 07777)
		return refuse(http, "mode must be a number up to 4095 (07777) or octal digits");
	snprintf(out, 8, "%o", (unsigned int)json_integer_value(value));
	return 0;
}
