/* SPDX-License-Identifier: Apache-2.0 */
/* A made-up snapshot for benchmarks, and clones of it: no guest is needed, so that they run
 * wherever /dev/kvm opens. */
#ifndef THAW_BENCH_MADE_H
#define THAW_BENCH_MADE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The shape of the template `debian` as far as it costs time: docs/results.md. */
#define MADE_DATA_MIB  64  /* of memory that is no hole */
#define MADE_ROOT_MIB  128 /* root image */
#define MADE_HOT_PAGES 1400
#define MADE_HOT_RUNS  450

struct made; /* an open snapshot in a folder of its own */

struct made_shape {
	unsigned int nvcpus, ram_mib;
};

/**
 * made_new() - write a snapshot of a machine that never ran (memory with MADE_DATA_MIB of
 * incompressible data, root image, scratch disk, hot set, pack) into a new folder below
 * $THAW_BENCH_DIR (default /var/tmp), and open it. Return: 0 or -errno (logged).
 */
int made_new(const struct made_shape *shape, struct made **out);

/** made_free() - close it and remove the folder; NULL is fine. */
void made_free(struct made *made);

/** What a clone's start took, and what it left to do. */
struct made_times {
	uint64_t c1_ns;	     /* first KVM ioctl to vCPU state set */
	uint64_t restore_ns; /* memory mapped to devices resumed: all of snap_restore() */
	uint64_t touch_ns;   /* then each page of the hot set touched by its kind, from the host */
	uint64_t faults;     /* minor and major, of the touching */
	uint64_t bytes_read; /* from storage, by all of it */
	uint64_t hot_bytes;  /* of the hot set on the disk, holes left out */
};

/** How a clone is made. */
struct made_how {
	const char *strategy;
	int cold;	/* nothing of memory and root image is in the page cache */
	int state_only; /* no hot set: what c1 needs and no more */
	int touch;
	unsigned int threads;
};

/**
 * made_clone() - one clone in a process of its own, forked from this one as a zygote forks it; its
 * end is not waited for within the times. Return: 0 or -errno.
 */
int made_clone(struct made *made, const struct made_how *how, struct made_times *times);

/** made_strategies() - names of all restore strategies, NULL at the end. */
const char *const *made_strategies(void);

#ifdef __cplusplus
}
#endif

#endif
