// SPDX-License-Identifier: Apache-2.0
// Hostile peers of the control channel: no message leaves a file open here that nobody knows of.
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "test.h"
#include "vmm/util/ctl.h"
#include "vmm/util/util.h"

#define FDS_MAX 4

static int pair[2];

static unsigned int count_fds(void)
{
	unsigned int count = 0;
	DIR *dir = opendir("/proc/self/fd");

	CHECK(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

/** Whatever the peer likes: @len_bytes of @msg and @nfds times its own end. */
static void send_raw(const struct ctl_msg *msg, size_t len_bytes, unsigned int nfds)
{
	struct iovec iov = {.iov_base = (void *)msg, .iov_len = len_bytes};
	struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control = {0};

	if (nfds) {
		struct cmsghdr *cmsg;

		hdr.msg_control = control.buf;
		hdr.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&hdr);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		for (unsigned int i = 0; i < nfds; i++)
			memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &pair[0], sizeof(int));
	}
	CHECK(sendmsg(pair[0], &hdr, MSG_NOSIGNAL) == (ssize_t)len_bytes);
}

static void open_pair(void)
{
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
}

static void close_pair(void)
{
	fd_close(&pair[0]);
	fd_close(&pair[1]);
}

static void test_fds(void)
{
	const struct ctl_msg good = {.version = CTL_VERSION, .type = CTL_STOP};
	struct ctl_msg msg;
	unsigned int before;
	int fd;

	open_pair();
	before = count_fds();
	CHECK(ctl_recv(pair[1], &msg, &fd) == -EAGAIN && fd == -1);
	send_raw(&good, sizeof(good), 0);
	CHECK(ctl_recv(pair[1], &msg, &fd) == 1 && fd == -1 && msg.type == CTL_STOP);
	send_raw(&good, sizeof(good), 1);
	CHECK(ctl_recv(pair[1], &msg, &fd) == 1 && fd >= 0);
	fd_close(&fd);
	for (unsigned int nfds = 2; nfds <= FDS_MAX; nfds++) {
		send_raw(&good, sizeof(good), nfds);
		CHECK(ctl_recv(pair[1], &msg, &fd) == -EPROTO && fd == -1);
		CHECK(count_fds() == before);
	}
	close_pair();
}

static void test_halves(void)
{
	struct ctl_msg good = {.version = CTL_VERSION, .type = CTL_STOP};
	struct ctl_msg msg;
	unsigned int before;
	int fd;

	open_pair();
	before = count_fds();
	for (unsigned int nfds = 0; nfds <= 2; nfds++) {
		send_raw(&good, sizeof(good) / 2, nfds);
		CHECK(ctl_recv(pair[1], &msg, &fd) == -EPROTO && fd == -1);
		send_raw(&good, 0, nfds);
		CHECK(ctl_recv(pair[1], &msg, &fd) == 0 && fd == -1);
	}
	good.version++;
	send_raw(&good, sizeof(good), 1);
	CHECK(ctl_recv(pair[1], &msg, &fd) == -EPROTO && fd == -1);
	good.version = CTL_VERSION;
	memset(good.text, 'x', sizeof(good.text));
	send_raw(&good, sizeof(good), 1);
	CHECK(ctl_recv(pair[1], &msg, &fd) == -EPROTO && fd == -1);
	CHECK(count_fds() == before);
	close_pair();
}

TEST_MAIN({"fds", test_fds}, {"halves", test_halves})
