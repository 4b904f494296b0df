// SPDX-License-Identifier: Apache-2.0
// Packs: one frame's content to zstd.
#include <errno.h>
#include <string.h>
#include <zstd.h>

#include "vmm/snapshot/pack_check.h"
#include "vmm/util/log.h"

/* zstd's own default: twice the speed of level 6 for some 3 % of the size. */
#define PACK_LEVEL 3

_Static_assert(ZSTD_COMPRESSBOUND(PACK_FRAME_BYTES) <= PACK_ZSTD_MAX, "a frame always fits");

/** add_block() - @len_bytes of the part at @offset_bytes are kept: a longer run, or a new one. */
static void add_block(struct pack_run *runs, u32 *nruns, u64 offset_bytes, u64 len_bytes)
{
	struct pack_run *last = *nruns ? &runs[*nruns - 1] : NULL;

	if (last && last->offset_bytes + last->len_bytes == offset_bytes)
		last->len_bytes += len_bytes;
	else
		runs[(*nruns)++] =
			(struct pack_run){.offset_bytes = offset_bytes, .len_bytes = len_bytes};
}

/** squeeze() - drop blocks of zeros from @raw and from @frame's runs. A frame has at most as many
 * blocks as it can have runs. */
static void squeeze(struct pack_frame *frame, u8 *raw)
{
	struct pack_run out[PACK_RUNS_MAX];
	const struct pack_run *runs = pack_frame_runs(frame);
	u64 from_bytes = 0, to_bytes = 0;
	u32 nout = 0;

	for (u32 i = 0; i < frame->nruns; i++) {
		for (u64 done = 0; done < runs[i].len_bytes;) {
			u64 len_bytes = MIN(runs[i].len_bytes - done, PAGE_SIZE_BYTES);

			/* The last block of a file may be short: it is kept as it is. */
			if (len_bytes < PAGE_SIZE_BYTES || !snap_page_is_zero(raw + from_bytes)) {
				memmove(raw + to_bytes, raw + from_bytes, len_bytes);
				add_block(out, &nout, runs[i].offset_bytes + done, len_bytes);
				to_bytes += len_bytes;
			}
			from_bytes += len_bytes;
			done += len_bytes;
		}
	}
	/* cppcheck-suppress uninitvar ; add_block() wrote the first @nout of them */
	memcpy(pack_frame_runs(frame), out, nout * sizeof(*out));
	frame->nruns = nout;
	frame->raw_bytes = (u32)to_bytes;
}

static void compress_free(struct ZSTD_CCtx_s *compress)
{
	ZSTD_freeCCtx(compress);
}

int pack_frame_pack(struct pack_codec *codec, struct pack_frame *frame, u8 *raw)
{
	size_t n;

	squeeze(frame, raw);
	if (!frame->nruns)
		return 0;
	if (!codec->compress) {
		codec->compress = ZSTD_createCCtx();
		codec->compress_free = compress_free;
	}
	if (!codec->compress)
		return -ENOMEM;
	n = ZSTD_compressCCtx(codec->compress, pack_frame_content(frame), PACK_ZSTD_MAX, raw,
			      frame->raw_bytes, PACK_LEVEL);
	if (ZSTD_isError(n)) {
		log_err("zstd: %s", ZSTD_getErrorName(n));
		return -EIO;
	}
	frame->packed_bytes = (u32)n;
	pack_frame_seal(frame);
	return 0;
}
