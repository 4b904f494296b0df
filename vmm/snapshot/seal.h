/* SPDX-License-Identifier: Apache-2.0 */
/* fs-verity: the file system itself keeps a published snapshot's files from being changed. */
#ifndef THAW_SNAPSHOT_SEAL_H
#define THAW_SNAPSHOT_SEAL_H

#include "vmm/util/types.h"

#define SNAP_SEAL_TEXT 144 /* "sha512:", 128 digits, NUL */

/**
 * snap_seal() - turn fs-verity on for every file of the published folder @path that has not got it
 * yet and is not next to empty, as a scratch disk is. Linux,
 * Documentation/filesystems/fsverity.rst. From then on nobody, root included, can write to them,
 * and a block that comes damaged from the disk is a read error. They can still be removed and
 * replaced. A folder that is not there is nothing to do.
 *
 * Return: 1 sealed, 0 not: file system or kernel has no fs-verity, or -errno (logged): the snapshot
 * is whole all the same.
 */
int snap_seal(const char *path);

/** snap_seal_digest() - "ALGORITHM:HEX" that the file system measures the file @name of the folder
 * @dirfd by; "" when it has no fs-verity. Return: 0 or -errno. */
int __must_check snap_seal_digest(int dirfd, const char *name, char out[SNAP_SEAL_TEXT]);

/** snap_seal_names() - the files that snap_seal() looks at, NULL behind the last. */
const char *const *snap_seal_names(void);

#endif
