// SPDX-License-Identifier: Apache-2.0
// Running the machine: threads, the event loop, the rendezvous of vCPUs, the checkpoint, the end.
//
// Checkpoint, step by step:
//  1. A vCPU writes THAW_CMD_CHECKPOINT. Under dev_lock, thawdev sets checkpoint_pending and asks
//  for a pause, and wakes the loop. The vCPU then comes to the
//     rendezvous, where it completes that write (KVM_RUN with immediate_exit: registers and RIP are
//     as after the instruction, and nothing more has run).
//  2. The loop kicks the other vCPUs and waits, on a condition variable that gives dev_lock up,
//  until all are parked. Each has completed its own last exit, which
//     may have touched a device: hence the lock. No vCPU runs a guest instruction from here on.
//  3. Devices are quiesced. Completions may still raise interrupts; they land in the local APICs,
//  which are saved after.
//  4. cfg.checkpoint() writes the snapshot. The status register is not part of it: in a clone it
//  reads 0, which is what "you are in a clone, all is well" means.
//  5. The origin gets the result in the status register and goes on, or ends.
//
// A waiting VM (cfg.start) is one whose vCPUs stay at the first rendezvous, threads and filters in
// place, until CTL_START comes.
//
// The end: whoever calls vm_request_stop() sets the reason and wakes the loop, which leaves; then
// all threads are told to exit, kicked and joined. Nothing polls and nothing sleeps for a time.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "vmm/kvm/vm.h"
#include "vmm/kvm/vm_internal.h"
#include "vmm/seccomp.h"
#include "vmm/snapshot/pager.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static void vm_set_flag(bool *flag, bool value)
{
	__atomic_store_n(flag, value, __ATOMIC_SEQ_CST);
}

void vm_wake(struct vm *vm)
{
	/* EAGAIN: the counter is full of wake-ups already. Before vm_run() there is nobody to wake.
	 */
	if (vm->wake_handler.fd >= 0 && eventfd_write(vm->wake_handler.fd, 1) < 0)
		BUG_ON(errno != EAGAIN);
}

void vm_request_stop(struct vm *vm, enum vm_stop stop, int error, const char *text)
{
	if (vm->stop != VM_RUNNING)
		return;
	vm->stop = stop;
	vm->stop_error = error;
	snprintf(vm->stop_text, sizeof(vm->stop_text), "%s", text);
	vm_pause_begin(vm);
	vm_wake(vm);
}

void vm_notify(struct vm *vm, enum ctl_type type, int error, const char *text)
{
	struct ctl_msg msg = {
		.version = CTL_VERSION,
		.type = type,
		.error = error,
		.generation = vm->generation,
		.clocks = vm->clocks,
		.pause_us = type == CTL_SNAPSHOT ? vm->pause_us : 0,
	};
	int ret;

	if (vm->cfg.ctl_fd < 0)
		return;
	snprintf(msg.text, sizeof(msg.text), "%s", text);
	if (type == CTL_EXIT) {
		static const enum ctl_exit_reason reasons[] = {
			[VM_RUNNING] = CTL_EXIT_ERROR,
			[VM_STOP_POWEROFF] = CTL_EXIT_POWEROFF,
			[VM_STOP_RESET] = CTL_EXIT_RESET,
			[VM_STOP_REQUESTED] = CTL_EXIT_STOPPED,
			[VM_STOP_SNAPSHOT] = CTL_EXIT_SNAPSHOT,
			[VM_STOP_ERROR] = CTL_EXIT_ERROR,
			[VM_STOP_DEADLINE] = CTL_EXIT_DEADLINE,
		};

		msg.reason = reasons[vm->stop];
	}
	ret = ctl_send(vm->cfg.ctl_fd, &msg, -1);
	if (ret && ret != -EPIPE)
		log_guest("control channel: message %u lost: %s", type, strerror(-ret));
}

void vm_pause_begin(struct vm *vm)
{
	vm_set_flag(&vm->pause.requested, true);
}

void vm_pause_kick(struct vm *vm)
{
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++) {
		if (vm->vcpus[i].started && !vm->vcpus[i].parked)
			vcpu_kick(&vm->vcpus[i]);
	}
}

static void vm_pause_end(struct vm *vm)
{
	vm_set_flag(&vm->pause.requested, false);
	pthread_cond_broadcast(&vm->pause.go);
}

bool vm_pause_point(struct vcpu *vcpu)
{
	struct vm *vm = vcpu->vm;
	struct vm_pause *pause = &vm->pause;
	bool go_on;

	/* On failure the VM has been told to stop; parking is right then too. */
	if (vcpu->ran && vcpu_complete(vcpu))
		log_debug("vCPU %u: parked with its last exit incomplete", vcpu->index);
	pthread_mutex_lock(&vm->dev_lock);
	vcpu->parked = true;
	pause->parked++;
	pthread_cond_signal(&pause->all_parked);
	while (pause->requested && !pause->exit)
		pthread_cond_wait(&pause->go, &vm->dev_lock);
	pause->parked--;
	vcpu->parked = false;
	go_on = !pause->exit;
	pthread_mutex_unlock(&vm->dev_lock);
	return go_on;
}

/** The guest's watchdogs must not take the time of the snapshot for a stall of its own. */
static void vm_forgive_pause(struct vm *vm)
{
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++) {
		if (ioctl(vm->vcpus[i].fd, KVM_KVMCLOCK_CTRL, 0) < 0 && errno != EINVAL)
			log_warn("vCPU %u: KVM_KVMCLOCK_CTRL: %s", i, strerror(errno));
	}
}

static void vm_tell_snapshot(struct vm *vm, int error)
{
	u64 pause_us = (clock_now_ns() - vm->pause.begin_ns) / 1000;

	vm->pause_us = (u32)MIN(pause_us, (u64)UINT32_MAX);
	vm_notify(vm, CTL_SNAPSHOT, error, error ? strerror(-error) : "");
}

/** On the loop, dev_lock held. */
static void vm_checkpoint(struct vm *vm)
{
	int ret;

	vm_pause_begin(vm);
	vm_pause_kick(vm);
	while (vm->pause.parked < vm->cfg.nvcpus)
		pthread_cond_wait(&vm->pause.all_parked, &vm->dev_lock);
	if (vm->stop != VM_RUNNING)
		return;
	ret = vm_quiesce(vm);
	if (!ret)
		ret = vm->cfg.checkpoint(vm, vm->cfg.checkpoint_opaque);
	vm->thawdev.checkpoint_pending = false;
	vm->thawdev.status = (u32)-ret;
	if (!ret && vm->cfg.checkpoint_exit) {
		vm_tell_snapshot(vm, 0);
		vm_request_stop(vm, VM_STOP_SNAPSHOT, 0, "snapshot written");
		return;
	}
	vm_forgive_pause(vm);
	vm_pause_end(vm);
	/* Nobody asked for it: a guest must not be able to flood its owner. */
	if (ret != -EOPNOTSUPP)
		vm_tell_snapshot(vm, ret);
}

static void vm_on_wake(struct ev_handler *handler, u32 events)
{
	struct vm *vm = container_of(handler, struct vm, wake_handler);
	eventfd_t count;

	(void)events;
	if (eventfd_read(handler->fd, &count) < 0)
		BUG_ON(errno != EAGAIN);
	if (vm->stop == VM_RUNNING && vm->thawdev.checkpoint_pending)
		vm_checkpoint(vm);
	if (vm->stop != VM_RUNNING)
		ev_stop(&vm->ev);
}

static void vm_on_signal(struct ev_handler *handler, u32 events)
{
	struct vm *vm = container_of(handler, struct vm, signal_handler);
	struct signalfd_siginfo info;
	char text[64];

	(void)events;
	if (read(handler->fd, &info, sizeof(info)) != sizeof(info))
		return;
	snprintf(text, sizeof(text), "stopped by signal %u", info.ssi_signo);
	vm_request_stop(vm, VM_STOP_REQUESTED, 0, text);
}

/** Missing pages will not come any more: whoever touches one waits until this process has ended. */
static void vm_on_pager_failed(struct ev_handler *handler, u32 events)
{
	struct vm *vm = container_of(handler, struct vm, pager_handler);

	(void)events;
	ev_del(&vm->ev, handler);
	vm_request_stop(vm, VM_STOP_ERROR, -EIO, PAGER_FAILED_TEXT);
}

static int vm_watch_pager(struct vm *vm)
{
	if (!vm->pager)
		return 0;
	/* The number of a channel that comes and goes must not be kept by another thread. */
	pager_tell(vm->pager, !vm->cfg.ctl_listen_fd ? vm->cfg.ctl_fd : -1);
	vm->pager_handler =
		(struct ev_handler){.fn = vm_on_pager_failed, .fd = pager_failed_fd(vm->pager)};
	return ev_add(&vm->ev, &vm->pager_handler, EPOLLIN);
}

/** Its only use is that it interrupts KVM_RUN. */
static void vm_kick_signal(int signo)
{
	(void)signo;
}

/** Signals, the wake-up event and the channels, all on the loop. */
static int vm_loop_init(struct vm *vm)
{
	struct sigaction kick = {.sa_handler = vm_kick_signal}; /* no SA_RESTART */
	sigset_t set;
	int ret = 0;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	vm->signal_handler.fn = vm_on_signal;
	vm->signal_handler.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	sigaddset(&set, SIGUSR1);
	vm->wake_handler.fn = vm_on_wake;
	vm->wake_handler.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (vm->signal_handler.fd < 0 || vm->wake_handler.fd < 0 ||
	    sigprocmask(SIG_BLOCK, &set, NULL) < 0 || sigaction(SIGUSR1, &kick, NULL) < 0)
		ret = -errno;
	ret = ret ?: ev_add(&vm->ev, &vm->signal_handler, EPOLLIN);
	ret = ret ?: ev_add(&vm->ev, &vm->wake_handler, EPOLLIN);
	ret = ret ?: vm_watch_pager(vm);
	ret = ret ?: vm_mem_end_page_reads(vm);
	ret = ret ?: vm_deadline_init(vm);
	if (ret)
		log_err("event loop: %s", strerror(-ret));
	return ret ?: vm_ctl_attach(vm);
}

static void vm_join_vcpus(struct vm *vm)
{
	pthread_mutex_lock(&vm->dev_lock);
	vm->pause.exit = true;
	vm_pause_begin(vm);
	pthread_cond_broadcast(&vm->pause.go);
	vm_pause_kick(vm);
	pthread_mutex_unlock(&vm->dev_lock);
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++)
		vcpu_join(&vm->vcpus[i]);
}

/** Under dev_lock: the vCPUs leave the rendezvous. */
static void vm_let_run(struct vm *vm)
{
	vm->clocks.run_ns = clock_now_ns();
	/* First the message: a vCPU that is let go waits for dev_lock, which the caller holds. */
	vm_notify(vm, CTL_RUNNING, 0, vm->start_note);
	vm_pause_end(vm);
}

void vm_start_waiting(struct vm *vm, u64 start_ns, const struct ctl_msg *msg, int request_fd)
{
	int ret;

	if (!vm->waiting) {
		log_guest("control channel: a start that was not waited for");
		return;
	}
	vm->waiting = false;
	vm->clocks.start_ns = start_ns;
	ret = vm->cfg.start(vm, vm->cfg.start_opaque, msg->text, request_fd);
	ret = ret ?: vm_deadline_set(vm, msg->generation);
	if (ret)
		vm_request_stop(vm, VM_STOP_ERROR, ret, "the start failed");
	else if (vm->stop == VM_RUNNING)
		vm_let_run(vm);
}

int vm_run(struct vm *vm)
{
	int ret;

	ret = vm_loop_init(vm);
	if (ret)
		goto out;
	/* Threads first wait at the rendezvous: the filter of this thread does not allow to make
	 * more of them, and must be on before the guest runs. */
	vm_pause_begin(vm);
	for (unsigned int i = 0; i < vm->cfg.nvcpus && !ret; i++)
		ret = vcpu_start(&vm->vcpus[i]);
	if (!ret && vm->cfg.sandbox)
		ret = seccomp_apply_main(vm->cfg.sandbox_options);
	if (ret)
		goto out_join;

	pthread_mutex_lock(&vm->dev_lock);
	if (vm->stop == VM_RUNNING && vm->cfg.start) {
		vm->waiting = true;
		vm_notify(vm, CTL_WAITING, 0, "");
	} else if (vm->stop == VM_RUNNING) {
		vm_let_run(vm);
	}
	pthread_mutex_unlock(&vm->dev_lock);
	ret = ev_run(&vm->ev, &vm->dev_lock);
	if (ret)
		log_err("event loop: %s", strerror(-ret));
out_join:
	vm_join_vcpus(vm);
out:
	if (ret)
		vm_request_stop(vm, VM_STOP_ERROR, ret, strerror(-ret));
	serial_flush(&vm->serial);
	if (vm->stop == VM_STOP_ERROR && !ret)
		log_err("%s", vm->stop_text);
	else
		log_info("end: %s", vm->stop_text);
	vm_notify(vm, CTL_EXIT, vm->stop_error, vm->stop_text);
	return ret;
}
