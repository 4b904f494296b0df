/* SPDX-License-Identifier: Apache-2.0 */
/* Small helpers around system calls. */
#ifndef THAW_UTIL_UTIL_H
#define THAW_UTIL_UTIL_H

#include <stdlib.h>

#include "vmm/util/types.h"

/** clock_now_ns() - CLOCK_MONOTONIC in nanoseconds; the clock of every measurement. */
u64 clock_now_ns(void);

/** fd_close() - close *@fd if it is >= 0 and set it to -1. errno is kept. */
void fd_close(int *fd);

/**
 * fd_read_full() / fd_pread_full() - read exactly @len_bytes, going on after EINTR and short reads.
 * fd_read_full() waits where @fd would not.
 *
 * Return: 0, -ENODATA when the file ends early, or -errno.
 */
int __must_check fd_read_full(int fd, void *buf, size_t len_bytes);
int __must_check fd_pread_full(int fd, void *buf, size_t len_bytes, u64 offset_bytes);

/** fd_write_full() / fd_pwrite_full() - write all of @len_bytes. fd_write_full() waits where @fd
 * would not. Return: 0 or -errno. */
int __must_check fd_write_full(int fd, const void *buf, size_t len_bytes);
int __must_check fd_pwrite_full(int fd, const void *buf, size_t len_bytes, u64 offset_bytes);

/**
 * file_read_all() - a whole file into a new buffer, with a NUL behind it that is not counted.
 * @dirfd: as for openat(2); @max_bytes: a larger file is refused.
 * @out: the caller frees it. @len_bytes: length without the NUL; may be NULL.
 *
 * Return: 0, -EFBIG, or -errno. Logs nothing.
 */
int __must_check file_read_all(int dirfd, const char *path, size_t max_bytes, char **out,
			       size_t *len_bytes);

/**
 * parse_size() - "512M", "2G", "4096", "64KiB" to bytes; binary units, case ignored, no sign, no
 * fraction. Return: 0 or -EINVAL (not a size, or does not fit in 64 bits).
 */
int __must_check parse_size(const char *text, u64 *out_bytes);

/** parse_u64() - a whole decimal number in [@min, @max] and nothing behind it. Return: 0 or
 * -EINVAL. */
int __must_check parse_u64(const char *text, u64 min, u64 max, u64 *out);

/**
 * heap_prepare() - once, before threads: the heap of a thaw-vmm, of which many run at a time. One
 * arena, since one for each thread would be private memory that nobody uses; and each allocation of
 * 64 KiB and more is a mapping of its own: zeroed by not being there yet, so that of a table of
 * requests or streams only what is used is ever memory, and nothing is cleared at the start. malloc
 * by itself raises that limit with the first large block that is freed.
 */
void heap_prepare(void);

/** u64_add_ok() - *@sum = @a + @b; false when that overflows. */
static inline bool u64_add_ok(u64 a, u64 b, u64 *sum)
{
	return !__builtin_add_overflow(a, b, sum);
}

/** fd_link_into() - give the unnamed (O_TMPFILE) file @fd the name @path in @folder, which is made
 * if it is not there, also when somebody removes it, still empty, in between. Return: 0, -EEXIST,
 * or -errno. */
int __must_check fd_link_into(int fd, const char *folder, const char *path);

#endif
