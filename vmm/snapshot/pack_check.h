/* SPDX-License-Identifier: Apache-2.0 */
/* The records of a pack, one at a time: checked, sealed, compressed. */
#ifndef THAW_SNAPSHOT_PACK_CHECK_H
#define THAW_SNAPSHOT_PACK_CHECK_H

#include "vmm/snapshot/pack_format.h"

/* Pure checks; each gives -EINVAL, -EBADMSG or -EPROTONOSUPPORT and a static text in @why. */

/** pack_header_check() - a whole header. */
int __must_check pack_header_check(const struct pack_header *header, const char **why);

/** pack_header_seal() - fill in what is the same in every pack, and the digest. */
void pack_header_seal(struct pack_header *header);

/** Where a reader of frames in order stands. */
struct pack_order {
	u32 rank;		    /* of the last frame: part, hot first */
	u64 end_bytes;		    /* where its last run ended */
	u64 data_bytes[PACK_PARTS]; /* so far */
};

/** pack_frame_size() - the fixed part, before its runs are read: are its numbers in bounds?
 * @len_bytes: of the whole frame: record, runs and content. */
int __must_check pack_frame_size(const struct pack_frame *frame, size_t *len_bytes,
				 const char **why);

/**
 * pack_frame_check() - a whole frame of pack_frame_size() bytes: digest, runs inside the part and
 * ascending, and behind the frames seen so far.
 * @order: NULL: frames are taken in any order.
 */
int __must_check pack_frame_check(const struct pack_frame *frame, const struct pack_header *header,
				  struct pack_order *order, const char **why);

/** pack_frame_seal() - record, kind and digest of a frame whose runs and content are in place. */
void pack_frame_seal(struct pack_frame *frame);

/** pack_frame_entry() - the entry of @frame, which stands at @offset_bytes. */
void pack_frame_entry(const struct pack_frame *frame, u64 offset_bytes, struct pack_entry *out);

/** pack_table_check() - a whole table. @end_bytes: where the last frame must end: right before
 * it. */
int __must_check pack_table_check(const struct pack_table *table, size_t len_bytes, u64 end_bytes,
				  const char **why);

/** pack_table_seal() - record and digest of a table whose entries are in place. */
void pack_table_seal(struct pack_table *table, u32 nframes);

/** pack_end_check() - the end record of a pack whose table has @nframes entries and stands at
 * @table_offset_bytes; its digest is the caller's to compare. */
int __must_check pack_end_check(const struct pack_end *end, u32 nframes, u64 table_offset_bytes,
				const char **why);

/** pack_header_is_of() - is the pack of the snapshot whose state's header.digest is @id (hex)? */
bool pack_header_is_of(const struct pack_header *header, const char *id);

/** pack_table_load() - header and table of the pack in file @fd, checked; frames can then be read
 * in any order, each with pack_frame_check(). @out: the caller frees it. Return: 0, or -errno and
 * @why. */
int __must_check pack_table_load(int fd, struct pack_header *header, struct pack_table **out,
				 const char **why);

/* Compression; one frame at a time, any thread. */

/** A thread's zstd contexts. */
struct pack_codec {
	struct ZSTD_DCtx_s *decompress;
	struct ZSTD_CCtx_s *compress; /* made by the first pack_frame_pack(), with how to free it */
	void (*compress_free)(struct ZSTD_CCtx_s *compress);
};

struct pack_codec *pack_codec_new(void);
void pack_codec_free(struct pack_codec *codec);

/**
 * pack_frame_pack() - the content of @frame's runs, one behind the other in @raw, into @frame:
 * blocks of zeros are squeezed out first (also of @raw), then it is compressed and sealed.
 * raw_bytes 0 when nothing is left. Return: 0 or -errno.
 */
int __must_check pack_frame_pack(struct pack_codec *codec, struct pack_frame *frame, u8 *raw);

/** pack_frame_unpack() - the content of a checked @frame into @raw (PACK_FRAME_BYTES). Return: 0 or
 * -EBADMSG. */
int __must_check pack_frame_unpack(struct pack_codec *codec, const struct pack_frame *frame,
				   u8 *raw);

#endif
