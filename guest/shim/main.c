// SPDX-License-Identifier: Apache-2.0
// thaw-shim: PID 1 of a sandbox. Without being PID 1 it serves a Unix socket, for tests.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/shim/boot.h"
#include "guest/shim/shim.h"
#include "guest/shim/tunnel.h"

static const char usage[] =
	"usage: thaw-shim --listen-unix PATH [--cgroup DIR] [--files PATH]\n"
	"       thaw-shim --serve-fd N [--cgroup DIR] [--files PATH]\n"
	"As PID 1 it is the init of a thaw guest and takes no arguments. The two forms above serve the exec\n"
	"protocol on a Unix stream socket (absolute PATH), for tests: until SIGTERM, or until the one stream has ended.\n"
	"--cgroup: a cgroup v2 directory to make one cgroup per command in; without it process groups are used.\n"
	"--files: the thaw-files program.\n";

static int listen_unix(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd;

	if (strlen(path) >= sizeof(addr.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(addr.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 128) < 0)
		return -1;
	return fd;
}

/* Return: 0, or 2 for a usage error. */
static int test_options(struct shim *shim, int argc, char **argv)
{
	const char *path = NULL, *cgroup = NULL, *files = NULL;
	int serve_fd = -1, fd, ret;

	for (int i = 1; i < argc; i += 2) {
		if (i + 1 >= argc)
			return 2;
		if (!strcmp(argv[i], "--listen-unix"))
			path = argv[i + 1];
		else if (!strcmp(argv[i], "--serve-fd"))
			serve_fd = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--cgroup"))
			cgroup = argv[i + 1];
		else if (!strcmp(argv[i], "--files"))
			files = argv[i + 1];
		else
			return 2;
	}
	if (!path == (serve_fd < 0))
		return 2;
	if (cgroup) {
		ret = cgroup_setup(shim, cgroup);
		if (ret)
			shim_panic("%s: %s", cgroup, strerror(-ret));
	}
	if (files) {
		shim->files_fd = open(files, O_PATH | O_CLOEXEC);
		if (shim->files_fd < 0)
			shim_panic("%s: %m", files);
	}
	if (path) {
		fd = listen_unix(path);
		if (fd < 0)
			shim_panic("%s: %m", path);
		ret = loop_listen(shim, fd);
		if (ret)
			shim_panic("%s: %s", path, strerror(-ret));
		return 0;
	}
	shim->exit_when_idle = true;
	if (!conn_new(shim, serve_fd))
		shim_panic("fd %d cannot be served", serve_fd);
	return 0;
}

/* Commands get what the shim was started with. */
static void test_limits(struct shim *shim)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &shim->nofile) < 0)
		shim_panic("getrlimit: %m");
	files = shim->nofile;
	files.rlim_cur = MAX(files.rlim_cur, (rlim_t)SHIM_NOFILE);
	files.rlim_cur = MIN(files.rlim_cur, files.rlim_max);
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		shim_panic("setrlimit: %m");
}

/* Leaves nothing behind, so that leak checkers and tests see what the loop itself leaves. */
static void test_end(struct shim *shim)
{
	tunnel_end_all(shim);
	for (u32 i = 0; i < SHIM_CONN_MAX; i++)
		if (shim->conns[i])
			conn_end(shim, shim->conns[i]);
	while (waitpid(-1, NULL, 0) > 0)
		;
	for (u32 i = 0; i < SHIM_CONN_MAX; i++) {
		struct conn *c = shim->conns[i];

		if (!c)
			continue;
		c->reaped = true;
		(void)cgroup_release(shim, c);
		free(c->req);
		free(c->slots);
		ring_free(&c->ring);
	}
	if (shim->spare.id) {
		static struct conn c;

		c.cgroup = shim->spare;
		c.fd[SLOT_CGROUP] = -1;
		(void)cgroup_release(shim, &c);
	}
}

int main(int argc, char **argv)
{
	/* Not initialised here: its read buffer would be in the file. */
	static struct shim shim;

	shim.epoll_fd = shim.signal_fd = shim.listen_fd = shim.null_fd = -1;
	shim.thaw_fd = shim.cgroup_fd = shim.scratch_fd = shim.spare.dir_fd = -1;
	shim.files_fd = shim.pts_fd = shim.proc_fd = -1;
	shim.run_dir = "/run";
	shim.is_init = getpid() == 1;
	if (shim.is_init) {
		boot_init(&shim);
		loop_init(&shim);
		boot_listen(&shim);
	} else {
		umask(022);
		test_limits(&shim);
		if (chdir("/") < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
			shim_panic("cannot start: %m");
		loop_init(&shim);
		if (test_options(&shim, argc, argv)) {
			fputs(usage, stderr);
			return 2;
		}
	}
	loop_run(&shim);
	test_end(&shim);
	return 0;
}
