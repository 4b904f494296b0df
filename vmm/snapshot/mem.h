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
	bool huge;	/* in: ask for transparent huge pages; only where ops->huge is set */
	int memory_fd;	/* in: for "memfd", a descriptor above 2 prepared by snap_memfd_make(); not
			   owned. 0: none */
	const char *id; /* in: the snapshot's, for "memfd"; NULL: "" */
	int pack_fd;	/* in: for "pack", the snapshot's `memory.pack`; not owned */
	u64 fault_window_bytes; /* in: for "uffd", struct pager_config.window_bytes; 0: the default
				 */
	u64 bytes_read;		/* out: what the strategy itself read from the file */
	bool plain_io;		/* out: io_uring could not be had and pread was used */
	struct pager *pager; /* out: "uffd": who brings the pages (pager.h); the caller's to free */
	const char *note;    /* out: what else was not done as its documentation says; or NULL */
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
	/** Nothing is left to page faults, so the pages of a diff are read at once too, and not
	 * mapped over those of its parent (diff.h). */
	bool eager;
	/** The snapshot's hot set (hot.h) is made ready once the vCPUs' state is loaded, unless the
	 * restore's options say otherwise. */
	bool hot;
	/** Before that, while the VM is set up, it is read into a cold page cache. */
	bool fetch;
	/** What it maps can have transparent huge pages; SNAP_HUGE_SHMEM: if shmem_enabled says so.
	 */
	enum snap_huge { SNAP_HUGE_NONE = 0, SNAP_HUGE_ANON, SNAP_HUGE_SHMEM } huge;
	bool takes_memory_fd;
	bool takes_fault_window;
	bool takes_pack; /* reads `memory.pack`, which a snapshot need not have */
};

/** snap_mem_ranges() - where @ram_bytes of RAM lie, into @mem. */
void snap_mem_ranges(struct snap_mem *mem, u64 ram_bytes);

/** snap_mem_unmap() - every range that is mapped; its pager ends. */
void snap_mem_unmap(struct snap_mem *mem);

/** snap_mem_find() - strategy by name; NULL = the default ("ws"). Return: NULL when there is none
 * of that name. */
const struct snap_mem_ops *snap_mem_find(const char *name);

/** snap_mem_list() - all of them, NULL-terminated, for help. */
const struct snap_mem_ops *const *snap_mem_list(void);

/*
 * What strategies share.
 *
 * snap_mem_map() - private mappings of all ranges: of @fd at offset gpa, or anonymous when it is
 * -1. With mem->huge at multiples of 2 MiB and with MADV_HUGEPAGE. Return: 0 or -errno (logged;
 * nothing is mapped).
 *
 * snap_mem_read() - all data of the memory file into the mapped ranges, which are zero; holes stay
 * untouched. Return: 0 or -errno (logged).
 *
 * snap_mem_read_fixed() - the same from @fd, the file opened with O_DIRECT, into registered
 * buffers: the ranges themselves, or bounce buffers (told in mem->note). Return: 0 or -errno.
 *
 * snap_mem_check_size() - past its end a file has no data, which looks like a hole: a file that
 * shrank must not become zeros. Return: 0, -ENODATA or -errno. Logs nothing.
 */
int __must_check snap_mem_map(struct snap_mem *mem, int fd);
int __must_check snap_mem_read(struct snap_mem *mem);
int __must_check snap_mem_read_fixed(struct snap_mem *mem, int fd);
int __must_check snap_mem_check_size(const struct snap_mem *mem);

/**
 * snap_memfd_make() - a memfd with the content of @mem->fd, sealed against every change; its name
 * holds @mem->id. Counts in @mem->bytes_read. One may serve many restores (thaw-vmm --memory-fd).
 * Return: the descriptor, which the caller owns, or -errno (logged).
 */
int __must_check snap_memfd_make(struct snap_mem *mem);

extern const struct snap_mem_ops snap_mem_copy;
extern const struct snap_mem_ops snap_mem_memfd;
extern const struct snap_mem_ops snap_mem_mmap;
extern const struct snap_mem_ops snap_mem_pack;
extern const struct snap_mem_ops snap_mem_uffd;
extern const struct snap_mem_ops snap_mem_uring;
extern const struct snap_mem_ops snap_mem_ws;

#endif
