// SPDX-License-Identifier: Apache-2.0
// Recording the hot set of a clone: true 4 KiB pages, read and written ones apart, at no cost to
// the clone's speed that would matter.
//
// The clone's memory is a private mapping of the memory file. What it touched is in its page
// tables, and /proc/self/pagemap tells for each page whether it is there, and whether it is the
// file's page (only read so far) or a private copy (written). Two things are in the way:
//
//  - Fault-around: a read fault maps up to 16 neighbours that happen to be in the page cache, so
//  that three of four present pages would be none that the guest
//    asked for. The kernel leaves fault-around out in ranges that are registered for userfaultfd
//    write protection. So they are registered, in the asynchronous mode (UFFD_FEATURE_WP_ASYNC,
//    Linux 6.7) that works for every kind of mapping, sends no messages and needs no thread;
//    nothing is ever write-protected.
//  - KVM's own reading ahead: there is none for 4 KiB pages.
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/kvm/vm.h"
#include "vmm/snapshot/hot.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFD_FEATURE_WP_ASYNC
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#define UFFD_FEATURE_WP_ASYNC	    (1 << 15)
#endif

/* Documentation/admin-guide/mm/pagemap.rst */
#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_FILE	(1ull << 61)
#define PAGEMAP_BATCH	512

struct hot_list {
	struct snap_hot_run *runs;
	u32 nruns;
};

/** Return: 0, or -1 and errno. */
static int hot_watch(struct snap_hot_recorder *recorder, void *hva, u64 len_bytes)
{
	struct uffdio_register range = {
		.range = {.start = (uintptr_t)hva, .len = len_bytes},
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	return ioctl(recorder->uffd, UFFDIO_REGISTER, &range);
}

int snap_hot_record_start(struct snap_hot_recorder *recorder, const struct snap_mem *mem)
{
	struct uffdio_api api = {.api = UFFD_API,
				 .features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED};
	const char *what = "userfaultfd";
	int ret;

	*recorder = (struct snap_hot_recorder){.uffd = -1, .pagemap_fd = -1};
	/* No message is read, so that faults of the kernel need no handling, and no privilege. */
	recorder->uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (recorder->uffd < 0)
		goto fail;
	what = "userfaultfd: asynchronous write protection (Linux 6.7)";
	if (ioctl(recorder->uffd, UFFDIO_API, &api) < 0)
		goto fail;
	for (unsigned int i = 0; i < mem->nranges; i++) {
		if (hot_watch(recorder, mem->ranges[i].hva, mem->ranges[i].len_bytes))
			goto fail;
	}
	what = "/proc/self/pagemap";
	recorder->pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (recorder->pagemap_fd >= 0)
		return 0;
fail:
	ret = -errno;
	log_err("recording the hot set: %s: %s", what, strerror(-ret));
	fd_close(&recorder->uffd);
	return ret;
}

int snap_hot_record_pmem(struct snap_hot_recorder *recorder, const struct vm *vm)
{
	int ret;

	if (!vm->pmem_hva || !hot_watch(recorder, vm->pmem_hva, vm->cfg.pmem_bytes))
		return 0;
	ret = -errno;
	log_err("recording the hot set: root image: %s", strerror(-ret));
	return ret;
}

static int hot_list_add(struct hot_list *list, u64 gpa, enum snap_hot_kind kind)
{
	struct snap_hot_run *last = list->nruns ? &list->runs[list->nruns - 1] : NULL;

	if (last && last->kind == kind && last->gpa + last->npages * PAGE_SIZE_BYTES == gpa) {
		last->npages++;
		return 0;
	}
	if (list->nruns == SNAP_HOT_RUNS_MAX)
		return -E2BIG;
	list->runs[list->nruns++] = (struct snap_hot_run){.gpa = gpa, .npages = 1, .kind = kind};
	return 0;
}

/** @read_only: the zero page behind the root image's end is no copy of anything. */
static int hot_scan(int pagemap_fd, const struct gmem_region *region, bool read_only,
		    struct hot_list *list)
{
	u64 entries[PAGEMAP_BATCH], npages = region->len_bytes / PAGE_SIZE_BYTES;
	int ret = 0;

	for (u64 page = 0; page < npages && !ret; page += PAGEMAP_BATCH) {
		u64 n = MIN(npages - page, (u64)PAGEMAP_BATCH);
		u64 at = ((uintptr_t)region->hva / PAGE_SIZE_BYTES + page) * sizeof(u64);

		ret = fd_pread_full(pagemap_fd, entries, n * sizeof(u64), at);
		for (u64 i = 0; i < n && !ret; i++) {
			bool written = !read_only && ((entries[i] & PAGEMAP_SWAPPED) ||
						      !(entries[i] & PAGEMAP_FILE));

			if (entries[i] & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED))
				ret = hot_list_add(list, region->gpa + (page + i) * PAGE_SIZE_BYTES,
						   written ? SNAP_HOT_WRITE : SNAP_HOT_READ);
		}
	}
	return ret;
}

int snap_hot_record_write(struct snap_hot_recorder *recorder, const struct vm *vm,
			  const u8 state_digest[SNAP_DIGEST_BYTES], int fd)
{
	struct hot_list list = {.runs = calloc(SNAP_HOT_RUNS_MAX, sizeof(*list.runs))};
	struct gmem_region pmem = {.gpa = layout_pmem_gpa(vm->cfg.ram_bytes),
				   .len_bytes = vm->cfg.pmem_bytes,
				   .hva = vm->pmem_hva};
	size_t len_bytes;
	void *buf = NULL;
	int ret = list.runs ? 0 : -ENOMEM;

	for (unsigned int i = 0; i < vm->gmem.nregions && !ret; i++)
		ret = hot_scan(recorder->pagemap_fd, &vm->gmem.regions[i], false, &list);
	if (!ret && vm->pmem_hva)
		ret = hot_scan(recorder->pagemap_fd, &pmem, true, &list);
	if (!ret)
		ret = snap_hot_build(list.runs, list.nruns, state_digest, &buf, &len_bytes);
	if (!ret)
		ret = fd_write_full(fd, buf, len_bytes);
	if (ret)
		log_err("recording the hot set: %s", strerror(-ret));
	free(buf);
	free(list.runs);
	fd_close(&recorder->uffd);
	fd_close(&recorder->pagemap_fd);
	return ret;
}
