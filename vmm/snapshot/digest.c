// SPDX-License-Identifier: Apache-2.0
// Digests of a snapshot's parts, and the walk over a sparse file's data.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "vmm/snapshot/internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define DIGEST_CHUNK_BYTES (256 * KIB)

struct snap_blocks {
	XXH3_state_t *xxh;
};

static void digest_out(XXH128_hash_t hash, u8 out[SNAP_DIGEST_BYTES])
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, hash);
	_Static_assert(sizeof(canonical.digest) == SNAP_DIGEST_BYTES, "XXH3-128 is 16 bytes");
	memcpy(out, canonical.digest, SNAP_DIGEST_BYTES);
}

void snap_digest_buf(const void *buf, size_t len_bytes, u8 out[SNAP_DIGEST_BYTES])
{
	digest_out(XXH3_128bits(buf, len_bytes), out);
}

void snap_digest_state(const void *buf, size_t len_bytes, u8 out[SNAP_DIGEST_BYTES])
{
	const size_t start = offsetof(struct snap_header, digest);
	const size_t end = start + SNAP_DIGEST_BYTES;
	static const u8 zeros[SNAP_DIGEST_BYTES];
	XXH3_state_t *xxh = XXH3_createState();

	BUG_ON(len_bytes < sizeof(struct snap_header));
	/* 576 bytes: a process that can't have them can't go on either, and the result has no error
	 * to report. */
	BUG_ON(!xxh);
	XXH3_128bits_reset(xxh);
	XXH3_128bits_update(xxh, buf, start);
	XXH3_128bits_update(xxh, zeros, sizeof(zeros));
	XXH3_128bits_update(xxh, (const u8 *)buf + end, len_bytes - end);
	digest_out(XXH3_128bits_digest(xxh), out);
	XXH3_freeState(xxh);
}

void snap_digest_hex(const u8 digest[SNAP_DIGEST_BYTES], char out[SNAP_DIGEST_HEX])
{
	static const char digits[] = "0123456789abcdef";

	for (unsigned int i = 0; i < SNAP_DIGEST_BYTES; i++) {
		out[2 * i] = digits[digest[i] >> 4];
		out[2 * i + 1] = digits[digest[i] & 15];
	}
	out[2 * SNAP_DIGEST_BYTES] = '\0';
}

bool snap_page_is_zero(const void *page)
{
	const u64 *words = page;

	/* Eight words a step: the compiler makes vector code of it, and most pages that are not
	 * zero say so in the first step. */
	for (unsigned int i = 0; i < PAGE_SIZE_BYTES / sizeof(*words); i += 8) {
		if (words[i] | words[i + 1] | words[i + 2] | words[i + 3] | words[i + 4] |
		    words[i + 5] | words[i + 6] | words[i + 7])
			return false;
	}
	return true;
}

struct snap_blocks *snap_blocks_new(void)
{
	struct snap_blocks *blocks = malloc(sizeof(*blocks));

	if (!blocks)
		return NULL;
	blocks->xxh = XXH3_createState();
	if (!blocks->xxh) {
		free(blocks);
		return NULL;
	}
	XXH3_128bits_reset(blocks->xxh);
	return blocks;
}

void snap_blocks_add(struct snap_blocks *blocks, u64 offset_bytes, const void *data, u64 len_bytes)
{
	const u8 *block = data;

	BUG_ON((offset_bytes | len_bytes) % PAGE_SIZE_BYTES);
	for (u64 done = 0; done < len_bytes; done += PAGE_SIZE_BYTES) {
		u64 offset = offset_bytes + done;

		if (snap_page_is_zero(block + done))
			continue;
		XXH3_128bits_update(blocks->xxh, &offset, sizeof(offset));
		XXH3_128bits_update(blocks->xxh, block + done, PAGE_SIZE_BYTES);
	}
}

void snap_blocks_end(struct snap_blocks *blocks, u64 file_bytes, u8 out[SNAP_DIGEST_BYTES])
{
	if (out) {
		XXH3_128bits_update(blocks->xxh, &file_bytes, sizeof(file_bytes));
		digest_out(XXH3_128bits_digest(blocks->xxh), out);
	}
	XXH3_freeState(blocks->xxh);
	free(blocks);
}

int snap_extent_next(int fd, u64 file_bytes, u64 pos, u64 *start, u64 *end)
{
	off_t data, hole;

	if (pos >= file_bytes)
		return 0;
	data = lseek(fd, (off_t)pos, SEEK_DATA);
	if (data < 0 && errno == ENXIO)
		return 0;
	if (data < 0)
		return -errno;
	hole = lseek(fd, data, SEEK_HOLE);
	if (hole < 0)
		return -errno;
	*start = MAX(ALIGN_DOWN((u64)data, PAGE_SIZE_BYTES), pos);
	*end = MIN(ALIGN_UP((u64)hole, PAGE_SIZE_BYTES), file_bytes);
	/* Only a file that shrinks under our feet gets here. */
	if (*start >= *end)
		return 0;
	return 1;
}

int snap_digest_sparse(int fd, u64 file_bytes, u8 out[SNAP_DIGEST_BYTES])
{
	struct snap_blocks *blocks = snap_blocks_new();
	u8 *buf = aligned_alloc(PAGE_SIZE_BYTES, DIGEST_CHUNK_BYTES);
	u64 pos = 0, start = 0, end = 0;
	int ret = -ENOMEM;

	if (!blocks || !buf)
		goto out;
	while ((ret = snap_extent_next(fd, file_bytes, pos, &start, &end)) > 0) {
		for (pos = start; pos < end;) {
			u64 len_bytes = MIN(end - pos, DIGEST_CHUNK_BYTES);

			ret = fd_pread_full(fd, buf, len_bytes, pos);
			if (ret)
				goto out;
			snap_blocks_add(blocks, pos, buf, len_bytes);
			pos += len_bytes;
		}
	}
out:
	if (blocks)
		snap_blocks_end(blocks, file_bytes, ret ? NULL : out);
	free(buf);
	return ret;
}

int snap_digest_plain(int fd, u64 file_bytes, u8 out[SNAP_DIGEST_BYTES])
{
	XXH3_state_t *xxh = XXH3_createState();
	u8 *buf = malloc(DIGEST_CHUNK_BYTES);
	int ret = -ENOMEM;

	if (!xxh || !buf)
		goto out;
	XXH3_128bits_reset(xxh);
	for (u64 pos = 0; pos < file_bytes;) {
		u64 len_bytes = MIN(file_bytes - pos, DIGEST_CHUNK_BYTES);

		ret = fd_pread_full(fd, buf, len_bytes, pos);
		if (ret)
			goto out;
		XXH3_128bits_update(xxh, buf, len_bytes);
		pos += len_bytes;
	}
	digest_out(XXH3_128bits_digest(xxh), out);
	ret = 0;
out:
	XXH3_freeState(xxh);
	free(buf);
	return ret;
}
