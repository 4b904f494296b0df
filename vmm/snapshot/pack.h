/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packs: a whole snapshot as one compressed file or stream. snapshots/FORMAT.md "Packs" is the
 * authority on the bytes.
 *
 * A pack is written and read front to back, so it goes through a pipe; a table at its end lets a
 * reader with a file take frames in any order.
 */
#ifndef THAW_SNAPSHOT_PACK_H
#define THAW_SNAPSHOT_PACK_H

#include <limits.h>

#include "vmm/snapshot/snapshot.h"

/** What export and import tell while they work; may be NULL. */
typedef void pack_progress_fn(void *opaque, u64 done_bytes, u64 total_bytes);

struct pack_stats {
	u64 raw_bytes, pack_bytes;
	u32 nframes;
	unsigned int threads;
	bool plain_io; /* io_uring could not be had */
};

struct pack_write_opts {
	int fd;		      /* where the pack goes */
	bool stream;	      /* front to back by write(2): a pipe, or a file at its own position */
	bool root;	      /* the root image too */
	bool memory_only;     /* no disk, and @root is not set: for strategy "pack" */
	unsigned int threads; /* 0: as many as there are CPUs */
	const char *to;	      /* for messages */
	pack_progress_fn *progress;
	void *opaque;
};

/** pack_write() - @snap as a pack; not synced. Return: 0 or -errno (logged). */
int __must_check pack_write(const struct snap *snap, const struct pack_write_opts *opts,
			    struct pack_stats *stats);

struct pack_read_opts {
	int fd;
	bool stream; /* as above */
	const char *from;
	const char *images; /* folder for a root image that is not here yet */
	bool replace;
	unsigned int threads;
	pack_progress_fn *progress;
	void *opaque;
	/**
	 * Called once the manifest is checked and before anything is written: where the snapshot
	 * goes, as @path, and the name in its manifest. Return: 0 or -errno (logged).
	 */
	int (*place)(void *opaque, const struct snap_manifest *manifest, char path[PATH_MAX],
		     const char **name);
	/** Called when all of it is written and checked: is it still to be published? May log. */
	bool (*wanted)(void *opaque);
};

/** pack_read() - a pack into a new snapshot folder. Everything is checked before it is published;
 * on failure nothing stays. Return: 0 or -errno (logged). */
int __must_check pack_read(const struct pack_read_opts *opts, struct pack_stats *stats);

#endif
