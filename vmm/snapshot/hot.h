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
#define SNAP_HOT_VERSION  2
#define SNAP_HOT_RUNS_MAX 65536

/** Most clones that one hot set may be made of. */
#define SNAP_HOT_CLONES_MAX 4096
#define SNAP_HOT_UNKNOWN    0xffffffffu /* a share that was not measured */

enum snap_hot_kind {
	SNAP_HOT_READ = 0,
	SNAP_HOT_WRITE = 1,
};

struct snap_hot_run {
	u64 gpa; /* multiple of 4 KiB */
	u32 npages;
	u32 kind; /* enum snap_hot_kind */
};

enum snap_hot_recorder_id {
	SNAP_HOT_PAGEMAP = 1, /* page tables of the VMM (hot_record.c) */
	SNAP_HOT_BPF = 2,     /* KVM's page faults (bpf/hot_fault.bpf.c) */
};

/** In how many of the recorded clones a page must have been touched to be in the set. */
enum snap_hot_rule {
	SNAP_HOT_UNION = 1,	   /* in one */
	SNAP_HOT_HALF = 2,	   /* in half of them, rounded up */
	SNAP_HOT_INTERSECTION = 3, /* in all */
};

/** How a set came to be: for people and tools, no restore looks at it. */
struct snap_hot_info {
	u32 recorder;		 /* enum snap_hot_recorder_id */
	u32 rule;		 /* enum snap_hot_rule */
	u32 threshold;		 /* the rule's number for this many clones */
	u32 nclones;		 /* recorded, at least 1 */
	u32 ncommands;		 /* different first commands among them */
	u32 stability_permille;	 /* mean Jaccard index of clones with the same command */
	u32 similarity_permille; /* the same of clones with different commands */
	u32 reserved;
	u64 union_pages;	/* touched in any clone */
	u64 intersection_pages; /* touched in all of them */
	u64 record_ns;		/* what recording took */
	u64 exec_ns;		/* of that: mean from a clone's request to its answer */
	u64 reserved2[2];
};

struct snap_hot_header {
	u64 magic;
	u32 version;
	u32 nruns; /* behind the header: ascending, disjoint, inside RAM or the root image */
	u8 digest[SNAP_DIGEST_BYTES];	    /* XXH3-128 of the file with these bytes zero */
	u8 state_digest[SNAP_DIGEST_BYTES]; /* header.digest of the state it was recorded from */
	struct snap_hot_info info;
};

/** A checked hot set; @runs and @info point into @buf. */
struct snap_hot {
	void *buf; /* owned */
	const struct snap_hot_run *runs;
	const struct snap_hot_info *info;
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

/** snap_hot_max_bytes() - size of the largest file. */
u64 snap_hot_max_bytes(void);

/** snap_hot_open() - the hot set of @snap. Return: 0 (snap_hot_close() is due; no runs when there
 * is no file), or -errno (logged "PATH/hot: reason"). */
int __must_check snap_hot_open(const struct snap *snap, struct snap_hot *out);
void snap_hot_close(struct snap_hot *hot);

/** snap_hot_build() - a whole file of @runs. @out: the caller frees it. Return: 0 or -ENOMEM. */
int __must_check snap_hot_build(const struct snap_hot_run *runs, u32 nruns,
				const struct snap_hot_info *info,
				const u8 state_digest[SNAP_DIGEST_BYTES], void **out,
				size_t *len_bytes);

/** Records a clone's hot set: see hot_record.c. */
struct snap_hot_recorder {
	int uffd, pagemap_fd;
};

/** snap_hot_record_probe() - can this kernel do it? Return: 0 or -errno; logs nothing. */
int __must_check snap_hot_record_probe(void);

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
