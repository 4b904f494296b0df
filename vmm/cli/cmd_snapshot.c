// SPDX-License-Identifier: Apache-2.0
// `thaw snapshot create|ls|rm`, and `thaw pool ls|set|rm`: thawd's.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/spec_opts.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

struct snapshot_opts {
	const char *name, *sandbox;
	struct optparse_strings labels;
	bool json, quiet;
};

#define FIELD(field) offsetof(struct snapshot_opts, field)

static const struct optparse_spec snapshot_create_specs[] = {
	{"name", 'n', "NAME", spec_parse_name, FIELD(name), "what to call it, beside its id", NULL},
	{"label", 'l', "KEY=VALUE", spec_parse_label, FIELD(labels), "put a label on it; up to 10",
	 NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "the snapshot as JSON", NULL},
};

const struct optparse_command snapshot_create_command = {
	.usage = "thaw snapshot create NAME [OPTION]...",
	.summary =
		"Write a running sandbox's memory and disk as a snapshot; it goes on. Prints the id.",
	.details = "'thaw create --snapshot ID' makes sandboxes from it.",
	.specs = snapshot_create_specs,
	.nspecs = ARRAY_SIZE(snapshot_create_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
	.completes = "sandbox",
};

static const struct optparse_spec snapshot_list_specs[] = {
	{"sandbox", 0, "NAME", optparse_string, FIELD(sandbox), "of this sandbox alone", NULL},
	{"quiet", 'q', NULL, optparse_flag, FIELD(quiet), "ids alone", NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "as JSON", NULL},
};

const struct optparse_command snapshot_list_command = {
	.usage = "thaw snapshot ls [OPTION]...",
	.summary = "List snapshots, the oldest first.",
	.specs = snapshot_list_specs,
	.nspecs = ARRAY_SIZE(snapshot_list_specs),
};

const struct optparse_command snapshot_remove_command = {
	.usage = "thaw snapshot rm ID...",
	.summary = "Remove snapshots, by id or name.",
	.positional_min = 1,
	.positional_max = OPTPARSE_POSITIONAL_MAX,
	.positional_name = "ID",
	.completes = "snapshot",
};

static int create(struct client *client, const char *prefix, const struct snapshot_opts *opts)
{
	json_t *body = json_object(), *answer;
	char name[CLIENT_NAME_BYTES];
	int ret = client_find_name(client, prefix, name);

	if (opts->name)
		json_object_set_new(body, "name", json_string(opts->name));
	if (opts->labels.count)
		json_object_set_new(body, "labels", labels_json(&opts->labels));
	if (ret) {
		json_decref(body);
		return ret;
	}
	ret = verb_post(client, name, "snapshots", body, &answer);
	if (!ret && opts->json)
		ret = json_print(answer);
	else if (!ret)
		printf("%s\n", client_string(answer, "id"));
	json_decref(answer);
	return ret;
}

static void print_snapshot(const json_t *one)
{
	const s64 bytes = json_integer_value(json_object_get(one, "memory_bytes")) +
			  json_integer_value(json_object_get(one, "disk_bytes"));
	const char *name = client_string(one, "name");
	char size[16], age[32];

	printf("%-20s %-24s %-24s %-16s %8s %s\n", client_string(one, "id"), name[0] ? name : "-",
	       client_string(one, "sandbox"), client_string(one, "template"),
	       verb_bytes((u64)MAX(bytes, (s64)0), size, sizeof(size)),
	       verb_age(client_string(one, "created"), age, sizeof(age)));
}

static int list(struct client *client, const struct snapshot_opts *opts)
{
	struct client_target target;
	json_t *answer, *one;
	size_t i;
	int ret;

	client_target(&target, "/v1/snapshots");
	if (opts->sandbox)
		client_target_query(&target, "sandbox", opts->sandbox);
	ret = client_call(client, "GET", &target, NULL, &answer);
	if (ret)
		return ret;
	if (opts->json)
		ret = json_print(json_object_get(answer, "snapshots"));
	else if (!opts->quiet)
		printf("%-20s %-24s %-24s %-16s %8s %s\n", "ID", "NAME", "SANDBOX", "TEMPLATE",
		       "ON DISK", "CREATED");
	json_array_foreach(json_object_get(answer, "snapshots"), i, one)
	{
		if (!opts->json && opts->quiet)
			printf("%s\n", client_string(one, "id"));
		else if (!opts->json)
			print_snapshot(one);
	}
	json_decref(answer);
	return ret;
}

static int remove_all(struct client *client, const struct optparse_result *result)
{
	struct client_target target;
	int failed = 0;

	for (int i = 0; i < result->npositional; i++) {
		int one;

		client_target(&target, "/v1/snapshots");
		client_target_add(&target, result->positional[i]);
		one = client_call(client, "DELETE", &target, NULL, NULL);
		if (!one)
			printf("%s\n", result->positional[i]);
		failed = failed ? failed : one;
	}
	return failed;
}

static int run_snapshot(const struct optparse_command *command, int argc, char **argv)
{
	struct snapshot_opts opts = {0};
	struct optparse_result result;
	struct client client;
	int status, ret;

	status = cli_parse(command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (client_want(&client, "snapshot"))
		return CLI_FAILED;
	if (command == &snapshot_create_command)
		ret = create(&client, result.positional[0], &opts);
	else if (command == &snapshot_list_command)
		ret = list(&client, &opts);
	else
		ret = remove_all(&client, &result);
	client_close(&client);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

static int snapshot_create_main(struct cli *cli, int argc, char **argv)
{
	(void)cli;
	return run_snapshot(&snapshot_create_command, argc, argv);
}

static int snapshot_list_main(struct cli *cli, int argc, char **argv)
{
	(void)cli;
	return run_snapshot(&snapshot_list_command, argc, argv);
}

static int snapshot_remove_main(struct cli *cli, int argc, char **argv)
{
	(void)cli;
	return run_snapshot(&snapshot_remove_command, argc, argv);
}

const struct cli_command snapshot_commands[SNAPSHOT_COMMANDS] = {
	CLI_COMMAND("create", "make one of a running sandbox", snapshot_create_main,
		    &snapshot_create_command),
	CLI_COMMAND("ls", "list them", snapshot_list_main, &snapshot_list_command),
	CLI_COMMAND("rm", "remove some", snapshot_remove_main, &snapshot_remove_command),
};

int snapshot_main(struct cli *cli, int argc, char **argv)
{
	return cli_dispatch(cli, "thaw snapshot", snapshot_commands, SNAPSHOT_COMMANDS, argc, argv);
}

struct pool_set_opts {
	u64 size;
	bool populate, json;
};

#define POOL_FIELD(field) offsetof(struct pool_set_opts, field)

static const struct optparse_spec pool_set_specs[] = {
	{"size", 0, "N", spec_parse_count, POOL_FIELD(size), "machines to keep ready (default 4)",
	 NULL},
	{"populate", 0, NULL, optparse_flag, POOL_FIELD(populate),
	 "make the pages that a first command needs ready ahead", NULL},
	{"output", 'o', "json", optparse_json, POOL_FIELD(json), "the pool as JSON", NULL},
};

const struct optparse_command pool_set_command = {
	.usage = "thaw pool set TEMPLATE [OPTION]...",
	.summary = "Have thawd keep machines of TEMPLATE ready.",
	.specs = pool_set_specs,
	.nspecs = ARRAY_SIZE(pool_set_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "TEMPLATE",
	.completes = "template",
};

static const struct optparse_spec pool_list_specs[] = {
	{"output", 'o', "json", optparse_json, POOL_FIELD(json), "as JSON", NULL},
};

const struct optparse_command pool_list_command = {
	.usage = "thaw pool ls [OPTION]",
	.summary = "List thawd's pools.",
	.specs = pool_list_specs,
	.nspecs = ARRAY_SIZE(pool_list_specs),
};

const struct optparse_command pool_remove_command = {
	.usage = "thaw pool rm TEMPLATE...",
	.summary = "End pools of thawd's. Machines that are in use stay.",
	.positional_min = 1,
	.positional_max = OPTPARSE_POSITIONAL_MAX,
	.positional_name = "TEMPLATE",
	.completes = "template",
};

static void print_pool(const json_t *one)
{
	static const char *const names[] = {"size", "ready", "starting", "hits", "misses"};

	printf("%-24s", client_string(one, "template"));
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		printf(" %9lld", (long long)json_integer_value(json_object_get(one, names[i])));
	printf("\n");
}

static int list_pools(struct client *client, bool json)
{
	struct client_target target;
	json_t *answer, *one;
	size_t i;
	int ret;

	client_target(&target, "/v1/pools");
	ret = client_call(client, "GET", &target, NULL, &answer);
	if (ret)
		return ret;
	if (json)
		ret = json_print(json_object_get(answer, "pools"));
	else
		printf("%-24s %9s %9s %9s %9s %9s\n", "TEMPLATE", "SIZE", "READY", "STARTING",
		       "HITS", "MISSES");
	json_array_foreach(json_object_get(answer, "pools"), i, one)
	{
		if (!json)
			print_pool(one);
	}
	json_decref(answer);
	return ret;
}

static int set_pool(struct client *client, const char *template_name,
		    const struct pool_set_opts *opts)
{
	struct client_target target;
	json_t *answer;
	int ret;

	client_target(&target, "/v1/pools");
	client_target_add(&target, template_name);
	ret = client_call(
		client, "PUT", &target,
		json_pack("{s:I, s:b}", "size", (json_int_t)opts->size, "populate", opts->populate),
		&answer);
	if (!ret && opts->json)
		ret = json_print(answer);
	else if (!ret)
		printf("%s\n", template_name);
	json_decref(answer);
	return ret;
}

static int remove_pools(struct client *client, const struct optparse_result *result)
{
	struct client_target target;
	int failed = 0;

	for (int i = 0; i < result->npositional; i++) {
		int one;

		client_target(&target, "/v1/pools");
		client_target_add(&target, result->positional[i]);
		one = client_call(client, "DELETE", &target, NULL, NULL);
		if (!one)
			printf("%s\n", result->positional[i]);
		failed = failed ? failed : one;
	}
	return failed;
}

static int run_pool(const struct optparse_command *command, int argc, char **argv)
{
	struct pool_set_opts opts = {.size = 4};
	struct optparse_result result;
	struct client client;
	int status, ret;

	status = cli_parse(command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (client_want(&client, "pool"))
		return CLI_FAILED;
	if (command == &pool_set_command)
		ret = set_pool(&client, result.positional[0], &opts);
	else if (command == &pool_list_command)
		ret = list_pools(&client, opts.json);
	else
		ret = remove_pools(&client, &result);
	client_close(&client);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

static int pool_set_main(struct cli *cli, int argc, char **argv)
{
	(void)cli;
	return run_pool(&pool_set_command, argc, argv);
}

static int pool_list_main(struct cli *cli, int argc, char **argv)
{
	(void)cli;
	return run_pool(&pool_list_command, argc, argv);
}

static int pool_remove_main(struct cli *cli, int argc, char **argv)
{
	(void)cli;
	return run_pool(&pool_remove_command, argc, argv);
}

const struct cli_command pool_commands[POOL_COMMANDS] = {
	CLI_COMMAND("set", "have thawd keep machines of a template ready", pool_set_main,
		    &pool_set_command),
	CLI_COMMAND("ls", "list thawd's pools", pool_list_main, &pool_list_command),
	CLI_COMMAND("rm", "end pools of thawd's", pool_remove_main, &pool_remove_command),
};

/** The group's members are no templates' names here; all else is a pool without thawd. */
int pool_group_main(struct cli *cli, int argc, char **argv)
{
	for (size_t i = 0; argc && i < POOL_COMMANDS; i++) {
		if (!strcmp(argv[0], pool_commands[i].name))
			return pool_commands[i].run(cli, argc - 1, argv + 1);
	}
	return pool_main(cli, argc, argv);
}
