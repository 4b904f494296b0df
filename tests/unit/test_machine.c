// SPDX-License-Identifier: Apache-2.0
// The whole machine with guests of a few instructions, on any /dev/kvm: checkpoint, its failure, a
// clone from the saved state, reset, power-off, stop, under the system call filters. Each VM runs
// in a child process, as the filters can't be taken back.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "tests/unit/tiny_guest.h"
#include "vmm/kvm/vm.h"
#include "vmm/kvm/vm_internal.h"
#include "vmm/seccomp.h"

#define CODE_GPA   0x1000ull
#define RESULT_GPA 0x2000ull
#define POISON	   0x19u

/* 32-bit flat protected mode, no paging. */
static const u8 checkpoint_code[] = {
	0xc7, 0x05, 0x08, 0x00, 0x00, 0xd0, 0x01,
	0x00, 0x00, 0x00,	      /* mov [0xd0000008], CHECKPOINT */
	0xa1, 0x0c, 0x00, 0x00, 0xd0, /* mov eax, [0xd000000c] */
	0xa3, 0x00, 0x20, 0x00, 0x00, /* mov [0x2000], eax */
	0xc7, 0x05, 0x08, 0x00, 0x00, 0xd0, 0x02,
	0x00, 0x00, 0x00,			  /* mov [0xd0000008], RESUMED */
	0x66, 0xba, 0x00, 0x06, 0xb0, 0x34, 0xee, /* out 0x600, 0x34 */
	0xf4, 0xeb, 0xfd,			  /* hlt; jmp hlt */
};
#define RIP_AFTER_CHECKPOINT (CODE_GPA + 10)

static const u8 reset_code[] = {0x66, 0xba, 0x04, 0x06, 0xb0, 0x01, 0xee, 0xf4}; /* out 0x604, 1 */
static const u8 fault_code[] = {0x0f, 0x0b};					 /* ud2, no IDT */
static const u8 spin_code[] = {
	0xc7, 0x05, 0x08, 0x00, 0x00,
	0xd0, 0x01, 0x00, 0x00, 0x00, /* mov [0xd0000008], CHECKPOINT */
	0xeb, 0xfe,		      /* jmp here */
};

#define STORM_ROUNDS 200u
#define STORM_VCPUS  4u
static const u8 storm_code[] = {
	0xb9, 0xc8, 0x00, 0x00, 0x00, /* mov ecx, STORM_ROUNDS */
	0xc7, 0x05, 0x08, 0x00, 0x00, 0xd0, 0x01,
	0x00, 0x00, 0x00,			  /* 1: mov [0xd0000008], CHECKPOINT */
	0xa1, 0x0c, 0x00, 0x00, 0xd0,		  /* mov eax, [0xd000000c] */
	0x49, 0x75, 0xee,			  /* dec ecx; jnz 1b */
	0xf0, 0xff, 0x05, 0x00, 0x20, 0x00, 0x00, /* lock inc dword [0x2000] */
	0x83, 0x3d, 0x00, 0x20, 0x00, 0x00, 0x1d, /* 2: cmp dword [0x2000], that of all vCPUs */
	0x75, 0xf7,				  /* jne 2b */
	0x66, 0xba, 0x00, 0x06, 0xb0, 0x34, 0xee, /* out 0x600, 0x34 */
	0xf4,
};
_Static_assert(STORM_ROUNDS == 0xc8 && POISON + STORM_VCPUS == 0x1d, "as in the code");

/** What children tell their parent. */
struct shared {
	enum vm_stop stop;
	u32 result;
	u64 resumed_ns;
	u64 rip;
	unsigned int checkpoints;
	int checkpoint_ret;
	struct snap_vcpu vcpu;
};

static struct shared *shared;
static int running_fd = -1; /* told by the spinning guest's child */
static bool all_run;	    /* not vCPU 0 alone */

/** Every vCPU is stopped here, the doorbell's instruction is complete. */
static int on_checkpoint(struct vm *vm, void *opaque)
{
	(void)opaque;
	if (vcpu_save(&vm->vcpus[0], &shared->vcpu))
		return -EIO;
	shared->rip = shared->vcpu.regs.rip;
	shared->checkpoints++;
	if (running_fd >= 0 && write(running_fd, "", 1) != 1)
		return -EIO;
	return shared->checkpoint_ret;
}

static void run_child(const u8 *code, size_t code_bytes, unsigned int nvcpus, bool checkpoint_exit,
		      const struct snap_vcpu *from)
{
	struct vm_config cfg = {
		.ram_bytes = 128 * MIB,
		.nvcpus = nvcpus,
		.pmem_fd = -1,
		.disk_base_fd = -1,
		.disk_delta_fd = -1,
		.console_fd = -1,
		.ctl_fd = -1,
		.vsock_listen_fd = -1,
		.checkpoint = on_checkpoint,
		.checkpoint_exit = checkpoint_exit,
		.sandbox = true,
		.sandbox_options = SECCOMP_SNAPSHOT,
	};
	struct thawdev_start start = {0};
	u32 poison = POISON;
	struct vm vm;

#ifdef THAW_SANITIZER
	cfg.sandbox_options |= SECCOMP_SANITIZER;
#endif
	vm_init(&vm, &cfg);
	CHECK_EQ(vm_ram_map_anon(&vm), 0);
	CHECK_EQ(vm_create(&vm), 0);
	CHECK_EQ(vm_create_vcpus(&vm), 0);
	CHECK_EQ(vm_create_devices(&vm), 0);
	CHECK_EQ(gmem_write(&vm.gmem, CODE_GPA, code, code_bytes), 0);
	CHECK_EQ(gmem_write(&vm.gmem, RESULT_GPA, &poison, 4), 0);
	if (from)
		CHECK_EQ(vcpu_load(&vm.vcpus[0], from), 0);
	else
		tiny_guest_enter(vm.vcpus[0].fd, CODE_GPA);
	for (unsigned int i = 1; all_run && i < nvcpus; i++) {
		struct kvm_mp_state runnable = {.mp_state = KVM_MP_STATE_RUNNABLE};

		tiny_guest_enter(vm.vcpus[i].fd, CODE_GPA);
		CHECK_EQ(ioctl(vm.vcpus[i].fd, KVM_SET_MP_STATE, &runnable), 0);
	}
	CHECK_EQ(thawdev_fill(&vm.thawdev, from ? 0 : 1, &start), 0);
	CHECK_EQ(vm_run(&vm), 0);
	shared->stop = vm.stop;
	shared->resumed_ns = vm.clocks.resumed_ns;
	CHECK_EQ(gmem_read(&vm.gmem, RESULT_GPA, &shared->result, 4), 0);
	vm_destroy(&vm);
	_exit(0);
}

static void run_vm(const u8 *code, size_t code_bytes, unsigned int nvcpus, bool checkpoint_exit,
		   const struct snap_vcpu *from)
{
	pid_t pid;
	int status;

	shared->stop = VM_RUNNING;
	shared->checkpoints = 0;
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		alarm(60);
		run_child(code, code_bytes, nvcpus, checkpoint_exit, from);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
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

static void test_checkpoint_goes_on(void)
{
	for (unsigned int nvcpus = 1; nvcpus <= 8; nvcpus += 7) {
		shared->checkpoint_ret = 0;
		run_vm(checkpoint_code, sizeof(checkpoint_code), nvcpus, false, NULL);
		CHECK_EQ(shared->stop, VM_STOP_POWEROFF);
		CHECK_EQ(shared->checkpoints, 1);
		CHECK_EQ(shared->rip, RIP_AFTER_CHECKPOINT);
		CHECK_EQ(shared->result, 0);
		CHECK(shared->resumed_ns);
	}
}

/* Every vCPU rings without pause: each ring ends in a checkpoint or EBUSY, and no vCPU gets lost
 * between one rendezvous and the next. */
static void test_doorbell_storm(void)
{
	shared->checkpoint_ret = 0;
	all_run = true;
	run_vm(storm_code, sizeof(storm_code), STORM_VCPUS, false, NULL);
	all_run = false;
	CHECK_EQ(shared->stop, VM_STOP_POWEROFF);
	CHECK_EQ(shared->result, POISON + STORM_VCPUS);
	CHECK(shared->checkpoints >= STORM_ROUNDS);
	CHECK(shared->checkpoints <= STORM_ROUNDS * STORM_VCPUS);
}

static void test_checkpoint_fails(void)
{
	shared->checkpoint_ret = -ENOSPC;
	run_vm(checkpoint_code, sizeof(checkpoint_code), 2, true, NULL);
	CHECK_EQ(shared->stop, VM_STOP_POWEROFF); /* it goes on even so, and is told why */
	CHECK_EQ(shared->result, ENOSPC);
}

static void test_clone(void)
{
	static struct snap_vcpu vcpu;

	shared->checkpoint_ret = 0;
	run_vm(checkpoint_code, sizeof(checkpoint_code), 1, true, NULL);
	CHECK_EQ(shared->stop, VM_STOP_SNAPSHOT);
	CHECK_EQ(shared->result, POISON); /* not one instruction more */
	CHECK_EQ(shared->resumed_ns, 0);
	vcpu = shared->vcpu;
	CHECK(vcpu.nmsrs > 20 && vcpu.nmsrs <= SNAP_MSRS_MAX);
	run_vm(checkpoint_code, sizeof(checkpoint_code), 1, true, &vcpu);
	CHECK_EQ(shared->stop, VM_STOP_POWEROFF);
	CHECK_EQ(shared->checkpoints, 0);
	CHECK_EQ(shared->result, 0); /* a clone's status register reads 0 */
	CHECK(shared->resumed_ns);
}

static void test_hostile_state(void)
{
	static struct snap_vcpu vcpu;
	struct vm_config cfg = {.ram_bytes = 128 * MIB,
				.nvcpus = 1,
				.pmem_fd = -1,
				.disk_delta_fd = -1,
				.console_fd = -1};
	struct vm vm;

	vm_init(&vm, &cfg);
	CHECK_EQ(vm_ram_map_anon(&vm), 0);
	CHECK_EQ(vm_create(&vm), 0);
	CHECK_EQ(vm_create_vcpus(&vm), 0);
	vcpu = shared->vcpu;
	vcpu.nmsrs = SNAP_MSRS_MAX + 1;
	CHECK_EQ(vcpu_load(&vm.vcpus[0], &vcpu), -EINVAL);
	vcpu = shared->vcpu;
	vcpu.xsave_bytes = 0;
	CHECK_EQ(vcpu_load(&vm.vcpus[0], &vcpu), -ENOTSUP);
	vcpu = shared->vcpu;
	vcpu.msrs[vcpu.nmsrs - 1].index = 0xdeadbeef; /* a short KVM_SET_MSRS is an error */
	CHECK_EQ(vcpu_load(&vm.vcpus[0], &vcpu), -EIO);
	vcpu = shared->vcpu;
	for (u32 i = 0; i < vcpu.nmsrs; i++) {
		if (vcpu.msrs[i].index == 0x10)
			vcpu.msrs[i].index = 0x1a0;
	}
	CHECK_EQ(vcpu_load(&vm.vcpus[0], &vcpu), -EINVAL); /* no TSC */
	vm_destroy(&vm);
}

static void test_ends(void)
{
	run_vm(reset_code, sizeof(reset_code), 1, false, NULL);
	CHECK_EQ(shared->stop, VM_STOP_RESET);
	run_vm(fault_code, sizeof(fault_code), 2, false, NULL);
	CHECK_EQ(shared->stop, VM_STOP_RESET);
}

/* Run what is ready. Return: how many handlers were. */
static int run_ready(struct vm *vm)
{
	struct epoll_event events[4];
	int n = epoll_wait(vm->ev.epoll_fd, events, 4, 0);

	for (int i = 0; i < n; i++) {
		struct ev_handler *handler = events[i].data.ptr;

		handler->fn(handler, events[i].events);
	}
	return n;
}

/* A client of the vsock listener for whom no file is left waits, and the loop does not spin. */
static void test_listener_out_of_files(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	socklen_t addr_bytes = sizeof(sa_family_t);
	struct vm_config cfg = {.ctl_fd = -1};
	struct rlimit limit, none;
	int client, next;
	struct vm vm;

	cfg.vsock_listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* An address of the kernel's choice. */
	CHECK_EQ(bind(cfg.vsock_listen_fd, (struct sockaddr *)&addr, addr_bytes), 0);
	CHECK_EQ(listen(cfg.vsock_listen_fd, 4), 0);
	addr_bytes = sizeof(addr);
	CHECK_EQ(getsockname(cfg.vsock_listen_fd, (struct sockaddr *)&addr, &addr_bytes), 0);
	client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	vm_init(&vm, &cfg);
	CHECK_EQ(ev_init(&vm.ev), 0);
	CHECK_EQ(vm_ctl_attach(&vm), 0);
	CHECK_EQ(connect(client, (struct sockaddr *)&addr, addr_bytes), 0);

	next = dup(client);
	close(next);
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = limit;
	none.rlim_cur = (rlim_t)next;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	CHECK_EQ(run_ready(&vm), 1);
	CHECK_EQ(run_ready(&vm), 0);
	vm_listen_again(&vm);
	CHECK_EQ(run_ready(&vm), 1);
	CHECK_EQ(run_ready(&vm), 0);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
	vm_listen_again(&vm);
	CHECK_EQ(run_ready(&vm), 1);
	CHECK_EQ(write(client, "nonsense\n", 9), 9);
	CHECK_EQ(run_ready(&vm), 1);
	CHECK_EQ(read(client, &next, 1), 0);
	close(client);
	vm_destroy(&vm);
	close(cfg.vsock_listen_fd);
}

static void test_signal_stops(void)
{
	int status, go[2];
	char byte;
	pid_t pid;

	/* The guest spins for ever; the child tells on a pipe that its vCPU is about to run. */
	CHECK_EQ(pipe(go), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		running_fd = go[1];
		run_child(spin_code, sizeof(spin_code), 2, false, NULL);
	}
	close(go[1]);
	CHECK_EQ(read(go[0], &byte, 1), 1);
	CHECK_EQ(kill(pid, SIGTERM), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(shared->stop, VM_STOP_REQUESTED);
	close(go[0]);
}

static void on_alarm(int number)
{
	(void)number;
}

/** KVM_CREATE_VM gives up when anything is pending; a start must not. */
static void test_set_up_under_signals(void)
{
	const struct sigaction action = {.sa_handler = on_alarm};
	const struct itimerval often = {.it_interval.tv_usec = 60, .it_value.tv_usec = 60};
	const struct itimerval never = {0};
	struct vm_config cfg = {.ram_bytes = 128 * MIB,
				.nvcpus = 1,
				.pmem_fd = -1,
				.disk_base_fd = -1,
				.disk_delta_fd = -1,
				.console_fd = -1,
				.ctl_fd = -1,
				.vsock_listen_fd = -1};

	CHECK_EQ(sigaction(SIGALRM, &action, NULL), 0);
	for (int i = 0; i < 100; i++) {
		struct vm vm;
		int ret;

		vm_init(&vm, &cfg);
		CHECK_EQ(vm_ram_map_anon(&vm), 0);
		CHECK_EQ(setitimer(ITIMER_REAL, &often, NULL), 0);
		ret = vm_create(&vm);
		CHECK_EQ(setitimer(ITIMER_REAL, &never, NULL), 0);
		CHECK_EQ(ret, 0);
		vm_destroy(&vm);
	}
}

TEST_MAIN({"set-up", test_set_up}, {"set-up under signals", test_set_up_under_signals},
	  {"checkpoint goes on", test_checkpoint_goes_on}, {"doorbell storm", test_doorbell_storm},
	  {"checkpoint fails", test_checkpoint_fails}, {"clone", test_clone},
	  {"hostile state", test_hostile_state}, {"ends", test_ends},
	  {"listener out of files", test_listener_out_of_files},
	  {"a signal stops", test_signal_stops})
