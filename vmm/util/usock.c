// SPDX-License-Identifier: Apache-2.0
// Unix sockets that have a path.
#include "vmm/util/usock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "vmm/util/util.h"

/** Bound to a name of its own first: bind(2) makes the name before anyone can listen there. */
static int listen_aside(int fd, const struct sockaddr_un *addr, int backlog, mode_t mode)
{
	if (unlink(addr->sun_path) < 0 && errno != ENOENT)
		return -errno;
	if (bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0)
		return -errno;
	if (chmod(addr->sun_path, mode) < 0 || listen(fd, backlog) < 0)
		return -errno;
	return 0;
}

int usock_listen(const char *path, int type, int backlog, mode_t mode)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd, ret;

	_Static_assert(USOCK_PATH_MAX + sizeof("~4294967295") <= sizeof(addr.sun_path),
		       "the name beside the path must fit");
	if (strlen(path) > USOCK_PATH_MAX)
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s~%u", path, (unsigned int)getpid());
	ret = listen_aside(fd, &addr, backlog, mode);
	/* Not rename(2): it would replace what is at the path. */
	if (!ret && link(addr.sun_path, path) < 0)
		ret = errno == EEXIST ? -EADDRINUSE : -errno;
	unlink(addr.sun_path);
	if (ret)
		fd_close(&fd);
	return ret ?: fd;
}

int usock_connect(const char *path, int type)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd, ret;

	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* A Unix socket connects at once or not at all. */
	if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0) {
		ret = -errno;
		fd_close(&fd);
		return ret;
	}
	return fd;
}

bool usock_peer_ok(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return false;
	/* getauxval: no system call, which a confined process may not have. */
	return peer.uid == 0 || peer.uid == getauxval(AT_EUID);
}
