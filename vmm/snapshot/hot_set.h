/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of touched pages, and how the ones of several clones become one. Pure: no guest, no files.
 */
#ifndef THAW_SNAPSHOT_HOT_SET_H
#define THAW_SNAPSHOT_HOT_SET_H

#include "vmm/snapshot/hot.h"

/** Pages by runs: ascending, disjoint, neighbours of one kind joined. */
struct snap_hot_set {
	struct snap_hot_run *runs; /* owned */
	u32 nruns, capacity;
	u64 pmem_gpa; /* no run goes across this address: RAM may end where the root image begins */
};

/**
 * snap_hot_set_add() - @npages at @gpa, which is behind everything that is in @set. A set of zeros
 * (but for pmem_gpa) is empty; snap_hot_set_free() is due after the first add.
 *
 * Return: 0, -E2BIG (more than SNAP_HOT_RUNS_MAX runs) or -ENOMEM.
 */
int __must_check snap_hot_set_add(struct snap_hot_set *set, u64 gpa, u64 npages,
				  enum snap_hot_kind kind);

/** snap_hot_set_free() - what is left is an empty set. */
void snap_hot_set_free(struct snap_hot_set *set);

/** snap_hot_set_pages() - pages of @kind in @set. */
u64 snap_hot_set_pages(const struct snap_hot_set *set, enum snap_hot_kind kind);

/** snap_hot_threshold() - in how many of @nclones a page must be, by @rule. */
u32 snap_hot_threshold(enum snap_hot_rule rule, u32 nclones);

/**
 * snap_hot_merge() - the pages that are in at least @threshold of the @nsets sets. One that at
 * least @threshold of them wrote is write-hot, another one read-hot.
 * @out: empty; snap_hot_set_free() is due in both cases.
 *
 * Return: 0, -E2BIG or -ENOMEM.
 */
int __must_check snap_hot_merge(const struct snap_hot_set *sets, u32 nsets, u32 threshold,
				struct snap_hot_set *out);

/** snap_hot_common() - how many pages are in at least @threshold of the sets, whatever their kind.
 * Return: 0 or -ENOMEM. */
int __must_check snap_hot_common(const struct snap_hot_set *sets, u32 nsets, u32 threshold,
				 u64 *out_pages);

/**
 * snap_hot_stability() - mean Jaccard index (pages in both / pages in either), in thousandths, over
 * all pairs of sets whose command is the same, and over all pairs whose command differs.
 * @command: number of the command of each set. Where there is no such pair: SNAP_HOT_UNKNOWN.
 *
 * Return: 0 or -ENOMEM.
 */
int __must_check snap_hot_stability(const struct snap_hot_set *sets, const u32 *command, u32 nsets,
				    u32 *out_same_permille, u32 *out_other_permille);

#endif
