// SPDX-License-Identifier: Apache-2.0
// The control channel of a thaw-vmm.
#include "vmm/util/ctl.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "vmm/util/util.h"

int ctl_send(int sock, const struct ctl_msg *msg, int fd)
{
	struct iovec iov = {.iov_base = (void *)msg, .iov_len = sizeof(*msg)};
	struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	ssize_t n;

	if (fd >= 0) {
		struct cmsghdr *cmsg;

		hdr.msg_control = control.buf;
		hdr.msg_controllen = sizeof(control.buf);
		cmsg = CMSG_FIRSTHDR(&hdr);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	}
	do {
		n = sendmsg(sock, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int ctl_recv(int sock, struct ctl_msg *msg, int *fd)
{
	struct iovec iov = {.iov_base = msg, .iov_len = sizeof(*msg)};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = {0};
	/* Room for one fd, and no more: with its padding, CMSG_SPACE() takes two. */
	struct msghdr hdr = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control.buf,
			     .msg_controllen = CMSG_LEN(sizeof(int))};
	ssize_t n;

	*fd = -1;
	do {
		n = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&hdr); c; c = CMSG_NXTHDR(&hdr, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
		    c->cmsg_len == CMSG_LEN(sizeof(int)))
			memcpy(fd, CMSG_DATA(c), sizeof(int));
	}
	if (n == 0) {
		/* A packet without a byte looks like the end, but may bring an fd. */
		fd_close(fd);
		return 0;
	}
	/* The buffer holds one fd, so the kernel has dropped any more than that and said so by
	 * MSG_CTRUNC. */
	if (n != sizeof(*msg) || (hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
	    msg->version != CTL_VERSION || !memchr(msg->text, '\0', sizeof(msg->text))) {
		fd_close(fd);
		return -EPROTO;
	}
	return 1;
}
