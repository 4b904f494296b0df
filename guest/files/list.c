// SPDX-License-Identifier: Apache-2.0
/*
 * A folder's content, streamed: whatever its size, what waits is one buffer of entries.
 *
 * Each level of the depth that was asked for holds one open folder. A folder is opened, without
 * following a link, before it is told, so that its entry can say if its content could be listed.
 * Names that go away meanwhile are as if they had never been there.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/files/files.h"

struct list {
	char path[FILES_NAME_MAX_BYTES + 1]; /* of the folder under way, relative; ends in '/' */
	size_t path_bytes;
	unsigned int depth; /* that is left below it */
	u64 count;
};

static int list_folder(struct list *list, DIR *dir);

static DIR *open_below(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (!dir && fd >= 0)
		close(fd);
	return dir;
}

/* Return: 0; -ENOENT: it has gone. */
static int tell(const struct list *list, int parent, const char *name, const struct stat *st,
		int error)
{
	struct files_message msg = {.type = FILES_ENTRY};
	char target[PATH_MAX];
	ssize_t n;

	stat_pack(st, &msg.entry.stat);
	msg.entry.error = (u32)error;
	msg.path = (struct files_str){.bytes = list->path,
				      .len_bytes = list->path_bytes + strlen(name)};
	if (S_ISLNK(st->st_mode)) {
		n = readlinkat(parent, name, target, sizeof(target));
		if (n < 0)
			return -ENOENT;
		msg.to = (struct files_str){.bytes = target, .len_bytes = (size_t)n};
	}
	out_message(&msg);
	return 0;
}

static int list_entry(struct list *list, int parent, const char *name)
{
	size_t name_bytes = strlen(name);
	struct stat st;
	DIR *below = NULL;
	int error = 0, err = 0;

	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0 : -errno;
	/* FILES_LIST_DEPTH_MAX names and their slashes fit. */
	memcpy(list->path + list->path_bytes, name, name_bytes + 1);
	if (S_ISDIR(st.st_mode) && list->depth) {
		below = open_below(parent, name);
		error = below ? 0 : errno;
	}
	if (!tell(list, parent, name, &st, error))
		list->count++;
	if (below) {
		list->path_bytes += name_bytes;
		list->path[list->path_bytes++] = '/';
		list->depth--;
		err = list_folder(list, below);
		list->depth++;
		list->path_bytes -= name_bytes + 1;
	}
	list->path[list->path_bytes] = '\0';
	return err;
}

/* Closes @dir. Return: 0 or -errno; then the path is that of the folder it happened in. */
static int list_folder(struct list *list, DIR *dir)
{
	int err = 0;

	while (!err) {
		struct dirent *entry;

		errno = 0;
		entry = readdir(dir);
		if (!entry) {
			err = -errno;
			break;
		}
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			err = list_entry(list, dirfd(dir), entry->d_name);
	}
	closedir(dir);
	return err;
}

_Static_assert(FILES_LIST_DEPTH_MAX *(NAME_MAX + 1) <= FILES_NAME_MAX_BYTES, "paths fit");

int op_list(char **args)
{
	static struct list list;
	struct stat st;
	DIR *dir;
	int err;

	list.depth = (unsigned int)arg_number(args[1], FILES_LIST_DEPTH_MAX);
	if (!list.depth--)
		return out_fail(EINVAL, args[0], NULL, "the depth is 0");
	dir = opendir(args[0]);
	if (!dir)
		return out_fail(errno, args[0], NULL, NULL);
	if (fstat(dirfd(dir), &st)) {
		err = errno;
		closedir(dir);
		return out_fail(err, args[0], NULL, NULL);
	}
	out_opened(&st, 0, -1);
	err = list_folder(&list, dir);
	if (err)
		return out_fail(-err, args[0], NULL, NULL);
	return out_done(0, list.count);
}
