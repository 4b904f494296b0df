// SPDX-License-Identifier: Apache-2.0
// Commands in sandboxes of thawd.
//
// What a command prints is kept in the guest and counted from its start. So when thawd goes away in
// the middle (it is upgraded, it was killed), nothing is lost: a new connection is made as soon as
// a thawd is there, and the output goes on behind the last byte that was passed on. Only input that
// was under way may be gone; then the command is left alone and the error says so.
#include "vmm/cli/exec_api.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "vmm/cli/exec_internal.h"
#include "vmm/cli/tty.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define EXEC_PROTOCOL_NAME "thaw-exec/1"
#define RETRY_MS	   100
/** Connections that bring nothing and end without a last word. */
#define IN_VAIN_MAX 3
/** The guest ends a command by itself; this is for one that does not. */
#define TIMEOUT_SLACK_NS 5000000000ull

static int upgrade(struct exec_api *api, const char *method, const struct client_target *target)
{
	struct httpc_response response;
	const char *id;
	int ret;

	ret = client_upgrade(api->client, method, target, EXEC_PROTOCOL_NAME, &response);
	if (ret)
		return ret;
	id = httpc_header(&response, "X-Thaw-Exec");
	if (id)
		client_printable(id, api->id, sizeof(api->id));
	httpc_response_free(&response);
	return 0;
}

static int upgrade_attach(struct exec_api *api, s64 cursor)
{
	struct client_target target;

	client_target_box(&target, api->box, "execs");
	client_target_add(&target, api->id);
	client_target_add(&target, "attach");
	if (cursor >= 0)
		client_target_u64(&target, "cursor", (u64)cursor);
	return upgrade(api, "GET", &target);
}

/** A moment, unless a signal wants the end. Return: false then. */
static bool wait_a_moment(const struct exec_io *io)
{
	struct pollfd pfd = {.fd = io->signal_fd, .events = POLLIN};
	struct signalfd_siginfo info;

	if (poll(&pfd, 1, RETRY_MS) < 1 || read(io->signal_fd, &info, sizeof(info)) < 0)
		return true;
	return info.ssi_signo == SIGWINCH;
}

/** Until there is a thawd that has the command. Return: 0, or -errno. */
static int come_back(struct exec_api *api, const struct exec_io *io, u64 cursor)
{
	const u64 deadline_ns = clock_now_ns() + EXEC_API_RETURN_NS;
	int ret;

	do {
		/* The socket of the former protocol is of no use. */
		client_close(api->client);
		api->client->silent = true;
		ret = upgrade_attach(api, (s64)cursor);
		api->client->silent = false;
		/* One that has just begun may still be looking for its sandboxes. */
		if (!ret || (ret == -EREMOTEIO && api->client->status < 500))
			return ret;
	} while (clock_now_ns() < deadline_ns && wait_a_moment(io));
	return ret;
}

static void explain_lost(const struct exec_api *api, int ret)
{
	if (ret == -EREMOTEIO && api->client->status == 404)
		log_err("sandbox %s ended, and was removed, before the command ended", api->box);
	else if (ret == -EREMOTEIO)
		log_err("sandbox %s ended, or was paused, before the command ended (%s)", api->box,
			api->client->code);
	else
		log_err("thawd went away and did not come back: the command (%s) goes on in "
			"sandbox %s",
			api->id, api->box);
}

/** Follow it over as many connections as it takes. */
static int follow(struct exec_api *api, const struct exec_request *request,
		  const struct exec_io *io, struct exec_result *result)
{
	struct exec_io again = *io;
	u64 stdout_bytes = 0, stderr_bytes = 0;
	int ret = exec_run(api->client->fd, request, io, result), back;
	unsigned int in_vain = 0;
	u64 cursor;

	while (!ret && result->kind == EXEC_LOST && api->id[0]) {
		if (result->stdin_unsure) {
			tty_restore();
			log_err("thawd went away while input was sent, some of which may be lost: "
				"the command (%s) may go on in sandbox %s",
				api->id, api->box);
			return 0;
		}
		stdout_bytes += result->stdout_bytes;
		stderr_bytes += result->stderr_bytes;
		back = come_back(api, io, result->cursor);
		if (back) {
			tty_restore();
			explain_lost(api, back);
			return 0;
		}
		again.attach = true;
		cursor = result->cursor;
		ret = exec_run(api->client->fd, NULL, &again, result);
		in_vain = result->cursor > cursor ? 0 : in_vain + 1;
		if (!ret && result->kind == EXEC_LOST && in_vain == IN_VAIN_MAX) {
			tty_restore();
			log_err("how the command (%s) ended is not known: thawd has lost it",
				api->id);
			return 0;
		}
	}
	result->stdout_bytes += stdout_bytes;
	result->stderr_bytes += stderr_bytes;
	if (ret)
		log_err("exec: %s", strerror(-ret));
	return ret;
}

int exec_api_run(struct exec_api *api, const struct exec_request *request, const struct exec_io *io,
		 struct exec_result *result)
{
	struct client_target target;
	int ret;

	api->id[0] = '\0';
	client_target_box(&target, api->box, "exec");
	ret = upgrade(api, "POST", &target);
	return ret ? ret : follow(api, request, io, result);
}

int exec_api_attach(struct exec_api *api, s64 cursor, const struct exec_io *io,
		    struct exec_result *result)
{
	struct exec_io attach = *io;
	int ret = upgrade_attach(api, cursor);

	attach.attach = true;
	return ret ? ret : follow(api, NULL, &attach, result);
}

void exec_prepare(const struct run_opts *opts, u64 start_ns, bool by_thawd,
		  struct exec_request *request, struct shim_exec_ext *ext, struct exec_io *io)
{
	const bool terminal = opts->tty && opts->with_stdin && isatty(STDIN_FILENO);
	const u64 used_ns = MIN(clock_now_ns() - start_ns, opts->timeout_ns);

	*ext = (struct shim_exec_ext){0};
	*request = (struct exec_request){.argv = opts->argv,
					 .env = opts->env.vars,
					 .cwd = opts->cwd,
					 .uid = opts->user.uid,
					 .gid = opts->user.gid,
					 .with_stdin = opts->with_stdin || opts->tty,
					 .detach = opts->detach};
	*io = (struct exec_io){.stdin_fd = opts->with_stdin ? STDIN_FILENO : -1,
			       .stdout_fd = STDOUT_FILENO,
			       .stderr_fd = STDERR_FILENO,
			       .signal_fd = -1,
			       .watch_fd = -1,
			       .tty = terminal,
			       .tty_fd = STDIN_FILENO,
			       .detach_keys = terminal && by_thawd};
	if (opts->tty) {
		ext->flags |= SHIM_EXT_PTY;
		if (!tty_size_of(STDIN_FILENO, &ext->size) &&
		    !tty_size_of(STDOUT_FILENO, &ext->size))
			ext->size = (struct shim_size){.cols = 80, .rows = 24};
	}
	if (opts->timeout_ns)
		io->deadline_ns = start_ns + opts->timeout_ns + (by_thawd ? TIMEOUT_SLACK_NS : 0);
	if (opts->timeout_ns && by_thawd)
		ext->timeout_ms =
			(u32)MIN((opts->timeout_ns - used_ns) / 1000000 + 1, (u64)UINT32_MAX);
	if (ext->flags || ext->timeout_ms)
		request->ext = ext;
}

int exec_begin_tty(const struct exec_io *io)
{
	int ret = io->tty ? tty_raw(io->tty_fd) : 0;

	if (ret)
		log_err("terminal: %s", strerror(-ret));
	return ret;
}
