// SPDX-License-Identifier: Apache-2.0
// Restore strategy "uring": all of the memory file by O_DIRECT into registered buffers before the
// guest runs.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "vmm/snapshot/handed.h"
#include "vmm/snapshot/mem.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * What a disk can do at best: past the page cache, straight into guest memory, BULK_DEPTH requests
 * of up to 1 MiB in flight. The page cache is neither used nor filled, so that nothing is shared
 * between clones and the next one reads again: right for one large guest whose file is cold, wrong
 * for many clones.
 *
 * The stretches of guest memory that have data in the file are themselves the registered buffers:
 * registering allocates and pins their pages at once, instead of one by one in every request. Holes
 * are left out, so that they stay memory that nobody has touched. Where the kernel won't pin that
 * much (RLIMIT_MEMLOCK of a user without CAP_IPC_LOCK), 4 MiB of registered buffers are read into
 * and copied from, which the result names ("bounce").
 *
 * No way around O_DIRECT or io_uring: without either, this is "copy", which can be asked for.
 */

/** Descriptor of its own, since O_DIRECT belongs to an open file. Return: it, or -errno (logged).
 */
static int open_direct(const struct snap_mem *mem)
{
	char path[32];
	int fd, ret;

	fd = snap_handed_direct(mem->fd);
	if (fd >= 0)
		return fd;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", mem->fd);
	fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	ret = -errno;
	log_err("the memory file can't be read with O_DIRECT: %s%s", strerror(-ret),
		ret == -EINVAL ? " (its file system has none; strategy copy does without)" : "");
	return ret;
}

static int uring_map(struct snap_mem *mem)
{
	int fd = open_direct(mem), ret;

	if (fd < 0)
		return fd;
	ret = snap_mem_map(mem, -1);
	if (!ret) {
		ret = snap_mem_read_fixed(mem, fd);
		ret = ret ? ret : snap_mem_check_size(mem);
		if (ret) {
			log_err("reading the memory file: %s",
				ret == -ENODATA ? "truncated" : strerror(-ret));
			snap_mem_unmap(mem);
		}
	}
	fd_close(&fd);
	return ret;
}

const struct snap_mem_ops snap_mem_uring = {
	.name = "uring",
	.summary = "reads the whole memory file by O_DIRECT into registered buffers, 64 in flight",
	.map = uring_map,
	.huge = SNAP_HUGE_ANON,
	.eager = true,
};
