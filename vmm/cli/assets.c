// SPDX-License-Identifier: Apache-2.0
// What a template is built from: guest folder, root image, scratch disk.
#include "vmm/cli/assets.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <linux/fs.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/cli/cli.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define GUEST_JSON_MAX_BYTES (64 * KIB)

static int find_guest_folder(struct guest_files *guest, char *why, size_t why_bytes)
{
	static const char *const places[] = {"../guest/guest.json",
					     "../share/thaw/guest/guest.json"};
	const char *given = getenv("THAW_GUEST_DIR");
	char found[PATH_MAX];
	int ret;

	if (given && *given) {
		if (strlen(given) >= sizeof(guest->folder)) {
			snprintf(why, why_bytes, "THAW_GUEST_DIR is too long");
			return -ENAMETOOLONG;
		}
		memcpy(guest->folder, given, strlen(given) + 1);
		return 0;
	}
	ret = cli_find_near_exe(places, ARRAY_SIZE(places), found);
	if (!ret) {
		*strrchr(found, '/') = '\0';
		if (strlen(found) >= sizeof(guest->folder))
			ret = -ENAMETOOLONG;
	}
	if (ret) {
		snprintf(why, why_bytes,
			 "no guest folder: 'make guest' builds it, THAW_GUEST_DIR names another");
		return ret;
	}
	memcpy(guest->folder, found, strlen(found) + 1);
	return 0;
}

void guest_files_path(const struct guest_files *guest, const char *name, char *out)
{
	int n = snprintf(out, PATH_MAX, "%s/%s", guest->folder, name);

	BUG_ON(n < 0 || n >= PATH_MAX);
}

/** The digest becomes a folder's name: letters and digits only. */
static bool digest_ok(const char *digest)
{
	size_t len = strnlen(digest, 129);

	if (len < 8 || len > 128)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (!isalnum((unsigned char)digest[i]))
			return false;
	}
	return true;
}

static int read_guest_json(struct guest_files *guest, char *why, size_t why_bytes)
{
	const char *kernel, *image, *digest;
	char path[PATH_MAX], *text;
	json_error_t error;
	json_t *root;
	int ret;

	guest_files_path(guest, "guest.json", path);
	ret = file_read_all(AT_FDCWD, path, GUEST_JSON_MAX_BYTES, &text, NULL);
	if (ret) {
		snprintf(why, why_bytes, "%s: %s: 'make guest' builds it", path, strerror(-ret));
		return ret;
	}
	root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
	free(text);
	if (!root || json_unpack_ex(root, &error, 0, "{s:s, s:s, s:s}", "kernel", &kernel, "image",
				    &image, "digest", &digest)) {
		snprintf(why, why_bytes, "%s: %s", path, error.text);
		ret = -EINVAL;
	} else if (!digest_ok(digest)) {
		snprintf(why, why_bytes, "%s: digest: expected 8 to 128 letters and digits", path);
		ret = -EINVAL;
	} else {
		guest->kernel = strdup(kernel);
		guest->image = strdup(image);
		guest->digest = strdup(digest);
		if (!guest->kernel || !guest->image || !guest->digest) {
			snprintf(why, why_bytes, "out of memory");
			ret = -ENOMEM;
		}
	}
	json_decref(root);
	return ret;
}

int guest_files_open(struct guest_files *out, char *why, size_t why_bytes)
{
	static const char *const files[] = {"vmlinux", "initramfs.cpio", "root.erofs"};
	char path[PATH_MAX];
	int ret;

	*out = (struct guest_files){0};
	ret = find_guest_folder(out, why, why_bytes);
	if (!ret)
		ret = read_guest_json(out, why, why_bytes);
	for (size_t i = 0; !ret && i < ARRAY_SIZE(files); i++) {
		guest_files_path(out, files[i], path);
		if (access(path, R_OK) < 0) {
			ret = -errno;
			snprintf(why, why_bytes, "%s: %s: 'make guest' builds it", path,
				 strerror(-ret));
		}
	}
	if (ret)
		guest_files_free(out);
	return ret;
}

void guest_files_free(struct guest_files *guest)
{
	free(guest->kernel);
	free(guest->image);
	free(guest->digest);
	*guest = (struct guest_files){0};
}

/** Between file systems, or on old kernels, copy_file_range(2) refuses; then bytes go through a
 * buffer. */
static ssize_t copy_some(int from_fd, int to_fd, u64 offset_bytes, size_t len_bytes, bool *by_hand)
{
	static const size_t buf_bytes = 1 << 20;
	off_t from_off = (off_t)offset_bytes, to_off = (off_t)offset_bytes;
	ssize_t n;
	char *buf;
	int ret;

	if (!*by_hand) {
		n = copy_file_range(from_fd, &from_off, to_fd, &to_off, len_bytes, 0);
		if (n > 0 || (n < 0 && errno != EXDEV && errno != EINVAL && errno != ENOSYS &&
			      errno != EOPNOTSUPP))
			return n < 0 ? -errno : n;
		*by_hand = true;
	}
	buf = malloc(buf_bytes);
	if (!buf)
		return -ENOMEM;
	n = pread(from_fd, buf, MIN(len_bytes, buf_bytes), (off_t)offset_bytes);
	if (n < 0)
		n = -errno;
	if (n > 0) {
		ret = fd_pwrite_full(to_fd, buf, (size_t)n, offset_bytes);
		n = ret ? ret : n;
	}
	free(buf);
	return n;
}

static int copy_content(int from_fd, int to_fd, u64 len_bytes, struct progress *progress)
{
	const size_t step_bytes = 16 << 20;
	bool by_hand = false;
	u64 done_bytes = 0;

	if (ioctl(to_fd, FICLONE, from_fd) == 0)
		return 0;
	while (done_bytes < len_bytes) {
		ssize_t n =
			copy_some(from_fd, to_fd, done_bytes,
				  (size_t)MIN(len_bytes - done_bytes, (u64)step_bytes), &by_hand);

		if (n < 0)
			return (int)n;
		if (n == 0)
			return -ENODATA;
		done_bytes += (u64)n;
		progress_note(progress, "root image: copy, %llu of %llu MiB",
			      (unsigned long long)(done_bytes / MIB),
			      (unsigned long long)(len_bytes / MIB));
	}
	return 0;
}

/** Into @folder, a new or empty one of @images. The file has no name until it is whole and on the
 * disk. */
static int copy_image(const char *from, const char *images, const char *folder, const char *to,
		      struct progress *progress)
{
	int from_fd, to_fd = -1, ret = 0;
	struct stat st;

	from_fd = open(from, O_RDONLY | O_CLOEXEC);
	if (from_fd < 0 || fstat(from_fd, &st) < 0) {
		ret = -errno;
		log_err("%s: %s", from, strerror(-ret));
		goto out;
	}
	to_fd = open(images, O_TMPFILE | O_RDWR | O_CLOEXEC, 0444);
	if (to_fd < 0)
		ret = -errno;
	if (!ret)
		ret = copy_content(from_fd, to_fd, (u64)st.st_size, progress);
	if (!ret && fsync(to_fd) < 0)
		ret = -errno;
	if (!ret)
		ret = fd_link_into(to_fd, folder, to);
	/* Another build has put the same image there meanwhile. */
	if (ret == -EEXIST)
		ret = 0;
	if (ret)
		log_err("%s: can't make a copy of %s: %s", to, from, strerror(-ret));
out:
	fd_close(&to_fd);
	fd_close(&from_fd);
	return ret;
}

int image_store(const struct state *state, const struct guest_files *guest,
		struct progress *progress, char *out)
{
	char from[PATH_MAX], images[PATH_MAX], folder[PATH_MAX];
	struct stat source, stored;
	int folder_fd, ret;

	guest_files_path(guest, "root.erofs", from);
	state_path(state, "images", NULL, NULL, images);
	state_path(state, "images", guest->digest, "", folder);
	state_path(state, "images", guest->digest, "/root.erofs", out);
	if (stat(from, &source) < 0) {
		ret = -errno;
		log_err("%s: %s", from, strerror(-ret));
		return ret;
	}
	if (stat(out, &stored) == 0) {
		if (S_ISREG(stored.st_mode) && stored.st_size == source.st_size)
			return 0;
		log_err("%s: its size is not that of %s, of the same digest: remove the folder and "
			"the templates that use it",
			out, from);
		return -EINVAL;
	}
	ret = copy_image(from, images, folder, out, progress);
	if (ret)
		return ret;
	folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder_fd < 0 || fsync(folder_fd) < 0) {
		ret = -errno;
		log_err("%s: %s", folder, strerror(-ret));
	}
	fd_close(&folder_fd);
	return ret;
}

int disk_find_mke2fs(char *out)
{
	static const char *const places[] = {"/usr/sbin/mke2fs", "/sbin/mke2fs",
					     "/usr/local/sbin/mke2fs", "/usr/bin/mke2fs"};

	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		if (access(places[i], X_OK) == 0) {
			memcpy(out, places[i], strlen(places[i]) + 1);
			return 0;
		}
	}
	return -ENOENT;
}

/*
 * The file system of the scratch disk. It must cost a fresh clone as little as can be: each block
 * of metadata that the guest reads or writes is a page of its memory and a block of its delta.
 *
 * Features are named one by one, so that /etc/mke2fs.conf has no say. Left out:
 * has_journal: a journal makes a file system whole again after a crash. This one is never mounted
 * after a crash: the disk dies with its VM, and a snapshot holds disk and kernel memory of one
 * instant, after a sync. A journal would only double the writes. metadata_csum: snapshots carry a
 * digest of the whole disk; uninit_bg alone keeps unused groups unread. resize_inode, orphan_file,
 * project, quota: nobody uses them here; 64bit: only beyond 16 TiB. lazy_itable_init=0: on a fresh
 * sparse file mke2fs knows that inode tables are zero and writes none, and the guest's kernel
 * starts no thread that would write them for hours. nodiscard would lose that.
 */
static const char mke2fs_features[] =
	"none,ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,large_file,huge_file,"
	"uninit_bg,dir_nlink,extra_isize";

static int run_mke2fs(int disk_fd, int log_fd)
{
	static const char *const argv[] = {"mke2fs",
					   "-q",
					   "-F",
					   "-t",
					   "ext4",
					   "-b",
					   "4096",
					   "-I",
					   "256",
					   "-m",
					   "0",
					   "-G",
					   "4096",
					   "-O",
					   mke2fs_features,
					   "-E",
					   "lazy_itable_init=0,root_owner=0:0",
					   "-L",
					   "thaw-scratch",
					   "/proc/self/fd/3",
					   NULL};
	static const char *const env[] = {"PATH=/usr/sbin:/sbin:/usr/bin:/bin", NULL};
	char mke2fs[PATH_MAX];
	posix_spawn_file_actions_t actions;
	int ret, status = -1;
	pid_t pid;

	ret = -posix_spawn_file_actions_init(&actions);
	if (ret)
		return ret;
	ret = -posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (!ret)
		ret = -posix_spawn_file_actions_adddup2(&actions, log_fd, 1);
	if (!ret)
		ret = -posix_spawn_file_actions_adddup2(&actions, log_fd, 2);
	if (!ret)
		ret = -posix_spawn_file_actions_adddup2(&actions, disk_fd, 3);
	if (!ret)
		ret = disk_find_mke2fs(mke2fs);
	if (!ret)
		ret = -posix_spawn(&pid, mke2fs, &actions, NULL, (char *const *)argv,
				   (char *const *)env);
	posix_spawn_file_actions_destroy(&actions);
	if (ret) {
		log_err("mke2fs: can't start: %s%s", strerror(-ret),
			ret == -ENOENT ? ": install e2fsprogs" : "");
		return ret;
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	log_err("mke2fs failed on the scratch disk");
	return -EIO;
}

int disk_make_base(const struct state *state, u64 size_bytes, int log_fd)
{
	char folder[PATH_MAX];
	int fd, ret = 0;

	state_path(state, "scratch", NULL, NULL, folder);
	fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0) {
		ret = -errno;
		log_err("%s: can't make the scratch disk: %s", folder, strerror(-ret));
		return ret;
	}
	if (ftruncate(fd, (off_t)size_bytes) < 0) {
		ret = -errno;
		log_err("%s: scratch disk of %llu MiB: %s", folder,
			(unsigned long long)(size_bytes / MIB), strerror(-ret));
	} else {
		ret = run_mke2fs(fd, log_fd);
	}
	if (ret) {
		fd_close(&fd);
		return ret;
	}
	return fd;
}
