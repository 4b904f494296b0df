/* SPDX-License-Identifier: Apache-2.0 */
/* tar(1) at the other end of a pipe, for `thaw cp`. */
#ifndef THAW_CLI_CP_TAR_H
#define THAW_CLI_CP_TAR_H

#include <sys/types.h>

#include "vmm/util/types.h"

struct cp_tar {
	int fd; /* its archive: to be read after cp_tar_make(), written after cp_tar_take() */
	pid_t pid;
};

/**
 * cp_tar_make() - an archive of @source.
 * @name: NULL: of what is in the folder @source, which is "./"; else of that one file or link,
 * under the name @name. @archive: with its owners, else as root's. @follow: what links lead to.
 * Return: 0 (cp_tar_end() is due) or -errno (logged).
 */
int __must_check cp_tar_make(struct cp_tar *tar, const char *source, const char *name, bool archive,
			     bool follow);

/**
 * cp_tar_take() - unpack an archive of a folder into the folder @dest: the first component of its
 * names, whatever that is, becomes @dest.
 * The archive is hostile: tar can't write outside @dest (its own checks, and Landlock where the
 * kernel has it) and makes no device. @archive: with owners and all mode bits.
 * Return: as above.
 */
int __must_check cp_tar_take(struct cp_tar *tar, const char *dest, bool archive);

/** cp_tar_end() - close the pipe and wait for tar. @ret: how the transfer went. Return: @ret, or
 * -EIO (logged): tar failed. */
int __must_check cp_tar_end(struct cp_tar *tar, int ret);

#endif
