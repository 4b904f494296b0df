// SPDX-License-Identifier: Apache-2.0
// The options of `thaw run`.
#include "vmm/cli/run_opts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/cli/commands.h"
#include "vmm/snapshot/restore_opts.h"
#include "vmm/util/util.h"

/** The kernel's (uid_t)-1 means "no change" to setuid(2): not a user. */
#define RUN_ID_MAX (UINT32_MAX - 1)

static int env_set(struct run_env *env, char *var)
{
	size_t name_len = strcspn(var, "=") + 1;
	char **grown;

	for (size_t i = 0; i < env->count; i++) {
		if (!strncmp(env->vars[i], var, name_len)) {
			free(env->vars[i]);
			env->vars[i] = var;
			return 0;
		}
	}
	grown = reallocarray(env->vars, env->count + 2, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	env->vars = grown;
	env->vars[env->count++] = var;
	env->vars[env->count] = NULL;
	return 0;
}

static int env_add(struct run_env *env, const char *name, size_t name_len, const char *value)
{
	char *var;
	int ret;

	if (asprintf(&var, "%.*s=%s", (int)name_len, name, value) < 0)
		return -ENOMEM;
	ret = env_set(env, var);
	if (ret)
		free(var);
	return ret;
}

int optparse_env(void *dest, const char *value, const char **why)
{
	size_t name_len = strcspn(value, "=");
	const char *here;

	if (!name_len) {
		*why = "expected NAME=VALUE, or the NAME of a variable to pass on";
		return -EINVAL;
	}
	if (value[name_len] == '=')
		return env_add(dest, value, name_len, value + name_len + 1);
	here = getenv(value);
	return here ? env_add(dest, value, name_len, here) : 0;
}

static int parse_user(void *dest, const char *value, const char **why)
{
	struct run_user *user = dest;
	size_t uid_len = strcspn(value, ":");
	char uid_text[16];
	u64 uid, gid;

	*why = "expected UID or UID:GID, as numbers";
	if (uid_len >= sizeof(uid_text))
		return -EINVAL;
	memcpy(uid_text, value, uid_len);
	uid_text[uid_len] = '\0';
	if (parse_u64(uid_text, 0, RUN_ID_MAX, &uid))
		return -EINVAL;
	gid = uid;
	if (value[uid_len] && parse_u64(value + uid_len + 1, 0, RUN_ID_MAX, &gid))
		return -EINVAL;
	user->uid = (u32)uid;
	user->gid = (u32)gid;
	return 0;
}

static int parse_cwd(void *dest, const char *value, const char **why)
{
	if (value[0] != '/') {
		*why = "expected an absolute path in the guest";
		return -EINVAL;
	}
	*(const char **)dest = value;
	return 0;
}

static int parse_populate(void *dest, const char *value, const char **why)
{
	enum snap_populate populate;

	*why = "expected " SNAP_POPULATE_WORDS;
	*(const char **)dest = value;
	return snap_populate_parse(value, &populate) ? 0 : -EINVAL;
}

static int parse_prefault(void *dest, const char *value, const char **why)
{
	enum snap_prefault prefault;

	*why = "expected " SNAP_PREFAULT_WORDS;
	*(const char **)dest = value;
	return snap_prefault_parse(value, &prefault) ? 0 : -EINVAL;
}

static int parse_huge(void *dest, const char *value, const char **why)
{
	enum snap_huge_pages huge;

	*why = "expected " SNAP_HUGE_WORDS;
	*(const char **)dest = value;
	return snap_huge_parse(value, &huge) ? 0 : -EINVAL;
}

static int parse_threads(void *dest, const char *value, const char **why)
{
	u64 threads;

	*why = "expected 1 to 64";
	*(const char **)dest = value;
	return parse_u64(value, 1, SNAP_THREADS_MAX, &threads);
}

static int parse_jail(void *dest, const char *value, const char **why)
{
	*why = "expected full or no-cgroup";
	return sandbox_jail_parse(value, dest) ? 0 : -EINVAL;
}

static int parse_window(void *dest, const char *value, const char **why)
{
	u64 window_bytes;

	*why = "expected " SNAP_WINDOW_WORDS;
	*(const char **)dest = value;
	return snap_fault_window_parse(value, &window_bytes) ? 0 : -EINVAL;
}

#define FIELD(field) offsetof(struct run_opts, field)

static const struct optparse_spec run_specs[] = {
	{"detach", 'd', NULL, optparse_flag, FIELD(detach),
	 "start a sandbox that stays, print its id, and run CMD (if\nthere is one) in it without waiting for it",
	 NULL},
	{"env", 'e', "NAME=VALUE", optparse_env, FIELD(env),
	 "set a variable of the command; NAME alone passes on this\nprocess's value; may be repeated",
	 NULL},
	{"workdir", 'w', "DIR", parse_cwd, FIELD(cwd), "working directory in the guest (default /)",
	 NULL},
	{"user", 'u', "UID[:GID]", parse_user, FIELD(user),
	 "numeric user and group in the guest (default 0:0;\nGID defaults to UID)", NULL},
	{"interactive", 'i', NULL, optparse_flag, FIELD(with_stdin),
	 "pass stdin on; without it the command's is /dev/null", NULL},
	{"tty", 't', NULL, optparse_flag, FIELD(tty),
	 "give the command a terminal; with -i the one that thaw\nhas", NULL},
	{"rm", 0, NULL, optparse_flag, FIELD(remove),
	 "remove the sandbox when it stops; without -d and --name\nthat is so anyway", NULL},
	{"local", 0, NULL, optparse_flag, FIELD(local), "do not ask thawd", NULL},
	SPEC_ROWS(struct run_opts),
	{"output", 'o', "json", optparse_json, FIELD(json), "with -d: the sandbox as JSON", NULL},
	{"strategy", 0, "NAME", optparse_string, FIELD(strategy),
	 "how guest memory comes back: see below. This and what\nfollows, but for --timeout and "
	 "--hostname, is done without\nthawd",
	 NULL},
	{"populate", 0, "WHAT", parse_populate, FIELD(populate),
	 "of the pages a first command needs, ahead: off, read,\nwrite or both (default: the "
	 "strategy's habit)",
	 NULL},
	{"prefault", 0, "on|off", parse_prefault, FIELD(prefault),
	 "map them into the guest ahead (default: the\nstrategy's habit)", NULL},
	{"huge", 0, "none|thp", parse_huge, FIELD(huge), "transparent huge pages (default none)",
	 NULL},
	{"threads", 0, "N", parse_threads, FIELD(threads), "that populate, 1 to 64 (default 1)",
	 NULL},
	{"fault-window", 0, "SIZE", parse_window, FIELD(fault_window),
	 "with --strategy uffd: brought at a page fault, 4K to 2M", NULL},
	{"jail", 0, "full|no-cgroup", parse_jail, FIELD(jail),
	 "with -d, as root: in a jail, as thawd's sandboxes are;\nno-cgroup: on a host without "
	 "cgroup v2",
	 NULL},
	{"no-pool", 0, NULL, optparse_flag, FIELD(no_pool),
	 "do not take a machine of the template's pool", NULL},
	{"json", 0, "FILE", optparse_string, FIELD(json_path),
	 "write the result and the five start clocks to FILE", NULL},
	{"timeout", 0, "TIME", optparse_duration, FIELD(timeout_ns),
	 "kill the sandbox after TIME (30, 1.5s, 250ms, 2m, 1h)\nand exit with 124", NULL},
	{"hostname", 0, "NAME", optparse_hostname, FIELD(hostname), "host name of the sandbox",
	 NULL},
	{"console", 0, "FILE", optparse_string, FIELD(console_path),
	 "write the guest's console to FILE", NULL},
};

const struct optparse_command run_command = {
	.usage = "thaw run TEMPLATE [OPTION]... [--] CMD [ARG]...",
	.summary =
		"Restore a sandbox from TEMPLATE, run CMD in it, pass its output through, and remove "
		"the sandbox.",
	.details =
		"Exit status: the command's; 124 time-out, 125 thaw's own error, 126 not executable, "
		"127 not\nfound, 128+n ended by signal n. SIGINT, SIGTERM, SIGHUP and SIGQUIT are "
		"passed on to the command.\nThe environment is HOME, LANG=C.UTF-8, a default PATH and "
		"what -e gives; nothing else is passed on.\n"
		"With -d CMD may be left out, and 'thaw exec' runs commands in the sandbox.\n"
		"Where thawd listens, the sandbox is one of its; --name and -d make one that stays.",
	.specs = run_specs,
	.nspecs = ARRAY_SIZE(run_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "TEMPLATE",
	.takes_command = true,
	.command_optional = true,
	.completes = "template",
};

static const struct optparse_spec exec_specs[] = {
	{"detach", 'd', NULL, optparse_flag, FIELD(detach),
	 "do not wait for CMD; thawd keeps its output for 'thaw logs'\nand prints its id, without thawd it is dropped",
	 NULL},
	{"tty", 't', NULL, optparse_flag, FIELD(tty),
	 "give CMD a terminal; with -i the one that thaw has", NULL},
	{"env", 'e', "NAME=VALUE", optparse_env, FIELD(env),
	 "set a variable of the command; NAME alone passes on this\nprocess's value; may be repeated",
	 NULL},
	{"workdir", 'w', "DIR", parse_cwd, FIELD(cwd), "working directory in the guest (default /)",
	 NULL},
	{"user", 'u', "UID[:GID]", parse_user, FIELD(user),
	 "numeric user and group in the guest (default 0:0;\nGID defaults to UID)", NULL},
	{"interactive", 'i', NULL, optparse_flag, FIELD(with_stdin),
	 "pass stdin on; without it the command's is /dev/null", NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "with -d: the command as JSON", NULL},
	{"timeout", 0, "TIME", optparse_duration, FIELD(timeout_ns),
	 "kill CMD after TIME (30, 1.5s, 250ms, 2m, 1h) and exit\nwith 124", NULL},
};

const struct optparse_command exec_command = {
	.usage = "thaw exec NAME [OPTION]... [--] CMD [ARG]...",
	.summary = "Run CMD in sandbox NAME (or the start of it) and pass its output through.",
	.details =
		"Exit status: the command's; 124 time-out, 125 thaw's own error, 126 not executable, "
		"127 not\nfound, 128+n ended by signal n. SIGINT, SIGTERM, SIGHUP and SIGQUIT are "
		"passed on to the command.\nWhen CMD ends, or this process does, everything that CMD "
		"started ends; with -d only the former.\nOn a terminal (-it) ctrl-p ctrl-q leaves "
		"CMD running: 'thaw attach --exec' comes back to it.",
	.specs = exec_specs,
	.nspecs = ARRAY_SIZE(exec_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
	.takes_command = true,
	.completes = "sandbox",
};

/** Values a script may take for granted, unless -e gave them. */
static int env_defaults(struct run_opts *opts)
{
	struct run_env given = opts->env;
	const char *home = opts->user.uid == 0 ? "/root" : "/", *term = getenv("TERM");
	int ret;

	opts->env = (struct run_env){0};
	ret = env_add(&opts->env, "HOME", strlen("HOME"), home);
	if (!ret)
		ret = env_add(&opts->env, "LANG", strlen("LANG"), "C.UTF-8");
	if (!ret && opts->tty)
		ret = env_add(&opts->env, "TERM", strlen("TERM"), term ? term : "xterm");
	for (size_t i = 0; i < given.count; i++) {
		int set = ret ? ret : env_set(&opts->env, given.vars[i]);

		if (set) {
			free(given.vars[i]);
			ret = set;
		}
	}
	free(given.vars);
	return ret;
}

/** What -d can't be combined with, in words; NULL: nothing of that was given. */
static const char *detach_conflict(const struct run_opts *opts)
{
	if (opts->with_stdin)
		return "-i";
	if (opts->tty)
		return "-t";
	if (opts->json_path)
		return "--json";
	return opts->timeout_ns && opts->is_run ? "--timeout" : NULL;
}

static int check_detach(const struct run_opts *opts, struct optparse_result *result)
{
	const char *conflict = opts->detach ? detach_conflict(opts) : NULL;

	if (opts->jail && !opts->detach) {
		snprintf(result->error, sizeof(result->error), "option --jail: needs --detach");
		return -EINVAL;
	}
	if (!opts->detach && !result->command_argc) {
		snprintf(result->error, sizeof(result->error), "the command is missing: usage: %s",
			 run_command.usage);
		return -EINVAL;
	}
	if (!conflict)
		return 0;
	snprintf(result->error, sizeof(result->error), "option %s: can't be combined with --detach",
		 conflict);
	return -EINVAL;
}

static int check_local(const struct run_opts *opts, struct optparse_result *result)
{
	const char *local = run_local_option(opts), *spec = spec_first_given(&opts->spec);

	if (opts->json && !opts->detach) {
		snprintf(result->error, sizeof(result->error), "option --output: needs --detach");
		return -EINVAL;
	}
	if (!local || !spec)
		return 0;
	snprintf(result->error, sizeof(result->error),
		 "option %s: is for sandboxes of thawd, and %s is done without it", spec, local);
	return -EINVAL;
}

int exec_opts_parse(struct run_opts *opts, int argc, char **argv, struct optparse_result *result)
{
	int ret;

	*opts = (struct run_opts){0};
	ret = optparse(&exec_command, opts, argc, argv, result);
	if (ret || result->help)
		return ret;
	opts->template_name = result->positional[0];
	opts->argv = result->command;
	ret = check_detach(opts, result);
	return ret ? ret : env_defaults(opts);
}

int run_opts_parse(struct run_opts *opts, int argc, char **argv, struct optparse_result *result)
{
	const char *why;
	int ret;

	*opts = (struct run_opts){0};
	opts->is_run = true;
	ret = optparse(&run_command, opts, argc, argv, result);
	if (ret || result->help)
		return ret;
	ret = check_detach(opts, result);
	if (ret)
		return ret;
	if (optparse_name(&opts->template_name, result->positional[0], &why)) {
		snprintf(result->error, sizeof(result->error),
			 "'%.60s' is not a template's name: %s", result->positional[0], why);
		return -EINVAL;
	}
	ret = optparse_check_strategy(opts->strategy, result);
	if (!ret)
		ret = spec_check(&opts->spec, NULL, result);
	if (!ret)
		ret = check_local(opts, result);
	if (ret)
		return ret;
	if (opts->fault_window && (!opts->strategy || strcmp(opts->strategy, "uffd") != 0)) {
		snprintf(result->error, sizeof(result->error),
			 "option --fault-window: needs --strategy uffd");
		return -EINVAL;
	}
	opts->argv = result->command;
	return env_defaults(opts);
}

void run_env_free(struct run_env *env)
{
	for (size_t i = 0; i < env->count; i++)
		free(env->vars[i]);
	free(env->vars);
	*env = (struct run_env){0};
}

void run_opts_free(struct run_opts *opts)
{
	run_env_free(&opts->env);
}

const char *run_local_option(const struct run_opts *opts)
{
	const struct {
		bool given;
		const char *name;
	} options[] = {{opts->local, "--local"},	 {opts->jail != 0, "--jail"},
		       {opts->strategy, "--strategy"},	 {opts->populate, "--populate"},
		       {opts->prefault, "--prefault"},	 {opts->huge, "--huge"},
		       {opts->threads, "--threads"},	 {opts->fault_window, "--fault-window"},
		       {opts->no_pool, "--no-pool"},	 {opts->json_path, "--json"},
		       {opts->console_path, "--console"}};

	for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
		if (options[i].given)
			return options[i].name;
	}
	return NULL;
}

size_t run_restore_words(const struct run_opts *opts, const char **argv)
{
	const char *const given[][2] = {{"--populate", opts->populate},
					{"--prefault", opts->prefault},
					{"--huge", opts->huge},
					{"--threads", opts->threads},
					{"--fault-window", opts->fault_window}};
	size_t n = 0;

	for (size_t i = 0; i < ARRAY_SIZE(given); i++) {
		if (!given[i][1])
			continue;
		argv[n++] = given[i][0];
		argv[n++] = given[i][1];
	}
	return n;
}
