// SPDX-License-Identifier: Apache-2.0
// `thaw run -d`: a sandbox that stays.
#include "vmm/cli/run_detached.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/cli/cli.h"
#include "vmm/cli/exec_status.h"
#include "vmm/cli/sandbox.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define DETACHED_STREAM_NS 60000000000ull

static int lock_template(const struct state *state, const char *name)
{
	int fd = state_lock_template(state, name, false);

	if (fd == -ENOENT)
		log_err("no template '%s' in %s/templates: 'thaw template ls' lists them, "
			"'thaw template build' makes one",
			name, state->root);
	else if (fd == -EBUSY)
		log_err("template '%s' is being removed", name);
	else if (fd < 0)
		log_err("%s/templates/%s: %s", state->root, name, strerror(-fd));
	return fd;
}

/** The command, if there is one. Return: exit status. */
static int start_command(const struct state *state, const struct sandbox *sb,
			 const struct run_opts *opts)
{
	struct exec_request request = {.argv = opts->argv,
				       .env = opts->env.vars,
				       .cwd = opts->cwd,
				       .uid = opts->user.uid,
				       .gid = opts->user.gid,
				       .detach = true};
	struct exec_io io = {.stdin_fd = -1,
			     .stdout_fd = -1,
			     .stderr_fd = -1,
			     .signal_fd = -1,
			     .watch_fd = -1,
			     .deadline_ns = clock_now_ns() + DETACHED_STREAM_NS};
	struct exec_result result;
	int fd, ret, signal_number;

	if (!opts->argv[0])
		return CLI_OK;
	fd = sandbox_stream(state, sb);
	ret = fd < 0 ? fd : exec_run(fd, &request, &io, &result);
	fd_close(&fd);
	if (ret)
		return CLI_RUN_FAILED;
	if (result.kind == EXEC_LOST)
		log_err("the guest closed the command's stream");
	return exec_exit_status(&request, &result, &signal_number);
}

static int start(const struct state *state, const struct run_opts *opts, struct sandbox *sb,
		 struct vmmproc *vmm)
{
	const char *words[16];
	const struct sandbox_opts start_opts = {
		.strategy = opts->strategy, .words = words, .console_path = opts->console_path};
	char why[320] = "";
	int ret;

	words[run_restore_words(opts, words)] = NULL;
	ret = sandbox_new(state, sb);
	if (ret)
		return ret;
	sb->state = SANDBOX_RUNNING;
	sb->jail = opts->jail;
	snprintf(sb->template_name, sizeof(sb->template_name), "%s", opts->template_name);
	snprintf(sb->snapshot, sizeof(sb->snapshot), "%s", opts->template_name);
	snprintf(sb->hostname, sizeof(sb->hostname), "%s",
		 opts->hostname ? opts->hostname : sb->id);
	ret = sandbox_save(state, sb);
	if (!ret)
		ret = sandbox_start(state, sb, &start_opts, vmm);
	if (!ret) {
		ret = sandbox_wait_resumed(state, sb, vmm, why, sizeof(why));
		if (ret)
			log_err("%s: the sandbox did not start: %s", opts->template_name, why);
	}
	return ret;
}

int run_detached(const struct run_opts *opts)
{
	struct vmmproc vmm = {.ctl_fd = -1, .log_fd = -1, .accept_fd = -1};
	struct sandbox sb = {.lock_fd = -1};
	int status = CLI_RUN_FAILED, all_fd = -1, template_fd = -1, ret;
	struct state state;

	ret = state_init(&state);
	if (!ret)
		sandbox_sweep(&state);
	if (!ret)
		ret = template_fd = lock_template(&state, opts->template_name);
	if (ret >= 0)
		ret = all_fd = sandbox_lock_all(&state, false);
	if (ret < 0)
		goto out;
	ret = start(&state, opts, &sb, &vmm);
	if (!ret) {
		status = start_command(&state, &sb, opts);
		ret = status ? -EIO : 0;
	}
	if (!ret && (printf("%s\n", sb.id) < 0 || cli_flush()))
		ret = -EIO;
	if (!ret) {
		vmmproc_release(&vmm);
		sandbox_unlock(&sb);
		goto out;
	}
	status = status ? status : CLI_RUN_FAILED;
	vmmproc_end(&vmm);
	if (sb.lock_fd >= 0 && sandbox_remove(&state, &sb))
		log_warn("sandbox %s: its folder stays", sb.id);
out:
	fd_close(&all_fd);
	fd_close(&template_fd);
	return status;
}
