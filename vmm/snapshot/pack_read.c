// SPDX-License-Identifier: Apache-2.0
// Import: the stream of a pack, front to back, every byte of it checked.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/pack_in.h"
#include "vmm/util/log.h"

/*
 * The manifest, the state and the hot set come first and are kept in memory, so that what the rest
 * is to become is known, and checked, before a single byte of it is written. Then each frame goes:
 * stream, digest (this thread), decompression (pool), file (this thread), in order.
 *
 * After the last frame comes the table. A reader that has seen all frames does not need it; it must
 * say the same, since another reader would believe it. The end record carries the digest of all
 * bytes before it, and behind it there must be nothing.
 */

static int bad(const struct pack_in *in, int ret, const char *why)
{
	log_err("%s: %s", in->opts->from, why);
	return ret;
}

static int take_bytes(struct pack_in *in, void *buf, size_t len_bytes)
{
	int ret = pack_stream_read(&in->stream, buf, len_bytes);

	if (ret)
		return bad(in, ret, ret == -ENODATA ? "truncated" : strerror(-ret));
	return 0;
}

/** store() - the content of @slot where it belongs. Return: 0 or -errno (logged). */
static int store(struct pack_in *in, const struct pack_slot *slot)
{
	const struct pack_frame *frame = slot->frame;
	const struct pack_run *runs = pack_frame_runs(frame);
	struct pack_target *target = &in->targets[frame->part];
	struct bulk *bulk = NULL;
	int ret = 0, end_ret;
	u8 *from = slot->raw;

	if (frame->part >= PACK_FIRST_FILE && target->fd >= 0) {
		bulk = bulk_new(&target->ring, RING_WRITE);
		ret = bulk ? 0 : -ENOMEM;
	}
	for (u32 i = 0; i < frame->nruns && !ret; i++) {
		if (bulk)
			ret = bulk_add(bulk, from, runs[i].offset_bytes, runs[i].len_bytes);
		else if (frame->part < PACK_FIRST_FILE)
			memcpy(in->small[frame->part] + runs[i].offset_bytes, from,
			       runs[i].len_bytes);
		from += runs[i].len_bytes;
	}
	if (bulk) {
		end_ret = bulk_end(bulk);
		ret = ret ? ret : end_ret;
	}
	if (ret)
		return bad(in, ret, strerror(-ret));
	in->done_bytes += frame->raw_bytes;
	if (in->opts->progress)
		in->opts->progress(in->opts->opaque, in->done_bytes, in->total_bytes);
	return 0;
}

/** finish_oldest() - the frame that was started first is stored. */
static int finish_oldest(struct pack_in *in)
{
	struct pack_slot *slot = pack_pool_oldest(in->pool);
	int ret;

	if (slot->result)
		ret = bad(in, slot->result, "frame: can't be decompressed");
	else
		ret = store(in, slot);
	pack_pool_drop(in->pool);
	return ret;
}

static int finish_all(struct pack_in *in)
{
	int ret = 0;

	while (!ret && pack_pool_oldest(in->pool))
		ret = finish_oldest(in);
	return ret;
}

/** place_once() - before the first frame of a file, or the table. */
static int place_once(struct pack_in *in)
{
	int ret = in->placed ? 0 : finish_all(in);

	if (!ret && !in->placed)
		ret = pack_place(in);
	in->placed = true;
	return ret;
}

static int add_entry(struct pack_in *in, const struct pack_frame *frame, u64 offset_bytes)
{
	u32 n = in->stats->nframes;
	void *grown;

	if (n == PACK_FRAMES_MAX)
		return bad(in, -EFBIG, "too many frames");
	if (!(n & (n - 1))) {
		grown = reallocarray(in->entries, n ? 2 * n : 1, sizeof(*in->entries));
		if (!grown)
			return bad(in, -ENOMEM, strerror(ENOMEM));
		in->entries = grown;
	}
	pack_frame_entry(frame, offset_bytes, &in->entries[n]);
	in->stats->nframes++;
	in->stats->raw_bytes += frame->raw_bytes;
	return 0;
}

/** The first bytes of every record behind the header. */
struct record_start {
	struct pack_record record;
	u32 kind;
};

static int take_frame(struct pack_in *in, const struct record_start *start)
{
	const u64 offset_bytes = in->stream.pos_bytes - sizeof(*start);
	struct pack_frame *frame;
	struct pack_slot *slot;
	size_t len_bytes;
	const char *why;
	int ret;

	while (!(slot = pack_pool_slot(in->pool))) {
		ret = finish_oldest(in);
		if (ret)
			return ret;
	}
	frame = slot->frame;
	memcpy(frame, start, sizeof(*start));
	ret = take_bytes(in, (u8 *)frame + sizeof(*start), sizeof(*frame) - sizeof(*start));
	if (ret)
		return ret;
	ret = pack_frame_size(frame, &len_bytes, &why);
	if (ret)
		return bad(in, ret, why);
	ret = take_bytes(in, frame + 1, len_bytes - sizeof(*frame));
	if (ret)
		return ret;
	ret = pack_frame_check(frame, &in->header, &in->order, &why);
	if (ret)
		return bad(in, ret, why);
	ret = add_entry(in, frame, offset_bytes);
	/* The slot is not started yet, so that waiting for all others does not wait for it. */
	if (!ret && frame->part >= PACK_FIRST_FILE)
		ret = place_once(in);
	if (!ret)
		pack_pool_start(in->pool);
	return ret;
}

static int take_table(struct pack_in *in, const struct record_start *start)
{
	const u64 offset_bytes = in->stream.pos_bytes - sizeof(*start);
	const u32 nframes = in->stats->nframes;
	const size_t len_bytes = pack_table_bytes(nframes);
	struct pack_table *table;
	const char *why;
	int ret;

	ret = finish_all(in);
	if (!ret)
		ret = place_once(in);
	if (ret)
		return ret;
	table = malloc(len_bytes);
	if (!table)
		return bad(in, -ENOMEM, strerror(ENOMEM));
	memcpy(table, start, sizeof(*start));
	ret = take_bytes(in, (u8 *)table + sizeof(*start), len_bytes - sizeof(*start));
	if (ret)
		goto out;
	ret = pack_table_check(table, len_bytes, offset_bytes, &why);
	if (!ret && nframes && memcmp(table + 1, in->entries, nframes * sizeof(*in->entries))) {
		why = "table: does not fit the frames";
		ret = -EINVAL;
	}
	if (ret)
		bad(in, ret, why);
out:
	free(table);
	return ret;
}

static int take_end(struct pack_in *in)
{
	const u64 table_offset_bytes = in->stream.pos_bytes - pack_table_bytes(in->stats->nframes);
	u8 digest[SNAP_DIGEST_BYTES], byte;
	struct pack_end end;
	const char *why;
	int ret;

	ret = take_bytes(in, &end, offsetof(struct pack_end, digest));
	if (ret)
		return ret;
	pack_stream_digest(&in->stream, digest);
	ret = take_bytes(in, end.digest, sizeof(end.digest));
	if (ret)
		return ret;
	ret = pack_end_check(&end, in->stats->nframes, table_offset_bytes, &why);
	if (ret)
		return bad(in, ret, why);
	if (memcmp(digest, end.digest, sizeof(digest)) != 0)
		return bad(in, -EBADMSG, "digest mismatch: the pack was changed or is damaged");
	in->stats->pack_bytes = in->stream.pos_bytes;
	ret = pack_stream_read(&in->stream, &byte, 1);
	if (ret != -ENODATA)
		return bad(in, ret ? ret : -EINVAL,
			   ret ? strerror(-ret) : "something follows the end of the pack");
	return 0;
}

static int take_header(struct pack_in *in)
{
	const char *why;
	int ret;

	ret = take_bytes(in, &in->header, sizeof(in->header));
	if (ret)
		return ret;
	ret = pack_header_check(&in->header, &why);
	if (ret)
		return bad(in, ret, why);
	for (unsigned int part = 0; part < PACK_PARTS; part++) {
		in->total_bytes += in->header.parts[part].data_bytes;
		if (part >= PACK_FIRST_FILE)
			continue;
		/* Bounded by pack_header_check(). A NUL behind it. */
		in->small[part] = calloc(1, in->header.parts[part].size_bytes + 1);
		if (!in->small[part])
			return bad(in, -ENOMEM, strerror(ENOMEM));
	}
	return 0;
}

static int take_all(struct pack_in *in)
{
	struct record_start start;
	int ret;

	ret = take_header(in);
	if (ret)
		return ret;
	for (;;) {
		ret = take_bytes(in, &start, sizeof(start));
		if (ret)
			return ret;
		if (start.record.skippable != PACK_SKIPPABLE)
			return bad(in, -EINVAL, "not a record of a pack");
		if (start.kind == PACK_RECORD_TABLE)
			break;
		if (start.kind != PACK_RECORD_FRAME)
			return bad(in, -EINVAL, "unknown record");
		ret = take_frame(in, &start);
		if (ret)
			return ret;
	}
	ret = take_table(in, &start);
	return ret ? ret : take_end(in);
}

int pack_read(const struct pack_read_opts *opts, struct pack_stats *stats)
{
	struct pack_in *in = calloc(1, sizeof(*in));
	int ret = -ENOMEM;

	*stats = (struct pack_stats){0};
	if (!in) {
		log_err("%s: %s", opts->from, strerror(ENOMEM));
		return ret;
	}
	in->opts = opts;
	in->stats = stats;
	in->root_fd = -1;
	for (unsigned int part = 0; part < PACK_PARTS; part++)
		in->targets[part].fd = -1;
	ret = pack_stream_open(&in->stream, opts->fd, opts->stream, RING_READ);
	if (ret) {
		bad(in, ret, strerror(-ret));
		goto out;
	}
	in->pool = pack_pool_new(opts->threads, true);
	if (!in->pool) {
		ret = -ENOMEM;
		goto out;
	}
	stats->threads = pack_pool_threads(in->pool);
	stats->plain_io = in->stream.plain_io;
	ret = take_all(in);
	if (!ret)
		ret = pack_publish(in);
out:
	pack_pool_free(in->pool);
	pack_unplace(in);
	pack_stream_close(&in->stream);
	for (unsigned int part = 0; part < PACK_FIRST_FILE; part++)
		free(in->small[part]);
	free(in->entries);
	free(in);
	return ret;
}
