// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the hot set. Oracles: sanitizers; that what was taken lies in memory and in order;
// that building it gives the input again; that merging it with itself gives it back.
#include <stdlib.h>
#include <string.h>

#include "vmm/kvm/layout.h"
#include "vmm/snapshot/hot_set.h"
#include "vmm/util/log.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes);

/* RAM ends where the root image begins: the hardest shape. */
#define RAM_BYTES  (4 * GIB)
#define PMEM_BYTES (4 * MIB)

static const u8 state_digest[SNAP_DIGEST_BYTES];

static void check_merge(const struct snap_hot *hot)
{
	u64 pmem_gpa = layout_pmem_gpa(RAM_BYTES), pages, common;
	struct snap_hot_set set = {.pmem_gpa = pmem_gpa}, out = {.pmem_gpa = pmem_gpa};
	struct snap_hot_set pair[2];
	u32 command[] = {0, 1}, same, other;

	for (u32 i = 0; i < hot->nruns; i++) {
		if (snap_hot_set_add(&set, hot->runs[i].gpa, hot->runs[i].npages,
				     hot->runs[i].kind))
			abort();
	}
	pair[0] = set;
	pair[1] = set;
	if (snap_hot_merge(pair, 2, 2, &out))
		abort();
	BUG_ON(out.nruns != set.nruns);
	BUG_ON(set.nruns && memcmp(out.runs, set.runs, set.nruns * sizeof(*set.runs)));
	pages = snap_hot_set_pages(&set, SNAP_HOT_READ) + snap_hot_set_pages(&set, SNAP_HOT_WRITE);
	if (snap_hot_common(pair, 2, 1, &common) ||
	    snap_hot_stability(pair, command, 2, &same, &other))
		abort();
	BUG_ON(common != pages || pages > (RAM_BYTES + PMEM_BYTES) / PAGE_SIZE_BYTES);
	BUG_ON(same != SNAP_HOT_UNKNOWN || other != 1000);
	snap_hot_set_free(&out);
	snap_hot_set_free(&set);
}

static void check(const u8 *buf, size_t len_bytes)
{
	struct snap_hot hot;
	const char *why = NULL;
	u64 last_end = 0;
	size_t again_bytes;
	void *again;

	if (snap_hot_parse(buf, len_bytes, RAM_BYTES, PMEM_BYTES, state_digest, &hot, &why)) {
		BUG_ON(!why);
		return;
	}
	for (u32 i = 0; i < hot.nruns; i++) {
		BUG_ON(hot.runs[i].gpa < last_end);
		last_end = hot.runs[i].gpa + hot.runs[i].npages * PAGE_SIZE_BYTES;
	}
	BUG_ON(last_end > layout_pmem_gpa(RAM_BYTES) + PMEM_BYTES);
	if (snap_hot_build(hot.runs, hot.nruns, hot.info, state_digest, &again, &again_bytes))
		abort();
	BUG_ON(again_bytes != len_bytes || memcmp(again, buf, len_bytes));
	free(again);
	check_merge(&hot);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes)
{
	const struct snap_hot_header *in = (const struct snap_hot_header *)data;
	struct snap_hot_header head;
	size_t again_bytes;
	void *again;
	u32 nruns;

	check(data, len_bytes);
	/* No mutation finds a right digest. Seal it, so that what is behind it is reached. */
	if (len_bytes < sizeof(*in))
		return 0;
	nruns = (u32)MIN((len_bytes - sizeof(*in)) / sizeof(struct snap_hot_run),
			 (size_t)SNAP_HOT_RUNS_MAX);
	memcpy(&head, data, sizeof(head));
	if (snap_hot_build((const struct snap_hot_run *)(data + sizeof(head)), nruns, &head.info,
			   state_digest, &again, &again_bytes))
		abort();
	check(again, again_bytes);
	free(again);
	return 0;
}
