// SPDX-License-Identifier: Apache-2.0
// CPUID as shown to a guest: bits taken away and set, topology, XSAVE area, APIC ids; on made-up
// Intel and AMD hosts.
#include "vmm/kvm/cpuid.h"

#include <errno.h>

#include "tests/unit/test.h"

#define BIT(n) (1u << (n))
#define IDX    KVM_CPUID_FLAG_SIGNIFCANT_INDEX
#define ALL    0xffffffffu

static const struct kvm_cpuid_entry2 intel[] = {
	{.function = 0, .eax = 0x1f, .ebx = 0x756e6547, .edx = 0x49656e69, .ecx = 0x6c65746e},
	{.function = 1, .eax = 0x806f8, .ebx = 0x57400800, .ecx = ALL, .edx = ALL},
	{.function = 4, .index = 0, .flags = IDX, .eax = 0xfc004121},
	{.function = 4, .index = 3, .flags = IDX, .eax = 0xfc1fc163},
	{.function = 7, .index = 0, .flags = IDX, .eax = 2, .ebx = ALL, .ecx = ALL, .edx = ALL},
	{.function = 7, .index = 1, .flags = IDX, .eax = ALL, .edx = ALL},
	{.function = 0xa, .eax = 0x07300805},
	{.function = 0xb, .index = 0, .flags = IDX, .eax = 1, .ebx = 2, .ecx = 0x100, .edx = 0x57},
	{.function = 0xd, .index = 0, .flags = IDX, .eax = 0x602e7, .ebx = 11008, .ecx = 11008},
	{.function = 0xd, .index = 1, .flags = IDX, .eax = 0x1f, .ebx = 9000, .ecx = 0x1900},
	{.function = 0xd, .index = 2, .flags = IDX, .eax = 256, .ebx = 576},
	{.function = 0xd, .index = 5, .flags = IDX, .eax = 64, .ebx = 1088},
	{.function = 0xd, .index = 6, .flags = IDX, .eax = 512, .ebx = 1152},
	{.function = 0xd, .index = 7, .flags = IDX, .eax = 1024, .ebx = 1664},
	{.function = 0xd, .index = 9, .flags = IDX, .eax = 8, .ebx = 2688},
	{.function = 0xd, .index = 11, .flags = IDX, .eax = 16},
	{.function = 0xd, .index = 17, .flags = IDX, .eax = 64, .ebx = 2752},
	{.function = 0xd, .index = 18, .flags = IDX, .eax = 8192, .ebx = 2816},
	{.function = 0x12, .eax = 3},
	{.function = 0x14, .eax = 1},
	{.function = 0x1d, .eax = 1},
	{.function = 0x1f, .index = 0, .flags = IDX, .eax = 1, .ebx = 2, .ecx = 0x100, .edx = 0x57},
	{.function = 0x40000000, .eax = 0x40000001},
	{.function = 0x40000001, .eax = ALL},
	{.function = 0x80000001, .ecx = 0x121, .edx = 0x2c100800},
	{.function = 0x80000007},
	{.function = 0x80000008, .eax = 0x3934, .ecx = 0x1234},
};

static const struct kvm_cpuid_entry2 amd[] = {
	{.function = 0, .eax = 0xd, .ebx = 0x68747541, .edx = 0x69746e65, .ecx = 0x444d4163},
	{.function = 1, .eax = 0xa10f11, .ebx = 0x09100800, .ecx = 0x76f83203, .edx = 0x178bfbff},
	{.function = 0xb, .index = 0, .flags = IDX, .eax = 1, .ebx = 2, .ecx = 0x100, .edx = 9},
	{.function = 0xd, .index = 0, .flags = IDX, .eax = 7, .ebx = 832, .ecx = 832},
	{.function = 0xd, .index = 2, .flags = IDX, .eax = 256, .ebx = 576},
	{.function = 0x80000001, .ecx = 0x75c237ff, .edx = 0x2fd3fbff},
	{.function = 0x80000007},
	{.function = 0x80000008, .eax = 0x3030, .ecx = 0x707f},
	{.function = 0x8000000a, .eax = 1},
	{.function = 0x8000001d, .index = 0, .flags = IDX, .eax = 0x00004121},
	{.function = 0x8000001d, .index = 3, .flags = IDX, .eax = 0x0003c163},
	{.function = 0x8000001e, .eax = 9, .ebx = 0x104, .ecx = 3},
};

static struct snap_cpuid adjust(const struct kvm_cpuid_entry2 *host, size_t nhost,
				unsigned int nvcpus)
{
	struct snap_cpuid out;

	CHECK_EQ(cpuid_adjust(host, (unsigned int)nhost, nvcpus, &out), 0);
	return out;
}

static const struct kvm_cpuid_entry2 *find(const struct snap_cpuid *cpuid, u32 function, u32 index)
{
	const struct kvm_cpuid_entry2 *e = cpuid_find(cpuid, function, index);

	CHECK(e);
	return e;
}

static void test_features(void)
{
	struct snap_cpuid c = adjust(intel, ARRAY_SIZE(intel), 1);
	const struct kvm_cpuid_entry2 *e;

	e = find(&c, 1, 0);
	CHECK_EQ(e->ecx & (BIT(31) | BIT(24) | BIT(21)), BIT(31) | BIT(24) | BIT(21));
	CHECK_EQ(e->ecx & (BIT(3) | BIT(5) | BIT(15) | BIT(27)), 0); /* MONITOR VMX PDCM OSXSAVE */
	CHECK(e->ecx & BIT(28));				     /* AVX is left alone */
	CHECK_EQ(e->edx & (BIT(21) | BIT(28)), 0);		     /* DS; HTT with one CPU */
	e = find(&c, 7, 0);
	CHECK_EQ(e->ebx & (BIT(2) | BIT(14) | BIT(25)), 0);
	CHECK_EQ(e->ecx & (BIT(4) | BIT(7) | BIT(23)), 0);
	CHECK_EQ(e->edx & (BIT(20) | BIT(22) | BIT(24) | BIT(25)), 0);
	CHECK(e->ebx & BIT(16)); /* AVX-512 stays */
	CHECK_EQ(find(&c, 7, 1)->eax & BIT(21), 0);
	CHECK_EQ(find(&c, 0x40000001, 0)->eax & (BIT(4) | BIT(10) | BIT(14)), 0);
	CHECK(find(&c, 0x40000001, 0)->eax & BIT(24)); /* kvm-clock is stable */
	CHECK(find(&c, 0x80000007, 0)->edx & BIT(8));
	CHECK(!cpuid_find(&c, 0xa, 0) && !cpuid_find(&c, 0x12, 0) && !cpuid_find(&c, 0x14, 0) &&
	      !cpuid_find(&c, 0x1d, 0));
	/* Intel's leaf 0x80000008 has no count in ECX. */
	CHECK_EQ(find(&c, 0x80000008, 0)->ecx, 0x1234);

	c = adjust(amd, ARRAY_SIZE(amd), 1);
	CHECK_EQ(find(&c, 0x80000001, 0)->ecx & (BIT(2) | BIT(10) | BIT(23) | BIT(24) | BIT(28)),
		 0);
	CHECK(!cpuid_find(&c, 0x8000000a, 0));
}

static void test_xsave(void)
{
	struct snap_cpuid c = adjust(intel, ARRAY_SIZE(intel), 2);
	const struct kvm_cpuid_entry2 *e = find(&c, 0xd, 0);

	CHECK_EQ(e->eax, 0x2e7);
	CHECK_EQ(e->ecx, 2696); /* PKRU is last: 2688 + 8 */
	CHECK(e->ecx <= SNAP_XSAVE_BYTES);
	e = find(&c, 0xd, 1);
	CHECK_EQ(e->eax, 0xf);
	CHECK_EQ(e->ecx, 0);
	CHECK(!cpuid_find(&c, 0xd, 17) && !cpuid_find(&c, 0xd, 18) && !cpuid_find(&c, 0xd, 11));
	CHECK_EQ(find(&c, 0xd, 9)->ebx, 2688);
	c = adjust(amd, ARRAY_SIZE(amd), 2);
	CHECK_EQ(find(&c, 0xd, 0)->ecx, 832);
}

static void check_levels(const struct snap_cpuid *c, u32 function, unsigned int n, u32 bits)
{
	const struct kvm_cpuid_entry2 *e = find(c, function, 0);

	CHECK_EQ(e->eax, 0);
	CHECK_EQ(e->ebx, 1);
	CHECK_EQ(e->ecx, 0x100);
	CHECK_EQ(e->edx, 0);
	e = find(c, function, 1);
	CHECK_EQ(e->eax, bits);
	CHECK_EQ(e->ebx, n);
	CHECK_EQ(e->ecx, 0x201);
	CHECK_EQ(find(c, function, 2)->ebx, 0);
}

static void test_topology(void)
{
	static const u32 bits[] = {0, 0, 1, 2, 2, 3, 3, 3, 3};

	for (unsigned int n = 1; n <= 8; n++) {
		u32 last = (1u << bits[n]) - 1;
		struct snap_cpuid c = adjust(intel, ARRAY_SIZE(intel), n);

		CHECK_EQ(find(&c, 1, 0)->ebx, (last + 1) << 16 | 0x0800);
		CHECK_EQ(!!(find(&c, 1, 0)->edx & BIT(28)), n > 1);
		check_levels(&c, 0xb, n, bits[n]);
		check_levels(&c, 0x1f, n, bits[n]);
		CHECK_EQ(find(&c, 4, 0)->eax, last << 26 | 0x0121);
		CHECK_EQ(find(&c, 4, 3)->eax, last << 26 | last << 14 | 0x0163);

		c = adjust(amd, ARRAY_SIZE(amd), n);
		check_levels(&c, 0xb, n, bits[n]);
		CHECK(!cpuid_find(&c, 0x1f, 0));
		CHECK_EQ(find(&c, 0x80000008, 0)->ecx, bits[n] << 12 | (n - 1));
		CHECK_EQ(!!(find(&c, 0x80000001, 0)->ecx & BIT(1)), n > 1);
		CHECK_EQ(find(&c, 0x8000001d, 0)->eax, 0x0121);
		CHECK_EQ(find(&c, 0x8000001d, 3)->eax, last << 14 | 0x0163);
		CHECK_EQ(find(&c, 0x8000001e, 0)->ebx, 0);
	}
}

static void test_apic_id(void)
{
	struct snap_cpuid c = adjust(amd, ARRAY_SIZE(amd), 8), before = c;

	cpuid_set_apic_id(c.entries, c.nent, 5);
	CHECK_EQ(find(&c, 1, 0)->ebx, 5u << 24 | 8u << 16 | 0x0800);
	for (u32 level = 0; level < 3; level++)
		CHECK_EQ(find(&c, 0xb, level)->edx, 5);
	CHECK_EQ(find(&c, 0x8000001e, 0)->eax, 5);
	CHECK_EQ(find(&c, 0x8000001e, 0)->ebx, 5);
	cpuid_set_apic_id(c.entries, c.nent, 0);
	CHECK(!memcmp(&c, &before, sizeof(c)));
}

static void test_too_many(void)
{
	struct kvm_cpuid_entry2 host[SNAP_CPUID_MAX + 1];
	struct snap_cpuid out;

	memset(host, 0, sizeof(host));
	for (u32 i = 0; i <= SNAP_CPUID_MAX; i++)
		host[i].function = 0x80000000u + 0x100 + i;
	CHECK_EQ(cpuid_adjust(host, SNAP_CPUID_MAX, 1, &out), 0);
	CHECK_EQ(cpuid_adjust(host, SNAP_CPUID_MAX + 1, 1, &out), -E2BIG);
}

TEST_MAIN({"features", test_features}, {"XSAVE area", test_xsave}, {"topology", test_topology},
	  {"APIC id", test_apic_id}, {"too many leaves", test_too_many})
