// SPDX-License-Identifier: Apache-2.0
// What commands that ask thawd share: one call each sandbox, times and sizes for people.
#include "vmm/cli/verb.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "vmm/cli/json_out.h"
#include "vmm/cli/sandbox.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

bool verb_is_local_id(const char *text)
{
	const size_t len = strspn(text, "0123456789abcdef");

	return len && !text[len] && len <= SANDBOX_ID_CHARS;
}

/** @client: NULL: there is no thawd. Return: 0 or -errno (logged). */
static int run_one(const struct verb *verb, struct client *client, const char *prefix, void *opts,
		   json_t **object)
{
	char name[CLIENT_NAME_BYTES];
	json_t *found = NULL;
	int ret = -ENOENT;

	if (client)
		ret = client_find(client, prefix, &found);
	if (ret == -ENOENT && verb->local && (!client || verb_is_local_id(prefix)))
		return verb->local(prefix, opts, object);
	if (ret == -ENOENT)
		log_err("no sandbox '%.60s': 'thaw ps -a' lists them", prefix);
	if (ret)
		return ret;
	snprintf(name, sizeof(name), "%s", client_string(found, "name"));
	json_decref(found);
	return verb->run(client, name, opts, object);
}

static const char *name_of(const json_t *object, const char *otherwise)
{
	const char *name = client_string(object, "name");

	if (!name[0])
		name = client_string(object, "id");
	return name[0] ? name : otherwise;
}

int verb_each(const struct verb *verb, const struct optparse_result *result, void *opts, bool json)
{
	json_t *list = json ? json_array() : NULL, *object;
	struct client client;
	int ret, failed = 0;

	ret = verb->local ? client_open(&client) : client_want(&client, verb->name);
	if (ret && (ret != -ENOENT || !verb->local)) {
		json_decref(list);
		return CLI_FAILED;
	}
	for (int i = 0; i < result->npositional; i++) {
		int one;

		object = NULL;
		one = run_one(verb, ret ? NULL : &client, result->positional[i], opts, &object);
		failed |= one != 0;
		if (one == 0 && !json)
			printf("%s\n", name_of(object, result->positional[i]));
		else if (one == 0 && object)
			failed |= json_array_append(list, object) != 0;
		json_decref(object);
	}
	if (json && result->npositional > 1)
		failed |= json_print(list) != 0;
	else if (json && json_array_size(list))
		failed |= json_print(json_array_get(list, 0)) != 0;
	json_decref(list);
	if (!ret)
		client_close(&client);
	return failed || cli_flush() ? CLI_FAILED : CLI_OK;
}

int verb_post(struct client *client, const char *box, const char *verb, json_t *steal,
	      json_t **object)
{
	struct client_target target;

	client_target_box(&target, box, verb);
	return client_call(client, "POST", &target, steal, object);
}

s64 verb_time(const char *time)
{
	struct tm tm = {0};

	if (!strptime(time, "%Y-%m-%dT%H:%M:%S", &tm))
		return -1;
	return (s64)timegm(&tm);
}

const char *verb_age(const char *text, char *out, size_t out_bytes)
{
	static const struct {
		const char *name;
		s64 seconds;
	} units[] = {{"day", 86400}, {"hour", 3600}, {"minute", 60}, {"second", 1}};
	const s64 then = verb_time(text), age = MAX((s64)time(NULL) - then, (s64)0);

	snprintf(out, out_bytes, "%s", then < 0 ? "-" : "now");
	for (size_t i = 0; then >= 0 && i < ARRAY_SIZE(units); i++) {
		const s64 count = age / units[i].seconds;

		if (!count)
			continue;
		snprintf(out, out_bytes, "%lld %s%s", (long long)count, units[i].name,
			 count == 1 ? "" : "s");
		break;
	}
	return out;
}

const char *verb_bytes(u64 bytes, char *out, size_t out_bytes)
{
	static const char units[] = "BKMGTPE";
	double value = (double)bytes;
	size_t unit = 0;

	while (value >= 1024 && unit + 2 < sizeof(units)) {
		value /= 1024;
		unit++;
	}
	snprintf(out, out_bytes, unit && value < 10 ? "%.1f%c" : "%.0f%c", value, units[unit]);
	return out;
}
