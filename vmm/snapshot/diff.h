/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Diffs: a snapshot whose `memory` holds only the pages that differ from those of its parent, the
 * snapshot that its VM was restored from. The file `diff` tells which; snapshots/FORMAT.md is the
 * authority.
 *
 * The parent may be a diff itself. At the end of the chain is a whole snapshot, the root. Content
 * of a page: that of the first snapshot of the chain, from the top, that holds it.
 */
#ifndef THAW_SNAPSHOT_DIFF_H
#define THAW_SNAPSHOT_DIFF_H

#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/mem.h"

#define SNAP_DIFF_MAGIC	  0x4646494457414854ull /* "THAWDIFF" as bytes */
#define SNAP_DIFF_VERSION 1

/*
 * Each run can cost two mappings of the process, which the kernel limits to 65530
 * (vm.max_map_count). The longest chain of the longest lists fits.
 */
#define SNAP_DIFF_RUNS_MAX 2048
#define SNAP_CHAIN_MAX	   16 /* snapshots in a chain, the root included */

struct snap_diff_run {
	u64 gpa; /* multiple of 4 KiB */
	u64 npages;
};

struct snap_diff_header {
	u64 magic;
	u32 version;
	u32 nruns; /* behind the header: ascending, not touching, each inside one stretch of RAM */
};

/** A checked list; @runs points into @buf. */
struct snap_diff {
	void *buf; /* owned */
	const struct snap_diff_run *runs;
	u32 nruns;
	u64 npages;
};

/**
 * snap_diff_parse() - check a whole file in memory (pure; fuzzed; @out->buf is left alone).
 * @why: gets a static text that says what is wrong. Return: 0, -EINVAL, -EPROTONOSUPPORT.
 */
int __must_check snap_diff_parse(const void *buf, size_t len_bytes, u64 ram_bytes,
				 struct snap_diff *out, const char **why);

/** snap_diff_build() - a whole file of @runs. @out: the caller frees it. Return: 0 or -ENOMEM. */
int __must_check snap_diff_build(const struct snap_diff_run *runs, u32 nruns, void **out,
				 size_t *len_bytes);

/** snap_diff_open() - @snap->diff from the folder, if its manifest says that it is a diff. Return:
 * 0 or -errno (logged). */
int __must_check snap_diff_open(struct snap *snap);
void snap_diff_free(struct snap_diff *diff);

/** snap_root() - the whole snapshot that @snap's chain ends in: @snap itself if it is none. */
const struct snap *snap_root(const struct snap *snap);

/** snap_depth() - snapshots in @snap's chain: 1 for a whole one. */
unsigned int snap_depth(const struct snap *snap);

/**
 * snap_diff_overlay() - over @mem, which holds the root's content, put the pages of every diff up
 * to
 * @snap; nothing to do for a whole snapshot.
 * @eager: read them (counted in mem->bytes_read) instead of mapping their files privately.
 *
 * Return: 0 or -errno (logged); the caller unmaps.
 */
int __must_check snap_diff_overlay(const struct snap *snap, struct snap_mem *mem, bool eager);

/** snap_content_map() - the content of @snap's memory as a private mapping, for tools and writers;
 * snap_mem_unmap() ends it. Return: 0 or -errno (logged). */
int __must_check snap_content_map(const struct snap *snap, struct snap_mem *mem);

#endif
