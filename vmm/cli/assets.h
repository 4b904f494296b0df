/* SPDX-License-Identifier: Apache-2.0 */
/* What a template is built from: the guest folder, the root image in the state folder, a formatted
 * scratch disk. */
#ifndef THAW_CLI_ASSETS_H
#define THAW_CLI_ASSETS_H

#include <limits.h>

#include "vmm/cli/progress.h"
#include "vmm/cli/state.h"
#include "vmm/util/types.h"

/** The guest folder and its guest.json; strings are owned. */
struct guest_files {
	char folder[PATH_MAX / 2];
	char *kernel; /* release of the guest kernel */
	char *image;  /* name of the image, e.g. "debian" */
	char *digest; /* of what the root image was made from: names its folder in the state folder
		       */
};

/**
 * guest_files_open() - find the folder ($THAW_GUEST_DIR, else ../guest or ../share/thaw/guest
 * beside the executable's folder) and read guest.json. Return: 0 (guest_files_free() is due) or
 * -errno. @why: buffer for one line on what is missing and what to do.
 */
int __must_check guest_files_open(struct guest_files *out, char *why, size_t why_bytes);
void guest_files_free(struct guest_files *guest);

/** guest_files_path() - "FOLDER/@name" into @out of PATH_MAX bytes. */
void guest_files_path(const struct guest_files *guest, const char *name, char *out);

/**
 * image_store() - have images/DIGEST/root.erofs in the state folder: copied once (a reflink where
 * the file system can), synced, then renamed. The copy is what templates refer to, so a later
 * rebuild of the guest folder does not change them.
 * @out: its path, PATH_MAX bytes.
 *
 * Return: 0 or -errno (logged with the path).
 */
int __must_check image_store(const struct state *state, const struct guest_files *guest,
			     struct progress *progress, char *out);

/**
 * disk_make_base() - an unnamed, sparse file in scratch/ with an empty ext4 of @size_bytes.
 * @log_fd: where mke2fs's output goes.
 *
 * Return: an fd (the caller closes it; then the file is gone) or -errno (logged).
 */
int __must_check disk_make_base(const struct state *state, u64 size_bytes, int log_fd);

/** disk_find_mke2fs() - path of mke2fs into @out of PATH_MAX bytes. Return: 0 or -ENOENT. */
int __must_check disk_find_mke2fs(char *out);

#endif
