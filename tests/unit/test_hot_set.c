// SPDX-License-Identifier: Apache-2.0
// Merging the pages of several clones: the three rules against a table of pages, joins, kinds,
// stretches that must not be joined, Jaccard indices, limits.
#include "vmm/snapshot/hot_set.h"

#include <errno.h>

#include "tests/unit/test.h"

#define PMEM_GPA (5 * GIB)
#define NPAGES	 512
#define NSETS	 7

static u64 seed = 88172645463325252ull;

static u32 rnd(u32 below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (u32)(seed % below);
}

/** One page a character: '.' untouched, 'r' read, 'w' written. */
static void set_make(struct snap_hot_set *set, u64 gpa, const char *pages)
{
	*set = (struct snap_hot_set){.pmem_gpa = PMEM_GPA};
	for (u64 i = 0; pages[i]; i++) {
		if (pages[i] != '.')
			CHECK_EQ(snap_hot_set_add(set, gpa + i * PAGE_SIZE_BYTES, 1,
						  pages[i] == 'w' ? SNAP_HOT_WRITE : SNAP_HOT_READ),
				 0);
	}
}

static void set_print(const struct snap_hot_set *set, u64 gpa, char *pages, u64 npages)
{
	memset(pages, '.', npages);
	pages[npages] = '\0';
	for (u32 i = 0; i < set->nruns; i++) {
		const struct snap_hot_run *run = &set->runs[i];
		u64 at = (run->gpa - gpa) / PAGE_SIZE_BYTES;

		CHECK(run->npages && at + run->npages <= npages);
		CHECK(!i ||
		      set->runs[i - 1].gpa + set->runs[i - 1].npages * PAGE_SIZE_BYTES <= run->gpa);
		memset(pages + at, run->kind == SNAP_HOT_WRITE ? 'w' : 'r', run->npages);
	}
}

static void check_merge(const char *const *in, u32 nsets, u32 threshold, const char *want)
{
	struct snap_hot_set sets[4], out = {.pmem_gpa = PMEM_GPA};
	char got[64];
	u64 npages, want_pages = 0;

	for (u32 i = 0; i < nsets; i++)
		set_make(&sets[i], 0x10000, in[i]);
	CHECK_EQ(snap_hot_merge(sets, nsets, threshold, &out), 0);
	set_print(&out, 0x10000, got, strlen(want));
	CHECK_STR(got, want);
	CHECK_EQ(snap_hot_common(sets, nsets, threshold, &npages), 0);
	for (const char *c = want; *c; c++)
		want_pages += *c != '.';
	CHECK_EQ(npages, want_pages);
	CHECK_EQ(snap_hot_set_pages(&out, SNAP_HOT_READ) + snap_hot_set_pages(&out, SNAP_HOT_WRITE),
		 want_pages);
	snap_hot_set_free(&out);
	for (u32 i = 0; i < nsets; i++)
		snap_hot_set_free(&sets[i]);
}

static void test_rules(void)
{
	static const char *const in[] = {"rrww..rw", "rrwr.w.r", "r.ww.w.."};

	check_merge(in, 3, 1, "rrww.wrw");
	/* The last page was read by one and written by another: touched by two, written by one. */
	check_merge(in, 3, 2, "rrww.w.r");
	check_merge(in, 3, 3, "r.wr....");
	check_merge(in, 1, 1, "rrww..rw");
	CHECK_EQ(snap_hot_threshold(SNAP_HOT_UNION, 9), 1);
	CHECK_EQ(snap_hot_threshold(SNAP_HOT_HALF, 9), 5);
	CHECK_EQ(snap_hot_threshold(SNAP_HOT_HALF, 8), 4);
	CHECK_EQ(snap_hot_threshold(SNAP_HOT_HALF, 1), 1);
	CHECK_EQ(snap_hot_threshold(SNAP_HOT_INTERSECTION, 9), 9);
}

static void test_joins(void)
{
	struct snap_hot_set sets[2], out = {.pmem_gpa = PMEM_GPA};

	/* Halves of one run from two sets are one run again. */
	set_make(&sets[0], 0, "rr....ww");
	set_make(&sets[1], 0, "..rrww..");
	CHECK_EQ(snap_hot_merge(sets, 2, 1, &out), 0);
	CHECK_EQ(out.nruns, 2);
	CHECK(out.runs[0].npages == 4 && out.runs[1].npages == 4);
	snap_hot_set_free(&out);
	snap_hot_set_free(&sets[0]);
	snap_hot_set_free(&sets[1]);
	/* RAM's last page and the root image's first one are neighbours, and stay apart. */
	set_make(&sets[0], PMEM_GPA - 2 * PAGE_SIZE_BYTES, "rrrr");
	CHECK_EQ(sets[0].nruns, 2);
	set_make(&sets[1], PMEM_GPA - 2 * PAGE_SIZE_BYTES, "rrrr");
	CHECK_EQ(snap_hot_merge(sets, 2, 2, &out), 0);
	CHECK_EQ(out.nruns, 2);
	CHECK(out.runs[0].npages == 2 && out.runs[1].gpa == PMEM_GPA);
	snap_hot_set_free(&out);
	snap_hot_set_free(&sets[0]);
	snap_hot_set_free(&sets[1]);
}

static void test_empty(void)
{
	struct snap_hot_set sets[2] = {0}, out = {0};
	u32 same, other, command[] = {0, 0};
	u64 npages;

	CHECK_EQ(snap_hot_merge(sets, 2, 1, &out), 0);
	CHECK_EQ(out.nruns, 0);
	CHECK_EQ(snap_hot_common(sets, 0, 1, &npages), 0);
	CHECK_EQ(npages, 0);
	CHECK_EQ(snap_hot_stability(sets, command, 2, &same, &other), 0);
	CHECK_EQ(same, 1000);
	CHECK_EQ(other, SNAP_HOT_UNKNOWN);
	snap_hot_set_free(&out);
}

static void test_stability(void)
{
	static const u32 command[] = {0, 0, 1};
	struct snap_hot_set sets[3];
	u32 same, other;

	set_make(&sets[0], 0, "rrrr....");
	set_make(&sets[1], 0, "wwrw...."); /* the kind does not count */
	set_make(&sets[2], 0, "..rrrr..");
	CHECK_EQ(snap_hot_stability(sets, command, 3, &same, &other), 0);
	CHECK_EQ(same, 1000);
	CHECK_EQ(other, 333); /* 2 of 6 pages, twice */
	CHECK_EQ(snap_hot_stability(sets, command, 1, &same, &other), 0);
	CHECK(same == SNAP_HOT_UNKNOWN && other == SNAP_HOT_UNKNOWN);
	for (int i = 0; i < 3; i++)
		snap_hot_set_free(&sets[i]);
}

/** Random sets against the plain way: count page by page. */
static void test_model(void)
{
	char in[NSETS][NPAGES + 1], want[NPAGES + 1], got[NPAGES + 1];
	struct snap_hot_set sets[NSETS], out = {.pmem_gpa = PMEM_GPA};

	for (int round = 0; round < 300; round++) {
		u32 nsets = 1 + rnd(NSETS), threshold = 1 + rnd(nsets), density = 1 + rnd(12);
		u64 gpa = rnd(2) ? 0 : PMEM_GPA - rnd(NPAGES) * PAGE_SIZE_BYTES;

		for (u32 i = 0; i < nsets; i++) {
			for (u32 page = 0; page < NPAGES; page++)
				in[i][page] = rnd(density) ? '.' : "rw"[rnd(2)];
			in[i][NPAGES] = '\0';
			set_make(&sets[i], gpa, in[i]);
		}
		for (u32 page = 0; page < NPAGES; page++) {
			u32 touched = 0, written = 0;

			for (u32 i = 0; i < nsets; i++) {
				touched += in[i][page] != '.';
				written += in[i][page] == 'w';
			}
			want[page] = written >= threshold ? 'w' : touched >= threshold ? 'r' : '.';
		}
		want[NPAGES] = '\0';
		CHECK_EQ(snap_hot_merge(sets, nsets, threshold, &out), 0);
		set_print(&out, gpa, got, NPAGES);
		CHECK_STR(got, want);
		snap_hot_set_free(&out);
		for (u32 i = 0; i < nsets; i++)
			snap_hot_set_free(&sets[i]);
	}
}

static void test_too_many_runs(void)
{
	struct snap_hot_set set = {.pmem_gpa = PMEM_GPA};
	int ret = 0;

	for (u64 i = 0; i < SNAP_HOT_RUNS_MAX && !ret; i++)
		ret = snap_hot_set_add(&set, 2 * i * PAGE_SIZE_BYTES, 1, SNAP_HOT_READ);
	CHECK_EQ(ret, 0);
	CHECK_EQ(snap_hot_set_add(&set, GIB, 1, SNAP_HOT_READ), -E2BIG);
	snap_hot_set_free(&set);
	CHECK_EQ(snap_hot_set_add(&set, 0, 1ull << 32, SNAP_HOT_READ), -E2BIG);
	snap_hot_set_free(&set);
}

TEST_MAIN({"rules", test_rules}, {"joins", test_joins}, {"empty", test_empty},
	  {"stability", test_stability}, {"model", test_model},
	  {"too many runs", test_too_many_runs})
