// SPDX-License-Identifier: Apache-2.0
// Small helpers around system calls.
#include "vmm/util/util.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How often a folder may be removed under our hands. */
#define FOLDER_TRIES 16

u64 clock_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
}

void fd_close(int *fd)
{
	int saved_errno = errno;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = saved_errno;
}

/** fd_wait() - after EAGAIN: whoever made the pipe may have made it non-blocking. Return: 0 to try
 * again, or -errno. */
static int fd_wait(int fd, short events)
{
	struct pollfd pfd = {.fd = fd, .events = events};

	if (errno == EINTR)
		return 0;
	if (errno != EAGAIN)
		return -errno;
	return poll(&pfd, 1, -1) < 0 && errno != EINTR ? -errno : 0;
}

int fd_read_full(int fd, void *buf, size_t len_bytes)
{
	char *p = buf;

	while (len_bytes) {
		ssize_t n = read(fd, p, len_bytes);
		int ret = n < 0 ? fd_wait(fd, POLLIN) : 0;

		if (ret)
			return ret;
		if (n < 0)
			continue;
		if (n == 0)
			return -ENODATA;
		p += n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

int fd_pread_full(int fd, void *buf, size_t len_bytes, u64 offset_bytes)
{
	char *p = buf;

	while (len_bytes) {
		ssize_t n = pread(fd, p, len_bytes, (off_t)offset_bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -ENODATA;
		p += n;
		offset_bytes += (u64)n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

int fd_write_full(int fd, const void *buf, size_t len_bytes)
{
	const char *p = buf;

	while (len_bytes) {
		ssize_t n = write(fd, p, len_bytes);
		int ret = n < 0 ? fd_wait(fd, POLLOUT) : 0;

		if (ret)
			return ret;
		if (n < 0)
			continue;
		p += n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

int fd_pwrite_full(int fd, const void *buf, size_t len_bytes, u64 offset_bytes)
{
	const char *p = buf;

	while (len_bytes) {
		ssize_t n = pwrite(fd, p, len_bytes, (off_t)offset_bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		offset_bytes += (u64)n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

int file_read_all(int dirfd, const char *path, size_t max_bytes, char **out, size_t *len_bytes)
{
	struct stat st;
	char *buf = NULL;
	int fd, ret;

	fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0) {
		ret = -errno;
		goto out_close;
	}
	if (!S_ISREG(st.st_mode)) {
		ret = -EINVAL;
		goto out_close;
	}
	if ((u64)st.st_size > max_bytes) {
		ret = -EFBIG;
		goto out_close;
	}
	buf = malloc((size_t)st.st_size + 1);
	if (!buf) {
		ret = -ENOMEM;
		goto out_close;
	}
	ret = fd_read_full(fd, buf, (size_t)st.st_size);
	if (ret) {
		free(buf);
		goto out_close;
	}
	buf[st.st_size] = '\0';
	*out = buf;
	if (len_bytes)
		*len_bytes = (size_t)st.st_size;
out_close:
	fd_close(&fd);
	return ret;
}

int parse_u64(const char *text, u64 min, u64 max, u64 *out)
{
	unsigned long long value;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || value < min || value > max)
		return -EINVAL;
	*out = value;
	return 0;
}

int parse_size(const char *text, u64 *out_bytes)
{
	static const struct {
		const char *name;
		unsigned int shift;
	} units[] = {
		{"", 0},     {"b", 0},	 {"k", 10},   {"kb", 10},  {"kib", 10},
		{"m", 20},   {"mb", 20}, {"mib", 20}, {"g", 30},   {"gb", 30},
		{"gib", 30}, {"t", 40},	 {"tb", 40},  {"tib", 40},
	};
	unsigned long long value;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
		if (strcasecmp(end, units[i].name))
			continue;
		if (value > (UINT64_MAX >> units[i].shift))
			return -EINVAL;
		*out_bytes = (u64)value << units[i].shift;
		return 0;
	}
	return -EINVAL;
}

void heap_prepare(void)
{
	mallopt(M_ARENA_MAX, 1);
	mallopt(M_MMAP_THRESHOLD, 64 * KIB);
}

int fd_link_into(int fd, const char *folder, const char *path)
{
	char proc_path[64];

	snprintf(proc_path, sizeof(proc_path), "/proc/self/fd/%d", fd);
	for (unsigned int i = 0; i < FOLDER_TRIES; i++) {
		if (mkdir(folder, 0755) < 0 && errno != EEXIST)
			return -errno;
		if (linkat(AT_FDCWD, proc_path, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0)
			return 0;
		if (errno != ENOENT)
			return -errno;
	}
	return -ENOENT;
}
