// SPDX-License-Identifier: Apache-2.0
// The zygote's fork server, without KVM: what new processes get, what ends when.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/util/ctl.h"
#include "vmm/util/util.h"
#include "vmm/zygote.h"

#define WAIT_MS 10000

static pid_t zygote_pid;
static int zygote_sock;

/** What a new process does: one word about itself, then nothing until its owner is gone. */
static void child_main(int ctl_fd)
{
	struct ctl_msg msg = {.version = CTL_VERSION, .type = CTL_WAITING};
	sigset_t set;

	/* SIGCHLD is the zygote's matter alone. */
	CHECK_EQ(sigprocmask(SIG_BLOCK, NULL, &set), 0);
	msg.error = sigismember(&set, SIGCHLD);
	msg.port = (u32)getpid();
	CHECK_EQ(ctl_send(ctl_fd, &msg, -1), 0);
	CHECK_EQ(read(ctl_fd, &msg, sizeof(msg)), 0);
	_exit(7);
}

static struct ctl_msg receive(int sock, int *fd)
{
	struct pollfd pfd = {.fd = sock, .events = POLLIN};
	struct ctl_msg msg;

	CHECK_EQ(poll(&pfd, 1, WAIT_MS), 1);
	CHECK_EQ(ctl_recv(sock, &msg, fd), 1);
	return msg;
}

static void start_zygote(void)
{
	int pair[2], ctl_fd = -1, fd, ret;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	zygote_pid = fork();
	CHECK(zygote_pid >= 0);
	if (!zygote_pid) {
		close(pair[0]);
		ret = zygote_serve(pair[1], &ctl_fd);
		if (ret == 1)
			child_main(ctl_fd);
		_exit(ret ? 1 : 0);
	}
	close(pair[1]);
	zygote_sock = pair[0];
	CHECK_EQ(receive(zygote_sock, &fd).type, CTL_READY);
}

static void end_zygote(int want)
{
	int status;

	fd_close(&zygote_sock);
	CHECK_EQ(waitpid(zygote_pid, &status, 0), zygote_pid);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), want);
}

static void request(int fd)
{
	struct ctl_msg msg = {.version = CTL_VERSION, .type = CTL_FORK, .generation = 77};

	CHECK_EQ(ctl_send(zygote_sock, &msg, fd), 0);
}

/** Return: our end of the new process's channel. */
static int make_child(int *pid_fd, u32 *pid)
{
	struct ctl_msg msg;
	int pair[2], fd;

	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	/* The child of this test reads without poll. */
	CHECK_EQ(fcntl(pair[1], F_SETFL, 0), 0);
	request(pair[1]);
	close(pair[1]);
	msg = receive(zygote_sock, pid_fd);
	CHECK_EQ(msg.type, CTL_FORKED);
	CHECK_EQ(msg.error, 0);
	CHECK_EQ(msg.generation, 77);
	CHECK(*pid_fd >= 0);
	*pid = msg.port;
	msg = receive(pair[0], &fd);
	CHECK_EQ(msg.type, CTL_WAITING);
	CHECK_EQ(msg.error, 0);
	CHECK_EQ(msg.port, *pid);
	return pair[0];
}

static bool ended(int pid_fd, int timeout_ms)
{
	struct pollfd pfd = {.fd = pid_fd, .events = POLLIN};

	return poll(&pfd, 1, timeout_ms) == 1;
}

static void test_children(void)
{
	int fds[8], pid_fds[8];
	u32 pids[8];

	start_zygote();
	for (unsigned int i = 0; i < ARRAY_SIZE(fds); i++)
		fds[i] = make_child(&pid_fds[i], &pids[i]);
	/* Each ends with its own channel, and no other does. */
	for (unsigned int i = 0; i < ARRAY_SIZE(fds); i += 2) {
		fd_close(&fds[i]);
		CHECK(ended(pid_fds[i], WAIT_MS));
	}
	for (unsigned int i = 1; i < ARRAY_SIZE(fds); i += 2)
		CHECK(!ended(pid_fds[i], 0));
	/* The last one that was asked for is reaped as well: no process of that number is left. */
	CHECK_EQ(syscall(SYS_pidfd_send_signal, pid_fds[1], SIGKILL, NULL, 0), 0);
	for (u64 end_ns = clock_now_ns() + WAIT_MS * 1000000ull; !kill((pid_t)pids[1], 0);) {
		CHECK(clock_now_ns() < end_ns);
		usleep(1000);
	}
	/* They live on without the zygote. */
	end_zygote(0);
	CHECK(!ended(pid_fds[3], 0));
	for (unsigned int i = 1; i < ARRAY_SIZE(fds); i += 2) {
		fd_close(&fds[i]);
		CHECK(ended(pid_fds[i], WAIT_MS));
	}
	for (unsigned int i = 0; i < ARRAY_SIZE(fds); i++)
		fd_close(&pid_fds[i]);
}

static void test_killed(void)
{
	int fd, pid_fd, status;
	u32 pid;

	start_zygote();
	fd = make_child(&pid_fd, &pid);
	CHECK_EQ(kill(zygote_pid, SIGKILL), 0);
	CHECK_EQ(waitpid(zygote_pid, &status, 0), zygote_pid);
	CHECK(!ended(pid_fd, 0));
	fd_close(&fd);
	CHECK(ended(pid_fd, WAIT_MS));
	fd_close(&pid_fd);
	fd_close(&zygote_sock);
}

static void test_refusals(void)
{
	struct ctl_msg msg = {.version = CTL_VERSION, .type = 99};
	int fd, pid_fd;
	u32 pid;

	start_zygote();
	/* Without a channel nobody could ever end it. */
	request(-1);
	msg = receive(zygote_sock, &fd);
	CHECK_EQ(msg.type, CTL_FORKED);
	CHECK_EQ(msg.error, -EINVAL);
	CHECK_EQ(fd, -1);
	msg = (struct ctl_msg){.version = CTL_VERSION, .type = 99};
	CHECK_EQ(ctl_send(zygote_sock, &msg, -1), 0);
	fd = make_child(&pid_fd, &pid);
	fd_close(&fd);
	fd_close(&pid_fd);
	/* Nonsense: the owner is not what it should be. */
	CHECK_EQ(send(zygote_sock, "nonsense", 8, 0), 8);
	end_zygote(1);
}

TEST_MAIN({"children", test_children}, {"killed", test_killed}, {"refusals", test_refusals})
