// SPDX-License-Identifier: Apache-2.0
// Restore strategy "pack": all of memory out of the template's `memory.pack`, on all CPUs.
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/pack_io.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * For storage slower than decompression. Each thread takes the next frame of the table, reads it,
 * checks it against the table and its digest, and puts its pages where they belong. All threads
 * have ended when the guest runs, and a pack that is not of this snapshot is refused.
 */

struct job {
	struct snap_mem *mem;
	struct pack_header header;
	struct pack_table *table;
	atomic_uint next;
	atomic_int error;
	_Atomic u64 bytes_read;
};

/** place() - the pages of @frame into guest memory. */
static int place(const struct snap_mem *mem, const struct pack_frame *frame, const u8 *raw)
{
	const struct pack_run *runs = pack_frame_runs(frame);

	for (u32 i = 0; i < frame->nruns; i++) {
		const struct snap_mem_range *range = &mem->ranges[0];

		if (mem->nranges > 1 && runs[i].offset_bytes >= mem->ranges[1].gpa)
			range = &mem->ranges[1];
		/* Not in the hole between the two: the run is inside the file already. */
		if (runs[i].offset_bytes + runs[i].len_bytes > range->gpa + range->len_bytes)
			return -EINVAL;
		memcpy((u8 *)range->hva + (runs[i].offset_bytes - range->gpa), raw,
		       runs[i].len_bytes);
		raw += runs[i].len_bytes;
	}
	return 0;
}

static int take_frame(struct job *job, const struct pack_entry *entry, struct pack_codec *codec,
		      struct pack_frame *frame, u8 *raw, const char **why)
{
	const size_t len_bytes =
		sizeof(*frame) + entry->nruns * sizeof(struct pack_run) + entry->packed_bytes;
	struct pack_entry found;
	int ret;

	*why = "can't be read";
	ret = fd_pread_full(job->mem->pack_fd, frame, len_bytes, entry->offset_bytes);
	if (ret)
		return ret;
	pack_frame_entry(frame, entry->offset_bytes, &found);
	*why = "a frame is not the one in the table";
	if (memcmp(&found, entry, sizeof(found)) != 0)
		return -EINVAL;
	ret = pack_frame_check(frame, &job->header, NULL, why);
	if (ret)
		return ret;
	*why = "a frame can't be decompressed";
	ret = pack_frame_unpack(codec, frame, raw);
	if (ret)
		return ret;
	atomic_fetch_add(&job->bytes_read, len_bytes);
	*why = "a page lies outside of memory";
	return place(job->mem, frame, raw);
}

static void *work(void *arg)
{
	struct job *job = arg;
	const struct pack_entry *entries = (const struct pack_entry *)(job->table + 1);
	struct pack_codec *codec = pack_codec_new();
	struct pack_frame *frame = malloc(PACK_FRAME_MAX_BYTES);
	u8 *raw = malloc(PACK_FRAME_BYTES);
	int ret = codec && frame && raw ? 0 : -ENOMEM;
	const char *why = "out of memory";
	u32 i;

	while (!ret && !job->error && (i = atomic_fetch_add(&job->next, 1)) < job->table->nframes) {
		if (entries[i].part == PACK_MEMORY)
			ret = take_frame(job, &entries[i], codec, frame, raw, &why);
	}
	/* The first one is enough. */
	if (ret && !atomic_exchange(&job->error, ret))
		log_err(SNAP_FILE_PACK ": %s", why);
	pack_codec_free(codec);
	free(frame);
	free(raw);
	return NULL;
}

static void work_on_all_cpus(struct job *job)
{
	pthread_t threads[PACK_THREADS_MAX];
	const unsigned int want = pack_count_cpus();
	unsigned int n = 0;

	/* This thread is one of them, so that fewer than wanted are enough. */
	while (n + 1 < want && !pthread_create(&threads[n], NULL, work, job))
		n++;
	work(job);
	while (n-- > 0)
		pthread_join(threads[n], NULL);
}

static int pack_map(struct snap_mem *mem)
{
	const struct snap_mem_range *last = &mem->ranges[mem->nranges - 1];
	struct job job = {.mem = mem};
	const char *why = NULL;
	int ret;

	ret = pack_table_load(mem->pack_fd, &job.header, &job.table, &why);
	if (!ret && (job.header.parts[PACK_MEMORY].size_bytes != last->gpa + last->len_bytes ||
		     !pack_header_is_of(&job.header, mem->id))) {
		why = "of another snapshot; make it again: thaw template pack";
		ret = -EINVAL;
	}
	if (ret)
		log_err(SNAP_FILE_PACK ": %s", why);
	else
		ret = snap_mem_map(mem, -1);
	if (!ret) {
		work_on_all_cpus(&job);
		mem->bytes_read = job.bytes_read;
		ret = job.error;
		if (ret)
			snap_mem_unmap(mem);
	}
	free(job.table);
	return ret;
}

const struct snap_mem_ops snap_mem_pack = {
	.name = "pack",
	.summary = "decompresses memory.pack on all CPUs (thaw template pack makes it)",
	.map = pack_map,
	.eager = true,
	.takes_pack = true,
	.huge = SNAP_HUGE_ANON,
};
