// SPDX-License-Identifier: Apache-2.0
// Reading the whole memory file through registered buffers, for strategy "uring" (mem_uring.c).
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"

#define URING_BUFS_MAX	   16384u /* of one ring: io_uring_register(2) */
#define URING_BUF_BYTES	   GIB	  /* of one buffer */
#define URING_BOUNCE_BYTES (64 * KIB)

struct uring_bufs {
	struct iovec iovs[URING_BUFS_MAX];
	u64 offsets[URING_BUFS_MAX]; /* in the file */
	unsigned int count;
};

/** The data of @range, less its holes below @gap_bytes. Return: 0, -E2BIG, or -errno. */
static int list_range(const struct snap_mem *mem, const struct snap_mem_range *range, u64 gap_bytes,
		      struct uring_bufs *bufs)
{
	const u64 end_gpa = range->gpa + range->len_bytes;
	u64 pos = range->gpa, start, end;
	unsigned int first = bufs->count;
	int ret;

	while ((ret = snap_extent_next(mem->fd, end_gpa, pos, &start, &end)) > 0) {
		for (pos = start; pos < end;) {
			struct iovec *last = bufs->count ? &bufs->iovs[bufs->count - 1] : NULL;
			u64 len_bytes = MIN(end - pos, URING_BUF_BYTES);
			u8 *hva = (u8 *)range->hva + (pos - range->gpa);

			if (bufs->count > first &&
			    (u64)(hva - (u8 *)last->iov_base) - last->iov_len < gap_bytes &&
			    (u64)(hva - (u8 *)last->iov_base) + len_bytes <= URING_BUF_BYTES) {
				last->iov_len = (size_t)(hva - (u8 *)last->iov_base) + len_bytes;
			} else {
				if (bufs->count == URING_BUFS_MAX)
					return -E2BIG;
				bufs->iovs[bufs->count].iov_base = hva;
				bufs->iovs[bufs->count].iov_len = len_bytes;
				bufs->offsets[bufs->count++] = pos;
			}
			pos += len_bytes;
		}
	}
	return ret;
}

static int list_data(const struct snap_mem *mem, struct uring_bufs *bufs)
{
	int ret = -E2BIG;

	/* Small holes are read along when the file has too many stretches. */
	for (u64 gap_bytes = 0; ret == -E2BIG; gap_bytes = gap_bytes * 2 + PAGE_SIZE_BYTES) {
		bufs->count = 0;
		ret = 0;
		for (unsigned int i = 0; !ret && i < mem->nranges; i++)
			ret = list_range(mem, &mem->ranges[i], gap_bytes, bufs);
	}
	return ret;
}

/** A ring over @fd whose buffers are those of @bufs or, if they can't be, @bounce. Return: 0 or
 * -errno (logged). */
static int open_ring(struct snap_mem *mem, struct ring *ring, int fd, const struct uring_bufs *bufs,
		     void **bounce)
{
	struct iovec iovs[BULK_DEPTH];
	int ret;

	ret = ring_init_fixed(ring, BULK_DEPTH, &fd, 1, RING_RESTRICT, bufs->iovs, bufs->count);
	if (ret == -ENOMEM || ret == -EPERM) {
		*bounce = mmap(NULL, BULK_DEPTH * URING_BOUNCE_BYTES, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (*bounce == MAP_FAILED) {
			*bounce = NULL;
			return -errno;
		}
		for (unsigned int i = 0; i < BULK_DEPTH; i++)
			iovs[i] = (struct iovec){.iov_base = (u8 *)*bounce + i * URING_BOUNCE_BYTES,
						 .iov_len = URING_BOUNCE_BYTES};
		mem->note = "bounce";
		ret = ring_init_fixed(ring, BULK_DEPTH, &fd, 1, RING_RESTRICT, iovs, BULK_DEPTH);
	}
	if (ret)
		log_err("io_uring with registered buffers: %s", strerror(-ret));
	return ret;
}

static int read_bufs(struct snap_mem *mem, int fd, const struct uring_bufs *bufs)
{
	void *bounce = NULL;
	struct bulk *bulk;
	struct ring ring;
	int ret, end_ret;

	ret = open_ring(mem, &ring, fd, bufs, &bounce);
	if (ret)
		goto out;
	bulk = bulk_new_fixed(&ring, bounce, bounce ? URING_BOUNCE_BYTES : BULK_MAX_BYTES);
	ret = bulk ? 0 : -ENOMEM;
	for (unsigned int i = 0; !ret && i < bufs->count; i++) {
		ret = bulk_add_fixed(bulk, bufs->iovs[i].iov_base, bufs->offsets[i],
				     bufs->iovs[i].iov_len, i);
		mem->bytes_read += bufs->iovs[i].iov_len;
	}
	end_ret = bulk ? bulk_end(bulk) : 0;
	ret = ret ? ret : end_ret;
	/* A ring that failed with requests owed is left to the end of the process, which follows,
	 * and the memory that the kernel may still write to with it. */
	if (ring.inflight)
		return ret;
	ring_destroy(&ring);
out:
	if (bounce)
		munmap(bounce, BULK_DEPTH * URING_BOUNCE_BYTES);
	return ret;
}

int snap_mem_read_fixed(struct snap_mem *mem, int fd)
{
	struct uring_bufs *bufs = malloc(sizeof(*bufs));
	int ret;

	if (!bufs)
		return -ENOMEM;
	ret = list_data(mem, bufs);
	if (!ret && bufs->count)
		ret = read_bufs(mem, fd, bufs);
	free(bufs);
	return ret;
}
