// SPDX-License-Identifier: Apache-2.0
// The owner's half of a jail: prepared, and a process born in it.
//
// The birth is a clone3(2) instead of posix_spawn(3), which knows neither pid namespaces nor
// CLONE_INTO_CGROUP. The new process shares nothing with a caller that may have many threads, so
// until it becomes thaw-vmm it does system calls alone: no lock, no heap.
#include "vmm/jail/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/jail/internal.h"
#include "vmm/util/util.h"

#define BIRTH_FDS_MAX 8
#define BIRTH_FAILED  127

/* The VMM itself: beside guest memory it has streams' buffers, the pages of its own tables, what
 * the kernel keeps for it. */
#define OWN_MEMORY_BYTES (96 * MIB)
#define OWN_THREADS	 96 /* that populate memory, serve page faults, watch; KVM's own */

void jail_config_default(struct jail_config *config)
{
	*config = (struct jail_config){.uid_base = JAIL_UID_BASE,
				       .uid_count = JAIL_UID_COUNT,
				       .cgroup_root = JAIL_CGROUP_ROOT,
				       .require_cgroup = true};
}

void jail_limits_default(struct jail_limits *limits, u64 memory_bytes, unsigned int vcpus)
{
	*limits = (struct jail_limits){.memory_max_bytes =
					       memory_bytes + memory_bytes / 16 + OWN_MEMORY_BYTES,
				       .pids_max = vcpus + OWN_THREADS};
}

int jail_prepare(const struct state *state, const struct jail_config *config, const char *name,
		 const struct jail_limits *limits, struct jail *jail)
{
	int ret;

	*jail = (struct jail){.slot_fd = -1, .cgroup_fd = -1};
	ret = jail_take_uid(state, config, jail);
	if (!ret)
		ret = jail_cgroup_make(state, config, name, limits, jail);
	if (ret)
		jail_close(jail);
	return ret;
}

void jail_close(struct jail *jail)
{
	fd_close(&jail->slot_fd);
	fd_close(&jail->cgroup_fd);
}

/** Lift what would be overwritten out of the way, then put all in place. Return: 0 or -errno. */
static int place_fds(int *fds, unsigned int nfds)
{
	int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null_fd < 0)
		return -errno;
	for (unsigned int i = 0; i < nfds; i++) {
		fds[i] = fcntl(fds[i] < 0 ? null_fd : fds[i], F_DUPFD_CLOEXEC, (int)nfds);
		if (fds[i] < 0)
			return -errno;
	}
	for (unsigned int i = 0; i < nfds; i++) {
		if (dup2(fds[i], (int)i) < 0)
			return -errno;
	}
	return syscall(SYS_close_range, nfds, ~0u, 0) < 0 ? -errno : 0;
}

static _Noreturn void born(const struct jail *jail, const struct jail_birth *birth)
{
	static const char words[] = "thaw: thaw-vmm can't be started in its jail: ";
	int fds[BIRTH_FDS_MAX + 1], ret;
	const char *why;
	sigset_t none;

	for (int signo = 1; signo < NSIG; signo++)
		(void)signal(signo, SIG_DFL);
	sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	(void)setsid();
	memcpy(fds, birth->fds, birth->nfds * sizeof(*fds));
	fds[birth->nfds] = jail->slot_fd;
	ret = place_fds(fds, birth->nfds + 1);
	if (!ret) {
		(void)execve(birth->path, birth->argv, birth->env);
		ret = -errno;
	}
	why = strerrorname_np(-ret);
	(void)!write(STDERR_FILENO, words, sizeof(words) - 1);
	(void)!write(STDERR_FILENO, why ? why : "?", why ? strlen(why) : 1);
	(void)!write(STDERR_FILENO, "\n", 1);
	_exit(BIRTH_FAILED);
}

pid_t jail_spawn(const struct jail *jail, const struct jail_birth *birth)
{
	struct clone_args args = {.flags = CLONE_NEWPID, .exit_signal = SIGCHLD};
	sigset_t all, old;
	long pid;
	int ret;

	if (birth->nfds > BIRTH_FDS_MAX)
		return -EINVAL;
	if (jail->cgroup_fd >= 0) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (u64)jail->cgroup_fd;
	}
	/* No handler of the caller's may run in the new process. */
	sigfillset(&all);
	ret = -pthread_sigmask(SIG_SETMASK, &all, &old);
	if (ret)
		return ret;
	pid = syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		born(jail, birth);
	ret = pid < 0 ? -errno : 0;
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	return ret ? ret : (pid_t)pid;
}
