/* SPDX-License-Identifier: Apache-2.0 */
/* Between the halves of import: the stream of frames, and the snapshot that becomes of it. */
#ifndef THAW_SNAPSHOT_PACK_IN_H
#define THAW_SNAPSHOT_PACK_IN_H

#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/pack_io.h"

#define PACK_FIRST_FILE PACK_MEMORY /* parts before it are small and stay in memory */

/** A part that is written to a file while it comes. */
struct pack_target {
	int fd; /* -1: only checked, not kept; borrowed */
	struct ring ring;
	bool ring_ready;
};

struct pack_in {
	const struct pack_read_opts *opts;
	struct pack_stats *stats;
	struct pack_stream stream;
	struct pack_pool *pool;
	struct pack_header header;
	struct pack_order order;
	struct pack_entry *entries; /* of the frames so far */
	u8 *small[PACK_FIRST_FILE]; /* owned */
	struct pack_target targets[PACK_PARTS];
	u64 done_bytes, total_bytes;
	/* from pack_place() on */
	bool placed;
	struct snap snap; /* manifest, state and view only */
	const char *name; /* the caller's */
	struct snap_writer *writer;
	int root_fd;		    /* unnamed file for a root image that is not here yet */
	char root_folder[PATH_MAX]; /* where it goes; "" = it is here already */
	char root_path[PATH_MAX];   /* where it is, or will be */
};

/** pack_place() - the small parts are whole: check them against each other and against the header,
 * find the root image, make the temporary folder and its files. Return: 0 or -errno (logged). */
int __must_check pack_place(struct pack_in *in);

/** pack_publish() - all frames are in the files: compare with the manifest's digests, put the
 * snapshot in place. Return: 0 or -errno (logged). */
int __must_check pack_publish(struct pack_in *in);

/** pack_unplace() - remove what was not published; due after any outcome. */
void pack_unplace(struct pack_in *in);

#endif
