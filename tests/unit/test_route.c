// SPDX-License-Identifier: Apache-2.0
// thawd's targets: which route one means, what its parts decode to, and what is refused.
#include <errno.h>

#include "test.h"
#include "vmm/daemon/route.h"

static const struct http_route first[] = {
	{HTTP_GET, "/healthz", NULL, 0, NULL},
	{HTTP_GET | HTTP_PUT, "/v1/s/{name}", NULL, 0, NULL},
	{HTTP_POST, "/v1/s/{name}/ports/{port}/wait", NULL, 0, NULL},
	{HTTP_ANY, "/v1/s/{name}/ports/{port}/{rest...}", NULL, 0, NULL},
	{0, NULL, NULL, 0, NULL},
};
static const struct http_route second[] = {
	{HTTP_DELETE, "/v1/s/{name}", NULL, 0, NULL},
	{0, NULL, NULL, 0, NULL},
};
static const struct http_route *const tables[] = {first, second, NULL};

/** Row that @method @raw means: 0-3 of the first table, 10 of the second, or -errno. */
static int find(const char *method, const char *raw, unsigned int *allowed,
		struct route_target *target)
{
	const struct http_route *row;
	int ret = route_target_init(target, raw);

	if (ret)
		return ret;
	ret = route_find(tables, target, method, &row, allowed);
	if (ret)
		return ret;
	if (row >= second && row < second + 2)
		return 10 + (int)(row - second);
	return (int)(row - first);
}

static void finds(const char *method, const char *raw, int expected)
{
	struct route_target target;
	unsigned int allowed;
	int got = find(method, raw, &allowed, &target);

	if (got != expected) {
		fprintf(stderr, "%s %s: %d, expected %d\n", method, raw, got, expected);
		exit(1);
	}
	if (got != -EINVAL || target.memory)
		route_target_free(&target);
}

static void test_find(void)
{
	finds("GET", "/healthz", 0);
	finds("HEAD", "/healthz", 0);
	finds("GET", "/healthz?x", 0);
	finds("GET", "/healthz/", -ENOENT);
	finds("GET", "//healthz", -ENOENT);
	finds("GET", "/healthz%2f", -ENOENT);
	finds("GET", "/", -ENOENT);
	finds("get", "/healthz", -EPERM);
	finds("PUT", "/v1/s/a", 1);
	finds("DELETE", "/v1/s/a", 10);
	finds("PATCH", "/v1/s/a", -EPERM);
	finds("GET", "/v1/s/", -ENOENT);
	finds("GET", "/v1/s/%2f", -EINVAL);
	finds("GET", "/v1/s/%00", -EINVAL);
	finds("GET", "/v1/s/%", -EINVAL);
	finds("GET", "/v1/s/%4", -EINVAL);
	finds("POST", "/v1/s/a/ports/1/wait", 2);
	finds("GET", "/v1/s/a/ports/1/wait", 3);
	finds("BREW", "/v1/s/a/ports/1/", 3);
	finds("GET", "/v1/s/a/ports/1", -ENOENT);
	finds("GET", "/v1/s/../ports/1/x", 3); /* no meaning in ".." */
	finds("GET", "http://host:80/healthz", 0);
	finds("GET", "HTTPS://host/healthz", 0);
	finds("GET", "http://host", -EINVAL);
	finds("GET", "ftp://host/healthz", -EINVAL);
	finds("OPTIONS", "*", -EINVAL);
	finds("GET", "", -EINVAL);
}

static void test_values(void)
{
	struct route_target target;
	unsigned int allowed;

	CHECK_EQ(find("GET", "/v1/s/a%20b+c/ports/80/x/y%2Fz//?q", &allowed, &target), 3);
	CHECK_EQ(target.nparams, 3);
	CHECK_STR(target.params[0].value, "a b+c");
	CHECK_STR(target.params[1].value, "80");
	CHECK_STR(target.params[2].value, "x/y/z//");
	CHECK_STR(target.query, "q");
	route_target_free(&target);
	CHECK_EQ(find("PATCH", "/v1/s/a", &allowed, &target), -EPERM);
	CHECK_EQ(allowed, HTTP_GET | HTTP_PUT | HTTP_DELETE);
	route_target_free(&target);
}

static void test_query(void)
{
	struct route_target target;

	CHECK_EQ(route_target_init(&target, "/?a=1&b&&c=%41+b%3D=&=x&a=2"), 0);
	CHECK_EQ(route_query_parse(&target), 0);
	CHECK_EQ(target.nqueries, 5);
	CHECK_STR(target.queries[0].value, "1");
	CHECK_STR(target.queries[1].name, "b");
	CHECK_STR(target.queries[1].value, "");
	CHECK_STR(target.queries[2].value, "A b==");
	CHECK_STR(target.queries[3].name, "");
	CHECK_STR(target.queries[4].value, "2");
	route_target_free(&target);
	CHECK_EQ(route_target_init(&target, "/?a=%0"), 0);
	CHECK_EQ(route_query_parse(&target), -EINVAL);
	route_target_free(&target);
}

static void test_limits(void)
{
	char raw[ROUTE_TARGET_MAX + 2] = "/?";
	struct route_target target;

	for (size_t i = 2; i < sizeof(raw) - 1; i++)
		raw[i] = i & 1 ? '&' : 'a';
	CHECK_EQ(route_target_init(&target, raw), -ENAMETOOLONG);
	raw[sizeof(raw) - 2] = '\0';
	CHECK_EQ(route_target_init(&target, raw), 0);
	CHECK_EQ(route_query_parse(&target), -E2BIG);
	route_target_free(&target);
	/* The most that memory is needed for: parameters and query as long as can be. */
	memset(raw, 'a', sizeof(raw));
	memcpy(raw, "/v1/s/", 6);
	raw[4000] = '?';
	raw[ROUTE_TARGET_MAX] = '\0';
	CHECK_EQ(route_target_init(&target, raw), 0);
	CHECK_EQ(route_match(&target, "/v1/s/{name}"), 1);
	CHECK_EQ(route_query_parse(&target), 0);
	CHECK_EQ(strlen(target.queries[0].name), ROUTE_TARGET_MAX - 4001);
	route_target_free(&target);
}

TEST_MAIN({"find", test_find}, {"values", test_values}, {"query", test_query},
	  {"limits", test_limits})
