// SPDX-License-Identifier: Apache-2.0
// Packs: one frame's content back from zstd.
//
// The other direction is a file of its own (pack_deflate.c): thaw-vmm only reads packs, and what is
// not linked into it is neither memory of every sandbox nor code that an attacker finds there. Of
// the compressor this file knows no more than how to free it.
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <zstd.h>

#include "vmm/snapshot/pack_check.h"
#include "vmm/snapshot/pack_io.h"

struct pack_codec *pack_codec_new(void)
{
	struct pack_codec *codec = calloc(1, sizeof(*codec));

	if (!codec)
		return NULL;
	codec->decompress = ZSTD_createDCtx();
	if (!codec->decompress) {
		free(codec);
		return NULL;
	}
	return codec;
}

void pack_codec_free(struct pack_codec *codec)
{
	if (!codec)
		return;
	if (codec->compress)
		codec->compress_free(codec->compress);
	ZSTD_freeDCtx(codec->decompress);
	free(codec);
}

int pack_frame_unpack(struct pack_codec *codec, const struct pack_frame *frame, u8 *raw)
{
	const u8 *content = pack_frame_content(frame);
	const size_t n = frame->packed_bytes;

	/* One frame, that says how much it holds: so nothing is decompressed that is not wanted. */
	if (ZSTD_findFrameCompressedSize(content, n) != n ||
	    ZSTD_getFrameContentSize(content, n) != frame->raw_bytes ||
	    ZSTD_decompressDCtx(codec->decompress, raw, PACK_FRAME_BYTES, content, n) !=
		    frame->raw_bytes)
		return -EBADMSG;
	return 0;
}

unsigned int pack_count_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return MIN((unsigned int)CPU_COUNT(&set), PACK_THREADS_MAX);
}
