// SPDX-License-Identifier: Apache-2.0
// The CPUID words that a guest's code depends on, with the names that people know their bits by
// (Intel SDM vol. 2A CPUID, AMD APM vol. 3 appendix E).
#include "vmm/snapshot/internal.h"
#include "vmm/util/types.h"

static const char *const names_1_ecx[32] = {
	"pni",	  "pclmulqdq", "dtes64", "monitor",	 "ds_cpl", "vmx",    "smx",
	"est",	  "tm2",       "ssse3",	 "cid",		 "sdbg",   "fma",    "cx16",
	"xtpr",	  "pdcm",      NULL,	 "pcid",	 "dca",	   "sse4_1", "sse4_2",
	"x2apic", "movbe",     "popcnt", "tsc_deadline", "aes",	   "xsave",  "osxsave",
	"avx",	  "f16c",      "rdrand", "hypervisor",
};

static const char *const names_1_edx[32] = {
	"fpu",	"vme",	"de",	"pse", "tsc",  "msr", "pae",   "mce", "cx8",	 "apic", NULL,
	"sep",	"mtrr", "pge",	"mca", "cmov", "pat", "pse36", "pn",  "clflush", NULL,	 "dts",
	"acpi", "mmx",	"fxsr", "sse", "sse2", "ss",  "ht",    "tm",  "ia64",	 "pbe",
};

static const char *const names_7_ebx[32] = {
	"fsgsbase",
	"tsc_adjust",
	"sgx",
	"bmi1",
	"hle",
	"avx2",
	"fdp_excptn_only",
	"smep",
	"bmi2",
	"erms",
	"invpcid",
	"rtm",
	"cqm",
	"zero_fcs_fds",
	"mpx",
	"rdt_a",
	"avx512f",
	"avx512dq",
	"rdseed",
	"adx",
	"smap",
	"avx512ifma",
	"pcommit",
	"clflushopt",
	"clwb",
	"intel_pt",
	"avx512pf",
	"avx512er",
	"avx512cd",
	"sha_ni",
	"avx512bw",
	"avx512vl",
};

static const char *const names_7_ecx[32] = {
	"prefetchwt1",
	"avx512vbmi",
	"umip",
	"pku",
	"ospke",
	"waitpkg",
	"avx512_vbmi2",
	"shstk",
	"gfni",
	"vaes",
	"vpclmulqdq",
	"avx512_vnni",
	"avx512_bitalg",
	"tme",
	"avx512_vpopcntdq",
	NULL,
	"la57",
	NULL,
	NULL,
	NULL,
	NULL,
	NULL,
	"rdpid",
	"key_locker",
	"bus_lock_detect",
	"cldemote",
	NULL,
	"movdiri",
	"movdir64b",
	"enqcmd",
	"sgx_lc",
	"pks",
};

static const char *const names_7_edx[32] = {
	NULL,
	"sgx_keys",
	"avx512_4vnniw",
	"avx512_4fmaps",
	"fsrm",
	"uintr",
	NULL,
	NULL,
	"avx512_vp2intersect",
	"srbds_ctrl",
	"md_clear",
	"rtm_always_abort",
	NULL,
	"tsx_force_abort",
	"serialize",
	"hybrid_cpu",
	"tsxldtrk",
	NULL,
	"pconfig",
	"arch_lbr",
	"ibt",
	NULL,
	"amx_bf16",
	"avx512_fp16",
	"amx_tile",
	"amx_int8",
	"spec_ctrl",
	"stibp",
	"flush_l1d",
	"arch_capabilities",
	"core_capabilities",
	"ssbd",
};

static const char *const names_7_1_eax[32] = {
	[0] = "sha512",	  [1] = "sm3",	       [2] = "sm4",	  [3] = "rao_int",
	[4] = "avx_vnni", [5] = "avx512_bf16", [7] = "cmpccxadd", [10] = "fzrm",
	[11] = "fsrs",	  [12] = "fsrc",       [17] = "fred",	  [21] = "amx_fp16",
	[22] = "hreset",  [23] = "avx_ifma",   [26] = "lam",
};

static const char *const names_d_1_eax[32] = {"xsaveopt", "xsavec", "xgetbv1", "xsaves", "xfd"};

static const char *const names_ext1_ecx[32] = {
	"lahf_lm",
	"cmp_legacy",
	"svm",
	"extapic",
	"cr8_legacy",
	"abm",
	"sse4a",
	"misalignsse",
	"3dnowprefetch",
	"osvw",
	"ibs",
	"xop",
	"skinit",
	"wdt",
	NULL,
	"lwp",
	"fma4",
	"tce",
	NULL,
	"nodeid_msr",
	NULL,
	"tbm",
	"topoext",
	"perfctr_core",
	"perfctr_nb",
	NULL,
	"bpext",
	"ptsc",
	"perfctr_llc",
	"mwaitx",
	"addr_mask_ext",
	NULL,
};

static const char *const names_ext1_edx[32] = {
	[11] = "syscall", [20] = "nx", [22] = "mmxext",	  [25] = "fxsr_opt", [26] = "pdpe1gb",
	[27] = "rdtscp",  [29] = "lm", [30] = "3dnowext", [31] = "3dnow",
};

static const char *const names_ext7_edx[32] = {[8] = "constant_tsc"};

static const char *const names_ext8_ebx[32] = {
	[0] = "clzero",	   [1] = "irperf",     [2] = "xsaveerptr",	 [4] = "rdpru",
	[6] = "mba",	   [8] = "mcommit",    [9] = "wbnoinvd",	 [12] = "amd_ibpb",
	[14] = "amd_ibrs", [15] = "amd_stibp", [17] = "stibp_always_on", [18] = "ibrs_preferred",
	[24] = "amd_ssbd", [25] = "virt_ssbd", [26] = "ssb_no",		 [28] = "psfd",
};

static const char *const names_kvm_eax[32] = {
	[0] = "kvmclock",	  [1] = "kvm_nopiodelay",	[3] = "kvmclock2",
	[4] = "kvm_asyncpf",	  [5] = "kvm_steal_time",	[6] = "kvm_pv_eoi",
	[7] = "kvm_pv_unhalt",	  [9] = "kvm_pv_tlb_flush",	[10] = "kvm_asyncpf_vmexit",
	[11] = "kvm_pv_ipi",	  [12] = "kvm_poll_control",	[13] = "kvm_pv_sched_yield",
	[14] = "kvm_asyncpf_int", [15] = "kvm_msi_ext_dest_id", [17] = "kvm_migration_control",
	[24] = "kvmclock_stable",
};

const struct snap_cpu_word snap_cpu_words[] = {
	/* OSXSAVE follows the guest's CR4.OSXSAVE. */
	{0x1, 0, SNAP_ECX, 1u << 27, names_1_ecx},
	{0x1, 0, SNAP_EDX, 0, names_1_edx},
	{0x6, 0, SNAP_EAX, 0, NULL},
	{0x7, 0, SNAP_EBX, 0, names_7_ebx},
	/* OSPKE follows CR4.PKE. */
	{0x7, 0, SNAP_ECX, 1u << 4, names_7_ecx},
	{0x7, 0, SNAP_EDX, 0, names_7_edx},
	{0x7, 1, SNAP_EAX, 0, names_7_1_eax},
	{0x7, 1, SNAP_EDX, 0, NULL},
	{0x7, 2, SNAP_EDX, 0, NULL},
	/* The XSAVE components that XCR0 and XSS may hold. */
	{0xd, 0, SNAP_EAX, 0, NULL},
	{0xd, 0, SNAP_EDX, 0, NULL},
	{0xd, 1, SNAP_EAX, 0, names_d_1_eax},
	{0xd, 1, SNAP_ECX, 0, NULL},
	{0xd, 1, SNAP_EDX, 0, NULL},
	{0x80000001, 0, SNAP_ECX, 0, names_ext1_ecx},
	{0x80000001, 0, SNAP_EDX, 0, names_ext1_edx},
	{0x80000007, 0, SNAP_EDX, 0, names_ext7_edx},
	{0x80000008, 0, SNAP_EBX, 0, names_ext8_ebx},
	{0x80000021, 0, SNAP_EAX, 0, NULL},
	{0x40000001, 0, SNAP_EAX, 0, names_kvm_eax},
};

const unsigned int snap_cpu_nwords = ARRAY_SIZE(snap_cpu_words);
