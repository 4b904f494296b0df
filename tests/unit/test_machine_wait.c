// SPDX-License-Identifier: Apache-2.0
// A machine that waits for its start, with guests of a few instructions, on any /dev/kvm and under
// the system call filters.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "tests/unit/tiny_guest.h"
#include "vmm/kvm/vm.h"
#include "vmm/seccomp.h"
#include "vmm/util/util.h"

#define CODE_GPA   0x1000ull
#define RESULT_GPA 0x2000ull
#define WAIT_MS	   30000
#define HELD_MS	   300

/* 32-bit flat protected mode, no paging. */
static const u8 code_tsc[] = {
	0x0f, 0x31,						    /* rdtsc */
	0xa3, 0x00, 0x20, 0x00, 0x00,				    /* mov [0x2000], eax */
	0x89, 0x15, 0x04, 0x20, 0x00, 0x00,			    /* mov [0x2004], edx */
	0xc7, 0x05, 0x08, 0x00, 0x00, 0xd0, 0x02, 0x00, 0x00, 0x00, /* mov [0xd0000008], RESUMED */
	0x66, 0xba, 0x00, 0x06, 0xb0, 0x34, 0xee,		    /* out 0x600, 0x34 */
	0xf4, 0xeb, 0xfd,					    /* hlt; jmp hlt */
};

/** What the child tells its parent. */
struct shared {
	enum vm_stop stop;
	u64 guest_tsc; /* its low half is not 0 once the guest has run */
	u64 saved_tsc, waited_tsc, started_tsc, tsc_khz;
	struct ctl_clocks clocks;
	struct thaw_control control;
	bool tsc_offset;
	unsigned int starts;
	int start_ret;
	char hostname[64], request[16];
};

static struct shared *shared;
static struct snap_vcpu saved;
static struct kvm_clock_data saved_clock;
static u64 page_reads_ns; /* of the next machine */
static int ctl_fd;
static pid_t vm_pid;

/** As the guest would read it; where rdtsc is not virtualised, at least what KVM has noted. */
static u64 read_tsc(struct vm *vm)
{
	struct {
		u32 nmsrs, pad; /* as struct kvm_msrs */
		struct kvm_msr_entry entry;
	} msr = {.nmsrs = 1, .entry.index = 0x10};

	CHECK_EQ(ioctl(vm->vcpus[0].fd, KVM_GET_MSRS, &msr), 1);
	return msr.entry.data;
}

/** Some kinds of KVM (shadowed guests) take an offset and forget it. */
static bool has_tsc_offset(struct vm *vm)
{
	u64 offset = 0;
	struct kvm_device_attr attr = {.group = KVM_VCPU_TSC_CTRL,
				       .attr = KVM_VCPU_TSC_OFFSET,
				       .addr = (uintptr_t)&offset};

	CHECK_EQ(ioctl(vm->vcpus[0].fd, KVM_GET_DEVICE_ATTR, &attr), 0);
	return offset == vm->tsc_offset;
}

static int on_start(struct vm *vm, void *opaque, const char *hostname, int request_fd)
{
	struct thawdev_start start = {.hostname = hostname};
	struct kvm_clock_data clock = {.clock = saved_clock.clock};

	CHECK(opaque == shared);
	shared->starts++;
	snprintf(shared->hostname, sizeof(shared->hostname), "%s", hostname);
	if (request_fd >= 0 && pread(request_fd, shared->request, sizeof(shared->request), 0) < 0)
		return -errno;
	if (shared->start_ret)
		return shared->start_ret;
	shared->waited_tsc = read_tsc(vm);
	/* As snap_restore_time() does. */
	if (ioctl(vm->vm_fd, KVM_SET_CLOCK, &clock) < 0)
		return -errno;
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++) {
		if (vcpu_load_time(&vm->vcpus[i], &saved))
			return -EIO;
	}
	shared->started_tsc = read_tsc(vm);
	shared->tsc_offset = has_tsc_offset(vm);
	return thawdev_fill(&vm->thawdev, 0, &start);
}

static void run_child(int ctl, unsigned int nvcpus)
{
	struct vm_config cfg = {
		.ram_bytes = 128 * MIB,
		.nvcpus = nvcpus,
		.pmem_fd = -1,
		.disk_base_fd = -1,
		.disk_delta_fd = -1,
		.console_fd = -1,
		.ctl_fd = ctl,
		.vsock_listen_fd = -1,
		.start = on_start,
		.start_opaque = shared,
		.sandbox = true,
		.sandbox_options = SECCOMP_WAIT,
	};
	static struct vm vm;

#ifdef THAW_SANITIZER
	cfg.sandbox_options |= SECCOMP_SANITIZER;
#endif
	vm_init(&vm, &cfg);
	CHECK_EQ(vm_ram_map_anon(&vm), 0);
	CHECK_EQ(vm_create(&vm), 0);
	CHECK_EQ(vm_create_vcpus(&vm), 0);
	CHECK_EQ(vm_create_devices(&vm), 0);
	CHECK_EQ(gmem_write(&vm.gmem, CODE_GPA, code_tsc, sizeof(code_tsc)), 0);
	tiny_guest_enter(vm.vcpus[0].fd, CODE_GPA);
	/* The state of "the snapshot": that of this moment. */
	CHECK_EQ(vcpu_save(&vm.vcpus[0], &saved), 0);
	CHECK_EQ(ioctl(vm.vm_fd, KVM_GET_CLOCK, &saved_clock), 0);
	for (u32 i = 0; i < saved.nmsrs; i++) {
		if (saved.msrs[i].index == 0x10)
			shared->saved_tsc = saved.msrs[i].value;
	}
	shared->tsc_khz = (u64)ioctl(vm.vcpus[0].fd, KVM_GET_TSC_KHZ, 0);
	vm.page_reads_ns = page_reads_ns;
	if (page_reads_ns)
		CHECK_EQ(madvise(vm.low_hva, cfg.ram_bytes, MADV_RANDOM), 0);
	vm.clocks.start_ns = clock_now_ns();
	CHECK_EQ(vm_run(&vm) != 0, shared->start_ret && vm.stop == VM_RUNNING);
	shared->stop = vm.stop;
	shared->clocks = vm.clocks;
	CHECK_EQ(gmem_read(&vm.gmem, RESULT_GPA, &shared->guest_tsc, 8), 0);
	memcpy(&shared->control, vm.mailbox_hva, sizeof(shared->control));
	_exit(0);
}

static struct ctl_msg receive(void)
{
	struct pollfd pfd = {.fd = ctl_fd, .events = POLLIN};
	struct ctl_msg msg;
	int fd;

	CHECK_EQ(poll(&pfd, 1, WAIT_MS), 1);
	CHECK_EQ(ctl_recv(ctl_fd, &msg, &fd), 1);
	CHECK_EQ(fd, -1);
	return msg;
}

static bool quiet(int timeout_ms)
{
	struct pollfd pfd = {.fd = ctl_fd, .events = POLLIN};

	return poll(&pfd, 1, timeout_ms) == 0;
}

static void start_vm(unsigned int nvcpus)
{
	int pair[2];

	memset(shared, 0, sizeof(*shared));
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	vm_pid = fork();
	CHECK(vm_pid >= 0);
	if (!vm_pid) {
		close(pair[0]);
		alarm(60);
		run_child(pair[1], nvcpus);
	}
	close(pair[1]);
	ctl_fd = pair[0];
}

static void start(const char *hostname, int fd)
{
	struct ctl_msg msg = {.version = CTL_VERSION, .type = CTL_START};

	snprintf(msg.text, sizeof(msg.text), "%s", hostname);
	CHECK_EQ(ctl_send(ctl_fd, &msg, fd), 0);
}

static void end_vm(void)
{
	int status;

	CHECK_EQ(waitpid(vm_pid, &status, 0), vm_pid);
	CHECK_EQ(status, 0);
	fd_close(&ctl_fd);
}

static void test_set_up(void)
{
	int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		SKIP("/dev/kvm can't be opened");
	close(fd);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
}

static void test_start(void)
{
	u64 generation = 0, before_ns, seed = 0;

	for (unsigned int nvcpus = 1; nvcpus <= 4; nvcpus += 3) {
		int fd = memfd_create("request", MFD_CLOEXEC);
		struct timespec wall;
		struct ctl_msg msg;

		CHECK_EQ(write(fd, "request", 7), 7);
		start_vm(nvcpus);
		CHECK_EQ(receive().type, CTL_WAITING);
		/* Nothing runs while it waits. */
		CHECK(quiet(HELD_MS));
		before_ns = clock_now_ns();
		clock_gettime(CLOCK_REALTIME, &wall);
		start("clone", fd);
		close(fd);
		msg = receive();
		CHECK_EQ(msg.type, CTL_RUNNING);
		CHECK(msg.clocks.start_ns >= before_ns && msg.clocks.run_ns >= msg.clocks.start_ns);
		CHECK_EQ(receive().type, CTL_RESUMED);
		msg = receive();
		CHECK_EQ(msg.type, CTL_EXIT);
		CHECK_EQ(msg.reason, CTL_EXIT_POWEROFF);
		end_vm();
		CHECK_EQ(shared->stop, VM_STOP_POWEROFF);
		CHECK_EQ(shared->starts, 1);
		CHECK_STR(shared->hostname, "clone");
		CHECK_STR(shared->request, "request");
		/* Time: the guest's TSC goes on from the saved one, not from the set-up. */
		CHECK((shared->waited_tsc - shared->saved_tsc) / shared->tsc_khz >= HELD_MS);
		CHECK(shared->started_tsc >= shared->saved_tsc);
		if (shared->tsc_offset)
			CHECK((shared->started_tsc - shared->saved_tsc) / shared->tsc_khz <
			      HELD_MS / 2);
		else
			printf("  (this KVM keeps no TSC offset: not checked)\n");
		CHECK(shared->guest_tsc);
		/* Identity is of the start, and new each time. */
		CHECK(shared->control.generation >= 2 && shared->control.generation != generation);
		CHECK(memcmp(shared->control.seed, &seed, sizeof(seed)) != 0);
		CHECK(shared->control.wall_sec >= (u64)wall.tv_sec);
		CHECK(shared->control.wall_sec > (u64)wall.tv_sec ||
		      shared->control.wall_nsec >= (u32)wall.tv_nsec);
		CHECK_STR(shared->control.hostname, "clone");
		generation = shared->control.generation;
		memcpy(&seed, shared->control.seed, sizeof(seed));
	}
}

static void test_started_twice(void)
{
	start_vm(1);
	CHECK_EQ(receive().type, CTL_WAITING);
	start("", -1);
	start("", -1);
	for (struct ctl_msg msg = receive(); msg.type != CTL_EXIT; msg = receive())
		CHECK(msg.type == CTL_RUNNING || msg.type == CTL_RESUMED);
	end_vm();
	CHECK_EQ(shared->starts, 1);
	CHECK_EQ(shared->stop, VM_STOP_POWEROFF);
}

static void test_start_fails(void)
{
	struct ctl_msg msg;

	start_vm(2);
	CHECK_EQ(receive().type, CTL_WAITING);
	shared->start_ret = -ENOSPC;
	start("", -1);
	msg = receive();
	CHECK_EQ(msg.type, CTL_EXIT);
	CHECK_EQ(msg.reason, CTL_EXIT_ERROR);
	CHECK_EQ(msg.error, -ENOSPC);
	end_vm();
	CHECK_EQ(shared->stop, VM_STOP_ERROR);
	CHECK_EQ(shared->guest_tsc, 0);
}

/** A waiting VM ends with its owner, by CTL_STOP, and by a signal, without ever having run. */
static void test_ends_while_waiting(void)
{
	struct ctl_msg stop = {.version = CTL_VERSION, .type = CTL_STOP};

	for (int how = 0; how < 3; how++) {
		start_vm(2);
		CHECK_EQ(receive().type, CTL_WAITING);
		if (how == 0)
			fd_close(&ctl_fd);
		else if (how == 1)
			CHECK_EQ(ctl_send(ctl_fd, &stop, -1), 0);
		else
			CHECK_EQ(kill(vm_pid, SIGTERM), 0);
		end_vm();
		CHECK_EQ(shared->stop, VM_STOP_REQUESTED);
		CHECK_EQ(shared->starts, 0);
		CHECK_EQ(shared->guest_tsc, 0);
		CHECK_EQ(shared->control.magic, 0);
	}
}

/** Is a mapping of @vm_pid advised MADV_RANDOM ("rr")? Linux, Documentation/filesystems/proc.rst.
 */
static bool reads_by_page(void)
{
	char path[64], line[512];
	bool found = false;
	FILE *smaps;

	snprintf(path, sizeof(path), "/proc/%d/smaps", (int)vm_pid);
	smaps = fopen(path, "re");
	CHECK(smaps);
	while (fgets(line, sizeof(line), smaps)) {
		if (!strncmp(line, "VmFlags:", 8) && strstr(line, " rr"))
			found = true;
	}
	fclose(smaps);
	return found;
}

/** Read-around comes back by itself, under the system call filter; not before its time. */
static void test_page_reads_end(void)
{
	page_reads_ns = 3600 * 1000000000ull;
	start_vm(1);
	CHECK_EQ(receive().type, CTL_WAITING);
	CHECK(reads_by_page());
	fd_close(&ctl_fd);
	end_vm();
	page_reads_ns = 50 * 1000000;
	start_vm(1);
	CHECK_EQ(receive().type, CTL_WAITING);
	for (unsigned int i = 0; i < WAIT_MS && reads_by_page(); i++)
		usleep(1000);
	CHECK(!reads_by_page());
	/* The machine goes on. */
	start("", -1);
	CHECK_EQ(receive().type, CTL_RUNNING);
	end_vm();
	CHECK_EQ(shared->stop, VM_STOP_POWEROFF);
	page_reads_ns = 0;
}

TEST_MAIN({"set-up", test_set_up}, {"start", test_start}, {"started twice", test_started_twice},
	  {"start fails", test_start_fails}, {"ends while waiting", test_ends_while_waiting},
	  {"page reads end", test_page_reads_end})
