/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pager: guest memory whose pages come from a file through userfaultfd(2), served by another
 * process. What strategy "uffd" is made of; mem_uffd.c has the theory.
 */
#ifndef THAW_SNAPSHOT_PAGER_H
#define THAW_SNAPSHOT_PAGER_H

#include "vmm/util/types.h"

/* One serves; the others wait to take over. */
#define PAGER_SERVERS		   3
#define PAGER_RANGES		   2
#define PAGER_WINDOW_DEFAULT_BYTES (16ull << 10)
#define PAGER_WINDOW_MAX_BYTES	   (2ull << 20)

/** One stretch of memory: file offset to address. All multiples of 4 KiB. */
struct pager_range {
	u64 hva, offset_bytes, len_bytes;
};

struct pager_config {
	int file_fd;	/* what is in memory; not owned */
	u64 file_bytes; /* its size; less is an error */
	/* How much is brought at a fault, at most: a power of two from 4 KiB on. */
	u64 window_bytes;
};

/** Counters, written by whoever serves. */
struct pager_stats {
	u64 faults;	  /* read from the kernel */
	u64 reads;	  /* requests to the file */
	u64 copied_pages; /* private copies made */
	u64 zero_pages;	  /* mapped to the shared page of zeros */
};

struct pager;

/** pager_keep_uffd() - open the userfaultfd of the next pager_start() now, while this process has
 * the right to. It serves this process alone. Return: 0 or -errno (logged). */
int __must_check pager_keep_uffd(void);

/**
 * pager_start() - open a userfaultfd and fork the servers. The process should be small and have one
 * thread; it should not be mapping the guest's memory yet. They end with the calling thread, or
 * when their pager is freed. Return: 0 or -errno (logged).
 */
int __must_check pager_start(const struct pager_config *cfg, struct pager **out);

/**
 * pager_attach() - from now on a missing page of @ranges (anonymous, untouched) is brought by the
 * server. A thread of this process watches the servers: a dead one is replaced. Return: 0 or -errno
 * (logged); then the ranges are as before, or to be unmapped.
 */
int __must_check pager_attach(struct pager *pager, const struct pager_range *ranges,
			      unsigned int nranges);

/**
 * pager_failed_fd() - becomes readable, and stays so, when the last server has died. A thread that
 * touches a missing page then waits for ever, so that the process has to end. It does so by itself
 * (_exit(1)) if the pager is not freed within PAGER_GRACE_MS after that.
 */
int pager_failed_fd(const struct pager *pager);
#define PAGER_FAILED_TEXT  "the page fault servers died, the last of " PAGER_SERVERS_TEXT
#define PAGER_SERVERS_TEXT "3"
#define PAGER_GRACE_MS	   2000

/** pager_tell() - where the owner is to hear of the process' end, if it comes to that (ctl.h); -1:
 * nowhere. */
void pager_tell(struct pager *pager, int ctl_fd);

/** pager_is_plain() - of an attached one: io_uring could not be had, and pread is used. */
bool pager_is_plain(const struct pager *pager);

/** pager_stats() - a look at the counters. */
struct pager_stats pager_stats(const struct pager *pager);

/** pager_pid() - process @index of PAGER_SERVERS, for tests. pager_active() - which one serves. */
int pager_pid(const struct pager *pager, unsigned int index);
unsigned int pager_active(const struct pager *pager);

/** pager_free() - end the servers; nobody may touch a missing page any more. NULL is fine. */
void pager_free(struct pager *pager);

#endif
