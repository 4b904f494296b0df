// SPDX-License-Identifier: Apache-2.0
// The files of a snapshot's folder, one at a time: opened, and checked through the descriptor.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/snapshot/handed.h"
#include "vmm/snapshot/internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

const char *snap_check_owner(const struct stat *st)
{
	if (st->st_uid != 0 && st->st_uid != geteuid())
		return "owned by another user";
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		return "writable by others";
	return NULL;
}

int snap_check_part(int fd, bool linked, bool vouched, const char **why, u64 *len_bytes)
{
	struct stat st;

	*why = "can't be examined";
	if (fstat(fd, &st) < 0)
		return -errno;
	*why = "not a regular file";
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	*why = vouched ? NULL : snap_check_owner(&st);
	if (*why)
		return -EPERM;
	*why = "has another name (hard link), by which it may be changed: make a copy of the snapshot instead";
	if (st.st_nlink > 1 && !linked)
		return -EMLINK;
	*len_bytes = (u64)st.st_size;
	return 0;
}

int snap_part_open(int dirfd, const char *path, const char *name, u64 *len_bytes)
{
	const bool handed = snap_handed_has(dirfd);
	const char *why;
	int fd, ret;

	*len_bytes = 0;
	/* O_NONBLOCK: a FIFO in this place must not hang the open; it has no effect on the regular
	 * file that is asked for. */
	fd = handed ? snap_handed_part(dirfd, name)
		    : openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0) {
		ret = handed ? fd : -errno;
		log_err("%s/%s: %s", path, name,
			ret == -ELOOP ? "is a symbolic link" : strerror(-ret));
		return ret;
	}
	ret = snap_check_part(fd, false, handed, &why, len_bytes);
	if (ret) {
		log_err("%s/%s: %s", path, name, why);
		fd_close(&fd);
		return ret;
	}
	return fd;
}

bool snap_part_there(int dirfd, const char *name)
{
	int fd;

	if (!snap_handed_has(dirfd))
		return faccessat(dirfd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
	fd = snap_handed_part(dirfd, name);
	if (fd < 0)
		return fd != -ENOENT;
	fd_close(&fd);
	return true;
}

int snap_part_read(int dirfd, const char *path, const char *name, size_t max_bytes, void **out,
		   size_t *len_bytes)
{
	u64 size_bytes;
	int fd, ret;

	fd = snap_part_open(dirfd, path, name, &size_bytes);
	if (fd < 0)
		return fd;
	*out = NULL;
	ret = -EFBIG;
	if (size_bytes > max_bytes)
		goto out_close;
	ret = -ENOMEM;
	*out = malloc(size_bytes + 1);
	if (!*out)
		goto out_close;
	ret = fd_read_full(fd, *out, size_bytes);
	*len_bytes = size_bytes;
out_close:
	if (ret) {
		log_err("%s/%s: %s", path, name, ret == -EFBIG ? "too large" : strerror(-ret));
		free(*out);
		*out = NULL;
	}
	fd_close(&fd);
	return ret;
}
