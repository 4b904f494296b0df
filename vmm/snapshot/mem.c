// SPDX-License-Identifier: Apache-2.0
// The table of restore strategies.
#include "vmm/snapshot/mem.h"

#include <string.h>
#include <sys/mman.h>

#include "vmm/kvm/layout.h"
#include "vmm/snapshot/pager.h"

/* In the order of help and documentation; the first is the default. */
static const struct snap_mem_ops *const strategies[] = {
	&snap_mem_ws,
	&snap_mem_mmap,
	&snap_mem_copy,
	&snap_mem_uring,
	&snap_mem_memfd,
	&snap_mem_uffd,
	/* Last: not every snapshot has what it takes. */
	&snap_mem_pack,
	NULL,
};

void snap_mem_ranges(struct snap_mem *mem, u64 ram_bytes)
{
	const u64 high_bytes = layout_high_ram_bytes(ram_bytes);

	mem->nranges = 1;
	mem->ranges[0] = (struct snap_mem_range){.len_bytes = layout_low_ram_bytes(ram_bytes)};
	if (high_bytes)
		mem->ranges[mem->nranges++] = (struct snap_mem_range){.gpa = LAYOUT_HIGH_RAM_GPA,
								      .len_bytes = high_bytes};
}

void snap_mem_unmap(struct snap_mem *mem)
{
	for (unsigned int i = 0; i < mem->nranges; i++) {
		if (mem->ranges[i].hva)
			munmap(mem->ranges[i].hva, mem->ranges[i].len_bytes);
		mem->ranges[i].hva = NULL;
	}
	pager_free(mem->pager);
	mem->pager = NULL;
}

const struct snap_mem_ops *snap_mem_find(const char *name)
{
	if (!name)
		return strategies[0];
	for (unsigned int i = 0; strategies[i]; i++) {
		if (!strcmp(strategies[i]->name, name))
			return strategies[i];
	}
	return NULL;
}

const struct snap_mem_ops *const *snap_mem_list(void)
{
	return strategies;
}
