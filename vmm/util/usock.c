// SPDX-License-Identifier: Apache-2.0
// Unix sockets that have a path.
#include "vmm/util/usock.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
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

/** is_dead() - is a socket at this address that nobody listens to, left by a process that was
 * killed? connect(2) refuses for what is no socket, too. @like: a socket of the same type. */
static bool is_dead(int like, const struct sockaddr_un *addr)
{
	int type, fd, ret;
	socklen_t len = sizeof(type);
	struct stat st;

	if (getsockopt(like, SOL_SOCKET, SO_TYPE, &type, &len) < 0 ||
	    lstat(addr->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
		return false;
	fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return false;
	ret = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ? -errno : 0;
	fd_close(&fd);
	return ret == -ECONNREFUSED;
}

/**
 * replace_dead() - put the listening socket @fd, named @aside, in the place of a dead one at @path.
 * Two at a time would take each other for the dead one, so only under a lock (flock) on the folder;
 * the name is there all the time, so that those who find it free are not among them.
 */
static int replace_dead(int fd, const char *aside, const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	char folder[sizeof(addr.sun_path)];
	int dir_fd, ret = -EADDRINUSE;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	snprintf(folder, sizeof(folder), "%s", path);
	dir_fd = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0)
		return -errno;
	if (flock(dir_fd, LOCK_EX | LOCK_NB) == 0 && is_dead(fd, &addr))
		ret = rename(aside, path) < 0 ? -errno : 0;
	fd_close(&dir_fd);
	return ret;
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
		ret = errno == EEXIST ? replace_dead(fd, addr.sun_path, path) : -errno;
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
