// SPDX-License-Identifier: Apache-2.0
// Diffs: the list of pages, and a chain of snapshots put together to one memory.
#include "vmm/snapshot/diff.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vmm/kvm/layout.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * Any strategy maps or reads the root's memory file, as if there were no diff. The pages of the
 * diffs are then put over it, from the oldest to the youngest: a later one wins where two hold the
 * same page. By a private mapping of the diff's own memory file in place of what is there
 * (MAP_FIXED): pages that are only read stay in the page cache, shared by all clones, as with the
 * root's. Or by reading, for strategies that leave nothing to page faults.
 *
 * A hole of the file inside a run is a page of zeros; outside of the runs it means nothing. So the
 * list decides which pages are here, never the file's holes.
 */

_Static_assert(sizeof(struct snap_diff_header) == 16, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct snap_diff_run) == 16, "ABI: snapshots/FORMAT.md");

#define DIFF_MAX_BYTES \
	(sizeof(struct snap_diff_header) + SNAP_DIFF_RUNS_MAX * sizeof(struct snap_diff_run))

/** run_end() - where @run ends, or 0 if it is not inside one stretch of RAM. */
static u64 run_end(const struct snap_diff_run *run, u64 ram_bytes)
{
	const u64 low_bytes = layout_low_ram_bytes(ram_bytes);
	const u64 high_end = LAYOUT_HIGH_RAM_GPA + layout_high_ram_bytes(ram_bytes);
	u64 end_gpa;

	if (run->gpa % PAGE_SIZE_BYTES || !run->npages ||
	    run->npages > high_end / PAGE_SIZE_BYTES ||
	    !u64_add_ok(run->gpa, run->npages * PAGE_SIZE_BYTES, &end_gpa))
		return 0;
	if (end_gpa <= low_bytes || (run->gpa >= LAYOUT_HIGH_RAM_GPA && end_gpa <= high_end))
		return end_gpa;
	return 0;
}

static const char *check_runs(const struct snap_diff_run *runs, u32 nruns, u64 ram_bytes,
			      u64 *npages)
{
	u64 last_end_gpa = 0;

	*npages = 0;
	for (u32 i = 0; i < nruns; i++) {
		u64 end_gpa = run_end(&runs[i], ram_bytes);

		if (!end_gpa)
			return "a run lies outside of memory";
		/* One form for one set of pages: runs that touch would be one run. */
		if (i > 0 && runs[i].gpa <= last_end_gpa)
			return "runs are not in order";
		*npages += runs[i].npages;
		last_end_gpa = end_gpa;
	}
	return NULL;
}

int snap_diff_parse(const void *buf, size_t len_bytes, u64 ram_bytes, struct snap_diff *out,
		    const char **why)
{
	const struct snap_diff_header *header = buf;
	u64 npages;

	*why = "not a list of pages";
	if (len_bytes < sizeof(*header) || header->magic != SNAP_DIFF_MAGIC)
		return -EINVAL;
	*why = "unknown version; build the template again with this thaw";
	if (header->version != SNAP_DIFF_VERSION)
		return -EPROTONOSUPPORT;
	*why = "size does not fit the number of runs";
	if (header->nruns > SNAP_DIFF_RUNS_MAX ||
	    len_bytes != sizeof(*header) + header->nruns * sizeof(struct snap_diff_run))
		return -EINVAL;
	*why = check_runs((const struct snap_diff_run *)(header + 1), header->nruns, ram_bytes,
			  &npages);
	if (*why)
		return -EINVAL;
	out->runs = (const struct snap_diff_run *)(header + 1);
	out->nruns = header->nruns;
	out->npages = npages;
	return 0;
}

int snap_diff_build(const struct snap_diff_run *runs, u32 nruns, void **out, size_t *len_bytes)
{
	struct snap_diff_header *header;

	*len_bytes = sizeof(*header) + nruns * sizeof(*runs);
	header = calloc(1, *len_bytes);
	if (!header)
		return -ENOMEM;
	header->magic = SNAP_DIFF_MAGIC;
	header->version = SNAP_DIFF_VERSION;
	header->nruns = nruns;
	if (nruns)
		memcpy(header + 1, runs, nruns * sizeof(*runs));
	*out = header;
	return 0;
}

int snap_diff_open(struct snap *snap)
{
	const struct snap_manifest *manifest = &snap->manifest;
	u8 digest[SNAP_DIGEST_BYTES];
	char hex[SNAP_DIGEST_HEX];
	const char *why;
	size_t len_bytes;
	int ret;

	if (!manifest->diff_digest)
		return 0;
	snap->diff = calloc(1, sizeof(*snap->diff));
	if (!snap->diff)
		return -ENOMEM;
	ret = snap_part_read(snap->dirfd, snap->path, SNAP_FILE_DIFF, DIFF_MAX_BYTES,
			     &snap->diff->buf, &len_bytes);
	if (ret)
		return ret;
	snap_digest_buf(snap->diff->buf, len_bytes, digest);
	snap_digest_hex(digest, hex);
	why = "digest mismatch: the file was changed or is damaged; build the template again";
	ret = strcmp(hex, manifest->diff_digest) ? -EBADMSG : 0;
	if (!ret)
		ret = snap_diff_parse(snap->diff->buf, len_bytes, snap->view.machine->ram_bytes,
				      snap->diff, &why);
	if (!ret && snap->diff->npages != manifest->diff_pages) {
		why = "number of pages is not the one in the manifest";
		ret = -EINVAL;
	}
	if (ret)
		log_err("%s/%s: %s", snap->path, SNAP_FILE_DIFF, why);
	return ret;
}

void snap_diff_free(struct snap_diff *diff)
{
	if (diff)
		free(diff->buf);
	free(diff);
}

const struct snap *snap_root(const struct snap *snap)
{
	while (snap->parent)
		snap = snap->parent;
	return snap;
}

unsigned int snap_depth(const struct snap *snap)
{
	unsigned int depth = 1;

	for (; snap->parent; snap = snap->parent)
		depth++;
	return depth;
}

/** run_hva() - where the pages of @run are in @mem. */
static u8 *run_hva(const struct snap_mem *mem, const struct snap_diff_run *run)
{
	const u64 len_bytes = run->npages * PAGE_SIZE_BYTES;

	for (unsigned int i = 0; i < mem->nranges; i++) {
		const struct snap_mem_range *range = &mem->ranges[i];

		if (run->gpa >= range->gpa && run->gpa - range->gpa < range->len_bytes) {
			/* The lists of a chain are checked against the RAM size that all share. */
			BUG_ON(run->gpa - range->gpa + len_bytes > range->len_bytes);
			return (u8 *)range->hva + (run->gpa - range->gpa);
		}
	}
	BUG_ON(true);
	return NULL;
}

static int overlay_map(const struct snap *link, struct snap_mem *mem)
{
	for (u32 i = 0; i < link->diff->nruns; i++) {
		const struct snap_diff_run *run = &link->diff->runs[i];

		if (mmap(run_hva(mem, run), run->npages * PAGE_SIZE_BYTES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, link->memory_fd,
			 (off_t)run->gpa) == MAP_FAILED)
			return -errno;
	}
	return 0;
}

/** zero_pages() - [@hva, +@len_bytes), without touching what is zero. */
static void zero_pages(u8 *hva, u64 len_bytes)
{
	for (u64 done = 0; done < len_bytes; done += PAGE_SIZE_BYTES) {
		if (!snap_page_is_zero(hva + done))
			memset(hva + done, 0, PAGE_SIZE_BYTES);
	}
}

static int read_run(struct bulk *bulk, const struct snap *link, struct snap_mem *mem,
		    const struct snap_diff_run *run)
{
	const u64 end_gpa = run->gpa + run->npages * PAGE_SIZE_BYTES;
	u8 *hva = run_hva(mem, run);
	u64 pos = run->gpa, start, end;
	int ret;

	while ((ret = snap_extent_next(link->memory_fd, end_gpa, pos, &start, &end)) > 0) {
		zero_pages(hva + (pos - run->gpa), start - pos);
		ret = bulk_add(bulk, hva + (start - run->gpa), start, end - start);
		if (ret)
			return ret;
		mem->bytes_read += end - start;
		pos = end;
	}
	if (!ret)
		zero_pages(hva + (pos - run->gpa), end_gpa - pos);
	return ret;
}

static int overlay_read(const struct snap *link, struct snap_mem *mem)
{
	struct bulk *bulk;
	struct ring ring;
	int ret, end_ret;

	ret = ring_init(&ring, BULK_DEPTH, &link->memory_fd, 1, RING_RESTRICT);
	if (ret)
		return ret;
	mem->plain_io |= ring.plain;
	bulk = bulk_new(&ring, RING_READ);
	ret = bulk ? 0 : -ENOMEM;
	for (u32 i = 0; !ret && i < link->diff->nruns; i++)
		ret = read_run(bulk, link, mem, &link->diff->runs[i]);
	if (bulk) {
		/* All of one link before the next, which may hold the same pages. */
		end_ret = bulk_end(bulk);
		ret = ret ? ret : end_ret;
	}
	if (!ring.inflight)
		ring_destroy(&ring);
	return ret;
}

int snap_diff_overlay(const struct snap *snap, struct snap_mem *mem, bool eager)
{
	const struct snap *links[SNAP_CHAIN_MAX];
	unsigned int nlinks = 0;
	int ret = 0;

	for (; snap->diff; snap = snap->parent) {
		BUG_ON(nlinks == SNAP_CHAIN_MAX || !snap->parent);
		links[nlinks++] = snap;
	}
	while (!ret && nlinks-- > 0) {
		ret = eager ? overlay_read(links[nlinks], mem) : overlay_map(links[nlinks], mem);
		if (ret)
			log_err("%s/%s: can't be put over its parent's: %s", links[nlinks]->path,
				SNAP_FILE_MEMORY, ret == -ENODATA ? "truncated" : strerror(-ret));
	}
	return ret;
}

int snap_content_map(const struct snap *snap, struct snap_mem *mem)
{
	int ret;

	*mem = (struct snap_mem){.fd = snap_root(snap)->memory_fd};
	snap_mem_ranges(mem, snap->view.machine->ram_bytes);
	ret = snap_mem_mmap.map(mem);
	if (ret)
		return ret;
	ret = snap_diff_overlay(snap, mem, false);
	if (ret)
		snap_mem_unmap(mem);
	return ret;
}
