// SPDX-License-Identifier: Apache-2.0
// Fuzz target: a pack, record by record. Oracles: sanitizers, that what is accepted keeps its
// promises, and that content packed again comes out the same.
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/pack_check.h"
#include "vmm/util/log.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes);

struct walk {
	const u8 *data;
	size_t len_bytes, pos;
	bool seal; /* make digests right: no mutation finds one, and most code is behind them */
	struct pack_header header;
	struct pack_order order;
	u32 nframes;
};

static u8 raw[PACK_FRAME_BYTES], again_raw[PACK_FRAME_BYTES];
static struct pack_codec *codec;

/** check_content() - what was unpacked is packed again, and unpacked, and the same. */
static void check_content(const struct pack_frame *frame)
{
	struct pack_frame *again = malloc(PACK_FRAME_MAX_BYTES);
	const char *why;
	size_t again_bytes;

	if (!again)
		return;
	memcpy(again, frame, sizeof(*frame) + frame->nruns * sizeof(struct pack_run));
	/* A reader takes runs that a writer would have joined; there may be too many of those. */
	if (pack_frame_pack(codec, again, raw))
		abort();
	if (again->nruns) {
		if (pack_frame_size(again, &again_bytes, &why) ||
		    pack_frame_unpack(codec, again, again_raw))
			abort();
		BUG_ON(again->raw_bytes > frame->raw_bytes);
		BUG_ON(memcmp(raw, again_raw, again->raw_bytes));
	}
	free(again);
}

static void check_runs(const struct walk *walk, const struct pack_frame *frame)
{
	const struct pack_run *runs = pack_frame_runs(frame);
	u64 sum_bytes = 0, end_bytes = 0;

	for (u32 i = 0; i < frame->nruns; i++) {
		BUG_ON(runs[i].offset_bytes < end_bytes || !runs[i].len_bytes);
		end_bytes = runs[i].offset_bytes + runs[i].len_bytes;
		sum_bytes += runs[i].len_bytes;
	}
	BUG_ON(end_bytes > walk->header.parts[frame->part].size_bytes);
	BUG_ON(sum_bytes != frame->raw_bytes || sum_bytes > PACK_FRAME_BYTES);
	BUG_ON(walk->order.data_bytes[frame->part] > walk->header.parts[frame->part].data_bytes);
}

/** Return: false when the walk ends here. */
static bool take_frame(struct walk *walk)
{
	struct pack_frame head, *frame;
	const char *why = NULL;
	size_t len_bytes;
	bool ok;

	if (walk->len_bytes - walk->pos < sizeof(head))
		return false;
	memcpy(&head, walk->data + walk->pos, sizeof(head));
	if (walk->seal) {
		head.record.skippable = PACK_SKIPPABLE;
		head.record.payload_bytes = (u32)(sizeof(head) - sizeof(head.record) +
						  (u64)head.nruns * sizeof(struct pack_run));
	}
	if (pack_frame_size(&head, &len_bytes, &why) || len_bytes > walk->len_bytes - walk->pos) {
		return false;
	}
	frame = malloc(len_bytes); /* not a byte more, so that a read beyond is found */
	if (!frame)
		return false;
	memcpy(frame, walk->data + walk->pos, len_bytes);
	if (walk->seal)
		pack_frame_seal(frame);
	ok = !pack_frame_check(frame, &walk->header, &walk->order, &why);
	BUG_ON(!ok && !why);
	if (ok) {
		check_runs(walk, frame);
		if (!pack_frame_unpack(codec, frame, raw))
			check_content(frame);
	}
	free(frame);
	walk->pos += len_bytes;
	walk->nframes++;
	return ok;
}

static void take_table(const struct walk *walk)
{
	size_t len_bytes = walk->len_bytes - walk->pos;
	struct pack_table *table = malloc(len_bytes + sizeof(*table));
	const char *why;

	if (!table)
		return;
	memcpy(table, walk->data + walk->pos, len_bytes);
	if (walk->seal && pack_table_bytes(walk->nframes) <= len_bytes) {
		len_bytes = pack_table_bytes(walk->nframes);
		pack_table_seal(table, walk->nframes);
	}
	if (!pack_table_check(table, len_bytes, walk->pos, &why))
		BUG_ON(pack_table_bytes(table->nframes) != len_bytes);
	free(table);
}

static void walk_all(const u8 *data, size_t len_bytes, bool seal)
{
	struct walk walk = {.data = data, .len_bytes = len_bytes, .seal = seal};
	struct pack_end end;
	const char *why = NULL;

	if (len_bytes < sizeof(walk.header))
		return;
	memcpy(&walk.header, data, sizeof(walk.header));
	if (seal)
		pack_header_seal(&walk.header);
	if (pack_header_check(&walk.header, &why)) {
		BUG_ON(!why);
		return;
	}
	walk.pos = sizeof(walk.header);
	while (take_frame(&walk))
		;
	take_table(&walk);
	if (len_bytes - walk.pos < sizeof(end))
		return;
	memcpy(&end, data + len_bytes - sizeof(end), sizeof(end));
	if (!pack_end_check(&end, walk.nframes, walk.pos, &why))
		BUG_ON(end.pack_bytes <= walk.pos);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes)
{
	if (!codec)
		codec = pack_codec_new();
	if (!codec || len_bytes > 4 * MIB)
		return 0;
	walk_all(data, len_bytes, false);
	walk_all(data, len_bytes, true);
	return 0;
}
