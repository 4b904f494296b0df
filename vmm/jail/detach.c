// SPDX-License-Identifier: Apache-2.0
// Folders as mounts that are attached nowhere.
//
// The root of a mount that has no parent is where ".." ends, so who has the folder open can't leave
// it. The mount is taken apart when its own descriptor closes; the folder's keeps working, as files
// do after a lazy umount.
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/jail/jail.h"
#include "vmm/util/util.h"

int jail_detach_folder(int at_fd, const char *path, bool read_only)
{
	struct mount_attr attr = {.attr_set =
					  MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC};
	int tree_fd, fd = -1, ret = 0;

	if (read_only)
		attr.attr_set |= MOUNT_ATTR_RDONLY;
	tree_fd = (int)syscall(SYS_open_tree, at_fd, path,
			       OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
	if (tree_fd < 0)
		return -errno;
	if (syscall(SYS_mount_setattr, tree_fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
		ret = -errno;
	if (!ret) {
		fd = openat(tree_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		ret = fd < 0 ? -errno : 0;
	}
	fd_close(&tree_fd);
	return ret ? ret : fd;
}
