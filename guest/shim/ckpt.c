// SPDX-License-Identifier: Apache-2.0
/*
 * The checkpoint, and what a clone does first.
 *
 * THAW_CHECKPOINT is called from the loop that serves everybody, for a template when no stream is
 * open and no command runs: the snapshot is taken inside the call, so that a clone's first user
 * instruction here is the one behind it. A live checkpoint (fork, pause) waits for nobody: memory
 * and disks are of one instant, so nothing is synced, and in the clone commands lose their streams
 * and go on (orphan.c). The kernel has then set the clock and reseeded already; what is left is the
 * machine's name: hostname, machine-id, generation. If a first request came with the clone, it is
 * started before anything is waited for; its stream is opened from here to the host and connects
 * meanwhile.
 *
 * No buffer is made for the call: the request lands in shim->io, which is warm.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "guest/module/thaw_uapi.h"
#include "guest/shim/boot.h"
#include "guest/shim/exec.h"
#include "guest/shim/shim.h"
#include "guest/shim/tunnel.h"

#define PATH_BYTES	  256
#define KILL_WAIT_SECONDS 5
#define CONNECT_SECONDS	  30

_Static_assert(THAW_REQUEST_BYTES <= sizeof(((struct shim *)0)->io), "a request fits");

static int write_file(const char *dir, const char *name, const char *text, size_t len)
{
	char path[PATH_BYTES];
	size_t dir_len = strlen(dir), name_bytes = strlen(name) + 1;
	int fd, ret = 0;

	if (dir_len + name_bytes > sizeof(path))
		return -ENAMETOOLONG;
	memcpy(path, dir, dir_len + 1);
	memcpy(path + dir_len, name, name_bytes);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444);
	if (fd < 0)
		return -errno;
	if (write(fd, text, len) != (ssize_t)len || ftruncate(fd, (off_t)len) < 0)
		ret = errno ? -errno : -EIO;
	close(fd);
	return ret;
}

int ckpt_write_identity(const struct shim *shim, const u8 vm_id[16], u64 generation)
{
	static const char hex[] = "0123456789abcdef";
	char id[33], number[21];
	size_t at = sizeof(number);
	int ret;

	for (int i = 0; i < 16; i++) {
		id[2 * i] = hex[vm_id[i] >> 4];
		id[2 * i + 1] = hex[vm_id[i] & 15];
	}
	id[32] = '\n';
	number[--at] = '\n';
	do {
		number[--at] = (char)('0' + generation % 10);
		generation /= 10;
	} while (generation && at);
	ret = write_file(shim->run_dir, "/machine-id", id, sizeof(id));
	if (ret)
		return ret;
	return write_file(shim->run_dir, "/thaw/generation", number + at, sizeof(number) - at);
}

/* Return: a socket on its way to the host, or -errno. */
static int open_first_stream(void)
{
	struct sockaddr_vm host = {
		.svm_family = AF_VSOCK,
		.svm_cid = VMADDR_CID_HOST,
		.svm_port = SHIM_FIRST_PORT,
	};
	struct timeval timeout = {.tv_sec = CONNECT_SECONDS};
	int fd, ret;

	fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/* The default of 2 s is short on a host that has just started many of us. */
	(void)setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_CONNECT_TIMEOUT, &timeout, sizeof(timeout));
	if (connect(fd, (struct sockaddr *)&host, sizeof(host)) < 0 && errno != EINPROGRESS) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

static void start_first_request(struct shim *shim, u32 len_bytes)
{
	struct conn *c;
	u8 *req;
	int fd;

	req = malloc(len_bytes);
	fd = open_first_stream();
	if (!req || fd < 0) {
		shim_log(3, "the first request is lost: %s", strerror(req ? -fd : ENOMEM));
		goto err;
	}
	c = conn_new(shim, fd);
	if (!c) {
		shim_log(3, "the first request is lost: no connection");
		free(req);
		return;
	}
	memcpy(req, shim->io, len_bytes);
	c->connecting = true;
	c->writable = false;
	c->ready[SLOT_STREAM] = false;
	c->req = req;
	c->req_len = c->req_got = len_bytes;
	exec_begin(shim, c);
	return;
err:
	free(req);
	if (fd >= 0)
		close(fd);
}

bool ckpt_under_way(const struct shim *shim)
{
	for (u32 i = 0; i < SHIM_CONN_MAX; i++) {
		const struct conn *c = shim->conns[i];

		if (c && (c->then == THEN_CHECKPOINT || c->then == THEN_CHECKPOINT_LIVE))
			return true;
	}
	return shim->checkpoint_wanted || shim->checkpoint_live;
}

void ckpt_run(struct shim *shim, bool live)
{
	struct thaw_checkpoint arg = {
		.size_bytes = sizeof(arg),
		.request_ptr = (u64)(uintptr_t)shim->io,
		.request_capacity_bytes = THAW_REQUEST_BYTES,
	};
	int ret;

	if (shim->thaw_fd < 0) {
		shim_log(3, "checkpoint: there is no /dev/thaw");
		return;
	}
	if (!live)
		sync();
	ret = ioctl(shim->thaw_fd, THAW_CHECKPOINT, &arg);
	if (ret < 0) {
		shim_log(3, "checkpoint: %m");
		return;
	}
	/* 1: this is the machine that was snapshotted, and it goes on as it was. */
	if (ret)
		return;
	for (u32 i = 0; live && i < SHIM_CONN_MAX; i++)
		if (shim->conns[i])
			conn_orphan(shim, shim->conns[i]);
	tunnel_end_all(shim);
	arg.hostname[sizeof(arg.hostname) - 1] = '\0';
	if (arg.hostname[0] && sethostname(arg.hostname, strlen(arg.hostname)) < 0)
		shim_log(4, "sethostname: %m");
	ret = ckpt_write_identity(shim, arg.vm_id, arg.generation);
	if (ret)
		shim_log(4, "cannot write the machine-id: %s", strerror(-ret));
	if (arg.request_len_bytes > THAW_REQUEST_BYTES)
		shim_log(3, "the first request is lost: %u bytes are too many",
			 arg.request_len_bytes);
	else if (arg.request_len_bytes)
		start_first_request(shim, arg.request_len_bytes);
}

/* Every process but this one; bounded, since one may hang in a system call. */
static void kill_all(void)
{
	struct timespec wait = {.tv_sec = KILL_WAIT_SECONDS};
	sigset_t chld;
	pid_t pid;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	kill(-1, SIGKILL);
	for (;;) {
		pid = waitpid(-1, NULL, WNOHANG);
		if (pid < 0)
			return;
		if (!pid && sigtimedwait(&chld, NULL, &wait) < 0 && errno == EAGAIN)
			return;
	}
}

/* Every process but this one gets SIGTERM, and @grace_ms to end. */
static void term_all(u32 grace_ms)
{
	const u64 deadline_ns = loop_now_ns() + (u64)grace_ms * 1000000;
	sigset_t chld;
	pid_t pid;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	kill(-1, SIGTERM);
	/* A stopped process takes it only when it goes on. */
	kill(-1, SIGCONT);
	for (;;) {
		u64 now_ns = loop_now_ns();
		struct timespec left;

		pid = waitpid(-1, NULL, WNOHANG);
		if (pid > 0)
			continue;
		if (pid < 0 || now_ns >= deadline_ns)
			return;
		left.tv_sec = (time_t)((deadline_ns - now_ns) / 1000000000);
		left.tv_nsec = (long)((deadline_ns - now_ns) % 1000000000);
		(void)sigtimedwait(&chld, NULL, &left);
	}
}

/* The scratch disk is hidden below the overlay: it is reached by the fd that was kept. */
static void scratch_read_only(const struct shim *shim)
{
	int fd;

	(void)mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
	if (shim->scratch_fd < 0)
		return;
	fd = fspick(shim->scratch_fd, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC);
	if (fd < 0)
		return;
	if (fsconfig(fd, FSCONFIG_SET_FLAG, "ro", NULL, 0) < 0 ||
	    fsconfig(fd, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
		shim_log(4, "scratch disk stays writable: %m");
	close(fd);
}

void ckpt_poweroff(struct shim *shim, u32 grace_ms)
{
	if (!shim->is_init) {
		shim->stop = true;
		return;
	}
	if (grace_ms)
		term_all(grace_ms);
	kill_all();
	sync();
	scratch_read_only(shim);
	reboot(RB_POWER_OFF);
	shim_panic("power off: %m");
}
