// SPDX-License-Identifier: Apache-2.0
// One vCPU: its thread, the KVM_RUN loop and the exits.
//
// A thread is in one of three places: inside KVM_RUN, serving an exit (under dev_lock while it
// touches a device), or at the rendezvous (vm_pause_point()). To get it out of KVM_RUN, somebody
// sets pause.requested, then immediate_exit, then sends a signal. The thread, on its way in, clears
// immediate_exit and then looks at pause.requested. Both sides use sequentially consistent
// accesses, so that either the thread sees the request, or its clearing came before the setting,
// and KVM sees immediate_exit.
#include "vmm/kvm/vcpu.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "vmm/kvm/cpuid.h"
#include "vmm/kvm/vm.h"
#include "vmm/kvm/vm_internal.h"
#include "vmm/seccomp.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/* Exits that one emulated instruction may need to complete: a repeated string I/O goes back to the
 * guest after 1024 rounds at the latest. */
#define VCPU_COMPLETE_MAX 4096

/* Device code on a vCPU thread has a descriptor chain (4 KiB) and log lines on its stack.
 * Sanitizers need far more. */
#ifdef THAW_SANITIZER
#define VCPU_STACK_BYTES (1024 * KIB)
#else
#define VCPU_STACK_BYTES (64 * KIB)
#endif

static int vcpu_set_cpuid(struct vcpu *vcpu)
{
	struct {
		u32 nent, pad; /* as struct kvm_cpuid2 */
		struct kvm_cpuid_entry2 entries[SNAP_CPUID_MAX];
	} cpuid = {.nent = vcpu->vm->cpuid.nent};

	BUG_ON(cpuid.nent > SNAP_CPUID_MAX);
	memcpy(cpuid.entries, vcpu->vm->cpuid.entries, cpuid.nent * sizeof(cpuid.entries[0]));
	cpuid_set_apic_id(cpuid.entries, cpuid.nent, vcpu->index);
	return ioctl(vcpu->fd, KVM_SET_CPUID2, &cpuid) < 0 ? -errno : 0;
}

int vcpu_create(struct vcpu *vcpu, struct vm *vm, unsigned int index)
{
	const char *what = "KVM_GET_VCPU_MMAP_SIZE";
	void *run;
	int ret;

	vcpu->vm = vm;
	vcpu->index = index;
	ret = ioctl(vm->kvm_fd, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (ret < 0)
		goto fail;
	vcpu->run_bytes = (size_t)ret;
	what = "KVM_CREATE_VCPU";
	vcpu->fd = ioctl(vm->vm_fd, KVM_CREATE_VCPU, (unsigned long)index);
	if (vcpu->fd < 0)
		goto fail;
	what = "mmap";
	run = mmap(NULL, vcpu->run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu->fd, 0);
	if (run == MAP_FAILED)
		goto fail;
	vcpu->run = run;
	ret = vcpu_set_cpuid(vcpu);
	if (ret)
		log_err("vCPU %u: KVM_SET_CPUID2: %s", index, strerror(-ret));
	return ret;
fail:
	ret = -errno;
	log_err("vCPU %u: %s: %s", index, what, strerror(-ret));
	return ret;
}

void vcpu_destroy(struct vcpu *vcpu)
{
	if (vcpu->run)
		munmap(vcpu->run, vcpu->run_bytes);
	vcpu->run = NULL;
	fd_close(&vcpu->fd);
}

static void vcpu_set_immediate_exit(struct vcpu *vcpu, u8 value)
{
	__atomic_store_n(&vcpu->run->immediate_exit, value, __ATOMIC_SEQ_CST);
}

void vcpu_kick(struct vcpu *vcpu)
{
	vcpu_set_immediate_exit(vcpu, 1);
	/* ESRCH: the thread has ended by itself, which is as good. */
	(void)pthread_kill(vcpu->thread, SIGUSR1);
}

static void vcpu_exit_io(struct vcpu *vcpu)
{
	struct kvm_run *run = vcpu->run;
	u8 *data = (u8 *)run + run->io.data_offset;
	bool is_write = run->io.direction == KVM_EXIT_IO_OUT;

	for (u32 i = 0; i < run->io.count; i++, data += run->io.size)
		bus_access(&vcpu->vm->pio, run->io.port, data, run->io.size, is_write);
}

static void vcpu_fail(struct vcpu *vcpu, const char *what, u64 code)
{
	struct kvm_regs regs = {0};
	char text[sizeof(vcpu->vm->stop_text)];

	(void)ioctl(vcpu->fd, KVM_GET_REGS, &regs);
	snprintf(text, sizeof(text), "vCPU %u: %s (%#llx) at rip %#llx", vcpu->index, what,
		 (unsigned long long)code, (unsigned long long)regs.rip);
	vm_request_stop(vcpu->vm, VM_STOP_ERROR, -EIO, text);
}

static void vcpu_exit_system_event(struct vcpu *vcpu)
{
	u32 type = vcpu->run->system_event.type;

	if (type == KVM_SYSTEM_EVENT_SHUTDOWN)
		vm_request_stop(vcpu->vm, VM_STOP_POWEROFF, 0, "the guest powered off");
	else
		vm_request_stop(vcpu->vm, VM_STOP_RESET, 0,
				type == KVM_SYSTEM_EVENT_CRASH ? "the guest crashed"
							       : "the guest asked for a reset");
}

/** Serve the exit in kvm_run. Everything in there comes from the guest. */
static void vcpu_handle_exit(struct vcpu *vcpu)
{
	struct kvm_run *run = vcpu->run;
	struct vm *vm = vcpu->vm;

	pthread_mutex_lock(&vm->dev_lock);
	vm->access_vcpu = vcpu->index;
	switch (run->exit_reason) {
	case KVM_EXIT_MMIO:
		bus_access(&vm->mmio, run->mmio.phys_addr, run->mmio.data, run->mmio.len,
			   run->mmio.is_write);
		break;
	case KVM_EXIT_IO:
		vcpu_exit_io(vcpu);
		break;
	case KVM_EXIT_INTR:
	case KVM_EXIT_IRQ_WINDOW_OPEN:
	case KVM_EXIT_IOAPIC_EOI: /* level-triggered pins only, which nobody raises */
		break;
	case KVM_EXIT_SHUTDOWN:
		vm_request_stop(vm, VM_STOP_RESET, 0, "triple fault in the guest");
		break;
	case KVM_EXIT_SYSTEM_EVENT:
		vcpu_exit_system_event(vcpu);
		break;
	case KVM_EXIT_FAIL_ENTRY:
		vcpu_fail(vcpu, "KVM could not enter the guest",
			  run->fail_entry.hardware_entry_failure_reason);
		break;
	case KVM_EXIT_INTERNAL_ERROR:
		vcpu_fail(vcpu, "KVM internal error", run->internal.suberror);
		break;
	default:
		vcpu_fail(vcpu, "unexpected exit", run->exit_reason);
		break;
	}
	pthread_mutex_unlock(&vm->dev_lock);
}

/** One KVM_RUN and its exit. Return: 0 (an exit was served), -EINTR, or another -errno (the VM was
 * told to stop). */
static int vcpu_run_once(struct vcpu *vcpu)
{
	int ret;

	if (ioctl(vcpu->fd, KVM_RUN, 0) == 0) {
		vcpu_handle_exit(vcpu);
		return 0;
	}
	if (errno == EINTR || errno == EAGAIN)
		return -EINTR;
	ret = -errno;
	pthread_mutex_lock(&vcpu->vm->dev_lock);
	vcpu_fail(vcpu, "KVM_RUN", (u64)-ret);
	pthread_mutex_unlock(&vcpu->vm->dev_lock);
	return ret;
}

int vcpu_complete(struct vcpu *vcpu)
{
	int ret = 0;

	for (unsigned int i = 0; i < VCPU_COMPLETE_MAX && !ret; i++) {
		vcpu_set_immediate_exit(vcpu, 1);
		ret = vcpu_run_once(vcpu);
	}
	if (ret == -EINTR)
		return 0;
	if (!ret) {
		pthread_mutex_lock(&vcpu->vm->dev_lock);
		vcpu_fail(vcpu, "an instruction does not complete", vcpu->run->exit_reason);
		pthread_mutex_unlock(&vcpu->vm->dev_lock);
		ret = -EIO;
	}
	return ret;
}

static void *vcpu_main(void *opaque)
{
	struct vcpu *vcpu = opaque;
	struct vm *vm = vcpu->vm;
	sigset_t set;
	int ret = 0;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	if (vm->cfg.sandbox)
		ret = seccomp_apply_vcpu(vm->cfg.sandbox_options);
	if (ret) {
		pthread_mutex_lock(&vm->dev_lock);
		vm_request_stop(vm, VM_STOP_ERROR, ret,
				"cannot apply the vCPU's system call filter");
		pthread_mutex_unlock(&vm->dev_lock);
	}
	for (;;) {
		vcpu_set_immediate_exit(vcpu, 0);
		if (__atomic_load_n(&vm->pause.requested, __ATOMIC_SEQ_CST) &&
		    !vm_pause_point(vcpu))
			return NULL;
		vcpu->ran = true;
		(void)vcpu_run_once(
			vcpu); /* an error has told the VM to stop: the next round ends */
	}
}

int vcpu_start(struct vcpu *vcpu)
{
	pthread_attr_t attr;
	int ret;

	ret = pthread_attr_init(&attr);
	if (ret)
		return -ret;
	ret = pthread_attr_setstacksize(&attr, VCPU_STACK_BYTES);
	if (!ret)
		ret = pthread_create(&vcpu->thread, &attr, vcpu_main, vcpu);
	pthread_attr_destroy(&attr);
	if (ret)
		log_err("vCPU %u: cannot start its thread: %s", vcpu->index, strerror(ret));
	vcpu->started = !ret;
	return -ret;
}

void vcpu_join(struct vcpu *vcpu)
{
	if (vcpu->started)
		pthread_join(vcpu->thread, NULL);
	vcpu->started = false;
}
