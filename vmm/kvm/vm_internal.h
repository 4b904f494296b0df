/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the machine (vm*.c, vcpu.c) ask of each other. */
#ifndef THAW_KVM_VM_INTERNAL_H
#define THAW_KVM_VM_INTERNAL_H

#include "vmm/kvm/vm.h"

/* All of the THAW0001 node but its register page. */
#define VM_MAILBOX_BYTES (THAW_NODE_BYTES - PAGE_SIZE_BYTES)

/** vm_mem_add_slots() - mailbox and pmem mappings, gmem, every KVM memory slot. Return: 0 or -errno
 * (logged). */
int __must_check vm_mem_add_slots(struct vm *vm);

/** vm_mem_unmap() - all host mappings. KVM must not run the VM any more. */
void vm_mem_unmap(struct vm *vm);

/** vm_mem_end_page_reads() - read-around on again in vm->page_reads_ns from now, by the event loop.
 * Return: 0 or -errno. */
int __must_check vm_mem_end_page_reads(struct vm *vm);

/** vm_ctl_attach() - watch the control channel and the vsock listener, as far as the VM has them.
 * Return: 0 or -errno (logged). */
int __must_check vm_ctl_attach(struct vm *vm);

/** vm_ctl_detach() - forget them and close half-open clients. Safe if never attached. */
void vm_ctl_detach(struct vm *vm);

/** vm_on_ctl() - event handler of the control channel. */
void vm_on_ctl(struct ev_handler *handler, u32 events);

/** vm_owner_attach() - watch the listener for owners, if the VM has one. Return: 0 or -errno. */
int __must_check vm_owner_attach(struct vm *vm);

/** vm_owner_gone() - the control channel is closed, @error: 0 or why: the VM ends, or waits for its
 * next owner. */
void vm_owner_gone(struct vm *vm, int error);

/** vm_owner_snapshot() - CTL_SNAPSHOT_REQ came with @fd, which is owned from now on. */
void vm_owner_snapshot(struct vm *vm, const struct ctl_msg *msg, int fd);

/** vm_listen_again() - a file may be free again (a client left, or the guest kicked, which no
 * stream ends without): clients that wait at the vsock listener for one have another try. */
void vm_listen_again(struct vm *vm);

/** vm_guest_connect() - vsock_owner callback: a guest process connects to host port @port. */
int vm_guest_connect(struct vsock_owner *owner, u32 port);

/** vm_start_waiting() - on the loop, dev_lock held: CTL_START came, at @start_ns. */
void vm_start_waiting(struct vm *vm, u64 start_ns, const struct ctl_msg *msg, int request_fd);

/** vm_deadline_init() - the hard time-out, watched by the loop. vm_deadline_set() - end the VM
 * @from_now_ms from now; 0: not at all. Return: 0 or -errno. */
int __must_check vm_deadline_init(struct vm *vm);
int __must_check vm_deadline_set(struct vm *vm, u64 from_now_ms);

/** vm_pause_begin() - under dev_lock: every vCPU thread is to come to the rendezvous.
 * vm_pause_kick() makes those in KVM_RUN leave it. */
void vm_pause_begin(struct vm *vm);
void vm_pause_kick(struct vm *vm);

/**
 * vm_pause_point() - a vCPU thread at the top of its loop; without dev_lock.
 * Completes the last exit and waits there while a pause is on. Return: false when the thread has to
 * end.
 */
bool vm_pause_point(struct vcpu *vcpu);

/** vcpu_complete() - finish the exit under way without running a guest instruction. Return: 0 or
 * -errno (the VM was told to stop). */
int __must_check vcpu_complete(struct vcpu *vcpu);

#endif
