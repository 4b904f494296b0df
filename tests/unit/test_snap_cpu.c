// SPDX-License-Identifier: Apache-2.0
// Which CPU a snapshot is let run on.
#include <errno.h>

#include "tests/unit/snapshot_fixture.h"

static struct snap_cpuid guest, host;
static char why[200];

static int check(void)
{
	why[0] = '\0';
	return snap_cpu_check(&guest, &host, why, sizeof(why));
}

static struct kvm_cpuid_entry2 *entry(struct snap_cpuid *cpuid, u32 function, u32 index)
{
	struct kvm_cpuid_entry2 *found =
		(struct kvm_cpuid_entry2 *)snap_cpu_find(cpuid, function, index);

	CHECK(found);
	return found;
}

static void start(void)
{
	fixture_cpuid(&guest);
	fixture_cpuid(&host);
}

#define REFUSED(text)                                                                           \
	do {                                                                                    \
		CHECK_EQ(check(), -ENOTSUP);                                                    \
		if (!strstr(why, text)) {                                                       \
			fprintf(stderr, "line %d: reason \"%s\" lacks \"%s\"\n", __LINE__, why, \
				text);                                                          \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

static void test_same(void)
{
	char vendor[13], model[49];

	start();
	CHECK_EQ(check(), 0);
	snap_cpu_vendor(&guest, vendor);
	CHECK_STR(vendor, "AuthenticAMD");
	snap_cpu_model(&guest, model);
	CHECK_STR(model, "Test CPU 1");
	CHECK_EQ(snap_cpu_signature(&guest), 0x870f10);
}

static void test_model(void)
{
	start();
	memcpy(&entry(&host, 0, 0)->ebx, "Genu", 4);
	memcpy(&entry(&host, 0, 0)->edx, "ineI", 4);
	memcpy(&entry(&host, 0, 0)->ecx, "ntel", 4);
	REFUSED("CPU vendor differs: the snapshot is of AuthenticAMD, this machine is GenuineIntel");
	start();
	entry(&host, 1, 0)->eax += 1;
	REFUSED("CPU model differs: the snapshot is of AuthenticAMD family 23 model 113 stepping 0, this machine is family 23 "
		"model 113 stepping 1");
	start();
	entry(&host, 1, 0)->eax += 1u << 20;
	REFUSED("family 24");
}

static void test_features(void)
{
	start();
	entry(&host, 1, 0)->ecx &= ~(1u << 20);
	REFUSED("CPU feature sse4_2 is missing here (leaf 0x1 ECX bit 20)");
	start();
	entry(&host, 7, 0)->ebx &= ~(1u << 5);
	REFUSED("avx2");
	start();
	entry(&host, 7, 1)->eax &= ~(1u << 4);
	REFUSED("avx_vnni");
	start();
	entry(&guest, 7, 1)->edx = 1u << 16;
	REFUSED("CPU feature leaf 0x7.1 EDX bit 16 is missing here");
	start();
	entry(&host, 0xd, 0)->eax = 3;
	REFUSED("leaf 0xd.0 EAX bit 2");
	start();
	entry(&host, 0x40000001, 0)->eax &= ~1u;
	REFUSED("kvmclock");
	start();
	entry(&host, 0x80000001, 0)->edx &= ~(1u << 29);
	REFUSED("lm");
	/* A leaf that is not there at all has no bits. */
	start();
	entry(&host, 0x80000008, 0)->function = 0x80000099;
	REFUSED("amd_ibpb");
}

static void test_allowed(void)
{
	/* More than the guest was shown. */
	start();
	entry(&host, 7, 0)->ebx = UINT32_MAX;
	entry(&host, 1, 0)->ecx = UINT32_MAX;
	entry(&host, 0x80000008, 0)->eax = 0x3934;
	CHECK_EQ(check(), 0);
	/* OSXSAVE and OSPKE follow the guest's CR4; EBX of leaf 1 holds an APIC id. */
	start();
	entry(&guest, 1, 0)->ecx |= 1u << 27;
	entry(&guest, 7, 0)->ecx |= 1u << 4;
	entry(&host, 7, 0)->ecx &= ~(1u << 4);
	entry(&host, 1, 0)->ebx = 0x07000000;
	CHECK_EQ(check(), 0);
}

static void test_layout(void)
{
	start();
	entry(&host, 0xd, 2)->ebx = 640;
	REFUSED("XSAVE component 2");
	start();
	entry(&host, 0xd, 2)->index = 3;
	REFUSED("XSAVE component 2");
	start();
	entry(&host, 0x80000008, 0)->eax = 0x302f;
	REFUSED("CPU address width differs: 48/48 bits in the snapshot, 47/48 here");
}

static void test_hostile(void)
{
	/* What a file can hold never leads out of the entries, and text stays printable. */
	char vendor[13], model[49];

	start();
	memset(guest.entries, 0xff, sizeof(guest.entries));
	guest.nent = SNAP_CPUID_MAX;
	CHECK_EQ(check(), -ENOTSUP);
	entry(&host, 0, 0)->ebx = 0x1b5b1b5b;
	snap_cpu_vendor(&host, vendor);
	CHECK_STR(vendor, "[?[?enticAMD");
	entry(&host, 0x80000002, 0)->eax = 0x1b1b1b1b;
	snap_cpu_model(&host, model);
	CHECK_STR(model, "st CPU 1");
	guest.nent = 1;
	guest.entries[0].function = 5;
	snap_cpu_model(&guest, model);
	CHECK_STR(model, "unknown");
}

TEST_MAIN({"same", test_same}, {"model", test_model}, {"features", test_features},
	  {"allowed", test_allowed}, {"layout", test_layout}, {"hostile", test_hostile})
