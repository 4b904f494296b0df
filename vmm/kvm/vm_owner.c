// SPDX-License-Identifier: Apache-2.0
// Owners that come and go: the control listener, and what the end of a channel means.
//
// A VM without a listener ends with its owner. One with a listener goes on, and serves the next
// process that connects there by the same protocol. Of several the first is served, the others wait
// in the queue until it has left: the listener is not watched meanwhile. An owner of another user
// is turned away, whatever the modes of the folder are; in a jail, whose user namespace shows all
// users but its own as one and the same, these modes (0600, root's) are what decides.
//
// A snapshot that was asked for and not written yet ends with the owner that asked.
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "vmm/kvm/vm.h"
#include "vmm/kvm/vm_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/usock.h"
#include "vmm/util/util.h"

static void vm_on_owner(struct ev_handler *handler, u32 events)
{
	struct vm *vm = container_of(handler, struct vm, owner_handler);
	struct ctl_msg msg = {.version = CTL_VERSION,
			      .type = CTL_OWNED,
			      .generation = vm->generation,
			      .clocks = vm->clocks};
	int fd = accept4(handler->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)events;
	if (fd < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			log_guest("control listener: %s", strerror(errno));
		return;
	}
	if (!vm->cfg.owner_by_path && !usock_peer_ok(fd)) {
		log_guest("control listener: a process of another user was turned away");
		fd_close(&fd);
		return;
	}
	vm->ctl_handler = (struct ev_handler){.fn = vm_on_ctl, .fd = fd};
	if (ev_add(&vm->ev, &vm->ctl_handler, EPOLLIN) || ev_mod(&vm->ev, handler, 0)) {
		ev_del(&vm->ev, &vm->ctl_handler);
		fd_close(&fd);
		return;
	}
	vm->cfg.ctl_fd = fd;
	msg.port = vm->clocks.resumed_ns ? CTL_OWNED_RESUMED : 0;
	if (ctl_send(fd, &msg, -1))
		log_debug("control listener: the owner has left again");
}

int vm_owner_attach(struct vm *vm)
{
	if (!vm->cfg.ctl_listen_fd)
		return 0;
	vm->owner_handler = (struct ev_handler){.fn = vm_on_owner, .fd = vm->cfg.ctl_listen_fd};
	return ev_add(&vm->ev, &vm->owner_handler, vm->cfg.ctl_fd < 0 ? EPOLLIN : 0);
}

void vm_owner_gone(struct vm *vm, int error)
{
	ev_del(&vm->ev, &vm->ctl_handler);
	/* A VM that never ran has nobody who would start it. */
	if (!vm->cfg.ctl_listen_fd || vm->waiting) {
		vm_request_stop(vm, VM_STOP_REQUESTED, error,
				error ? "control channel failed" : "the owner is gone");
		return;
	}
	fd_close(&vm->cfg.ctl_fd);
	if (vm->cfg.snapshot_cancel)
		vm->cfg.snapshot_cancel(vm, vm->cfg.checkpoint_opaque);
	if (ev_mod(&vm->ev, &vm->owner_handler, EPOLLIN))
		log_err("control listener: no owner will be served any more");
}

void vm_owner_snapshot(struct vm *vm, const struct ctl_msg *msg, int fd)
{
	int ret = -EOPNOTSUPP;

	if (fd < 0)
		ret = -EBADF;
	else if (vm->cfg.snapshot_request)
		ret = vm->cfg.snapshot_request(vm, vm->cfg.checkpoint_opaque, msg, fd);
	else
		fd_close(&fd);
	vm_notify(vm, CTL_ARMED, ret, ret ? strerror(-ret) : "");
}
