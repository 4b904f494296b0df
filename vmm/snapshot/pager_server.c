// SPDX-License-Identifier: Apache-2.0
// The page fault server: the process on the other side of the pager.
//
// It holds four descriptors: the userfaultfd, the memory file, a socket to its VMM and stderr, and
// its system call filter allows what the loop below needs and nothing else. It shares no memory
// with the VMM but a page of counters, and the guest decides nothing here but which page comes
// next. The socket brings the addresses; its end ends the server.
//
// At a fault the stretch around it that is of one kind (data or hole), cut to an aligned window, is
// looked up by SEEK_DATA and SEEK_HOLE. A hole becomes the shared page of zeros (UFFDIO_ZEROPAGE).
// Data is read by io_uring into a slot's buffer and then copied into the VMM (UFFDIO_COPY), so that
// a slow disk holds up only those who wait for that very stretch, up to PAGER_SLOTS of them. Both
// calls wake who waits in what they filled; a fault on a page that a slot is already bringing needs
// no more. What is there already (EEXIST: two faults of one page, or a neighbour) stays as it is,
// and who waits for it is woken.
//
// A server that takes over knows nothing of what the dead one had begun: messages that it had read
// are not sent again. So each server starts by waking everybody in all ranges. Who finds his page
// still missing faults again, and the kernel sends a new message.
//
// No error is passed over. A read error, a file that shrank, memory that can't be had: the server
// says so and exits, the next one tries, and after the last the VM ends.
#include <errno.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vmm/seccomp.h"
#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/pager_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/ring.h"

/* More than the threads of a VMM that can wait: 8 vCPUs, the loop, the disk's workers. */
#define PAGER_SLOTS 32
#define PAGER_BATCH 16

/* While the kernel has no memory: 1,000 times 1 ms. */
#define PAGER_RETRIES  1000
#define PAGER_RETRY_NS 1000000

struct pager_server;

struct pager_slot {
	struct ring_req req;
	struct iovec iov;
	struct pager_server *server;
	bool busy;
	u64 offset_bytes, len_bytes, hva; /* the whole stretch; req has what is left of it */
	u8 *buf;			  /* window_bytes */
};

struct pager_server {
	const struct pager_server_args *args;
	struct ring ring;
	struct pager_task task;
	struct pager_slot slots[PAGER_SLOTS];
};

/** The VMM has ended, or the memory file failed us: there is no third end. */
static _Noreturn void server_die(const char *what, u64 offset_bytes, int ret)
{
	log_err("memory file at %#llx: %s: %s", (unsigned long long)offset_bytes, what,
		ret == -ENODATA ? "truncated" : strerror(-ret));
	_exit(EXIT_FAILURE);
}

static void server_count(u64 *counter, u64 n)
{
	__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

static void server_wake(const struct pager_server *server, u64 hva, u64 len_bytes)
{
	struct uffdio_range range = {.start = hva, .len = len_bytes};

	/* It fails only when the range is gone, and those who waited in it with it. */
	(void)ioctl(server->args->uffd, UFFDIO_WAKE, &range);
}

/** One call. Return: bytes filled (may be short), or -errno when it was none. */
static s64 server_fill_once(const struct pager_server *server, u64 hva, u64 len_bytes,
			    const u8 *src)
{
	struct uffdio_copy copy = {.dst = hva, .src = (uintptr_t)src, .len = len_bytes};
	struct uffdio_zeropage zero = {.range = {.start = hva, .len = len_bytes}};
	int ret = src ? ioctl(server->args->uffd, UFFDIO_COPY, &copy)
		      : ioctl(server->args->uffd, UFFDIO_ZEROPAGE, &zero);
	s64 filled = src ? copy.copy : zero.zeropage;

	if (ret == 0)
		return (s64)len_bytes;
	/* EAGAIN says no more than "not all of it"; what stopped it comes with the next call. */
	if (errno == EAGAIN && filled > 0)
		return filled;
	return -errno;
}

/** server_fill() - @len_bytes at @hva get @src, or zeros if that is NULL. */
static void server_fill(const struct pager_server *server, u64 hva, u64 len_bytes, const u8 *src)
{
	const struct timespec pause = {.tv_nsec = PAGER_RETRY_NS};
	struct pager_stats *stats = server->args->stats;
	unsigned int retries = 0;
	u64 part_bytes = len_bytes;

	for (u64 done = 0; done < len_bytes;) {
		s64 ret;

		part_bytes = MIN(part_bytes, len_bytes - done);
		ret = server_fill_once(server, hva + done, part_bytes, src ? src + done : NULL);
		if (ret > 0) {
			done += (u64)ret;
			server_count(src ? &stats->copied_pages : &stats->zero_pages,
				     (u64)ret / PAGE_SIZE_BYTES);
		} else if (ret == -ENOENT && part_bytes > PAGE_SIZE_BYTES) {
			/* Part of it is mapped otherwise by now (a diff's pages). */
			part_bytes = PAGE_SIZE_BYTES;
		} else if (ret == -EEXIST || ret == -ENOENT) {
			server_wake(server, hva + done, PAGE_SIZE_BYTES);
			done += PAGE_SIZE_BYTES;
		} else if (ret == -ESRCH) {
			_exit(EXIT_SUCCESS); /* no process any more */
		} else if ((ret == -ENOMEM || ret == -EAGAIN) && ++retries <= PAGER_RETRIES) {
			nanosleep(&pause, NULL);
		} else {
			log_err("page at %#llx: %s", (unsigned long long)(hva + done),
				strerror((int)-ret));
			_exit(EXIT_FAILURE);
		}
	}
}

static void server_queue(struct pager_slot *slot)
{
	int ret = ring_queue(&slot->server->ring, &slot->req);

	BUG_ON(ret); /* as many entries as slots, and offsets inside the file */
}

static void server_read_done(struct ring_req *req, s64 result)
{
	struct pager_slot *slot = container_of(req, struct pager_slot, req);

	if (result == -EINTR || result == -EAGAIN) {
		server_queue(slot);
		return;
	}
	if (result <= 0)
		server_die("read", req->offset_bytes, result ? (int)result : -ENODATA);
	BUG_ON((u64)result > req->len_bytes);
	req->offset_bytes += (u64)result;
	req->len_bytes -= (u64)result;
	if (req->len_bytes) {
		slot->iov.iov_base = (u8 *)slot->iov.iov_base + result;
		slot->iov.iov_len = req->len_bytes;
		server_queue(slot);
		return;
	}
	slot->busy = false;
	server_fill(slot->server, slot->hva, slot->len_bytes, slot->buf);
}

/** server_push() - hand requests to the kernel and take what has come back. @min: wait for so many.
 */
static void server_push(struct pager_server *server, unsigned int min)
{
	int ret = ring_submit(&server->ring);

	/* Too little memory for requests: wait for all that are under way. */
	if (ret == -EAGAIN || ret == -EBUSY || ret == -ENOMEM)
		ret = ring_drain(&server->ring);
	else if (!ret)
		ret = ring_reap(&server->ring, min);
	if (ret < 0)
		server_die("ring", 0, ret);
}

static struct pager_slot *server_free_slot(struct pager_server *server)
{
	for (;;) {
		for (unsigned int i = 0; i < PAGER_SLOTS; i++) {
			if (!server->slots[i].busy)
				return &server->slots[i];
		}
		server_push(server, 1);
	}
}

/** server_stretch() - what is around @offset_bytes within [@start, @end): narrows both. Return:
 * true for data, false for a hole. */
static bool server_stretch(const struct pager_server *server, u64 offset_bytes, u64 *start,
			   u64 *end)
{
	const int fd = server->args->cfg.file_fd;
	u64 pos = *start, data_start, data_end;
	struct stat st;

	for (;;) {
		int ret = snap_extent_next(fd, *end, pos, &data_start, &data_end);

		if (ret < 0)
			server_die("SEEK_DATA", pos, ret);
		if (!ret || data_start > offset_bytes) {
			*start = pos;
			*end = ret ? data_start : *end;
			break;
		}
		if (data_end > offset_bytes) {
			*start = data_start;
			*end = data_end;
			return true;
		}
		pos = data_end;
	}
	/* Behind its end a file has no data: a file that shrank must not become zeros. */
	if (fstat(fd, &st) < 0 || (u64)st.st_size < server->args->cfg.file_bytes)
		server_die("size", offset_bytes, -ENODATA);
	return false;
}

static bool server_is_coming(const struct pager_server *server, u64 offset_bytes)
{
	for (unsigned int i = 0; i < PAGER_SLOTS; i++) {
		const struct pager_slot *slot = &server->slots[i];

		if (slot->busy && offset_bytes - slot->offset_bytes < slot->len_bytes)
			return true;
	}
	return false;
}

static void server_fault(struct pager_server *server, u64 hva)
{
	const u64 window_bytes = server->args->cfg.window_bytes;
	const struct pager_range *range = server->task.ranges;
	u64 offset_bytes, start, end, base;
	struct pager_slot *slot;

	server_count(&server->args->stats->faults, 1);
	while (hva - range->hva >= range->len_bytes) {
		range++;
		BUG_ON(range == server->task.ranges + server->task.nranges);
	}
	/* The file's addresses as seen from here; wraps around and back. */
	base = range->hva - range->offset_bytes;
	offset_bytes = ALIGN_DOWN(hva - base, PAGE_SIZE_BYTES);
	if (server_is_coming(server, offset_bytes))
		return;
	start = MAX(ALIGN_DOWN(offset_bytes, window_bytes), range->offset_bytes);
	end = MIN(ALIGN_DOWN(offset_bytes, window_bytes) + window_bytes,
		  range->offset_bytes + range->len_bytes);
	if (!server_stretch(server, offset_bytes, &start, &end)) {
		server_fill(server, base + start, end - start, NULL);
		return;
	}
	slot = server_free_slot(server);
	slot->busy = true;
	slot->offset_bytes = slot->req.offset_bytes = start;
	slot->len_bytes = slot->req.len_bytes = slot->iov.iov_len = end - start;
	slot->hva = base + start;
	slot->iov.iov_base = slot->buf;
	server_count(&server->args->stats->reads, 1);
	server_queue(slot);
}

static void server_read_faults(struct pager_server *server)
{
	struct uffd_msg msgs[PAGER_BATCH];
	ssize_t n = read(server->args->uffd, msgs, sizeof(msgs));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0 || (size_t)n % sizeof(msgs[0])) {
		log_err("userfaultfd: %s", n < 0 ? strerror(errno) : "short read");
		_exit(EXIT_FAILURE);
	}
	for (size_t i = 0; i < (size_t)n / sizeof(msgs[0]); i++) {
		/* No other kind was asked for. */
		BUG_ON(msgs[i].event != UFFD_EVENT_PAGEFAULT);
		server_fault(server, msgs[i].arg.pagefault.address);
	}
}

static _Noreturn void server_loop(struct pager_server *server)
{
	struct pollfd fds[] = {
		{.fd = server->args->uffd, .events = POLLIN},
		{.fd = server->args->sock, .events = POLLIN},
		/* A plain ring completes inside ring_submit(). */
		{.fd = server->ring.plain ? -1 : server->ring.uring.ring_fd, .events = POLLIN},
	};

	for (;;) {
		if (poll(fds, ARRAY_SIZE(fds), -1) < 0 && errno != EINTR) {
			log_err("poll: %s", strerror(errno));
			_exit(EXIT_FAILURE);
		}
		if (fds[1].revents)
			_exit(EXIT_SUCCESS);
		if (fds[0].revents)
			server_read_faults(server);
		server_push(server, 0);
	}
}

/** Everything but @keep (ascending) is closed: the ends of other processes' pipes and sockets must
 * not live on here. */
static int server_close_others(const int *keep, size_t nkeep)
{
	unsigned int next = 0;

	for (size_t i = 0; i < nkeep; i++) {
		if ((unsigned int)keep[i] > next &&
		    syscall(SYS_close_range, next, (unsigned int)keep[i] - 1, 0) < 0)
			return -errno;
		next = (unsigned int)keep[i] + 1;
	}
	return syscall(SYS_close_range, next, ~0u, 0) < 0 ? -errno : 0;
}

static int server_confine(const struct pager_server_args *args)
{
	int keep[] = {STDERR_FILENO, args->uffd, args->cfg.file_fd, args->sock};

	for (size_t i = 1; i < ARRAY_SIZE(keep); i++) {
		for (size_t j = i; j > 0 && keep[j - 1] > keep[j]; j--) {
			int other = keep[j];

			keep[j] = keep[j - 1];
			keep[j - 1] = other;
		}
	}
	/* Asked to stop are all processes of a terminal or a service; the VMM decides, and still
	 * needs its memory while it stops. */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	if (prctl(PR_SET_NAME, "thaw-uffd") < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return -errno;
	/* It may have died before it could tell. */
	if (getppid() != args->parent_pid)
		_exit(EXIT_SUCCESS);
	return server_close_others(keep, ARRAY_SIZE(keep));
}

static int server_buffers(struct pager_server *server)
{
	const u64 window_bytes = server->args->cfg.window_bytes;
	u8 *buf = mmap(NULL, PAGER_SLOTS * window_bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (buf == MAP_FAILED)
		return -errno;
	for (unsigned int i = 0; i < PAGER_SLOTS; i++) {
		struct pager_slot *slot = &server->slots[i];

		slot->server = server;
		slot->buf = buf + i * window_bytes;
		slot->req = (struct ring_req){
			.op = RING_READ, .iov = &slot->iov, .niov = 1, .done = server_read_done};
	}
	return 0;
}

_Noreturn void pager_server(const struct pager_server_args *args)
{
	static struct pager_server server;
	char ready;
	ssize_t n;
	int ret;

	log_init("thaw-uffd");
	server.args = args;
	ret = server_confine(args);
	ret = ret ?: server_buffers(&server);
	ret = ret ?: ring_init(&server.ring, PAGER_SLOTS, &args->cfg.file_fd, 1, RING_RESTRICT);
	ret = ret ?: seccomp_apply_pager(SECCOMP_BUILD);
	ready = server.ring.plain ? PAGER_READY_PLAIN : PAGER_READY;
	if (!ret && send(args->sock, &ready, 1, MSG_NOSIGNAL) != 1) {
		/* The VMM has ended already, or this server's pager has. */
		if (errno == EPIPE || errno == ECONNRESET)
			_exit(EXIT_SUCCESS);
		ret = -errno;
	}
	if (ret) {
		log_err("page fault server: set-up: %s", strerror(-ret));
		_exit(EXIT_FAILURE);
	}
	do {
		n = recv(args->sock, &server.task, sizeof(server.task), 0);
	} while (n < 0 && errno == EINTR);
	if (n != sizeof(server.task))
		_exit(EXIT_SUCCESS); /* never needed */
	BUG_ON(!server.task.nranges || server.task.nranges > PAGER_RANGES);
	for (unsigned int i = 0; i < server.task.nranges; i++)
		server_wake(&server, server.task.ranges[i].hva, server.task.ranges[i].len_bytes);
	server_loop(&server);
}
