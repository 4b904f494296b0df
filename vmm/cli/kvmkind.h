/* SPDX-License-Identifier: Apache-2.0 */
/* What kind of KVM this machine has. */
#ifndef THAW_CLI_KVMKIND_H
#define THAW_CLI_KVMKIND_H

#include "vmm/util/types.h"

enum kvm_kind {
	KVM_KIND_NONE, /* no usable /dev/kvm */
	KVM_KIND_PVM,  /* /dev/kvm without VMX or SVM: a paravirtual KVM that can't run Linux guests
			  here */
	KVM_KIND_EMULATED, /* VMX or SVM of a processor in software */
	KVM_KIND_HARDWARE,
};

/** kvm_cpu_emulated() - is this processor QEMU's software one (CPUID leaf 0x40000000
 * "TCGTCGTCGTCG")? One instruction, no files. */
bool kvm_cpu_emulated(void);

/** cpuinfo_has_flag() - is @flag a whole word of the first "flags" line of @cpuinfo (text of
 * /proc/cpuinfo)? */
bool cpuinfo_has_flag(const char *cpuinfo, const char *flag);

#endif
