// SPDX-License-Identifier: Apache-2.0
// The hot set's file: checked, made.
#include "vmm/snapshot/hot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/kvm/vm.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/* Magic and version, which every version of the file has. */
#define SNAP_HOT_VERSION_END 12

_Static_assert(sizeof(struct snap_hot_header) == 128, "ABI: snapshots/FORMAT.md");
_Static_assert(sizeof(struct snap_hot_run) == 16, "ABI: snapshots/FORMAT.md");

static void hot_digest(const void *buf, size_t len_bytes, u8 out[SNAP_DIGEST_BYTES])
{
	struct snap_hot_header *copy = malloc(len_bytes);

	/* At most a megabyte, for a moment. */
	BUG_ON(!copy);
	memcpy(copy, buf, len_bytes);
	memset(copy->digest, 0, sizeof(copy->digest));
	snap_digest_buf(copy, len_bytes, out);
	free(copy);
}

/** Is [@gpa, @end) in one stretch of RAM? */
static bool hot_in_ram(u64 gpa, u64 end_gpa, u64 ram_bytes)
{
	return end_gpa <= layout_low_ram_bytes(ram_bytes) ||
	       (gpa >= LAYOUT_HIGH_RAM_GPA &&
		end_gpa <= LAYOUT_HIGH_RAM_GPA + layout_high_ram_bytes(ram_bytes));
}

/** Does @run, which ends at @end_gpa, lie in the root image? Nothing is written there. */
static bool hot_in_pmem(const struct snap_hot_run *run, u64 end_gpa, u64 ram_bytes, u64 pmem_bytes)
{
	u64 pmem_gpa = layout_pmem_gpa(ram_bytes);

	return run->kind == SNAP_HOT_READ && run->gpa >= pmem_gpa &&
	       end_gpa <= pmem_gpa + pmem_bytes;
}

static const char *hot_check_runs(const struct snap_hot_run *runs, u32 nruns, u64 ram_bytes,
				  u64 pmem_bytes)
{
	u64 last_end_gpa = 0;

	for (u32 i = 0; i < nruns; i++) {
		const struct snap_hot_run *run = &runs[i];
		u64 end_gpa;

		if (run->gpa % PAGE_SIZE_BYTES || !run->npages ||
		    !u64_add_ok(run->gpa, run->npages * PAGE_SIZE_BYTES, &end_gpa) ||
		    (!hot_in_ram(run->gpa, end_gpa, ram_bytes) &&
		     !hot_in_pmem(run, end_gpa, ram_bytes, pmem_bytes)))
			return "a run lies outside of memory";
		if (run->gpa < last_end_gpa)
			return "runs are not in order";
		if (run->kind != SNAP_HOT_READ && run->kind != SNAP_HOT_WRITE)
			return "a run of unknown kind";
		last_end_gpa = end_gpa;
	}
	return NULL;
}

static bool hot_info_ok(const struct snap_hot_info *info)
{
	return info->recorder >= SNAP_HOT_PAGEMAP && info->recorder <= SNAP_HOT_BPF &&
	       info->rule >= SNAP_HOT_UNION && info->rule <= SNAP_HOT_INTERSECTION &&
	       info->nclones >= 1 && info->nclones <= SNAP_HOT_CLONES_MAX && info->threshold >= 1 &&
	       info->threshold <= info->nclones && info->ncommands >= 1 &&
	       info->ncommands <= info->nclones &&
	       (info->stability_permille <= 1000 || info->stability_permille == SNAP_HOT_UNKNOWN) &&
	       (info->similarity_permille <= 1000 ||
		info->similarity_permille == SNAP_HOT_UNKNOWN) &&
	       info->intersection_pages <= info->union_pages && !info->reserved &&
	       !info->reserved2[0] && !info->reserved2[1];
}

int snap_hot_parse(const void *buf, size_t len_bytes, u64 ram_bytes, u64 pmem_bytes,
		   const u8 state_digest[SNAP_DIGEST_BYTES], struct snap_hot *out, const char **why)
{
	const struct snap_hot_header *header = buf;
	const struct snap_hot_run *runs = (const struct snap_hot_run *)(header + 1);
	u8 digest[SNAP_DIGEST_BYTES];

	*why = "not a hot set";
	if (len_bytes < SNAP_HOT_VERSION_END || header->magic != SNAP_HOT_MAGIC)
		return -EINVAL;
	*why = "unknown version; build the template again";
	if (header->version != SNAP_HOT_VERSION)
		return -EPROTONOSUPPORT;
	*why = "wrong size: the file is truncated or damaged";
	if (len_bytes < sizeof(*header) || header->nruns > SNAP_HOT_RUNS_MAX ||
	    len_bytes != sizeof(*header) + header->nruns * sizeof(*runs))
		return -EINVAL;
	*why = "digest mismatch: the file was changed or is damaged";
	hot_digest(buf, len_bytes, digest);
	if (memcmp(digest, header->digest, sizeof(digest)) != 0)
		return -EBADMSG;
	*why = "recorded from another snapshot";
	if (memcmp(state_digest, header->state_digest, SNAP_DIGEST_BYTES) != 0)
		return -EINVAL;
	*why = "the figures of its recording are out of range";
	if (!hot_info_ok(&header->info))
		return -EINVAL;
	*why = hot_check_runs(runs, header->nruns, ram_bytes, pmem_bytes);
	if (*why)
		return -EINVAL;
	out->runs = runs;
	out->info = &header->info;
	out->nruns = header->nruns;
	return 0;
}

u64 snap_hot_max_bytes(void)
{
	return sizeof(struct snap_hot_header) + SNAP_HOT_RUNS_MAX * sizeof(struct snap_hot_run);
}

int snap_hot_open(const struct snap *snap, struct snap_hot *out)
{
	const char *why;
	u64 len_bytes;
	int fd, ret;

	*out = (struct snap_hot){0};
	if (!snap_part_there(snap->dirfd, SNAP_FILE_HOT))
		return 0;
	fd = snap_part_open(snap->dirfd, snap->path, SNAP_FILE_HOT, &len_bytes);
	if (fd < 0)
		return fd;
	ret = -EFBIG;
	why = "too large";
	if (len_bytes > snap_hot_max_bytes())
		goto fail;
	out->buf = malloc(len_bytes + 1); /* of an empty file as well */
	ret = out->buf ? fd_pread_full(fd, out->buf, len_bytes, 0) : -ENOMEM;
	why = "can't be read";
	if (!ret)
		ret = snap_hot_parse(out->buf, len_bytes, snap->view.machine->ram_bytes,
				     snap->view.machine->pmem_bytes, snap->view.header->digest, out,
				     &why);
	if (!ret) {
		fd_close(&fd);
		return 0;
	}
fail:
	log_err("%s/%s: %s", snap->path, SNAP_FILE_HOT, why);
	fd_close(&fd);
	snap_hot_close(out);
	return ret;
}

void snap_hot_close(struct snap_hot *hot)
{
	free(hot->buf);
	*hot = (struct snap_hot){0};
}

int snap_hot_build(const struct snap_hot_run *runs, u32 nruns, const struct snap_hot_info *info,
		   const u8 state_digest[SNAP_DIGEST_BYTES], void **out, size_t *len_bytes)
{
	struct snap_hot_header *header;

	*len_bytes = sizeof(*header) + nruns * sizeof(*runs);
	header = calloc(1, *len_bytes);
	if (!header)
		return -ENOMEM;
	header->magic = SNAP_HOT_MAGIC;
	header->version = SNAP_HOT_VERSION;
	header->nruns = nruns;
	header->info = *info;
	memcpy(header->state_digest, state_digest, SNAP_DIGEST_BYTES);
	if (nruns)
		memcpy(header + 1, runs, nruns * sizeof(*runs));
	hot_digest(header, *len_bytes, header->digest);
	*out = header;
	return 0;
}
