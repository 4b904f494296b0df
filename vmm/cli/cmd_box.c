// SPDX-License-Identifier: Apache-2.0
// `thaw create`, `thaw ps`, `thaw inspect`.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/local.h"
#include "vmm/cli/run_opts.h"
#include "vmm/cli/sandbox.h"
#include "vmm/cli/spec_opts.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

struct create_opts {
	struct spec_opts spec;
	struct run_env env;
	const char *hostname;
	bool start, reuse, json;
};

#define FIELD(field) offsetof(struct create_opts, field)

static const struct optparse_spec create_specs[] = {
	SPEC_ROWS(struct create_opts),
	{"snapshot", 0, "ID", optparse_string, SPEC_AT(struct create_opts, snapshot),
	 "start it from a snapshot (thaw snapshot) instead of a\ntemplate", NULL},
	{"env", 'e', "NAME=VALUE", optparse_env, FIELD(env),
	 "set a variable of the entrypoint; NAME alone passes on\nthis process's value; may be repeated",
	 NULL},
	{"hostname", 0, "NAME", optparse_hostname, FIELD(hostname),
	 "its host name (default: its name)", NULL},
	{"start", 's', NULL, optparse_flag, FIELD(start), "start it as well", NULL},
	{"reuse", 0, NULL, optparse_flag, FIELD(reuse),
	 "with --name: one that is there and asked for in the same\nway will do; with --start it runs then",
	 NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "the sandbox as JSON", NULL},
};

const struct optparse_command create_command = {
	.usage = "thaw create [TEMPLATE] [OPTION]... [-- CMD [ARG]...]",
	.summary = "Make a sandbox that has a name, and print that; 'thaw start' starts it.",
	.details = "CMD is its entrypoint: it is run at each start, and when it ends, the sandbox "
		   "stops. Without one the\nsandbox runs until it is stopped or idle for too long. "
		   "'thaw run -d' makes and starts one.",
	.specs = create_specs,
	.nspecs = ARRAY_SIZE(create_specs),
	.positional_max = 1,
	.positional_name = "TEMPLATE",
	.takes_command = true,
	.command_optional = true,
	.completes = "template",
};

static json_t *create_body(const struct create_opts *opts, const struct optparse_result *result)
{
	json_t *body = spec_json(&opts->spec, result->positional[0], opts->env.vars,
				 result->command, opts->hostname);

	if (body && json_object_set_new(body, "start", json_boolean(opts->start))) {
		json_decref(body);
		body = NULL;
	}
	if (body && opts->reuse)
		json_object_del(body, "name");
	if (!body)
		log_err("create: the request can't be made: is all of it UTF-8?");
	return body;
}

static int create(const struct create_opts *opts, const struct optparse_result *result)
{
	struct client_target target;
	struct client client;
	json_t *box, *body;
	int ret;

	body = create_body(opts, result);
	if (!body)
		return -EINVAL;
	ret = client_want(&client, "create");
	if (ret) {
		json_decref(body);
		return ret;
	}
	client_target(&target, "/v1/sandboxes");
	if (opts->reuse)
		client_target_add(&target, opts->spec.name);
	ret = client_call(&client, opts->reuse ? "PUT" : "POST", &target, body, &box);
	if (!ret && opts->json)
		ret = json_print(box);
	else if (!ret)
		printf("%s\n", client_string(box, "name"));
	json_decref(box);
	client_close(&client);
	return ret;
}

int create_main(struct cli *cli, int argc, char **argv)
{
	struct create_opts opts = {0};
	struct optparse_result result;
	int status, ret;

	(void)cli;
	status = cli_parse(&create_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status < 0) {
		ret = spec_check(&opts.spec, result.positional[0], &result);
		if (!ret && opts.reuse && !opts.spec.name) {
			snprintf(result.error, sizeof(result.error),
				 "option --reuse: needs --name");
			ret = -EINVAL;
		}
		if (ret)
			log_err("%s", result.error);
		status = ret ? CLI_USAGE : CLI_OK;
		if (!ret)
			status = create(&opts, &result) || cli_flush() ? CLI_FAILED : CLI_OK;
	}
	run_env_free(&opts.env);
	return status;
}

struct ps_opts {
	bool json, all, quiet;
	struct optparse_strings filters;
};

static int parse_filter(void *dest, const char *value, const char **why)
{
	*why = "expected label=KEY, label=KEY=VALUE or state=STATE";
	if (strncmp(value, "label=", 6) != 0 && strncmp(value, "state=", 6) != 0)
		return -EINVAL;
	return value[6] ? optparse_strings(dest, value, why) : -EINVAL;
}

#define PS_FIELD(field) offsetof(struct ps_opts, field)

static const struct optparse_spec ps_specs[] = {
	{"all", 'a', NULL, optparse_flag, PS_FIELD(all), "also those that are stopped", NULL},
	{"quiet", 'q', NULL, optparse_flag, PS_FIELD(quiet), "names alone", NULL},
	{"filter", 'f', "WHAT", parse_filter, PS_FIELD(filters),
	 "label=KEY, label=KEY=VALUE or state=STATE; may be\nrepeated: all must hold", NULL},
	{"output", 'o', "json", optparse_json, PS_FIELD(json), "as JSON", NULL},
};

const struct optparse_command ps_command = {
	.usage = "thaw ps [OPTION]...",
	.summary = "List sandboxes: thawd's, and those that 'thaw run -d' made without it.",
	.specs = ps_specs,
	.nspecs = ARRAY_SIZE(ps_specs),
};

/** Without -a: what has a machine, or processes on disk. */
static bool is_shown(const struct ps_opts *opts, const json_t *box)
{
	const char *state = client_string(box, "state");

	for (size_t i = 0; i < opts->filters.count; i++) {
		/* Those are listed by thawd. */
		if (!strncmp(opts->filters.items[i], "state=", 6))
			return strcmp(opts->filters.items[i] + 6, state) == 0;
	}
	return opts->all || (strcmp(state, "stopped") != 0 && strcmp(state, "failed") != 0);
}

static int list_thawd(const struct ps_opts *opts, struct client *client, json_t *out)
{
	struct client_target target;
	json_t *all, *box;
	size_t i;
	int ret;

	client_target(&target, "/v1/sandboxes");
	for (i = 0; i < opts->filters.count; i++) {
		if (!strncmp(opts->filters.items[i], "label=", 6))
			client_target_query(&target, "label", opts->filters.items[i] + 6);
	}
	ret = client_list(client, &target, "sandboxes", &all);
	if (ret)
		return ret;
	json_array_foreach(all, i, box)
	{
		if (!ret && is_shown(opts, box))
			ret = json_array_append(out, box) ? -ENOMEM : 0;
	}
	json_decref(all);
	return ret;
}

/** Those without thawd; only a user who can read the state folder has some. */
static int list_local(const struct ps_opts *opts, bool with_thawd, json_t *out)
{
	json_t *all = json_array(), *box;
	char folder[PATH_MAX];
	struct state state;
	size_t i;
	int ret;

	/* They have no labels. */
	for (i = 0; i < opts->filters.count; i++) {
		if (!strncmp(opts->filters.items[i], "label=", 6))
			goto out;
	}
	ret = state_init(&state);
	if (ret) {
		json_decref(all);
		return with_thawd ? 0 : ret;
	}
	/* One of the socket's group may not even look. */
	state_path(&state, "run", NULL, NULL, folder);
	if (with_thawd && access(folder, R_OK | W_OK | X_OK))
		goto out;
	sandbox_sweep(&state);
	ret = local_list(&state, all);
	if (ret) {
		json_decref(all);
		return with_thawd ? 0 : ret;
	}
	json_array_foreach(all, i, box)
	{
		if (is_shown(opts, box))
			json_array_append(out, box);
	}
out:
	json_decref(all);
	return 0;
}

static const char *box_name(const json_t *box)
{
	const char *name = client_string(box, "name");

	return name[0] ? name : client_string(box, "id");
}

static void print_box(const json_t *box)
{
	const json_t *size = json_object_get(box, "size");
	const char *size_name = client_string(size, "name");
	const char *reason = client_string(json_object_get(box, "stop"), "reason");
	char age[32], own_size[48], memory[16], state[48];

	snprintf(own_size, sizeof(own_size), "%lldx%s",
		 (long long)json_integer_value(json_object_get(size, "vcpus")),
		 verb_bytes((u64)json_integer_value(json_object_get(size, "memory_bytes")), memory,
			    sizeof(memory)));
	if (json_integer_value(json_object_get(size, "memory_bytes")) <= 0)
		snprintf(own_size, sizeof(own_size), "-");
	if (!strcmp(client_string(box, "state"), "stopped") && reason[0])
		snprintf(state, sizeof(state), "stopped (%s)", reason);
	else
		snprintf(state, sizeof(state), "%s", client_string(box, "state"));
	printf("%-24s %-20s %-11s %-19s %s\n", box_name(box), client_string(box, "template"),
	       size_name[0] ? size_name : own_size, state,
	       verb_age(client_string(box, "created"), age, sizeof(age)));
}

static int print_list(const struct ps_opts *opts, const json_t *list)
{
	const json_t *box;
	size_t i;

	if (opts->json)
		return json_print(list);
	if (!opts->quiet)
		printf("%-24s %-20s %-11s %-19s %s\n", "NAME", "TEMPLATE", "SIZE", "STATE",
		       "CREATED");
	json_array_foreach(list, i, box)
	{
		if (opts->quiet)
			printf("%s\n", box_name(box));
		else
			print_box(box);
	}
	return 0;
}

int ps_main(struct cli *cli, int argc, char **argv)
{
	struct ps_opts opts = {0};
	struct optparse_result result;
	struct client client;
	json_t *list;
	int status, ret;

	(void)cli;
	status = cli_parse(&ps_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	list = json_array();
	ret = client_open(&client);
	if (!ret) {
		ret = list_thawd(&opts, &client, list);
		client_close(&client);
		if (!ret)
			ret = list_local(&opts, true, list);
	} else if (ret == -ENOENT) {
		ret = list_local(&opts, false, list);
	}
	if (!ret)
		ret = print_list(&opts, list);
	json_decref(list);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

static const struct optparse_spec inspect_specs[] = {
	{"output", 'o', "json", optparse_json, 0, "as JSON, which it is anyway", NULL},
};

const struct optparse_command inspect_command = {
	.usage = "thaw inspect NAME...",
	.summary = "Print all that thawd knows of sandboxes, as JSON.",
	.specs = inspect_specs,
	.nspecs = ARRAY_SIZE(inspect_specs),
	.positional_min = 1,
	.positional_max = OPTPARSE_POSITIONAL_MAX,
	.positional_name = "NAME",
	.completes = "sandbox",
};

static int do_inspect(struct client *client, const char *box, void *opts, json_t **object)
{
	struct client_target target;

	(void)opts;
	client_target_box(&target, box, NULL);
	return client_call(client, "GET", &target, NULL, object);
}

int inspect_main(struct cli *cli, int argc, char **argv)
{
	static const struct verb verb = {"inspect", do_inspect, NULL};
	struct optparse_result result;
	bool json = true;
	int status;

	(void)cli;
	status = cli_parse(&inspect_command, &json, argc, argv, &result, CLI_USAGE);
	return status >= 0 ? status : verb_each(&verb, &result, NULL, true);
}
