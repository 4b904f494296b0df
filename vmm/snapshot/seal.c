// SPDX-License-Identifier: Apache-2.0
// fs-verity for the files of a published snapshot.
#include "vmm/snapshot/seal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fsverity.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * The digests in manifest and state find damage when somebody compares them, which a restore does
 * not do for the large files. fs-verity does it block by block, as they are read: a clone never
 * runs on a damaged page. It costs a hash tree of 1/127 of the file's size, holes included, and the
 * time to make it. So a file that is next to empty is left out, which a scratch disk of gigabytes
 * is as a rule: its tree would be as large as what it holds. Most file systems are made without
 * fs-verity, and then this is one failed ioctl(2).
 *
 * It is done after publishing and not before: thaw-vmm is confined when it publishes, and the
 * kernel refuses as long as anybody has the file open for writing. That includes the io_uring of a
 * thaw-vmm that has ended: the kernel gives back its registered files some milliseconds after the
 * process is gone, and there is no event to wait for. Hence the one place with a wait.
 */
#define SEAL_TRIES   200
#define SEAL_WAIT_NS 10000000
#define SEAL_BLOCK   4096
#define SEAL_SPARSE  16 /* left out: files of which less than one part of so many is data */

static const char *const seal_names[] = {
	SNAP_FILE_MEMORY, SNAP_FILE_DISK,  SNAP_FILE_DIFF,     SNAP_FILE_HOT,
	SNAP_FILE_PACK,	  SNAP_FILE_STATE, SNAP_FILE_MANIFEST, NULL};

const char *const *snap_seal_names(void)
{
	return seal_names;
}

static int enable(int fd)
{
	struct fsverity_enable_arg arg = {.version = 1,
					  .hash_algorithm = FS_VERITY_HASH_ALG_SHA256,
					  .block_size = SEAL_BLOCK};
	struct timespec wait = {.tv_nsec = SEAL_WAIT_NS};
	int ret = 0;

	for (unsigned int i = 0; i < SEAL_TRIES; i++) {
		ret = ioctl(fd, FS_IOC_ENABLE_VERITY, &arg) < 0 ? -errno : 0;
		if (ret != -ETXTBSY)
			break;
		(void)nanosleep(&wait, NULL);
	}
	/* EEXIST: has it already. */
	return ret == -EEXIST ? 0 : ret;
}

/** Has the file system no such thing? ENOTTY: it does not know the ioctl. */
static bool is_unsupported(int ret)
{
	return ret == -ENOTTY || ret == -EOPNOTSUPP;
}

static bool is_next_to_empty(const struct stat *st)
{
	return (u64)st->st_blocks * 512 < (u64)st->st_size / SEAL_SPARSE;
}

/** Return: 1 sealed, left out or not there, 0 unsupported, or -errno (logged). */
static int seal_one(int dirfd, const char *path, const char *name)
{
	struct stat st;
	int fd, ret = 0;

	fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT)
		return 1;
	if (fd < 0 || fstat(fd, &st) < 0)
		ret = -errno;
	else if (!is_next_to_empty(&st))
		ret = enable(fd);
	fd_close(&fd);
	if (!ret)
		return 1;
	if (is_unsupported(ret))
		return 0;
	log_err("%s/%s: fs-verity: %s", path, name,
		ret == -ETXTBSY ? "somebody has it open for writing" : strerror(-ret));
	return ret;
}

int snap_seal(const char *path)
{
	int dirfd, ret = 1;

	dirfd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dirfd < 0 && errno == ENOENT)
		return 0;
	if (dirfd < 0) {
		ret = -errno;
		log_err("%s: %s", path, strerror(-ret));
		return ret;
	}
	for (unsigned int i = 0; seal_names[i] && ret > 0; i++)
		ret = seal_one(dirfd, path, seal_names[i]);
	fd_close(&dirfd);
	return ret;
}

int snap_seal_digest(int dirfd, const char *name, char out[SNAP_SEAL_TEXT])
{
	union {
		struct fsverity_digest digest;
		u8 room[sizeof(struct fsverity_digest) + 64];
	} measured = {.digest.digest_size = 64};
	const char *algorithm;
	int fd, ret, used;

	out[0] = '\0';
	fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	ret = ioctl(fd, FS_IOC_MEASURE_VERITY, &measured) < 0 ? -errno : 0;
	fd_close(&fd);
	if (ret == -ENODATA || is_unsupported(ret))
		return 0;
	if (ret)
		return ret;
	algorithm =
		measured.digest.digest_algorithm == FS_VERITY_HASH_ALG_SHA512 ? "sha512" : "sha256";
	used = snprintf(out, SNAP_SEAL_TEXT, "%s:", algorithm);
	for (unsigned int i = 0; i < MIN((unsigned int)measured.digest.digest_size, 64u); i++)
		used += snprintf(out + used, (size_t)(SNAP_SEAL_TEXT - used), "%02x",
				 measured.room[sizeof(struct fsverity_digest) + i]);
	return 0;
}
