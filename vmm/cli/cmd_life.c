// SPDX-License-Identifier: Apache-2.0
// `thaw start`, `stop`, `rm`, `kill`, `wait`, `pause`, `resume`: one call for each sandbox.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "guest/shim/proto.h"
#include "vmm/cli/commands.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/local.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define STOP_GRACE_NS 10000000000ull
/** What one call waits for; then it is asked again. */
#define WAIT_STEP_MS 600000

struct life_opts {
	bool json, force;
	u64 grace_ns, timeout_ns;
	const char *signal, *strategy;
};

static int parse_grace(void *dest, const char *value, const char **why)
{
	int ret = optparse_duration(dest, value, why);

	if (!ret && *(u64 *)dest / 1000000 > SHIM_GRACE_MAX_MS) {
		*why = "expected at most 10m";
		ret = -EINVAL;
	}
	return ret;
}

static int parse_signal(void *dest, const char *value, const char **why)
{
	const char *name = strncmp(value, "SIG", 3) == 0 ? value + 3 : value;
	u64 number;

	*why = "expected a signal such as TERM, SIGINT or 9";
	*(const char **)dest = name;
	if (!parse_u64(name, 1, 64, &number))
		return 0;
	for (int i = 1; i < 32; i++) {
		const char *known = sigabbrev_np(i);

		if (known && !strcmp(known, name))
			return 0;
	}
	return -EINVAL;
}

#define FIELD(field) offsetof(struct life_opts, field)
#define JSON_ROW                                                                              \
	{                                                                                     \
		"output", 'o', "json", optparse_json, FIELD(json), "the result as JSON", NULL \
	}

static const struct optparse_spec json_specs[] = {JSON_ROW};

static const struct optparse_spec stop_specs[] = {
	{"time", 't', "TIME", parse_grace, FIELD(grace_ns),
	 "how long processes have to end after SIGTERM (default\n10s, at most 10m)", NULL},
	JSON_ROW,
};

static const struct optparse_spec rm_specs[] = {
	{"force", 'f', NULL, optparse_flag, FIELD(force), "also one that runs: it is killed", NULL},
	JSON_ROW,
};

static const struct optparse_spec kill_specs[] = {
	{"signal", 's', "SIGNAL", parse_signal, FIELD(signal),
	 "to the entrypoint alone; without it the sandbox is ended\nat once", NULL},
	JSON_ROW,
};

static const struct optparse_spec wait_specs[] = {
	{"timeout", 0, "TIME", optparse_duration, FIELD(timeout_ns),
	 "give up after TIME, with exit status 124", NULL},
	JSON_ROW,
};

static const struct optparse_spec resume_specs[] = {
	{"strategy", 0, "NAME", optparse_string, FIELD(strategy),
	 "how guest memory comes back, of one without thawd", NULL},
	JSON_ROW,
};

/* NOLINTBEGIN(bugprone-macro-parentheses): members of an initializer */
#define NAMES(specs_)                                                         \
	.specs = specs_, .nspecs = ARRAY_SIZE(specs_), .positional_min = 1,   \
	.positional_max = OPTPARSE_POSITIONAL_MAX, .positional_name = "NAME", \
	.completes = "sandbox"
/* NOLINTEND(bugprone-macro-parentheses) */

const struct optparse_command start_command = {
	.usage = "thaw start NAME... [OPTION]...",
	.summary = "Start sandboxes that are stopped, from their template.",
	.details = "A stopped sandbox has kept its name and specification, not its disk or memory: "
		   "'thaw pause' does that.",
	NAMES(json_specs),
};

const struct optparse_command stop_command = {
	.usage = "thaw stop NAME... [OPTION]...",
	.summary = "End sandboxes: SIGTERM to every process, then power off.",
	.details =
		"thawd keeps their names, to be started again or removed. Nothing stays of those "
		"without thawd.",
	NAMES(stop_specs),
};

const struct optparse_command rm_command = {
	.usage = "thaw rm NAME... [OPTION]...",
	.summary = "Remove sandboxes that do not run; with --force also those that do.",
	NAMES(rm_specs),
};

const struct optparse_command kill_command = {
	.usage = "thaw kill NAME... [OPTION]...",
	.summary = "End sandboxes at once, or send their entrypoint a signal.",
	NAMES(kill_specs),
};

const struct optparse_command wait_command = {
	.usage = "thaw wait NAME... [OPTION]...",
	.summary = "Wait until sandboxes have stopped, and print the exit code of each entrypoint.",
	.details = "One that was stopped otherwise has none: its reason is printed.",
	NAMES(wait_specs),
};

const struct optparse_command pause_command = {
	.usage = "thaw pause NAME... [OPTION]...",
	.summary = "Write sandboxes to disk and end their machines, until 'thaw resume'.",
	.details = "Processes, memory and files are kept, also over a reboot of this machine. "
		   "Streams to and from the\nguest end: what a command prints after that is kept "
		   "by thawd, and dropped without it.",
	NAMES(json_specs),
};

const struct optparse_command resume_command = {
	.usage = "thaw resume NAME... [OPTION]...",
	.summary = "Bring paused sandboxes back, as they were.",
	.details = "Id and host name are the same. Generation and entropy are new, real time is "
		   "right and monotonic time\ngoes on, as after any restore.",
	NAMES(resume_specs),
};

static int do_start(struct client *client, const char *box, void *opts, json_t **object)
{
	(void)opts;
	return verb_post(client, box, "start", json_object(), object);
}

static int do_stop(struct client *client, const char *box, void *opaque, json_t **object)
{
	const struct life_opts *opts = opaque;

	return verb_post(client, box, "stop",
			 json_pack("{s:I}", "grace_ms", (json_int_t)(opts->grace_ns / 1000000)),
			 object);
}

static int stop_local(const char *prefix, void *opaque, json_t **object)
{
	const struct life_opts *opts = opaque;

	(void)object;
	return local_stop(prefix, opts->grace_ns);
}

/** States in which there is a machine or is about to be one. */
static bool is_active(const char *state)
{
	return strcmp(state, "stopped") != 0 && strcmp(state, "failed") != 0 &&
	       strcmp(state, "paused") != 0;
}

static int do_rm(struct client *client, const char *box, void *opaque, json_t **object)
{
	const struct life_opts *opts = opaque;
	struct client_target target;
	int ret;

	client_target_box(&target, box, NULL);
	ret = client_call(client, "GET", &target, NULL, object);
	if (ret)
		return ret;
	if (!opts->force && is_active(client_string(*object, "state"))) {
		log_err("rm: sandbox %s is %s: 'thaw stop' it, or give --force", box,
			client_string(*object, "state"));
		return -EBUSY;
	}
	return client_call(client, "DELETE", &target, NULL, NULL);
}

static int rm_local(const char *prefix, void *opaque, json_t **object)
{
	const struct life_opts *opts = opaque;

	(void)object;
	return local_remove(prefix, opts->force);
}

static int do_kill(struct client *client, const char *box, void *opaque, json_t **object)
{
	const struct life_opts *opts = opaque;
	char name[32];

	if (!opts->signal)
		return verb_post(client, box, "destroy", json_object(), object);
	if (opts->signal[0] >= '0' && opts->signal[0] <= '9')
		return verb_post(client, box, "signal",
				 json_pack("{s:i}", "signal", atoi(opts->signal)), object);
	snprintf(name, sizeof(name), "SIG%s", opts->signal);
	return verb_post(client, box, "signal", json_pack("{s:s}", "signal", name), object);
}

static int do_pause(struct client *client, const char *box, void *opts, json_t **object)
{
	(void)opts;
	return verb_post(client, box, "pause", json_object(), object);
}

static int pause_local(const char *prefix, void *opts, json_t **object)
{
	(void)opts;
	return local_pause(prefix, object);
}

static int do_resume(struct client *client, const char *box, void *opts, json_t **object)
{
	(void)opts;
	return verb_post(client, box, "resume", json_object(), object);
}

static int resume_local(const char *prefix, void *opaque, json_t **object)
{
	const struct life_opts *opts = opaque;

	return local_resume(prefix, opts->strategy, object);
}

static int run_verb(const struct verb *verb, const struct optparse_command *command, int argc,
		    char **argv)
{
	struct life_opts opts = {.grace_ns = STOP_GRACE_NS};
	struct optparse_result result;
	int status = cli_parse(command, &opts, argc, argv, &result, CLI_USAGE);

	if (status >= 0)
		return status;
	if (optparse_check_strategy(opts.strategy, &result)) {
		log_err("%s", result.error);
		return CLI_USAGE;
	}
	return verb_each(verb, &result, &opts, opts.json);
}

int start_main(struct cli *cli, int argc, char **argv)
{
	static const struct verb verb = {"start", do_start, NULL};

	(void)cli;
	return run_verb(&verb, &start_command, argc, argv);
}

int stop_main(struct cli *cli, int argc, char **argv)
{
	static const struct verb verb = {"stop", do_stop, stop_local};

	(void)cli;
	return run_verb(&verb, &stop_command, argc, argv);
}

int rm_main(struct cli *cli, int argc, char **argv)
{
	static const struct verb verb = {"rm", do_rm, rm_local};

	(void)cli;
	return run_verb(&verb, &rm_command, argc, argv);
}

int kill_main(struct cli *cli, int argc, char **argv)
{
	static const struct verb verb = {"kill", do_kill, NULL};

	(void)cli;
	return run_verb(&verb, &kill_command, argc, argv);
}

int pause_main(struct cli *cli, int argc, char **argv)
{
	static const struct verb verb = {"pause", do_pause, pause_local};

	(void)cli;
	return run_verb(&verb, &pause_command, argc, argv);
}

int resume_main(struct cli *cli, int argc, char **argv)
{
	static const struct verb verb = {"resume", do_resume, resume_local};

	(void)cli;
	return run_verb(&verb, &resume_command, argc, argv);
}

/** Until it has stopped, or @deadline_ns. Return: 0, -ETIMEDOUT (not logged) or -errno (logged). */
static int wait_one(struct client *client, const char *box, u64 deadline_ns, json_t **object)
{
	struct client_target target;
	bool running = true;
	u64 step_ms;
	int ret;

	while (running) {
		const u64 now_ns = clock_now_ns();

		if (deadline_ns && now_ns >= deadline_ns)
			return -ETIMEDOUT;
		step_ms = deadline_ns ? (deadline_ns - now_ns) / 1000000 + 1 : WAIT_STEP_MS;
		client_target_box(&target, box, "wait");
		client_target_u64(&target, "timeout_ms", MIN(step_ms, (u64)WAIT_STEP_MS));
		json_decref(*object);
		ret = client_call(client, "GET", &target, NULL, object);
		if (ret)
			return ret;
		running = json_is_true(json_object_get(*object, "running"));
	}
	return 0;
}

static int print_stop(const json_t *object)
{
	const json_t *stop = json_object_get(object, "stop");
	const json_t *code = json_object_get(stop, "exit_code");

	if (json_is_integer(code))
		return printf("%lld\n", (long long)json_integer_value(code));
	return printf("%s\n", stop ? client_string(stop, "reason") : "stopped");
}

int wait_main(struct cli *cli, int argc, char **argv)
{
	struct life_opts opts = {0};
	struct optparse_result result;
	char name[CLIENT_NAME_BYTES];
	struct client client;
	json_t *object = NULL;
	int status, ret = 0;

	status = cli_parse(&wait_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (client_want(&client, "wait"))
		return CLI_FAILED;
	for (int i = 0; !ret && i < result.npositional; i++) {
		ret = client_find_name(&client, result.positional[i], name);
		if (!ret)
			ret = wait_one(&client, name,
				       opts.timeout_ns ? cli->start_ns + opts.timeout_ns : 0,
				       &object);
		if (ret == -ETIMEDOUT)
			log_err("wait: sandbox %s has not stopped in that time", name);
		else if (!ret && (opts.json ? json_print(object) : print_stop(object)) < 0)
			ret = -EIO;
		json_decref(object);
		object = NULL;
	}
	client_close(&client);
	if (ret == -ETIMEDOUT)
		return CLI_RUN_TIMEOUT;
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}
