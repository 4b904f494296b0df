/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets that have a path. */
#ifndef THAW_UTIL_USOCK_H
#define THAW_UTIL_USOCK_H

#include <sys/types.h>

/* What a path may have, so that a name beside it (the guest's "_PORT", usock_listen()'s own) still
 * fits into sun_path. */
#define USOCK_PATH_MAX 96

/**
 * usock_listen() - a non-blocking SOCK_STREAM listener at @path, of mode @mode.
 *
 * The path appears when the socket already listens: who waits for it to exist can connect. What
 * exists is left as it is, but for a socket that nobody listens to, which a killed process left:
 * that is replaced.
 *
 * Return: the fd (the caller's, O_CLOEXEC), -ENAMETOOLONG above USOCK_PATH_MAX bytes, -EADDRINUSE
 * if @path is taken, or another -errno of socket(2), bind(2), listen(2), link(2). Not logged.
 */
int usock_listen(const char *path, int backlog, mode_t mode);

#endif
