// SPDX-License-Identifier: Apache-2.0
// `thaw exec`: a command in a sandbox that stays.
//
// The stream is a connection of its own to the machine's vsock socket, so that any number of them
// run side by side and none of them needs the control channel.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/cli.h"
#include "vmm/cli/exec_status.h"
#include "vmm/cli/run_opts.h"
#include "vmm/cli/sandbox.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** How long a machine that has dropped the command's stream gets to end. */
#define EXEC_LAST_WORDS_MS 1000

static void explain_lost(const struct state *state, const struct sandbox *sb,
			 const struct exec_result *result)
{
	pid_t pid;
	struct pollfd gone = {.fd = sandbox_pidfd(state, sb->id, &pid), .events = POLLIN};

	/* A machine that ends closes its streams first. */
	if (gone.fd < 0 || poll(&gone, 1, EXEC_LAST_WORDS_MS) == 1)
		log_err("sandbox %s ended, or was paused, before the command ended", sb->id);
	else
		log_err("the guest closed the command's stream%s%s", result->text[0] ? ": " : "",
			result->text);
	fd_close(&gone.fd);
}

static int run_in_sandbox(const struct state *state, const struct sandbox *sb,
			  const struct run_opts *opts, u64 start_ns)
{
	const struct exec_request request = {.argv = opts->argv,
					     .env = opts->env.vars,
					     .cwd = opts->cwd,
					     .uid = opts->user.uid,
					     .gid = opts->user.gid,
					     .with_stdin = opts->with_stdin,
					     .detach = opts->detach};
	struct exec_io io = {.stdin_fd = opts->with_stdin ? STDIN_FILENO : -1,
			     .stdout_fd = STDOUT_FILENO,
			     .stderr_fd = STDERR_FILENO,
			     .watch_fd = -1,
			     .deadline_ns = opts->timeout_ns ? start_ns + opts->timeout_ns : 0};
	struct exec_result result;
	int fd, ret, signal_number;

	fd = sandbox_stream(state, sb);
	if (fd < 0)
		return CLI_RUN_FAILED;
	io.signal_fd = exec_open_signals();
	ret = io.signal_fd < 0 ? io.signal_fd : exec_run(fd, &request, &io, &result);
	fd_close(&io.signal_fd);
	fd_close(&fd);
	if (ret == -E2BIG)
		log_err("the command and its environment are too long: at most %u KiB and %u words",
			SHIM_EXEC_MAX_BYTES / 1024, SHIM_ARGS_MAX);
	else if (ret)
		log_err("exec: %s", strerror(-ret));
	if (ret)
		return CLI_RUN_FAILED;
	if (result.kind == EXEC_LOST)
		explain_lost(state, sb, &result);
	if (result.kind == EXEC_TIMEOUT)
		log_err("time-out: the command was killed");
	return exec_exit_status(&request, &result, &signal_number);
}

int exec_main(struct cli *cli, int argc, char **argv)
{
	struct optparse_result result;
	struct run_opts opts;
	struct sandbox sb;
	struct state state;
	int status = CLI_RUN_FAILED, ret;

	ret = exec_opts_parse(&opts, argc, argv, &result);
	if (ret) {
		log_err("%s", ret == -EINVAL ? result.error : strerror(-ret));
	} else if (result.help) {
		optparse_help(&exec_command, stdout);
		status = cli_flush() ? CLI_RUN_FAILED : CLI_OK;
	} else if (!state_init(&state) && !sandbox_find(&state, opts.template_name, &sb) &&
		   !sandbox_want_running(&state, &sb, "exec")) {
		status = run_in_sandbox(&state, &sb, &opts, cli->start_ns);
	}
	run_opts_free(&opts);
	return status;
}
