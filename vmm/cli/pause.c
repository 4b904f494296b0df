// SPDX-License-Identifier: Apache-2.0
// `thaw pause` and `thaw resume` without thawd: a sandbox on disk, and back.
//
// A pause is a snapshot that the machine ends with; a resume restores it under the same id. Both
// are announced in the state before anything happens, so that a command that is killed in between
// loses nothing: see sandbox_sweep.c.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "vmm/cli/json_out.h"
#include "vmm/cli/local.h"
#include "vmm/cli/sandbox.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define PAUSE_END_MS 30000

/** Its channel is closed, but files and locks go with the process. */
static int wait_end(const struct vmmproc *vmm)
{
	struct pollfd pfd = {.fd = vmm->pid_fd, .events = POLLIN};
	int n;

	do {
		n = poll(&pfd, 1, PAUSE_END_MS);
	} while (n < 0 && errno == EINTR);
	return n == 1 ? 0 : -ETIMEDOUT;
}

/** Return: 0 or -errno (logged); the state stands as announced then, if the machine has ended. */
static int pause_machine(const struct state *state, struct sandbox *sb, struct vmmproc *vmm)
{
	int ret;

	sb->state = SANDBOX_PAUSING;
	ret = sandbox_save(state, sb);
	if (ret)
		return ret;
	ret = sandbox_snapshot(state, sb, vmm, true, sb->next);
	if (ret)
		return ret;
	ret = wait_end(vmm);
	if (ret) {
		log_err("sandbox %s: is written, but its thaw-vmm (pid %d) does not end", sb->id,
			(int)vmm->pid);
		return ret;
	}
	sb->state = SANDBOX_PAUSED;
	memcpy(sb->snapshot, sb->next, sizeof(sb->snapshot));
	sb->next[0] = '\0';
	return sandbox_save(state, sb);
}

static int pause_json(const struct state *state, const struct sandbox *sb, u32 pause_us,
		      json_t **object)
{
	char folder[PATH_MAX];
	u64 bytes = 0;
	int ret;

	state_path(state, "templates", sb->snapshot, "", folder);
	ret = state_disk_usage(folder, &bytes);
	if (ret) {
		log_err("%s: %s", folder, strerror(-ret));
		return ret;
	}
	*object = json_pack("{s:s, s:s, s:f, s:I}", "id", sb->id, "snapshot", sb->snapshot,
			    "write_ms", (double)pause_us / 1000.0, "disk_usage_bytes",
			    (json_int_t)bytes);
	return *object ? 0 : -ENOMEM;
}

static int pause_sandbox(const struct state *state, const char *prefix, json_t **object)
{
	struct sandbox sb;
	struct vmmproc vmm;
	int ret;

	ret = sandbox_find_locked(state, prefix, &sb);
	if (!ret)
		ret = sandbox_want_running(state, &sb, "pause");
	if (!ret)
		ret = sandbox_snap_name(sb.next);
	if (!ret)
		ret = sandbox_own(state, &sb, &vmm);
	if (!ret) {
		ret = pause_machine(state, &sb, &vmm);
		if (!ret)
			ret = pause_json(state, &sb, vmm.pause_us, object);
		vmmproc_release(&vmm);
	}
	sandbox_unlock(&sb);
	return ret;
}

static int resume_machine(const struct state *state, struct sandbox *sb, const char *strategy,
			  struct vmmproc *vmm)
{
	const struct sandbox_opts opts = {.strategy = strategy};
	char why[320] = "";
	int ret;

	sb->state = SANDBOX_RESUMING;
	ret = sandbox_save(state, sb);
	if (!ret)
		ret = sandbox_start(state, sb, &opts, vmm);
	if (!ret) {
		ret = sandbox_wait_resumed(state, sb, vmm, why, sizeof(why));
		if (ret)
			log_err("sandbox %s: can't be resumed, and stays paused: %s", sb->id, why);
	}
	sb->state = ret ? SANDBOX_PAUSED : SANDBOX_RUNNING;
	if (ret)
		vmmproc_end(vmm);
	if (sandbox_save(state, sb))
		ret = ret ? ret : -EIO;
	return ret;
}

static int want_paused(const struct sandbox *sb)
{
	if (!sb->pid && sb->state == SANDBOX_PAUSED)
		return 0;
	if (sb->state == SANDBOX_DEAD)
		log_err("resume: sandbox %s has ended, and was not paused", sb->id);
	else
		log_err("resume: sandbox %s is not paused: it is %s", sb->id,
			sandbox_state_name(sb->state));
	return -EINVAL;
}

static int resume_sandbox(const struct state *state, const char *prefix, const char *strategy,
			  json_t **object)
{
	struct vmmproc vmm = {.ctl_fd = -1, .log_fd = -1, .accept_fd = -1};
	struct sandbox sb;
	int ret;

	ret = sandbox_find_locked(state, prefix, &sb);
	if (!ret)
		ret = want_paused(&sb);
	if (!ret) {
		ret = resume_machine(state, &sb, strategy, &vmm);
		if (!ret) {
			*object = json_pack("{s:s, s:o}", "id", sb.id, "clocks_ms",
					    start_clocks_json(&vmm.clocks));
			ret = *object ? 0 : -ENOMEM;
		}
		vmmproc_release(&vmm);
	}
	sandbox_unlock(&sb);
	return ret;
}

/** @strategy: with @resumes. */
static int pause_or_resume(const char *prefix, bool resumes, const char *strategy, json_t **object)
{
	struct state state;
	int all_fd, ret;

	ret = state_init(&state);
	if (ret)
		return ret;
	/* A pause whose command was killed is finished first. */
	if (resumes)
		sandbox_sweep(&state);
	all_fd = sandbox_lock_all(&state, false);
	if (all_fd < 0)
		return all_fd;
	if (resumes)
		ret = resume_sandbox(&state, prefix, strategy, object);
	else
		ret = pause_sandbox(&state, prefix, object);
	fd_close(&all_fd);
	/* A pause may have been the end of what the sandbox ran from before. */
	sandbox_sweep(&state);
	return ret;
}

int local_pause(const char *prefix, json_t **object)
{
	return pause_or_resume(prefix, false, NULL, object);
}

int local_resume(const char *prefix, const char *strategy, json_t **object)
{
	return pause_or_resume(prefix, true, strategy, object);
}
