// SPDX-License-Identifier: Apache-2.0
// Sets of touched pages: counting in how many clones a page was touched.
//
// Every run gives two edges, where it begins and where it ends. Between two neighbours in the
// sorted list of all edges nothing changes, so that one walk over them, with two counters (sets
// that touched, sets that wrote), sees every page of every set without a table of pages.
#include "vmm/snapshot/hot_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/util/log.h"

struct hot_edge {
	u64 gpa;
	s32 touched, written; /* how the counters change here */
};

int snap_hot_set_add(struct snap_hot_set *set, u64 gpa, u64 npages, enum snap_hot_kind kind)
{
	struct snap_hot_run *last = set->runs && set->nruns ? &set->runs[set->nruns - 1] : NULL;

	if (last && last->kind == kind && gpa != set->pmem_gpa &&
	    last->gpa + last->npages * PAGE_SIZE_BYTES == gpa &&
	    last->npages + npages <= UINT32_MAX) {
		last->npages += (u32)npages;
		return 0;
	}
	if (set->nruns == SNAP_HOT_RUNS_MAX || npages > UINT32_MAX)
		return -E2BIG;
	if (!set->runs || set->nruns == set->capacity) {
		u32 capacity = set->capacity ? 2 * set->capacity : 256;
		struct snap_hot_run *runs = realloc(set->runs, capacity * sizeof(*runs));

		if (!runs)
			return -ENOMEM;
		set->runs = runs;
		set->capacity = capacity;
	}
	set->runs[set->nruns++] =
		(struct snap_hot_run){.gpa = gpa, .npages = (u32)npages, .kind = kind};
	return 0;
}

void snap_hot_set_free(struct snap_hot_set *set)
{
	free(set->runs);
	set->runs = NULL;
	set->nruns = 0;
	set->capacity = 0;
}

u64 snap_hot_set_pages(const struct snap_hot_set *set, enum snap_hot_kind kind)
{
	u64 npages = 0;

	for (u32 i = 0; i < set->nruns; i++)
		npages += set->runs[i].kind == kind ? set->runs[i].npages : 0;
	return npages;
}

u32 snap_hot_threshold(enum snap_hot_rule rule, u32 nclones)
{
	switch (rule) {
	case SNAP_HOT_HALF:
		return (nclones + 1) / 2;
	case SNAP_HOT_INTERSECTION:
		return nclones;
	case SNAP_HOT_UNION:
	default:
		return 1;
	}
}

static int edge_compare(const void *a, const void *b)
{
	const struct hot_edge *left = a, *right = b;

	return left->gpa < right->gpa ? -1 : left->gpa > right->gpa;
}

/** All edges of @sets, sorted. Return: 0 (@out is the caller's) or -ENOMEM. */
static int edges_build(const struct snap_hot_set *sets, u32 nsets, struct hot_edge **out,
		       size_t *nedges)
{
	struct hot_edge *edges, *next;
	size_t nruns = 0;

	for (u32 i = 0; i < nsets; i++)
		nruns += sets[i].nruns;
	edges = calloc(2 * nruns + 1, sizeof(*edges));
	if (!edges)
		return -ENOMEM;
	next = edges;
	for (u32 i = 0; i < nsets; i++) {
		for (u32 k = 0; k < sets[i].nruns; k++) {
			const struct snap_hot_run *run = &sets[i].runs[k];
			s32 written = run->kind == SNAP_HOT_WRITE;

			*next++ = (struct hot_edge){run->gpa, 1, written};
			*next++ = (struct hot_edge){run->gpa + run->npages * PAGE_SIZE_BYTES, -1,
						    -written};
		}
	}
	qsort(edges, 2 * nruns, sizeof(*edges), edge_compare);
	*out = edges;
	*nedges = 2 * nruns;
	return 0;
}

/** Walk over @sets. @out: gets the pages, or NULL. @npages: gets their number. */
static int hot_walk(const struct snap_hot_set *sets, u32 nsets, u32 threshold,
		    struct snap_hot_set *out, u64 *npages)
{
	struct hot_edge *edges = NULL;
	s64 touched = 0, written = 0;
	size_t nedges;
	int ret;

	*npages = 0;
	ret = edges_build(sets, nsets, &edges, &nedges);
	for (size_t i = 0; !ret && i + 1 < nedges; i++) {
		u64 here = (edges[i + 1].gpa - edges[i].gpa) / PAGE_SIZE_BYTES;

		touched += edges[i].touched;
		written += edges[i].written;
		BUG_ON(touched < 0 || written < 0 || touched > nsets);
		if (!here || touched < threshold)
			continue;
		*npages += here;
		if (out)
			ret = snap_hot_set_add(out, edges[i].gpa, here,
					       written >= threshold ? SNAP_HOT_WRITE
								    : SNAP_HOT_READ);
	}
	free(edges);
	return ret;
}

int snap_hot_merge(const struct snap_hot_set *sets, u32 nsets, u32 threshold,
		   struct snap_hot_set *out)
{
	u64 npages;

	BUG_ON(!threshold);
	return hot_walk(sets, nsets, threshold, out, &npages);
}

int snap_hot_common(const struct snap_hot_set *sets, u32 nsets, u32 threshold, u64 *out_pages)
{
	BUG_ON(!threshold);
	return hot_walk(sets, nsets, threshold, NULL, out_pages);
}

/** Jaccard index of two sets in thousandths; two empty ones are the same. */
static int pair_permille(const struct snap_hot_set *a, const struct snap_hot_set *b, u64 *out)
{
	struct snap_hot_set pair[] = {*a, *b};
	u64 both, either;
	int ret;

	ret = snap_hot_common(pair, 2, 2, &both);
	if (!ret)
		ret = snap_hot_common(pair, 2, 1, &either);
	if (!ret)
		*out = either ? both * 1000 / either : 1000;
	return ret;
}

int snap_hot_stability(const struct snap_hot_set *sets, const u32 *command, u32 nsets,
		       u32 *out_same_permille, u32 *out_other_permille)
{
	u64 sum[2] = {0, 0}, npairs[2] = {0, 0}, permille;
	int ret = 0;

	for (u32 i = 0; i < nsets && !ret; i++) {
		for (u32 k = i + 1; k < nsets && !ret; k++) {
			bool differs = command[i] != command[k];

			ret = pair_permille(&sets[i], &sets[k], &permille);
			if (ret)
				break;
			sum[differs] += permille;
			npairs[differs]++;
		}
	}
	*out_same_permille = npairs[0] ? (u32)(sum[0] / npairs[0]) : SNAP_HOT_UNKNOWN;
	*out_other_permille = npairs[1] ? (u32)(sum[1] / npairs[1]) : SNAP_HOT_UNKNOWN;
	return ret;
}
