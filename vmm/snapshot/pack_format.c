// SPDX-License-Identifier: Apache-2.0
// Packs: the checks of their records. Pure: buffers in, verdicts out; fuzzed.
#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/pack_check.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * Trust. Sizes in a pack are bounded twice: by what any snapshot may have (here), and by what this
 * one's manifest and state say (pack_read.c). The sum of what a part's frames hold is bounded by
 * the header, which is known before anything is written: a small pack can't make a reader write
 * more than it announced. Frames of a part ascend, so nothing is written twice but a page that is
 * both in a hot frame and in another one, and then the part's own digest decides.
 *
 * A frame's digest is of its compressed bytes: the decompressor never sees a flipped one. The
 * digests of the parts are of their content, and are checked at the end.
 */

_Static_assert(sizeof(struct pack_record) == 8, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct pack_header) == 152, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct pack_run) == 16, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct pack_frame) == 48, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct pack_entry) == 48, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct pack_table) == 32, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct pack_end) == 56, "ABI: snapshots/FORMAT.md");

static const u64 size_max_bytes[PACK_PARTS] = {
	[PACK_MANIFEST] = SNAP_MANIFEST_MAX_BYTES,
	[PACK_STATE] = SNAP_STATE_MAX_BYTES,
	[PACK_HOT] =
		sizeof(struct snap_hot_header) + SNAP_HOT_RUNS_MAX * sizeof(struct snap_hot_run),
	[PACK_MEMORY] = 65 * GIB,
	[PACK_DISK] = 16 * 1024 * GIB,
	[PACK_ROOT] = 1024 * GIB,
};

/** digest_skip() - XXH3-128 of @buf with the 16 bytes at @skip zero. */
static void digest_skip(const void *buf, size_t len_bytes, size_t skip, u8 out[SNAP_DIGEST_BYTES])
{
	static const u8 zeros[SNAP_DIGEST_BYTES];
	XXH3_state_t *xxh = XXH3_createState();
	XXH128_canonical_t canonical;

	/* 576 bytes, and no caller can go on without. */
	BUG_ON(!xxh);
	XXH3_128bits_reset(xxh);
	XXH3_128bits_update(xxh, buf, skip);
	XXH3_128bits_update(xxh, zeros, sizeof(zeros));
	XXH3_128bits_update(xxh, (const u8 *)buf + skip + sizeof(zeros),
			    len_bytes - skip - sizeof(zeros));
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(xxh));
	memcpy(out, canonical.digest, SNAP_DIGEST_BYTES);
	XXH3_freeState(xxh);
}

static bool digest_ok(const void *buf, size_t len_bytes, size_t skip)
{
	u8 digest[SNAP_DIGEST_BYTES];

	digest_skip(buf, len_bytes, skip, digest);
	return !memcmp(digest, (const u8 *)buf + skip, sizeof(digest));
}

static bool record_ok(const struct pack_record *record, u64 len_bytes)
{
	return record->skippable == PACK_SKIPPABLE &&
	       record->payload_bytes == len_bytes - sizeof(*record);
}

static void record_fill(struct pack_record *record, u64 len_bytes)
{
	*record = (struct pack_record){.skippable = PACK_SKIPPABLE,
				       .payload_bytes = (u32)(len_bytes - sizeof(*record))};
}

void pack_header_seal(struct pack_header *header)
{
	record_fill(&header->record, sizeof(*header));
	header->magic = PACK_MAGIC;
	header->version = PACK_VERSION;
	digest_skip(header, sizeof(*header), offsetof(struct pack_header, digest), header->digest);
}

int pack_header_check(const struct pack_header *header, const char **why)
{
	*why = "not a pack";
	if (header->record.skippable != PACK_SKIPPABLE || header->magic != PACK_MAGIC)
		return -EINVAL;
	/* Before the rest, since another version may have another header. */
	*why = "unknown format version; export it again with this thaw";
	if (header->version != PACK_VERSION)
		return -EPROTONOSUPPORT;
	*why = "header: digest mismatch: the pack was changed or is damaged";
	if (!record_ok(&header->record, sizeof(*header)) ||
	    !digest_ok(header, sizeof(*header), offsetof(struct pack_header, digest)))
		return -EBADMSG;
	*why = "header: malformed";
	if (header->reserved)
		return -EINVAL;
	for (u32 part = 0; part < PACK_PARTS; part++) {
		const struct pack_size *size = &header->parts[part];

		*why = "header: a size is out of range";
		if (size->size_bytes > size_max_bytes[part] || size->data_bytes > size->size_bytes)
			return -EINVAL;
		*why = "header: a part is missing";
		if (part != PACK_HOT && part != PACK_DISK && part != PACK_ROOT && !size->size_bytes)
			return -EINVAL;
		*why = "header: a part is not whole pages";
		if ((part == PACK_MEMORY || part == PACK_DISK) &&
		    size->size_bytes % PAGE_SIZE_BYTES)
			return -EINVAL;
	}
	return 0;
}

int pack_frame_size(const struct pack_frame *frame, size_t *len_bytes, const char **why)
{
	u64 head_bytes = sizeof(*frame) + (u64)frame->nruns * sizeof(struct pack_run);

	*why = "frame: malformed";
	if (frame->kind != PACK_RECORD_FRAME || frame->part >= PACK_PARTS || !frame->nruns ||
	    frame->nruns > PACK_RUNS_MAX || !frame->raw_bytes ||
	    frame->raw_bytes > PACK_FRAME_BYTES || !frame->packed_bytes ||
	    frame->packed_bytes > PACK_ZSTD_MAX || !record_ok(&frame->record, head_bytes))
		return -EINVAL;
	*len_bytes = head_bytes + frame->packed_bytes;
	return 0;
}

/** check_runs() - inside the part, ascending, as long as the frame says. */
static bool runs_ok(const struct pack_frame *frame, u64 size_bytes)
{
	const struct pack_run *runs = pack_frame_runs(frame);
	u64 end_bytes = 0, sum_bytes = 0;

	for (u32 i = 0; i < frame->nruns; i++) {
		const struct pack_run *run = &runs[i];

		if (run->offset_bytes % PAGE_SIZE_BYTES || run->offset_bytes < end_bytes ||
		    !run->len_bytes || !u64_add_ok(run->offset_bytes, run->len_bytes, &end_bytes) ||
		    end_bytes > size_bytes ||
		    (run->len_bytes % PAGE_SIZE_BYTES && end_bytes != size_bytes))
			return false;
		sum_bytes += run->len_bytes;
	}
	return sum_bytes == frame->raw_bytes;
}

static u32 frame_rank(const struct pack_frame *frame)
{
	return frame->part * 2 + !(frame->flags & PACK_FRAME_HOT);
}

static const char *check_order(const struct pack_frame *frame, const struct pack_header *header,
			       struct pack_order *order)
{
	const struct pack_run *runs = pack_frame_runs(frame);
	const struct pack_run *last = &runs[frame->nruns - 1];
	u32 rank = frame_rank(frame);

	if (rank < order->rank || (rank == order->rank && runs[0].offset_bytes < order->end_bytes))
		return "frame: out of order";
	order->data_bytes[frame->part] += frame->raw_bytes;
	if (order->data_bytes[frame->part] > header->parts[frame->part].data_bytes)
		return "frame: more data than the header announced";
	order->rank = rank;
	order->end_bytes = last->offset_bytes + last->len_bytes;
	return NULL;
}

int pack_frame_check(const struct pack_frame *frame, const struct pack_header *header,
		     struct pack_order *order, const char **why)
{
	size_t len_bytes;
	int ret;

	ret = pack_frame_size(frame, &len_bytes, why);
	if (ret)
		return ret;
	*why = "frame: digest mismatch: the pack was changed or is damaged";
	if (!digest_ok(frame, len_bytes, offsetof(struct pack_frame, digest)))
		return -EBADMSG;
	*why = "frame: malformed";
	if ((frame->flags & ~PACK_FRAME_HOT) || (frame->flags && frame->part != PACK_MEMORY))
		return -EINVAL;
	*why = "frame: a run lies outside of its part, or out of order";
	if (!runs_ok(frame, header->parts[frame->part].size_bytes))
		return -EINVAL;
	*why = order ? check_order(frame, header, order) : NULL;
	return *why ? -EINVAL : 0;
}

void pack_frame_seal(struct pack_frame *frame)
{
	size_t head_bytes = sizeof(*frame) + frame->nruns * sizeof(struct pack_run);

	record_fill(&frame->record, head_bytes);
	frame->kind = PACK_RECORD_FRAME;
	digest_skip(frame, head_bytes + frame->packed_bytes, offsetof(struct pack_frame, digest),
		    frame->digest);
}

void pack_frame_entry(const struct pack_frame *frame, u64 offset_bytes, struct pack_entry *out)
{
	*out = (struct pack_entry){.offset_bytes = offset_bytes,
				   .part = frame->part,
				   .flags = frame->flags,
				   .nruns = frame->nruns,
				   .raw_bytes = frame->raw_bytes,
				   .packed_bytes = frame->packed_bytes};
	memcpy(out->digest, frame->digest, sizeof(out->digest));
}

void pack_table_seal(struct pack_table *table, u32 nframes)
{
	record_fill(&table->record, pack_table_bytes(nframes));
	table->kind = PACK_RECORD_TABLE;
	table->nframes = nframes;
	digest_skip(table, pack_table_bytes(nframes), offsetof(struct pack_table, digest),
		    table->digest);
}

int pack_table_check(const struct pack_table *table, size_t len_bytes, u64 end_bytes,
		     const char **why)
{
	const struct pack_entry *entries = (const struct pack_entry *)(table + 1);
	u64 offset_bytes = sizeof(struct pack_header);

	*why = "table: malformed";
	if (len_bytes < sizeof(*table) || table->kind != PACK_RECORD_TABLE ||
	    table->nframes > PACK_FRAMES_MAX || len_bytes != pack_table_bytes(table->nframes) ||
	    !record_ok(&table->record, len_bytes))
		return -EINVAL;
	*why = "table: digest mismatch: the pack was changed or is damaged";
	if (!digest_ok(table, len_bytes, offsetof(struct pack_table, digest)))
		return -EBADMSG;
	*why = "table: malformed";
	for (u32 i = 0; i < table->nframes; i++) {
		const struct pack_entry *entry = &entries[i];

		if (entry->offset_bytes != offset_bytes || entry->part >= PACK_PARTS ||
		    entry->nruns > PACK_RUNS_MAX || entry->raw_bytes > PACK_FRAME_BYTES ||
		    entry->packed_bytes > PACK_ZSTD_MAX || entry->reserved)
			return -EINVAL;
		/* At most a million times 2 MiB: no overflow. */
		offset_bytes += sizeof(struct pack_frame) + entry->nruns * sizeof(struct pack_run) +
				entry->packed_bytes;
	}
	return offset_bytes == end_bytes ? 0 : -EINVAL;
}

int pack_end_check(const struct pack_end *end, u32 nframes, u64 table_offset_bytes,
		   const char **why)
{
	*why = "end: malformed";
	if (!record_ok(&end->record, sizeof(*end)) || end->kind != PACK_RECORD_END ||
	    end->magic != PACK_END_MAGIC || end->nframes != nframes ||
	    end->table_offset_bytes != table_offset_bytes ||
	    end->pack_bytes != table_offset_bytes + pack_table_bytes(nframes) + sizeof(*end))
		return -EINVAL;
	return 0;
}
