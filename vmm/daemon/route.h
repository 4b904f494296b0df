/* SPDX-License-Identifier: Apache-2.0 */
/* Targets of requests: which row of a table of routes one means, its parameters and its query. Pure
 * functions over hostile text. */
#ifndef THAW_DAEMON_ROUTE_H
#define THAW_DAEMON_ROUTE_H

#include "vmm/daemon/http.h"
#include "vmm/util/types.h"

#define ROUTE_PARAMS_MAX 8
#define ROUTE_QUERY_MAX	 64
#define ROUTE_TARGET_MAX 8192

struct route_pair {
	const char *name, *value; /* in the target's memory; a parameter's name ends at its "}" */
};

/** struct route_target - a request's target, taken apart. */
struct route_target {
	char *path;  /* as sent, without query */
	char *query; /* as sent, without '?'; NULL: none */
	struct route_pair params[ROUTE_PARAMS_MAX];
	unsigned int nparams;
	struct route_pair queries[ROUTE_QUERY_MAX];
	unsigned int nqueries;
	char *memory; /* all of the above */
	size_t used_bytes, room_bytes;
};

/** route_target_init() - of @raw, "/path?query" or "http://host/path?query". route_target_free() is
 * due after success. Return: 0, -EINVAL (no path in it), -ENAMETOOLONG or -ENOMEM. */
int __must_check route_target_init(struct route_target *target, const char *raw);
void route_target_free(struct route_target *target);

/** route_query_parse() - fills queries; names and values decoded ('+' is a space). Return: 0,
 * -EINVAL (bad encoding, a NUL), -E2BIG (too many). */
int __must_check route_query_parse(struct route_target *target);

/** route_decode() - percent-decode @len bytes of @in to @out, which may be @in, and end it with a
 * NUL. @plus: a '+' is a space. Return: bytes written, or -EINVAL (bad encoding, or a NUL). */
ssize_t route_decode(const char *in, size_t len, char *out, bool plus);

/** route_match() - does the path fit @pattern? Fills params then. Return: 1, 0, or -EINVAL when it
 * fits but a value has a bad encoding, a NUL, or a "/" where none may be. */
int __must_check route_match(struct route_target *target, const char *pattern);

/** route_method() - the bit of enum http_method; HTTP_ANY for one that has none. HEAD is a GET. */
unsigned int route_method(const char *name);

/**
 * route_find() - the first row of @tables (NULL-terminated) that fits.
 * @allowed: all methods of rows that fit the path, when none fits the method as well.
 * Return: 0, -ENOENT, -EPERM (another method), -EINVAL.
 */
int __must_check route_find(const struct http_route *const *tables, struct route_target *target,
			    const char *method, const struct http_route **out,
			    unsigned int *allowed);

#endif
