// SPDX-License-Identifier: Apache-2.0
// What `thaw run` and `thaw exec` share.
#include "vmm/cli/exec_status.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "vmm/cli/cli.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** One that the caller had ignored (nohup, a background job of a script) stays ignored. */
int exec_open_signals(bool tty)
{
	static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
	struct sigaction action;
	sigset_t set;
	int fd = -1, ret = 0;

	sigemptyset(&set);
	for (size_t i = 0; i < ARRAY_SIZE(passed); i++) {
		if (sigaction(passed[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
			sigaddset(&set, passed[i]);
	}
	if (tty)
		sigaddset(&set, SIGWINCH);
	/* A reader that has gone is told by EPIPE, and ends the command like SIGPIPE would. */
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR || sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		ret = -errno;
	else
		fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (!ret && fd < 0)
		ret = -errno;
	if (ret)
		log_err("signals: %s", strerror(-ret));
	return ret ? ret : fd;
}

static int spawn_error_status(const struct exec_request *request, const struct exec_result *result)
{
	switch (result->stage) {
	case SHIM_STAGE_EXEC:
		log_err("%s: %s", request->argv[0], strerror(result->error));
		return result->error == ENOENT || result->error == ENOTDIR ? CLI_RUN_NOT_FOUND
									   : CLI_RUN_NOT_EXECUTABLE;
	case SHIM_STAGE_CWD:
		log_err("working directory %s in the guest: %s", request->cwd ? request->cwd : "/",
			strerror(result->error));
		return CLI_RUN_FAILED;
	default:
		if (result->stage == SHIM_STAGE_REQUEST && result->error == ESTALE) {
			log_err("another client has taken the command over");
			return CLI_RUN_FAILED;
		}
		/* A shim that does not know the extension. */
		if (request->ext && result->stage == SHIM_STAGE_REQUEST && result->error == EINVAL)
			log_err("the guest can't do that (a terminal, a time-out): its template is "
				"older than this thaw: build it again");
		log_err("the guest could not start the command: %s%s%s", strerror(result->error),
			result->text[0] ? ": " : "", result->text);
		return CLI_RUN_FAILED;
	}
}

int exec_exit_status(const struct exec_request *request, const struct exec_result *result,
		     int *signal_number)
{
	if (result->timed_out) {
		log_err("time-out: the command was killed");
		return CLI_RUN_TIMEOUT;
	}
	switch (result->kind) {
	case EXEC_EXITED:
		return (int)(result->value & 0xff);
	case EXEC_SIGNALLED:
		if (result->oom_killed)
			log_err("the guest's kernel killed something of the command: it has no "
				"more memory");
		*signal_number = (int)(result->value & 0x7f);
		return CLI_RUN_SIGNAL_BASE + *signal_number;
	case EXEC_DETACHED:
		return CLI_OK;
	case EXEC_SPAWN_ERROR:
		return spawn_error_status(request, result);
	case EXEC_TIMEOUT:
		return CLI_RUN_TIMEOUT;
	case EXEC_OUTPUT_ERROR:
		if (result->error == EPIPE)
			return CLI_RUN_SIGNAL_BASE + SIGPIPE;
		log_err("output of the command: %s", strerror(result->error));
		return CLI_RUN_FAILED;
	case EXEC_PROTOCOL:
		log_err("the guest broke the exec protocol: %s", result->text);
		return CLI_RUN_FAILED;
	case EXEC_LOST:
	case EXEC_ABORTED:
		return CLI_RUN_FAILED;
	}
	return CLI_RUN_FAILED;
}
