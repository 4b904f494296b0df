// SPDX-License-Identifier: Apache-2.0
// Restore strategy "mmap": map the memory file privately and let page faults bring what the guest
// touches.
#include "vmm/snapshot/mem.h"

/*
 * Costs two calls whatever the guest's size. Pages that a clone only reads stay in the page cache,
 * shared by all clones; a written page is copied by the kernel (MAP_PRIVATE). A hole of the file is
 * a page of zeros that is allocated when it is touched.
 *
 * No advice is given to the kernel. MADV_RANDOM would keep read-ahead from reading neighbours,
 * which is right when the file is in the page cache (it has no effect then) and wrong when it is
 * not: 4 KiB reads one after another are the slowest way to read any disk. Fault-around maps up to
 * 16 neighbouring page-cache pages in one fault, and costs nothing per page that is already cached.
 *
 * MAP_NORESERVE: a clone is allowed to write every page but few ever do; reserving all of them
 * would refuse most clones that fit.
 *
 * The file must not shrink while it is mapped (SIGBUS). Published snapshots are read-only and never
 * written again; removal unlinks, which leaves the inode whole until the last clone is gone.
 */
static int mmap_map(struct snap_mem *mem)
{
	return snap_mem_map(mem, mem->fd);
}

const struct snap_mem_ops snap_mem_mmap = {
	.name = "mmap",
	.summary = "private mapping of the memory file; pages come when they are touched",
	.map = mmap_map,
};
