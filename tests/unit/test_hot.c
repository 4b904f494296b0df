// SPDX-License-Identifier: Apache-2.0
// The hot set: file round trip, every byte flipped and every truncation refused, hostile runs;
// recording of exactly the pages that were touched.
#include "vmm/snapshot/hot.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/kvm/vm.h"

#define RAM_BYTES  (4 * GIB)
#define PMEM_BYTES (2 * MIB)
#define PMEM_GPA   (5 * GIB)

static const u8 state_digest[SNAP_DIGEST_BYTES] = {1, 2,  3,  4,  5,  6,  7,  8,
						   9, 10, 11, 12, 13, 14, 15, 16};

static const struct snap_hot_run good[] = {
	{.gpa = 0, .npages = 1, .kind = SNAP_HOT_READ},
	{.gpa = 0x1000, .npages = 2, .kind = SNAP_HOT_WRITE},
	{.gpa = 3 * GIB - 4096, .npages = 1, .kind = SNAP_HOT_READ},
	{.gpa = 4 * GIB, .npages = 1, .kind = SNAP_HOT_WRITE},
	{.gpa = 5 * GIB - 4096, .npages = 1, .kind = SNAP_HOT_WRITE},
	{.gpa = PMEM_GPA, .npages = 512, .kind = SNAP_HOT_READ},
};

static const struct snap_hot_info info = {.recorder = SNAP_HOT_BPF,
					  .rule = SNAP_HOT_HALF,
					  .threshold = 2,
					  .nclones = 3,
					  .ncommands = 3,
					  .stability_permille = SNAP_HOT_UNKNOWN,
					  .similarity_permille = 1000,
					  .union_pages = 9,
					  .intersection_pages = 7,
					  .record_ns = 1,
					  .exec_ns = 1};

static int parse(const void *buf, size_t len, struct snap_hot *out)
{
	const char *why = NULL;
	int ret = snap_hot_parse(buf, len, RAM_BYTES, PMEM_BYTES, state_digest, out, &why);

	CHECK(!ret || why);
	return ret;
}

static void test_round_trip(void)
{
	struct snap_hot out;
	size_t len;
	void *buf;
	u8 *copy;

	CHECK_EQ(snap_hot_build(good, ARRAY_SIZE(good), &info, state_digest, &buf, &len), 0);
	CHECK_EQ(len, 128 + 16 * ARRAY_SIZE(good));
	CHECK_EQ(parse(buf, len, &out), 0);
	CHECK_EQ(out.nruns, ARRAY_SIZE(good));
	CHECK(!memcmp(out.runs, good, sizeof(good)));
	CHECK(!memcmp(out.info, &info, sizeof(info)));
	for (size_t cut = 0; cut < len; cut++) {
		copy = malloc(cut + 1);
		memcpy(copy, buf, cut);
		CHECK(parse(copy, cut, &out) < 0);
		free(copy);
	}
	copy = malloc(len);
	for (size_t i = 0; i < len * 8; i++) {
		memcpy(copy, buf, len);
		copy[i / 8] ^= (u8)(1u << i % 8);
		CHECK(parse(copy, len, &out) < 0);
	}
	free(copy);
	free(buf);
	CHECK_EQ(snap_hot_build(NULL, 0, &info, state_digest, &buf, &len), 0);
	CHECK_EQ(parse(buf, len, &out), 0);
	CHECK_EQ(out.nruns, 0);
	free(buf);
}

static void refuse(const struct snap_hot_run *runs, u32 nruns)
{
	struct snap_hot out;
	size_t len;
	void *buf;

	/* The digest is right: only the content can give it away. */
	CHECK_EQ(snap_hot_build(runs, nruns, &info, state_digest, &buf, &len), 0);
	CHECK_EQ(parse(buf, len, &out), -EINVAL);
	free(buf);
}

static void test_hostile_runs(void)
{
	static const struct snap_hot_run bad[] = {
		{.gpa = 0x800, .npages = 1},
		{.gpa = 0, .npages = 0},
		{.gpa = 0, .npages = 1, .kind = 2},
		{.gpa = 3 * GIB - 4096, .npages = 2}, /* out of low RAM's end */
		{.gpa = 3 * GIB, .npages = 1},	      /* the hole */
		{.gpa = 0xd0000000, .npages = 1},
		{.gpa = 4 * GIB - 4096, .npages = 2}, /* into high RAM from below */
		{.gpa = 5 * GIB - 4096, .npages = 2}, /* from RAM into the root image */
		{.gpa = PMEM_GPA, .npages = 1, .kind = SNAP_HOT_WRITE},
		{.gpa = PMEM_GPA + PMEM_BYTES, .npages = 1},
		{.gpa = PMEM_GPA, .npages = 513},
		{.gpa = 0, .npages = 0xffffffff},
		{.gpa = ~0ull - 4095, .npages = 1}, /* wraps */
		{.gpa = ~0ull - 4095, .npages = 0xffffffff},
	};
	static const struct snap_hot_run unordered[] = {{.gpa = 0x2000, .npages = 1},
							{.gpa = 0x1000, .npages = 1}};
	static const struct snap_hot_run overlap[] = {{.gpa = 0x1000, .npages = 2},
						      {.gpa = 0x2000, .npages = 1}};
	u8 other[SNAP_DIGEST_BYTES] = {0};
	struct snap_hot out;
	const char *why;
	size_t len;
	void *buf;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		refuse(&bad[i], 1);
	refuse(unordered, 2);
	refuse(overlap, 2);
	CHECK_EQ(snap_hot_build(good, 1, &info, state_digest, &buf, &len), 0);
	CHECK_EQ(snap_hot_parse(buf, len, RAM_BYTES, PMEM_BYTES, other, &out, &why), -EINVAL);
	free(buf);
}

static void refuse_info(const struct snap_hot_info *bad)
{
	struct snap_hot out;
	size_t len;
	void *buf;

	CHECK_EQ(snap_hot_build(good, 1, bad, state_digest, &buf, &len), 0);
	CHECK_EQ(parse(buf, len, &out), -EINVAL);
	free(buf);
}

static void test_hostile_figures(void)
{
	static const struct {
		size_t offset;
		u32 value;
	} bad[] = {
		{offsetof(struct snap_hot_info, recorder), 0},
		{offsetof(struct snap_hot_info, recorder), 3},
		{offsetof(struct snap_hot_info, rule), 0},
		{offsetof(struct snap_hot_info, rule), 4},
		{offsetof(struct snap_hot_info, threshold), 0},
		{offsetof(struct snap_hot_info, threshold), 4},
		{offsetof(struct snap_hot_info, nclones), 0},
		{offsetof(struct snap_hot_info, nclones), SNAP_HOT_CLONES_MAX + 1},
		{offsetof(struct snap_hot_info, ncommands), 0},
		{offsetof(struct snap_hot_info, ncommands), 4},
		{offsetof(struct snap_hot_info, stability_permille), 1001},
		{offsetof(struct snap_hot_info, similarity_permille), 0xfffffffe},
		{offsetof(struct snap_hot_info, reserved), 1},
		{offsetof(struct snap_hot_info, intersection_pages), 10},
		{offsetof(struct snap_hot_info, reserved2), 1},
		{offsetof(struct snap_hot_info, reserved2) + 12, 1},
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct snap_hot_info one = info;

		memcpy((char *)&one + bad[i].offset, &bad[i].value, sizeof(bad[i].value));
		refuse_info(&one);
	}
}

static void test_version_1(void)
{
	/* What an older thaw wrote: no figures. It is shorter than this version's header. */
	u8 old[48] = "THAWHOT";
	struct snap_hot out;

	old[8] = 1;
	CHECK_EQ(parse(old, sizeof(old), &out), -EPROTONOSUPPORT);
}

static void test_record(void)
{
	struct snap_hot_recorder recorder;
	struct snap_mem mem = {.nranges = 1};
	struct snap_hot out;
	struct vm vm = {0};
	u8 buf[4096];
	volatile u8 *ram;
	int fd = memfd_create("ram", MFD_CLOEXEC), file = memfd_create("hot", MFD_CLOEXEC), ret;
	ssize_t len;

	/* All pages in the page cache: fault-around would bring neighbours. */
	CHECK(fd >= 0 && file >= 0);
	memset(buf, 1, sizeof(buf));
	for (int i = 0; i < 256; i++)
		CHECK_EQ(write(fd, buf, sizeof(buf)), sizeof(buf));
	mem.fd = fd;
	mem.ranges[0].len_bytes = MIB;
	CHECK_EQ(snap_mem_mmap.map(&mem), 0);
	ret = snap_hot_record_start(&recorder, &mem);
	if (ret) {
		fprintf(stderr, "recording can't be tested here: %s\n", strerror(-ret));
		return;
	}
	ram = mem.ranges[0].hva;
	CHECK_EQ(ram[0], 1);
	CHECK_EQ(ram[0x20000], 1);
	CHECK_EQ(ram[0x21000], 1);
	ram[0x22000] = 2;
	CHECK_EQ(ram[0x40000], 1); /* read, then written: written */
	ram[0x40000] = 3;
	CHECK_EQ(gmem_add(&vm.gmem, 0, MIB, mem.ranges[0].hva), 0);
	CHECK_EQ(snap_hot_record_write(&recorder, &vm, state_digest, file), 0);
	len = pread(file, buf, sizeof(buf), 0);
	CHECK(len > 0);
	CHECK_EQ(parse(buf, (size_t)len, &out), 0);
	CHECK_EQ(out.nruns, 4);
	CHECK(out.runs[0].gpa == 0 && out.runs[0].npages == 1 && out.runs[0].kind == SNAP_HOT_READ);
	CHECK(out.runs[1].gpa == 0x20000 && out.runs[1].npages == 2 &&
	      out.runs[1].kind == SNAP_HOT_READ);
	CHECK(out.runs[2].gpa == 0x22000 && out.runs[2].npages == 1 &&
	      out.runs[2].kind == SNAP_HOT_WRITE);
	CHECK(out.runs[3].gpa == 0x40000 && out.runs[3].kind == SNAP_HOT_WRITE);
	close(fd);
	close(file);
}

TEST_MAIN({"round trip", test_round_trip}, {"hostile runs", test_hostile_runs},
	  {"hostile figures", test_hostile_figures}, {"version 1", test_version_1},
	  {"record", test_record})
