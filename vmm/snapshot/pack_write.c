// SPDX-License-Identifier: Apache-2.0
// Export: a snapshot as a pack.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/pack_io.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * One thread walks over the parts: it fills a frame with up to 2 MiB of data, hands it to the pool,
 * and goes on with the next one; when no slot is free it writes the oldest. So frames come out in
 * order, whatever order the pool is done in, and a pack of the same snapshot has the same bytes on
 * every machine with the same zstd.
 *
 * What is put into a frame are the file's stretches with data, which may still hold pages of zeros;
 * the pool drops those. The header, which is written first, announces the stretches: an upper
 * bound.
 */

struct pack_out {
	const struct pack_write_opts *opts;
	const struct snap *snap;
	struct pack_stats *stats;
	struct snap_hot hot;
	struct pack_header header;
	struct pack_stream stream;
	struct pack_pool *pool;
	struct pack_entry *entries;
	struct pack_slot *slot; /* being filled, or NULL */
	struct bulk *bulk;	/* what is being read into it */
	u64 done_bytes, total_bytes;
};

/** Where a part's bytes are: in memory, or in the file of @ring. */
struct source {
	enum pack_part part;
	const u8 *buf;
	int fd;
	struct ring ring;
};

/** count_data() - bytes of the stretches with data. */
static int count_data(int fd, u64 file_bytes, u64 *out_bytes)
{
	u64 pos = 0, start, end;
	int ret;

	*out_bytes = 0;
	while ((ret = snap_extent_next(fd, file_bytes, pos, &start, &end)) > 0) {
		*out_bytes += end - start;
		pos = end;
	}
	return ret;
}

static size_t hot_bytes(const struct snap_hot *hot)
{
	return hot->buf ? sizeof(struct snap_hot_header) + hot->nruns * sizeof(*hot->runs) : 0;
}

static int fill_header(struct pack_out *out)
{
	const struct snap *snap = out->snap;
	const struct {
		int fd;
		u64 size_bytes;
	} files[PACK_PARTS] = {
		[PACK_MANIFEST] = {-1, snap->manifest.json_len_bytes},
		[PACK_STATE] = {-1, snap->state_len_bytes},
		[PACK_HOT] = {-1, hot_bytes(&out->hot)},
		[PACK_MEMORY] = {snap->memory_fd, snap->manifest.memory_bytes},
		[PACK_DISK] = {snap->disk_fd,
			       out->opts->memory_only ? 0 : snap->manifest.disk_bytes},
		[PACK_ROOT] = {snap->root_fd, out->opts->root ? snap->manifest.root_bytes : 0},
	};

	for (unsigned int part = 0; part < PACK_PARTS; part++) {
		struct pack_size *size = &out->header.parts[part];
		int ret = 0;

		size->size_bytes = size->data_bytes = files[part].size_bytes;
		if (size->size_bytes && files[part].fd >= 0)
			ret = count_data(files[part].fd, size->size_bytes, &size->data_bytes);
		if (ret)
			return ret;
		out->total_bytes += size->data_bytes;
	}
	memcpy(out->header.state_digest, snap->view.header->digest, SNAP_DIGEST_BYTES);
	pack_header_seal(&out->header);
	return pack_stream_write(&out->stream, &out->header, sizeof(out->header));
}

/** emit() - the oldest frame to the stream. */
static int emit(struct pack_out *out)
{
	struct pack_slot *slot = pack_pool_oldest(out->pool);
	struct pack_frame *frame = slot->frame;
	u32 n = out->stats->nframes;
	const char *why;
	size_t len_bytes;
	int ret = slot->result;

	if (ret || !frame->nruns)
		goto out;
	ret = -EFBIG;
	if (n == PACK_FRAMES_MAX)
		goto out;
	ret = pack_frame_size(frame, &len_bytes, &why);
	BUG_ON(ret);
	if (!(n & (n - 1))) {
		void *grown = reallocarray(out->entries, n ? 2 * n : 1, sizeof(*out->entries));

		ret = -ENOMEM;
		if (!grown)
			goto out;
		out->entries = grown;
	}
	pack_frame_entry(frame, out->stream.pos_bytes, &out->entries[n]);
	out->stats->nframes++;
	out->stats->raw_bytes += frame->raw_bytes;
	ret = pack_stream_write(&out->stream, frame, len_bytes);
out:
	pack_pool_drop(out->pool);
	return ret;
}

static int open_slot(struct pack_out *out, const struct source *source, u32 flags)
{
	int ret;

	while (!(out->slot = pack_pool_slot(out->pool))) {
		ret = emit(out);
		if (ret)
			return ret;
	}
	*out->slot->frame = (struct pack_frame){.part = source->part, .flags = flags};
	return 0;
}

/** close_slot() - the frame being filled goes to the pool, once it is read. */
static int close_slot(struct pack_out *out)
{
	struct bulk *bulk = out->bulk;
	int ret = 0;

	if (!out->slot)
		return 0;
	out->bulk = NULL;
	if (bulk)
		ret = bulk_end(bulk);
	if (ret)
		return ret;
	out->done_bytes += out->slot->frame->raw_bytes;
	out->slot = NULL;
	pack_pool_start(out->pool);
	if (out->opts->progress)
		out->opts->progress(out->opts->opaque, out->done_bytes, out->total_bytes);
	return 0;
}

static int read_some(struct pack_out *out, struct source *source, u8 *to, u64 offset_bytes,
		     u64 len_bytes)
{
	if (source->buf) {
		memcpy(to, source->buf + offset_bytes, len_bytes);
		return 0;
	}
	if (!out->bulk)
		out->bulk = bulk_new(&source->ring, RING_READ);
	return out->bulk ? bulk_add(out->bulk, to, offset_bytes, len_bytes) : -ENOMEM;
}

/** add_stretch() - [@start, @end) of the part, into as many frames as it takes. */
static int add_stretch(struct pack_out *out, struct source *source, u32 flags, u64 start, u64 end)
{
	int ret;

	while (start < end) {
		struct pack_frame *frame;
		u64 len_bytes;

		ret = out->slot ? 0 : open_slot(out, source, flags);
		if (ret)
			return ret;
		frame = out->slot->frame;
		len_bytes = MIN(end - start, PACK_FRAME_BYTES - frame->raw_bytes);
		pack_frame_runs(frame)[frame->nruns++] =
			(struct pack_run){.offset_bytes = start, .len_bytes = len_bytes};
		ret = read_some(out, source, out->slot->raw + frame->raw_bytes, start, len_bytes);
		if (ret)
			return ret;
		frame->raw_bytes += (u32)len_bytes;
		start += len_bytes;
		if (frame->raw_bytes == PACK_FRAME_BYTES)
			ret = close_slot(out);
		if (ret)
			return ret;
	}
	return 0;
}

/** add_range() - the data in [@from, @to) of the part. */
static int add_range(struct pack_out *out, struct source *source, u32 flags, u64 from, u64 to)
{
	u64 start, end;
	int ret = 1;

	if (source->buf)
		return add_stretch(out, source, flags, from, to);
	while (from < to && (ret = snap_extent_next(source->fd, to, from, &start, &end)) > 0) {
		ret = add_stretch(out, source, flags, start, end);
		if (ret)
			return ret;
		from = end;
	}
	return MIN(ret, 0);
}

/** add_hot() - memory's frames that are wanted first. add_cold() - those between them. */
static int add_hot(struct pack_out *out, struct source *source, u64 size_bytes)
{
	int ret = 0;

	for (u32 i = 0; i < out->hot.nruns && !ret; i++) {
		const struct snap_hot_run *run = &out->hot.runs[i];

		/* What is behind RAM are pages of the root image. */
		if (run->gpa < size_bytes)
			ret = add_range(out, source, PACK_FRAME_HOT, run->gpa,
					run->gpa + run->npages * PAGE_SIZE_BYTES);
	}
	return ret ? ret : close_slot(out);
}

static int add_cold(struct pack_out *out, struct source *source, u64 size_bytes)
{
	bool memory = source->part == PACK_MEMORY;
	u64 pos = 0;
	int ret = 0;

	for (u32 i = 0; memory && i < out->hot.nruns && !ret; i++) {
		const struct snap_hot_run *run = &out->hot.runs[i];

		if (run->gpa >= size_bytes)
			break;
		ret = add_range(out, source, 0, pos, run->gpa);
		pos = run->gpa + run->npages * PAGE_SIZE_BYTES;
	}
	if (!ret)
		ret = add_range(out, source, 0, pos, size_bytes);
	return ret ? ret : close_slot(out);
}

static int add_part(struct pack_out *out, enum pack_part part, const void *buf, int fd)
{
	const u64 size_bytes = out->header.parts[part].size_bytes;
	struct source source = {.part = part, .buf = buf, .fd = fd};
	int ret = 0;

	if (!size_bytes)
		return 0;
	if (!buf) {
		ret = ring_init(&source.ring, BULK_DEPTH, &fd, 1, RING_RESTRICT);
		if (ret)
			return ret;
		out->stats->plain_io |= source.ring.plain;
	}
	if (part == PACK_MEMORY)
		ret = add_hot(out, &source, size_bytes);
	if (!ret)
		ret = add_cold(out, &source, size_bytes);
	if (out->bulk && bulk_end(out->bulk) && !ret)
		ret = -EIO;
	out->bulk = NULL;
	if (!buf && !source.ring.inflight)
		ring_destroy(&source.ring);
	return ret;
}

static int add_parts(struct pack_out *out)
{
	const struct snap *snap = out->snap;
	int ret;

	ret = add_part(out, PACK_MANIFEST, snap->manifest.json, -1);
	if (!ret)
		ret = add_part(out, PACK_STATE, snap->state, -1);
	if (!ret)
		ret = add_part(out, PACK_HOT, out->hot.buf, -1);
	if (!ret)
		ret = add_part(out, PACK_MEMORY, NULL, snap->memory_fd);
	if (!ret)
		ret = add_part(out, PACK_DISK, NULL, snap->disk_fd);
	if (!ret)
		ret = add_part(out, PACK_ROOT, NULL, snap->root_fd);
	while (!ret && pack_pool_oldest(out->pool))
		ret = emit(out);
	return ret;
}

/** add_end() - table and end record. */
static int add_end(struct pack_out *out)
{
	const u32 nframes = out->stats->nframes;
	struct pack_end end = {.record = {PACK_SKIPPABLE, sizeof(end) - sizeof(end.record)},
			       .kind = PACK_RECORD_END,
			       .nframes = nframes,
			       .magic = PACK_END_MAGIC,
			       .table_offset_bytes = out->stream.pos_bytes};
	struct pack_table *table = calloc(1, pack_table_bytes(nframes));
	int ret;

	if (!table)
		return -ENOMEM;
	if (nframes)
		memcpy(table + 1, out->entries, nframes * sizeof(*out->entries));
	pack_table_seal(table, nframes);
	ret = pack_stream_write(&out->stream, table, pack_table_bytes(nframes));
	free(table);
	if (ret)
		return ret;
	end.pack_bytes = out->stream.pos_bytes + sizeof(end);
	ret = pack_stream_write(&out->stream, &end, offsetof(struct pack_end, digest));
	if (ret)
		return ret;
	pack_stream_digest(&out->stream, end.digest);
	ret = pack_stream_write(&out->stream, end.digest, sizeof(end.digest));
	return ret ? ret : pack_stream_flush(&out->stream);
}

int pack_write(const struct snap *snap, const struct pack_write_opts *opts,
	       struct pack_stats *stats)
{
	struct pack_out out = {.opts = opts, .snap = snap, .stats = stats};
	int ret;

	*stats = (struct pack_stats){0};
	if (snap->diff) {
		log_err("%s: is a diff, which is no use without its parent; make it whole first: thaw template flatten",
			snap->path);
		return -EINVAL;
	}
	ret = snap_hot_open(snap, &out.hot);
	if (ret)
		return ret;
	ret = pack_stream_open(&out.stream, opts->fd, opts->stream, RING_WRITE);
	if (ret)
		goto out;
	out.pool = pack_pool_new(opts->threads, false);
	ret = -ENOMEM;
	if (!out.pool)
		goto out;
	stats->threads = pack_pool_threads(out.pool);
	stats->plain_io = out.stream.plain_io;
	ret = fill_header(&out);
	if (!ret)
		ret = add_parts(&out);
	if (!ret)
		ret = add_end(&out);
	stats->pack_bytes = out.stream.pos_bytes;
out:
	if (ret)
		log_err("%s: export of %s: %s", opts->to, snap->path,
			ret == -ENODATA ? "a file of the template was cut short" : strerror(-ret));
	pack_pool_free(out.pool);
	pack_stream_close(&out.stream);
	free(out.entries);
	snap_hot_close(&out.hot);
	return ret;
}
