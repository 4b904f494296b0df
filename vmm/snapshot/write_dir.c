// SPDX-License-Identifier: Apache-2.0
// The folder of a snapshot that is being written: made under a temporary name, published by one
// rename, removed when anything fails.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * The temporary folder `.NAME.tmp-PID-RANDOM` stands beside the target, because rename(2) is atomic
 * only inside one file system. Its writer holds it locked (flock, exclusive) from its birth on, so
 * that the next writer of the same name can tell a leftover of a killed process (it gets the lock)
 * from work under way (it does not), without trusting process ids. A writer that loses the race for
 * its own fresh folder to such a clean-up just makes another one.
 *
 * Publishing: every file is synced before the rename, and the folders around it, so that after a
 * crash there is the old snapshot or the new one. A new name is taken by RENAME_NOREPLACE; an old
 * snapshot is exchanged with the new one in one step and removed afterwards under the temporary
 * name. Clones of the old one go on: they hold its files open. Readers lock the folder shared, and
 * the writer drops its lock only after the rename, so nobody opens half of a snapshot.
 *
 * After snap_write_prepare() the process may be confined by seccomp: what follows opens nothing by
 * an absolute path.
 */

static const char *const part_names[] = {SNAP_FILE_MANIFEST, SNAP_FILE_STATE, SNAP_FILE_MEMORY,
					 SNAP_FILE_DISK,     SNAP_FILE_DIFF,  "hot",
					 ".hot.tmp",	     SNAP_FILE_PACK};

#define TEMP_TRIES 16

/** remove_folder() - remove the snapshot folder @name, open as @fd, from @parent_fd: its known
 * files and itself. Return: 0 or -errno. */
static int remove_folder(int parent_fd, int fd, const char *name)
{
	/* A published folder is read-only, also for its owner. */
	if (fchmod(fd, 0700) < 0)
		return -errno;
	for (unsigned int i = 0; i < ARRAY_SIZE(part_names); i++) {
		if (unlinkat(fd, part_names[i], 0) < 0 && errno != ENOENT)
			return -errno;
	}
	return unlinkat(parent_fd, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

/** remove_leftover() - a temporary folder, unless its writer lives. */
static void remove_leftover(int parent_fd, const char *name)
{
	int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int ret;

	if (fd < 0)
		return;
	if (!flock(fd, LOCK_EX | LOCK_NB)) {
		ret = remove_folder(parent_fd, fd, name);
		if (ret)
			log_warn("leftover %s of an interrupted write can't be removed: %s", name,
				 strerror(-ret));
		else
			log_info("removed %s, left by an interrupted write", name);
	}
	fd_close(&fd);
}

static void remove_leftovers(const struct snap_writer *writer)
{
	char prefix[sizeof(writer->temp)];
	struct dirent *entry;
	DIR *dir;
	int fd;

	snprintf(prefix, sizeof(prefix), ".%s.tmp-", writer->target);
	fd = openat(writer->parent_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	dir = fdopendir(fd);
	if (!dir) {
		fd_close(&fd);
		return;
	}
	while ((entry = readdir(dir))) {
		if (!strncmp(entry->d_name, prefix, strlen(prefix)))
			remove_leftover(writer->parent_fd, entry->d_name);
	}
	closedir(dir);
}

/** make_temp_once() - one try. Return: 0, -EAGAIN (taken, or cleaned away before the lock was
 * ours), or -errno. */
static int make_temp_once(struct snap_writer *writer)
{
	struct stat st;
	u64 random;
	int ret;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	snprintf(writer->temp, sizeof(writer->temp), ".%s.tmp-%d-%016llx", writer->target,
		 (int)getpid(), (unsigned long long)random);
	if (mkdirat(writer->parent_fd, writer->temp, 0700) < 0) {
		ret = errno == EEXIST ? -EAGAIN : -errno;
		writer->temp[0] = '\0';
		return ret;
	}
	writer->temp_fd = openat(writer->parent_fd, writer->temp,
				 O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (writer->temp_fd < 0)
		return errno == ENOENT ? -EAGAIN : -errno;
	if (flock(writer->temp_fd, LOCK_EX | LOCK_NB) < 0 || fstat(writer->temp_fd, &st) < 0 ||
	    st.st_nlink == 0) {
		fd_close(&writer->temp_fd);
		return -EAGAIN;
	}
	return 0;
}

static int make_temp(struct snap_writer *writer)
{
	int ret = -EAGAIN;

	for (unsigned int i = 0; i < TEMP_TRIES && ret == -EAGAIN; i++)
		ret = make_temp_once(writer);
	return ret;
}

/** make_part() - a new file of the temporary folder. Return: a file descriptor or -errno (logged).
 */
static int make_part(const struct snap_writer *writer, const char *name)
{
	int fd = openat(writer->temp_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			0600);
	int ret;

	if (fd >= 0)
		return fd;
	ret = -errno;
	log_err("%s/%s: %s", writer->opts.path, name, strerror(-ret));
	return ret;
}

static int make_parts(struct snap_writer *writer)
{
	const struct {
		const char *name;
		int *fd;
	} parts[] = {
		{SNAP_FILE_MANIFEST, &writer->manifest_fd},
		{SNAP_FILE_STATE, &writer->state_fd},
		{SNAP_FILE_MEMORY, &writer->memory_fd},
		{SNAP_FILE_DISK, &writer->disk_fd},
		{SNAP_FILE_DIFF, writer->opts.diff ? &writer->diff_fd : NULL},
	};

	for (unsigned int i = 0; i < ARRAY_SIZE(parts); i++) {
		int fd;

		if (!parts[i].fd)
			continue;
		fd = make_part(writer, parts[i].name);
		if (fd < 0)
			return fd;
		*parts[i].fd = fd;
	}
	return 0;
}

/** check_target() - the target is free, or may be replaced: only something that says it is a
 * snapshot is ever removed. */
static int check_target(const struct snap_writer *writer)
{
	char *text = NULL;
	json_t *root = NULL;
	const char *format;
	int fd, ret = -EEXIST;

	fd = openat(writer->parent_fd, writer->target,
		    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0) {
		log_err("%s: exists and is no snapshot", writer->opts.path);
		return -EEXIST;
	}
	if (!writer->opts.replace) {
		log_err("%s: already exists", writer->opts.path);
		goto out;
	}
	if (!file_read_all(fd, SNAP_FILE_MANIFEST, SNAP_MANIFEST_MAX_BYTES, &text, NULL))
		root = json_loads(text, 0, NULL);
	format = json_string_value(json_object_get(root, "format"));
	if (format && !strcmp(format, SNAP_FORMAT_NAME))
		ret = 0;
	else
		log_err("%s: not replaced, because it is no snapshot", writer->opts.path);
	json_decref(root);
	free(text);
out:
	fd_close(&fd);
	return ret;
}

/** check_name() - @name is that of a file in the folder that was given. Return: 0 or -EINVAL
 * (logged). */
static int check_name(struct snap_writer *writer, const char *name)
{
	writer->target = name;
	if (*name && *name != '.' && !strchr(name, '/') &&
	    strlen(name) + 40 <= sizeof(writer->temp))
		return 0;
	log_err("'%s': no name for a snapshot's folder", name);
	return -EINVAL;
}

/** open_parent() - the folder that opts.path stands in, which is cut into folder and name here. */
static int open_parent(struct snap_writer *writer)
{
	char *path = (char *)writer->opts.path;
	size_t len = strlen(path);
	char *slash;
	int ret;

	if (writer->opts.folder_fd > 0)
		return check_name(writer, path);
	while (len > 1 && path[len - 1] == '/')
		path[--len] = '\0';
	slash = strrchr(path, '/');
	writer->target = slash ? slash + 1 : path;
	if (!*writer->target || !strcmp(writer->target, ".") || !strcmp(writer->target, "..") ||
	    strlen(writer->target) + 40 > sizeof(writer->temp)) {
		log_err("%s: no name for a snapshot's folder", path);
		return -EINVAL;
	}
	if (!slash) {
		writer->parent_fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	} else if (slash == path) {
		writer->parent_fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	} else {
		*slash = '\0';
		writer->parent_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		ret = -errno;
		if (writer->parent_fd < 0)
			log_err("%s: %s", path, strerror(-ret));
		*slash = '/';
		return writer->parent_fd < 0 ? ret : 0;
	}
	return writer->parent_fd < 0 ? -errno : 0;
}

int snap_writer_open(struct snap_writer *writer)
{
	int ret;

	ret = open_parent(writer);
	if (ret)
		return ret;
	if (writer->opts.into) {
		writer->temp_fd = writer->parent_fd;
		writer->parent_fd = -1;
		return make_parts(writer);
	}
	ret = check_target(writer);
	if (ret)
		return ret;
	if (writer->opts.folder_fd <= 0)
		remove_leftovers(writer);
	ret = make_temp(writer);
	if (ret) {
		log_err("%s: can't make a temporary folder beside it: %s", writer->opts.path,
			strerror(-ret));
		return ret;
	}
	return make_parts(writer);
}

static int sync_fd(const struct snap_writer *writer, int fd)
{
	return writer->opts.no_sync ? 0 : fsync(fd);
}

/** finish_part() - read-only, on the disk, closed. */
static int finish_part(const struct snap_writer *writer, const char *name, int *fd)
{
	int ret = 0;

	if (fchmod(*fd, 0400) < 0 || sync_fd(writer, *fd) < 0) {
		ret = -errno;
		log_err("%s/%s: %s", writer->opts.path, name, strerror(-ret));
	}
	fd_close(fd);
	return ret;
}

/** move_in_place() - Return: 0, 1 when the old snapshot now has the temporary name, or -errno. */
static int move_in_place(const struct snap_writer *writer)
{
	if (!renameat2(writer->parent_fd, writer->temp, writer->parent_fd, writer->target,
		       RENAME_NOREPLACE))
		return 0;
	if (errno != EEXIST || !writer->opts.replace)
		return -errno;
	if (!renameat2(writer->parent_fd, writer->temp, writer->parent_fd, writer->target,
		       RENAME_EXCHANGE))
		return 1;
	return -errno;
}

static void remove_old(const struct snap_writer *writer)
{
	int fd = openat(writer->parent_fd, writer->temp,
			O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int ret = fd < 0 ? -errno : remove_folder(writer->parent_fd, fd, writer->temp);

	/* The new one is in place: no reason to fail. The next writer of this name tries again. */
	if (ret)
		log_warn("%s: the snapshot it replaced is left as %s: %s", writer->opts.path,
			 writer->temp, strerror(-ret));
	fd_close(&fd);
}

int snap_writer_publish(struct snap_writer *writer, bool has_disk)
{
	int ret;

	if (!has_disk) {
		fd_close(&writer->disk_fd);
		if (unlinkat(writer->temp_fd, SNAP_FILE_DISK, 0) < 0)
			return -errno;
	}
	ret = finish_part(writer, SNAP_FILE_MEMORY, &writer->memory_fd);
	if (!ret && has_disk)
		ret = finish_part(writer, SNAP_FILE_DISK, &writer->disk_fd);
	if (!ret && writer->opts.diff)
		ret = finish_part(writer, SNAP_FILE_DIFF, &writer->diff_fd);
	if (!ret)
		ret = finish_part(writer, SNAP_FILE_MANIFEST, &writer->manifest_fd);
	if (!ret)
		ret = finish_part(writer, SNAP_FILE_STATE, &writer->state_fd);
	if (ret)
		return ret;
	if (fchmod(writer->temp_fd, 0500) < 0 || sync_fd(writer, writer->temp_fd) < 0) {
		ret = -errno;
		log_err("%s: %s", writer->opts.path, strerror(-ret));
		return ret;
	}
	ret = snap_writer_diff_check(writer);
	if (ret)
		return ret;
	if (writer->opts.wanted && !writer->opts.wanted(writer->opts.opaque)) {
		log_err("%s: not published: nobody wants it any more", writer->opts.path);
		return -ECANCELED;
	}
	if (writer->opts.into) {
		fd_close(&writer->temp_fd);
		return 0;
	}
	ret = move_in_place(writer);
	if (ret < 0) {
		log_err("%s: can't be put in place: %s", writer->opts.path, strerror(-ret));
		return ret;
	}
	if (ret == 1)
		remove_old(writer);
	/* From here on the temporary name is not ours any more. */
	writer->temp[0] = '\0';
	if (sync_fd(writer, writer->parent_fd) < 0) {
		ret = -errno;
		log_err("%s: syncing the folder it stands in: %s", writer->opts.path,
			strerror(-ret));
		return ret;
	}
	fd_close(&writer->temp_fd);
	return 0;
}

void snap_writer_close(struct snap_writer *writer)
{
	int ret;

	fd_close(&writer->memory_fd);
	fd_close(&writer->disk_fd);
	fd_close(&writer->state_fd);
	fd_close(&writer->manifest_fd);
	fd_close(&writer->diff_fd);
	/* In a folder that is the caller's, what was not published does not stay either. */
	for (unsigned int i = 0;
	     writer->opts.into && writer->temp_fd >= 0 && i < ARRAY_SIZE(part_names); i++)
		(void)unlinkat(writer->temp_fd, part_names[i], 0);
	if (writer->temp[0] && writer->temp_fd >= 0) {
		ret = remove_folder(writer->parent_fd, writer->temp_fd, writer->temp);
		if (ret)
			log_warn("%s: temporary folder %s is left: %s", writer->opts.path,
				 writer->temp, strerror(-ret));
	}
	fd_close(&writer->temp_fd);
	fd_close(&writer->parent_fd);
}
