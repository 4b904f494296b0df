// SPDX-License-Identifier: Apache-2.0
// Asynchronous file I/O through io_uring, and the same interface over plain system calls.
//
// Theory of operation
//
// `inflight` counts requests from ring_queue() until just before their done(); `unsubmitted` those
// of them that ring_submit() has not handed over yet. inflight never exceeds depth and both queues
// of the ring hold at least depth entries, so a submission entry is always free and completions
// never overflow.
//
// A restricted ring is made disabled, gets its files, eventfd and restrictions, and is enabled
// last: from then on the kernel refuses every opcode but the four below, every file but the
// registered ones and every further registration. Operations of a ring are not seen by seccomp, so
// this is what keeps a VMM that was taken over from opening files or sockets through it.
//
// done() may queue new requests and submit them. It is called after its completion entry was given
// back, so a nested ring_reap() would be safe too.
//
// The plain path runs a request inside ring_submit() and delivers done() in ring_reap(), like the
// real one: callers see the same order of events and need no second code path.
#include "vmm/util/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

/* What a full kernel gets before ring_drain() gives up: 1,000 times 1 ms. */
#define RING_RETRIES	 1000
#define RING_RETRY_NS	 1000000
#define RING_DISCARD_ARG (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)

/* By number: the shared library of liburing 2.3 does not export its wrappers for these two. */
static int uring_register(const struct io_uring *uring, unsigned int opcode, const void *arg,
			  unsigned int nargs)
{
	return syscall(__NR_io_uring_register, uring->ring_fd, opcode, arg, nargs) < 0 ? -errno : 0;
}

static int restrict_ring(struct io_uring *uring, bool fixed_bufs)
{
	static const u8 opcodes[] = {IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_FSYNC,
				     IORING_OP_FALLOCATE, IORING_OP_READ_FIXED};
	const unsigned int nopcodes = ARRAY_SIZE(opcodes) - (fixed_bufs ? 0 : 1);
	struct io_uring_restriction rules[ARRAY_SIZE(opcodes) + 1];
	int ret;

	memset(rules, 0, sizeof(rules));
	for (size_t i = 0; i < nopcodes; i++) {
		rules[i].opcode = IORING_RESTRICTION_SQE_OP;
		rules[i].sqe_op = opcodes[i];
	}
	rules[nopcodes].opcode = IORING_RESTRICTION_SQE_FLAGS_REQUIRED;
	rules[nopcodes].sqe_flags = IOSQE_FIXED_FILE;
	ret = uring_register(uring, IORING_REGISTER_RESTRICTIONS, rules, nopcodes + 1);
	if (ret < 0)
		log_err("io_uring: register restrictions: %s", strerror(-ret));
	return ret;
}

/* Return: 0, 1 when io_uring is forbidden here, or -errno. */
static int uring_init(struct ring *ring, unsigned int flags, const struct iovec *bufs)
{
	bool restricted = flags & RING_RESTRICT;
	int ret;

	ret = io_uring_queue_init(ring->depth, &ring->uring,
				  restricted ? IORING_SETUP_R_DISABLED : 0);
	if (ret == -EPERM || ret == -ENOSYS)
		return 1;
	if (ret < 0) {
		log_err("io_uring: set up %u entries: %s", ring->depth, strerror(-ret));
		return ret;
	}
	ret = io_uring_register_files(&ring->uring, ring->files, ring->nfiles);
	if (ret < 0) {
		log_err("io_uring: register %u files: %s", ring->nfiles, strerror(-ret));
		goto err;
	}
	if (ring->nbufs) {
		ret = io_uring_register_buffers(&ring->uring, bufs, ring->nbufs);
		if (ret < 0) {
			if (ret != -ENOMEM && ret != -EPERM)
				log_err("io_uring: register %u buffers: %s", ring->nbufs,
					strerror(-ret));
			goto err;
		}
	}
	if (ring->event_fd >= 0) {
		ret = io_uring_register_eventfd(&ring->uring, ring->event_fd);
		if (ret < 0) {
			log_err("io_uring: register eventfd: %s", strerror(-ret));
			goto err;
		}
	}
	if (restricted) {
		ret = restrict_ring(&ring->uring, ring->nbufs > 0);
		if (ret < 0)
			goto err;
		ret = uring_register(&ring->uring, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
		if (ret < 0) {
			log_err("io_uring: enable: %s", strerror(-ret));
			goto err;
		}
	}
	return 0;
err:
	io_uring_queue_exit(&ring->uring);
	return ret;
}

static bool plain_wanted(unsigned int flags)
{
	const char *io = getenv("THAW_IO");

	return (flags & RING_PLAIN) || (io && !strcmp(io, "plain"));
}

/** @bufs: NULL for ring_init(). Return: 0, 1 when io_uring is forbidden, or -errno. */
static int ring_open(struct ring *ring, unsigned int depth, const int *files, unsigned int nfiles,
		     unsigned int flags, const struct iovec *bufs, unsigned int nbufs)
{
	int ret;

	*ring = (struct ring){.event_fd = -1, .depth = depth, .nfiles = nfiles, .nbufs = nbufs};
	ring->plain_tail = &ring->plain_head;
	if (depth == 0 || nfiles == 0 || nfiles > RING_FILES_MAX) {
		log_err("ring: %u entries over %u files", depth, nfiles);
		return -EINVAL;
	}
	memcpy(ring->files, files, nfiles * sizeof(*files));
	if (flags & RING_EVENTFD) {
		ring->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (ring->event_fd < 0) {
			ret = -errno;
			log_err("ring: eventfd: %s", strerror(-ret));
			return ret;
		}
	}
	ret = plain_wanted(flags) ? 1 : uring_init(ring, flags, bufs);
	if (ret < 0)
		fd_close(&ring->event_fd);
	return ret;
}

int ring_init(struct ring *ring, unsigned int depth, const int *files, unsigned int nfiles,
	      unsigned int flags)
{
	int ret = ring_open(ring, depth, files, nfiles, flags, NULL, 0);

	ring->plain = ret == 1;
	if (ring->plain && !plain_wanted(flags))
		log_info("io_uring is forbidden here: plain system calls are used");
	return MIN(ret, 0);
}

int ring_init_fixed(struct ring *ring, unsigned int depth, const int *files, unsigned int nfiles,
		    unsigned int flags, const struct iovec *bufs, unsigned int nbufs)
{
	int ret = ring_open(ring, depth, files, nfiles, flags, bufs, nbufs);

	if (ret == 1)
		fd_close(&ring->event_fd);
	return ret == 1 ? -EOPNOTSUPP : ret;
}

void ring_destroy(struct ring *ring)
{
	BUG_ON(ring->inflight);
	if (!ring->plain)
		io_uring_queue_exit(&ring->uring);
	fd_close(&ring->event_fd);
}

static void prepare_sqe(struct io_uring_sqe *sqe, struct ring_req *req)
{
	int file = (int)req->file;

	switch (req->op) {
	case RING_READ:
		io_uring_prep_readv(sqe, file, req->iov, req->niov, req->offset_bytes);
		break;
	case RING_WRITE:
		io_uring_prep_writev(sqe, file, req->iov, req->niov, req->offset_bytes);
		break;
	case RING_FDATASYNC:
		io_uring_prep_fsync(sqe, file, IORING_FSYNC_DATASYNC);
		break;
	case RING_DISCARD:
		io_uring_prep_fallocate(sqe, file, RING_DISCARD_ARG, (off_t)req->offset_bytes,
					(off_t)req->len_bytes);
		break;
	case RING_READ_FIXED:
		io_uring_prep_read_fixed(sqe, file, req->iov->iov_base,
					 (unsigned int)req->iov->iov_len, req->offset_bytes,
					 (int)req->buf);
		break;
	}
	io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	io_uring_sqe_set_data(sqe, req);
}

static bool req_ok(const struct ring *ring, const struct ring_req *req)
{
	u64 end_bytes;

	if (req->op == RING_READ_FIXED &&
	    (req->buf >= ring->nbufs || req->niov != 1 || req->iov->iov_len > UINT32_MAX))
		return false;
	return req->op <= RING_READ_FIXED && req->file < ring->nfiles &&
	       u64_add_ok(req->offset_bytes, req->len_bytes, &end_bytes) && end_bytes <= INT64_MAX;
}

int ring_queue(struct ring *ring, struct ring_req *req)
{
	struct io_uring_sqe *sqe;

	if (!req_ok(ring, req))
		return -EINVAL;
	if (ring->inflight >= ring->depth)
		return -EBUSY;
	if (ring->plain) {
		req->plain_next = NULL;
		*ring->plain_tail = req;
		ring->plain_tail = &req->plain_next;
	} else {
		sqe = io_uring_get_sqe(&ring->uring);
		BUG_ON(!sqe); /* unsubmitted <= inflight < depth <= entries */
		prepare_sqe(sqe, req);
	}
	ring->inflight++;
	ring->unsubmitted++;
	return 0;
}

static s64 plain_run(const struct ring *ring, const struct ring_req *req)
{
	int fd = ring->files[req->file];
	s64 ret = -1;

	do {
		switch (req->op) {
		case RING_READ:
		case RING_READ_FIXED:
			ret = preadv(fd, req->iov, (int)req->niov, (off_t)req->offset_bytes);
			break;
		case RING_WRITE:
			ret = pwritev(fd, req->iov, (int)req->niov, (off_t)req->offset_bytes);
			break;
		case RING_FDATASYNC:
			ret = fdatasync(fd);
			break;
		case RING_DISCARD:
			ret = fallocate(fd, RING_DISCARD_ARG, (off_t)req->offset_bytes,
					(off_t)req->len_bytes);
			break;
		}
	} while (ret < 0 && errno == EINTR);
	return ret < 0 ? -errno : ret;
}

static int plain_submit(struct ring *ring)
{
	unsigned int finished = ring->inflight - ring->unsubmitted;
	struct ring_req *req;
	u64 one = 1;

	if (!ring->unsubmitted)
		return 0;
	/* The list holds finished requests first, then the unsubmitted ones. */
	for (req = ring->plain_head; req; req = req->plain_next) {
		if (finished) {
			finished--;
			continue;
		}
		req->plain_result = plain_run(ring, req);
	}
	ring->unsubmitted = 0;
	/* It can only fail when the counter is at its end, and then it is readable anyway. */
	if (ring->event_fd >= 0 && write(ring->event_fd, &one, sizeof(one)) < 0)
		log_debug("ring: eventfd: %s", strerror(errno));
	return 0;
}

int ring_submit(struct ring *ring)
{
	int ret;

	if (ring->plain)
		return plain_submit(ring);
	while (ring->unsubmitted) {
		ret = io_uring_submit(&ring->uring);
		if (ret == -EINTR)
			continue;
		if (ret < 0)
			return ret;
		if (ret == 0)
			return -EAGAIN;
		ring->unsubmitted -= MIN((unsigned int)ret, ring->unsubmitted);
	}
	return 0;
}

static int plain_reap(struct ring *ring)
{
	int count = 0;

	while (ring->inflight > ring->unsubmitted) {
		struct ring_req *req = ring->plain_head;

		BUG_ON(!req); /* inflight - unsubmitted finished ones head the list */
		ring->plain_head = req->plain_next;
		if (!ring->plain_head)
			ring->plain_tail = &ring->plain_head;
		ring->inflight--;
		count++;
		req->done(req, req->plain_result);
	}
	return count;
}

static int uring_reap(struct ring *ring, unsigned int min)
{
	unsigned int count = 0;

	min = MIN(min, ring->inflight - ring->unsubmitted);
	for (;;) {
		struct io_uring_cqe *cqe = NULL;
		struct ring_req *req;
		s64 result;
		int ret;

		if (count < min)
			ret = io_uring_wait_cqe(&ring->uring, &cqe);
		else
			ret = io_uring_peek_cqe(&ring->uring, &cqe);
		if (ret == -EINTR)
			continue;
		if (ret == -EAGAIN)
			return (int)count;
		if (ret < 0)
			return ret;
		req = io_uring_cqe_get_data(cqe);
		result = cqe->res;
		io_uring_cqe_seen(&ring->uring, cqe);
		ring->inflight--;
		count++;
		req->done(req, result);
	}
}

int ring_reap(struct ring *ring, unsigned int min)
{
	u64 signals;

	/* Before the completions are looked at: one that comes later makes it readable again. */
	if (ring->event_fd >= 0 && read(ring->event_fd, &signals, sizeof(signals)) < 0 &&
	    errno != EAGAIN)
		return -errno;
	return ring->plain ? plain_reap(ring) : uring_reap(ring, min);
}

int ring_drain(struct ring *ring)
{
	struct timespec pause = {.tv_nsec = RING_RETRY_NS};
	unsigned int retries = 0;
	int ret;

	while (ring->inflight) {
		ret = ring_submit(ring);
		if (ret && ret != -EAGAIN && ret != -EBUSY && ret != -ENOMEM)
			return ret;
		/* The kernel is out of memory and nothing of ours is under way that would wake us.
		 */
		if (ret && ring->inflight == ring->unsubmitted) {
			if (++retries > RING_RETRIES)
				return ret;
			nanosleep(&pause, NULL);
			continue;
		}
		ret = ring_reap(ring, 1);
		if (ret < 0)
			return ret;
	}
	return 0;
}
