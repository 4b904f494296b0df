// SPDX-License-Identifier: Apache-2.0
/*
 * The shim's event loop.
 *
 * One thread, one epoll set, every fd of a connection edge-triggered and added once. An event only
 * sets a flag (`ready`) and queues the connection; conn_run() then does all that can be done and
 * clears the flag when the fd had nothing more to give. So an exec costs one epoll_ctl an fd,
 * back-pressure costs none, and a hang-up that is not acted on at once can't make the loop spin.
 *
 * The key of an event is the connection's index and generation, never a pointer: an fd that was
 * closed here may live on for a moment in a child that has not reached execve, and its events with
 * it.
 *
 * Children are reaped here and nowhere else. That makes a pid safe to signal as long as it has not
 * been reaped: nobody else can free its number.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <linux/vm_sockets.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "guest/shim/boot.h"
#include "guest/shim/exec.h"
#include "guest/shim/shim.h"
#include "guest/shim/tunnel.h"

#define LOOP_BATCH 32

/* Keys of fds that belong to no connection: generation 0 is never given to one. */
enum loop_key {
	KEY_LISTEN = 1,
	KEY_SIGNAL = 2,
};

#define SLOT_BITS  3
#define INDEX_BITS 16
_Static_assert(SLOT_COUNT <= 1 << SLOT_BITS, "fits the key");
/* In the index of a key: it is a tunnel's, and the slot its side. */
#define TUNNEL_INDEX (1u << (INDEX_BITS - 1))
_Static_assert(SHIM_CONN_MAX <= TUNNEL_INDEX, "fits the key");
_Static_assert(SHIM_TUNNEL_MAX <= TUNNEL_INDEX, "fits the key");

/* So long nothing happened: the time for what must not cost an exec anything. */
#define QUIET_MS 50

u64 loop_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
}

int loop_open(int dir_fd, const char *name, int flags)
{
	const struct open_how how = {
		.flags = (u64)(u32)flags | O_CLOEXEC,
		.resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS,
	};
	long fd = syscall(SYS_openat2, dir_fd, name, &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}

static int loop_add(struct shim *shim, int fd, u32 events, u64 key)
{
	struct epoll_event event = {.events = events, .data.u64 = key};

	return epoll_ctl(shim->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static u64 loop_key(const struct conn *c, enum conn_slot slot)
{
	return (u64)c->generation << 32 | (u64)c->index << SLOT_BITS | slot;
}

int loop_watch(struct shim *shim, struct conn *c, enum conn_slot slot, u32 events)
{
	return loop_add(shim, c->fd[slot], events | EPOLLET, loop_key(c, slot));
}

static int loop_modify(struct shim *shim, int fd, u64 key)
{
	struct epoll_event event = {
		.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
		.data.u64 = key,
	};

	return epoll_ctl(shim->epoll_fd, EPOLL_CTL_MOD, fd, &event) < 0 ? -errno : 0;
}

int loop_move(struct shim *shim, struct conn *c)
{
	return loop_modify(shim, c->fd[SLOT_STREAM], loop_key(c, SLOT_STREAM));
}

int loop_watch_tunnel(struct shim *shim, int fd, u32 index, u32 generation, u32 side, bool moved)
{
	u64 key = (u64)generation << 32 | (u64)(TUNNEL_INDEX | index) << SLOT_BITS | side;

	if (moved)
		return loop_modify(shim, fd, key);
	return loop_add(shim, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, key);
}

/*
 * Signals that are ignored stay so across execve; commands are to start with every signal at its
 * default. By the bare system call: glibc's posix_spawn leaves 32 and 33 ignored in what it starts,
 * and its sigaction() refuses to touch them.
 */
static void signals_default(void)
{
	const struct {
		void *handler; /* SIG_DFL */
		unsigned long flags;
		void *restorer;
		unsigned long mask;
	} action = {0};

	for (int number = 1; number < NSIG; number++)
		if (number != SIGKILL && number != SIGSTOP)
			(void)syscall(SYS_rt_sigaction, number, &action, NULL, sizeof(action.mask));
}

void loop_init(struct shim *shim)
{
	sigset_t mask;
	int ret;

	shim->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (shim->epoll_fd < 0)
		shim_panic("epoll_create1: %m");
	shim->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (shim->null_fd < 0)
		shim_panic("/dev/null: %m");
	shim->pts_fd = open("/dev/pts", O_PATH | O_DIRECTORY | O_CLOEXEC);
	shim->proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	signals_default();
	/* SIGPIPE blocked, not ignored: a write still gives EPIPE, and children need no reset. */
	sigemptyset(&mask);
	sigaddset(&mask, SIGPIPE);
	sigaddset(&mask, SIGCHLD);
	if (!shim->is_init)
		sigaddset(&mask, SIGTERM);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	sigdelset(&mask, SIGPIPE);
	shim->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (shim->signal_fd < 0)
		shim_panic("signalfd: %m");
	ret = loop_add(shim, shim->signal_fd, EPOLLIN, KEY_SIGNAL);
	if (ret)
		shim_panic("epoll_ctl: %s", strerror(-ret));
	shim->run_last = &shim->run_first;
}

int loop_listen(struct shim *shim, int fd)
{
	shim->listen_fd = fd;
	return loop_add(shim, fd, EPOLLIN, KEY_LISTEN);
}

void loop_queue(struct shim *shim, struct conn *c)
{
	if (c->queued)
		return;
	c->queued = true;
	c->run_next = NULL;
	*shim->run_last = c;
	shim->run_last = &c->run_next;
}

static void set_time(struct shim *shim, u64 *time_ns, u32 delay_ms)
{
	if (*time_ns)
		shim->ndeadlines--;
	*time_ns = 0;
	if (!delay_ms)
		return;
	*time_ns = loop_now_ns() + (u64)delay_ms * 1000000;
	shim->ndeadlines++;
}

void loop_set_deadline(struct shim *shim, struct conn *c, u32 delay_ms)
{
	set_time(shim, &c->deadline_ns, delay_ms);
}

void loop_set_timeout(struct shim *shim, struct conn *c, u32 delay_ms)
{
	set_time(shim, &c->timeout_ns, delay_ms);
}

/* Queues what is due. Return: milliseconds until the next deadline, -1 without one. */
static int loop_timers(struct shim *shim)
{
	u64 now_ns, next_ns = UINT64_MAX, left_ms;

	if (!shim->ndeadlines)
		return -1;
	now_ns = loop_now_ns();
	for (u32 i = 0; i < SHIM_CONN_MAX; i++) {
		struct conn *c = shim->conns[i];
		u64 due_ns;

		if (!c || (!c->deadline_ns && !c->timeout_ns))
			continue;
		due_ns = MIN(c->deadline_ns - 1, c->timeout_ns - 1);
		if (due_ns < now_ns)
			loop_queue(shim, c);
		else
			next_ns = MIN(next_ns, due_ns);
	}
	if (shim->run_first)
		return 0;
	if (next_ns == UINT64_MAX)
		return -1;
	/* Rounded up, so that the deadline has passed when the wait ends. */
	left_ms = (next_ns - now_ns) / 1000000 + 1;
	return (int)MIN(left_ms, (u64)INT_MAX);
}

static void loop_accept(struct shim *shim)
{
	struct sockaddr_vm peer = {0};
	socklen_t len = sizeof(peer);
	int fd;

	if (!shim->vsock)
		fd = accept4(shim->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	else
		fd = accept4(shim->listen_fd, (struct sockaddr *)&peer, &len,
			     SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
			shim_log(4, "accept: %m; waiting for a connection to end");
			epoll_ctl(shim->epoll_fd, EPOLL_CTL_DEL, shim->listen_fd, NULL);
			shim->listen_paused = true;
		}
		return;
	}
	/* A local process of any user could come by a loopback transport, and the shim runs
	 * commands as root. */
	if (shim->vsock && peer.svm_cid != VMADDR_CID_HOST) {
		close(fd);
		return;
	}
	(void)conn_new(shim, fd);
}

static void loop_signal(struct shim *shim)
{
	struct signalfd_siginfo info;

	while (read(shim->signal_fd, &info, sizeof(info)) == sizeof(info))
		if (info.ssi_signo == SIGTERM)
			shim->stop = true;
	exec_reap(shim);
}

static void loop_event(struct shim *shim, const struct epoll_event *event)
{
	u32 generation = (u32)(event->data.u64 >> 32);
	u32 index = (u32)event->data.u64 >> SLOT_BITS & ((1u << INDEX_BITS) - 1);
	enum conn_slot slot = event->data.u64 & ((1u << SLOT_BITS) - 1);
	u32 ends = event->events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP);
	struct conn *c;

	if (event->data.u64 == KEY_LISTEN) {
		loop_accept(shim);
		return;
	}
	if (event->data.u64 == KEY_SIGNAL) {
		loop_signal(shim);
		return;
	}
	if (index & TUNNEL_INDEX) {
		tunnel_event(shim, index & ~TUNNEL_INDEX, generation, slot, event->events);
		return;
	}
	c = index < SHIM_CONN_MAX ? shim->conns[index] : NULL;
	if (!c || c->generation != generation || c->fd[slot] < 0)
		return;
	if (slot == SLOT_STREAM) {
		c->ready[slot] |= (event->events & EPOLLIN) || ends;
		c->writable |= (event->events & EPOLLOUT) || ends;
		c->probe |= ends != 0;
	} else {
		c->ready[slot] = true;
	}
	c->hup[slot] |= ends != 0;
	loop_queue(shim, c);
}

static void loop_run_queue(struct shim *shim)
{
	struct conn *c = shim->run_first;

	/* What is queued from here on waits for the next round: one busy stream does not keep the
	 * others from their events. */
	shim->run_first = NULL;
	shim->run_last = &shim->run_first;
	while (c) {
		struct conn *next = c->run_next;

		c->queued = false;
		conn_run(shim, c);
		c = next;
	}
}

/* No stream is open and no command runs. */
static bool loop_is_idle(const struct shim *shim)
{
	if (shim->ntunnels || shim->nconns != shim->nended)
		return false;
	for (u32 i = 0; shim->nended && i < SHIM_CONN_MAX; i++) {
		const struct conn *c = shim->conns[i];

		if (c && (!c->orphan || c->cgroup.id))
			return false;
	}
	return true;
}

static void loop_idle(struct shim *shim)
{
	cgroup_make_spare(shim);
	if (shim->checkpoint_wanted) {
		shim->checkpoint_wanted = false;
		ckpt_run(shim, false);
	}
	if (shim->exit_when_idle)
		shim->stop = true;
}

/* Return: as epoll_wait(2). */
static int loop_wait(struct shim *shim, struct epoll_event *events)
{
	bool quiet = !cgroup_has_spare(shim);
	int timeout_ms = 0, n;

	if (!shim->run_first && !shim->tunnel_first)
		timeout_ms = loop_timers(shim);
	if (timeout_ms >= 0 && timeout_ms <= QUIET_MS)
		quiet = false;
	n = epoll_wait(shim->epoll_fd, events, LOOP_BATCH, quiet ? QUIET_MS : timeout_ms);
	if (!n && quiet)
		cgroup_make_spare(shim);
	return n;
}

void loop_run(struct shim *shim)
{
	struct epoll_event events[LOOP_BATCH];
	int n;

	while (!shim->stop) {
		if (shim->listen_paused && shim->nconns < SHIM_CONN_MAX / 2) {
			shim->listen_paused = false;
			(void)loop_add(shim, shim->listen_fd, EPOLLIN, KEY_LISTEN);
		}
		if (loop_is_idle(shim))
			loop_idle(shim);
		if (shim->checkpoint_live) {
			shim->checkpoint_live = false;
			ckpt_run(shim, true);
		}
		if (shim->stop)
			break;
		n = loop_wait(shim, events);
		if (n < 0 && errno != EINTR)
			shim_panic("epoll_wait: %m");
		for (int i = 0; i < n; i++)
			loop_event(shim, &events[i]);
		(void)loop_timers(shim);
		loop_run_queue(shim);
		tunnel_run_queue(shim);
	}
}
