// SPDX-License-Identifier: Apache-2.0
// A whole machine, under its system call filters, whose memory comes from page fault servers: a
// guest of a few instructions adds up its pages while the servers are killed.
#include <errno.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/unit/snapshot_fixture.h"
#include "tests/unit/tiny_guest.h"
#include "vmm/kvm/vm.h"
#include "vmm/seccomp.h"
#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/pager.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define RAM_BYTES  (128 * MIB)
#define CODE_GPA   0x1000ull
#define RESULT_GPA 0x2000ull
#define SUM_START  0x100000ull
#define SUM_END	   0x4000000ull

/* 32-bit flat protected mode, no paging. */
static const u8 sum_code[] = {
	0x31, 0xc0,				  /* xor eax, eax */
	0xbe, 0x00, 0x00, 0x10, 0x00,		  /* mov esi, SUM_START */
	0x03, 0x06,				  /* next: add eax, [esi] */
	0x81, 0xc6, 0x00, 0x10, 0x00, 0x00,	  /* add esi, 4096 */
	0x81, 0xfe, 0x00, 0x00, 0x00, 0x04,	  /* cmp esi, SUM_END */
	0x72, 0xf0,				  /* jb next */
	0xa3, 0x00, 0x20, 0x00, 0x00,		  /* mov [RESULT_GPA], eax */
	0x66, 0xba, 0x00, 0x06, 0xb0, 0x34, 0xee, /* out 0x600, 0x34 */
	0xf4, 0xeb, 0xfd,			  /* hlt; jmp hlt */
};

/** What the child tells. */
struct shared {
	enum vm_stop stop;
	u32 result;
	int pids[PAGER_SERVERS];
	bool running;
	u64 faults;
};

static struct shared *shared;
static char folder[64], path[96];

static u32 word_at(u64 gpa)
{
	/* Every fourth MiB is a hole. */
	return gpa / MIB % 4 == 3 ? 0 : (u32)(gpa / PAGE_SIZE_BYTES * 2654435761u + 1);
}

static u32 expected_sum(void)
{
	u32 sum = 0;

	for (u64 gpa = SUM_START; gpa < SUM_END; gpa += PAGE_SIZE_BYTES)
		sum += word_at(gpa);
	return sum;
}

static void make_file(void)
{
	u32 page[PAGE_SIZE_BYTES / 4];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, RAM_BYTES), 0);
	for (u64 gpa = SUM_START; gpa < SUM_END; gpa += PAGE_SIZE_BYTES) {
		memset(page, 0x5a, sizeof(page));
		page[0] = word_at(gpa);
		if (page[0])
			CHECK_EQ(pwrite(fd, page, sizeof(page), (off_t)gpa), sizeof(page));
	}
	CHECK_EQ(pwrite(fd, sum_code, sizeof(sum_code), CODE_GPA), sizeof(sum_code));
	close(fd);
}

static _Noreturn void run_child(u64 window_bytes)
{
	struct vm_config cfg = {.ram_bytes = RAM_BYTES,
				.nvcpus = 1,
				.pmem_fd = -1,
				.disk_base_fd = -1,
				.disk_delta_fd = -1,
				.console_fd = -1,
				.ctl_fd = -1,
				.vsock_listen_fd = -1,
				.sandbox = true,
				.sandbox_options = SECCOMP_BUILD};
	struct snap_mem mem = {.fd = open(path, O_RDONLY | O_CLOEXEC),
			       .ranges = {{.gpa = 0, .len_bytes = RAM_BYTES}},
			       .nranges = 1,
			       .fault_window_bytes = window_bytes};
	struct thawdev_start start = {0};
	struct vm vm;

	alarm(60);
	vm_init(&vm, &cfg);
	CHECK_EQ(snap_mem_uffd.map(&mem), 0);
	vm.low_hva = mem.ranges[0].hva;
	vm.pager = mem.pager;
	CHECK_EQ(vm_create(&vm), 0);
	CHECK_EQ(vm_create_vcpus(&vm), 0);
	CHECK_EQ(vm_create_devices(&vm), 0);
	tiny_guest_enter(vm.vcpus[0].fd, CODE_GPA);
	CHECK_EQ(thawdev_fill(&vm.thawdev, 0, &start), 0);
	for (unsigned int i = 0; i < PAGER_SERVERS; i++)
		shared->pids[i] = pager_pid(mem.pager, i);
	__atomic_store_n(&shared->running, true, __ATOMIC_RELEASE);
	CHECK_EQ(vm_run(&vm), 0);
	shared->stop = vm.stop;
	shared->faults = pager_stats(mem.pager).faults;
	if (vm.stop == VM_STOP_POWEROFF)
		CHECK_EQ(gmem_read(&vm.gmem, RESULT_GPA, &shared->result, 4), 0);
	_exit(vm.stop == VM_STOP_ERROR);
}

static pid_t start_child(u64 window_bytes)
{
	pid_t pid;

	memset(shared, 0, sizeof(*shared));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		run_child(window_bytes);
	while (!__atomic_load_n(&shared->running, __ATOMIC_ACQUIRE)) {
		usleep(100);
		CHECK_EQ(kill(pid, 0), 0);
	}
	return pid;
}

static void check_sum(pid_t pid)
{
	int status;

	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(shared->stop, VM_STOP_POWEROFF);
	CHECK_EQ(shared->result, expected_sum());
}

static void test_sum(void)
{
	check_sum(start_child(PAGE_SIZE_BYTES));
	CHECK(shared->faults >= (SUM_END - SUM_START) / PAGE_SIZE_BYTES);
	check_sum(start_child(64 << 10));
	CHECK(shared->faults >= (SUM_END - SUM_START) / (64 << 10));
	CHECK(shared->faults < (SUM_END - SUM_START) / (32 << 10));
}

/** Twice, at random instants; the guest sees nothing of it. */
static void test_killed(void)
{
	unsigned int seed = (unsigned int)clock_now_ns();

	printf("    seed %u\n", seed);
	for (unsigned int round = 0; round < 12; round++) {
		pid_t pid = start_child(PAGE_SIZE_BYTES);

		for (unsigned int i = 0; i < 2; i++) {
			usleep((useconds_t)rand_r(&seed) % 20000);
			/* It may have ended by now. */
			(void)kill(shared->pids[i], SIGKILL);
		}
		check_sum(pid);
	}
}

/** All of them: the VM ends with an error, and soon, though its vCPU waits for a page in KVM. */
static void test_all_killed(void)
{
	u64 start_ns = clock_now_ns();
	struct capture capture;
	int status;
	pid_t pid;

	capture_begin(&capture);
	pid = start_child(PAGE_SIZE_BYTES);
	for (unsigned int i = 0; i < PAGER_SERVERS; i++)
		CHECK_EQ(kill(shared->pids[i], SIGKILL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	capture_end(&capture);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 1);
	CHECK_LOGGED(&capture, PAGER_FAILED_TEXT);
	CHECK(clock_now_ns() - start_ns < (PAGER_GRACE_MS + 8000) * 1000000ull);
}

static void setup(void)
{
	int kvm_fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (kvm_fd < 0 || uffd < 0)
		SKIP("no /dev/kvm, or no userfaultfd for faults of the kernel");
	close(kvm_fd);
	close(uffd);
	log_set_level(LOG_ERROR);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
	temp_folder(folder);
	snprintf(path, sizeof(path), "%s/memory", folder);
	make_file();
}

static void teardown(void)
{
	temp_folder_remove(folder);
}

TEST_MAIN({"setup", setup}, {"sum", test_sum}, {"killed", test_killed},
	  {"all_killed", test_all_killed}, {"teardown", teardown})
