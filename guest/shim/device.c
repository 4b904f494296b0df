// SPDX-License-Identifier: Apache-2.0
// Kernel modules, and devices that appear when they like.
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/shim/boot.h"
#include "guest/shim/shim.h"

#define DEVICE_WAIT_SECONDS 60
#define ORDER_MAX_BYTES	    4096
#define UEVENT_KERNEL_GROUP 1

static void load_module(const char *name)
{
	char path[256];
	int fd;

	if (snprintf(path, sizeof(path), "/modules/%s", name) >= (int)sizeof(path)) {
		shim_log(3, "module name too long: %.40s...", name);
		return;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		shim_log(3, "module %s: %m", name);
		return;
	}
	if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST)
		shim_log(3, "module %s: %m", name);
	close(fd);
}

void device_load_modules(void)
{
	static char order[ORDER_MAX_BYTES]; /* zeroed: a NUL stands behind what is read */
	char *save = NULL;
	ssize_t n;
	int fd;

	fd = open("/modules/order", O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		shim_log(4, "/modules/order: %m");
		return;
	}
	n = read(fd, order, sizeof(order) - 1);
	close(fd);
	if (n < 0 || n == sizeof(order) - 1)
		shim_panic("/modules/order: unreadable or longer than %d bytes", ORDER_MAX_BYTES);
	for (char *name = strtok_r(order, "\n", &save); name; name = strtok_r(NULL, "\n", &save))
		load_module(name);
}

/* Return: a socket that gets the kernel's device events. */
static int open_uevents(void)
{
	struct sockaddr_nl addr = {.nl_family = AF_NETLINK, .nl_groups = UEVENT_KERNEL_GROUP};
	int fd;

	fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		shim_panic("kernel events: %m");
	return fd;
}

/* Until any device event came; false at the deadline. */
static bool wait_uevent(int fd, u64 deadline_ns)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
	u64 now_ns = loop_now_ns();
	char buf[4096];

	if (now_ns >= deadline_ns)
		return false;
	if (poll(&poll_fd, 1, (int)((deadline_ns - now_ns) / 1000000 + 1)) < 0 && errno != EINTR)
		shim_panic("kernel events: %m");
	/* What they say does not matter: the mount is tried again. */
	while (recv(fd, buf, sizeof(buf), 0) >= 0 || errno == ENOBUFS)
		;
	return true;
}

/*
 * The events are subscribed to before the first try, so none is missed. The node in /dev comes
 * before the disk can be opened (ENXIO), the "add" event after it, so the try behind that event
 * decides.
 */
void device_mount(const char *device, const char *target, const char *type, unsigned long flags,
		  const char *options)
{
	u64 deadline_ns = loop_now_ns() + DEVICE_WAIT_SECONDS * 1000000000ull;
	int fd = open_uevents();

	while (mount(device, target, type, flags, options) < 0) {
		if (errno != ENOENT && errno != ENXIO)
			shim_panic("cannot mount %s (%s, options \"%s\"): %m", device, type,
				   options);
		if (!wait_uevent(fd, deadline_ns))
			shim_panic("%s did not appear within %d s", device, DEVICE_WAIT_SECONDS);
	}
	close(fd);
}
