// SPDX-License-Identifier: Apache-2.0
// Fetches a template's hot set into the page cache as `ws` does it, and nothing else.
//
//	bench-fetch DIR		prints {"bytes": N, "ns": N, "plain": false}
//
// The clock runs from before mincore(2) asks what is cold until the last read is done. The caller
// sees to it that something is cold (bench/lab/lab/experiments/io.py).
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/warm.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** fetch() - what is cold of @hot. Return: 0 or -errno (logged). */
static int fetch(const struct snap *snap, const struct snap_hot *hot, const struct snap_mem *mem)
{
	u64 start_ns = clock_now_ns(), bytes_read = 0;
	struct warm_fetch *under_way;
	bool plain;
	int ret;

	ret = warm_fetch_start(snap, hot, mem, &under_way, &plain);
	if (!ret && under_way)
		ret = warm_fetch_wait(under_way, &bytes_read);
	if (!ret)
		printf("{\"bytes\": %llu, \"ns\": %llu, \"plain\": %s}\n",
		       (unsigned long long)bytes_read,
		       (unsigned long long)(clock_now_ns() - start_ns), plain ? "true" : "false");
	warm_fetch_free(under_way);
	return ret;
}

int main(int argc, char **argv)
{
	const struct snap_mem_ops *ops = snap_mem_find("mmap");
	struct snap_hot hot = {0};
	struct snap_mem mem = {0};
	struct snap snap;
	int ret;

	if (argc != 2) {
		fprintf(stderr, "usage: bench-fetch DIR\n");
		return 2;
	}
	ret = snap_load(&snap, argv[1]);
	if (ret)
		goto out_snap;
	ret = snap_hot_open(&snap, &hot);
	if (ret)
		goto out_snap;
	if (!hot.buf) {
		log_err("%s: has no hot set: 'thaw template record' makes one", argv[1]);
		ret = -ENOENT;
		goto out_snap;
	}
	mem.fd = snap.memory_fd;
	snap_mem_ranges(&mem, snap.view.machine->ram_bytes);
	ret = ops->map(&mem);
	if (ret)
		goto out_hot;
	ret = fetch(&snap, &hot, &mem);
	snap_mem_unmap(&mem);
out_hot:
	snap_hot_close(&hot);
out_snap:
	snap_close(&snap);
	return ret ? 1 : 0;
}
