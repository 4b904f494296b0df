/* SPDX-License-Identifier: Apache-2.0 */
/* A memory file with holes and a pager over it, for the pager's tests. */
#ifndef THAW_TESTS_UNIT_PAGER_RIG_H
#define THAW_TESTS_UNIT_PAGER_RIG_H

#include "tests/unit/snapshot_fixture.h"
#include "vmm/snapshot/pager.h"

#define FILE_BYTES (16 * MIB)
#define PAGE	   4096ull

/* Data, but for a hole in every MiB and single pages of data in it. */
#define HOLE_START (256 * 1024ull)
#define HOLE_END   (512 * 1024ull)
#define ISLAND	   (384 * 1024ull)

static char folder[64], path[96];

static inline bool is_data(u64 offset)
{
	u64 in = offset % MIB;

	return in < HOLE_START || in >= HOLE_END || ALIGN_DOWN(in, PAGE) == ISLAND;
}

static inline u64 expected(u64 offset)
{
	return is_data(offset) ? (offset / PAGE + 1) * 0x9e3779b97f4a7c15ull : 0;
}

static inline int make_file(void)
{
	u64 page[PAGE / 8];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, FILE_BYTES), 0);
	for (u64 offset = 0; offset < FILE_BYTES; offset += PAGE) {
		for (unsigned int i = 0; i < PAGE / 8; i++)
			page[i] = expected(offset);
		if (is_data(offset))
			CHECK_EQ(pwrite(fd, page, PAGE, (off_t)offset), PAGE);
	}
	close(fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

/** One mapping of the whole file, unless @split: then its halves, the second one first in memory.
 */
struct rig {
	int fd;
	u8 *base;
	struct pager *pager;
	struct pager_range ranges[2];
	unsigned int nranges;
};

static inline void rig_start(struct rig *rig, u64 window_bytes, bool split)
{
	struct pager_config cfg = {.file_bytes = FILE_BYTES, .window_bytes = window_bytes};
	u64 hva;

	rig->fd = cfg.file_fd = make_file();
	CHECK_EQ(pager_start(&cfg, &rig->pager), 0);
	rig->base = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(rig->base != MAP_FAILED);
	hva = (uintptr_t)rig->base;
	rig->nranges = 1;
	rig->ranges[0] = (struct pager_range){hva, 0, FILE_BYTES};
	if (split) {
		rig->nranges = 2;
		rig->ranges[0] = (struct pager_range){hva + FILE_BYTES / 2, 0, FILE_BYTES / 2};
		rig->ranges[1] = (struct pager_range){hva, FILE_BYTES / 2, FILE_BYTES / 2};
	}
	CHECK_EQ(pager_attach(rig->pager, rig->ranges, rig->nranges), 0);
}

static inline void rig_end(struct rig *rig)
{
	pager_free(rig->pager);
	CHECK_EQ(munmap(rig->base, FILE_BYTES), 0);
	close(rig->fd);
}

static inline const volatile u64 *at(const struct rig *rig, u64 offset)
{
	for (unsigned int i = 0; i < rig->nranges; i++) {
		const struct pager_range *range = &rig->ranges[i];

		if (offset - range->offset_bytes < range->len_bytes)
			return (const volatile u64 *)(uintptr_t)(range->hva + offset -
								 range->offset_bytes);
	}
	abort();
}

static inline void check_all(const struct rig *rig)
{
	for (u64 offset = 0; offset < FILE_BYTES; offset += PAGE) {
		CHECK_EQ(*at(rig, offset), expected(offset));
		CHECK_EQ(*at(rig, offset + PAGE - 8), expected(offset));
	}
}

#endif
