// SPDX-License-Identifier: Apache-2.0
// The cold part of the hot set into the page cache, while the VM is being set up.
//
// Theory of operation
//
// A clone whose template is not in the page cache would wait for the disk once a page, one page
// after the other. The hot set says beforehand what it will need, so all of that can be asked for
// at once. The result is the page cache as if another clone had run before: shared by all, and
// everything behind this file works the same whether anything was cold or not.
//
// What is cold is asked of mincore(2): one call for runs that lie close, in the caller's thread,
// so that a warm start pays for nothing else. The reads are a thread's, since the submission of a
// thousand of them takes the processor for milliseconds; it has the ring, the list and the slots to
// itself until it is joined.
//
// Reads go into one buffer that nobody looks at: what counts is the page cache on the way. They
// must not bring more than is asked for, or a set of scattered pages would become ten times as many
// bytes; POSIX_FADV_RANDOM turns read-ahead off for the descriptors meanwhile. Page faults do not
// look at that flag.
//
// Holes of the memory file are left out: they need no disk, and must not count as read.
//
// mincore() says "there" about everything to who could not write the file (it is an information
// leak otherwise). Then nothing is fetched and page faults bring it all, as without this file: it
// happens for a root image of another owner only, since a snapshot is owned by its user.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm/kvm/layout.h"
#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/warm.h"
#include "vmm/util/log.h"
#include "vmm/util/ring.h"

#define FETCH_MAX_PAGES 64u /* of one read */
#define FETCH_MINCORE	512u
/* Runs that lie this close are looked at by one call: 16 pages more cost what a call does. */
#define FETCH_GAP_PAGES 16u

/* The memory file of every snapshot of a chain, from the top, then the root image. */
#define FETCH_FILES_MAX (SNAP_CHAIN_MAX + 1)

struct fetch_cold {
	u64 offset_bytes;
	u32 npages;
	u32 file;
};

struct fetch_slot {
	struct ring_req req;
	struct iovec iov;
	struct warm_fetch *fetch;
	struct fetch_slot *next;
};

struct warm_fetch {
	pthread_t thread;
	bool running;
	const struct snap *snap;
	int files[FETCH_FILES_MAX];
	unsigned int nfiles;
	struct fetch_cold *cold; /* owned */
	size_t ncold, room;
	/* The thread's, until it is joined. */
	struct ring ring;
	void *scratch;
	u64 bytes_read;
	int error;
	struct fetch_slot *free;
	struct fetch_slot slots[WARM_FETCH_DEPTH];
};

static void fetch_done(struct ring_req *req, s64 result)
{
	struct fetch_slot *slot = container_of(req, struct fetch_slot, req);
	struct warm_fetch *fetch = slot->fetch;

	/* A short one is the end of the root image, or is left to the page fault. */
	if (result >= 0)
		fetch->bytes_read += (u64)result;
	else if (result != -EINTR && result != -EAGAIN && !fetch->error)
		fetch->error = (int)result;
	slot->next = fetch->free;
	fetch->free = slot;
}

/** fetch_read() - one more in flight, after waiting for a slot. Return: 0 or -errno. */
static int fetch_read(struct warm_fetch *fetch, u32 file, u64 offset_bytes, u64 len_bytes)
{
	struct fetch_slot *slot;
	int ret;

	while (!fetch->free) {
		ret = ring_submit(&fetch->ring);
		/* The kernel is short of memory for requests. */
		if (ret == -EAGAIN || ret == -EBUSY || ret == -ENOMEM)
			ret = ring_drain(&fetch->ring);
		else if (!ret)
			ret = ring_reap(&fetch->ring, 1);
		if (ret < 0)
			return ret;
	}
	slot = fetch->free;
	fetch->free = slot->next;
	slot->req.file = file;
	slot->req.offset_bytes = offset_bytes;
	slot->req.len_bytes = len_bytes;
	slot->iov.iov_len = len_bytes;
	return ring_queue(&fetch->ring, &slot->req);
}

/** The data of one cold stretch, in pieces. Return: 0 or -errno. */
static int fetch_stretch(struct warm_fetch *fetch, const struct fetch_cold *cold)
{
	const u64 end_bytes = cold->offset_bytes + cold->npages * PAGE_SIZE_BYTES;
	u64 pos = cold->offset_bytes, start, end;
	int ret;

	while ((ret = snap_extent_next(fetch->files[cold->file], end_bytes, pos, &start, &end)) >
	       0) {
		for (pos = start; pos < end;) {
			u64 len_bytes = MIN(end - pos, FETCH_MAX_PAGES * PAGE_SIZE_BYTES);

			ret = fetch_read(fetch, cold->file, pos, len_bytes);
			if (ret)
				return ret;
			pos += len_bytes;
		}
	}
	return ret;
}

static void *fetch_thread(void *opaque)
{
	struct warm_fetch *fetch = opaque;
	int ret = 0;

	for (size_t i = 0; i < fetch->ncold && !ret && !fetch->error; i++)
		ret = fetch_stretch(fetch, &fetch->cold[i]);
	if (fetch->ring.inflight) {
		int drain_ret = ring_drain(&fetch->ring);

		ret = ret ? ret : drain_ret;
	}
	if (ret && !fetch->error)
		fetch->error = ret;
	return NULL;
}

static bool diff_has(const struct snap_diff *diff, u64 gpa)
{
	u32 low = 0, high = diff->nruns;

	/* The last run that begins at or before @gpa. */
	while (low < high) {
		u32 middle = low + (high - low) / 2;

		if (diff->runs[middle].gpa <= gpa)
			low = middle + 1;
		else
			high = middle;
	}
	return low && gpa - diff->runs[low - 1].gpa < diff->runs[low - 1].npages * PAGE_SIZE_BYTES;
}

/** Which memory file of the chain has the page at @gpa: the first from the top. */
static u32 fetch_memory_file(const struct warm_fetch *fetch, u64 gpa)
{
	const struct snap *snap = fetch->snap;
	u32 file = 0;

	while (snap->diff && snap->parent && !diff_has(snap->diff, gpa)) {
		snap = snap->parent;
		file++;
	}
	return file;
}

static int fetch_add_cold(struct warm_fetch *fetch, u32 file, u64 offset_bytes)
{
	struct fetch_cold *last = fetch->ncold ? &fetch->cold[fetch->ncold - 1] : NULL;

	if (last && last->file == file &&
	    last->offset_bytes + last->npages * PAGE_SIZE_BYTES == offset_bytes) {
		last->npages++;
		return 0;
	}
	if (fetch->ncold == fetch->room) {
		size_t room = fetch->room * 2 + 256;
		struct fetch_cold *grown = reallocarray(fetch->cold, room, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		fetch->cold = grown;
		fetch->room = room;
	}
	fetch->cold[fetch->ncold++] =
		(struct fetch_cold){.offset_bytes = offset_bytes, .npages = 1, .file = file};
	return 0;
}

/** Where hot pages can lie: a range of RAM, or the root image. */
struct fetch_region {
	u64 gpa, len_bytes;
	u8 *hva;
	bool ram;
};

/** What mincore(2) said about some pages. */
struct fetch_look {
	u64 gpa, npages;
	unsigned char there[FETCH_MINCORE];
};

static const struct fetch_region *region_find(const struct fetch_region *regions, u64 gpa)
{
	while (regions->hva && gpa - regions->gpa >= regions->len_bytes)
		regions++;
	return regions->hva ? regions : NULL;
}

/** fetch_look_at() - ask about @gpa, which is in @run, and about what comes soon after it. Return:
 * 0 or -errno. */
static int fetch_look_at(struct fetch_look *look, const struct fetch_region *region,
			 const struct snap_hot_run *run, const struct snap_hot_run *runs_end,
			 u64 gpa)
{
	const u64 region_end = region->gpa + region->len_bytes;
	u64 end_gpa = gpa;

	for (; run < runs_end && run->gpa < region_end; run++) {
		if (run->gpa > end_gpa && run->gpa - end_gpa > FETCH_GAP_PAGES * PAGE_SIZE_BYTES)
			break;
		end_gpa = run->gpa + run->npages * PAGE_SIZE_BYTES;
		if (end_gpa - gpa >= FETCH_MINCORE * PAGE_SIZE_BYTES)
			break;
	}
	end_gpa = MIN(end_gpa, region_end);
	look->gpa = gpa;
	look->npages = MIN((end_gpa - gpa) / PAGE_SIZE_BYTES, (u64)FETCH_MINCORE);
	if (mincore(region->hva + (gpa - region->gpa), look->npages * PAGE_SIZE_BYTES,
		    look->there) < 0)
		return -errno;
	return 0;
}

static int fetch_list(struct warm_fetch *fetch, const struct snap_hot *hot,
		      const struct fetch_region *regions)
{
	const struct snap_hot_run *runs_end = hot->runs + hot->nruns;
	struct fetch_look look = {0};
	int ret = 0;

	for (const struct snap_hot_run *run = hot->runs; run < runs_end; run++) {
		const struct fetch_region *region = region_find(regions, run->gpa);
		u64 end_gpa = run->gpa + run->npages * PAGE_SIZE_BYTES;

		/* Past the root image's end: zeros. */
		if (!region)
			continue;
		end_gpa = MIN(end_gpa, region->gpa + region->len_bytes);
		for (u64 gpa = run->gpa; gpa < end_gpa && !ret; gpa += PAGE_SIZE_BYTES) {
			u64 page = (gpa - look.gpa) / PAGE_SIZE_BYTES;

			if (page >= look.npages) {
				ret = fetch_look_at(&look, region, run, runs_end, gpa);
				page = 0;
			}
			if (!ret && !(look.there[page] & 1))
				ret = region->ram
					      ? fetch_add_cold(fetch, fetch_memory_file(fetch, gpa),
							       gpa)
					      : fetch_add_cold(fetch, fetch->nfiles - 1,
							       gpa - region->gpa);
		}
		if (ret)
			return ret;
	}
	return 0;
}

/** fetch_list() over RAM and the root image, which is mapped for the time of it. */
static int fetch_list_all(struct warm_fetch *fetch, const struct snap *snap,
			  const struct snap_hot *hot, const struct snap_mem *mem)
{
	struct fetch_region regions[ARRAY_SIZE(mem->ranges) + 2] = {0}, *root;
	unsigned int n;
	int ret;

	for (n = 0; n < mem->nranges; n++)
		regions[n] = (struct fetch_region){.gpa = mem->ranges[n].gpa,
						   .len_bytes = mem->ranges[n].len_bytes,
						   .hva = mem->ranges[n].hva,
						   .ram = true};
	root = &regions[n];
	if (snap->root_fd >= 0) {
		root->gpa = layout_pmem_gpa(snap->view.machine->ram_bytes);
		root->len_bytes = ALIGN_UP(snap->manifest.root_bytes, PAGE_SIZE_BYTES);
		root->hva = mmap(NULL, root->len_bytes, PROT_READ, MAP_PRIVATE, snap->root_fd, 0);
		if (root->hva == MAP_FAILED)
			return -errno;
	}
	ret = fetch_list(fetch, hot, regions);
	if (root->hva)
		munmap(root->hva, root->len_bytes);
	return ret;
}

static void fetch_advise(const struct warm_fetch *fetch, int advice)
{
	/* A file system that does not know it has no read-ahead to turn off. */
	for (unsigned int i = 0; i < fetch->nfiles; i++)
		(void)posix_fadvise(fetch->files[i], 0, 0, advice);
}

static int fetch_begin(struct warm_fetch *fetch)
{
	int ret;

	fetch->scratch = mmap(NULL, FETCH_MAX_PAGES * PAGE_SIZE_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fetch->scratch == MAP_FAILED) {
		fetch->scratch = NULL;
		return -errno;
	}
	ret = ring_init(&fetch->ring, WARM_FETCH_DEPTH, fetch->files, fetch->nfiles, RING_RESTRICT);
	if (ret)
		return ret;
	for (unsigned int i = 0; i < WARM_FETCH_DEPTH; i++) {
		struct fetch_slot *slot = &fetch->slots[i];

		slot->fetch = fetch;
		slot->iov.iov_base = fetch->scratch;
		slot->req = (struct ring_req){
			.op = RING_READ, .iov = &slot->iov, .niov = 1, .done = fetch_done};
		slot->next = fetch->free;
		fetch->free = slot;
	}
	fetch_advise(fetch, POSIX_FADV_RANDOM);
	ret = -pthread_create(&fetch->thread, NULL, fetch_thread, fetch);
	if (ret)
		ring_destroy(&fetch->ring);
	fetch->running = !ret;
	return ret;
}

int warm_fetch_start(const struct snap *snap, const struct snap_hot *hot,
		     const struct snap_mem *mem, struct warm_fetch **out, bool *plain)
{
	struct warm_fetch *fetch = calloc(1, sizeof(*fetch));
	int ret = fetch ? 0 : -ENOMEM;

	*out = NULL;
	*plain = false;
	if (!ret) {
		fetch->snap = snap;
		fetch->files[fetch->nfiles++] = snap->memory_fd;
		for (const struct snap *part = snap; part->diff && part->parent;
		     part = part->parent)
			fetch->files[fetch->nfiles++] = part->parent->memory_fd;
		if (snap->root_fd >= 0)
			fetch->files[fetch->nfiles++] = snap->root_fd;
		ret = fetch_list_all(fetch, snap, hot, mem);
	}
	if (!ret && fetch->ncold) {
		ret = fetch_begin(fetch);
		if (!ret) {
			*plain = fetch->ring.plain;
			*out = fetch;
			return 0;
		}
	}
	if (ret)
		log_err("%s: fetching the hot set: %s", snap->path, strerror(-ret));
	warm_fetch_free(fetch);
	return ret;
}

int warm_fetch_wait(struct warm_fetch *fetch, u64 *bytes_read)
{
	if (fetch->running) {
		BUG_ON(pthread_join(fetch->thread, NULL));
		fetch->running = false;
		fetch_advise(fetch, POSIX_FADV_NORMAL);
		/* With requests owed the ring and the slots must stay; the process ends soon. */
		if (!fetch->ring.inflight)
			ring_destroy(&fetch->ring);
	}
	*bytes_read = fetch->bytes_read;
	if (fetch->error)
		log_err("fetching the hot set: %s", strerror(-fetch->error));
	return fetch->error;
}

void warm_fetch_free(struct warm_fetch *fetch)
{
	u64 bytes_read;

	if (!fetch)
		return;
	if (fetch->running && warm_fetch_wait(fetch, &bytes_read))
		log_debug("the restore has failed already");
	if (fetch->ring.inflight)
		return;
	if (fetch->scratch)
		munmap(fetch->scratch, FETCH_MAX_PAGES * PAGE_SIZE_BYTES);
	free(fetch->cold);
	free(fetch);
}
