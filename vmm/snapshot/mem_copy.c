// SPDX-License-Identifier: Apache-2.0
// Restore strategy "copy": read all of the memory file into fresh memory before the guest runs.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"

/*
 * The plain way, and the one that later strategies are measured against: no page faults from the
 * file afterwards, no dependence on it while the guest runs, and the longest start. Only stretches
 * with data are read, 1 MiB at a time with a deep queue; holes stay untouched anonymous memory,
 * which is zero.
 *
 * The ring is gone before the guest runs, and is restricted from its start all the same: it is one
 * habit for every ring of this program.
 */

static int read_range(struct snap_mem *mem, struct bulk *bulk, const struct snap_mem_range *range)
{
	const u64 end_gpa = range->gpa + range->len_bytes;
	u64 pos = range->gpa, start, end;
	int ret;

	while ((ret = snap_extent_next(mem->fd, end_gpa, pos, &start, &end)) > 0) {
		ret = bulk_add(bulk, (u8 *)range->hva + (start - range->gpa), start, end - start);
		if (ret)
			break;
		mem->bytes_read += end - start;
		pos = end;
	}
	return ret;
}

static int read_all(struct snap_mem *mem)
{
	struct bulk *bulk;
	struct ring ring;
	struct stat st;
	int ret, end_ret;

	ret = ring_init(&ring, BULK_DEPTH, &mem->fd, 1, RING_RESTRICT);
	if (ret)
		return ret;
	mem->plain_io = ring.plain;
	bulk = bulk_new(&ring, RING_READ);
	ret = bulk ? 0 : -ENOMEM;
	for (unsigned int i = 0; !ret && i < mem->nranges; i++)
		ret = read_range(mem, bulk, &mem->ranges[i]);
	if (bulk) {
		end_ret = bulk_end(bulk);
		ret = ret ? ret : end_ret;
	}
	/* Past its end a file has no data, which looks like a hole: a file that shrank must not
	 * become zeros. */
	if (!ret && (fstat(mem->fd, &st) < 0 ||
		     (u64)st.st_size < mem->ranges[mem->nranges - 1].gpa +
					       mem->ranges[mem->nranges - 1].len_bytes))
		ret = -ENODATA;
	/* A ring that failed with requests owed is left to the end of the process, which follows.
	 */
	if (!ring.inflight)
		ring_destroy(&ring);
	if (ret)
		log_err("reading the memory file: %s",
			ret == -ENODATA ? "truncated" : strerror(-ret));
	return ret;
}

static int copy_map(struct snap_mem *mem)
{
	unsigned int mapped;
	int ret = 0;

	for (mapped = 0; mapped < mem->nranges; mapped++) {
		struct snap_mem_range *range = &mem->ranges[mapped];

		range->hva = mmap(NULL, range->len_bytes, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (range->hva == MAP_FAILED) {
			ret = -errno;
			log_err("mmap of %llu bytes of guest memory: %s",
				(unsigned long long)range->len_bytes, strerror(-ret));
			goto err_unmap;
		}
	}
	ret = read_all(mem);
	if (!ret)
		return 0;
err_unmap:
	if (mapped < mem->nranges)
		mem->ranges[mapped].hva = NULL;
	while (mapped-- > 0) {
		munmap(mem->ranges[mapped].hva, mem->ranges[mapped].len_bytes);
		mem->ranges[mapped].hva = NULL;
	}
	return ret;
}

const struct snap_mem_ops snap_mem_copy = {
	.name = "copy",
	.summary = "reads the whole memory file by io_uring before the guest runs",
	.map = copy_map,
};
