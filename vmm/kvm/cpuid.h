/* SPDX-License-Identifier: Apache-2.0 */
/* What the guest sees of the CPU: chosen once when a template is built, then part of every
 * snapshot. */
#ifndef THAW_KVM_CPUID_H
#define THAW_KVM_CPUID_H

#include <linux/kvm.h>

#include "vmm/snapshot/format.h"
#include "vmm/util/types.h"

/* What KVM may report; more than a guest of ours gets. */
#define CPUID_HOST_MAX 256

/**
 * cpuid_supported() - what a new VM with @nvcpus would be given on this machine:
 * KVM_GET_SUPPORTED_CPUID, then cpuid_adjust().
 * @kvm_fd: /dev/kvm.
 *
 * Return: 0 or -errno (logged). One ioctl of 0.3-0.8 ms: not on the path of a restore more than
 * once.
 */
int __must_check cpuid_supported(int kvm_fd, unsigned int nvcpus, struct snap_cpuid *out);

/**
 * cpuid_adjust() - from what KVM offers to what a guest is shown: leaves and bits that this machine
 * model does not carry are taken away (nested virtualization, AMX, CET, PMU, PT, SGX, MWAIT),
 * hypervisor, TSC-deadline and invariant-TSC bits are set, and the topology is @nvcpus cores of one
 * thread in one package. APIC ids stay 0. Pure.
 *
 * Return: 0, or -E2BIG if more than SNAP_CPUID_MAX entries remain.
 */
int __must_check cpuid_adjust(const struct kvm_cpuid_entry2 *host, unsigned int nhost,
			      unsigned int nvcpus, struct snap_cpuid *out);

/** cpuid_set_apic_id() - put vCPU @index's APIC id in every leaf that carries one. Pure. */
void cpuid_set_apic_id(struct kvm_cpuid_entry2 *entries, unsigned int nent, unsigned int index);

/** cpuid_find() - entry of @function and @index (ignored where the leaf has no index), or NULL. */
const struct kvm_cpuid_entry2 *cpuid_find(const struct snap_cpuid *cpuid, u32 function, u32 index);

#endif
