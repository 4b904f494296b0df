// SPDX-License-Identifier: Apache-2.0
// The state folder: names, paths, locks, removal.
//
// Theory of operation
//
// A template is published by one rename(2) and removed by one: first to a hidden name, then its
// files are deleted. Whoever looks sees a whole template or none. Files that a running sandbox has
// open stay readable after a removal, so the lock is not what keeps a sandbox alive; it is there so
// that `rm` does not surprise its owner.
//
// A build holds an exclusive flock on templates/.NAME.build. The lock file is unlinked by its
// holder; another process may have opened it just before that and then gets a lock on a file nobody
// else will find. So after every flock the name is looked up again, and the file is only good if it
// is still the one behind the name.
//
// What a killed build leaves is a folder .NAME.tmp-PID-RANDOM, which the next build of NAME
// removes; not while its thaw-vmm, which holds it locked, is still on its way out. The other
// leftovers of whatever was killed go by state_sweep() (sweep.c).
#include "vmm/cli/state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "vmm/cli/sweep.h"
#include "vmm/snapshot/seal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define STATE_DEFAULT_ROOT "/var/lib/thaw"

static bool name_char_ok(char c, bool first)
{
	if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
		return true;
	return !first && (c == '.' || c == '_' || c == '-');
}

bool state_name_ok(const char *name)
{
	size_t len = strnlen(name, STATE_NAME_MAX + 1);

	if (!len || len > STATE_NAME_MAX)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (!name_char_ok(name[i], i == 0))
			return false;
	}
	return true;
}

int state_init(struct state *state)
{
	const char *root = getenv("THAW_STATE");
	size_t len;

	if (!root || !*root)
		root = STATE_DEFAULT_ROOT;
	len = strlen(root);
	while (len > 1 && root[len - 1] == '/')
		len--;
	/* The names below are appended: 16 bytes of folder, a template's name, a suffix. */
	if (len >= sizeof(state->root)) {
		log_err("THAW_STATE is too long: %zu bytes, at most %zu", len,
			sizeof(state->root) - 1);
		return -ENAMETOOLONG;
	}
	if (root[0] != '/') {
		log_err("THAW_STATE=%s: not an absolute path", root);
		return -EINVAL;
	}
	memcpy(state->root, root, len);
	state->root[len] = '\0';
	return 0;
}

void state_path(const struct state *state, const char *sub, const char *name, const char *suffix,
		char out[PATH_MAX])
{
	int len;

	if (name)
		len = snprintf(out, PATH_MAX, "%s/%s/%s%s", state->root, sub, name, suffix);
	else
		len = snprintf(out, PATH_MAX, "%s/%s", state->root, sub);
	BUG_ON(len < 0 || len >= PATH_MAX);
}

static int make_folder(const char *path, mode_t mode)
{
	if (mkdir(path, mode) == 0 || errno == EEXIST)
		return 0;
	return -errno;
}

/** Parents too, like mkdir -p. */
static int make_root(const char *root)
{
	char path[PATH_MAX];
	int ret = 0;

	snprintf(path, sizeof(path), "%s", root);
	for (char *slash = path + 1; !ret && (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		ret = make_folder(path, 0755);
		*slash = '/';
	}
	return ret ? ret : make_folder(path, 0755);
}

int state_make(const struct state *state)
{
	/* A template's memory holds whatever its warm-up had in memory: for the owner only. */
	static const struct {
		const char *name;
		mode_t mode;
	} parts[] = {{"templates", 0700}, {"images", 0755}, {"logs", 0700}, {"scratch", 0700}};
	char path[PATH_MAX];
	int ret;

	ret = make_root(state->root);
	if (ret) {
		log_err("%s: can't create the state folder: %s", state->root, strerror(-ret));
		return ret;
	}
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		state_path(state, parts[i].name, NULL, NULL, path);
		ret = make_folder(path, parts[i].mode);
		if (ret) {
			log_err("%s: can't create: %s", path, strerror(-ret));
			return ret;
		}
	}
	return 0;
}

int state_make_scratch(const struct state *state)
{
	char path[PATH_MAX];
	int ret;

	state_path(state, "scratch", NULL, NULL, path);
	ret = make_folder(path, 0700);
	if (ret)
		log_err("%s: can't create: %s", path, strerror(-ret));
	return ret;
}

int state_lock_template(const struct state *state, const char *name, bool exclusive)
{
	char path[PATH_MAX];
	int fd, ret;

	BUG_ON(!state_name_ok(name));
	state_path(state, "templates", name, "", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) < 0) {
		ret = errno == EWOULDBLOCK ? -EBUSY : -errno;
		close(fd);
		return ret;
	}
	return fd;
}

bool state_in_use(const struct state *state, const char *name)
{
	char path[PATH_MAX], wanted[64];
	bool found = false;
	char *line = NULL;
	size_t room = 0;
	struct stat st;
	FILE *locks;

	state_path(state, "templates", name, "", path);
	if (lstat(path, &st) < 0)
		return false;
	locks = fopen("/proc/locks", "re");
	if (!locks)
		return false;
	/* "1: FLOCK  ADVISORY  READ  4711 fd:01:1234 0 EOF" */
	snprintf(wanted, sizeof(wanted), " %02x:%02x:%llu ", major(st.st_dev), minor(st.st_dev),
		 (unsigned long long)st.st_ino);
	while (!found && getline(&line, &room, locks) > 0)
		found = strstr(line, " FLOCK ") && strstr(line, wanted);
	free(line);
	(void)fclose(locks);
	return found;
}

int state_remove_flat(int parent_fd, const char *name, bool leftover)
{
	struct dirent *entry;
	int fd, ret = 0;
	DIR *dir;

	fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	/* Published folders are read-only, which stops every user but root from deleting in them.
	 */
	if ((leftover && flock(fd, LOCK_EX | LOCK_NB) < 0) || fchmod(fd, 0700) < 0) {
		ret = -errno;
		close(fd);
		return ret;
	}
	dir = fdopendir(fd);
	if (!dir) {
		ret = -errno;
		close(fd);
		return ret;
	}
	while ((entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (unlinkat(dirfd(dir), entry->d_name, 0) < 0 && !ret)
			ret = -errno;
	}
	closedir(dir);
	if (!ret && unlinkat(parent_fd, name, AT_REMOVEDIR) < 0)
		ret = -errno;
	return ret;
}

static int remove_leftovers(int parent_fd, const char *name)
{
	char tmp[STATE_NAME_MAX + 8], gone[STATE_NAME_MAX + 8];
	struct dirent *entry;
	int fd, ret = 0;
	DIR *dir;

	snprintf(tmp, sizeof(tmp), ".%s.tmp-", name);
	snprintf(gone, sizeof(gone), ".%s.rm-", name);
	fd = openat(parent_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	dir = fdopendir(fd);
	if (!dir) {
		ret = -errno;
		close(fd);
		return ret;
	}
	while ((entry = readdir(dir))) {
		if (strncmp(entry->d_name, tmp, strlen(tmp)) != 0 &&
		    strncmp(entry->d_name, gone, strlen(gone)) != 0)
			continue;
		ret = state_remove_flat(parent_fd, entry->d_name, true);
		/* A writer that still lives removes it itself. What is no folder is the lock of
		 * another build: NAME.tmp-X is a name, too. */
		if (ret && ret != -ENOENT && ret != -EWOULDBLOCK && ret != -ENOTDIR) {
			log_err("%s: left by an earlier build; can't remove it: %s", entry->d_name,
				strerror(-ret));
			break;
		}
		ret = 0;
	}
	closedir(dir);
	return ret;
}

static int open_templates(const struct state *state)
{
	char path[PATH_MAX];
	int fd;

	state_path(state, "templates", NULL, NULL, path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int state_try_build_lock(int parent_fd, const char *file, bool make)
{
	struct stat mine, found;
	int fd, ret;

	fd = openat(parent_fd, file, O_RDWR | (make ? O_CREAT : 0) | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		ret = errno == EWOULDBLOCK ? -EBUSY : -errno;
	else if (fstat(fd, &mine) < 0)
		ret = -errno;
	else if (fstatat(parent_fd, file, &found, AT_SYMLINK_NOFOLLOW) < 0)
		ret = errno == ENOENT ? -ESTALE : -errno;
	else if (mine.st_ino != found.st_ino || mine.st_dev != found.st_dev)
		ret = -ESTALE;
	else
		return fd;
	close(fd);
	return ret;
}

int state_lock_build(const struct state *state, const char *name)
{
	char file[STATE_NAME_MAX + 16];
	int parent_fd, lock_fd, ret;

	BUG_ON(!state_name_ok(name));
	state_sweep(state);
	snprintf(file, sizeof(file), ".%s.build", name);
	parent_fd = open_templates(state);
	if (parent_fd < 0) {
		log_err("%s/templates: %s", state->root, strerror(-parent_fd));
		return parent_fd;
	}
	do {
		lock_fd = state_try_build_lock(parent_fd, file, true);
	} while (lock_fd == -ESTALE);
	if (lock_fd < 0) {
		if (lock_fd != -EBUSY)
			log_err("%s/templates/%s: can't lock: %s", state->root, file,
				strerror(-lock_fd));
		fd_close(&parent_fd);
		return lock_fd;
	}
	ret = remove_leftovers(parent_fd, name);
	fd_close(&parent_fd);
	if (ret) {
		state_unlock_build(state, name, &lock_fd);
		return ret;
	}
	return lock_fd;
}

void state_unlock_build(const struct state *state, const char *name, int *lock_fd)
{
	char path[PATH_MAX], file[STATE_NAME_MAX + 16];
	int parent_fd;

	if (*lock_fd < 0)
		return;
	state_path(state, "templates", name, "", path);
	if (snap_seal(path) < 0)
		log_warn("template '%s' stays without fs-verity", name);
	parent_fd = open_templates(state);
	/* What can't be removed is named by the log; the next build tries again. */
	if (parent_fd >= 0 && remove_leftovers(parent_fd, name))
		log_warn("%s/templates: leftovers of a build of '%s' stay", state->root, name);
	fd_close(&parent_fd);
	snprintf(file, sizeof(file), ".%s.build", name);
	state_path(state, "templates", file, "", path);
	/* Unlinked before the lock goes, or another build's new file could be the one that is
	 * unlinked. */
	if (unlink(path) < 0)
		log_warn("%s: can't remove: %s", path, strerror(errno));
	fd_close(lock_fd);
}

int state_remove_template(const struct state *state, const char *name, int lock_fd)
{
	char hidden[STATE_NAME_MAX + 32], log_path[PATH_MAX];
	int parent_fd, ret;

	BUG_ON(!state_name_ok(name) || lock_fd < 0);
	parent_fd = open_templates(state);
	if (parent_fd < 0) {
		log_err("%s/templates: %s", state->root, strerror(-parent_fd));
		return parent_fd;
	}
	snprintf(hidden, sizeof(hidden), ".%s.rm-%d", name, (int)getpid());
	ret = renameat(parent_fd, name, parent_fd, hidden) < 0 ? -errno : 0;
	if (!ret)
		ret = state_remove_flat(parent_fd, hidden, false);
	if (ret)
		log_err("%s/templates/%s: can't remove: %s", state->root, name, strerror(-ret));
	state_path(state, "logs", name, ".log", log_path);
	if (!ret && unlink(log_path) < 0 && errno != ENOENT)
		log_warn("%s: can't remove: %s", log_path, strerror(errno));
	fd_close(&parent_fd);
	return ret;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(a, b);
}

static int add_name(struct state_names *names, const char *name)
{
	void *grown = reallocarray(names->names, names->count + 1, sizeof(*names->names));

	if (!grown)
		return -ENOMEM;
	names->names = grown;
	/* state_name_ok() has bounded the length. */
	memcpy(names->names[names->count++], name, strlen(name) + 1);
	return 0;
}

int state_list_templates(const struct state *state, struct state_names *out)
{
	struct dirent *entry;
	int fd, ret = 0;
	DIR *dir;

	*out = (struct state_names){0};
	fd = open_templates(state);
	if (fd == -ENOENT)
		return 0;
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		ret = fd < 0 ? fd : -errno;
		log_err("%s/templates: %s", state->root, strerror(-ret));
		fd_close(&fd);
		return ret;
	}
	while (!ret && (entry = readdir(dir))) {
		if (state_name_ok(entry->d_name))
			ret = add_name(out, entry->d_name);
	}
	closedir(dir);
	if (ret) {
		state_names_free(out);
		return ret;
	}
	if (out->count)
		qsort(out->names, out->count, sizeof(*out->names), compare_names);
	return 0;
}

void state_names_free(struct state_names *names)
{
	free(names->names);
	*names = (struct state_names){0};
}

int state_disk_usage(const char *path, u64 *out_bytes)
{
	struct dirent *entry;
	struct stat st;
	int ret = 0;
	DIR *dir;

	dir = opendir(path);
	if (!dir)
		return -errno;
	*out_bytes = 0;
	while ((entry = readdir(dir))) {
		if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
			ret = -errno;
			break;
		}
		if (S_ISREG(st.st_mode))
			*out_bytes += (u64)st.st_blocks * 512;
	}
	closedir(dir);
	return ret;
}
