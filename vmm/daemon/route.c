// SPDX-License-Identifier: Apache-2.0
// Targets of requests. A path is split at its slashes first and decoded afterwards, so that an
// encoded slash never parts segments; dot segments mean nothing here and are plain names.
#include "vmm/daemon/route.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

ssize_t route_decode(const char *in, size_t len, char *out, bool plus)
{
	size_t used = 0;

	for (size_t i = 0; i < len; i++) {
		char c = in[i];

		if (c == '+' && plus)
			c = ' ';
		if (in[i] == '%') {
			int high, low;

			if (len - i < 3)
				return -EINVAL;
			high = hex_value(in[i + 1]);
			low = hex_value(in[i + 2]);
			if (high < 0 || low < 0)
				return -EINVAL;
			c = (char)(high * 16 + low);
			i += 2;
		}
		if (!c)
			return -EINVAL;
		out[used++] = c;
	}
	out[used] = '\0';
	return (ssize_t)used;
}

/** path_of() - behind the authority of an absolute target; NULL: it has no path. */
static const char *path_of(const char *raw)
{
	if (*raw == '/')
		return raw;
	if (strncasecmp(raw, "http://", 7) && strncasecmp(raw, "https://", 8))
		return NULL;
	return strchr(strchr(raw, ':') + 3, '/');
}

int route_target_init(struct route_target *target, const char *raw)
{
	size_t len = strnlen(raw, ROUTE_TARGET_MAX + 1);
	const char *path;
	char *question;

	memset(target, 0, sizeof(*target));
	if (len > ROUTE_TARGET_MAX)
		return -ENAMETOOLONG;
	path = path_of(raw);
	if (!path)
		return -EINVAL;
	len = strlen(path);
	/* The text itself, and once more, decoded, its parameters and its query, a NUL behind
	 * each. */
	target->room_bytes = 3 * (len + 1) + ROUTE_PARAMS_MAX + 2 * ROUTE_QUERY_MAX;
	target->memory = malloc(target->room_bytes);
	if (!target->memory)
		return -ENOMEM;
	target->path = target->memory;
	memcpy(target->path, path, len + 1);
	target->used_bytes = len + 1;
	question = strchr(target->path, '?');
	if (question) {
		*question = '\0';
		target->query = question + 1;
	}
	return 0;
}

void route_target_free(struct route_target *target)
{
	free(target->memory);
	memset(target, 0, sizeof(*target));
}

/** put() - @len bytes of @in, decoded, into the target's memory. Return: the text or NULL. */
static const char *put(struct route_target *target, const char *in, size_t len, bool plus)
{
	char *out = target->memory + target->used_bytes;
	ssize_t used;

	if (len + 1 > target->room_bytes - target->used_bytes)
		return NULL;
	used = route_decode(in, len, out, plus);
	if (used < 0)
		return NULL;
	target->used_bytes += (size_t)used + 1;
	return out;
}

int route_query_parse(struct route_target *target)
{
	const char *text = target->query;

	target->nqueries = 0;
	while (text && *text) {
		size_t len = strcspn(text, "&"), name_len = strcspn(text, "=&");
		size_t value_at = name_len < len ? name_len + 1 : len;
		struct route_pair *pair;

		if (len) {
			if (target->nqueries == ROUTE_QUERY_MAX)
				return -E2BIG;
			pair = &target->queries[target->nqueries];
			pair->name = put(target, text, name_len, true);
			pair->value = put(target, text + value_at, len - value_at, true);
			if (!pair->name || !pair->value)
				return -EINVAL;
			target->nqueries++;
		}
		text += len;
		text += *text == '&';
	}
	return 0;
}

/** take_param() - a value for the "{name}" at @pattern. Return: 1 or -EINVAL. */
static int take_param(struct route_target *target, const char *pattern, const char *value,
		      size_t len, bool rest)
{
	struct route_pair *pair;

	if (target->nparams == ROUTE_PARAMS_MAX)
		return -EINVAL;
	pair = &target->params[target->nparams];
	pair->name = pattern; /* compared by its length in http_param() */
	pair->value = put(target, value, len, false);
	if (!pair->value || (!rest && strchr(pair->value, '/')))
		return -EINVAL;
	target->nparams++;
	return 1;
}

int route_match(struct route_target *target, const char *pattern)
{
	const char *path = target->path;
	size_t used_bytes = target->used_bytes;
	int ret = 1;

	target->nparams = 0;
	while (*pattern == '/' && *path == '/') {
		size_t plen = strcspn(++pattern, "/"), len = strcspn(++path, "/");
		bool rest = plen > 4 && !strncmp(pattern + plen - 4, "...}", 4);

		if (*pattern == '{') {
			int taken;

			if (rest)
				len = strlen(path);
			else if (!len)
				goto no;
			taken = take_param(target, pattern + 1, path, len, rest);
			if (taken < 0)
				ret = taken;
		} else if (plen != len || strncmp(pattern, path, len)) {
			goto no;
		}
		pattern += plen;
		path += len;
	}
	if (!*pattern && !*path)
		return ret;
no:
	target->nparams = 0;
	target->used_bytes = used_bytes;
	return 0;
}

unsigned int route_method(const char *name)
{
	static const struct {
		const char *name;
		unsigned int bit;
	} methods[] = {{"GET", HTTP_GET},   {"HEAD", HTTP_GET},	     {"PUT", HTTP_PUT},
		       {"POST", HTTP_POST}, {"DELETE", HTTP_DELETE}, {"PATCH", HTTP_PATCH}};

	for (size_t i = 0; i < ARRAY_SIZE(methods); i++) {
		if (!strcmp(methods[i].name, name))
			return methods[i].bit;
	}
	return HTTP_ANY;
}

int route_find(const struct http_route *const *tables, struct route_target *target,
	       const char *method, const struct http_route **out, unsigned int *allowed)
{
	unsigned int bit = route_method(method);
	size_t used_bytes = target->used_bytes;
	int bad = 0;

	*out = NULL;
	*allowed = 0;
	for (; *tables; tables++) {
		for (const struct http_route *row = *tables; row->pattern; row++) {
			int ret;

			target->used_bytes = used_bytes;
			ret = route_match(target, row->pattern);
			if (!ret)
				continue;
			*allowed |= row->methods;
			if (!(row->methods & (bit | HTTP_ANY)))
				continue;
			if (ret < 0) {
				bad = ret;
				continue;
			}
			*out = row;
			return 0;
		}
	}
	target->nparams = 0;
	return bad ? bad : *allowed ? -EPERM : -ENOENT;
}
