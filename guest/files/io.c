// SPDX-License-Identifier: Apache-2.0
// A file's bytes: read and write.
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "guest/files/files.h"

static u8 chunk[FILES_CHUNK_BYTES];

/* What the kernel makes up when it is read has a size that says nothing. */
static bool size_is_real(int fd, const struct stat *st)
{
	struct statfs fs;

	if (!S_ISREG(st->st_mode) || st->st_size < 0)
		return false;
	if (fstatfs(fd, &fs))
		return true;
	switch ((unsigned long)fs.f_type) {
	case PROC_SUPER_MAGIC:
	case SYSFS_MAGIC:
	case CGROUP_SUPER_MAGIC:
	case CGROUP2_SUPER_MAGIC:
	case DEBUGFS_MAGIC:
	case TRACEFS_MAGIC:
	case SECURITYFS_MAGIC:
	case BPF_FS_MAGIC:
		return false;
	default:
		return true;
	}
}

/* Return: bytes passed on, at most @left_bytes; -errno. */
static ssize_t pass_chunk(int fd, u64 left_bytes)
{
	ssize_t n;
	int err;

	do {
		n = read(fd, chunk, MIN(left_bytes, (u64)sizeof(chunk)));
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	err = out_data(chunk, (size_t)n);
	return err ? err : n;
}

static int pass(int fd, const char *path, u64 length_bytes, bool sized)
{
	u64 done_bytes = 0;

	while (done_bytes < length_bytes) {
		ssize_t n = pass_chunk(fd, length_bytes - done_bytes);

		if (n < 0)
			return out_fail((int)-n, path, NULL, NULL);
		if (!n && sized)
			return out_fail(EIO, path, NULL,
					"the file became shorter while it was read");
		if (!n)
			break;
		done_bytes += (u64)n;
	}
	return out_done(done_bytes, 1);
}

int op_read(char **args)
{
	const char *path = args[0];
	bool last = args[1][0] == '-', whole = !strcmp(args[2], "-");
	u64 offset = arg_number(args[1] + last, INT64_MAX);
	u64 length = whole ? INT64_MAX : arg_number(args[2], INT64_MAX);
	struct stat st;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return out_fail(errno, path, NULL, NULL);
	if (fstat(fd, &st))
		return out_fail(errno, path, NULL, NULL);
	if (S_ISDIR(st.st_mode))
		return out_fail(EISDIR, path, NULL, NULL);
	if (!size_is_real(fd, &st)) {
		out_opened(&st, 0, -1);
		/* 0: only asked about; else a range of what has no size is all of it. */
		return length ? pass(fd, path, INT64_MAX, false) : out_done(0, 1);
	}
	if (last)
		offset = (u64)st.st_size - MIN(offset, (u64)st.st_size);
	offset = MIN(offset, (u64)st.st_size);
	length = MIN(length, (u64)st.st_size - offset);
	if (lseek(fd, (off_t)offset, SEEK_SET) < 0)
		return out_fail(errno, path, NULL, NULL);
	(void)posix_fadvise(fd, (off_t)offset, 0, POSIX_FADV_SEQUENTIAL);
	out_opened(&st, offset, (s64)length);
	return pass(fd, path, length, true);
}

static int write_all(int fd, const u8 *data, size_t len_bytes)
{
	while (len_bytes) {
		ssize_t n = write(fd, data, len_bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		data += n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

static int take(int fd, u64 *done_bytes)
{
	for (;;) {
		ssize_t n = read(STDIN_FILENO, chunk, sizeof(chunk));
		int err;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return 0;
		err = write_all(fd, chunk, (size_t)n);
		if (err)
			return err;
		*done_bytes += (u64)n;
	}
}

int op_write(char **args)
{
	static const int open_flags[] = {O_CREAT, O_TRUNC, O_APPEND, O_EXCL};
	const char *path = args[0];
	unsigned int flags = arg_flags(args[2], "ctax");
	int how = O_WRONLY | O_CLOEXEC | O_NOCTTY, fd, err;
	bool chosen = strcmp(args[1], "-");
	mode_t mode = chosen ? arg_mode(args[1]) : 0644;
	u64 done_bytes = 0;
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(open_flags); i++)
		how |= flags & (1u << i) ? open_flags[i] : 0;
	fd = open(path, how, mode);
	if (fd < 0)
		return out_fail(errno, path, NULL, NULL);
	/* Before the content: what is to be private never stands there readable. */
	if (chosen && fchmod(fd, mode))
		return out_fail(errno, path, NULL, "the mode can't be set");
	if (fstat(fd, &st))
		return out_fail(errno, path, NULL, NULL);
	out_opened(&st, 0, -1);
	err = take(fd, &done_bytes);
	if (err)
		return out_fail(-err, path, NULL, NULL);
	/* Writing took these bits away. */
	if (chosen && (mode & 06000) && fchmod(fd, mode))
		return out_fail(errno, path, NULL, "the mode can't be set");
	if (close(fd))
		return out_fail(errno, path, NULL, NULL);
	return out_done(done_bytes, 1);
}
