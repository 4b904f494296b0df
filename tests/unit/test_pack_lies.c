// SPDX-License-Identifier: Apache-2.0
// Packs that lie, with every digest right.
#include "tests/unit/pack_rig.h"

/** refused() - a pack of these pieces, its digests all right, is not imported, because of @why. */
static void refused(const struct pieces *pieces, const char *why)
{
	u8 *pack;
	size_t len_bytes = pieces_join(pieces, &pack);

	CHECK(import_buf(pack, len_bytes) < 0);
	CHECK_LOGGED(&capture, why);
	check_nothing_left();
	free(pack);
}

/** refill() - other content for @frame. */
static void refill(struct pack_frame *frame, u8 *raw, u32 raw_bytes, u64 offset_bytes)
{
	struct pack_codec *codec = pack_codec_new();

	CHECK(codec);
	frame->nruns = 1;
	frame->raw_bytes = raw_bytes;
	*pack_frame_runs(frame) =
		(struct pack_run){.offset_bytes = offset_bytes, .len_bytes = raw_bytes};
	CHECK_EQ(pack_frame_pack(codec, frame, raw), 0);
	pack_codec_free(codec);
}

static void lie_header(struct pieces *pieces, u64 *field, u64 value, const char *why)
{
	const u64 old = *field;

	*field = value;
	pack_header_seal(&pieces->header);
	refused(pieces, why);
	*field = old;
	pack_header_seal(&pieces->header);
}

static void test_lies_of_the_header(void)
{
	struct pieces pieces;
	struct pack_size *sizes = pieces.header.parts;
	size_t len_bytes;
	u8 *pack;

	begin();
	len_bytes = export_buf(&pack, 1, true);
	pieces_take(&pieces, pack);
	lie_header(&pieces, &sizes[PACK_MANIFEST].size_bytes, 1 * MIB, "out of range");
	lie_header(&pieces, &sizes[PACK_MEMORY].size_bytes, UINT64_MAX - 4095, "out of range");
	lie_header(&pieces, &sizes[PACK_DISK].size_bytes, 17ull << 40, "out of range");
	lie_header(&pieces, &sizes[PACK_MEMORY].size_bytes, 256 * MIB,
		   "not the one in the manifest");
	lie_header(&pieces, &sizes[PACK_DISK].size_bytes, 1ull << 40,
		   "not the one in the manifest");
	lie_header(&pieces, &sizes[PACK_ROOT].size_bytes, 1ull << 20,
		   "not the one in the manifest");
	lie_header(&pieces, &sizes[PACK_MEMORY].size_bytes, PACK_RAM_BYTES + 1, "whole pages");
	lie_header(&pieces, &sizes[PACK_STATE].size_bytes, 0, "out of range");
	lie_header(&pieces, &sizes[PACK_MEMORY].data_bytes, 4096, "more data than");
	((struct pack_header *)pack)->version = 2;
	CHECK_EQ(import_buf(pack, len_bytes), -EPROTONOSUPPORT);
	CHECK_LOGGED(&capture, "unknown format version");
	pieces_free(&pieces);
	free(pack);
	end();
}

static void test_lies_of_frames(void)
{
	static u8 raw[PACK_FRAME_BYTES];
	struct pack_frame *frame;
	struct pieces pieces;
	u32 packed_bytes;
	u8 *pack;

	begin();
	export_buf(&pack, 1, true);
	pieces_take(&pieces, pack);
	frame = pieces.frames[4]; /* memory, not hot */
	CHECK_EQ(frame->part, PACK_MEMORY);

	memset(raw, 7, sizeof(raw));
	refill(frame, raw, 8192, 0);
	refused(&pieces, "memory: digest mismatch");
	refill(frame, raw, 8192, PACK_RAM_BYTES - 4096);
	refused(&pieces, "outside of its part");
	refill(frame, raw, 4096, UINT64_MAX - 4095);
	refused(&pieces, "outside of its part");
	refill(frame, raw, 4000, 0);
	refused(&pieces, "outside of its part");
	refill(frame, raw, 4096, 100);
	refused(&pieces, "outside of its part");

	/* Content that is longer or shorter than it says. */
	refill(frame, raw, 2 * MIB, 0);
	frame->raw_bytes = 4096;
	pack_frame_runs(frame)->len_bytes = 4096;
	pack_frame_seal(frame);
	refused(&pieces, "can't be decompressed");
	refill(frame, raw, 4096, 0);
	frame->raw_bytes = 8192;
	pack_frame_runs(frame)->len_bytes = 8192;
	pack_frame_seal(frame);
	refused(&pieces, "can't be decompressed");
	/* Two zstd frames in one. */
	refill(frame, raw, 4096, 0);
	packed_bytes = frame->packed_bytes;
	memcpy(pack_frame_content(frame) + packed_bytes, pack_frame_content(frame), packed_bytes);
	frame->packed_bytes *= 2;
	frame->raw_bytes *= 2;
	pack_frame_runs(frame)->len_bytes *= 2;
	pack_frame_seal(frame);
	refused(&pieces, "can't be decompressed");
	/* No zstd at all. */
	refill(frame, raw, 4096, 0);
	memset(pack_frame_content(frame), 0x55, frame->packed_bytes);
	pack_frame_seal(frame);
	refused(&pieces, "can't be decompressed");

	refill(frame, raw, 4096, 0);
	frame->flags = 2;
	pack_frame_seal(frame);
	refused(&pieces, "malformed");
	frame->flags = 0;
	frame->part = PACK_STATE;
	pack_frame_seal(frame);
	refused(&pieces, "out of order");
	pieces_free(&pieces);
	free(pack);
	end();
}

static void swap_frames(struct pieces *pieces, u32 a, u32 b)
{
	struct pack_frame *frame = pieces->frames[a];

	pieces->frames[a] = pieces->frames[b];
	pieces->frames[b] = frame;
}

static void test_lies_of_the_whole(void)
{
	struct pack_frame *last;
	struct pieces pieces;
	struct pack_end end_record;
	size_t len_bytes;
	u8 *pack;

	begin();
	len_bytes = export_buf(&pack, 1, true);
	pieces_take(&pieces, pack);
	swap_frames(&pieces, 3, 4);
	refused(&pieces, "out of order");
	swap_frames(&pieces, 3, 4);
	last = pieces.frames[--pieces.nframes];
	swap_frames(&pieces, 0, 1);
	refused(&pieces, "out of order");
	swap_frames(&pieces, 0, 1);
	/* A root image that never comes is not missed, where the machine has it; a page of the disk
	 * is. */
	free(last);
	last = pieces.frames[--pieces.nframes];
	CHECK_EQ(last->part, PACK_DISK);
	refused(&pieces, "disk: digest mismatch");
	/* No state. */
	pieces.frames[pieces.nframes++] = last;
	free(pieces.frames[1]);
	memmove(&pieces.frames[1], &pieces.frames[2], --pieces.nframes * sizeof(last));
	refused(&pieces, "state: ");
	pieces_free(&pieces);

	/* The table's own lies, and the end's, with all digests behind them made right again. */
	pack[len_bytes - sizeof(end_record) - 1] ^= 1;
	snap_digest_buf(pack, len_bytes - 16, pack + len_bytes - 16);
	CHECK_EQ(import_buf(pack, len_bytes), -EBADMSG);
	CHECK_LOGGED(&capture, "table: digest mismatch");
	pack[len_bytes - sizeof(end_record) - 1] ^= 1;
	memcpy(&end_record, pack + len_bytes - sizeof(end_record), sizeof(end_record));
	end_record.table_offset_bytes--;
	memcpy(pack + len_bytes - sizeof(end_record), &end_record, sizeof(end_record));
	snap_digest_buf(pack, len_bytes - 16, pack + len_bytes - 16);
	CHECK_EQ(import_buf(pack, len_bytes), -EINVAL);
	CHECK_LOGGED(&capture, "end: malformed");
	check_nothing_left();
	free(pack);
	end();
}

/** small_part() - other content for the frame and the header of a part that is not a file. */
static void small_part(struct pieces *pieces, enum pack_part part, const void *buf,
		       size_t len_bytes)
{
	static u8 raw[PACK_FRAME_BYTES];

	memcpy(raw, buf, len_bytes);
	refill(pieces->frames[part], raw, (u32)len_bytes, 0);
	pieces->header.parts[part] =
		(struct pack_size){.size_bytes = len_bytes, .data_bytes = len_bytes};
}

/** A diff is neither packed nor unpacked. */
static void test_diff(void)
{
	static char hex[] = "0123456789abcdef0123456789abcdef", base[] = "base";
	struct pack_write_opts opts = {.fd = -1, .stream = true, .threads = 1, .to = "pack"};
	struct snap_manifest manifest;
	u8 digest[SNAP_DIGEST_BYTES];
	struct pack_stats stats;
	struct pieces pieces;
	struct snap snap;
	size_t len_bytes;
	void *state;
	u8 *pack;

	begin();
	export_buf(&pack, 1, true);
	pieces_take(&pieces, pack);
	CHECK_EQ(snap_load(&snap, source), 0);
	manifest = snap.manifest;
	manifest.json = NULL;
	manifest.version = 2;
	manifest.parent = base;
	manifest.diff_parent_state = manifest.diff_digest = hex;
	manifest.diff_pages = 1;
	CHECK_EQ(snap_manifest_print(&manifest, snap.view.cpuid), 0);
	snap_digest_buf(manifest.json, manifest.json_len_bytes, digest);
	CHECK_EQ(snap_build(&snap.view, digest, &state, &len_bytes), 0);
	small_part(&pieces, PACK_MANIFEST, manifest.json, manifest.json_len_bytes);
	small_part(&pieces, PACK_STATE, state, len_bytes);
	pack_header_seal(&pieces.header);
	refused(&pieces, "header: of another snapshot");
	memcpy(pieces.header.state_digest, ((struct snap_header *)state)->digest,
	       SNAP_DIGEST_BYTES);
	pack_header_seal(&pieces.header);
	refused(&pieces, "holds a diff");
	free(state);
	free(manifest.json);

	snap.diff = (struct snap_diff *)&stats; /* only asked whether it is there */
	capture_begin(&capture);
	CHECK_EQ(pack_write(&snap, &opts, &stats), -EINVAL);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "is a diff");
	snap.diff = NULL;
	snap_close(&snap);
	pieces_free(&pieces);
	free(pack);
	end();
}

TEST_MAIN({"diff", test_diff}, {"header", test_lies_of_the_header}, {"frames", test_lies_of_frames},
	  {"whole", test_lies_of_the_whole})
