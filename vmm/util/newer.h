/* SPDX-License-Identifier: Apache-2.0 */
/* What Linux 5.14 (MADV_POPULATE_*) and 6.11 (KVM_PRE_FAULT_MEMORY) brought, for older headers. */
#ifndef THAW_UTIL_NEWER_H
#define THAW_UTIL_NEWER_H

#include <linux/kvm.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef KVM_PRE_FAULT_MEMORY
#define KVM_CAP_PRE_FAULT_MEMORY 236
struct kvm_pre_fault_memory {
	__u64 gpa;
	__u64 size;
	__u64 flags;
	__u64 padding[5];
};
#define KVM_PRE_FAULT_MEMORY _IOWR(KVMIO, 0xd5, struct kvm_pre_fault_memory)
#endif

#endif
