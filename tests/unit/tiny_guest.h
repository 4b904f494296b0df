/* SPDX-License-Identifier: Apache-2.0 */
/* A vCPU for the guests of a few instructions that unit tests run: flat 32-bit code, no paging. */
#ifndef THAW_TESTS_UNIT_TINY_GUEST_H
#define THAW_TESTS_UNIT_TINY_GUEST_H

#include <linux/kvm.h>
#include <sys/ioctl.h>

#include "test.h"

/** Let vCPU @fd start at gpa @rip in protected mode, with all of memory as one segment and no
 * interrupt table: any fault is a triple fault. */
static inline void tiny_guest_enter(int fd, unsigned long long rip)
{
	struct kvm_segment code = {
		.limit = ~0u, .selector = 8, .type = 11, .present = 1, .s = 1, .db = 1, .g = 1};
	struct kvm_segment data = code;
	struct kvm_regs regs = {.rip = rip, .rflags = 2, .rsp = 0x8000};
	struct kvm_sregs sregs;

	data.selector = 16;
	data.type = 3;
	CHECK_EQ(ioctl(fd, KVM_GET_SREGS, &sregs), 0);
	sregs.cs = code;
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data;
	sregs.cr0 |= 1;
	sregs.idt.base = 0;
	sregs.idt.limit = 0;
	CHECK_EQ(ioctl(fd, KVM_SET_SREGS, &sregs), 0);
	CHECK_EQ(ioctl(fd, KVM_SET_REGS, &regs), 0);
}

#endif
