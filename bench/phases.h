/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a VM's set-up as the benchmarks call them; the VMM's own headers are C. */
#ifndef THAW_BENCH_PHASES_H
#define THAW_BENCH_PHASES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct phases_times {
	uint64_t create_ns;  /* memory mapped, KVM_CREATE_VM, every memory slot */
	uint64_t vcpus_ns;   /* split irqchip, vCPUs, CPUID */
	uint64_t devices_ns; /* virtio devices, buses, ioeventfds */
	uint64_t destroy_ns; /* everything closed again */
};

/** phases_once() - one VM of @nvcpus and @ram_mib made and destroyed. Return: 0 or -errno. */
int phases_once(unsigned int nvcpus, unsigned int ram_mib, struct phases_times *times);

/** phases_wrong_order() - irqchip before the memory slot, for comparison: set-up time. */
int phases_wrong_order(unsigned int ram_mib, uint64_t *setup_ns);

/** phases_cpuid() - one KVM_GET_SUPPORTED_CPUID with the adjusting. Return: 0 or -errno. */
int phases_cpuid(void);

/** phases_kvm_kind() - "hardware", "emulated" or "pvm", as `thaw doctor` says it; "unknown" without
 * /proc. Results are labelled with it. */
const char *phases_kvm_kind(void);

#ifdef __cplusplus
}
#endif

#endif
