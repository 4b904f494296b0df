/* SPDX-License-Identifier: Apache-2.0 */
/* Which model-specific registers make up a vCPU's state. */
#ifndef THAW_KVM_MSR_H
#define THAW_KVM_MSR_H

#include "vmm/util/types.h"

#define MSR_TSC		 0x10u
#define MSR_TSC_DEADLINE 0x6e0u

/** msr_is_state() - does @index, which KVM lists as worth saving, belong into a snapshot? False for
 * what msr.c excludes, with the reason there. */
bool msr_is_state(u32 index);

/** msr_extra() - registers that KVM does not list and that belong in as well. @n: gets their
 * number. */
const u32 *msr_extra(unsigned int *n);

#endif
