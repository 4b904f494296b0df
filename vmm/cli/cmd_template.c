// SPDX-License-Identifier: Apache-2.0
// `thaw template` of a user who may ask thawd but not look into its state folder: ls, inspect, rm
// and build by the API. Everybody else, root above all, needs no thawd for templates (template.c).
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/spec_opts.h"
#include "vmm/cli/state.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

struct template_api_opts {
	const char *recipe, *size;
	bool json, replace;
};

#define FIELD(field) offsetof(struct template_api_opts, field)

static const struct optparse_spec show_specs[] = {
	{"output", 'o', "json", optparse_json, FIELD(json), "as JSON", NULL},
	{"json", 0, NULL, optparse_flag, FIELD(json), "the same", NULL},
};

static const struct optparse_spec build_specs[] = {
	{"recipe", 0, "NAME", optparse_string, FIELD(recipe),
	 "an installed recipe (default: the template's name)", NULL},
	{"size", 0, "SIZE", spec_parse_size, FIELD(size), "lite, basic, standard-1, -2, -3 or -4",
	 NULL},
	{"replace", 0, NULL, optparse_flag, FIELD(replace), "a template of this name", NULL},
};

static const struct optparse_command list_command = {
	.usage = "thaw template ls [OPTION]",
	.summary = "List thawd's templates.",
	.specs = show_specs,
	.nspecs = ARRAY_SIZE(show_specs),
};

static const struct optparse_command inspect_command_api = {
	.usage = "thaw template inspect NAME",
	.summary = "Print what thawd knows of a template, as JSON.",
	.specs = show_specs,
	.nspecs = ARRAY_SIZE(show_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
};

static const struct optparse_command remove_command = {
	.usage = "thaw template rm NAME...",
	.summary = "Have thawd remove templates.",
	.positional_min = 1,
	.positional_max = OPTPARSE_POSITIONAL_MAX,
	.positional_name = "NAME",
};

static const struct optparse_command build_command = {
	.usage = "thaw template build NAME [OPTION]...",
	.summary = "Have thawd build a template from an installed recipe.",
	.details = "The other options of a build are root's.",
	.specs = build_specs,
	.nspecs = ARRAY_SIZE(build_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
};

static void print_template(const json_t *one)
{
	char memory[16], disk[16], age[32];

	printf("%-24s %5lld %8s %8s %s\n", client_string(one, "name"),
	       (long long)json_integer_value(json_object_get(one, "vcpus")),
	       verb_bytes((u64)json_integer_value(json_object_get(one, "memory_bytes")), memory,
			  sizeof(memory)),
	       verb_bytes((u64)json_integer_value(json_object_get(one, "disk_bytes")), disk,
			  sizeof(disk)),
	       verb_age(client_string(one, "created"), age, sizeof(age)));
}

static int list(struct client *client, bool json)
{
	struct client_target target;
	json_t *answer, *one;
	size_t i;
	int ret;

	client_target(&target, "/v1/templates");
	ret = client_call(client, "GET", &target, NULL, &answer);
	if (ret)
		return ret;
	if (json)
		ret = json_print(json_object_get(answer, "templates"));
	else
		printf("%-24s %5s %8s %8s %s\n", "NAME", "VCPUS", "MEMORY", "ON DISK", "CREATED");
	json_array_foreach(json_object_get(answer, "templates"), i, one)
	{
		if (!json)
			print_template(one);
	}
	json_decref(answer);
	return ret;
}

static int inspect(struct client *client, const char *name)
{
	struct client_target target;
	json_t *answer;
	int ret;

	client_target(&target, "/v1/templates");
	client_target_add(&target, name);
	ret = client_call(client, "GET", &target, NULL, &answer);
	if (!ret)
		ret = json_print(answer);
	json_decref(answer);
	return ret;
}

static int remove_all(struct client *client, const struct optparse_result *result)
{
	struct client_target target;
	int failed = 0;

	for (int i = 0; i < result->npositional; i++) {
		int one;

		client_target(&target, "/v1/templates");
		client_target_add(&target, result->positional[i]);
		one = client_call(client, "DELETE", &target, NULL, NULL);
		failed = failed ? failed : one;
	}
	return failed;
}

static int on_progress(void *opaque, const char *event, const char *id, const json_t *data)
{
	bool *done = opaque;
	char text[512];

	(void)id;
	if (!strcmp(event, "progress"))
		fprintf(stderr, "%s\n",
			client_printable(client_string(data, "message"), text, sizeof(text)));
	if (!strcmp(event, "error")) {
		const json_t *error = json_object_get(data, "error");

		log_err("template build: %s (%s)",
			client_printable(client_string(error, "message"), text, sizeof(text)),
			client_string(error, "code"));
		return -EREMOTEIO;
	}
	*done = *done || !strcmp(event, "done");
	return *done;
}

static int build(struct client *client, const char *name, const struct template_api_opts *opts)
{
	json_t *body = json_pack("{s:s, s:b}", "name", name, "replace", opts->replace);
	struct client_target target;
	bool done = false;
	int ret;

	if (!body)
		return -ENOMEM;
	if (opts->recipe)
		json_object_set_new(body, "recipe", json_string(opts->recipe));
	if (opts->size)
		json_object_set_new(body, "size", json_string(opts->size));
	client_target(&target, "/v1/templates");
	ret = client_post_events(client, &target, body, on_progress, &done);
	if (!ret && !done) {
		log_err("template build: thawd went away before it was done");
		ret = -EPIPE;
	}
	return ret;
}

static int run(struct client *client, const struct optparse_command *command, int argc, char **argv)
{
	struct template_api_opts opts = {0};
	struct optparse_result result;
	int status, ret;

	status = cli_parse(command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (command == &list_command)
		ret = list(client, opts.json);
	else if (command == &inspect_command_api)
		ret = inspect(client, result.positional[0]);
	else if (command == &remove_command)
		ret = remove_all(client, &result);
	else
		ret = build(client, result.positional[0], &opts);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

/** Is this somebody who can't deal with templates himself? */
static bool is_shut_out(void)
{
	char folder[PATH_MAX];
	struct state state;

	if (geteuid() == 0 || state_init(&state))
		return false;
	state_path(&state, "templates", NULL, NULL, folder);
	return access(folder, R_OK | W_OK | X_OK) != 0;
}

int template_group_main(struct cli *cli, int argc, char **argv)
{
	static const struct {
		const char *name;
		const struct optparse_command *command;
	} verbs[] = {{"ls", &list_command},
		     {"inspect", &inspect_command_api},
		     {"rm", &remove_command},
		     {"build", &build_command}};
	const struct optparse_command *command = NULL;
	struct client client;
	int status;

	for (size_t i = 0; argc && i < ARRAY_SIZE(verbs); i++) {
		if (!strcmp(argv[0], verbs[i].name))
			command = verbs[i].command;
	}
	if (!command || !is_shut_out() || client_open(&client))
		return template_main(cli, argc, argv);
	status = run(&client, command, argc - 1, argv + 1);
	client_close(&client);
	return status;
}
