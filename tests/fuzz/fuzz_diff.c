// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the list of pages of a diff snapshot. The first byte chooses the RAM size. Oracles:
// sanitizers, that every run of a list that was taken lies in RAM and in order, and that it is
// built again to the same bytes.
#include <stdlib.h>
#include <string.h>

#include "vmm/kvm/layout.h"
#include "vmm/snapshot/diff.h"
#include "vmm/util/log.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes);

static void check(const struct snap_diff *diff, u64 ram_bytes)
{
	u64 last_end_gpa = 0, npages = 0;

	for (u32 i = 0; i < diff->nruns; i++) {
		const struct snap_diff_run *run = &diff->runs[i];
		u64 end_gpa = run->gpa + run->npages * PAGE_SIZE_BYTES;

		BUG_ON(end_gpa <= run->gpa || (i > 0 && run->gpa <= last_end_gpa));
		BUG_ON(end_gpa > snap_memory_bytes(ram_bytes));
		BUG_ON(end_gpa > layout_low_ram_bytes(ram_bytes) && run->gpa < LAYOUT_HIGH_RAM_GPA);
		npages += run->npages;
		last_end_gpa = end_gpa;
	}
	BUG_ON(npages != diff->npages || npages > ram_bytes / PAGE_SIZE_BYTES);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes)
{
	static const u64 sizes[] = {128 * MIB, 256 * MIB, 3 * GIB, 4 * GIB};
	struct snap_diff diff = {0};
	const char *why = NULL;
	size_t built_bytes;
	void *copy, *built;
	u64 ram_bytes;

	if (!len_bytes)
		return 0;
	ram_bytes = sizes[data[0] % ARRAY_SIZE(sizes)];
	/* As a file is read: aligned, and nothing behind it. */
	copy = malloc(MAX(len_bytes - 1, (size_t)1));
	BUG_ON(!copy);
	memcpy(copy, data + 1, len_bytes - 1);
	if (!snap_diff_parse(copy, len_bytes - 1, ram_bytes, &diff, &why)) {
		check(&diff, ram_bytes);
		BUG_ON(snap_diff_build(diff.runs, diff.nruns, &built, &built_bytes));
		BUG_ON(built_bytes != len_bytes - 1 || memcmp(built, copy, built_bytes));
		free(built);
	} else {
		BUG_ON(!why);
	}
	free(copy);
	return 0;
}
