// SPDX-License-Identifier: Apache-2.0
// A listener's path: there only when it listens, never in place of something else.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"
#include "vmm/util/usock.h"
#include "vmm/util/util.h"

static char dir[] = "/tmp/thaw-usock-XXXXXX";

static int connect_to(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), ret;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	ret = connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
	close(fd);
	return ret;
}

static void test_path(void)
{
	char path[128], aside[160], deep[USOCK_PATH_MAX + 2];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/a", dir);
	snprintf(aside, sizeof(aside), "%s~%d", path, (int)getpid());
	CHECK(symlink("nowhere", aside) == 0); /* what a dead process of this pid left */
	fd = usock_listen(path, SOCK_STREAM, 4, 0600);
	CHECK(fd >= 0);
	CHECK(connect_to(path) == 0);
	CHECK(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600 && S_ISSOCK(st.st_mode));
	CHECK(lstat(aside, &st) < 0 && errno == ENOENT);
	CHECK(usock_listen(path, SOCK_STREAM, 4, 0600) == -EADDRINUSE);
	CHECK(connect_to(path) == 0);
	fd_close(&fd);
	CHECK(unlink(path) == 0);

	memset(deep, 'x', sizeof(deep) - 1);
	deep[sizeof(deep) - 1] = '\0';
	CHECK(usock_listen(deep, SOCK_STREAM, 4, 0600) == -ENAMETOOLONG);
	snprintf(path, sizeof(path), "%s/missing/a", dir);
	CHECK(usock_listen(path, SOCK_STREAM, 4, 0600) == -ENOENT);
}

/** Whoever waits for the path must be let in, however early. */
static void test_no_gap(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/b", dir);
	for (int i = 0; i < 300; i++) {
		int fd, status;
		pid_t pid = fork();

		if (pid == 0) {
			while (access(path, F_OK) < 0)
				;
			_exit(connect_to(path) == 0 ? 0 : 1);
		}
		CHECK(pid > 0);
		fd = usock_listen(path, SOCK_STREAM, 4, 0600);
		CHECK(fd >= 0);
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		fd_close(&fd);
		CHECK(unlink(path) == 0);
	}
}

/** What a killed process left is taken over; what only looks like it is not. */
static void test_dead(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	const char *path = addr.sun_path;
	struct stat st;
	int fd, dead;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/c", dir);
	dead = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(dead, (struct sockaddr *)&addr, sizeof(addr)) == 0 && listen(dead, 1) == 0);
	CHECK(usock_listen(path, SOCK_STREAM, 4, 0600) == -EADDRINUSE);
	close(dead);
	CHECK(connect_to(path) == -ECONNREFUSED);
	fd = usock_listen(path, SOCK_STREAM, 4, 0600);
	CHECK(fd >= 0 && connect_to(path) == 0);
	CHECK(usock_listen(path, SOCK_STREAM, 4, 0600) == -EADDRINUSE);
	CHECK(connect_to(path) == 0);
	fd_close(&fd);
	CHECK(unlink(path) == 0);

	fd = usock_listen(path, SOCK_SEQPACKET, 4, 0600);
	CHECK(fd >= 0);
	fd_close(&fd);
	fd = usock_listen(path, SOCK_SEQPACKET, 4, 0600);
	CHECK(fd >= 0);
	fd_close(&fd);
	CHECK(unlink(path) == 0);

	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	fd_close(&fd);
	CHECK(connect_to(path) == -ECONNREFUSED); /* like a dead one */
	CHECK(usock_listen(path, SOCK_STREAM, 4, 0600) == -EADDRINUSE);
	CHECK(stat(path, &st) == 0 && S_ISREG(st.st_mode));
	CHECK(unlink(path) == 0);
}

static void test_seqpacket(void)
{
	char path[128], word[8];
	int fd, client, peer;

	snprintf(path, sizeof(path), "%s/c", dir);
	CHECK(usock_connect(path, SOCK_SEQPACKET) == -ENOENT);
	fd = usock_listen(path, SOCK_SEQPACKET, 4, 0600);
	CHECK(fd >= 0);
	CHECK(usock_connect(path, SOCK_STREAM) == -EPROTOTYPE);
	client = usock_connect(path, SOCK_SEQPACKET);
	CHECK(client >= 0);
	peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	CHECK(peer >= 0 && usock_peer_ok(peer) && usock_peer_ok(client));
	CHECK(send(client, "ab", 2, 0) == 2 && send(client, "c", 1, 0) == 1);
	CHECK(recv(peer, word, sizeof(word), 0) == 2);
	fd_close(&peer);
	fd_close(&client);
	fd_close(&fd);
	CHECK(usock_connect(path, SOCK_SEQPACKET) == -ECONNREFUSED);
	CHECK(unlink(path) == 0);
}

/** A process of another user connects; it is turned away by who it is, not by the path's mode. */
static void test_peer(void)
{
	char path[128];
	int fd, peer, status;
	pid_t pid;

	if (geteuid() != 0)
		return; /* only root can be another user */
	CHECK(chmod(dir, 0755) == 0);
	snprintf(path, sizeof(path), "%s/d", dir);
	fd = usock_listen(path, SOCK_SEQPACKET, 4, 0666);
	CHECK(fd >= 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(setuid(12345) == 0 && usock_connect(path, SOCK_SEQPACKET) >= 0 ? 0 : 1);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	CHECK(peer >= 0 && !usock_peer_ok(peer));
	fd_close(&peer);
	fd_close(&fd);
	CHECK(unlink(path) == 0);
}

static void test_left(void)
{
	CHECK(rmdir(dir) == 0);
}

static void test_folder(void)
{
	CHECK(mkdtemp(dir));
}

TEST_MAIN({"folder", test_folder}, {"path", test_path}, {"no gap", test_no_gap},
	  {"dead", test_dead}, {"seqpacket", test_seqpacket}, {"peer", test_peer},
	  {"nothing left", test_left})
