// SPDX-License-Identifier: Apache-2.0
// A thaw-vmm is born: by posix_spawn(3), or in a jail.
#include "vmm/cli/vmmproc_spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

#include "vmm/jail/jail.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

extern char **environ;

/*
 * The order matters: no dup2 may hit the number of a source that is still needed. Sources are >= 3,
 * so 0 to 2 are safe targets; the numbers behind them can only be those of the extra files, which
 * vmmproc_start() has moved away.
 */
static int add_actions(posix_spawn_file_actions_t *actions, const struct vmmproc_opts *opts,
		       int ctl_fd, int log_fd)
{
	int last = opts->hot_fd > 0	? VMMPROC_HOT_FD
		   : opts->file_fd >= 0 ? VMMPROC_FILE_FD
					: VMMPROC_CTL_FD;
	int ret;

	ret = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDWR, 0);
	if (!ret && opts->output_fd >= 0)
		ret = posix_spawn_file_actions_adddup2(actions, opts->output_fd, 1);
	else if (!ret)
		ret = posix_spawn_file_actions_adddup2(actions, 0, 1);
	/* Onto itself, stderr loses a close-on-exec flag. */
	if (!ret)
		ret = posix_spawn_file_actions_adddup2(actions, log_fd >= 0 ? log_fd : 2, 2);
	if (!ret)
		ret = posix_spawn_file_actions_adddup2(actions, ctl_fd, VMMPROC_CTL_FD);
	if (!ret && opts->file_fd >= 0)
		ret = posix_spawn_file_actions_adddup2(actions, opts->file_fd, VMMPROC_FILE_FD);
	if (!ret && opts->hot_fd > 0)
		ret = posix_spawn_file_actions_adddup2(actions, opts->hot_fd, VMMPROC_HOT_FD);
	if (!ret)
		ret = posix_spawn_file_actions_addclosefrom_np(actions, last + 1);
	return -ret;
}

static int set_attributes(posix_spawnattr_t *attr)
{
	sigset_t none, defaults;
	int ret;

	sigemptyset(&none);
	sigfillset(&defaults);
	ret = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
						     POSIX_SPAWN_SETSIGDEF);
	if (!ret)
		ret = posix_spawnattr_setsigmask(attr, &none);
	if (!ret)
		ret = posix_spawnattr_setsigdefault(attr, &defaults);
	return -ret;
}

static bool env_passes(const char *var)
{
	static const char *const prefixes[] = {
		"THAW_", "ASAN_OPTIONS=", "UBSAN_OPTIONS=", "LSAN_OPTIONS=", "TSAN_OPTIONS="};

	for (size_t i = 0; i < ARRAY_SIZE(prefixes); i++) {
		if (!strncmp(var, prefixes[i], strlen(prefixes[i])))
			return true;
	}
	return false;
}

/** A guest that takes over its VMM must not find the caller's tokens in its environment. @out has
 * room for @max, NULL included. */
static void filter_env(char **out, size_t max)
{
	size_t count = 0;

	for (char **var = environ; *var && count + 1 < max; var++) {
		if (env_passes(*var))
			out[count++] = *var;
	}
	out[count] = NULL;
}

static int spawn_in_jail(struct vmmproc *proc, const struct vmmproc_opts *opts, const char *path,
			 int child_ctl_fd, int log_fd)
{
	const int fds[] = {-1, opts->output_fd, log_fd >= 0 ? log_fd : STDERR_FILENO, child_ctl_fd,
			   opts->file_fd};
	struct jail_birth birth = {.path = path,
				   .argv = (char *const *)opts->argv,
				   .fds = fds,
				   .nfds = opts->file_fd >= 0 ? 5 : 4};
	char *env[32];
	pid_t pid;

	filter_env(env, ARRAY_SIZE(env));
	birth.env = env;
	pid = jail_spawn(opts->jail, &birth);
	if (pid < 0) {
		log_err("%s: can't start in a jail: %s", path, strerror(-pid));
		return pid;
	}
	proc->pid = pid;
	return 0;
}

int vmmproc_spawn(struct vmmproc *proc, const struct vmmproc_opts *opts, const char *path,
		  int child_ctl_fd)
{
	int log_fd = opts->log_fd >= 0 ? opts->log_fd : proc->log_fd;
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	char *env[32];
	int ret;

	if (opts->jail)
		return spawn_in_jail(proc, opts, path, child_ctl_fd, log_fd);
	filter_env(env, ARRAY_SIZE(env));
	ret = -posix_spawn_file_actions_init(&actions);
	if (ret)
		return ret;
	ret = -posix_spawnattr_init(&attr);
	if (ret)
		goto out_actions;
	ret = add_actions(&actions, opts, child_ctl_fd, log_fd);
	if (!ret)
		ret = set_attributes(&attr);
	if (!ret)
		ret = -posix_spawn(&proc->pid, path, &actions, &attr, (char *const *)opts->argv,
				   env);
	if (ret) {
		proc->pid = 0;
		log_err("%s: can't start: %s", path, strerror(-ret));
	}
	posix_spawnattr_destroy(&attr);
out_actions:
	posix_spawn_file_actions_destroy(&actions);
	return ret;
}
