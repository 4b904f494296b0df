/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How guest memory comes back: restore strategies behind one table. A new one is one file with a
 * `const struct snap_mem_ops`, and one line in mem.c; docs/restore.md tells how.
 */
#ifndef THAW_SNAPSHOT_MEM_H
#define THAW_SNAPSHOT_MEM_H

#include "vmm/snapshot/snapshot.h"

/** One stretch of RAM to provide. */
struct snap_mem_range {
	u64 gpa;       /* also the offset in the memory file */
	u64 len_bytes; /* multiple of 4 KiB */
	void *hva;     /* out */
};

struct snap_mem {
	int fd; /* the memory file, read-only, its size checked; not owned */
	struct snap_mem_range ranges[2];
	unsigned int nranges;
	u64 bytes_read; /* out: what the strategy itself read from the file */
	bool plain_io;	/* out: io_uring could not be had and pread was used */
};

struct snap_mem_ops {
	const char *name;
	const char *summary; /* one line for help and docs */
	/**
	 * Fill in every range's hva with a mapping of len_bytes that holds the file's content, by
	 * the time a vCPU reads it. Private: writes never reach the file. Unmapped by munmap(2). On
	 * failure nothing stays mapped. Return: 0 or -errno (logged).
	 */
	int (*map)(struct snap_mem *mem);
	/** The snapshot's hot set (hot.h) is made ready once the vCPUs' state is loaded. */
	bool hot;
};

/** snap_mem_find() - strategy by name; NULL = the default ("ws"). Return: NULL when there is none
 * of that name. */
const struct snap_mem_ops *snap_mem_find(const char *name);

/** snap_mem_list() - all of them, NULL-terminated, for help. */
const struct snap_mem_ops *const *snap_mem_list(void);

extern const struct snap_mem_ops snap_mem_copy;
extern const struct snap_mem_ops snap_mem_mmap;
extern const struct snap_mem_ops snap_mem_ws;

#endif
