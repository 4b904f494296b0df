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
#include "vmm/snapshot/hot_set.h"
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

/** Return: 0, or -1 and errno. */
static int hot_watch(struct snap_hot_recorder *recorder, void *hva, u64 len_bytes)
{
	struct uffdio_register range = {
		.range = {.start = (uintptr_t)hva, .len = len_bytes},
		.mode = UFFDIO_REGISTER_MODE_WP,
	};

	return ioctl(recorder->uffd, UFFDIO_REGISTER, &range);
}

/** Return: a descriptor, or -errno; *@what: the step that failed. */
static int hot_uffd_open(const char **what)
{
	struct uffdio_api api = {.api = UFFD_API,
				 .features = UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED};
	int fd, ret;

	/* No message is read, so that faults of the kernel need no handling, and no privilege. */
	*what = "userfaultfd";
	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	if (fd < 0)
		return -errno;
	*what = "userfaultfd: asynchronous write protection (Linux 6.7)";
	if (ioctl(fd, UFFDIO_API, &api) < 0) {
		ret = -errno;
		fd_close(&fd);
		return ret;
	}
	return fd;
}

int snap_hot_record_probe(void)
{
	const char *what;
	int fd = hot_uffd_open(&what);

	if (fd < 0)
		return fd;
	fd_close(&fd);
	return 0;
}

int snap_hot_record_start(struct snap_hot_recorder *recorder, const struct snap_mem *mem)
{
	const char *what;
	int ret;

	*recorder = (struct snap_hot_recorder){.uffd = -1, .pagemap_fd = -1};
	ret = hot_uffd_open(&what);
	if (ret < 0)
		goto fail;
	recorder->uffd = ret;
	for (unsigned int i = 0; i < mem->nranges; i++) {
		if (hot_watch(recorder, mem->ranges[i].hva, mem->ranges[i].len_bytes)) {
			ret = -errno;
			goto fail;
		}
	}
	what = "/proc/self/pagemap";
	recorder->pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (recorder->pagemap_fd >= 0)
		return 0;
	ret = -errno;
fail:
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

/** @read_only: the zero page behind the root image's end is no copy of anything. */
static int hot_scan(int pagemap_fd, const struct gmem_region *region, bool read_only,
		    struct snap_hot_set *set)
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
				ret = snap_hot_set_add(set,
						       region->gpa + (page + i) * PAGE_SIZE_BYTES,
						       1, written ? SNAP_HOT_WRITE : SNAP_HOT_READ);
		}
	}
	return ret;
}

int snap_hot_record_write(struct snap_hot_recorder *recorder, const struct vm *vm,
			  const u8 state_digest[SNAP_DIGEST_BYTES], int fd)
{
	struct snap_hot_set set = {.pmem_gpa = layout_pmem_gpa(vm->cfg.ram_bytes)};
	/* One clone's; what several have in common is found by who asked for them. */
	struct snap_hot_info info = {.recorder = SNAP_HOT_PAGEMAP,
				     .rule = SNAP_HOT_UNION,
				     .threshold = 1,
				     .nclones = 1,
				     .ncommands = 1,
				     .stability_permille = SNAP_HOT_UNKNOWN,
				     .similarity_permille = SNAP_HOT_UNKNOWN};
	struct gmem_region pmem = {.gpa = layout_pmem_gpa(vm->cfg.ram_bytes),
				   .len_bytes = vm->cfg.pmem_bytes,
				   .hva = vm->pmem_hva};
	size_t len_bytes;
	void *buf = NULL;
	int ret = 0;

	for (unsigned int i = 0; i < vm->gmem.nregions && !ret; i++)
		ret = hot_scan(recorder->pagemap_fd, &vm->gmem.regions[i], false, &set);
	if (!ret && vm->pmem_hva)
		ret = hot_scan(recorder->pagemap_fd, &pmem, true, &set);
	if (!ret) {
		info.union_pages = snap_hot_set_pages(&set, SNAP_HOT_READ) +
				   snap_hot_set_pages(&set, SNAP_HOT_WRITE);
		info.intersection_pages = info.union_pages;
		ret = snap_hot_build(set.runs, set.nruns, &info, state_digest, &buf, &len_bytes);
	}
	if (!ret)
		ret = fd_write_full(fd, buf, len_bytes);
	if (ret)
		log_err("recording the hot set: %s", strerror(-ret));
	free(buf);
	snap_hot_set_free(&set);
	fd_close(&recorder->uffd);
	fd_close(&recorder->pagemap_fd);
	return ret;
}
