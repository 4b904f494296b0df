// SPDX-License-Identifier: Apache-2.0
// What restore strategies share: fresh or file-backed mappings of all ranges, and reading the whole
// memory file into them.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"

/**
 * Address space for @range at a multiple of 2 MiB, since the kernel and KVM map huge pages only
 * where address and offset agree in their low 21 bits. Return: NULL and errno.
 */
static void *reserve_aligned(const struct snap_mem_range *range)
{
	const u64 span_bytes = range->len_bytes + HUGE_SIZE_BYTES;
	u64 head_bytes, tail_bytes;
	char *base = mmap(NULL, span_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			  -1, 0);

	if (base == MAP_FAILED)
		return NULL;
	head_bytes = ALIGN_UP((uintptr_t)base, (uintptr_t)HUGE_SIZE_BYTES) - (uintptr_t)base;
	tail_bytes = span_bytes - head_bytes - range->len_bytes;
	if (head_bytes)
		munmap(base, head_bytes);
	if (tail_bytes)
		munmap(base + head_bytes + range->len_bytes, tail_bytes);
	return base + head_bytes;
}

/** Return: 0 or -errno; @range->hva is set as soon as there is something to unmap. */
static int map_range(struct snap_mem_range *range, int fd, bool huge)
{
	const int flags = MAP_PRIVATE | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
	void *hva;

	range->hva = NULL;
	/* Aligned costs three calls more, which matters to nobody who has no use for huge pages. */
	if (huge) {
		range->hva = reserve_aligned(range);
		if (!range->hva)
			return -errno;
	}
	hva = mmap(range->hva, range->len_bytes, PROT_READ | PROT_WRITE,
		   flags | (huge ? MAP_FIXED : 0), fd, fd < 0 ? 0 : (off_t)range->gpa);
	if (hva == MAP_FAILED)
		return -errno;
	range->hva = hva;
	if (huge && madvise(hva, range->len_bytes, MADV_HUGEPAGE) < 0)
		return -errno;
	return 0;
}

int snap_mem_map(struct snap_mem *mem, int fd)
{
	int ret;

	for (unsigned int i = 0; i < mem->nranges; i++) {
		struct snap_mem_range *range = &mem->ranges[i];

		ret = map_range(range, fd, mem->huge);
		if (!ret)
			continue;
		log_err("mapping %llu bytes of guest memory at %#llx: %s",
			(unsigned long long)range->len_bytes, (unsigned long long)range->gpa,
			strerror(-ret));
		snap_mem_unmap(mem);
		return ret;
	}
	return 0;
}

int snap_mem_check_size(const struct snap_mem *mem)
{
	const struct snap_mem_range *last = &mem->ranges[mem->nranges - 1];
	struct stat st;

	if (fstat(mem->fd, &st) < 0)
		return -errno;
	return (u64)st.st_size < last->gpa + last->len_bytes ? -ENODATA : 0;
}

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

int snap_mem_read(struct snap_mem *mem)
{
	struct bulk *bulk;
	struct ring ring;
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
	ret = ret ? ret : snap_mem_check_size(mem);
	/* A ring that failed with requests owed is left to the end of the process, which follows.
	 */
	if (!ring.inflight)
		ring_destroy(&ring);
	if (ret)
		log_err("reading the memory file: %s",
			ret == -ENODATA ? "truncated" : strerror(-ret));
	return ret;
}
