// SPDX-License-Identifier: Apache-2.0
// Files of a snapshot that were opened before a jail was entered.
#include "vmm/snapshot/handed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/jail/jail.h"
#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static const char *const names[] = {SNAP_FILE_MANIFEST, SNAP_FILE_STATE, SNAP_FILE_MEMORY,
				    SNAP_FILE_DISK,	SNAP_FILE_DIFF,	 SNAP_FILE_HOT,
				    SNAP_FILE_PACK};

struct folder {
	char name[NAME_MAX + sizeof("../")]; /* as it is asked for; "": the one itself */
	int fd;				     /* also after it was given out */
	int part_fds[ARRAY_SIZE(names)];
	int direct_fd;
};

static struct folder folders[SNAP_CHAIN_MAX];
static unsigned int nfolders;
static int root_fd = -1;
static char root_path[PATH_MAX];

/** Nobody but root may change it. Return: 0 or -errno (logged). */
static int vouch(int fd, const char *path, const char *name)
{
	const char *why = "can't be examined";
	struct stat st;

	if (fstat(fd, &st) == 0)
		why = snap_check_owner(&st);
	if (!why)
		return 0;
	log_err("%s/%s: %s", path, name, why);
	return -EPERM;
}

static int open_parts(struct folder *folder, const char *path, bool direct)
{
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		int fd = openat(folder->fd, names[i],
				O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		int ret;

		if (fd < 0 && errno == ENOENT)
			continue;
		if (fd < 0) {
			ret = -errno;
			log_err("%s/%s: %s", path, names[i],
				ret == -ELOOP ? "is a symbolic link" : strerror(-ret));
			return ret;
		}
		folder->part_fds[i] = fd;
		ret = vouch(fd, path, names[i]);
		if (ret)
			return ret;
	}
	/* A file system that has none: the strategy that wants it says so. */
	if (direct)
		folder->direct_fd =
			openat(folder->fd, SNAP_FILE_MEMORY,
			       O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	return 0;
}

static int open_folder(const char *path, const char *name, bool direct)
{
	struct folder *folder = &folders[nfolders];
	int ret;

	if (nfolders == ARRAY_SIZE(folders)) {
		log_err("%s: the chain of its parents is longer than %d", path, SNAP_CHAIN_MAX);
		return -ELOOP;
	}
	snprintf(folder->name, sizeof(folder->name), "%s", name);
	folder->direct_fd = -1;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		folder->part_fds[i] = -1;
	folder->fd = jail_detach_folder(AT_FDCWD, path, true);
	if (folder->fd < 0) {
		log_err("%s: %s", path, strerror(-folder->fd));
		return folder->fd;
	}
	nfolders++;
	ret = vouch(folder->fd, path, "");
	return ret ? ret : open_parts(folder, path, direct);
}

static int open_parents(const struct snap_handed_opts *opts)
{
	size_t len = strlen(opts->folder);
	const char *name = opts->parents;

	while (len > 1 && opts->folder[len - 1] == '/')
		len--;
	while (len > 0 && opts->folder[len - 1] != '/')
		len--;
	while (name && *name) {
		const int name_len = (int)strcspn(name, ":");
		char path[PATH_MAX], asked[sizeof(folders[0].name)];
		int ret;

		if (name[0] == '.' || memchr(name, '/', (size_t)name_len) ||
		    snprintf(asked, sizeof(asked), "../%.*s", name_len, name) >=
			    (int)sizeof(asked) ||
		    snprintf(path, sizeof(path), "%.*s%.*s", (int)len, opts->folder, name_len,
			     name) >= (int)sizeof(path)) {
			log_err("'%.*s': no name of a snapshot", name_len, name);
			return -EINVAL;
		}
		ret = open_folder(path, asked, opts->direct);
		if (ret)
			return ret;
		name += name_len + (name[name_len] == ':');
	}
	return 0;
}

int snap_handed_open(const struct snap_handed_opts *opts)
{
	int ret;

	ret = open_folder(opts->folder, "", opts->direct);
	ret = ret ?: open_parents(opts);
	if (ret || !opts->root_image)
		return ret;
	if (snprintf(root_path, sizeof(root_path), "%s", opts->root_image) >=
	    (int)sizeof(root_path))
		return -ENAMETOOLONG;
	root_fd = open(root_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (root_fd < 0) {
		ret = -errno;
		log_err("root image %s: %s", root_path, strerror(-ret));
		return ret;
	}
	return vouch(root_fd, root_path, "");
}

void snap_handed_close(void)
{
	for (unsigned int i = 0; i < nfolders; i++) {
		for (size_t j = 0; j < ARRAY_SIZE(names); j++)
			fd_close(&folders[i].part_fds[j]);
		fd_close(&folders[i].direct_fd);
		/* The folder itself is the snapshot's by now, and holds its lock. */
	}
	fd_close(&root_fd);
}

bool snap_handed_any(void)
{
	return nfolders > 0;
}

bool snap_handed_has(int dirfd)
{
	for (unsigned int i = 0; i < nfolders; i++) {
		if (folders[i].fd == dirfd)
			return true;
	}
	return false;
}

int snap_handed_folder(const char *name)
{
	for (unsigned int i = 0; i < nfolders; i++) {
		/* The first is the one that all begins with, by whatever path. */
		if (i ? !strcmp(folders[i].name, name) : strncmp(name, "../", 3) != 0)
			return folders[i].fd;
	}
	return -ENOENT;
}

static int give(int fd)
{
	int dup_fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);

	if (fd < 0)
		return -ENOENT;
	/* Whoever had it before may have read. */
	if (dup_fd < 0 || lseek(dup_fd, 0, SEEK_SET) < 0)
		return -errno;
	return dup_fd;
}

int snap_handed_part(int dirfd, const char *name)
{
	for (unsigned int i = 0; i < nfolders; i++) {
		for (size_t j = 0; folders[i].fd == dirfd && j < ARRAY_SIZE(names); j++) {
			if (!strcmp(names[j], name))
				return give(folders[i].part_fds[j]);
		}
	}
	return -ENOENT;
}

int snap_handed_root(const char *path)
{
	return root_fd >= 0 && !strcmp(path, root_path) ? give(root_fd) : -ENOENT;
}

int snap_handed_direct(int memory_fd)
{
	struct stat want, found;

	if (fstat(memory_fd, &want) < 0)
		return -errno;
	for (unsigned int i = 0; i < nfolders; i++) {
		if (folders[i].direct_fd >= 0 && fstat(folders[i].direct_fd, &found) == 0 &&
		    found.st_dev == want.st_dev && found.st_ino == want.st_ino)
			return give(folders[i].direct_fd);
	}
	return -ENOENT;
}
