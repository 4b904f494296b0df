// SPDX-License-Identifier: Apache-2.0
// `thaw events`, `thaw prune`, `thaw version`.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#ifndef THAW_VERSION
#define THAW_VERSION "unknown"
#endif

#define EVENTS_IDLE_NS 500000000ull

struct events_opts {
	bool json, follow;
	const char *since, *sandbox;
};

#define FIELD(field) offsetof(struct events_opts, field)

static const struct optparse_spec events_specs[] = {
	{"follow", 'f', NULL, optparse_flag, FIELD(follow),
	 "go on until interrupted; without it, what has happened\nbehind --since until now", NULL},
	{"since", 0, "ID", optparse_string, FIELD(since),
	 "begin behind the event with this id (0: the oldest that\nthawd remembers)", NULL},
	{"sandbox", 0, "NAME", optparse_string, FIELD(sandbox), "of this sandbox alone", NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "one JSON object a line", NULL},
};

const struct optparse_command events_command = {
	.usage = "thaw events [OPTION]...",
	.summary = "Print what happens to sandboxes.",
	.specs = events_specs,
	.nspecs = ARRAY_SIZE(events_specs),
};

static int print_event(void *opaque, const char *event, const char *id, const json_t *data)
{
	const struct events_opts *opts = opaque;
	char *details;

	if (!strcmp(event, "ping"))
		return opts->follow ? 0 : 1;
	if (!strcmp(event, "gap")) {
		log_warn("events are missing here: thawd does not remember so many");
		return 0;
	}
	details = json_dumps(opts->json ? data : json_object_get(data, "details"),
			     JSON_COMPACT | JSON_ENSURE_ASCII);
	if (opts->json)
		printf("%s\n", details ? details : "{}");
	else
		printf("%s %s %-18s %-24s %s\n", client_string(data, "time"), id, event,
		       client_string(data, "sandbox"), details ? details : "");
	free(details);
	/* Whoever reads a pipe wants it now. */
	return cli_flush();
}

int events_main(struct cli *cli, int argc, char **argv)
{
	struct events_opts opts = {0};
	struct optparse_result result;
	char name[CLIENT_NAME_BYTES];
	struct client_target target;
	struct client client;
	int status, ret = 0;

	(void)cli;
	status = cli_parse(&events_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (client_want(&client, "events"))
		return CLI_FAILED;
	client_target(&target, "/v1/events");
	if (opts.sandbox)
		ret = client_find_name(&client, opts.sandbox, name);
	if (opts.sandbox && !ret)
		client_target_query(&target, "sandbox", name);
	if (opts.since || !opts.follow)
		client_target_query(&target, "since", opts.since ? opts.since : "0");
	/* What it remembers comes at once. */
	client.idle_ns = opts.follow ? 0 : EVENTS_IDLE_NS;
	if (!ret)
		ret = client_events(&client, &target, print_event, &opts);
	client_close(&client);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

struct prune_opts {
	bool json, force, stopped, snapshots, logs;
};

#define PRUNE_FIELD(field) offsetof(struct prune_opts, field)

static const struct optparse_spec prune_specs[] = {
	{"stopped", 0, NULL, optparse_flag, PRUNE_FIELD(stopped), "sandboxes that are stopped",
	 NULL},
	{"snapshots", 0, NULL, optparse_flag, PRUNE_FIELD(snapshots),
	 "snapshots that nothing stands on", NULL},
	{"logs", 0, NULL, optparse_flag, PRUNE_FIELD(logs), "output of commands that have ended",
	 NULL},
	{"force", 'f', NULL, optparse_flag, PRUNE_FIELD(force), "do not ask", NULL},
	{"output", 'o', "json", optparse_json, PRUNE_FIELD(json), "what was removed, as JSON",
	 NULL},
};

const struct optparse_command prune_command = {
	.usage = "thaw prune [OPTION]...",
	.summary = "Remove what nobody needs: stopped sandboxes, unless other things are named.",
	.specs = prune_specs,
	.nspecs = ARRAY_SIZE(prune_specs),
};

/** Return: has the user said yes? Without a terminal to ask at, --force says it. */
static bool ask(const json_t *what)
{
	char *text, answer[16] = "";

	if (!isatty(STDIN_FILENO)) {
		log_err("prune: nobody to ask here: give --force");
		return false;
	}
	text = json_dumps(what, JSON_COMPACT);
	fprintf(stderr, "Remove all of %s for good? [y/N] ", text ? text : "");
	free(text);
	return fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

static int prune(struct client *client, bool json, json_t *what)
{
	struct client_target target;
	json_t *answer, *one;
	size_t i;
	int ret;

	client_target(&target, "/v1/prune");
	ret = client_call(client, "POST", &target, json_pack("{s:O}", "what", what), &answer);
	if (ret)
		return ret;
	if (json)
		ret = json_print(answer);
	json_array_foreach(json_object_get(answer, "removed"), i, one)
	{
		if (!json)
			printf("%s %s\n", client_string(one, "kind"), client_string(one, "name"));
	}
	json_decref(answer);
	return ret;
}

int prune_main(struct cli *cli, int argc, char **argv)
{
	struct prune_opts opts = {0};
	struct optparse_result result;
	struct client client;
	json_t *what;
	int status, ret;

	(void)cli;
	status = cli_parse(&prune_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	what = json_array();
	if (opts.stopped || (!opts.snapshots && !opts.logs))
		json_array_append_new(what, json_string("stopped"));
	if (opts.snapshots)
		json_array_append_new(what, json_string("snapshots"));
	if (opts.logs)
		json_array_append_new(what, json_string("logs"));
	ret = client_want(&client, "prune");
	if (!ret) {
		ret = opts.force || ask(what) ? prune(&client, opts.json, what) : -ECANCELED;
		client_close(&client);
	}
	json_decref(what);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

static const struct optparse_spec version_specs[] = {
	{"output", 'o', "json", optparse_json, 0, "as JSON", NULL},
};

const struct optparse_command version_command = {
	.usage = "thaw version [OPTION]",
	.summary = "Print the version, and thawd's where one listens.",
	.specs = version_specs,
	.nspecs = ARRAY_SIZE(version_specs),
};

int version_main(struct cli *cli, int argc, char **argv)
{
	struct optparse_result result;
	struct client_target target;
	struct client client;
	json_t *server = NULL, *object;
	bool json = false;
	int status;

	(void)cli;
	status = cli_parse(&version_command, &json, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (!client_open(&client)) {
		client_target(&target, "/version");
		client.quiet = true;
		if (client_call(&client, "GET", &target, NULL, &server))
			log_debug("thawd does not tell its version");
		client_close(&client);
	}
	if (json) {
		object = json_pack("{s:s, s:o}", "thaw", THAW_VERSION, "thawd",
				   server ? json_incref(server) : json_null());
		status = object && !json_print(object) ? CLI_OK : CLI_FAILED;
		json_decref(object);
	} else {
		printf("thaw %s\n", THAW_VERSION);
		if (server)
			printf("thawd %s\n", client_string(server, "version"));
		status = CLI_OK;
	}
	json_decref(server);
	return cli_flush() ? CLI_FAILED : status;
}
