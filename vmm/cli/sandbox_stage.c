// SPDX-License-Identifier: Apache-2.0
// Snapshots of jailed sandboxes.
//
// The machine gets an empty folder of its user's, as a mount that leads nowhere else, and writes
// into it. Then the folder is taken from that user: nothing can be added to it any more, and each
// file becomes root's and read-only. A machine that was taken over may still have files open that
// it wrote; what it writes there can harm clones of itself, which trust their memory to it anyway.
// Their own VMMs check what they read, whoever wrote it.
//
// What a manifest says about the host's files is not believed: it may name as root image only what
// the machine had open, and as parent only what it ran from. Otherwise a sandbox could have itself
// forked into another one's image.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/cli/sandbox_jail.h"
#include "vmm/snapshot/manifest.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static const char *const parts[] = {"manifest.json", "state", "memory",	    "disk",
				    "diff",	     "hot",   "memory.pack"};

#define STAGE_NAME ".%s.tmp-own"

/** The effective user of @pid. Return: 0 or -errno. */
static int process_uid(pid_t pid, u32 *uid)
{
	char path[64], text[1024], *at;
	int fd, ret;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	ret = n < 0 ? -errno : 0;
	fd_close(&fd);
	if (ret)
		return ret;
	text[n] = '\0';
	at = strstr(text, "\nUid:\t");
	return at && sscanf(at, "\nUid:\t%*u %u", uid) == 1 ? 0 : -EPROTO;
}

static void note_open_files(struct sandbox_stage *stage, pid_t pid)
{
	char path[64];
	struct dirent *entry;
	struct stat st;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	while (dir && stage->nopen < ARRAY_SIZE(stage->open_inode) && (entry = readdir(dir))) {
		if (fstatat(dirfd(dir), entry->d_name, &st, 0) < 0 || !S_ISREG(st.st_mode))
			continue;
		stage->open_dev[stage->nopen] = st.st_dev;
		stage->open_inode[stage->nopen++] = st.st_ino;
	}
	if (dir)
		closedir(dir);
}

/** May a diff stand beside what the machine runs from? A build of that name that is under way has
 * looked for diffs of the old one already. */
static void find_base(struct sandbox_stage *stage)
{
	char build[STATE_NAME_MAX + 16];
	struct stat st;

	snprintf(build, sizeof(build), ".%s.build", stage->base);
	if (fstatat(stage->parent_fd, build, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT &&
	    fstatat(stage->parent_fd, stage->base, &st, AT_SYMLINK_NOFOLLOW) == 0)
		stage->base_inode = st.st_ino;
}

static int make_folder(struct sandbox_stage *stage)
{
	if (mkdirat(stage->parent_fd, stage->temp, 0700) < 0)
		return -errno;
	stage->fd = openat(stage->parent_fd, stage->temp,
			   O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (stage->fd < 0 || flock(stage->fd, LOCK_EX | LOCK_NB) < 0 ||
	    fchown(stage->fd, stage->uid, stage->uid) < 0)
		return -errno;
	return 0;
}

int sandbox_stage_make(const struct state *state, const struct sandbox *sb, pid_t pid,
		       const char *name, struct sandbox_stage *stage)
{
	char path[PATH_MAX];
	struct stat st;
	int ret;

	*stage = (struct sandbox_stage){.parent_fd = -1, .fd = -1};
	ret = process_uid(pid, &stage->uid);
	if (ret) {
		log_err("sandbox %s: its process %d: %s", sb->id, (int)pid, strerror(-ret));
		return ret;
	}
	state_path(state, "templates", NULL, NULL, path);
	stage->parent_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (stage->parent_fd < 0) {
		ret = -errno;
		log_err("%s: %s", path, strerror(-ret));
		return ret;
	}
	/* Of this user, or of the one that all this belongs to: in no jail. */
	if (stage->uid == geteuid() ||
	    (fstat(stage->parent_fd, &st) == 0 && stage->uid == st.st_uid)) {
		stage->uid = 0;
		return 0;
	}
	snprintf(stage->name, sizeof(stage->name), "%s", name);
	snprintf(stage->temp, sizeof(stage->temp), STAGE_NAME, name);
	snprintf(stage->base, sizeof(stage->base), "%s", sb->snapshot);
	note_open_files(stage, pid);
	find_base(stage);
	ret = make_folder(stage);
	if (ret)
		log_err("%s/%s: %s", path, stage->temp, strerror(-ret));
	return ret;
}

int sandbox_stage_fd(const struct sandbox_stage *stage)
{
	int fd = stage->uid ? jail_detach_folder(stage->parent_fd, stage->temp, false)
			    : fcntl(stage->parent_fd, F_DUPFD_CLOEXEC, 3);

	fd = fd < 0 && !stage->uid ? -errno : fd;
	if (fd < 0)
		log_err("folder for the snapshot: %s", strerror(-fd));
	return fd;
}

/** take_part() - one file becomes root's. Return: 0 or -errno, then @why. */
static int take_part(const struct sandbox_stage *stage, const char *name, bool sync,
		     const char **why)
{
	int fd = openat(stage->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	int ret = 0;

	*why = "can't be opened";
	if (fd < 0 || fstat(fd, &st) < 0) {
		ret = -errno;
	} else if (!S_ISREG(st.st_mode) || st.st_nlink != 1 ||
		   (st.st_uid != stage->uid && st.st_uid != geteuid())) {
		*why = "is no plain file of the machine's";
		ret = -EPERM;
	} else if (fchown(fd, geteuid(), getegid()) < 0 || fchmod(fd, 0400) < 0 ||
		   (sync && fsync(fd) < 0)) {
		*why = "can't be taken";
		ret = -errno;
	}
	fd_close(&fd);
	return ret;
}

static bool is_part(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
		if (!strcmp(name, parts[i]))
			return true;
	}
	return false;
}

/** First the folder, so that there is nothing new after the look. Return: 0 or -errno (logged). */
static int take_all(struct sandbox_stage *stage, bool sync)
{
	const char *why = "can't be taken";
	struct dirent *entry;
	int ret = 0, fd;
	DIR *dir;

	if (fchown(stage->fd, geteuid(), getegid()) < 0)
		ret = -errno;
	fd = ret ? -1 : openat(stage->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		ret = ret ? ret : -EIO;
		fd_close(&fd);
	}
	while (dir && !ret && (entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		why = "does not belong in a snapshot";
		ret = is_part(entry->d_name) ? take_part(stage, entry->d_name, sync, &why) : -EPERM;
	}
	if (dir)
		closedir(dir);
	if (!ret && (fchmod(stage->fd, 0500) < 0 || (sync && fsync(stage->fd) < 0)))
		ret = -errno;
	if (ret)
		log_err("snapshot %s: a file of it %s: %s", stage->name, why, strerror(-ret));
	return ret;
}

static bool was_open(const struct sandbox_stage *stage, const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return false;
	for (unsigned int i = 0; i < stage->nopen; i++) {
		if (stage->open_dev[i] == st.st_dev && stage->open_inode[i] == st.st_ino)
			return true;
	}
	return false;
}

/** Has what the machine ran from the root image of @manifest? */
static bool base_has(const struct state *state, const struct sandbox_stage *stage,
		     const struct snap_manifest *manifest)
{
	int fd = state_lock_template(state, stage->base, false);
	struct snap_manifest base;
	bool same = false;

	if (fd >= 0 && !snap_manifest_read(fd, stage->base, &base)) {
		same = base.root_image && !strcmp(base.root_image, manifest->root_image);
		snap_manifest_free(&base);
	}
	fd_close(&fd);
	return same;
}

/** Return: NULL or what is wrong. */
static const char *check_manifest(const struct state *state, const struct sandbox_stage *stage,
				  const struct snap_manifest *manifest)
{
	struct stat st;

	if (manifest->root_image && !(stage->recovers ? base_has(state, stage, manifest)
						      : was_open(stage, manifest->root_image)))
		return "names a root image that its machine did not have";
	if (!manifest->diff_digest)
		return NULL;
	if (!stage->base_inode || !manifest->parent || strcmp(manifest->parent, stage->base) != 0)
		return "names another parent than what its machine ran from";
	if (fstatat(stage->parent_fd, stage->base, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    st.st_ino != stage->base_inode)
		return "is a diff of what was replaced or removed meanwhile";
	return NULL;
}

int sandbox_stage_publish(const struct state *state, struct sandbox_stage *stage, bool sync)
{
	struct snap_manifest manifest;
	char path[PATH_MAX];
	const char *wrong;
	int ret;

	ret = take_all(stage, sync);
	if (ret)
		return ret;
	state_path(state, "templates", stage->temp, "", path);
	ret = snap_manifest_read(stage->fd, path, &manifest);
	if (ret)
		return ret;
	wrong = check_manifest(state, stage, &manifest);
	snap_manifest_free(&manifest);
	if (wrong) {
		log_err("snapshot %s: %s", stage->name, wrong);
		return -EPERM;
	}
	if (renameat2(stage->parent_fd, stage->temp, stage->parent_fd, stage->name,
		      RENAME_NOREPLACE) < 0 ||
	    (sync && fsync(stage->parent_fd) < 0)) {
		ret = -errno;
		log_err("%s: can't be put in place: %s", path, strerror(-ret));
		return ret;
	}
	stage->temp[0] = '\0';
	return 0;
}

int sandbox_stage_recover(const struct state *state, const struct sandbox *sb)
{
	struct sandbox_stage stage = {.parent_fd = -1, .fd = -1, .recovers = true};
	char path[PATH_MAX];
	struct stat st;
	int ret;

	snprintf(stage.name, sizeof(stage.name), "%s", sb->next);
	snprintf(stage.temp, sizeof(stage.temp), STAGE_NAME, sb->next);
	snprintf(stage.base, sizeof(stage.base), "%s", sb->snapshot);
	state_path(state, "templates", NULL, NULL, path);
	stage.parent_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (stage.parent_fd < 0)
		return -errno;
	stage.fd = openat(stage.parent_fd, stage.temp,
			  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	ret = -ENOENT;
	/* Read-only is the last that its machine makes it; taken, it is that, too. */
	if (stage.fd >= 0 && fstat(stage.fd, &st) == 0 && (st.st_mode & 07777) == 0500) {
		stage.uid = st.st_uid;
		find_base(&stage);
		ret = sandbox_stage_publish(state, &stage, true);
	}
	fd_close(&stage.fd);
	fd_close(&stage.parent_fd);
	return ret;
}

void sandbox_stage_drop(struct sandbox_stage *stage)
{
	/* The lock would keep it there. */
	fd_close(&stage->fd);
	if (stage->temp[0] && state_remove_flat(stage->parent_fd, stage->temp, true))
		log_warn("%s: is left in templates/", stage->temp);
	fd_close(&stage->parent_fd);
}
