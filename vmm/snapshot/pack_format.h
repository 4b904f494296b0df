/* SPDX-License-Identifier: Apache-2.0 */
/* Byte layout of a pack; snapshots/FORMAT.md "Packs" is the authority and tells it in prose. All of
 * it is hostile until checked: pack_check.h. */
#ifndef THAW_SNAPSHOT_PACK_FORMAT_H
#define THAW_SNAPSHOT_PACK_FORMAT_H

#include "vmm/snapshot/internal.h"

#define PACK_SKIPPABLE	 0x184d2a5eu	       /* zstd's skippable frame */
#define PACK_MAGIC	 0x4b43415057414854ull /* "THAWPACK" */
#define PACK_END_MAGIC	 0x444e455057414854ull /* "THAWPEND" */
#define PACK_VERSION	 1
#define PACK_FRAME_BYTES (2 * MIB)		      /* of content, at most */
#define PACK_RUNS_MAX	 512			      /* 2 MiB of single pages */
#define PACK_ZSTD_MAX	 (PACK_FRAME_BYTES + 8 * KIB) /* zstd's bound for 2 MiB */
#define PACK_FRAMES_MAX	 (1u << 20)

/** Parts in the order of their frames; the hot frames of memory come before its others. */
enum pack_part {
	PACK_MANIFEST,
	PACK_STATE,
	PACK_HOT,
	PACK_MEMORY,
	PACK_DISK,
	PACK_ROOT,
	PACK_PARTS,
};

enum pack_record_kind { PACK_RECORD_FRAME = 1, PACK_RECORD_TABLE = 2, PACK_RECORD_END = 3 };

#define PACK_FRAME_HOT 1u /* flag: pages of the hot set; memory only */

/** Everything but compressed content stands in a skippable frame, so that a pack is a zstd file. */
struct pack_record {
	u32 skippable;
	u32 payload_bytes; /* behind these 8 bytes */
};

struct pack_size {
	u64 size_bytes; /* of the part's file; 0: not in the pack */
	u64 data_bytes; /* at most this much is in its frames */
};

struct pack_header {
	struct pack_record record;
	u64 magic;
	u32 version;
	u32 reserved;
	struct pack_size parts[PACK_PARTS];
	u8 state_digest[SNAP_DIGEST_BYTES]; /* header.digest of the snapshot's state */
	u8 digest[SNAP_DIGEST_BYTES];	    /* XXH3-128 of the header with these bytes zero */
};

/** A stretch of the part's file. */
struct pack_run {
	u64 offset_bytes; /* multiple of 4 KiB */
	u64 len_bytes;	  /* multiple of 4 KiB, or up to the file's end */
};

/** Followed by the runs and one zstd frame of @packed_bytes. */
struct pack_frame {
	struct pack_record record;
	u32 kind;
	u32 part;
	u32 flags;
	u32 nruns;
	u32 raw_bytes; /* of the runs together */
	u32 packed_bytes;
	u8 digest[SNAP_DIGEST_BYTES]; /* of all this up to the zstd frame's end, these bytes zero */
};

#define PACK_FRAME_MAX_BYTES \
	(sizeof(struct pack_frame) + PACK_RUNS_MAX * sizeof(struct pack_run) + PACK_ZSTD_MAX)

/** What the table says of a frame. */
struct pack_entry {
	u64 offset_bytes; /* of its record in the pack */
	u32 part, flags, nruns, raw_bytes, packed_bytes, reserved;
	u8 digest[SNAP_DIGEST_BYTES]; /* the frame's */
};

/** Followed by the entries. */
struct pack_table {
	struct pack_record record;
	u32 kind;
	u32 nframes;
	u8 digest[SNAP_DIGEST_BYTES]; /* of record and entries, these bytes zero */
};

struct pack_end {
	struct pack_record record;
	u32 kind;
	u32 nframes;
	u64 magic;
	u64 table_offset_bytes;
	u64 pack_bytes;		      /* the whole file */
	u8 digest[SNAP_DIGEST_BYTES]; /* of every byte of the pack before this one */
};

/** pack_table_bytes() - size of a table. */
static inline size_t pack_table_bytes(u32 nframes)
{
	return sizeof(struct pack_table) + (size_t)nframes * sizeof(struct pack_entry);
}

static inline struct pack_run *pack_frame_runs(const struct pack_frame *frame)
{
	return (struct pack_run *)(frame + 1);
}

static inline u8 *pack_frame_content(const struct pack_frame *frame)
{
	return (u8 *)(pack_frame_runs(frame) + frame->nruns);
}

#endif
