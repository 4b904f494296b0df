// SPDX-License-Identifier: Apache-2.0
// Owners that come and go, and snapshots they ask for, with a guest of a few instructions on any
// /dev/kvm and under the system call filters. What is written is tests/vm/test_fork.py's matter.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/kvm/vm.h"
#include "vmm/seccomp.h"
#include "vmm/util/usock.h"
#include "vmm/util/util.h"

#define CODE_GPA   0x1000ull
#define RESULT_GPA 0x2000ull
#define WAIT_MS	   30000
#define QUIET_MS   200

/* 32-bit flat protected mode, no paging: the checkpoint call, for ever. */
static const u8 code[] = {
	0xc7, 0x05, 0x08, 0x00, 0x00, 0xd0,
	0x01, 0x00, 0x00, 0x00,		    /* mov [0xd0000008], CHECKPOINT */
	0xa1, 0x0c, 0x00, 0x00, 0xd0,	    /* mov eax, [0xd000000c] */
	0xa3, 0x00, 0x20, 0x00, 0x00,	    /* mov [0x2000], eax */
	0xff, 0x05, 0x04, 0x20, 0x00, 0x00, /* inc dword [0x2004] */
	0xeb, 0xe4,			    /* jmp to the start */
};

/** What the child tells. */
struct shared {
	enum vm_stop stop;
	bool armed;
	unsigned int requests, cancels, written;
	u32 flags, status, rounds;
	char name[192];
	ino_t folder;
};

static struct shared *shared;
static char dir[] = "/tmp/thaw-owner-XXXXXX";
static char path[64];
static pid_t vm_pid;

static void set_protected_mode(struct vcpu *vcpu)
{
	struct kvm_segment text = {
		.limit = ~0u, .selector = 8, .type = 11, .present = 1, .s = 1, .db = 1, .g = 1};
	struct kvm_segment data = text;
	struct kvm_regs regs = {.rip = CODE_GPA, .rflags = 2, .rsp = 0x8000};
	struct kvm_sregs sregs;

	data.selector = 16;
	data.type = 3;
	CHECK_EQ(ioctl(vcpu->fd, KVM_GET_SREGS, &sregs), 0);
	sregs.cs = text;
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data;
	sregs.cr0 |= 1;
	CHECK_EQ(ioctl(vcpu->fd, KVM_SET_SREGS, &sregs), 0);
	CHECK_EQ(ioctl(vcpu->fd, KVM_SET_REGS, &regs), 0);
}

static int on_checkpoint(struct vm *vm, void *opaque)
{
	CHECK(opaque == shared);
	(void)vm;
	if (!shared->armed)
		return -EOPNOTSUPP;
	shared->armed = false;
	shared->written++;
	return 0;
}

static int on_request(struct vm *vm, void *opaque, const struct ctl_msg *msg, int folder_fd)
{
	struct stat st;

	CHECK(opaque == shared);
	shared->requests++;
	shared->flags = msg->port;
	snprintf(shared->name, sizeof(shared->name), "%s", msg->text);
	CHECK_EQ(fstat(folder_fd, &st), 0);
	shared->folder = st.st_ino;
	fd_close(&folder_fd);
	if (!strcmp(msg->text, "no"))
		return -EBUSY;
	shared->armed = strcmp(msg->text, "later") != 0;
	vm->cfg.checkpoint_exit = msg->port & CTL_SNAPSHOT_EXIT;
	return 0;
}

static void on_cancel(struct vm *vm, void *opaque)
{
	CHECK(opaque == shared);
	(void)vm;
	shared->cancels++;
}

static void run_child(int ctl)
{
	struct vm_config cfg = {
		.ram_bytes = 128 * MIB,
		.nvcpus = 2,
		.pmem_fd = -1,
		.disk_base_fd = -1,
		.disk_delta_fd = -1,
		.console_fd = -1,
		.ctl_fd = ctl,
		.ctl_listen_fd = usock_listen(path, SOCK_SEQPACKET, 8, 0600),
		.vsock_listen_fd = -1,
		.checkpoint = on_checkpoint,
		.checkpoint_opaque = shared,
		.snapshot_request = on_request,
		.snapshot_cancel = on_cancel,
		.sandbox = true,
		.sandbox_options = SECCOMP_OWNERS | SECCOMP_SNAPSHOT,
	};
	static struct vm vm;

#ifdef THAW_SANITIZER
	cfg.sandbox_options |= SECCOMP_SANITIZER;
#endif
	CHECK(cfg.ctl_listen_fd > 0);
	vm_init(&vm, &cfg);
	CHECK_EQ(vm_ram_map_anon(&vm), 0);
	CHECK_EQ(vm_create(&vm), 0);
	CHECK_EQ(vm_create_vcpus(&vm), 0);
	CHECK_EQ(vm_create_devices(&vm), 0);
	CHECK_EQ(gmem_write(&vm.gmem, CODE_GPA, code, sizeof(code)), 0);
	set_protected_mode(&vm.vcpus[0]);
	vm.generation = 4711;
	vm.clocks.start_ns = clock_now_ns();
	CHECK_EQ(vm_run(&vm), 0);
	shared->stop = vm.stop;
	CHECK_EQ(gmem_read(&vm.gmem, RESULT_GPA, &shared->status, 4), 0);
	CHECK_EQ(gmem_read(&vm.gmem, RESULT_GPA + 4, &shared->rounds, 4), 0);
	_exit(0);
}

/** The next message of an owner's, or type 0 at the channel's end. */
static struct ctl_msg receive(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	struct ctl_msg msg = {0};
	int passed, ret;

	CHECK_EQ(poll(&pfd, 1, WAIT_MS), 1);
	ret = ctl_recv(fd, &msg, &passed);
	CHECK(ret >= 0 && passed == -1);
	return ret ? msg : (struct ctl_msg){0};
}

static bool quiet(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};

	return poll(&pfd, 1, QUIET_MS) == 0;
}

/** Return: the first owner's end. */
static int start_vm(void)
{
	int pair[2];

	memset(shared, 0, sizeof(*shared));
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
	vm_pid = fork();
	CHECK(vm_pid >= 0);
	if (!vm_pid) {
		close(pair[0]);
		alarm(60);
		run_child(pair[1]);
	}
	close(pair[1]);
	CHECK_EQ(receive(pair[0]).type, CTL_RUNNING);
	return pair[0];
}

static int connect_owner(void)
{
	int fd = usock_connect(path, SOCK_SEQPACKET);

	CHECK(fd >= 0);
	return fd;
}

static void check_owned(int fd)
{
	struct ctl_msg msg = receive(fd);

	CHECK_EQ(msg.type, CTL_OWNED);
	CHECK_EQ(msg.generation, 4711);
	CHECK_EQ(msg.port, 0);
	CHECK(msg.clocks.run_ns);
}

static void send_message(int fd, enum ctl_type type, u32 port, const char *text, int passed)
{
	struct ctl_msg msg = {.version = CTL_VERSION, .type = type, .port = port};

	snprintf(msg.text, sizeof(msg.text), "%s", text);
	CHECK_EQ(ctl_send(fd, &msg, passed), 0);
}

static void end_vm(int *fd)
{
	int status;

	send_message(*fd, CTL_STOP, 0, "", -1);
	CHECK_EQ(receive(*fd).type, CTL_EXIT);
	CHECK_EQ(waitpid(vm_pid, &status, 0), vm_pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(shared->stop, VM_STOP_REQUESTED);
	fd_close(fd);
	CHECK_EQ(unlink(path), 0);
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
	CHECK(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/ctl", dir);
}

static void test_one_after_the_other(void)
{
	int first = start_vm(), second, third;

	second = connect_owner();
	third = connect_owner();
	CHECK(quiet(second));
	fd_close(&first);
	check_owned(second);
	CHECK(quiet(third));
	/* Nonsense: whoever says that is no owner any more; the VM and the next one are not hurt.
	 */
	CHECK_EQ(send(second, "nonsense", 8, 0), 8);
	CHECK_EQ(receive(second).type, 0);
	fd_close(&second);
	check_owned(third);
	CHECK_EQ(shared->cancels, 2);
	end_vm(&third);
	CHECK(shared->rounds > 0);
	/* A guest that asks unasked is refused, and its owner hears nothing of it. */
	CHECK_EQ(shared->status, EOPNOTSUPP);
}

static void test_snapshot_on_request(void)
{
	int owner = start_vm(), folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct ctl_msg msg;
	struct stat st;

	CHECK(folder >= 0 && fstat(folder, &st) == 0);
	for (unsigned int i = 1; i <= 3; i++) {
		send_message(owner, CTL_SNAPSHOT_REQ, 0, "one", folder);
		msg = receive(owner);
		CHECK_EQ(msg.type, CTL_ARMED);
		CHECK_EQ(msg.error, 0);
		msg = receive(owner);
		CHECK_EQ(msg.type, CTL_SNAPSHOT);
		CHECK_EQ(msg.error, 0);
		CHECK_EQ(shared->requests, i);
		CHECK_EQ(shared->written, i);
		CHECK_STR(shared->name, "one");
		CHECK_EQ(shared->folder, st.st_ino);
	}
	send_message(owner, CTL_SNAPSHOT_REQ, 0, "no", folder);
	msg = receive(owner);
	CHECK_EQ(msg.type, CTL_ARMED);
	CHECK_EQ(msg.error, -EBUSY);
	send_message(owner, CTL_SNAPSHOT_REQ, 0, "no folder", -1);
	msg = receive(owner);
	CHECK_EQ(msg.type, CTL_ARMED);
	CHECK_EQ(msg.error, -EBADF);
	CHECK(quiet(owner));
	/* What was asked for goes with who asked. */
	send_message(owner, CTL_SNAPSHOT_REQ, 0, "later", folder);
	CHECK_EQ(receive(owner).type, CTL_ARMED);
	fd_close(&owner);
	owner = connect_owner();
	check_owned(owner);
	CHECK_EQ(shared->cancels, 1);
	close(folder);
	end_vm(&owner);
	CHECK_EQ(shared->written, 3);
}

static void test_snapshot_at_the_end(void)
{
	int owner = start_vm(), folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), status;
	struct ctl_msg msg;

	send_message(owner, CTL_SNAPSHOT_REQ, CTL_SNAPSHOT_EXIT, "last", folder);
	CHECK_EQ(receive(owner).type, CTL_ARMED);
	CHECK_EQ(receive(owner).type, CTL_SNAPSHOT);
	msg = receive(owner);
	CHECK_EQ(msg.type, CTL_EXIT);
	CHECK_EQ(msg.reason, CTL_EXIT_SNAPSHOT);
	CHECK_EQ(waitpid(vm_pid, &status, 0), vm_pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(shared->stop, VM_STOP_SNAPSHOT);
	close(folder);
	fd_close(&owner);
	CHECK_EQ(unlink(path), 0);
}

static void test_left(void)
{
	CHECK_EQ(rmdir(dir), 0);
}

TEST_MAIN({"set-up", test_set_up}, {"one after the other", test_one_after_the_other},
	  {"snapshot on request", test_snapshot_on_request},
	  {"snapshot at the end", test_snapshot_at_the_end}, {"nothing left", test_left})
