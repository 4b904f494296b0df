// SPDX-License-Identifier: Apache-2.0
// What reaches the machine from outside: the control channel, and the vsock listener for use
// without one.
//
// The listener speaks the text protocol that Firecracker's users know: "CONNECT <port>\n", answered
// by "OK <port>\n" once the guest has accepted, and by the end of the stream if it has not. A
// client that connects and says nothing holds one of a few places; the oldest one loses it when
// they are all taken.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "vmm/kvm/vm.h"
#include "vmm/kvm/vm_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define GREETERS_MAX	   16
#define GREETER_LINE_BYTES 32 /* "CONNECT 4294967295\n" is 19 */

struct vm_greeter {
	struct ev_handler handler; /* fd -1: free */
	struct vm *vm;
	u64 since;
	u32 used_bytes;
	char line[GREETER_LINE_BYTES];
};

static bool vm_is_stream_socket(int fd)
{
	int type = 0;
	socklen_t len = sizeof(type);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM;
}

static void vm_ctl_connect(struct vm *vm, u32 port, int fd)
{
	int ret;

	if (!vm_is_stream_socket(fd)) {
		log_guest("control channel: connect without a stream socket");
		fd_close(&fd);
		return;
	}
	ret = vsock_connect(vm->devs[LAYOUT_VIRTIO_VSOCK], port, fd);
	if (ret)
		log_guest("vsock: connect to guest port %u: %s", port, strerror(-ret));
}

void vm_on_ctl(struct ev_handler *handler, u32 events)
{
	struct vm *vm = container_of(handler, struct vm, ctl_handler);
	struct ctl_msg msg;
	int fd = -1, ret;
	u64 now_ns;

	(void)events;
	ret = ctl_recv(handler->fd, &msg, &fd);
	now_ns = clock_now_ns();
	if (ret == -EAGAIN)
		return;
	if (ret <= 0) {
		/* A channel that brings nonsense is no owner. */
		vm_owner_gone(vm, ret);
		return;
	}
	switch (msg.type) {
	case CTL_CONNECT:
		vm_ctl_connect(vm, msg.port, fd);
		return;
	case CTL_SNAPSHOT_REQ:
		vm_owner_snapshot(vm, &msg, fd);
		return;
	case CTL_START:
		vm_start_waiting(vm, now_ns, &msg, fd);
		break;
	case CTL_DEADLINE:
		if (vm->waiting || vm_deadline_set(vm, msg.generation))
			log_guest("control channel: a hard time-out was refused");
		break;
	case CTL_STOP:
		vm_request_stop(vm, VM_STOP_REQUESTED, 0, "the owner asked for it");
		break;
	default:
		log_guest("control channel: message type %u ignored", msg.type);
		break;
	}
	fd_close(&fd);
}

static void vm_greeter_end(struct vm_greeter *greeter)
{
	if (greeter->handler.fd < 0)
		return;
	ev_del(&greeter->vm->ev, &greeter->handler);
	fd_close(&greeter->handler.fd);
	vm_listen_again(greeter->vm);
}

/** Hand the client over to the vsock device; @line is complete and NUL-terminated. */
static void vm_greeter_connect(struct vm_greeter *greeter, const char *line)
{
	struct vm *vm = greeter->vm;
	int fd = greeter->handler.fd, ret;
	u64 port;

	if (strncmp(line, "CONNECT ", 8) || parse_u64(line + 8, 0, UINT32_MAX, &port)) {
		log_guest("vsock listener: a client did not say \"CONNECT <port>\"");
		vm_greeter_end(greeter);
		return;
	}
	ev_del(&vm->ev, &greeter->handler);
	greeter->handler.fd = -1;
	ret = vsock_connect_announce(vm->devs[LAYOUT_VIRTIO_VSOCK], (u32)port, fd);
	if (ret)
		log_guest("vsock: connect to guest port %u: %s", (u32)port, strerror(-ret));
}

static void vm_on_greeter(struct ev_handler *handler, u32 events)
{
	struct vm_greeter *greeter = container_of(handler, struct vm_greeter, handler);
	char *newline;
	ssize_t n;
	size_t room = sizeof(greeter->line) - greeter->used_bytes;

	(void)events;
	/* Peeked first, then taken up to the newline: what follows belongs to the guest's stream.
	 */
	n = recv(handler->fd, greeter->line + greeter->used_bytes, room, MSG_PEEK | MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		vm_greeter_end(greeter);
		return;
	}
	newline = memchr(greeter->line + greeter->used_bytes, '\n', (size_t)n);
	if (newline)
		n = newline + 1 - (greeter->line + greeter->used_bytes);
	if (recv(handler->fd, greeter->line + greeter->used_bytes, (size_t)n, MSG_DONTWAIT) != n) {
		vm_greeter_end(greeter);
		return;
	}
	greeter->used_bytes += (u32)n;
	if (newline) {
		*newline = '\0';
		vm_greeter_connect(greeter, greeter->line);
	} else if (greeter->used_bytes == sizeof(greeter->line)) {
		log_guest("vsock listener: a client's first line is too long");
		vm_greeter_end(greeter);
	}
}

static void vm_on_listen(struct ev_handler *handler, u32 events)
{
	struct vm *vm = container_of(handler, struct vm, listen_handler);
	struct vm_greeter *greeter = &vm->greeters[0];
	int fd = accept4(handler->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)events;
	if (fd < 0) {
		if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)
			return;
		log_guest("vsock listener: %s", strerror(errno));
		/* Out of files: the client waits in the backlog, and the loop must not spin. */
		vm->listen_paused = !ev_mod(&vm->ev, handler, 0);
		return;
	}
	for (unsigned int i = 0; i < GREETERS_MAX; i++) {
		struct vm_greeter *other = &vm->greeters[i];

		if (other->handler.fd < 0) {
			greeter = other;
			break;
		}
		if (other->since < greeter->since)
			greeter = other;
	}
	vm_greeter_end(greeter);
	*greeter = (struct vm_greeter){
		.handler = {.fn = vm_on_greeter, .fd = fd}, .vm = vm, .since = clock_now_ns()};
	if (ev_add(&vm->ev, &greeter->handler, EPOLLIN))
		fd_close(&greeter->handler.fd);
}

void vm_listen_again(struct vm *vm)
{
	if (vm->listen_paused)
		vm->listen_paused = ev_mod(&vm->ev, &vm->listen_handler, EPOLLIN) != 0;
}

int vm_ctl_attach(struct vm *vm)
{
	int ret = 0;

	if (vm->cfg.ctl_fd >= 0) {
		vm->ctl_handler = (struct ev_handler){.fn = vm_on_ctl, .fd = vm->cfg.ctl_fd};
		ret = ev_add(&vm->ev, &vm->ctl_handler, EPOLLIN);
	}
	ret = ret ?: vm_owner_attach(vm);
	if (!ret && vm->cfg.vsock_listen_fd >= 0) {
		vm->greeters = calloc(GREETERS_MAX, sizeof(*vm->greeters));
		if (!vm->greeters)
			return -ENOMEM;
		for (unsigned int i = 0; i < GREETERS_MAX; i++)
			vm->greeters[i].handler.fd = -1;
		vm->listen_handler =
			(struct ev_handler){.fn = vm_on_listen, .fd = vm->cfg.vsock_listen_fd};
		ret = ev_add(&vm->ev, &vm->listen_handler, EPOLLIN);
	}
	if (ret)
		log_err("event loop: cannot watch the channels: %s", strerror(-ret));
	return ret;
}

void vm_ctl_detach(struct vm *vm)
{
	for (unsigned int i = 0; vm->greeters && i < GREETERS_MAX; i++)
		vm_greeter_end(&vm->greeters[i]);
	free(vm->greeters);
	vm->greeters = NULL;
}

/** The owner gets one end of a new pair, the device the other. */
static int vm_connect_owner(struct vm *vm, u32 port)
{
	struct ctl_msg msg = {.version = CTL_VERSION, .type = CTL_ACCEPT, .port = port};
	int pair[2], ret;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
		return -errno;
	ret = ctl_send(vm->cfg.ctl_fd, &msg, pair[1]);
	fd_close(&pair[1]);
	if (ret) {
		fd_close(&pair[0]);
		return ret;
	}
	return pair[0];
}

static int vm_connect_path(struct vm *vm, u32 port)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd, n, ret;

	n = snprintf(addr.sun_path, sizeof(addr.sun_path), "%s_%u", vm->cfg.vsock_path, port);
	if (n < 0 || (size_t)n >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* A Unix socket connects at once or not at all (EAGAIN: the listener's backlog is full). */
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		ret = -errno;
		fd_close(&fd);
		return ret;
	}
	return fd;
}

int vm_guest_connect(struct vsock_owner *owner, u32 port)
{
	struct vm *vm = container_of(owner, struct vm, vsock_owner);

	if (vm->cfg.vsock_path)
		return vm_connect_path(vm, port);
	if (vm->cfg.ctl_fd >= 0)
		return vm_connect_owner(vm, port);
	return -ECONNREFUSED;
}
