// SPDX-License-Identifier: Apache-2.0
/*
 * The guest's file systems.
 *
 * Root: an overlay. Below, the erofs image on a pmem device, mapped by DAX from the host's page
 * cache, so it costs a clone no memory (or on a block device, in a VMM without pmem); above, ext4
 * on the scratch disk (or a tmpfs without one). /tmp is an ordinary directory of it: what is
 * written there goes to the disk and not into guest memory, where it would also be in every
 * snapshot.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/shim/boot.h"
#include "guest/shim/shim.h"

#define NEW_ROOT    "/newroot"
#define LOWER	    "/lower"
#define SCRATCH	    "/scratch"
#define PMEM_PREFIX "/dev/pmem"
#define DEPTH_MAX   16

static void make_dir(const char *path, mode_t mode)
{
	if (mkdir(path, mode) < 0) {
		if (errno != EEXIST)
			shim_panic("mkdir %s: %m", path);
		return;
	}
	/* The umask is not asked. */
	(void)chmod(path, mode);
}

static void mount_or_die(const char *source, const char *target, const char *type,
			 unsigned long flags, const char *options)
{
	if (mount(source, target, type, flags, options) < 0)
		shim_panic("cannot mount %s on %s: %m", type ? type : source, target);
}

void mount_early(void)
{
	make_dir("/dev", 0755);
	make_dir("/proc", 0555);
	make_dir("/sys", 0555);
	/* EBUSY: the kernel has mounted it (CONFIG_DEVTMPFS_MOUNT). */
	if (mount("dev", "/dev", "devtmpfs", MS_NOSUID, "mode=0755") < 0 && errno != EBUSY)
		shim_panic("cannot mount devtmpfs on /dev: %m");
	mount_or_die("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	mount_or_die("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

/* Frees the initramfs: removes all below @dir_fd that is on the device @dev. */
static void remove_tree(int dir_fd, dev_t dev, int depth)
{
	struct dirent *entry;
	struct stat st;
	DIR *dir;
	int fd;

	fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return;
	}
	while ((entry = readdir(dir))) {
		int sub;

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_dev != dev)
			continue;
		if (!S_ISDIR(st.st_mode)) {
			(void)unlinkat(fd, entry->d_name, 0);
			continue;
		}
		sub = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub < 0)
			continue;
		if (depth < DEPTH_MAX)
			remove_tree(sub, dev, depth + 1);
		close(sub);
		(void)unlinkat(fd, entry->d_name, AT_REMOVEDIR);
	}
	closedir(dir);
}

static void free_initramfs(void)
{
	struct stat st;
	int fd;

	fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (!fstat(fd, &st))
		remove_tree(fd, st.st_dev, 0);
	close(fd);
}

static void move_mount_to_root(const char *from, const char *to)
{
	if (mount(from, to, NULL, MS_MOVE, NULL) < 0)
		shim_panic("cannot move %s to %s: %m", from, to);
}

void mount_root(struct shim *shim, const char *root, const char *scratch)
{
	bool pmem = !strncmp(root, PMEM_PREFIX, strlen(PMEM_PREFIX));

	make_dir(LOWER, 0755);
	make_dir(SCRATCH, 0700);
	make_dir(NEW_ROOT, 0755);
	device_mount(root, LOWER, "erofs", MS_RDONLY, pmem ? "dax=always" : "");
	if (scratch)
		device_mount(scratch, SCRATCH, "ext4", MS_NOATIME, "");
	else
		mount_or_die("scratch", SCRATCH, "tmpfs", 0, "mode=0700");
	shim->scratch_fd = open(SCRATCH, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	make_dir(SCRATCH "/upper", 0755);
	make_dir(SCRATCH "/work", 0755);
	mount_or_die("root", NEW_ROOT, "overlay", 0,
		     "lowerdir=" LOWER ",upperdir=" SCRATCH "/upper,workdir=" SCRATCH "/work");
	move_mount_to_root("/dev", NEW_ROOT "/dev");
	move_mount_to_root("/proc", NEW_ROOT "/proc");
	move_mount_to_root("/sys", NEW_ROOT "/sys");
	free_initramfs();
	if (chdir(NEW_ROOT) < 0)
		shim_panic("chdir " NEW_ROOT ": %m");
	move_mount_to_root(".", "/");
	if (chroot(".") < 0 || chdir("/") < 0)
		shim_panic("chroot: %m");
}

void mount_rest(void)
{
	static const char *const links[][2] = {
		{"/proc/self/fd", "/dev/fd"},
		{"/proc/self/fd/0", "/dev/stdin"},
		{"/proc/self/fd/1", "/dev/stdout"},
		{"/proc/self/fd/2", "/dev/stderr"},
	};

	make_dir("/dev/pts", 0755);
	mount_or_die("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
		     "gid=5,mode=620,ptmxmode=666");
	make_dir("/dev/shm", 01777);
	mount_or_die("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
	mount_or_die("run", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
	make_dir("/run/lock", 01777);
	make_dir("/run/thaw", 0755);
	/* Only when the image has none: a chmod would copy it up to the scratch disk. */
	if (access("/tmp", F_OK) < 0)
		make_dir("/tmp", 01777);
	for (size_t i = 0; i < ARRAY_SIZE(links); i++)
		if (symlink(links[i][0], links[i][1]) < 0 && errno != EEXIST)
			shim_log(4, "%s: %m", links[i][1]);
	mount_or_die("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC,
		     "nsdelegate");
}
