/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot set: which pages a clone touches between its start and the end of its first command,
 * read-hot and write-hot apart. File `hot` of a snapshot; snapshots/FORMAT.md is the authority.
 *
 * It is advice: a restore that prepares other pages, or none, gives the same guest, only later. So
 * it may be missing. If it is there it is checked like everything else.
 */
#ifndef THAW_SNAPSHOT_HOT_H
#define THAW_SNAPSHOT_HOT_H

#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/mem.h"

#define SNAP_FILE_HOT	  "hot"
#define SNAP_HOT_MAGIC	  0x00544f4857414854ull /* "THAWHOT" and a NUL */
#define SNAP_HOT_VERSION  1
#define SNAP_HOT_RUNS_MAX 65536

enum snap_hot_kind {
	SNAP_HOT_READ = 0,
	SNAP_HOT_WRITE = 1,
};

struct snap_hot_run {
	u64 gpa; /* multiple of 4 KiB */
	u32 npages;
	u32 kind; /* enum snap_hot_kind */
};

struct snap_hot_header {
	u64 magic;
	u32 version;
	u32 nruns; /* behind the header: ascending, disjoint, inside RAM or the root image */
	u8 digest[SNAP_DIGEST_BYTES];	    /* XXH3-128 of the file with these bytes zero */
	u8 state_digest[SNAP_DIGEST_BYTES]; /* header.digest of the state it was recorded from */
};

/** A checked hot set; @runs points into @buf. */
struct snap_hot {
	void *buf; /* owned */
	const struct snap_hot_run *runs;
	u32 nruns;
};

/**
 * snap_hot_parse() - check a whole file in memory (pure; @out->buf is left alone).
 * @why: gets a static text that says what is wrong.
 *
 * Return: 0, -EINVAL (malformed, or of another snapshot), -EBADMSG (digest), -EPROTONOSUPPORT.
 */
int __must_check snap_hot_parse(const void *buf, size_t len_bytes, u64 ram_bytes, u64 pmem_bytes,
				const u8 state_digest[SNAP_DIGEST_BYTES], struct snap_hot *out,
				const char **why);

/** snap_hot_open() - the hot set of @snap. Return: 0 (snap_hot_close() is due; no runs when there
 * is no file), or -errno (logged "PATH/hot: reason"). */
int __must_check snap_hot_open(const struct snap *snap, struct snap_hot *out);
void snap_hot_close(struct snap_hot *hot);

/** snap_hot_build() - a whole file of @runs. @out: the caller frees it. Return: 0 or -ENOMEM. */
int __must_check snap_hot_build(const struct snap_hot_run *runs, u32 nruns,
				const u8 state_digest[SNAP_DIGEST_BYTES], void **out,
				size_t *len_bytes);

/** Records a clone's hot set: see hot_record.c. */
struct snap_hot_recorder {
	int uffd, pagemap_fd;
};

/** snap_hot_record_start() - right after @mem was mapped by strategy "mmap" and before anything
 * touches it. Linux 6.7. Return: 0 or -errno (logged). */
int __must_check snap_hot_record_start(struct snap_hot_recorder *recorder,
				       const struct snap_mem *mem);

/** snap_hot_record_pmem() - the root image too, once vm_create() has mapped it. Return: 0 or -errno
 * (logged). */
int __must_check snap_hot_record_pmem(struct snap_hot_recorder *recorder, const struct vm *vm);

/** snap_hot_record_write() - what was touched since, as a whole file to @fd. No vCPU runs. Return:
 * 0 or -errno (logged). */
int __must_check snap_hot_record_write(struct snap_hot_recorder *recorder, const struct vm *vm,
				       const u8 state_digest[SNAP_DIGEST_BYTES], int fd);

#endif
