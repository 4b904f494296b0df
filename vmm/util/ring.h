/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous file I/O: io_uring with registered files, or a plain pread/pwrite path where a host
 * forbids io_uring.
 *
 * One ring belongs to one thread at a time. A ring made with RING_RESTRICT can only do read, write,
 * fsync and fallocate on the files registered at its creation: operations run by a ring are not
 * filtered by seccomp, so nothing else may be possible through it (io_uring_register(2),
 * IORING_REGISTER_RESTRICTIONS).
 */
#ifndef THAW_UTIL_RING_H
#define THAW_UTIL_RING_H

#include <liburing.h>
#include <sys/uio.h>

#include "vmm/util/types.h"

enum ring_flags {
	RING_RESTRICT = 1u << 0, /* restrict before use; an error where the kernel can't */
	RING_EVENTFD = 1u << 1,	 /* completions make ring->event_fd readable */
	RING_PLAIN = 1u << 2,	 /* no io_uring: pread/pwrite behind the same interface */
};

enum ring_op {
	RING_READ,
	RING_WRITE,
	RING_FDATASYNC,
	RING_DISCARD, /* punch a hole: [offset, offset + len) reads as zeros after, the size stays
		       */
	RING_READ_FIXED, /* as READ, of one iovec that lies in registered buffer @buf */
};

/** One request; owned by the caller until @done was called. */
struct ring_req {
	enum ring_op op;
	unsigned int file; /* index into the registered files */
	unsigned int buf;  /* READ_FIXED: index into the registered buffers */
	u64 offset_bytes;
	u64 len_bytes; /* of the iovecs together (READ/WRITE), or of the range */
	struct iovec *iov;
	unsigned int niov;
	/** @result: bytes done (may be short), 0 for the others, or -errno. Called from
	 * ring_reap(). */
	void (*done)(struct ring_req *req, s64 result);
	s64 plain_result; /* private to the plain path */
	struct ring_req *plain_next;
};

#define RING_FILES_MAX 20 /* a chain of snapshots, a root image and some */

struct ring {
	struct io_uring uring;
	bool plain;
	int files[RING_FILES_MAX]; /* for the plain path; not owned */
	unsigned int nfiles;
	unsigned int nbufs;
	int event_fd; /* owned; -1 without RING_EVENTFD */
	unsigned int depth;
	unsigned int inflight;
	unsigned int unsubmitted;
	struct ring_req *plain_head, **plain_tail;
};

/**
 * ring_init() - a ring of @depth entries over @files (not owned; must stay open).
 *
 * When io_uring_setup is forbidden (EPERM, ENOSYS) or $THAW_IO is "plain", the ring is plain;
 * ring->plain tells, and the caller names it in its result. Return: 0 or -errno (logged).
 */
int __must_check ring_init(struct ring *ring, unsigned int depth, const int *files,
			   unsigned int nfiles, unsigned int flags);

/**
 * ring_init_fixed() - as ring_init(), with @bufs registered for RING_READ_FIXED: their pages are
 * allocated now and pinned until ring_destroy(). Never plain. Return: as ring_init();
 * -EOPNOTSUPP where io_uring is forbidden (not logged); -ENOMEM or -EPERM when the kernel won't
 * register them (RLIMIT_MEMLOCK; not logged).
 */
int __must_check ring_init_fixed(struct ring *ring, unsigned int depth, const int *files,
				 unsigned int nfiles, unsigned int flags, const struct iovec *bufs,
				 unsigned int nbufs);

/** ring_destroy() - nothing may be in flight. */
void ring_destroy(struct ring *ring);

/** ring_queue() - add @req. Return: 0, -EBUSY when depth requests are in flight, or -EINVAL. */
int __must_check ring_queue(struct ring *ring, struct ring_req *req);

/** ring_submit() - start what was queued. Return: 0 or -errno. */
int __must_check ring_submit(struct ring *ring);

/** ring_reap() - call done() for completed requests, waiting until at least @min are complete.
 * Return: number, or -errno. */
int __must_check ring_reap(struct ring *ring, unsigned int min);

/** ring_drain() - submit and reap until nothing is in flight. Return: 0 or -errno. */
int __must_check ring_drain(struct ring *ring);

#endif
