// SPDX-License-Identifier: Apache-2.0
// What the guest sees of the CPU.
//
// The set is chosen when a template is built and stored in its snapshot; a restore gives the guest
// the same set and only checks that the host still offers it. So what is put in here decides what a
// template can be restored on, and for how long:
//
//  - Taken away: everything whose state is not in the snapshot (nested VMX/SVM, PMU counters, PT,
//  SGX, key locker, CET and IBT, AMX with its 8 KiB tiles and XFD, MPX),
//    and instructions that keep a host CPU busy without an exit (MONITOR/MWAIT).
//  - Set: "hypervisor", TSC-deadline timer (in the kernel's local APIC), x2APIC, invariant TSC: the
//  guest's TSC goes on from the snapshot with one offset for all
//    vCPUs (vcpu_state.c), which is what Linux wants to hear before it uses the TSC as its clock
//    source.
//  - KVM's paravirtual leaves stay as KVM offers them (kvm-clock with its stable bit, steal time,
//  PV TLB flush and IPIs), but for asynchronous page faults: a fault in
//    flight is a token in the host's kernel, which no snapshot holds, so that every clone would
//    begin with a "wake all" interrupt; and a sandbox has little else to run meanwhile. KVM still
//    lets interrupts in while it fetches a page for a vCPU without the feature.
//  - Topology: one package of n cores with one thread. The host's own numbers, which KVM passes
//  through, would make Linux build wrong scheduling domains.
#include "vmm/kvm/cpuid.h"

#include <cpuid.h>
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

#include "vmm/util/log.h"

#define BIT(n) (1u << (n))

/* XCR0 components a guest may enable: x87, SSE, AVX, the three of AVX-512, PKRU. */
#define CPUID_XCR0_MASK 0x2e7u

enum cpuid_reg {
	CPUID_EAX,
	CPUID_EBX,
	CPUID_ECX,
	CPUID_EDX,
};

/** Bits taken away; index is that of the sub-leaf. */
static const struct {
	u32 function, index;
	enum cpuid_reg reg;
	u32 bits;
} cpuid_masked[] = {
	/* DTES64, MONITOR, VMX, SMX, EIST, TM2; PDCM (PMU); OSXSAVE (dynamic: follows CR4) */
	{0x1, 0, CPUID_ECX,
	 BIT(2) | BIT(3) | BIT(5) | BIT(6) | BIT(7) | BIT(8) | BIT(15) | BIT(27)},
	/* DS (PEBS), TM, PBE */
	{0x1, 0, CPUID_EDX, BIT(21) | BIT(29) | BIT(31)},
	/* MPX, PT, SGX */
	{0x7, 0, CPUID_EBX, BIT(14) | BIT(25) | BIT(2)},
	/* OSPKE (dynamic), shadow stacks, key locker, SGX launch control */
	{0x7, 0, CPUID_ECX, BIT(4) | BIT(7) | BIT(23) | BIT(30)},
	/* IBT, AMX-BF16, AMX-TILE, AMX-INT8 */
	{0x7, 0, CPUID_EDX, BIT(20) | BIT(22) | BIT(24) | BIT(25)},
	/* ArchPerfmonExt, FRED, LKGS, AMX-FP16 */
	{0x7, 1, CPUID_EAX, BIT(8) | BIT(17) | BIT(18) | BIT(21)},
	/* AMX-COMPLEX, CET-SSS, AVX10, APX */
	{0x7, 1, CPUID_EDX, BIT(8) | BIT(18) | BIT(19) | BIT(21)},
	/* XFD */
	{0xd, 1, CPUID_EAX, BIT(4)},
	/* asynchronous page faults: EN, as VM exit, by interrupt */
	{0x40000001, 0, CPUID_EAX, BIT(4) | BIT(10) | BIT(14)},
	/* SVM, IBS, SKINIT, core/NB/L2 performance counters, MWAITX */
	{0x80000001, 0, CPUID_ECX,
	 BIT(2) | BIT(10) | BIT(12) | BIT(23) | BIT(24) | BIT(28) | BIT(29)},
};

/** Leaves left out whole; the topology leaves are built anew. */
static const u32 cpuid_dropped[] = {
	0x5,	    /* MONITOR/MWAIT */
	0xa,	    /* PMU */
	0xb,	    /* topology, built below */
	0x12,	    /* SGX */
	0x14,	    /* PT */
	0x19,	    /* key locker */
	0x1d,	    /* AMX tiles */
	0x1e,	    /* AMX multiply unit */
	0x1f,	    /* topology, built below */
	0x23,	    /* PMU, extended */
	0x24,	    /* AVX10 */
	0x8000000a, /* SVM */
	0x8000001b, /* IBS */
	0x8000001f, /* SEV */
	0x80000022, /* PMU, AMD */
	0x80000026, /* AMD's extended topology */
};

static u32 *cpuid_reg(struct kvm_cpuid_entry2 *e, enum cpuid_reg reg)
{
	switch (reg) {
	case CPUID_EAX:
		return &e->eax;
	case CPUID_EBX:
		return &e->ebx;
	case CPUID_ECX:
		return &e->ecx;
	case CPUID_EDX:
		return &e->edx;
	default:
		BUG_ON(true);
		return NULL;
	}
}

const struct kvm_cpuid_entry2 *cpuid_find(const struct snap_cpuid *cpuid, u32 function, u32 index)
{
	for (u32 i = 0; i < cpuid->nent && i < SNAP_CPUID_MAX; i++) {
		const struct kvm_cpuid_entry2 *e = &cpuid->entries[i];

		if (e->function == function &&
		    (!(e->flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX) || e->index == index))
			return e;
	}
	return NULL;
}

static bool cpuid_is_amd(const struct snap_cpuid *cpuid)
{
	const struct kvm_cpuid_entry2 *e = cpuid_find(cpuid, 0, 0);

	/* "AuthenticAMD", "HygonGenuine": both lay out the 0x8000xxxx leaves the same way. */
	return e && (e->ebx == 0x68747541u || e->ebx == 0x6f677948u);
}

/** Bits needed for @n different ids: the shift from an APIC id to the next level's. */
static u32 cpuid_id_bits(unsigned int n)
{
	return n > 1 ? 32 - (u32)__builtin_clz(n - 1) : 0;
}

static bool cpuid_is_dropped(const struct kvm_cpuid_entry2 *e)
{
	for (size_t i = 0; i < ARRAY_SIZE(cpuid_dropped); i++) {
		if (e->function == cpuid_dropped[i])
			return true;
	}
	/* Descriptions of extended-state components that XCR0 can't have here; XSS components as
	 * well. */
	if (e->function == 0xd && e->index >= 2)
		return e->index > 31 || !(CPUID_XCR0_MASK & BIT(e->index));
	return false;
}

static int cpuid_append(struct snap_cpuid *cpuid, const struct kvm_cpuid_entry2 *e)
{
	if (cpuid->nent == SNAP_CPUID_MAX)
		return -E2BIG;
	cpuid->entries[cpuid->nent++] = *e;
	return 0;
}

/** Leaf 0xb or 0x1f: a level of threads (one), a level of cores (all), the end. SDM vol. 2A, CPUID.
 */
static int cpuid_append_topology(struct snap_cpuid *cpuid, u32 function, unsigned int nvcpus)
{
	const struct kvm_cpuid_entry2 levels[] = {
		{.index = 0, .eax = 0, .ebx = 1, .ecx = 1 << 8},
		{.index = 1, .eax = cpuid_id_bits(nvcpus), .ebx = nvcpus, .ecx = 2 << 8 | 1},
		{.index = 2, .ecx = 2},
	};
	int ret = 0;

	for (size_t i = 0; i < ARRAY_SIZE(levels) && !ret; i++) {
		struct kvm_cpuid_entry2 e = levels[i];

		e.function = function;
		e.flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
		ret = cpuid_append(cpuid, &e);
	}
	return ret;
}

/** Size and components of the XSAVE area, as far as XCR0 may go. */
static void cpuid_adjust_xsave(struct snap_cpuid *cpuid, struct kvm_cpuid_entry2 *e)
{
	if (e->index == 0) {
		u32 max_bytes = 576; /* legacy area and header */

		e->eax &= CPUID_XCR0_MASK;
		e->edx = 0;
		for (u32 i = 2; i < 32; i++) {
			const struct kvm_cpuid_entry2 *c;

			c = e->eax & BIT(i) ? cpuid_find(cpuid, 0xd, i) : NULL;
			if (c)
				max_bytes = MAX(max_bytes, c->eax + c->ebx);
		}
		e->ecx = max_bytes;
		e->ebx = max_bytes; /* KVM keeps it in step with XCR0 */
	} else if (e->index == 1) {
		/* No supervisor component: IA32_XSS has nothing to enable. */
		e->ecx = 0;
		e->edx = 0;
	}
}

static void cpuid_adjust_topology(struct kvm_cpuid_entry2 *e, unsigned int nvcpus, bool amd)
{
	u32 last_id = (1u << cpuid_id_bits(nvcpus)) - 1;
	u32 level = (e->eax >> 5) & 7;
	u32 sharing = level >= 3 ? last_id : 0; /* the last-level cache is shared by all */

	switch (e->function) {
	case 0x1:
		e->ebx = (e->ebx & 0x0000ffffu) | (last_id + 1) << 16;
		e->edx = (e->edx & ~BIT(28)) | (nvcpus > 1 ? BIT(28) : 0);
		break;
	case 0x4:
		if (e->eax & 0x1f)
			e->eax = (e->eax & 0x3fffu) | sharing << 14 | last_id << 26;
		break;
	case 0x80000001:
		/* CmpLegacy: the HTT count above is of cores, not of threads. */
		if (amd)
			e->ecx = (e->ecx & ~BIT(1)) | (nvcpus > 1 ? BIT(1) : 0);
		break;
	case 0x80000008:
		if (amd)
			e->ecx = (e->ecx & ~0xf0ffu) | cpuid_id_bits(nvcpus) << 12 | (nvcpus - 1);
		break;
	case 0x8000001d:
		if (amd && (e->eax & 0x1f))
			e->eax = (e->eax & ~0x03ffc000u) | sharing << 14;
		break;
	case 0x8000001e:
		e->eax = 0;
		e->ebx = 0;
		e->ecx = 0;
		break;
	default:
		break;
	}
}

static void cpuid_adjust_features(struct kvm_cpuid_entry2 *e)
{
	for (size_t i = 0; i < ARRAY_SIZE(cpuid_masked); i++) {
		if (e->function == cpuid_masked[i].function && e->index == cpuid_masked[i].index)
			*cpuid_reg(e, cpuid_masked[i].reg) &= ~cpuid_masked[i].bits;
	}
	switch (e->function) {
	case 0x1:
		/* x2APIC, TSC deadline (both in KVM's local APIC), hypervisor. */
		e->ecx |= BIT(21) | BIT(24) | BIT(31);
		break;
	case 0x80000007:
		e->edx |= BIT(8);
		break;
	default:
		break;
	}
}

int cpuid_adjust(const struct kvm_cpuid_entry2 *host, unsigned int nhost, unsigned int nvcpus,
		 struct snap_cpuid *out)
{
	const struct kvm_cpuid_entry2 *leaf0;
	bool amd, has_1f = false;
	int ret = 0;

	memset(out, 0, sizeof(*out));
	for (unsigned int i = 0; i < nhost && !ret; i++) {
		has_1f |= host[i].function == 0x1f;
		if (!cpuid_is_dropped(&host[i]))
			ret = cpuid_append(out, &host[i]);
	}
	if (ret)
		return ret;
	amd = cpuid_is_amd(out);
	for (u32 i = 0; i < out->nent; i++) {
		struct kvm_cpuid_entry2 *e = &out->entries[i];

		memset(e->padding, 0, sizeof(e->padding));
		cpuid_adjust_features(e);
		cpuid_adjust_topology(e, nvcpus, amd);
		if (e->function == 0xd)
			cpuid_adjust_xsave(out, e);
	}
	leaf0 = cpuid_find(out, 0, 0);
	if (leaf0 && leaf0->eax >= 0xb)
		ret = cpuid_append_topology(out, 0xb, nvcpus);
	if (!ret && has_1f)
		ret = cpuid_append_topology(out, 0x1f, nvcpus);
	return ret;
}

void cpuid_set_apic_id(struct kvm_cpuid_entry2 *entries, unsigned int nent, unsigned int index)
{
	for (unsigned int i = 0; i < nent; i++) {
		struct kvm_cpuid_entry2 *e = &entries[i];

		switch (e->function) {
		case 0x1:
			e->ebx = (e->ebx & 0x00ffffffu) | index << 24;
			break;
		case 0xb:
		case 0x1f:
			e->edx = index;
			break;
		case 0x8000001e:
			e->eax = index;
			e->ebx = (e->ebx & ~0xffu) | index; /* core id; one thread a core */
			break;
		default:
			break;
		}
	}
}

/** The processor's name, for people: KVM leaves these leaves zero. */
static void cpuid_fill_brand(struct kvm_cpuid_entry2 *entries, u32 nent)
{
	for (u32 i = 0; i < nent; i++) {
		struct kvm_cpuid_entry2 *e = &entries[i];

		if (e->function >= 0x80000002u && e->function <= 0x80000004u)
			(void)__get_cpuid(e->function, &e->eax, &e->ebx, &e->ecx, &e->edx);
	}
}

int cpuid_supported(int kvm_fd, unsigned int nvcpus, struct snap_cpuid *out)
{
	struct {
		u32 nent, pad; /* as struct kvm_cpuid2 */
		struct kvm_cpuid_entry2 entries[CPUID_HOST_MAX];
	} host;
	int ret;

	host.nent = CPUID_HOST_MAX;
	host.pad = 0;
	if (ioctl(kvm_fd, KVM_GET_SUPPORTED_CPUID, &host) < 0) {
		ret = -errno;
		log_err("KVM_GET_SUPPORTED_CPUID: %s", strerror(-ret));
		return ret;
	}
	host.nent = MIN(host.nent, (u32)CPUID_HOST_MAX);
	cpuid_fill_brand(host.entries, host.nent);
	ret = cpuid_adjust(host.entries, host.nent, nvcpus, out);
	if (ret)
		log_err("CPUID: more than %d entries left to show a guest", SNAP_CPUID_MAX);
	return ret;
}
