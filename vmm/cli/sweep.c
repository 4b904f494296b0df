// SPDX-License-Identifier: Apache-2.0
// Leftovers of commands that were killed.
//
// Theory of operation
//
// Most of what a command makes on its way has no name until it is whole (O_TMPFILE, memfd), and
// goes with the process. What needs a name is held locked (flock) by the process that works on it;
// a lock goes with its holder, however that ends. So a name whose lock can be had belongs to
// nobody:
//
//   templates/.NAME.tmp-*  a snapshot being written     its own lock
//   templates/.NAME.rm-*   a template being removed     its own lock
//   templates/.NAME.build  a lock itself
//   templates/NAME/.hot.tmp and a folder that is not read-only    .NAME.build
//   images/DIGEST/, empty  an image about to come: who makes it makes it again if it vanished
//   pools/NAME.sock        a pool's socket              nobody answers (pool_connect())
//
// Every command that changes or lists templates sweeps first. `thaw run` does not: it makes no name
// and must be fast; it clears the socket of its own template's pool (pool_client.c).
#include "vmm/cli/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/cli/pool.h"
#include "vmm/snapshot/internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define HOT_TMP_FILE ".hot.tmp"

/** Call @one for each name of ROOT/@sub. A folder that is not there is empty. */
static void for_each(const struct state *state, const char *sub,
		     void (*one)(const struct state *state, int parent_fd, const char *name))
{
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *dir;

	state_path(state, sub, NULL, NULL, path);
	dir = opendir(path);
	if (!dir)
		return;
	while ((entry = readdir(dir))) {
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			one(state, dirfd(dir), entry->d_name);
	}
	closedir(dir);
}

static void removed(const char *sub, const char *name, int ret)
{
	/* Gone by itself, or somebody's after all. */
	if (ret == -ENOENT || ret == -EBUSY || ret == -EWOULDBLOCK || ret == -ESTALE)
		return;
	if (ret)
		log_warn("%s/%s: left by a command that was killed; can't remove it: %s", sub, name,
			 strerror(-ret));
	else
		log_info("removed %s/%s, left by a command that was killed", sub, name);
}

/** ".NAME.build": whoever gets its lock while it has its name may unlink it. */
static int remove_lock(int parent_fd, const char *file)
{
	int fd = state_try_build_lock(parent_fd, file, false), ret;

	if (fd < 0)
		return fd;
	ret = unlinkat(parent_fd, file, 0) < 0 ? -errno : 0;
	fd_close(&fd);
	return ret;
}

/** The open folder of a template: take away what is not finished, and seal it. */
static int seal_folder(int fd)
{
	if (faccessat(fd, SNAP_FILE_MANIFEST, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
		return -ENOENT;
	if (unlinkat(fd, HOT_TMP_FILE, 0) < 0 && errno != ENOENT)
		return -errno;
	return fchmod(fd, 0500) < 0 ? -errno : 0;
}

/** A published folder that an addition to it left open, unless the addition is under way. */
static void seal_again(const struct state *state, int parent_fd, const char *name)
{
	char file[STATE_NAME_MAX + 16];
	int lock_fd, fd, ret;

	snprintf(file, sizeof(file), ".%s.build", name);
	lock_fd = state_try_build_lock(parent_fd, file, true);
	if (lock_fd < 0)
		return;
	fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	ret = fd < 0 ? -errno : seal_folder(fd);
	fd_close(&fd);
	if (ret && ret != -ENOENT)
		log_warn("%s/templates/%s: left open by a command that was killed: %s", state->root,
			 name, strerror(-ret));
	if (unlinkat(parent_fd, file, 0) < 0)
		log_warn("%s/templates/%s: %s", state->root, file, strerror(errno));
	fd_close(&lock_fd);
}

static bool has_suffix(const char *name, const char *suffix)
{
	size_t len = strlen(name), suffix_len = strlen(suffix);

	return len > suffix_len && !strcmp(name + len - suffix_len, suffix);
}

static void sweep_template(const struct state *state, int parent_fd, const char *name)
{
	struct stat st;

	if (state_name_ok(name)) {
		/* As it is while something is added to it, and at no other time. */
		if (fstatat(parent_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    st.st_mode == (S_IFDIR | 0700) && st.st_uid == geteuid())
			seal_again(state, parent_fd, name);
		return;
	}
	if (name[0] != '.')
		return;
	if (has_suffix(name, ".build"))
		removed("templates", name, remove_lock(parent_fd, name));
	else if (strstr(name, ".tmp-") || strstr(name, ".rm-"))
		removed("templates", name, state_remove_flat(parent_fd, name, true));
}

static void sweep_image(const struct state *state, int parent_fd, const char *name)
{
	(void)state;
	if (unlinkat(parent_fd, name, AT_REMOVEDIR) == 0)
		removed("images", name, 0);
}

static void sweep_pool(const struct state *state, int parent_fd, const char *file)
{
	char name[STATE_NAME_MAX + 1];
	size_t len = strlen(file) - strlen(".sock");

	(void)parent_fd;
	if (!has_suffix(file, ".sock") || len > STATE_NAME_MAX)
		return;
	memcpy(name, file, len);
	name[len] = '\0';
	if (state_name_ok(name)) {
		int fd = pool_connect(state, name);

		fd_close(&fd);
	}
}

void state_sweep(const struct state *state)
{
	for_each(state, "templates", sweep_template);
	for_each(state, "images", sweep_image);
	for_each(state, "pools", sweep_pool);
}
