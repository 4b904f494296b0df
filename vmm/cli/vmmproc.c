// SPDX-License-Identifier: Apache-2.0
// A thaw-vmm of one's own.
//
// Theory of operation
//
// The start is on the clock of every run, so there are few system calls before the child exists: a
// socket pair, an unnamed file for its stderr, and posix_spawn(3), which does not copy the page
// tables. What the guest is asked is prepared while the child starts.
//
// The child's session is its own: a Ctrl-C at the terminal reaches only thaw, which passes it on to
// the command in the guest. closefrom keeps fds that this process inherited from its caller out of
// the VMM.
//
// Its end: thaw-vmm is killed, not asked. It owns nothing that outlives it (unnamed files,
// anonymous memory, sockets), except the temporary folder of a snapshot under way; so a caller that
// has asked for a snapshot waits for CTL_EXIT or, when it must give up, lets the next build clean
// up (state.c). The kill is followed by a wait, so that nothing is left when thaw has ended.
#include "vmm/cli/vmmproc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/shim/proto.h"
#include "vmm/cli/cli.h"
#include "vmm/cli/vmmproc_spawn.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** At most this much of a collected stderr is shown; its end says what went wrong. */
#define VMMPROC_LOG_SHOWN_BYTES (16 * KIB)

/** A thaw-vmm that has closed its channel is on its way out; one that is not gone by then never
 * will be. */
#define VMMPROC_REAP_MS 5000

int vmmproc_find(char *out)
{
	static const char *const places[] = {"thaw-vmm", "../libexec/thaw/thaw-vmm"};
	const char *given = getenv("THAW_VMM");

	if (given && *given) {
		int n = snprintf(out, PATH_MAX, "%s", given);

		return n < PATH_MAX ? 0 : -ENAMETOOLONG;
	}
	return cli_find_near_exe(places, ARRAY_SIZE(places), out);
}

/** Move *@fd, if it is one of those that the child's end gets, out of the way. @lifted_fd: what the
 * caller closes later. Return: 0 or -errno (logged). */
static int lift(int *fd, int *lifted_fd)
{
	int ret;

	if (*fd < VMMPROC_CTL_FD || *fd > VMMPROC_HOT_FD)
		return 0;
	*lifted_fd = fcntl(*fd, F_DUPFD_CLOEXEC, VMMPROC_HOT_FD + 1);
	if (*lifted_fd < 0) {
		ret = -errno;
		log_err("fd for thaw-vmm: %s", strerror(-ret));
		return ret;
	}
	*fd = *lifted_fd;
	return 0;
}

int vmmproc_start(struct vmmproc *proc, const struct vmmproc_opts *opts)
{
	struct vmmproc_opts fixed = *opts;
	char path[PATH_MAX];
	int pair[2], lifted_fds[2] = {-1, -1}, ret;

	*proc = (struct vmmproc){.ctl_fd = -1, .log_fd = -1, .accept_fd = -1};
	ret = vmmproc_find(path);
	if (ret) {
		log_err("thaw-vmm is not beside this executable: install it there, or set THAW_VMM");
		return ret;
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
		ret = -errno;
		log_err("control channel: %s", strerror(-ret));
		return ret;
	}
	proc->ctl_fd = pair[0];
	if (opts->log_fd < 0 && !getenv("THAW_LOG")) {
		proc->log_fd = memfd_create("thaw-vmm.log", MFD_CLOEXEC);
		if (proc->log_fd < 0)
			log_warn("memfd_create: %s: messages of thaw-vmm are passed on",
				 strerror(errno));
	}
	ret = lift(&fixed.file_fd, &lifted_fds[0]);
	if (!ret)
		ret = lift(&fixed.hot_fd, &lifted_fds[1]);
	if (!ret)
		ret = vmmproc_spawn(proc, &fixed, path, pair[1]);
	/* Only the child may hold this end, or its death would not close the channel. */
	fd_close(&pair[1]);
	fd_close(&lifted_fds[0]);
	fd_close(&lifted_fds[1]);
	return ret;
}

void vmmproc_adopt(struct vmmproc *proc, pid_t pid, int ctl_fd, int pid_fd)
{
	*proc = (struct vmmproc){.pid = pid,
				 .adopted = true,
				 .pid_fd = pid_fd,
				 .ctl_fd = ctl_fd,
				 .log_fd = -1,
				 .accept_fd = -1};
}

int vmmproc_connect(struct vmmproc *proc, u32 port)
{
	struct ctl_msg msg = {.version = CTL_VERSION, .type = CTL_CONNECT, .port = port};
	int pair[2], ret;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		ret = -errno;
		log_err("stream to the guest: %s", strerror(-ret));
		return ret;
	}
	ret = ctl_send(proc->ctl_fd, &msg, pair[1]);
	fd_close(&pair[1]);
	if (ret) {
		/* -EPIPE: it has ended already; vmmproc_why() tells more than this could. */
		if (ret != -EPIPE)
			log_err("stream to the guest: control channel: %s", strerror(-ret));
		fd_close(&pair[0]);
		return ret;
	}
	return pair[0];
}

static void take_message(struct vmmproc *proc, const struct ctl_msg *msg, int *fd)
{
	if (msg->text[0] && msg->type != CTL_RUNNING)
		memcpy(proc->text, msg->text, sizeof(proc->text));
	if (msg->generation)
		proc->generation = msg->generation;
	switch (msg->type) {
	case CTL_ACCEPT:
		if (msg->port != SHIM_FIRST_PORT || proc->accepted || *fd < 0)
			break;
		proc->accepted = true;
		proc->accept_fd = *fd;
		*fd = -1;
		break;
	case CTL_RUNNING:
		proc->running = true;
		proc->clocks = msg->clocks;
		memcpy(proc->restore_note, msg->text, sizeof(proc->restore_note));
		break;
	case CTL_RESUMED:
		proc->resumed = true;
		proc->clocks = msg->clocks;
		break;
	case CTL_WAITING:
		proc->waiting = true;
		break;
	case CTL_READY:
		proc->ready = true;
		break;
	case CTL_OWNED:
		proc->owned = true;
		proc->resumed = msg->port & CTL_OWNED_RESUMED;
		proc->clocks = msg->clocks;
		break;
	case CTL_ARMED:
		proc->armed = true;
		/* A checkpoint of the guest's own before this one was refused: not ours. What
		 * comes behind this message is, however soon. */
		proc->snapshot_seen = false;
		proc->snapshot_error = msg->error;
		break;
	case CTL_SNAPSHOT:
		proc->pause_us = msg->pause_us;
		proc->snapshot_seen = true;
		proc->snapshot_error = msg->error;
		break;
	case CTL_EXIT:
		proc->exit_seen = true;
		proc->exit_reason = msg->reason;
		proc->exit_error = msg->error;
		break;
	default:
		/* A newer thaw-vmm may say more than this thaw knows; nothing depends on it. */
		log_debug("thaw-vmm: message type %u ignored", msg->type);
	}
}

int vmmproc_take_stream(struct vmmproc *proc)
{
	int fd = proc->accept_fd;

	proc->accept_fd = -1;
	return fd;
}

int vmmproc_receive(struct vmmproc *proc)
{
	struct ctl_msg msg;
	int fd, ret;

	if (proc->ctl_fd < 0)
		return -EPIPE;
	for (;;) {
		ret = ctl_recv(proc->ctl_fd, &msg, &fd);
		if (ret == -EAGAIN)
			return 0;
		if (ret == 0 || ret == -ECONNRESET) {
			fd_close(&proc->ctl_fd);
			return -EPIPE;
		}
		if (ret < 0) {
			log_err("control channel of thaw-vmm: %s", strerror(-ret));
			return ret;
		}
		take_message(proc, &msg, &fd);
		/* A stream nobody asked for: closing it is the refusal. */
		fd_close(&fd);
	}
}

/** How long poll(2) may sleep: to the deadline, and to the next tick. */
static int poll_timeout_ms(u64 now_ns, u64 deadline_ns, bool ticks)
{
	u64 timeout_ms = ticks ? 1000 : INT_MAX;

	if (!deadline_ns)
		return ticks ? (int)timeout_ms : -1;
	/* Rounded up: a wait that ends too early would spin. */
	return (int)MIN(timeout_ms, (deadline_ns - now_ns) / 1000000 + 1);
}

int vmmproc_wait(struct vmmproc *proc, const bool *flag, u64 deadline_ns, int stop_fd,
		 void (*tick)(void *opaque), void *opaque)
{
	int ret = vmmproc_receive(proc);

	while (!*flag && !ret) {
		struct pollfd pfds[] = {{.fd = proc->ctl_fd, .events = POLLIN},
					{.fd = stop_fd, .events = POLLIN}};
		u64 now_ns = clock_now_ns();
		int n;

		if (deadline_ns && now_ns >= deadline_ns)
			return -ETIMEDOUT;
		n = poll(pfds, ARRAY_SIZE(pfds), poll_timeout_ms(now_ns, deadline_ns, tick));
		if (n < 0 && errno != EINTR) {
			ret = -errno;
			log_err("poll: %s", strerror(-ret));
		} else if (n > 0 && pfds[0].revents) {
			ret = vmmproc_receive(proc);
		} else if (n > 0) {
			return -EINTR;
		} else if (n == 0 && tick) {
			tick(opaque);
		}
	}
	return *flag ? 0 : ret;
}

void vmmproc_why(const struct vmmproc *proc, char *out, size_t len_bytes)
{
	static const char *const reasons[] = {
		[CTL_EXIT_POWEROFF] = "the guest powered off",
		[CTL_EXIT_RESET] = "the guest reset or crashed",
		[CTL_EXIT_STOPPED] = "thaw-vmm was stopped",
		[CTL_EXIT_SNAPSHOT] = "the snapshot is written",
		[CTL_EXIT_ERROR] = "thaw-vmm failed",
		[CTL_EXIT_DEADLINE] = "its hard time-out was over",
	};
	const char *text = proc->text[0] ? ": " : "";

	if (proc->exit_seen)
		snprintf(out, len_bytes, "%s%s%s",
			 proc->exit_reason < ARRAY_SIZE(reasons) ? reasons[proc->exit_reason]
								 : "thaw-vmm ended",
			 text, proc->text);
	else if (!proc->pid && proc->adopted)
		snprintf(out, len_bytes, "thaw-vmm ended without a word; see its pool's messages");
	else if (!proc->pid && WIFSIGNALED(proc->wait_status))
		snprintf(out, len_bytes, "thaw-vmm was killed by signal %d (%s)",
			 WTERMSIG(proc->wait_status), strsignal(WTERMSIG(proc->wait_status)));
	else if (!proc->pid)
		snprintf(out, len_bytes, "thaw-vmm ended with exit status %d",
			 WEXITSTATUS(proc->wait_status));
	else
		snprintf(out, len_bytes, "thaw-vmm still runs");
}

void vmmproc_show_log(const struct vmmproc *proc)
{
	char buf[4096];
	off_t end, pos;

	if (proc->log_fd < 0)
		return;
	end = lseek(proc->log_fd, 0, SEEK_END);
	pos = end > (off_t)VMMPROC_LOG_SHOWN_BYTES ? end - (off_t)VMMPROC_LOG_SHOWN_BYTES : 0;
	while (pos < end) {
		ssize_t n = pread(proc->log_fd, buf, sizeof(buf), pos);

		if (n <= 0 || fd_write_full(STDERR_FILENO, buf, (size_t)n))
			return;
		pos += n;
	}
}

static void wait_gone(struct vmmproc *proc)
{
	pid_t pid;

	if (!proc->pid)
		return;
	if (proc->adopted) {
		/* Its own parent reaps it. */
		struct pollfd pfd = {.fd = proc->pid_fd, .events = POLLIN};

		while (poll(&pfd, 1, -1) < 0 && errno == EINTR)
			;
		proc->pid = 0;
		fd_close(&proc->pid_fd);
		return;
	}
	do {
		pid = waitpid(proc->pid, &proc->wait_status, 0);
	} while (pid < 0 && errno == EINTR);
	BUG_ON(pid != proc->pid);
	proc->pid = 0;
}

static void send_kill(const struct vmmproc *proc)
{
	if (proc->adopted)
		(void)syscall(SYS_pidfd_send_signal, proc->pid_fd, SIGKILL, NULL, 0);
	else
		kill(proc->pid, SIGKILL);
}

void vmmproc_reap(struct vmmproc *proc)
{
	struct pollfd pfd = {.fd = -1, .events = POLLIN};

	if (!proc->pid)
		return;
	pfd.fd = proc->adopted ? fcntl(proc->pid_fd, F_DUPFD_CLOEXEC, 3)
			       : (int)syscall(SYS_pidfd_open, proc->pid, 0);
	if (pfd.fd < 0 || poll(&pfd, 1, VMMPROC_REAP_MS) != 1)
		send_kill(proc);
	fd_close(&pfd.fd);
	wait_gone(proc);
}

void vmmproc_end(struct vmmproc *proc)
{
	if (proc->pid)
		send_kill(proc);
	/* The kernel takes a VM apart for longer than the VM took to start; nobody needs to see it.
	 */
	if (proc->pid && proc->adopted) {
		proc->pid = 0;
		fd_close(&proc->pid_fd);
	}
	wait_gone(proc);
	fd_close(&proc->ctl_fd);
	fd_close(&proc->log_fd);
	fd_close(&proc->accept_fd);
}
