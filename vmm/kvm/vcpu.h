/* SPDX-License-Identifier: Apache-2.0 */
/* One vCPU: its thread and KVM_RUN loop (vcpu.c), its state out and in (vcpu_state.c). */
#ifndef THAW_KVM_VCPU_H
#define THAW_KVM_VCPU_H

#include <linux/kvm.h>
#include <pthread.h>

#include "vmm/snapshot/format.h"
#include "vmm/util/types.h"

struct vm;

struct vcpu {
	struct vm *vm;
	unsigned int index;
	int fd; /* -1: not created */
	struct kvm_run *run;
	size_t run_bytes;
	pthread_t thread;
	bool started;
	bool ran;    /* KVM_RUN was called: there may be an exit to complete */
	bool parked; /* at the rendezvous; under dev_lock */
};

/** vcpu_create() - KVM_CREATE_VCPU, map kvm_run, set @vm->cpuid with this vCPU's APIC id. Return: 0
 * or -errno (logged). */
int __must_check vcpu_create(struct vcpu *vcpu, struct vm *vm, unsigned int index);
void vcpu_destroy(struct vcpu *vcpu);

/** vcpu_start() - the thread; it applies the vCPU seccomp filter, then runs. Return: 0 or -errno.
 */
int __must_check vcpu_start(struct vcpu *vcpu);

/** vcpu_join() - wait for the thread's end. */
void vcpu_join(struct vcpu *vcpu);

/** vcpu_kick() - make KVM_RUN return soon (immediate_exit and a signal). */
void vcpu_kick(struct vcpu *vcpu);

/**
 * vcpu_save() - all of the vCPU's state; the vCPU is stopped, its last exit completed (KVM_RUN with
 * immediate_exit). Return: 0 or -errno (logged with the ioctl's name).
 */
int __must_check vcpu_save(struct vcpu *vcpu, struct snap_vcpu *out);

/** vcpu_load() - the reverse, in the order argued in vcpu_state.c; @in is hostile in content,
 * checked in shape. A short KVM_SET_MSRS is -EIO. */
int __must_check vcpu_load(struct vcpu *vcpu, const struct snap_vcpu *in);

/** vcpu_load_time() - once more the part of it that real time has moved on since: TSC and deadline
 * timer. vCPU 0 first; it has not run yet. Return: 0 or -errno (logged). */
int __must_check vcpu_load_time(struct vcpu *vcpu, const struct snap_vcpu *in);

#endif
