// SPDX-License-Identifier: Apache-2.0
// The pager, VMM side: servers started, watched, replaced.
#include "vmm/snapshot/pager.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/seccomp.h"
#include "vmm/snapshot/pager_internal.h"
#include "vmm/util/ctl.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * All servers are forked at the start, while the process is small, has one thread and may still
 * fork; the spare ones wait in recv(2). Fork order is take-over order.
 *
 * The watcher is a thread of its own since every other thread of the process may itself be waiting
 * for a page, the event loop with the device lock in its hands. It touches no guest memory and
 * takes no lock. It is there before the first device looks at guest memory, and its filter allows
 * it little more than poll().
 *
 * What happens when the last server is dead: nobody may get zeros instead of his page, so those who
 * wait stay waiting, and the process must end. Orderly, if the event loop is not among them: that
 * one watches @failed_fd. By force after PAGER_GRACE_MS if it is.
 */

#define PAGER_STACK_BYTES (64u << 10)

_Static_assert(sizeof(PAGER_SERVERS_TEXT) == 2 && PAGER_SERVERS == 3, "the text says how many");

struct pager_peer {
	pid_t pid;
	int pidfd; /* -1: dead and reaped */
	int sock;
};

struct pager {
	struct pager_config cfg;
	struct pager_task task;
	int uffd, failed_fd, stop_fd;
	int ctl_fd; /* atomic */
	struct pager_peer peers[PAGER_SERVERS];
	unsigned int active; /* atomic */
	struct pager_stats *stats;
	pthread_t watcher;
	bool watched, plain;
};

static int kept_uffd = -1;

/** Return: an fd or -errno. */
static int pager_new_uffd(void)
{
	int dev_fd, fd, ret;

	/* Faults of the kernel too: KVM's, and system calls' on guest memory. */
	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == EPERM) {
		dev_fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
		fd = dev_fd < 0 ? -1 : ioctl(dev_fd, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
		ret = errno;
		fd_close(&dev_fd);
		errno = ret == ENOENT ? EPERM : ret;
	}
	return fd < 0 ? -errno : fd;
}

static int pager_open_uffd(void)
{
	struct uffdio_api api = {.api = UFFD_API};
	int fd = kept_uffd >= 0 ? kept_uffd : pager_new_uffd(), ret;

	kept_uffd = -1;
	if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0)
		return fd;
	ret = fd < 0 ? fd : -errno;
	log_err("userfaultfd: %s%s", strerror(-ret),
		ret == -EPERM || ret == -EACCES ? " (root, access to /dev/userfaultfd, or sysctl "
						  "vm.unprivileged_userfaultfd=1 is needed)"
						: "");
	fd_close(&fd);
	return ret;
}

int pager_keep_uffd(void)
{
	int fd = pager_new_uffd();

	if (fd < 0)
		log_err("userfaultfd: %s", strerror(-fd));
	kept_uffd = MAX(fd, -1);
	return MIN(fd, 0);
}

static int pager_fork(struct pager *pager, struct pager_peer *peer)
{
	struct pager_server_args args = {.cfg = pager->cfg,
					 .uffd = pager->uffd,
					 .parent_pid = getpid(),
					 .stats = pager->stats};
	int pair[2], ret;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	args.sock = pair[1];
	peer->sock = pair[0];
	peer->pid = fork();
	if (peer->pid == 0)
		pager_server(&args);
	ret = -errno;
	fd_close(&pair[1]);
	if (peer->pid < 0)
		return ret;
	/* Nobody else waits for children here, so that the number is still this one's. */
	peer->pidfd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
	return peer->pidfd < 0 ? -errno : 0;
}

int pager_start(const struct pager_config *cfg, struct pager **out)
{
	struct pager *pager = calloc(1, sizeof(*pager));
	int ret;

	if (!pager)
		return -ENOMEM;
	pager->cfg = *cfg;
	pager->failed_fd = pager->stop_fd = pager->ctl_fd = -1;
	for (unsigned int i = 0; i < PAGER_SERVERS; i++)
		pager->peers[i] = (struct pager_peer){.pid = -1, .pidfd = -1, .sock = -1};
	pager->uffd = pager_open_uffd();
	if (pager->uffd < 0) {
		ret = pager->uffd;
		goto err;
	}
	pager->failed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pager->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pager->stats = mmap(NULL, PAGE_SIZE_BYTES, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (pager->stats == MAP_FAILED)
		pager->stats = NULL;
	ret = pager->failed_fd < 0 || pager->stop_fd < 0 || !pager->stats ? -errno : 0;
	for (unsigned int i = 0; !ret && i < PAGER_SERVERS; i++)
		ret = pager_fork(pager, &pager->peers[i]);
	if (!ret) {
		*out = pager;
		return 0;
	}
	log_err("page fault server: %s", strerror(-ret));
err:
	pager_free(pager);
	return ret;
}

/** pager_reap() - how peer @index died, in words. */
static void pager_reap(struct pager *pager, unsigned int index, char *how, size_t how_bytes)
{
	struct pager_peer *peer = &pager->peers[index];
	siginfo_t info = {0};

	if (waitid(P_PIDFD, (id_t)peer->pidfd, &info, WEXITED) < 0)
		snprintf(how, how_bytes, "gone: %s", strerror(errno));
	else if (info.si_code == CLD_EXITED)
		snprintf(how, how_bytes, "exit status %d", info.si_status);
	else
		snprintf(how, how_bytes, "killed by signal %d", info.si_status);
	fd_close(&peer->pidfd);
}

/** pager_give() - @peer serves from now on. Return: false if it is dead. */
static bool pager_give(struct pager *pager, struct pager_peer *peer)
{
	/* The only message it ever gets: there is room for it. */
	return peer->pidfd >= 0 && send(peer->sock, &pager->task, sizeof(pager->task),
					MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(pager->task);
}

/** The active server is dead. Return: false if it was the last. */
static bool pager_take_over(struct pager *pager, const char *how)
{
	for (unsigned int next = pager->active + 1; next < PAGER_SERVERS; next++) {
		if (!pager_give(pager, &pager->peers[next]))
			continue;
		log_warn("page fault server %d: %s; %d takes over", pager->peers[pager->active].pid,
			 how, pager->peers[next].pid);
		__atomic_store_n(&pager->active, next, __ATOMIC_RELAXED);
		return true;
	}
	log_err("page fault server %d: %s; it was the last of %d: the VM has to end",
		pager->peers[pager->active].pid, how, PAGER_SERVERS);
	return false;
}

/** The process is to end and has not: somebody whom that needs waits for a page. */
static _Noreturn void pager_end_process(struct pager *pager)
{
	struct ctl_msg msg = {.version = CTL_VERSION,
			      .type = CTL_EXIT,
			      .reason = CTL_EXIT_ERROR,
			      .error = -EIO,
			      .text = PAGER_FAILED_TEXT};
	int ctl_fd = __atomic_load_n(&pager->ctl_fd, __ATOMIC_RELAXED);

	log_err(PAGER_FAILED_TEXT "; ended by force");
	if (ctl_fd >= 0 && ctl_send(ctl_fd, &msg, -1))
		log_warn("control channel: the owner does not hear the end");
	_exit(EXIT_FAILURE);
}

static void *pager_watch(void *opaque)
{
	struct pager *pager = opaque;
	struct pollfd fds[PAGER_SERVERS + 1];
	bool failed = false;
	char how[64];
	int ret = seccomp_apply_watcher(SECCOMP_BUILD);

	BUG_ON(ret); /* logged; a watcher that can't be confined must not run, nor be missing */
	for (;;) {
		for (unsigned int i = 0; i < PAGER_SERVERS; i++)
			fds[i] = (struct pollfd){.fd = pager->peers[i].pidfd, .events = POLLIN};
		fds[PAGER_SERVERS] = (struct pollfd){.fd = pager->stop_fd, .events = POLLIN};
		ret = poll(fds, ARRAY_SIZE(fds), failed ? PAGER_GRACE_MS : -1);
		if (ret < 0)
			continue; /* EINTR */
		if (fds[PAGER_SERVERS].revents)
			return NULL;
		if (ret == 0)
			pager_end_process(pager);
		/* Spare ones first: a dead one must not be asked to take over. */
		for (unsigned int i = PAGER_SERVERS; i-- > 0;) {
			if (!fds[i].revents)
				continue;
			pager_reap(pager, i, how, sizeof(how));
			if (i != pager->active)
				log_warn("spare page fault server %d: %s", pager->peers[i].pid,
					 how);
			else if (!pager_take_over(pager, how))
				failed = true;
		}
		if (failed && eventfd_write(pager->failed_fd, 1) < 0)
			BUG_ON(errno != EAGAIN);
	}
}

/** Without a signal for this process ever being delivered to it. */
static int pager_start_watcher(struct pager *pager)
{
	pthread_attr_t attr;
	sigset_t all, old;
	int ret;

	sigfillset(&all);
	ret = pthread_attr_init(&attr);
	if (ret)
		return -ret;
	ret = pthread_attr_setstacksize(&attr, PAGER_STACK_BYTES);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (!ret)
		ret = pthread_create(&pager->watcher, &attr, pager_watch, pager);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	pager->watched = !ret;
	return -ret;
}

static int pager_register(struct pager *pager, const struct pager_range *range)
{
	const u64 need = 1ull << _UFFDIO_COPY | 1ull << _UFFDIO_ZEROPAGE | 1ull << _UFFDIO_WAKE;
	struct uffdio_register arg = {
		.range = {.start = range->hva, .len = range->len_bytes},
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};

	if (ioctl(pager->uffd, UFFDIO_REGISTER, &arg) < 0)
		return -errno;
	return (arg.ioctls & need) == need ? 0 : -ENOTSUP;
}

int pager_attach(struct pager *pager, const struct pager_range *ranges, unsigned int nranges)
{
	struct pager_peer *first = &pager->peers[0];
	char ready = 0;
	ssize_t n;
	int ret = 0;

	BUG_ON(nranges > PAGER_RANGES);
	for (unsigned int i = 0; !ret && i < nranges; i++) {
		pager->task.ranges[pager->task.nranges++] = ranges[i];
		ret = pager_register(pager, &ranges[i]);
	}
	if (ret) {
		log_err("userfaultfd: register: %s", strerror(-ret));
		return ret;
	}
	do {
		n = recv(first->sock, &ready, 1, 0);
	} while (n < 0 && errno == EINTR);
	pager->plain = ready == PAGER_READY_PLAIN;
	if (n != 1 || (ready != PAGER_READY && !pager->plain) || !pager_give(pager, first)) {
		log_err("page fault server %d: did not start", first->pid);
		return -EIO;
	}
	ret = pager_start_watcher(pager);
	if (ret)
		log_err("page fault server: watcher: %s", strerror(-ret));
	return ret;
}

bool pager_is_plain(const struct pager *pager)
{
	return pager->plain;
}

int pager_failed_fd(const struct pager *pager)
{
	return pager->failed_fd;
}

void pager_tell(struct pager *pager, int ctl_fd)
{
	__atomic_store_n(&pager->ctl_fd, ctl_fd, __ATOMIC_RELAXED);
}

struct pager_stats pager_stats(const struct pager *pager)
{
	return *pager->stats;
}

int pager_pid(const struct pager *pager, unsigned int index)
{
	return pager->peers[index].pid;
}

unsigned int pager_active(const struct pager *pager)
{
	return __atomic_load_n(&pager->active, __ATOMIC_RELAXED);
}

void pager_free(struct pager *pager)
{
	if (!pager)
		return;
	if (pager->watched) {
		BUG_ON(eventfd_write(pager->stop_fd, 1) < 0);
		pthread_join(pager->watcher, NULL);
	}
	for (unsigned int i = 0; i < PAGER_SERVERS; i++) {
		struct pager_peer *peer = &pager->peers[i];

		/* Its socket's end ends it, whatever it was doing. */
		fd_close(&peer->sock);
		if (peer->pid > 0 && (peer->pidfd >= 0 || !pager->watched))
			(void)waitpid(peer->pid, NULL, 0);
		fd_close(&peer->pidfd);
	}
	if (pager->stats)
		munmap(pager->stats, PAGE_SIZE_BYTES);
	fd_close(&pager->uffd);
	fd_close(&pager->failed_fd);
	fd_close(&pager->stop_fd);
	free(pager);
}
