// SPDX-License-Identifier: Apache-2.0
// From the kernel's hands to a machine that takes requests.
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/module/thaw_uapi.h"
#include "guest/shim/boot.h"
#include "guest/shim/shim.h"

#define CGROUP_ROOT   "/sys/fs/cgroup"
#define FILES_PATH    "/thaw-files"
#define CMDLINE_BYTES 4096
#define DEVICE_BYTES  64
#define LISTEN_QUEUE  128

/*
 * The value of "NAME=value" on the kernel's command line; @value keeps its default when the line
 * has no such word. As in the kernel's own parameters, the last one counts.
 */
static void cmdline_value(const char *name, char *value, size_t value_bytes)
{
	static char line[CMDLINE_BYTES];
	size_t name_len = strlen(name);
	char *save = NULL;
	ssize_t n;
	int fd;

	fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	n = read(fd, line, sizeof(line) - 1);
	close(fd);
	line[n > 0 ? n : 0] = '\0';
	for (char *at = strtok_r(line, " \n", &save); at; at = strtok_r(NULL, " \n", &save)) {
		if (strncmp(at, name, name_len) != 0 || at[name_len] != '=')
			continue;
		if (snprintf(value, value_bytes, "%s", at + name_len + 1) >= (int)value_bytes)
			shim_panic("%s: longer than %zu bytes", name, value_bytes - 1);
	}
}

/* Where the root image and the scratch disk are; thaw's own machine is the default. */
static void make_root(struct shim *shim)
{
	char root[DEVICE_BYTES] = "/dev/pmem0", scratch[DEVICE_BYTES] = "/dev/vda";

	cmdline_value("thaw.root", root, sizeof(root));
	cmdline_value("thaw.scratch", scratch, sizeof(scratch));
	if (strncmp(root, "/dev/", 5) != 0)
		shim_panic("thaw.root=%s: not a path in /dev", root);
	if (strcmp(scratch, "none") != 0 && strncmp(scratch, "/dev/", 5) != 0)
		shim_panic("thaw.scratch=%s: neither \"none\" nor a path in /dev", scratch);
	mount_root(shim, root, strcmp(scratch, "none") ? scratch : NULL);
}

/* 0, 1 and 2 must be taken, or a pipe of a command would get their numbers. */
static void null_stdio(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		if (fd < 0)
			shim_panic("/dev/null: %m");
	} while (fd < STDERR_FILENO);
	for (int i = 0; i <= STDERR_FILENO; i++)
		if (fd != i)
			(void)dup2(fd, i);
	if (fd > STDERR_FILENO)
		close(fd);
}

static void set_hostname(void)
{
	char name[65];
	ssize_t n;
	int fd;

	fd = open("/etc/hostname", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	n = read(fd, name, sizeof(name) - 1);
	close(fd);
	while (n > 0 && (name[n - 1] == '\n' || name[n - 1] == ' '))
		n--;
	if (n > 0 && sethostname(name, (size_t)n) < 0)
		shim_log(4, "sethostname: %m");
}

static void loopback_up(void)
{
	struct ifreq req = {.ifr_name = "lo"};
	int fd;

	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &req) < 0) {
		shim_log(4, "loopback: %m");
	} else {
		req.ifr_flags |= IFF_UP;
		if (ioctl(fd, SIOCSIFFLAGS, &req) < 0)
			shim_log(4, "loopback: %m");
	}
	if (fd >= 0)
		close(fd);
}

/* What commands inherit; the soft limit of 1024 files is what programs that use select(2) need. The
 * shim's own is higher. */
static void set_limits(struct shim *shim)
{
	const struct rlimit files = {.rlim_cur = SHIM_NOFILE, .rlim_max = 524288};
	const struct rlimit core = {.rlim_cur = 0, .rlim_max = RLIM_INFINITY};

	shim->nofile = (struct rlimit){.rlim_cur = 1024, .rlim_max = files.rlim_max};
	if (setrlimit(RLIMIT_NOFILE, &files) < 0 || setrlimit(RLIMIT_CORE, &core) < 0)
		shim_log(4, "setrlimit: %m");
}

void boot_init(struct shim *shim)
{
	u8 vm_id[16];
	int ret;

	umask(022);
	mount_early();
	null_stdio();
	shim_log_to(open("/dev/kmsg", O_WRONLY | O_CLOEXEC));
	device_load_modules();
	/* Its name goes with the initramfs; no file of the guest's root can take its place. */
	shim->files_fd = open(FILES_PATH, O_PATH | O_CLOEXEC);
	make_root(shim);
	mount_rest();
	set_hostname();
	loopback_up();
	set_limits(shim);
	ret = cgroup_setup_guest(shim, CGROUP_ROOT);
	if (ret)
		shim_panic("cgroups: %s", strerror(-ret));
	/* Until a clone gets its own from the host. */
	if (getrandom(vm_id, sizeof(vm_id), 0) != sizeof(vm_id))
		shim_panic("getrandom: %m");
	ret = ckpt_write_identity(shim, vm_id, 1);
	if (ret)
		shim_panic("machine-id: %s", strerror(-ret));
	shim->thaw_fd = open("/dev/thaw", O_RDWR | O_CLOEXEC);
	if (shim->thaw_fd < 0)
		shim_log(4, "/dev/thaw: %m; no checkpoints");
}

void boot_listen(struct shim *shim)
{
	struct sockaddr_vm addr = {
		.svm_family = AF_VSOCK,
		.svm_cid = VMADDR_CID_ANY,
		.svm_port = SHIM_PORT,
	};
	int fd, ret;

	fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    listen(fd, LISTEN_QUEUE) < 0)
		shim_panic("vsock port %u: %m", SHIM_PORT);
	shim->vsock = true;
	ret = loop_listen(shim, fd);
	if (ret)
		shim_panic("vsock port %u: %s", SHIM_PORT, strerror(-ret));
	if (shim->thaw_fd >= 0 && ioctl(shim->thaw_fd, THAW_READY) < 0)
		shim_log(4, "cannot tell the host that the shim is ready: %m");
}
