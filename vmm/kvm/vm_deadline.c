// SPDX-License-Identifier: Apache-2.0
// The hard time-out: the VM ends at a moment that its owner set, also when there is no owner then.
//
// The time that the host sleeps counts (CLOCK_BOOTTIME), as it does for whoever set it.
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "vmm/kvm/vm.h"
#include "vmm/kvm/vm_internal.h"
#include "vmm/util/log.h"

static void vm_on_deadline(struct ev_handler *handler, u32 events)
{
	struct vm *vm = container_of(handler, struct vm, deadline_handler);
	u64 count;

	(void)events;
	/* Moved or taken back between the event and now: nothing to read. */
	if (read(handler->fd, &count, sizeof(count)) == sizeof(count))
		vm_request_stop(vm, VM_STOP_DEADLINE, 0, "its hard time-out is over");
}

int vm_deadline_init(struct vm *vm)
{
	vm->deadline_handler.fn = vm_on_deadline;
	vm->deadline_handler.fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (vm->deadline_handler.fd < 0)
		return -errno;
	return ev_add(&vm->ev, &vm->deadline_handler, EPOLLIN)
		       ?: vm_deadline_set(vm, vm->cfg.start ? 0 : vm->cfg.deadline_ms);
}

int vm_deadline_set(struct vm *vm, u64 from_now_ms)
{
	const struct itimerspec when = {
		.it_value = {.tv_sec = (time_t)(from_now_ms / 1000),
			     .tv_nsec = (long)(from_now_ms % 1000 * 1000000)}};

	if (from_now_ms > VM_DEADLINE_MAX_MS)
		return -EINVAL;
	return timerfd_settime(vm->deadline_handler.fd, 0, &when, NULL) < 0 ? -errno : 0;
}
