// SPDX-License-Identifier: Apache-2.0
// Restore strategy "copy": read all of the memory file into fresh memory before the guest runs.
#include "vmm/snapshot/mem.h"

/*
 * The plain way, and the one that later strategies are measured against: no page faults from the
 * file afterwards, no dependence on it while the guest runs, and the longest start. Only stretches
 * with data are read, 1 MiB at a time with a deep queue; holes stay untouched anonymous memory,
 * which is zero.
 *
 * The ring is gone before the guest runs, and is restricted from its start all the same: it is one
 * habit for every ring of this program.
 */

static int copy_map(struct snap_mem *mem)
{
	int ret = snap_mem_map(mem, -1);

	if (ret)
		return ret;
	ret = snap_mem_read(mem);
	if (ret)
		snap_mem_unmap(mem);
	return ret;
}

const struct snap_mem_ops snap_mem_copy = {
	.name = "copy",
	.summary = "reads the whole memory file by io_uring before the guest runs",
	.map = copy_map,
	.huge = SNAP_HUGE_ANON,
	.eager = true,
};
