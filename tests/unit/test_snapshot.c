// SPDX-License-Identifier: Apache-2.0
// The state file: built and parsed back; damaged, cut and malformed in every way the format can be.
#include <errno.h>

#include "tests/unit/snapshot_fixture.h"

static const u8 manifest_digest[SNAP_DIGEST_BYTES] = {1, 2,  3,	 4,  5,	 6,  7,	 8,
						      9, 10, 11, 12, 13, 14, 15, 16};

static struct fixture fix;

static u8 *build(const struct snap_view *parts, size_t *len_bytes)
{
	void *buf;

	CHECK_EQ(snap_build(parts, manifest_digest, &buf, len_bytes), 0);
	return buf;
}

/** reseal() - make length and digest right again, so that the checks behind them are reached. */
static void reseal(u8 *buf, size_t len_bytes)
{
	struct snap_header *header = (struct snap_header *)buf;

	header->total_bytes = len_bytes;
	snap_digest_state(buf, len_bytes, header->digest);
}

static int parse(const u8 *buf, size_t len_bytes)
{
	struct snap_view view;
	const char *why = NULL;
	int ret = snap_parse(buf, len_bytes, &view, &why);

	CHECK(ret == 0 || (why && *why));
	return ret;
}

static void test_digest_golden(void)
{
	char hex[SNAP_DIGEST_HEX];
	u8 digest[SNAP_DIGEST_BYTES];

	/* The published value of XXH3-128 for no input. */
	snap_digest_buf("", 0, digest);
	snap_digest_hex(digest, hex);
	CHECK_STR(hex, "99aa06d3014798d86001c324468d497f");
}

static void test_layout_golden(void)
{
	const struct snap_section *table;
	size_t len_bytes;
	u8 *buf;

	fixture_init(&fix, 1, 0, 0);
	buf = build(&fix.parts, &len_bytes);
	CHECK_EQ(len_bytes, 23808);
	CHECK(!memcmp(buf, "THAWTATE\1\0\0\0\6\0\0\0\0\x5d\0\0\0\0\0\0", 24));
	CHECK(!memcmp(buf + 40, manifest_digest, 16));
	table = (const struct snap_section *)(buf + 64);
	CHECK_EQ(table[0].id, 1);
	CHECK_EQ(table[0].offset_bytes, 256);
	CHECK_EQ(table[1].id, 5);
	CHECK_EQ(table[1].offset_bytes, 384);
	CHECK_EQ(table[2].id, 3);
	CHECK_EQ(table[2].offset_bytes, 5568);
	CHECK_EQ(table[3].id, 2);
	CHECK_EQ(table[3].offset_bytes, 5824);
	CHECK_EQ(table[5].id, 4);
	CHECK_EQ(table[5].offset_bytes, 23552);
	CHECK_EQ(table[5].len_bytes, 224);
	free(buf);
}

static void test_round_trip(void)
{
	for (unsigned int nvcpus = 1; nvcpus <= VM_VCPUS_MAX; nvcpus++) {
		struct snap_view view;
		size_t len_bytes, again_bytes;
		const char *why;
		u8 *buf, *again;

		fixture_init(&fix, nvcpus, 2 * MIB, 64 * MIB);
		buf = build(&fix.parts, &len_bytes);
		CHECK(len_bytes <= SNAP_STATE_MAX_BYTES);
		CHECK_EQ(snap_parse(buf, len_bytes, &view, &why), 0);
		CHECK_EQ(view.nvcpus, nvcpus);
		CHECK_EQ(view.ndevs, 4);
		CHECK(!memcmp(view.machine, &fix.machine, sizeof(fix.machine)));
		CHECK(!memcmp(view.cpuid, &fix.cpuid, sizeof(fix.cpuid)));
		CHECK(!memcmp(view.ioapic, &fix.ioapic, sizeof(fix.ioapic)));
		for (unsigned int i = 0; i < nvcpus; i++)
			CHECK(!memcmp(view.vcpus[i], &fix.vcpus[i], sizeof(fix.vcpus[i])));
		CHECK(!memcmp(view.devs[3], &fix.devs[LAYOUT_VIRTIO_BLK], sizeof(fix.devs[0])));
		again = build(&view, &again_bytes);
		CHECK_EQ(again_bytes, len_bytes);
		CHECK(!memcmp(buf, again, len_bytes));
		free(again);
		free(buf);
	}
}

static void test_tails_are_cleared(void)
{
	size_t len_bytes;
	u8 *buf;

	/* A writer's leftovers behind the counts do not get into the file. */
	fixture_init(&fix, 1, 0, 0);
	fix.cpuid.entries[fix.cpuid.nent].eax = 7;
	fix.vcpus[0].msrs[fix.vcpus[0].nmsrs].value = 7;
	fix.vcpus[0].msrs[0].reserved = 7;
	fix.vcpus[0].pad0 = 7;
	fix.vcpus[0].xsave[fix.vcpus[0].xsave_bytes] = 7;
	buf = build(&fix.parts, &len_bytes);
	CHECK_EQ(parse(buf, len_bytes), 0);
	free(buf);
}

static void test_truncated(void)
{
	size_t len_bytes;
	u8 *buf;

	fixture_init(&fix, 1, 0, 0);
	buf = build(&fix.parts, &len_bytes);
	for (size_t cut = 0; cut < len_bytes; cut++) {
		/* A copy of that size exactly: a sanitizer sees any look behind it. */
		u8 *copy = malloc(cut ? cut : 1);

		memcpy(copy, buf, cut);
		CHECK(parse(copy, cut) < 0);
		if (cut >= sizeof(struct snap_header)) {
			reseal(copy, cut);
			CHECK_EQ(parse(copy, cut), -EINVAL);
		}
		free(copy);
	}
	free(buf);
}

static void test_overlong(void)
{
	u8 *buf, *longer;
	size_t len_bytes;

	fixture_init(&fix, 1, 0, 0);
	buf = build(&fix.parts, &len_bytes);
	longer = calloc(1, SNAP_STATE_MAX_BYTES + 64);
	memcpy(longer, buf, len_bytes);
	CHECK_EQ(parse(longer, len_bytes + 1), -EINVAL);
	reseal(longer, len_bytes + 64);
	CHECK_EQ(parse(longer, len_bytes + 64), -EINVAL);
	reseal(longer, SNAP_STATE_MAX_BYTES + 64);
	CHECK_EQ(parse(longer, SNAP_STATE_MAX_BYTES + 64), -EINVAL);
	free(longer);
	free(buf);
}

static void test_every_byte_flipped(void)
{
	size_t len_bytes;
	u8 *buf;

	fixture_init(&fix, 1, 0, 0);
	buf = build(&fix.parts, &len_bytes);
	for (size_t i = 0; i < len_bytes; i++) {
		buf[i] ^= 1u << (i % 8);
		CHECK(parse(buf, len_bytes) < 0);
		buf[i] ^= 1u << (i % 8);
	}
	CHECK_EQ(parse(buf, len_bytes), 0);
	free(buf);
}

/* Damage that a hostile writer would seal with a right digest: one field each. */
#define HOSTILE(what, error)                                                      \
	do {                                                                      \
		u8 *copy_ = malloc(len_bytes);                                    \
		struct snap_header *header;                                       \
		struct snap_section *table;                                       \
		struct snap_machine *machine;                                     \
		struct snap_cpuid *cpuid;                                         \
		struct snap_ioapic *ioapic;                                       \
		struct snap_vcpu *vcpu;                                           \
		struct snap_virtio *dev;                                          \
		memcpy(copy_, buf, len_bytes);                                    \
		header = (struct snap_header *)copy_;                             \
		table = (struct snap_section *)(header + 1);                      \
		machine = (struct snap_machine *)(copy_ + table[0].offset_bytes); \
		cpuid = (struct snap_cpuid *)(copy_ + table[1].offset_bytes);     \
		ioapic = (struct snap_ioapic *)(copy_ + table[2].offset_bytes);   \
		vcpu = (struct snap_vcpu *)(copy_ + table[3].offset_bytes);       \
		dev = (struct snap_virtio *)(copy_ + table[4].offset_bytes);      \
		(void)machine, (void)cpuid, (void)ioapic, (void)vcpu, (void)dev;  \
		what;                                                             \
		reseal(copy_, len_bytes);                                         \
		CHECK_EQ(parse(copy_, len_bytes), error);                         \
		free(copy_);                                                      \
	} while (0)

static void test_hostile_table(void)
{
	size_t len_bytes;
	u8 *buf;

	fixture_init(&fix, 1, 0, 0);
	buf = build(&fix.parts, &len_bytes);
	HOSTILE((void)header, 0);
	HOSTILE(header->magic ^= 1, -EINVAL);
	HOSTILE(header->version = 0, -EPROTONOSUPPORT);
	HOSTILE(header->version = 2, -EPROTONOSUPPORT);
	HOSTILE(header->reserved = 1, -EINVAL);
	HOSTILE(header->nsections = 0, -EINVAL);
	HOSTILE(header->nsections = 3, -EINVAL);
	HOSTILE(header->nsections = 5, -EINVAL);
	HOSTILE(header->nsections = 7, -EINVAL);
	HOSTILE(header->nsections = SNAP_SECTIONS_MAX + 1, -EINVAL);
	HOSTILE(header->nsections = UINT32_MAX, -EINVAL);
	HOSTILE(table[0].id = 0, -EINVAL);
	HOSTILE(table[0].id = 99, -EINVAL);
	HOSTILE(table[3].id = SNAP_SECTION_MACHINE, -EINVAL);
	HOSTILE(table[1].version = 2, -EPROTONOSUPPORT);
	HOSTILE(table[1].version = 0, -EPROTONOSUPPORT);
	/* Overlap, misalignment, out of the file, wrap-around. */
	HOSTILE(table[1].offset_bytes = table[0].offset_bytes, -EINVAL);
	HOSTILE(table[4].offset_bytes = table[5].offset_bytes, -EINVAL);
	HOSTILE(table[2].offset_bytes += 8, -EINVAL);
	HOSTILE(table[5].offset_bytes = len_bytes, -EINVAL);
	HOSTILE(table[5].offset_bytes = UINT64_MAX - 63, -EINVAL);
	HOSTILE(table[0].offset_bytes = 0, -EINVAL);
	HOSTILE(table[3].len_bytes -= 1, -EINVAL);
	HOSTILE(table[3].len_bytes = UINT64_MAX, -EINVAL);
	/* Bytes that belong to nothing. */
	HOSTILE(copy_[64 + 6 * 24] = 1, -EINVAL);
	HOSTILE(copy_[255] = 1, -EINVAL);
	HOSTILE(copy_[256 + 120] = 1, -EINVAL);
	HOSTILE(copy_[len_bytes - 1] = 1, -EINVAL);
	free(buf);
}

static void test_hostile_machine(void)
{
	size_t len_bytes;
	u8 *buf;

	fixture_init(&fix, 1, 0, 0);
	buf = build(&fix.parts, &len_bytes);
	HOSTILE(machine->nvcpus = 0, -EINVAL);
	HOSTILE(machine->nvcpus = 2, -EINVAL);
	HOSTILE(machine->nvcpus = 9, -EINVAL);
	HOSTILE(machine->nvcpus = UINT32_MAX, -EINVAL);
	HOSTILE(machine->checkpoint_vcpu = 1, -EINVAL);
	HOSTILE(machine->ram_bytes = 128 * MIB - 4096, -EINVAL);
	HOSTILE(machine->ram_bytes = 64 * GIB, 0);
	HOSTILE(machine->ram_bytes = 64 * GIB + 4096, -EINVAL);
	HOSTILE(machine->ram_bytes += 1, -EINVAL);
	HOSTILE(machine->ram_bytes = UINT64_MAX, -EINVAL);
	HOSTILE(machine->pmem_bytes = 2 * MIB, -EINVAL);
	HOSTILE(machine->pmem_bytes = 4096, -EINVAL);
	HOSTILE(machine->disk_bytes = 4096, -EINVAL);
	HOSTILE(machine->disk_bytes = 512, -EINVAL);
	HOSTILE(machine->generation = 0, -EINVAL);
	HOSTILE(machine->tsc_khz = 0, -EINVAL);
	HOSTILE(machine->tsc_khz = UINT64_MAX, -EINVAL);
	HOSTILE(machine->realtime_ns = UINT64_MAX, -EINVAL);
	HOSTILE(machine->clock.clock = UINT64_MAX, -EINVAL);
	HOSTILE(machine->clock.pad[3] = 1, -EINVAL);
	HOSTILE(machine->serial_lcr = 256, -EINVAL);
	HOSTILE(machine->vsock_connections = 1, -EINVAL);
	free(buf);
}

static void test_hostile_parts(void)
{
	size_t len_bytes;
	u8 *buf;

	fixture_init(&fix, 1, 0, 0);
	buf = build(&fix.parts, &len_bytes);
	HOSTILE(cpuid->nent = 0, -EINVAL);
	HOSTILE(cpuid->nent = SNAP_CPUID_MAX, 0);
	HOSTILE(cpuid->nent = SNAP_CPUID_MAX + 1, -EINVAL);
	HOSTILE(cpuid->nent = UINT32_MAX, -EINVAL);
	HOSTILE(cpuid->nent -= 1, -EINVAL);
	HOSTILE(cpuid->reserved = 1, -EINVAL);
	HOSTILE(cpuid->entries[0].padding[2] = 1, -EINVAL);
	HOSTILE(ioapic->reserved = 1, -EINVAL);
	HOSTILE(vcpu->nmsrs = SNAP_MSRS_MAX, 0);
	HOSTILE(vcpu->nmsrs = SNAP_MSRS_MAX + 1, -EINVAL);
	HOSTILE(vcpu->nmsrs = UINT32_MAX, -EINVAL);
	HOSTILE(vcpu->nmsrs -= 1, -EINVAL);
	HOSTILE(vcpu->msrs[1].reserved = 1, -EINVAL);
	HOSTILE(vcpu->pad0 = 1, -EINVAL);
	HOSTILE(vcpu->xsave_bytes = 575, -EINVAL);
	HOSTILE(vcpu->xsave_bytes = SNAP_XSAVE_BYTES, 0);
	HOSTILE(vcpu->xsave_bytes = SNAP_XSAVE_BYTES + 1, -EINVAL);
	HOSTILE(vcpu->xsave[4096] = 1, -EINVAL);
	HOSTILE(vcpu->xcrs.nr_xcrs = KVM_MAX_XCRS + 1, -EINVAL);
	HOSTILE(dev->slot = 1, -EINVAL);
	HOSTILE(dev->slot = 5, -EINVAL);
	HOSTILE(dev->slot = UINT32_MAX, -EINVAL);
	HOSTILE(dev->id = 4, -EINVAL);
	HOSTILE((dev->slot = 1, dev->id = 4), -EINVAL);
	HOSTILE((dev->slot = 2, dev->id = 27), -EINVAL);
	HOSTILE(dev->queues[2].size = 257, -EINVAL);
	HOSTILE(dev->queues[0].size = 48, -EINVAL);
	HOSTILE(dev->queues[0].size = 512, -EINVAL);
	HOSTILE(dev->queues[0].ready = 2, -EINVAL);
	HOSTILE(dev->queues[1].ready = 1, -EINVAL);
	HOSTILE(dev->queues[0].reserved[1] = 1, -EINVAL);
	free(buf);
}

TEST_MAIN({"digest_golden", test_digest_golden}, {"layout_golden", test_layout_golden},
	  {"round_trip", test_round_trip}, {"tails_are_cleared", test_tails_are_cleared},
	  {"truncated", test_truncated}, {"overlong", test_overlong},
	  {"every_byte_flipped", test_every_byte_flipped}, {"hostile_table", test_hostile_table},
	  {"hostile_machine", test_hostile_machine}, {"hostile_parts", test_hostile_parts})
