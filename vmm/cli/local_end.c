// SPDX-License-Identifier: Apache-2.0
// The sandboxes that stay without thawd: listed and ended.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/cli/exec.h"
#include "vmm/cli/local.h"
#include "vmm/cli/sandbox.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define STOP_ANSWER_NS 10000000000ull
#define STOP_EXTRA_MS  10000 /* for the guest's power-off, beyond the grace */
#define KILL_WAIT_MS   10000

static json_t *sandbox_json(const struct sandbox *sb)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:s, s:o}", "id", sb->id, "state",
			 sandbox_state_name(sb->state), "template", sb->template_name, "snapshot",
			 sb->snapshot, "parent",
			 sb->parent[0] ? json_string(sb->parent) : json_null(), "hostname",
			 sb->hostname, "created", sb->created, "pid",
			 sb->pid ? json_integer(sb->pid) : json_null());
}

int local_list(const struct state *state, json_t *array)
{
	struct sandbox_ids ids;
	struct sandbox sb;
	int ret;

	ret = sandbox_list(state, &ids);
	for (size_t i = 0; !ret && i < ids.count; i++) {
		/* -ENOENT: being made or removed. */
		if (sandbox_load(state, ids.ids[i], &sb) || sb.thawd)
			continue;
		ret = json_array_append_new(array, sandbox_json(&sb)) ? -ENOMEM : 0;
	}
	free(ids.ids);
	return ret;
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

static int stop_one(const struct state *state, const struct sandbox *sb, u64 grace_ns)
{
	if (!sb->pid && sb->state != SANDBOX_DEAD) {
		log_err("stop: sandbox %s is %s: 'thaw rm' removes it", sb->id,
			sandbox_state_name(sb->state));
		return -EINVAL;
	}
	return end_machine(state, sb, MAX(grace_ns / 1000000, (u64)1));
}

static int remove_one(const struct state *state, const struct sandbox *sb, bool force)
{
	if (sb->pid && !force) {
		log_err("rm: sandbox %s is running: 'thaw stop' it, or give --force", sb->id);
		return -EBUSY;
	}
	return end_machine(state, sb, 0);
}

/** @grace_ns: 0: remove it, with @force also when it runs. */
static int end_one(const char *prefix, u64 grace_ns, bool force)
{
	struct state state;
	struct sandbox sb;
	int all_fd, ret;

	ret = state_init(&state);
	if (ret)
		return ret;
	all_fd = sandbox_lock_all(&state, false);
	if (all_fd < 0)
		return all_fd;
	ret = sandbox_find_locked(&state, prefix, &sb);
	if (!ret) {
		ret = grace_ns ? stop_one(&state, &sb, grace_ns) : remove_one(&state, &sb, force);
		if (!ret)
			ret = sandbox_remove(&state, &sb);
		sandbox_unlock(&sb);
	}
	fd_close(&all_fd);
	/* The snapshot that only this one ran from. */
	sandbox_sweep(&state);
	return ret;
}

int local_stop(const char *prefix, u64 grace_ns)
{
	return end_one(prefix, MAX(grace_ns, (u64)1), false);
}

int local_remove(const char *prefix, bool force)
{
	return end_one(prefix, 0, force);
}
