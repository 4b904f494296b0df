// SPDX-License-Identifier: Apache-2.0
// A pack as a stream of bytes: two halves of a buffer, one in use and one in transfer.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/snapshot/pack_io.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define HALF_BYTES (4 * MIB)

/** start_read() - the half that is not in use gets what follows in the file. */
static int start_read(struct pack_stream *stream)
{
	u8 *half = stream->halves[!stream->half];

	stream->next_bytes = MIN(HALF_BYTES, stream->file_bytes - stream->offset_bytes);
	stream->bulk = bulk_new(&stream->ring, RING_READ);
	if (!stream->bulk)
		return -ENOMEM;
	stream->offset_bytes += stream->next_bytes;
	return bulk_add(stream->bulk, half, stream->offset_bytes - stream->next_bytes,
			stream->next_bytes);
}

static int end_transfer(struct pack_stream *stream)
{
	struct bulk *bulk = stream->bulk;

	stream->bulk = NULL;
	return bulk ? bulk_end(bulk) : 0;
}

int pack_stream_open(struct pack_stream *stream, int fd, bool plain, enum ring_op op)
{
	struct stat st;
	int ret = 0;

	*stream = (struct pack_stream){.fd = fd, .plain = plain};
	stream->xxh = XXH3_createState();
	if (!stream->xxh)
		return -ENOMEM;
	XXH3_128bits_reset(stream->xxh);
	if (plain)
		return 0;
	if (fstat(fd, &st) < 0)
		return -errno;
	stream->file_bytes = (u64)st.st_size;
	for (unsigned int i = 0; i < 2; i++) {
		stream->halves[i] = malloc(HALF_BYTES);
		if (!stream->halves[i])
			return -ENOMEM;
	}
	ret = ring_init(&stream->ring, BULK_DEPTH, &fd, 1, RING_RESTRICT);
	if (ret)
		return ret;
	stream->ring_ready = true;
	stream->plain_io = stream->ring.plain;
	return op == RING_READ ? start_read(stream) : 0;
}

void pack_stream_close(struct pack_stream *stream)
{
	/* The kernel may still read or write the halves. */
	int ret = end_transfer(stream);

	if (ret)
		log_debug("pack: transfer given up: %s", strerror(-ret));
	if (stream->ring_ready && !stream->ring.inflight) {
		ring_destroy(&stream->ring);
		stream->ring_ready = false;
	}
	/* A ring that failed with requests owed keeps its memory, until the process ends. */
	for (unsigned int i = 0; i < 2 && !stream->ring_ready; i++)
		free(stream->halves[i]);
	XXH3_freeState(stream->xxh);
	stream->xxh = NULL;
}

/** swap_written() - the half in use goes on its way, once the other one has arrived. */
static int swap_written(struct pack_stream *stream)
{
	int ret = end_transfer(stream);

	if (ret || !stream->used_bytes)
		return ret;
	stream->bulk = bulk_new(&stream->ring, RING_WRITE);
	if (!stream->bulk)
		return -ENOMEM;
	ret = bulk_add(stream->bulk, stream->halves[stream->half], stream->offset_bytes,
		       stream->used_bytes);
	stream->offset_bytes += stream->used_bytes;
	stream->half = !stream->half;
	stream->used_bytes = 0;
	return ret;
}

int pack_stream_write(struct pack_stream *stream, const void *buf, size_t len_bytes)
{
	const u8 *from = buf;
	int ret;

	XXH3_128bits_update(stream->xxh, buf, len_bytes);
	stream->pos_bytes += len_bytes;
	if (stream->plain)
		return fd_write_full(stream->fd, buf, len_bytes);
	while (len_bytes) {
		size_t part_bytes = MIN(len_bytes, HALF_BYTES - stream->used_bytes);

		memcpy(stream->halves[stream->half] + stream->used_bytes, from, part_bytes);
		stream->used_bytes += part_bytes;
		from += part_bytes;
		len_bytes -= part_bytes;
		if (stream->used_bytes < HALF_BYTES)
			continue;
		ret = swap_written(stream);
		if (ret)
			return ret;
	}
	return 0;
}

int pack_stream_flush(struct pack_stream *stream)
{
	int ret = stream->plain ? 0 : swap_written(stream);

	return ret ? ret : end_transfer(stream);
}

/** swap_read() - go on with the half that was read ahead. Return: 0, -ENODATA or -errno. */
static int swap_read(struct pack_stream *stream)
{
	int ret = end_transfer(stream);

	if (ret)
		return ret;
	if (!stream->next_bytes)
		return -ENODATA;
	stream->half = !stream->half;
	stream->used_bytes = 0;
	stream->filled_bytes = stream->next_bytes;
	return start_read(stream);
}

int pack_stream_read(struct pack_stream *stream, void *buf, size_t len_bytes)
{
	const size_t all_bytes = len_bytes;
	u8 *to = buf;
	int ret;

	if (stream->plain) {
		ret = fd_read_full(stream->fd, buf, len_bytes);
		if (ret)
			return ret;
		len_bytes = 0;
	}
	while (len_bytes) {
		size_t part_bytes = MIN(len_bytes, stream->filled_bytes - stream->used_bytes);

		memcpy(to, stream->halves[stream->half] + stream->used_bytes, part_bytes);
		stream->used_bytes += part_bytes;
		to += part_bytes;
		len_bytes -= part_bytes;
		if (!len_bytes)
			break;
		ret = swap_read(stream);
		if (ret)
			return ret;
	}
	XXH3_128bits_update(stream->xxh, buf, all_bytes);
	stream->pos_bytes += all_bytes;
	return 0;
}

void pack_stream_digest(const struct pack_stream *stream, u8 out[SNAP_DIGEST_BYTES])
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(stream->xxh));
	memcpy(out, canonical.digest, SNAP_DIGEST_BYTES);
}
