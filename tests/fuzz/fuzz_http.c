// SPDX-License-Identifier: Apache-2.0
// Fuzz target: what thawd takes from strangers as text: targets, JSON bodies, hosts, cookies, and
// its settings. The first byte says which. Oracles: sanitizers, and what must hold for any input.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/conf.h"
#include "vmm/daemon/http_internal.h"
#include "vmm/daemon/proxy.h"
#include "vmm/util/log.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes);

static const struct http_route routes[] = {
	{HTTP_GET, "/healthz", NULL, 0, NULL},
	{HTTP_GET | HTTP_PUT, "/v1/s/{name}", NULL, 0, NULL},
	{HTTP_POST, "/v1/s/{name}/e/{id}/wait", NULL, 0, NULL},
	{HTTP_ANY, "/v1/s/{name}/ports/{port}/{rest...}", NULL, 0, NULL},
	{0, NULL, NULL, 0, NULL},
};
static const struct http_route *const tables[] = {routes, NULL};

static void fuzz_target(const char *text)
{
	const struct http_route *row = NULL;
	struct route_target target;
	unsigned int allowed;
	int ret;

	ret = route_target_init(&target, text);
	if (ret) {
		BUG_ON(target.memory);
		return;
	}
	ret = route_find(tables, &target, "GET", &row, &allowed);
	BUG_ON(!ret != !!row);
	for (unsigned int i = 0; !ret && i < target.nparams; i++) {
		bool last = row == &routes[3] && i == 2;

		BUG_ON(!last && (!*target.params[i].value || strchr(target.params[i].value, '/')));
	}
	if (!route_query_parse(&target)) {
		for (unsigned int i = 0; i < target.nqueries; i++)
			BUG_ON(strlen(target.queries[i].name) + strlen(target.queries[i].value) >
			       strlen(target.query));
	}
	BUG_ON(target.used_bytes > target.room_bytes);
	route_target_free(&target);
}

static void fuzz_json(const char *text, size_t len_bytes)
{
	char why[256] = "", *again;
	json_t *json = http_json_parse(text, len_bytes, why, sizeof(why));

	BUG_ON(!json && !*why);
	if (!json)
		return;
	BUG_ON(!json_is_object(json));
	again = json_dumps(json, JSON_COMPACT);
	if (!again)
		abort();
	free(again);
	json_decref(json);
}

static void fuzz_conf(const char *text, size_t len_bytes)
{
	char why[512] = "";
	struct conf conf;

	if (conf_init(&conf))
		return;
	if (conf_parse(&conf, text, len_bytes, why, sizeof(why)))
		BUG_ON(!*why);
	else
		(void)!conf_check(&conf, why, sizeof(why));
	conf_free(&conf);
}

static void fuzz_words(const char *text)
{
	struct preview_host host;
	const char *at;
	char *out = malloc(2 * strlen(text) + 1);
	ssize_t len;

	if (!out)
		return;
	if (!preview_host_parse(text, "p.example.org", &host))
		BUG_ON(!host.port || host.port > 65535 || !box_name_ok(host.name));
	BUG_ON(proxy_strip_cookie(text, "t", out) != strlen(out));
	BUG_ON(proxy_cookie(out, "t", &at) >= 0);
	len = proxy_cookie(text, "t", &at);
	BUG_ON(len >= 0 && (at < text || at + len > text + strlen(text)));
	proxy_strip_query(text, "t", out);
	BUG_ON(strlen(out) > strlen(text));
	(void)!proxy_header_passes("X-Header", text);
	free(out);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes)
{
	char *text;

	if (!len_bytes || len_bytes > 65536)
		return 0;
	text = malloc(len_bytes);
	if (!text)
		return 0;
	memcpy(text, data + 1, len_bytes - 1);
	text[len_bytes - 1] = '\0';
	switch (data[0] % 4) {
	case 0:
		fuzz_target(text);
		break;
	case 1:
		fuzz_json(text, len_bytes - 1);
		break;
	case 2:
		fuzz_conf(text, len_bytes - 1);
		break;
	default:
		fuzz_words(text);
		break;
	}
	free(text);
	return 0;
}
