/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a snapshot that are opened before a jail is entered (vmm/jail).
 *
 * A jailed thaw-vmm has neither the paths nor the rights to open a snapshot, and must not look into
 * one before it is jailed. So everything that the snapshot may turn out to consist of is opened by
 * names that its owner gives: the folder's known files, those of its parents, the root image. Who
 * owns them is looked at then; the rest is checked when the snapshot is opened (open.c), out of
 * this table. A process has one table at most.
 */
#ifndef THAW_SNAPSHOT_HANDED_H
#define THAW_SNAPSHOT_HANDED_H

#include "vmm/util/types.h"

struct snap_handed_opts {
	const char *folder;
	const char *parents;	/* "A:B": of a diff, its chain beside @folder; NULL: none */
	const char *root_image; /* NULL: none */
	bool direct;		/* memory once more, with O_DIRECT */
};

/** snap_handed_open() - fill the table. Return: 0 or -errno (logged). */
int __must_check snap_handed_open(const struct snap_handed_opts *opts);

/** snap_handed_close() - the snapshot is open: what it did not take is closed. */
void snap_handed_close(void);

/** snap_handed_any() - is there a table? snap_handed_has() - with @dirfd, as given out? */
bool snap_handed_any(void);
bool snap_handed_has(int dirfd);

/*
 * Out of the table; the caller owns the fd. Return: it, or -ENOENT: it was not there (or not
 * handed over), or another -errno. Logs nothing.
 */

/** snap_handed_folder() - @name: its path or "../NAME". It is a mount of its own. */
int __must_check snap_handed_folder(const char *name);
int __must_check snap_handed_part(int dirfd, const char *name);
int __must_check snap_handed_root(const char *path);
/** snap_handed_direct() - another open file of the memory that @memory_fd is, with O_DIRECT. */
int __must_check snap_handed_direct(int memory_fd);

#endif
