// SPDX-License-Identifier: Apache-2.0
// Of a clone's memory only what differs from the snapshot it was restored from.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "vmm/kvm/layout.h"
#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * A page can differ only if this process has a copy of its own of it. /proc/self/pagemap tells
 * (Documentation/admin-guide/mm/pagemap.rst): a page that is neither present nor swapped was never
 * touched; one that is present and belongs to a file (bit 61) was only read. The others are
 * compared with the parent's content, which stands mapped beside: most strategies make copies of
 * pages that nobody wrote to, and a guest writes the same bytes again more often than one would
 * think. Without pagemap every page is compared.
 *
 * Runs that lie close are joined, at the price of unchanged pages between them, since every run
 * costs a restore a system call and up to two mappings. The gap that is bridged grows until the
 * list fits SNAP_DIFF_RUNS_MAX.
 *
 * Before it is published the parent is looked up once more: it must be the very folder that the
 * clone came from. While a build runs, `thaw template rm` can't take it away (the lock), but a
 * build with --replace can put another in its place.
 */

#define WINDOW_PAGES	4096u
#define DIFF_GAP_PAGES	16u
#define PAGEMAP_PRESENT ((u64)1 << 63)
#define PAGEMAP_SWAPPED ((u64)1 << 62)
#define PAGEMAP_FILE	((u64)1 << 61)

struct diff_writer {
	struct snap_writer *writer;
	u64 *changed; /* one bit a page of the memory file */
	struct snap_diff_run runs[SNAP_DIFF_RUNS_MAX];
	u32 nruns;
	u64 pagemap[WINDOW_PAGES];
};

/** is_folder() - is @name in @at_fd the open folder @fd? */
static bool is_folder(int at_fd, const char *name, int fd)
{
	struct stat found, want;

	return fstatat(at_fd, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &want) == 0 &&
	       found.st_dev == want.st_dev && found.st_ino == want.st_ino;
}

int snap_writer_diff_prepare(struct snap_writer *writer)
{
	const struct snap_write_opts *opts = &writer->opts;

	if (!opts->diff)
		return 0;
	if (!opts->base || !opts->parent) {
		log_err("%s: a diff needs a parent that was restored", opts->path);
		return -EINVAL;
	}
	if (snap_depth(opts->base) >= SNAP_CHAIN_MAX) {
		log_err("%s: '%s' stands on a chain of %d snapshots, and more are not allowed: flatten it, or keep a whole snapshot",
			opts->path, opts->parent, SNAP_CHAIN_MAX);
		return -ELOOP;
	}
	if (opts->into)
		return snap_content_map(opts->base, &writer->content);
	if (!is_folder(writer->parent_fd, opts->parent, opts->base->dirfd)) {
		log_err("%s: a diff has to stand beside its parent, and '%s' there is not the snapshot that was restored",
			opts->path, opts->parent);
		return -EINVAL;
	}
	for (const struct snap *link = opts->base; link; link = link->parent) {
		if (!is_folder(writer->parent_fd, writer->target, link->dirfd))
			continue;
		log_err("%s: a diff can't replace what it is a diff of: keep a whole snapshot",
			opts->path);
		return -EINVAL;
	}
	return snap_content_map(opts->base, &writer->content);
}

int snap_writer_diff_check(const struct snap_writer *writer)
{
	const struct snap_write_opts *opts = &writer->opts;

	if (!opts->diff || opts->into ||
	    is_folder(writer->parent_fd, opts->parent, opts->base->dirfd))
		return 0;
	log_err("%s: its parent '%s' was replaced or removed meanwhile", opts->path, opts->parent);
	return -ESTALE;
}

static int read_pagemap(struct diff_writer *diff, const void *hva, u64 npages)
{
	const u64 offset_bytes = (uintptr_t)hva / PAGE_SIZE_BYTES * sizeof(u64);

	if (diff->writer->pagemap_fd < 0) {
		for (u64 i = 0; i < npages; i++)
			diff->pagemap[i] = PAGEMAP_PRESENT;
		return 0;
	}
	return fd_pread_full(diff->writer->pagemap_fd, diff->pagemap, npages * sizeof(u64),
			     offset_bytes);
}

static bool is_private(u64 entry)
{
	return (entry & PAGEMAP_SWAPPED) || ((entry & PAGEMAP_PRESENT) && !(entry & PAGEMAP_FILE));
}

/** mark_range() - set the bit of every page of @is that differs from @was, which is the same
 * stretch of the parent's memory. */
static int mark_range(struct diff_writer *diff, const struct gmem_region *is,
		      const struct snap_mem_range *was)
{
	const u64 first = is->gpa / PAGE_SIZE_BYTES, total = is->len_bytes / PAGE_SIZE_BYTES;
	const u8 *is_hva = is->hva, *was_hva = was->hva;

	for (u64 done = 0; done < total; done += WINDOW_PAGES) {
		u64 npages = MIN(total - done, (u64)WINDOW_PAGES);
		int ret = read_pagemap(diff, is_hva + done * PAGE_SIZE_BYTES, npages);

		if (ret)
			return ret;
		for (u64 i = 0; i < npages; i++) {
			const u64 offset_bytes = (done + i) * PAGE_SIZE_BYTES;

			if (is_private(diff->pagemap[i]) &&
			    memcmp(is_hva + offset_bytes, was_hva + offset_bytes, PAGE_SIZE_BYTES))
				diff->changed[(first + done + i) / 64] |=
					(u64)1 << (first + done + i) % 64;
		}
	}
	return 0;
}

/** add_page() - to the runs, joined with the last one over at most @gap pages. Return: false when
 * the list is full. */
static bool add_page(struct diff_writer *diff, u64 page, u64 gap)
{
	const u64 high = LAYOUT_HIGH_RAM_GPA / PAGE_SIZE_BYTES;
	struct snap_diff_run *last = diff->nruns ? &diff->runs[diff->nruns - 1] : NULL;
	u64 last_page = last ? last->gpa / PAGE_SIZE_BYTES : 0;

	/* Between low and high RAM there is none, so no run can bridge that. */
	if (last && page - last_page - last->npages <= gap &&
	    (last_page >= high) == (page >= high)) {
		last->npages = page - last_page + 1;
		return true;
	}
	if (diff->nruns == SNAP_DIFF_RUNS_MAX)
		return false;
	diff->runs[diff->nruns++] =
		(struct snap_diff_run){.gpa = page * PAGE_SIZE_BYTES, .npages = 1};
	return true;
}

static bool make_runs(struct diff_writer *diff, u64 nwords, u64 gap)
{
	diff->nruns = 0;
	for (u64 word = 0; word < nwords; word++) {
		for (u64 bits = diff->changed[word]; bits; bits &= bits - 1) {
			if (!add_page(diff, word * 64 + (u64)__builtin_ctzll(bits), gap))
				return false;
		}
	}
	return true;
}

/** write_run() - what is not zero of @run's pages at @hva; zeros stay holes. */
static int write_run(struct bulk *bulk, struct snap_blocks *blocks, u8 *hva,
		     const struct snap_diff_run *run)
{
	const u64 len_bytes = run->npages * PAGE_SIZE_BYTES;
	u64 start = 0;
	int ret = 0;

	for (u64 pos = 0; pos <= len_bytes && !ret; pos += PAGE_SIZE_BYTES) {
		bool data = pos < len_bytes && !snap_page_is_zero(hva + pos);

		if (data && pos - start < BULK_MAX_BYTES)
			continue;
		if (pos > start) {
			ret = bulk_add(bulk, hva + start, run->gpa + start, pos - start);
			snap_blocks_add(blocks, run->gpa + start, hva + start, pos - start);
		}
		start = data ? pos : pos + PAGE_SIZE_BYTES;
	}
	return ret;
}

static int write_pages(struct diff_writer *diff, const struct gmem *gmem, u64 file_bytes,
		       u8 digest[SNAP_DIGEST_BYTES])
{
	struct snap_blocks *blocks = snap_blocks_new();
	struct bulk *bulk = bulk_new(&diff->writer->ring, RING_WRITE);
	int ret = blocks && bulk ? 0 : -ENOMEM, end_ret = 0;

	for (u32 i = 0; i < diff->nruns && !ret; i++) {
		const struct snap_diff_run *run = &diff->runs[i];
		u8 *hva = gmem_ptr(gmem, run->gpa, run->npages * PAGE_SIZE_BYTES);

		BUG_ON(!hva);
		ret = write_run(bulk, blocks, hva, run);
	}
	if (bulk)
		end_ret = bulk_end(bulk);
	ret = end_ret ? end_ret : ret;
	if (blocks)
		snap_blocks_end(blocks, file_bytes, ret ? NULL : digest);
	return ret;
}

static int write_list(struct diff_writer *diff)
{
	struct snap_writer *writer = diff->writer;
	u8 digest[SNAP_DIGEST_BYTES];
	size_t len_bytes;
	void *buf;
	int ret;

	ret = snap_diff_build(diff->runs, diff->nruns, &buf, &len_bytes);
	if (ret)
		return ret;
	snap_digest_buf(buf, len_bytes, digest);
	snap_digest_hex(digest, writer->diff_digest);
	writer->diff_pages = 0;
	for (u32 i = 0; i < diff->nruns; i++)
		writer->diff_pages += diff->runs[i].npages;
	/* From nothing: an attempt before this one may have failed behind this point. */
	ret = ftruncate(writer->diff_fd, 0) < 0 ? -errno : 0;
	if (!ret)
		ret = fd_pwrite_full(writer->diff_fd, buf, len_bytes, 0);
	free(buf);
	return ret;
}

int snap_writer_diff_store(struct snap_writer *writer, const struct gmem *gmem, u64 file_bytes,
			   u8 digest[SNAP_DIGEST_BYTES])
{
	const u64 nwords = (file_bytes / PAGE_SIZE_BYTES + 63) / 64;
	struct diff_writer *diff = calloc(1, sizeof(*diff));
	u64 gap = DIFF_GAP_PAGES;
	int ret = -ENOMEM;

	if (!diff)
		return -ENOMEM;
	diff->writer = writer;
	diff->changed = calloc(nwords, sizeof(*diff->changed));
	if (!diff->changed)
		goto out;
	BUG_ON(gmem->nregions != writer->content.nranges);
	ret = 0;
	for (unsigned int i = 0; i < gmem->nregions && !ret; i++) {
		const struct snap_mem_range *was = &writer->content.ranges[i];

		BUG_ON(gmem->regions[i].gpa != was->gpa ||
		       gmem->regions[i].len_bytes != was->len_bytes);
		ret = mark_range(diff, &gmem->regions[i], was);
	}
	/* Ends when each stretch of RAM is one run. */
	while (!ret && !make_runs(diff, nwords, gap))
		gap *= 2;
	if (!ret)
		ret = write_pages(diff, gmem, file_bytes, digest);
	if (!ret)
		ret = write_list(diff);
out:
	free(diff->changed);
	free(diff);
	return ret;
}
