// SPDX-License-Identifier: Apache-2.0
// Which model-specific registers make up a vCPU's state.
//
// KVM_GET_MSR_INDEX_LIST names what KVM knows. Left out is what can't be written back or has no
// meaning in this machine; a restore treats a short KVM_SET_MSRS as an error, so that nothing may
// be in a snapshot that KVM would refuse. Added is what KVM has but does not list.
#include "vmm/kvm/msr.h"

struct msr_range {
	u32 first, last;
};

static const struct msr_range msr_excluded[] = {
	/* PMU, Intel: the guest has no leaf 0xa. PERFCTR, EVNTSEL, PERF_CAPABILITIES, fixed
	   counters, PEBS/DS, aliases. */
	{0xc1, 0xc8},
	{0x186, 0x18d},
	{0x309, 0x30c},
	{0x329, 0x329},
	{0x345, 0x345},
	{0x38d, 0x392},
	{0x3f1, 0x3f2},
	{0x4c1, 0x4c8},
	{0x600, 0x600},
	{0x1900, 0x19ff},
	/* PMU, AMD: K7 and family 15h counters, global control. */
	{0xc0010000, 0xc0010007},
	{0xc0010200, 0xc001020f},
	{0xc0000300, 0xc0000303},
	/* Last branch records: tied to the PMU. */
	{0x14ce, 0x14cf},
	{0x1200, 0x121f},
	/* PT, SGX launch control, AMX's XFD: the features are not shown. */
	{0x560, 0x587},
	{0x8c, 0x8f},
	{0x1c4, 0x1c5},
	/* CET: not shown. */
	{0x6a0, 0x6a2},
	{0x6a4, 0x6a8},
	/* Nested virtualization, VMX and SVM: not shown. */
	{0x480, 0x493},
	{0xc0010114, 0xc0010117},
	/* Hyper-V: no such leaf is shown, and some of these are actions, not state. */
	{0x40000000, 0x400001ff},
};

static const u32 msr_extras[] = {
	/* MTRRs. Without their default type a clone would map memory outside RAM as uncacheable,
	   unlike its template. */
	0x2ff,
	0x200,
	0x201,
	0x202,
	0x203,
	0x204,
	0x205,
	0x206,
	0x207,
	0x208,
	0x209,
	0x20a,
	0x20b,
	0x20c,
	0x20d,
	0x20e,
	0x20f,
	0x250,
	0x258,
	0x259,
	0x268,
	0x269,
	0x26a,
	0x26b,
	0x26c,
	0x26d,
	0x26e,
	0x26f,
	/* All of KVM's own, whichever of them this kernel lists: clocks, async PF, steal time, PV
	   EOI, poll control. */
	0x4b564d00,
	0x4b564d01,
	0x4b564d02,
	0x4b564d03,
	0x4b564d04,
	0x4b564d05,
	0x4b564d06,
	0x4b564d07,
	0x4b564d08,
	0x11, /* their old numbers */
	0x12,
};

bool msr_is_state(u32 index)
{
	for (unsigned int i = 0; i < ARRAY_SIZE(msr_excluded); i++) {
		if (index >= msr_excluded[i].first && index <= msr_excluded[i].last)
			return false;
	}
	return true;
}

const u32 *msr_extra(unsigned int *n)
{
	*n = ARRAY_SIZE(msr_extras);
	return msr_extras;
}
