/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets that have a path. */
#ifndef THAW_UTIL_USOCK_H
#define THAW_UTIL_USOCK_H

#include <sys/types.h>

#include "vmm/util/types.h"

/* What a path may have, so that a name beside it (the guest's "_PORT", usock_listen()'s own) still
 * fits into sun_path. */
#define USOCK_PATH_MAX 96

/**
 * usock_listen() - a non-blocking listener of @type (SOCK_STREAM, SOCK_SEQPACKET) at @path, of mode
 * @mode.
 *
 * The path appears when the socket already listens: who waits for it to exist can connect. What
 * exists is left as it is, but for a socket that nobody listens to, which a killed process left:
 * that is replaced.
 *
 * Return: the fd (the caller's, O_CLOEXEC), -ENAMETOOLONG above USOCK_PATH_MAX bytes, -EADDRINUSE
 * if @path is taken, or another -errno of socket(2), bind(2), listen(2), link(2). Not logged.
 */
int usock_listen(const char *path, int type, int backlog, mode_t mode);

/**
 * usock_connect() - a non-blocking socket of @type, connected to @path. Return: the fd (the
 * caller's, O_CLOEXEC), -ENAMETOOLONG, or -errno of socket(2) and connect(2) (-ENOENT,
 * -ECONNREFUSED: nobody listens; -EAGAIN: too many wait there). Not logged.
 */
int usock_connect(const char *path, int type);

/** usock_peer_ok() - is the process at the other end of @fd of this user, or root? */
bool usock_peer_ok(int fd);

#endif
