// SPDX-License-Identifier: Apache-2.0
// Recorder "bpf" against a real KVM: a guest of a few instructions reads and writes known pages;
// exactly those are recorded, and only while its process is watched. Needs root and the tracepoint.
//
// The guest has paging off, so that its virtual addresses are its physical ones, and the test holds
// where KVM shadows page tables as well.
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "tests/unit/tiny_guest.h"
#include "vmm/cli/hot_recorder.h"

#define RAM_BYTES (2 * MIB)
#define CODE_GPA  0x1000u

static struct hot_bpf *bpf;

/* 32-bit flat protected mode. */
static const u8 code[] = {
	0xa1, 0x00, 0x00, 0x02, 0x00,	    /* mov eax, [0x20000] */
	0xa1, 0x00, 0x10, 0x02, 0x00,	    /* mov eax, [0x21000] */
	0xa3, 0x00, 0x00, 0x04, 0x00,	    /* mov [0x40000], eax */
	0xa1, 0x00, 0x00, 0x06, 0x00,	    /* mov eax, [0x60000] */
	0xa3, 0x00, 0x00, 0x06, 0x00,	    /* mov [0x60000], eax */
	0xa1, 0x00, 0x00, 0x00, 0x10, 0xf4, /* mov eax, [0x10000000]: a device; hlt */
};

static int guest_memory(void **ram)
{
	u8 page[4096];
	int fd = memfd_create("ram", MFD_CLOEXEC);

	memset(page, 0, sizeof(page));
	for (u64 at = 0; at < RAM_BYTES; at += sizeof(page)) {
		page[0] = (u8)(at >> 12);
		CHECK_EQ(pwrite(fd, page, sizeof(page), (off_t)at), sizeof(page));
	}
	CHECK_EQ(pwrite(fd, code, sizeof(code), CODE_GPA), sizeof(code));
	*ram = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(*ram != MAP_FAILED);
	return fd;
}

static void run_guest(void)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), vm = ioctl(kvm, KVM_CREATE_VM, 0);
	struct kvm_userspace_memory_region slot = {.memory_size = RAM_BYTES};
	long run_bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	struct kvm_run *run;
	void *ram;
	int vcpu;

	guest_memory(&ram);
	slot.userspace_addr = (uintptr_t)ram;
	CHECK_EQ(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot), 0);
	vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
	CHECK(vcpu >= 0);
	run = mmap(NULL, (size_t)run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	CHECK(run != MAP_FAILED);
	tiny_guest_enter(vcpu, CODE_GPA);
	CHECK_EQ(ioctl(vcpu, KVM_RUN, 0), 0);
	CHECK_EQ(run->exit_reason, KVM_EXIT_MMIO);
	CHECK_EQ(run->mmio.phys_addr, 0x10000000);
	CHECK_EQ(ioctl(vcpu, KVM_RUN, 0), 0);
	CHECK_EQ(run->exit_reason, KVM_EXIT_HLT);
}

/** A guest in a process of its own; @watched: the recorder is told which one, before it starts. */
static void run_child(bool watched)
{
	int gate[2], status;
	pid_t pid;
	char c;

	CHECK_EQ(pipe2(gate, O_CLOEXEC), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		if (read(gate[0], &c, 1) != 1)
			_exit(1);
		run_guest();
		_exit(0);
	}
	hot_bpf_watch(bpf, watched ? pid : getpid());
	CHECK_EQ(write(gate[1], "", 1), 1);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(gate[0]);
	close(gate[1]);
}

static void setup(void)
{
	int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	const char *why;

	if (fd < 0)
		SKIP("no /dev/kvm here");
	close(fd);
	if (hot_bpf_open(RAM_BYTES, &bpf))
		SKIP("BPF programs can't be loaded or attached here");
	/* Such a KVM may also emulate this guest instead of running it: then there are no faults.
	 */
	if (hot_recorder_bpf.probe(&why) == -EOPNOTSUPP)
		SKIP("the program loads and attaches, but this KVM has no EPT or NPT");
}

static enum snap_hot_kind kind_of(const struct snap_hot_set *set, u64 gpa, bool *found)
{
	*found = false;
	for (u32 i = 0; i < set->nruns; i++) {
		const struct snap_hot_run *run = &set->runs[i];

		if (gpa >= run->gpa && gpa < run->gpa + run->npages * PAGE_SIZE_BYTES) {
			*found = true;
			return run->kind;
		}
	}
	return SNAP_HOT_READ;
}

static void test_records_the_guest(void)
{
	static const struct {
		u64 gpa;
		bool touched;
		enum snap_hot_kind kind;
	} want[] = {
		{CODE_GPA, true, SNAP_HOT_READ},	  {0x20000, true, SNAP_HOT_READ},
		{0x21000, true, SNAP_HOT_READ},		  {0x22000, false, SNAP_HOT_READ},
		{0x1f000, false, SNAP_HOT_READ},	  {0x40000, true, SNAP_HOT_WRITE},
		{0x60000, true, SNAP_HOT_WRITE},	  {0x61000, false, SNAP_HOT_READ},
		{RAM_BYTES - 4096, false, SNAP_HOT_READ},
	};
	struct snap_hot_set set = {.pmem_gpa = 5 * GIB};
	bool found;

	run_child(true);
	CHECK_EQ(hot_bpf_read(bpf, 0, RAM_BYTES, false, &set), 0);
	for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
		enum snap_hot_kind kind = kind_of(&set, want[i].gpa, &found);

		CHECK_EQ(found, want[i].touched);
		CHECK_EQ(kind, want[i].kind);
	}
	snap_hot_set_free(&set);
	/* In a read-only part nothing was written. */
	CHECK_EQ(hot_bpf_read(bpf, 0x40000, 4096, true, &set), 0);
	CHECK(set.nruns == 1 && set.runs[0].kind == SNAP_HOT_READ);
	snap_hot_set_free(&set);
}

static void test_others_do_not_count(void)
{
	struct snap_hot_set set = {.pmem_gpa = 5 * GIB};

	/* What was recorded before is forgotten, too. */
	run_child(false);
	CHECK_EQ(hot_bpf_read(bpf, 0, RAM_BYTES, false, &set), 0);
	CHECK_EQ(set.nruns, 0);
	snap_hot_set_free(&set);
	hot_bpf_close(bpf);
	hot_bpf_close(NULL);
}

TEST_MAIN({"setup", setup}, {"records the guest", test_records_the_guest},
	  {"others do not count", test_others_do_not_count})
