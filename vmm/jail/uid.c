// SPDX-License-Identifier: Apache-2.0
// A uid for each jail.
//
// $THAW_STATE/uids/N is an empty file, and who holds its lock (flock) has uid base + N. The lock
// belongs to the open file, which the VMM inherits: it is free when the last process that has it is
// gone, however that ended, and no list of uids can be wrong. Nothing belongs to a uid for longer:
// its VMM makes unnamed files only, and snapshots become root's.
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/cli/state.h"
#include "vmm/jail/internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** Return: an fd that holds slot @number of folder @dir_fd, -EBUSY, or another -errno. */
static int take_slot(int dir_fd, u32 number)
{
	char name[16];
	int fd, ret;

	snprintf(name, sizeof(name), "%u", number);
	fd = openat(dir_fd, name, O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	ret = errno == EWOULDBLOCK ? -EBUSY : -errno;
	fd_close(&fd);
	return ret;
}

static int open_slots(const struct state *state, char path[PATH_MAX])
{
	int fd;

	state_path(state, "uids", NULL, NULL, path);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int jail_take_uid(const struct state *state, const struct jail_config *config, struct jail *jail)
{
	static atomic_uint next; /* where the search begins: the ones before are likely taken */
	u32 first = atomic_fetch_add(&next, 1), number = 0;
	int dir_fd, ret = -EBUSY;
	char path[PATH_MAX];

	if (!config->uid_count || !config->uid_base ||
	    (u64)config->uid_base + config->uid_count > UINT32_MAX) {
		log_err("jail: %u uids from %u on: no range of uids", config->uid_count,
			config->uid_base);
		return -EINVAL;
	}
	dir_fd = open_slots(state, path);
	if (dir_fd < 0) {
		log_err("%s: %s", path, strerror(-dir_fd));
		return dir_fd;
	}
	for (u32 i = 0; i < config->uid_count && ret == -EBUSY; i++) {
		number = (first + i) % config->uid_count;
		ret = take_slot(dir_fd, number);
	}
	fd_close(&dir_fd);
	if (ret >= 0) {
		jail->slot_fd = ret;
		jail->uid = config->uid_base + number;
		return 0;
	}
	log_err("%s: %s", path,
		ret == -EBUSY ? "all uids of the range are in use: a larger one is needed"
			      : strerror(-ret));
	return ret;
}
