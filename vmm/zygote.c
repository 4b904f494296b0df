// SPDX-License-Identifier: Apache-2.0
// The zygote of a pool.
//
// What can be done once for all clones of a template is done before zygote_serve(): the folder is
// opened and locked, every file of it checked, the CPU compared. A new process inherits the result
// and starts where `thaw-vmm restore` would go on. It is a plain fork of a process with one thread,
// so that no lock can be held by a thread that is not there any more, and comes before KVM is asked
// for a VM, because a VM belongs to the address space that made it.
//
// Ends. A new process has its own control channel and ends when that closes, not with the zygote.
// The zygote ends when its own channel closes. The number that CTL_FORKED tells is no promise for
// longer than the process lives; the pidfd beside it is, and it was opened before anybody could
// have reaped the process.
//
// What is shared: new processes have one address space layout and one stack protector value, that
// of the zygote. See docs/threat-model.md.
#include "vmm/zygote.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/util/ctl.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

struct zygote {
	int sock, signal_fd;
	sigset_t old_mask;
};

static void zygote_reap(void)
{
	pid_t pid;

	do {
		pid = waitpid(-1, NULL, WNOHANG);
	} while (pid > 0);
}

/** In the new process: nothing of the zygote's own stays. */
static void zygote_leave(struct zygote *zygote)
{
	fd_close(&zygote->sock);
	fd_close(&zygote->signal_fd);
	sigprocmask(SIG_SETMASK, &zygote->old_mask, NULL);
}

/** Tell what became of a CTL_FORK. Return: 0 or -errno (logged). */
static int zygote_answer(const struct zygote *zygote, const struct ctl_msg *request, pid_t pid,
			 int error)
{
	struct ctl_msg msg = {.version = CTL_VERSION,
			      .type = CTL_FORKED,
			      .error = error,
			      .generation = request->generation};
	int pid_fd = -1, ret;

	if (!error) {
		pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
		msg.error = pid_fd < 0 ? -errno : 0;
		msg.port = (u32)pid;
	}
	if (msg.error)
		log_err("zygote: new process: %s", strerror(-msg.error));
	/* Without a pidfd its owner could not end it: it does not get to live. */
	if (!error && msg.error)
		kill(pid, SIGKILL);
	ret = ctl_send(zygote->sock, &msg, pid_fd);
	fd_close(&pid_fd);
	if (ret && ret != -EPIPE)
		log_err("zygote: channel: %s", strerror(-ret));
	return ret == -EPIPE ? 0 : ret; /* the next receive sees the end */
}

/** Return: 1 in the new process, 0 or -errno (logged) in the zygote. */
static int zygote_fork(struct zygote *zygote, const struct ctl_msg *request, int fd)
{
	pid_t pid;

	if (fd < 0)
		return zygote_answer(zygote, request, 0, -EINVAL);
	pid = fork();
	if (pid == 0) {
		zygote_leave(zygote);
		return 1;
	}
	return zygote_answer(zygote, request, pid, pid < 0 ? -errno : 0);
}

/** Return: 1 in a new process, with @ctl_fd; 0 to go on; -EPIPE at the channel's end; or -errno
 * (logged). */
static int zygote_receive(struct zygote *zygote, int *ctl_fd)
{
	struct ctl_msg msg;
	int fd, ret;

	ret = ctl_recv(zygote->sock, &msg, &fd);
	if (ret == -EAGAIN)
		return 0;
	if (ret == 0 || ret == -ECONNRESET)
		return -EPIPE;
	if (ret < 0) {
		log_err("zygote: channel: %s", strerror(-ret));
		return ret;
	}
	ret = 0;
	if (msg.type == CTL_FORK)
		ret = zygote_fork(zygote, &msg, fd);
	else
		log_warn("zygote: message type %u ignored", msg.type);
	if (ret == 1)
		*ctl_fd = fd;
	else
		fd_close(&fd);
	return ret;
}

int zygote_serve(int sock, int *ctl_fd)
{
	struct ctl_msg ready = {.version = CTL_VERSION, .type = CTL_READY};
	struct zygote zygote = {.sock = sock};
	sigset_t set;
	int ret;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	zygote.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (zygote.signal_fd < 0 || sigprocmask(SIG_BLOCK, &set, &zygote.old_mask) < 0) {
		ret = -errno;
		log_err("zygote: signals: %s", strerror(-ret));
		goto out;
	}
	ret = ctl_send(sock, &ready, -1);
	while (!ret) {
		struct pollfd pfds[] = {{.fd = sock, .events = POLLIN},
					{.fd = zygote.signal_fd, .events = POLLIN}};
		struct signalfd_siginfo info;

		if (poll(pfds, ARRAY_SIZE(pfds), -1) < 0 && errno != EINTR) {
			ret = -errno;
			log_err("zygote: poll: %s", strerror(-ret));
			break;
		}
		/* One signal may stand for many ends. */
		if (read(zygote.signal_fd, &info, sizeof(info)) > 0)
			zygote_reap();
		if (pfds[0].revents)
			ret = zygote_receive(&zygote, ctl_fd);
	}
	if (ret == 1)
		return 1;
	zygote_reap();
out:
	fd_close(&zygote.signal_fd);
	return ret == -EPIPE ? 0 : ret;
}
