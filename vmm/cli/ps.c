// SPDX-License-Identifier: Apache-2.0
// `thaw ps`, `thaw stop`, `thaw rm`: the sandboxes that stay, listed and ended.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/cli/cli.h"
#include "vmm/cli/exec.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/optparse.h"
#include "vmm/cli/sandbox.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define STOP_GRACE_NS  10000000000ull
#define STOP_ANSWER_NS 10000000000ull
#define STOP_EXTRA_MS  10000 /* for the guest's power-off, beyond the grace */
#define KILL_WAIT_MS   10000

struct ps_opts {
	bool json, force;
	u64 grace_ns;
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

#define FIELD(field) offsetof(struct ps_opts, field)

static const struct optparse_spec ps_specs[] = {
	{"output", 'o', "json", optparse_json, FIELD(json), "as JSON", NULL},
};

static const struct optparse_spec stop_specs[] = {
	{"time", 't', "TIME", parse_grace, FIELD(grace_ns),
	 "how long processes have to end after SIGTERM (default\n10s, at most 10m)", NULL},
};

static const struct optparse_spec rm_specs[] = {
	{"force", 'f', NULL, optparse_flag, FIELD(force), "also one that runs: it is killed", NULL},
};

static const struct optparse_command ps_command = {
	.usage = "thaw ps [-o json]",
	.summary = "List the sandboxes that 'thaw run -d' and 'thaw fork' made.",
	.specs = ps_specs,
	.nspecs = ARRAY_SIZE(ps_specs),
};

static const struct optparse_command stop_command = {
	.usage = "thaw stop ID... [OPTION]...",
	.summary =
		"End sandboxes: SIGTERM to every process, then power off. Nothing of them stays.",
	.specs = stop_specs,
	.nspecs = ARRAY_SIZE(stop_specs),
	.positional_min = 1,
	.positional_max = OPTPARSE_POSITIONAL_MAX,
	.positional_name = "ID",
};

static const struct optparse_command rm_command = {
	.usage = "thaw rm ID... [OPTION]...",
	.summary = "Remove sandboxes that are paused; with --force also those that run.",
	.specs = rm_specs,
	.nspecs = ARRAY_SIZE(rm_specs),
	.positional_min = 1,
	.positional_max = OPTPARSE_POSITIONAL_MAX,
	.positional_name = "ID",
};

static json_t *sandbox_json(const struct sandbox *sb)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:s, s:o}", "id", sb->id, "state",
			 sandbox_state_name(sb->state), "template", sb->template_name, "snapshot",
			 sb->snapshot, "parent",
			 sb->parent[0] ? json_string(sb->parent) : json_null(), "hostname",
			 sb->hostname, "created", sb->created, "pid",
			 sb->pid ? json_integer(sb->pid) : json_null());
}

/** Return: 0 or -errno. */
static int list_one(const struct state *state, const char *id, json_t *array, bool *titled)
{
	struct sandbox sb;

	/* -ENOENT: being made or removed. */
	if (sandbox_load(state, id, &sb) || sb.thawd)
		return 0;
	if (array)
		return json_array_append_new(array, sandbox_json(&sb)) ? -ENOMEM : 0;
	if (!*titled)
		printf("%-12s  %-20s %-9s %-20s  %-12s %s\n", "ID", "TEMPLATE", "STATE", "CREATED",
		       "PARENT", "PID");
	*titled = true;
	printf("%-12s  %-20s %-9s %-20s  %-12s ", sb.id, sb.template_name,
	       sandbox_state_name(sb.state), sb.created, sb.parent[0] ? sb.parent : "-");
	if (sb.pid)
		printf("%d\n", (int)sb.pid);
	else
		printf("-\n");
	return 0;
}

int ps_main(struct cli *cli, int argc, char **argv)
{
	struct ps_opts opts = {0};
	struct optparse_result result;
	struct sandbox_ids ids;
	struct state state;
	json_t *array = NULL;
	bool titled = false;
	int status, ret;

	(void)cli;
	status = cli_parse(&ps_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (state_init(&state))
		return CLI_FAILED;
	sandbox_sweep(&state);
	ret = sandbox_list(&state, &ids);
	if (!ret && opts.json) {
		array = json_array();
		ret = array ? 0 : -ENOMEM;
	}
	for (size_t i = 0; !ret && i < ids.count; i++)
		ret = list_one(&state, ids.ids[i], array, &titled);
	if (!ret && array)
		ret = json_print(array);
	json_decref(array);
	free(ids.ids);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

/** Return: has the process ended within @timeout_ms? */
static bool wait_gone(int pid_fd, u64 timeout_ms)
{
	const u64 deadline_ns = clock_now_ns() + timeout_ms * 1000000;
	struct pollfd pfd = {.fd = pid_fd, .events = POLLIN};

	for (;;) {
		u64 now_ns = clock_now_ns();
		int n;

		if (now_ns >= deadline_ns)
			return false;
		n = poll(&pfd, 1, (int)((deadline_ns - now_ns) / 1000000 + 1));
		if (n == 1)
			return true;
		if (n < 0 && errno != EINTR)
			return false;
	}
}

/** Ask the guest. Return: 0 or -errno (logged). */
static int ask_to_end(const struct state *state, const struct sandbox *sb, u64 grace_ms)
{
	int fd = sandbox_stream(state, sb), ret;

	if (fd < 0)
		return fd;
	ret = exec_shutdown(fd, (u32)MIN(grace_ms, (u64)SHIM_GRACE_MAX_MS),
			    clock_now_ns() + STOP_ANSWER_NS);
	if (ret)
		log_warn("sandbox %s: the guest does not answer (%s): its machine is ended", sb->id,
			 strerror(-ret));
	fd_close(&fd);
	return ret;
}

/** @grace_ms: 0: at once. Return: 0 or -errno (logged). */
static int end_machine(const struct state *state, const struct sandbox *sb, u64 grace_ms)
{
	pid_t pid;
	int pid_fd = sandbox_pidfd(state, sb->id, &pid), ret = 0;

	if (pid_fd == -ESRCH) {
		sandbox_end_stray(state, sb->id);
		return 0;
	}
	if (pid_fd < 0) {
		log_err("sandbox %s: can't tell whether it runs: %s", sb->id, strerror(-pid_fd));
		return pid_fd;
	}
	if (!grace_ms || ask_to_end(state, sb, grace_ms) ||
	    !wait_gone(pid_fd, grace_ms + STOP_EXTRA_MS)) {
		(void)syscall(SYS_pidfd_send_signal, pid_fd, SIGKILL, NULL, 0);
		ret = wait_gone(pid_fd, KILL_WAIT_MS) ? 0 : -ETIMEDOUT;
	}
	if (ret)
		log_err("sandbox %s: thaw-vmm (pid %d) does not end", sb->id, (int)pid);
	fd_close(&pid_fd);
	return ret;
}

static int stop_one(const struct state *state, const struct sandbox *sb, const struct ps_opts *opts)
{
	if (!sb->pid && sb->state != SANDBOX_DEAD) {
		log_err("stop: sandbox %s is %s: 'thaw rm' removes it", sb->id,
			sandbox_state_name(sb->state));
		return -EINVAL;
	}
	return end_machine(state, sb, MAX(opts->grace_ns / 1000000, (u64)1));
}

static int remove_one(const struct state *state, const struct sandbox *sb,
		      const struct ps_opts *opts)
{
	if (sb->pid && !opts->force) {
		log_err("rm: sandbox %s is running: 'thaw stop' it, or give --force", sb->id);
		return -EBUSY;
	}
	return end_machine(state, sb, 0);
}

static int end_one(const struct state *state, const char *prefix, const struct ps_opts *opts,
		   bool stop)
{
	struct sandbox sb;
	int ret = sandbox_find_locked(state, prefix, &sb);

	if (ret)
		return ret;
	ret = stop ? stop_one(state, &sb, opts) : remove_one(state, &sb, opts);
	if (!ret)
		ret = sandbox_remove(state, &sb);
	sandbox_unlock(&sb);
	return ret;
}

static int stop_or_remove(const struct optparse_command *command, int argc, char **argv)
{
	struct ps_opts opts = {.grace_ns = STOP_GRACE_NS};
	struct optparse_result result;
	struct state state;
	int status, all_fd, ret = 0;

	status = cli_parse(command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (state_init(&state))
		return CLI_FAILED;
	all_fd = sandbox_lock_all(&state, false);
	if (all_fd < 0)
		return CLI_FAILED;
	for (int i = 0; i < result.npositional; i++) {
		int one = end_one(&state, result.positional[i], &opts, command == &stop_command);

		ret = ret ? ret : one;
	}
	fd_close(&all_fd);
	/* The snapshot that only this one ran from. */
	sandbox_sweep(&state);
	return ret ? CLI_FAILED : CLI_OK;
}

int stop_main(struct cli *cli, int argc, char **argv)
{
	(void)cli;
	return stop_or_remove(&stop_command, argc, argv);
}

int rm_main(struct cli *cli, int argc, char **argv)
{
	(void)cli;
	return stop_or_remove(&rm_command, argc, argv);
}
