// SPDX-License-Identifier: Apache-2.0
// Operations on one name: stat, mkdir, rename, symlink, chmod, chown.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/files/files.h"

static int tell(const char *path, const struct stat *st)
{
	struct files_message msg = {.type = FILES_ENTRY};
	char target[PATH_MAX];
	ssize_t n;

	stat_pack(st, &msg.entry.stat);
	if (S_ISLNK(st->st_mode)) {
		n = readlink(path, target, sizeof(target));
		if (n < 0)
			return out_fail(errno, path, NULL, NULL);
		msg.to = (struct files_str){.bytes = target, .len_bytes = (size_t)n};
	}
	out_message(&msg);
	return out_done(0, 1);
}

int op_stat(char **args)
{
	struct stat st;

	if (stat(args[0], &st))
		return out_fail(errno, args[0], NULL, NULL);
	return tell(args[0], &st);
}

int op_lstat(char **args)
{
	struct stat st;

	if (lstat(args[0], &st))
		return out_fail(errno, args[0], NULL, NULL);
	return tell(args[0], &st);
}

/* mkdir(2) takes no set-group-id bit. */
static int mkdir_mode(const char *path, mode_t mode)
{
	if (mkdir(path, mode) || ((mode & 06000) && chmod(path, mode)))
		return -errno;
	return 0;
}

/* What is there already serves as well, if it is a folder. @last: of the path. */
static int mkdir_unless(const char *path, mode_t mode, bool last)
{
	int err = mkdir_mode(path, mode);
	struct stat st;

	/* A read-only or foreign parent of what exists is no obstacle. */
	if (!err || stat(path, &st))
		return err;
	if (S_ISDIR(st.st_mode))
		return 0;
	return last ? -EEXIST : -ENOTDIR;
}

int op_mkdir(char **args)
{
	mode_t mode = arg_mode(args[1]);
	char *path = args[0], *at;
	int err;

	if (!arg_flags(args[2], "r")) {
		err = mkdir_mode(path, mode);
		return err ? out_fail(-err, path, NULL, NULL) : out_done(0, 1);
	}
	for (at = path + strspn(path, "/"); *at; at += strspn(at, "/")) {
		char *end = at + strcspn(at, "/"), saved = *end;
		bool last = !end[strspn(end, "/")];

		*end = '\0';
		err = mkdir_unless(path, last ? mode : 0755, last);
		if (err)
			return out_fail(-err, path, NULL, NULL);
		*end = saved;
		at = end;
	}
	/* "", or "/" alone. */
	if (!path[0])
		return out_fail(ENOENT, path, NULL, NULL);
	return out_done(0, 1);
}

int op_rename(char **args)
{
	if (rename(args[0], args[1]))
		return out_fail(errno, args[0], args[1], NULL);
	return out_done(0, 1);
}

int op_symlink(char **args)
{
	if (symlink(args[0], args[1]))
		return out_fail(errno, args[1], NULL, NULL);
	return out_done(0, 1);
}

int op_chmod(char **args)
{
	if (chmod(args[0], arg_mode(args[1])))
		return out_fail(errno, args[0], NULL, NULL);
	return out_done(0, 1);
}

int op_chown(char **args)
{
	/* -1 is chown(2)'s "leave it". */
	uid_t uid = strcmp(args[1], "-") ? (uid_t)arg_number(args[1], UINT32_MAX - 1) : (uid_t)-1;
	gid_t gid = strcmp(args[2], "-") ? (gid_t)arg_number(args[2], UINT32_MAX - 1) : (gid_t)-1;
	int flags = arg_flags(args[3], "n") ? AT_SYMLINK_NOFOLLOW : 0;

	if (fchownat(AT_FDCWD, args[0], uid, gid, flags))
		return out_fail(errno, args[0], NULL, NULL);
	return out_done(0, 1);
}
