// SPDX-License-Identifier: Apache-2.0
// Restore strategy "ws" (working set): "mmap", and the recorded hot set made ready before the vCPUs
// run. The rest comes when it is touched.
#include "vmm/snapshot/mem.h"

static int ws_map(struct snap_mem *mem)
{
	return snap_mem_mmap.map(mem);
}

const struct snap_mem_ops snap_mem_ws = {
	.name = "ws",
	.summary = "as mmap, with the pages that the first command needs made ready ahead",
	.map = ws_map,
	.hot = true,
	.fetch = true,
};
