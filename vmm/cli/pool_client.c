// SPDX-License-Identifier: Apache-2.0
// Both ends of a pool's socket.
//
// The name of a socket stays when its process is killed. Whoever finds one that refuses removes it:
// under a lock (flock) on the folder, which a pool holds as well while it binds and listens, so
// that a socket that refuses under the lock has nobody behind it.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "vmm/cli/pool.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define POOL_BACKLOG	128
#define POOL_ANSWER_SEC 10

int pool_send(int sock, const struct pool_msg *msg, const int *fds, unsigned int nfds)
{
	struct iovec iov = {.iov_base = (void *)msg, .iov_len = sizeof(*msg)};
	struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(POOL_FDS_MAX * sizeof(int))];
	} control = {0};
	ssize_t n;

	BUG_ON(nfds > POOL_FDS_MAX);
	if (nfds) {
		struct cmsghdr *cmsg;

		hdr.msg_control = control.buf;
		hdr.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&hdr);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, nfds * sizeof(int));
	}
	do {
		n = sendmsg(sock, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

static bool msg_is_good(const struct pool_msg *msg, ssize_t len_bytes, int flags)
{
	return len_bytes == sizeof(*msg) && !(flags & (MSG_TRUNC | MSG_CTRUNC)) &&
	       msg->version == POOL_VERSION && msg->npids <= POOL_SIZE_MAX &&
	       memchr(msg->strategy, '\0', sizeof(msg->strategy));
}

int pool_recv(int sock, struct pool_msg *msg, int fds[POOL_FDS_MAX])
{
	struct iovec iov = {.iov_base = msg, .iov_len = sizeof(*msg)};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(POOL_FDS_MAX * sizeof(int))];
	} control = {0};
	struct msghdr hdr = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.buf,
			     .msg_controllen = sizeof(control.buf)};
	ssize_t n;

	fds[0] = fds[1] = -1;
	do {
		n = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&hdr); c; c = CMSG_NXTHDR(&hdr, c)) {
		size_t len_bytes = c->cmsg_len - CMSG_LEN(0);

		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(fds, CMSG_DATA(c), MIN(len_bytes, POOL_FDS_MAX * sizeof(int)));
	}
	if (n > 0 && msg_is_good(msg, n, hdr.msg_flags))
		return 1;
	/* A packet without a byte looks like the end, but may bring fds. */
	fd_close(&fds[0]);
	fd_close(&fds[1]);
	return n ? -EPROTO : 0;
}

int pool_address(const struct state *state, const char *name, struct sockaddr_un *addr, int *dir_fd)
{
	char path[PATH_MAX];
	int n;

	*addr = (struct sockaddr_un){.sun_family = AF_UNIX};
	state_path(state, "pools", NULL, NULL, path);
	*dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*dir_fd < 0)
		return -errno;
	/* An address holds 107 characters; this one is as long as the name alone. */
	n = snprintf(addr->sun_path, sizeof(addr->sun_path), "/proc/self/fd/%d/%s.sock", *dir_fd,
		     name);
	BUG_ON(n < 0 || (size_t)n >= sizeof(addr->sun_path));
	return 0;
}

static int unix_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	return fd < 0 ? -errno : fd;
}

/** Return: an fd or -errno. */
static int connect_to(const struct sockaddr_un *addr)
{
	const struct timeval patience = {.tv_sec = POOL_ANSWER_SEC};
	int fd = unix_socket(), ret;

	if (fd < 0)
		return fd;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0 &&
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) == 0 &&
	    connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0)
		return fd;
	ret = -errno;
	fd_close(&fd);
	return ret;
}

/** Under the folder's lock. Return: 0 when nobody is there and nothing is left, -EADDRINUSE, or
 * -errno. */
static int clear_stale(const struct sockaddr_un *addr)
{
	int fd = connect_to(addr);

	if (fd >= 0) {
		fd_close(&fd);
		return -EADDRINUSE;
	}
	if (fd == -ENOENT)
		return 0;
	if (fd != -ECONNREFUSED)
		return fd == -EAGAIN ? -EADDRINUSE : fd;
	return unlink(addr->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

/** Return: an fd or -errno. */
static int bind_to(const struct sockaddr_un *addr)
{
	mode_t mask = umask(0177);
	int fd = unix_socket(), ret;

	if (fd < 0) {
		ret = fd;
	} else if (bind(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0) {
		ret = -errno;
	} else {
		ret = listen(fd, POOL_BACKLOG) < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ? -errno
											 : 0;
		if (ret)
			unlink(addr->sun_path);
	}
	umask(mask);
	if (ret)
		fd_close(&fd);
	return ret ? ret : fd;
}

int pool_listen(const struct state *state, const char *name)
{
	struct sockaddr_un addr;
	char path[PATH_MAX];
	int dir_fd, ret;

	state_path(state, "pools", NULL, NULL, path);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	ret = pool_address(state, name, &addr, &dir_fd);
	if (ret)
		return ret;
	if (flock(dir_fd, LOCK_EX) < 0)
		ret = -errno;
	ret = ret ?: clear_stale(&addr);
	ret = ret ?: bind_to(&addr);
	fd_close(&dir_fd);
	return ret;
}

void pool_unlink(const struct state *state, const char *name)
{
	struct sockaddr_un addr;
	int dir_fd;

	if (pool_address(state, name, &addr, &dir_fd))
		return;
	if (unlink(addr.sun_path) < 0 && errno != ENOENT)
		log_warn("%s/pools/%s.sock: %s", state->root, name, strerror(errno));
	fd_close(&dir_fd);
}

int pool_connect(const struct state *state, const char *name)
{
	struct sockaddr_un addr;
	int dir_fd, ret;

	ret = pool_address(state, name, &addr, &dir_fd);
	if (ret)
		return ret;
	ret = connect_to(&addr);
	if (ret == -ECONNREFUSED && flock(dir_fd, LOCK_EX) == 0) {
		ret = clear_stale(&addr);
		if (ret == -EADDRINUSE) /* a new one has come meanwhile */
			ret = connect_to(&addr);
		else if (!ret)
			ret = -ENOENT;
	}
	fd_close(&dir_fd);
	return ret == -ECONNREFUSED ? -ENOENT : ret;
}

/** One question, one answer. */
static int ask(int sock, enum pool_type type, enum pool_type want, struct pool_msg *msg,
	       int fds[POOL_FDS_MAX])
{
	int ret;

	*msg = (struct pool_msg){.version = POOL_VERSION, .type = type};
	fds[0] = fds[1] = -1;
	ret = pool_send(sock, msg, NULL, 0);
	if (ret)
		return ret;
	ret = pool_recv(sock, msg, fds);
	if (ret <= 0)
		return ret == -EAGAIN ? -ETIMEDOUT : ret ? ret : -EPIPE;
	if (msg->type == want || (msg->type == POOL_EMPTY && want == POOL_SHELL))
		return 0;
	fd_close(&fds[0]);
	fd_close(&fds[1]);
	return -EPROTO;
}

int pool_claim(int sock, struct pool_shell_claim *out)
{
	struct pool_msg msg;
	int fds[POOL_FDS_MAX], ret;

	ret = ask(sock, POOL_CLAIM, POOL_SHELL, &msg, fds);
	if (ret)
		return ret;
	if (msg.type == POOL_SHELL && fds[1] >= 0 && msg.pid > 0) {
		*out = (struct pool_shell_claim){.ctl_fd = fds[0],
						 .pid_fd = fds[1],
						 .pid = msg.pid,
						 .counters = msg.counters};
		memcpy(out->strategy, msg.strategy, sizeof(out->strategy));
		return 1;
	}
	fd_close(&fds[0]);
	fd_close(&fds[1]);
	return msg.type == POOL_SHELL ? -EPROTO : 0;
}

int pool_status(int sock, struct pool_msg *out)
{
	int fds[POOL_FDS_MAX];
	int ret = ask(sock, POOL_STATUS, POOL_STATE, out, fds);

	fd_close(&fds[0]);
	fd_close(&fds[1]);
	return ret;
}
