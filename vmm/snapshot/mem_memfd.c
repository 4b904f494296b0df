// SPDX-License-Identifier: Apache-2.0
// Restore strategy "memfd": the template's memory once in a sealed memfd, which clones map
// privately.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/snapshot/mem.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * As "mmap" once the memfd is there, with two differences: its pages can't be dropped under memory
 * pressure and read again from a slow disk, and they can be huge where shmem_enabled allows it. It
 * pays when many clones share one memfd: whoever makes them (a pool, a zygote) calls
 * snap_memfd_make() and hands the descriptor to each (thaw-vmm --memory-fd). A thaw-vmm without one
 * fills its own, which costs what "copy" costs: the baseline.
 *
 * Sealed: no owner of the descriptor, not even this process once the guest has taken it over, can
 * change what the next clone will see. A seal against writing is refused while a writable shared
 * mapping exists, so the one it is filled through goes first.
 *
 * A descriptor that is handed in is checked: size, seals, and the snapshot's id in its name. The
 * name finds a mix-up, not malice: whoever hands in the descriptor starts this process and could as
 * well hand in another folder.
 */

#define MEMFD_SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
#define MEMFD_NAME  "thaw-memory:"

static u64 memfd_bytes(const struct snap_mem *mem)
{
	const struct snap_mem_range *last = &mem->ranges[mem->nranges - 1];

	return last->gpa + last->len_bytes;
}

/** The same ranges as @mem, mapped shared and writable from @fd. Return: 0 or -errno. */
static int memfd_map_shared(const struct snap_mem *mem, int fd, struct snap_mem *out)
{
	*out = *mem;
	for (unsigned int i = 0; i < out->nranges; i++)
		out->ranges[i].hva = NULL;
	for (unsigned int i = 0; i < out->nranges; i++) {
		struct snap_mem_range *range = &out->ranges[i];
		void *hva = mmap(NULL, range->len_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
				 (off_t)range->gpa);

		if (hva == MAP_FAILED)
			return -errno;
		range->hva = hva;
		if (mem->huge && madvise(hva, range->len_bytes, MADV_HUGEPAGE) < 0)
			return -errno;
	}
	return 0;
}

static int memfd_fill(struct snap_mem *mem, int fd)
{
	struct snap_mem shared;
	int ret;

	ret = memfd_map_shared(mem, fd, &shared);
	if (ret)
		log_err("mapping the memfd: %s", strerror(-ret));
	else
		ret = snap_mem_read(&shared);
	snap_mem_unmap(&shared);
	mem->bytes_read = shared.bytes_read;
	mem->plain_io = shared.plain_io;
	return ret;
}

int snap_memfd_make(struct snap_mem *mem)
{
	char name[128];
	int fd, ret;

	snprintf(name, sizeof(name), MEMFD_NAME "%s", mem->id ? mem->id : "");
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, (off_t)memfd_bytes(mem)) < 0) {
		ret = -errno;
		log_err("memfd of %llu bytes: %s", (unsigned long long)memfd_bytes(mem),
			strerror(-ret));
		goto fail;
	}
	ret = memfd_fill(mem, fd);
	if (ret)
		goto fail;
	if (fcntl(fd, F_ADD_SEALS, MEMFD_SEALS) < 0) {
		ret = -errno;
		log_err("sealing the memfd: %s", strerror(-ret));
		goto fail;
	}
	return fd;
fail:
	fd_close(&fd);
	return ret;
}

/** Is @fd what snap_memfd_make() made for this snapshot? Return: 0 or -EINVAL (logged). */
static int memfd_check(const struct snap_mem *mem, int fd)
{
	char link[64], text[256], want[160];
	const char *wrong = NULL;
	struct stat st;
	ssize_t len;
	int seals = fcntl(fd, F_GET_SEALS);

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	snprintf(want, sizeof(want), "/memfd:" MEMFD_NAME "%s (deleted)", mem->id ? mem->id : "");
	len = readlink(link, text, sizeof(text) - 1);
	text[MAX(len, 0)] = '\0';
	if (seals < 0 || fstat(fd, &st) < 0)
		wrong = "is not a memfd";
	else if ((seals & MEMFD_SEALS) != MEMFD_SEALS)
		wrong = "is not sealed";
	else if ((u64)st.st_size != memfd_bytes(mem))
		wrong = "has another size than the snapshot's memory";
	else if (strcmp(text, want) != 0)
		wrong = "was made of another snapshot";
	if (!wrong)
		return 0;
	log_err("memory descriptor %d %s", fd, wrong);
	return -EINVAL;
}

static int memfd_map(struct snap_mem *mem)
{
	int fd, ret;

	if (mem->memory_fd) {
		ret = memfd_check(mem, mem->memory_fd);
		return ret ? ret : snap_mem_map(mem, mem->memory_fd);
	}
	fd = snap_memfd_make(mem);
	if (fd < 0)
		return fd;
	ret = snap_mem_map(mem, fd);
	fd_close(&fd); /* the mappings keep it */
	return ret;
}

const struct snap_mem_ops snap_mem_memfd = {
	.name = "memfd",
	.summary =
		"private mapping of a sealed memfd with the whole memory, which clones can share",
	.map = memfd_map,
	.huge = SNAP_HUGE_SHMEM,
	.takes_memory_fd = true,
};
