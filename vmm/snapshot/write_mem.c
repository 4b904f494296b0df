// SPDX-License-Identifier: Apache-2.0
// Guest RAM into the memory file: what is not zero, and without touching what was never used.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * Most of a guest's RAM was never touched, and reading it would make the kernel allocate page
 * tables and zero pages for all of it. So the walk asks /proc/self/pagemap first
 * (Documentation/admin-guide/mm/pagemap.rst): bit 63 present, bit 62 swapped. A page with neither
 * holds
 *  - zeros, in anonymous memory (a boot, or the copy strategy);
 *  - the base's content, in a private mapping of its file, or of those of a chain (the mmap
 * strategy): so where one of these files has data, absent pages are looked at as well. The union of
 * both is right for every strategy, since looking at a page too many costs time only.
 *
 * A page that was looked at and is zero becomes a hole. The others are written straight from guest
 * memory, neighbours joined up to 1 MiB a request; the digest is made while the requests are under
 * way. Nobody writes to the memory meanwhile: vCPUs are stopped, devices quiesced.
 */

#define WINDOW_PAGES	4096u /* 16 MiB of RAM, 32 KiB of pagemap a step */
#define PAGEMAP_PRESENT ((u64)1 << 63)
#define PAGEMAP_SWAPPED ((u64)1 << 62)

struct ram_writer {
	struct bulk *bulk;
	struct snap_blocks *blocks;
	int pagemap_fd;
	u64 base_bytes; /* of the base files that is of interest */
	struct ram_base {
		int fd;
		u64 start, end; /* its stretch of data at or behind the walk's position */
	} bases[SNAP_CHAIN_MAX];
	unsigned int nbases;
	u64 pagemap[WINDOW_PAGES];
};

/** base_has() - does a base file have data in the page at @gpa? Ascending calls. Return: 1, 0 or
 * -errno. */
static int base_has(struct ram_writer *writer, u64 gpa)
{
	int found = 0;

	for (unsigned int i = 0; i < writer->nbases; i++) {
		struct ram_base *base = &writer->bases[i];
		int ret = 1;

		if (gpa >= base->end)
			ret = snap_extent_next(base->fd, writer->base_bytes, gpa, &base->start,
					       &base->end);
		if (ret < 0)
			return ret;
		if (ret == 0)
			base->start = base->end = UINT64_MAX;
		found |= gpa >= base->start;
	}
	return found;
}

static int read_pagemap(struct ram_writer *writer, const void *hva, unsigned int npages)
{
	const u64 offset_bytes = (uintptr_t)hva / PAGE_SIZE_BYTES * sizeof(u64);

	if (writer->pagemap_fd < 0) {
		memset(writer->pagemap, 0xff, npages * sizeof(u64));
		return 0;
	}
	return fd_pread_full(writer->pagemap_fd, writer->pagemap, npages * sizeof(u64),
			     offset_bytes);
}

static int flush_run(struct ram_writer *writer, u8 *hva, u64 gpa, u64 len_bytes)
{
	int ret;

	if (!len_bytes)
		return 0;
	ret = bulk_add(writer->bulk, hva, gpa, len_bytes);
	if (!ret)
		snap_blocks_add(writer->blocks, gpa, hva, len_bytes);
	return ret;
}

static int write_window(struct ram_writer *writer, u8 *hva, u64 gpa, unsigned int npages)
{
	u64 run_start = 0, run_bytes = 0;
	int ret;

	ret = read_pagemap(writer, hva, npages);
	if (ret)
		return ret;
	for (unsigned int i = 0; i < npages; i++) {
		const u64 offset_bytes = i * PAGE_SIZE_BYTES;
		int look = (writer->pagemap[i] & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED)) != 0;

		if (!look)
			look = base_has(writer, gpa + offset_bytes);
		if (look < 0)
			return look;
		if (look && !snap_page_is_zero(hva + offset_bytes)) {
			if (!run_bytes)
				run_start = offset_bytes;
			run_bytes += PAGE_SIZE_BYTES;
			if (run_bytes < BULK_MAX_BYTES)
				continue;
		}
		ret = flush_run(writer, hva + run_start, gpa + run_start, run_bytes);
		if (ret)
			return ret;
		run_bytes = 0;
	}
	return flush_run(writer, hva + run_start, gpa + run_start, run_bytes);
}

static int write_region(struct ram_writer *writer, const struct gmem_region *region)
{
	u8 *hva = region->hva;

	for (u64 done = 0; done < region->len_bytes; done += WINDOW_PAGES * PAGE_SIZE_BYTES) {
		u64 npages = MIN((region->len_bytes - done) / PAGE_SIZE_BYTES, (u64)WINDOW_PAGES);
		int ret =
			write_window(writer, hva + done, region->gpa + done, (unsigned int)npages);

		if (ret)
			return ret;
	}
	return 0;
}

int snap_ram_write(struct ring *ring, const struct gmem *gmem, int pagemap_fd,
		   const struct snap *base, u64 file_bytes, u8 digest[SNAP_DIGEST_BYTES])
{
	struct ram_writer *writer = calloc(1, sizeof(*writer));
	int ret = -ENOMEM, end_ret = 0;

	if (!writer)
		return -ENOMEM;
	writer->pagemap_fd = pagemap_fd;
	for (; base; base = base->parent) {
		BUG_ON(writer->nbases == SNAP_CHAIN_MAX);
		writer->bases[writer->nbases++].fd = base->memory_fd;
	}
	writer->base_bytes = file_bytes;
	writer->blocks = snap_blocks_new();
	writer->bulk = bulk_new(ring, RING_WRITE);
	if (writer->blocks && writer->bulk)
		ret = 0;
	for (unsigned int i = 0; !ret && i < gmem->nregions; i++) {
		/* vm_create() adds low RAM before high RAM; the digest and the walk over the base
		 * file need the order. */
		BUG_ON(i > 0 && gmem->regions[i].gpa < gmem->regions[i - 1].gpa);
		ret = write_region(writer, &gmem->regions[i]);
	}
	if (writer->bulk)
		end_ret = bulk_end(writer->bulk);
	/* The transfer's error is the cause, whatever stopped the walk. */
	ret = end_ret ? end_ret : ret;
	if (writer->blocks)
		snap_blocks_end(writer->blocks, file_bytes, ret ? NULL : digest);
	free(writer);
	return ret;
}
