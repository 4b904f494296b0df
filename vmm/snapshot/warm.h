/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making the hot set ready in a clone, in two parts: what can start as soon as guest memory is
 * mapped, and what needs the vCPUs' state. Nothing outside of this folder and its tests includes
 * it.
 */
#ifndef THAW_SNAPSHOT_WARM_H
#define THAW_SNAPSHOT_WARM_H

#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/restore_opts.h"

struct warm_fetch;

struct snap_warm {
	struct snap_restore_opts *opts;
	struct snap_hot hot;
	bool wanted;		    /* the hot set is used at all */
	bool read, write, prefault; /* what of it is made ready */
	struct warm_fetch *fetch;   /* NULL: nothing was cold */
	u64 fetch_ns;		    /* when it began */
};

/**
 * snap_warm_begin() - right after strategy @ops has mapped @mem: read the hot set if @opts or the
 * strategy want it, and start to fetch what of it is not in the page cache.
 *
 * Return: 0 or -errno (logged): also when @opts ask for what this snapshot does not have.
 * snap_warm_end() is due in every case.
 */
int __must_check snap_warm_begin(struct snap_warm *warm, const struct snap *snap,
				 const struct snap_mem *mem, const struct snap_mem_ops *ops,
				 struct snap_restore_opts *opts);

/**
 * snap_warm_finish() - vCPU state is loaded, no vCPU runs: wait for what was fetched, populate, map
 * into the guest. What a default could not have is told in opts->note. Return: 0 or -errno
 * (logged).
 */
int __must_check snap_warm_finish(struct snap_warm *warm, struct vm *vm);

/** snap_warm_end() - stop what is under way and free all. Twice is fine, and a zeroed one. */
void snap_warm_end(struct snap_warm *warm);

/**
 * warm_populate() - put hot pages into this process's page tables: of kind read
 * (MADV_POPULATE_READ) and write (MADV_POPULATE_WRITE: copied), by opts->threads threads. Return:
 * 0, -EINVAL where the kernel has no such advice (Linux before 5.14), or -errno. Logs nothing.
 */
int __must_check warm_populate(const struct snap_hot *hot, const struct vm *vm, bool read,
			       bool write, unsigned int nthreads);

/** warm_prefault() - map the hot set into the guest (Linux 6.11). @join: and what lies between runs
 * that are close, which spares calls. Return: 0, -EOPNOTSUPP where it can't be had for this VM, or
 * -errno. Logs nothing. */
int __must_check warm_prefault(const struct snap_hot *hot, struct vm *vm, bool join);

/**
 * warm_fetch_start() - start to read the pages of @hot that are not in the page cache into it, by
 * io_uring, WARM_FETCH_DEPTH requests at a time. @mem is mapped from the memory file.
 * @out: NULL when all are there. @plain: io_uring could not be had and they were read one by one.
 *
 * Return: 0 or -errno (logged).
 */
#define WARM_FETCH_DEPTH 128u
int __must_check warm_fetch_start(const struct snap *snap, const struct snap_hot *hot,
				  const struct snap_mem *mem, struct warm_fetch **out, bool *plain);

/** warm_fetch_wait() - until all are read. @bytes_read: how much that was. Return: 0 or -errno
 * (logged). */
int __must_check warm_fetch_wait(struct warm_fetch *fetch, u64 *bytes_read);

/** warm_fetch_free() - waits for what is in flight; NULL is fine. */
void warm_fetch_free(struct warm_fetch *fetch);

#endif
