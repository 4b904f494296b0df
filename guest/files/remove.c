// SPDX-License-Identifier: Apache-2.0
/*
 * Removing trees, of any depth, while others may change them.
 *
 * Names are only ever looked up in a folder that is open, and a folder below is opened with
 * O_NOFOLLOW: a link that takes its place meanwhile is removed, never followed. Of a deep tree the
 * outer folders are closed on the way down (OPEN_LEVELS stay) and opened again as ".." on the way
 * up; if that is not the folder it was, somebody moved the tree away, and the removal ends.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/files/files.h"

#define OPEN_LEVELS 128

struct level {
	DIR *dir; /* NULL: closed for the time being */
	dev_t dev;
	ino_t ino;
	char name[256]; /* in the folder above */
};

struct tree {
	struct level *levels;
	size_t count, room;
	u64 removed;
};

static int push(struct tree *tree, int parent, const char *name)
{
	struct level *level;
	struct stat st;
	int fd, err;

	if (tree->count == tree->room) {
		size_t room = tree->room ? 2 * tree->room : 32;
		struct level *more = realloc(tree->levels, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		tree->levels = more;
		tree->room = room;
	}
	fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	level = &tree->levels[tree->count];
	level->dir = NULL;
	if (fstat(fd, &st) || !(level->dir = fdopendir(fd))) {
		err = -errno;
		close(fd);
		return err;
	}
	level->dev = st.st_dev;
	level->ino = st.st_ino;
	snprintf(level->name, sizeof(level->name), "%s", name);
	if (tree->count >= OPEN_LEVELS) {
		struct level *above = &tree->levels[tree->count - OPEN_LEVELS];

		/* The top stays open: its parent is found through its own name. */
		if (tree->count > OPEN_LEVELS && above->dir) {
			closedir(above->dir);
			above->dir = NULL;
		}
	}
	tree->count++;
	return 0;
}

/* The folder above is needed again. @below: the one that is in it. */
static int reopen(struct level *level, int below)
{
	struct stat st;
	int fd, err;

	if (level->dir)
		return 0;
	fd = openat(below, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st)) {
		err = -errno;
	} else if (st.st_dev != level->dev || st.st_ino != level->ino) {
		err = -EBUSY;
	} else {
		level->dir = fdopendir(fd);
		err = level->dir ? 0 : -errno;
	}
	if (err)
		close(fd);
	return err;
}

static int unlink_name(struct tree *tree, int parent, const char *name, int flags)
{
	if (unlinkat(parent, name, flags)) {
		if (errno == ENOENT)
			return 0;
		return -errno;
	}
	tree->removed++;
	return 0;
}

/* The innermost folder is empty: it goes. @parent: the one the whole tree is in. */
static int pop(struct tree *tree, int parent)
{
	struct level *level = &tree->levels[tree->count - 1];
	struct level *above = tree->count > 1 ? level - 1 : NULL;
	int err = 0;

	if (above)
		err = reopen(above, dirfd(level->dir));
	closedir(level->dir);
	level->dir = NULL;
	tree->count--;
	if (!err)
		err = unlink_name(tree, above ? dirfd(above->dir) : parent, level->name,
				  AT_REMOVEDIR);
	return err;
}

/* *@name: the next one; NULL: there is none. Return: 0 or -errno. */
static int next_name(DIR *dir, const char **name, unsigned char *type)
{
	struct dirent *entry;

	do {
		errno = 0;
		entry = readdir(dir);
		*name = NULL;
		if (!entry)
			return -errno;
	} while (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."));
	*name = entry->d_name;
	*type = entry->d_type;
	return 0;
}

static int remove_entry(struct tree *tree, int parent, const char *name, unsigned char type)
{
	int err = -EISDIR;

	if (type != DT_DIR)
		err = unlink_name(tree, parent, name, 0);
	/* EISDIR: a folder whose kind the file system does not tell. */
	if (err != -EISDIR)
		return err;
	err = push(tree, parent, name);
	/* It became something else, or went. */
	if (err == -ENOTDIR || err == -ELOOP)
		return unlink_name(tree, parent, name, 0);
	return err == -ENOENT ? 0 : err;
}

static int remove_tree(struct tree *tree, int parent, const char *name)
{
	const char *entry = NULL;
	unsigned char type = DT_UNKNOWN;
	int err = push(tree, parent, name);

	while (!err && tree->count) {
		DIR *dir = tree->levels[tree->count - 1].dir;

		err = next_name(dir, &entry, &type);
		if (!err && entry)
			err = remove_entry(tree, dirfd(dir), entry, type);
		else if (!err)
			err = pop(tree, parent);
	}
	return err;
}

/* Where it stopped, for the error. */
static int fail_in(const struct tree *tree, const char *top, int err)
{
	static char path[FILES_NAME_MAX_BYTES + 1];
	size_t used = (size_t)snprintf(path, sizeof(path), "%s", top);

	for (size_t i = 1; i < tree->count && used < sizeof(path); i++)
		used += (size_t)snprintf(path + used, sizeof(path) - used, "/%s",
					 tree->levels[i].name);
	return out_fail(-err, path, NULL, NULL);
}

/*
 * Split into the folder and the name in it; slashes at the end are dropped, so that a link to a
 * folder is not followed. Return: 0, or a positive errno for names that can't be removed.
 */
static int split(char *path, const char **folder, char **name, bool *slash)
{
	size_t len = strlen(path);
	char *last;

	if (!len)
		return ENOENT;
	*slash = path[len - 1] == '/';
	while (len && path[len - 1] == '/')
		path[--len] = '\0';
	if (!len) {
		memcpy(path, "/", 2);
		return EBUSY;
	}
	last = strrchr(path, '/');
	*name = last ? last + 1 : path;
	if (!strcmp(*name, ".") || !strcmp(*name, ".."))
		return EINVAL;
	if (!last)
		*folder = ".";
	else
		*folder = last == path ? "/" : path;
	return 0;
}

static int open_folder(char *path, const char *folder, const char *name)
{
	size_t cut = (size_t)(name - path);
	int fd;

	/* "/a/b": "/a" for a moment. */
	if (folder == path)
		path[cut - 1] = '\0';
	fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (folder == path)
		path[cut - 1] = '/';
	return fd < 0 ? -errno : fd;
}

static int remove_at(int parent, const char *name, bool slash, bool recursive, struct tree *tree)
{
	struct stat st;

	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (!S_ISDIR(st.st_mode)) {
		if (slash)
			return -ENOTDIR;
		if (unlinkat(parent, name, 0))
			return -errno;
		tree->removed++;
		return 0;
	}
	return recursive ? remove_tree(tree, parent, name) : -EISDIR;
}

int op_remove(char **args)
{
	unsigned int flags = arg_flags(args[1], "rf");
	bool recursive = flags & 1, force = flags & 2, slash = false;
	char *path = args[0], *name = path;
	const char *folder = ".";
	struct tree tree = {0};
	int parent, err;

	err = split(path, &folder, &name, &slash);
	if (err)
		return out_fail(err, path, NULL, NULL);
	parent = open_folder(path, folder, name);
	err = parent < 0 ? parent : remove_at(parent, name, slash, recursive, &tree);
	if (err == -ENOENT && force && !tree.removed)
		err = 0;
	if (err)
		err = fail_in(&tree, path, err);
	else
		err = out_done(0, tree.removed);
	free(tree.levels);
	return err;
}
