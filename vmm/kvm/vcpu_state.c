// SPDX-License-Identifier: Apache-2.0
// A vCPU's state out of KVM and into it. The order of the calls matters; this is why it is what it
// is.
//
// Out (every vCPU is parked, its last exit completed):
//  - MP_STATE first: KVM_GET_MP_STATE takes pending INIT and SIPI signals in, which changes
//  registers.
//  - MSRs before LAPIC: a TSC-deadline timer may fire at any moment, also while no vCPU runs.
//  Firing clears the deadline MSR and sets a bit in the
//    LAPIC. Read in this order, the worst is that the timer fires in the clone once more; in the
//    other one it could be lost, and with it the guest's tick.
//  - VCPU_EVENTS last: all other calls may still move something into it.
//
// In:
//  - CPUID was set by vcpu_create(): KVM checks CR4, EFER, XCR0 and many MSRs against it.
//  - MP_STATE, then REGS and SREGS. SREGS before LAPIC, since it holds the APIC base: the LAPIC
//  page is laid out differently in x2APIC mode.
//  - XCRS before XSAVE is not needed (KVM validates the area against what CPUID allows, not against
//  XCR0), but it is the order in which a kernel would set them.
//  - The TSC offset before the rest of the MSRs, since KVM's clock pages are written from it when
//  their MSRs are.
//  - LAPIC before the deadline MSR: KVM drops a write of the deadline unless the LVT timer is in
//  deadline mode.
//  - VCPU_EVENTS last, because KVM_SET_REGS clears a pending exception and KVM_SET_SREGS may queue
//  an interrupt.
//  - KVM_KVMCLOCK_CTRL at the very end: it needs the clock MSR, and keeps the guest's watchdogs
//  quiet about the time that did not pass for it.
//
// Time. The guest's TSC goes on from where the snapshot stopped it, as does kvm-clock
// (KVM_SET_CLOCK with the saved value, done by the caller before): CLOCK_MONOTONIC of a clone
// continues, and the wall clock is stepped by thaw.ko. All vCPUs get one TSC offset, made from vCPU
// 0's saved TSC: that value was read when all vCPUs had stopped, so that it is later than any TSC
// that any vCPU has seen, and no vCPU can see time go back. Writing MSR_TSC on each vCPU instead
// would leave synchronisation to a guess of KVM's (writes within a second of each other).
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "vmm/kvm/msr.h"
#include "vmm/kvm/vcpu.h"
#include "vmm/kvm/vm.h"
#include "vmm/util/log.h"

/* KVM lists about 100; PMU and Hyper-V, most of the rest, are excluded. */
#define MSR_LIST_MAX 512

/** KVM_SET_MSRS with as many entries as a vCPU can have. */
struct vcpu_msrs {
	u32 nmsrs, pad; /* as struct kvm_msrs */
	struct kvm_msr_entry entries[SNAP_MSRS_MAX];
};

_Static_assert(offsetof(struct vcpu_msrs, entries) == sizeof(struct kvm_msrs), "KVM's layout");
_Static_assert(sizeof(struct snap_msr) == sizeof(struct kvm_msr_entry), "copied as a block");

static int vcpu_ioctl(const struct vcpu *vcpu, unsigned long op, const char *name, void *arg)
{
	int ret = ioctl(vcpu->fd, op, arg);

	if (ret < 0) {
		ret = -errno;
		log_err("vCPU %u: %s: %s", vcpu->index, name, strerror(-ret));
	}
	return ret;
}

#define VCPU_IOCTL(vcpu, op, arg) vcpu_ioctl(vcpu, op, #op, arg)

/** Append @index if it can be read. Return: 0 or -E2BIG (logged). */
static int vcpu_save_msr(struct vcpu *vcpu, u32 index, struct snap_vcpu *out)
{
	struct {
		u32 nmsrs, pad; /* as struct kvm_msrs */
		struct kvm_msr_entry entry;
	} msr = {.nmsrs = 1, .entry.index = index};

	for (u32 i = 0; i < out->nmsrs; i++) {
		if (out->msrs[i].index == index)
			return 0;
	}
	/* 0: this CPU, or this guest's CPUID, does not have it. */
	if (ioctl(vcpu->fd, KVM_GET_MSRS, &msr) != 1)
		return 0;
	if (out->nmsrs == SNAP_MSRS_MAX) {
		log_err("vCPU %u: more than %u MSRs to save", vcpu->index, SNAP_MSRS_MAX);
		return -E2BIG;
	}
	out->msrs[out->nmsrs++] = (struct snap_msr){.index = index, .value = msr.entry.data};
	return 0;
}

static int vcpu_save_msrs(struct vcpu *vcpu, struct snap_vcpu *out)
{
	struct {
		u32 nmsrs; /* as struct kvm_msr_list */
		u32 indices[MSR_LIST_MAX];
	} list = {.nmsrs = MSR_LIST_MAX};
	const u32 *extra;
	unsigned int nextra;
	int ret = 0;

	if (ioctl(vcpu->vm->kvm_fd, KVM_GET_MSR_INDEX_LIST, &list) < 0) {
		ret = -errno;
		log_err("KVM_GET_MSR_INDEX_LIST: %s", strerror(-ret));
		return ret;
	}
	out->nmsrs = 0;
	for (u32 i = 0; i < MIN(list.nmsrs, (u32)MSR_LIST_MAX) && !ret; i++) {
		if (msr_is_state(list.indices[i]))
			ret = vcpu_save_msr(vcpu, list.indices[i], out);
	}
	extra = msr_extra(&nextra);
	for (unsigned int i = 0; i < nextra && !ret; i++)
		ret = vcpu_save_msr(vcpu, extra[i], out);
	return ret;
}

static int vcpu_save_xsave(struct vcpu *vcpu, struct snap_vcpu *out)
{
	int size = ioctl(vcpu->vm->vm_fd, KVM_CHECK_EXTENSION, KVM_CAP_XSAVE2);

	/* 0: an older kernel, whose area is one page. */
	if (size <= (int)sizeof(struct kvm_xsave)) {
		out->xsave_bytes = sizeof(struct kvm_xsave);
		return VCPU_IOCTL(vcpu, KVM_GET_XSAVE, out->xsave);
	}
	if (size > (int)SNAP_XSAVE_BYTES) {
		log_err("vCPU %u: XSAVE area of %d bytes, a snapshot holds %u", vcpu->index, size,
			SNAP_XSAVE_BYTES);
		return -E2BIG;
	}
	out->xsave_bytes = (u32)size;
	return VCPU_IOCTL(vcpu, KVM_GET_XSAVE2, out->xsave);
}

int vcpu_save(struct vcpu *vcpu, struct snap_vcpu *out)
{
	int ret;

	memset(out, 0, sizeof(*out));
	ret = VCPU_IOCTL(vcpu, KVM_GET_MP_STATE, &out->mp_state);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_GET_REGS, &out->regs);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_GET_SREGS, &out->sregs);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_GET_XCRS, &out->xcrs);
	if (ret >= 0)
		ret = vcpu_save_xsave(vcpu, out);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_GET_DEBUGREGS, &out->debugregs);
	if (ret >= 0)
		ret = vcpu_save_msrs(vcpu, out);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_GET_LAPIC, &out->lapic);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_GET_VCPU_EVENTS, &out->events);
	return ret < 0 ? ret : 0;
}

/** All or nothing: a register that KVM refuses is named. */
static int vcpu_set_msrs(struct vcpu *vcpu, struct vcpu_msrs *msrs)
{
	int ret;

	if (!msrs->nmsrs)
		return 0;
	ret = VCPU_IOCTL(vcpu, KVM_SET_MSRS, msrs);
	if (ret < 0 || (u32)ret == msrs->nmsrs)
		return MIN(ret, 0);
	log_err("vCPU %u: KVM_SET_MSRS took %d of %u: MSR %#x = %#llx refused", vcpu->index, ret,
		msrs->nmsrs, msrs->entries[ret].index, (unsigned long long)msrs->entries[ret].data);
	return -EIO;
}

/** The offset that makes vCPU 0's TSC go on from @guest_tsc, in guest units, so that it holds with
 * TSC scaling as well. */
static int vcpu_find_tsc_offset(struct vcpu *vcpu, u64 guest_tsc)
{
	struct {
		u32 nmsrs, pad; /* as struct kvm_msrs */
		struct kvm_msr_entry entry;
	} now = {.nmsrs = 1, .entry.index = MSR_TSC};
	u64 offset;
	struct kvm_device_attr attr = {.group = KVM_VCPU_TSC_CTRL,
				       .attr = KVM_VCPU_TSC_OFFSET,
				       .addr = (uintptr_t)&offset};
	int ret;

	ret = VCPU_IOCTL(vcpu, KVM_GET_DEVICE_ATTR, &attr);
	if (ret < 0)
		return ret;
	ret = VCPU_IOCTL(vcpu, KVM_GET_MSRS, &now);
	if (ret != 1)
		return ret < 0 ? ret : -EIO;
	vcpu->vm->tsc_offset = offset + (guest_tsc - now.entry.data);
	return 0;
}

static int vcpu_load_tsc(struct vcpu *vcpu, const struct snap_msr *tsc)
{
	struct kvm_device_attr attr = {.group = KVM_VCPU_TSC_CTRL,
				       .attr = KVM_VCPU_TSC_OFFSET,
				       .addr = (uintptr_t)&vcpu->vm->tsc_offset};
	int ret = 0;

	if (!tsc) {
		log_err("vCPU %u: the snapshot has no TSC", vcpu->index);
		return -EINVAL;
	}
	if (vcpu->index == 0)
		ret = vcpu_find_tsc_offset(vcpu, tsc->value);
	return ret ?: VCPU_IOCTL(vcpu, KVM_SET_DEVICE_ATTR, &attr);
}

static int vcpu_load_xsave(struct vcpu *vcpu, const struct snap_vcpu *in)
{
	int size = ioctl(vcpu->vm->vm_fd, KVM_CHECK_EXTENSION, KVM_CAP_XSAVE2);

	/* KVM reads as many bytes as it wants, whatever we have: a snapshot of another size is not
	 * for this kernel. */
	size = MAX(size, (int)sizeof(struct kvm_xsave));
	if ((u32)size != in->xsave_bytes || size > (int)SNAP_XSAVE_BYTES) {
		log_err("vCPU %u: XSAVE area of %u bytes in the snapshot, KVM wants %d",
			vcpu->index, in->xsave_bytes, size);
		return -ENOTSUP;
	}
	return VCPU_IOCTL(vcpu, KVM_SET_XSAVE, (void *)in->xsave);
}

/** Sort the saved MSRs into @msrs, *@tsc and *@deadline, which have their own places in the order.
 */
static int vcpu_split_msrs(const struct snap_vcpu *in, struct vcpu_msrs *msrs,
			   struct vcpu_msrs *deadline, const struct snap_msr **tsc)
{
	*tsc = NULL;
	msrs->nmsrs = deadline->nmsrs = 0;
	if (in->nmsrs > SNAP_MSRS_MAX)
		return -EINVAL;
	for (u32 i = 0; i < in->nmsrs; i++) {
		struct vcpu_msrs *to = in->msrs[i].index == MSR_TSC_DEADLINE ? deadline : msrs;

		if (in->msrs[i].index == MSR_TSC)
			*tsc = &in->msrs[i];
		else
			to->entries[to->nmsrs++] = (struct kvm_msr_entry){
				.index = in->msrs[i].index, .data = in->msrs[i].value};
	}
	return 0;
}

int vcpu_load(struct vcpu *vcpu, const struct snap_vcpu *in)
{
	struct vcpu_msrs msrs, deadline;
	const struct snap_msr *tsc;
	int ret;

	ret = vcpu_split_msrs(in, &msrs, &deadline, &tsc);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_SET_MP_STATE, (void *)&in->mp_state);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_SET_REGS, (void *)&in->regs);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_SET_SREGS, (void *)&in->sregs);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_SET_XCRS, (void *)&in->xcrs);
	if (ret >= 0)
		ret = vcpu_load_xsave(vcpu, in);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_SET_DEBUGREGS, (void *)&in->debugregs);
	if (ret >= 0)
		ret = vcpu_load_tsc(vcpu, tsc);
	if (ret >= 0)
		ret = vcpu_set_msrs(vcpu, &msrs);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_SET_LAPIC, (void *)&in->lapic);
	if (ret >= 0)
		ret = vcpu_set_msrs(vcpu, &deadline);
	if (ret >= 0)
		ret = VCPU_IOCTL(vcpu, KVM_SET_VCPU_EVENTS, (void *)&in->events);
	if (ret < 0)
		return ret;
	/* EINVAL: the guest does not use kvm-clock, so that no watchdog of it can be misled by one.
	 */
	if (ioctl(vcpu->fd, KVM_KVMCLOCK_CTRL, 0) < 0 && errno != EINVAL) {
		ret = -errno;
		log_err("vCPU %u: KVM_KVMCLOCK_CTRL: %s", vcpu->index, strerror(-ret));
		return ret;
	}
	return 0;
}

int vcpu_load_time(struct vcpu *vcpu, const struct snap_vcpu *in)
{
	struct vcpu_msrs msrs, deadline;
	const struct snap_msr *tsc;
	int ret;

	ret = vcpu_split_msrs(in, &msrs, &deadline, &tsc);
	if (ret >= 0)
		ret = vcpu_load_tsc(vcpu, tsc);
	/* Its timer may have fired while the vCPU waited. Armed anew, it fires when the guest
	 * expects it; should the first one be in the LAPIC already, it is one tick too many, which
	 * a guest takes for the early one it is. */
	if (ret >= 0)
		ret = vcpu_set_msrs(vcpu, &deadline);
	return MIN(ret, 0);
}
