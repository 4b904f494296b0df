// SPDX-License-Identifier: Apache-2.0
// System call filters: each case is a child that applies one and makes one call.
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/seccomp.h"

#ifdef THAW_SANITIZER
#define BASE SECCOMP_SANITIZER
#else
#define BASE 0
#endif

static void do_getrandom(void)
{
	char byte;

	(void)!getrandom(&byte, 1, 0);
}

static void do_heap(void)
{
	void *volatile p = malloc(1 << 20);

	free(p);
}

static void do_socket(void)
{
	socket(AF_UNIX, SOCK_STREAM, 0);
}

static void do_inet_socket(void)
{
	socket(AF_INET, SOCK_STREAM, 0);
}

static void do_mmap_exec(void)
{
	(void)!mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void do_mprotect_exec(void)
{
	static char page[8192];

	mprotect((void *)(((unsigned long)page + 4095) & ~4095ul), 4096, PROT_READ | PROT_EXEC);
}

static void do_execve(void)
{
	syscall(SYS_execve, "/bin/true", NULL, NULL);
}

static void do_fork(void)
{
	syscall(SYS_fork);
}

static void do_kill_other(void)
{
	syscall(SYS_tgkill, 1, 1, 0);
}

static void do_kill_self(void)
{
	syscall(SYS_tgkill, getpid(), getpid(), 0);
}

static void do_tty_ioctl(void)
{
	int size[2];

	ioctl(0, 0x5413 /* TIOCGWINSZ */, size);
}

static void do_kvm_run(void)
{
	ioctl(-1, KVM_RUN, 0);
}

static void do_kvm_create_vm(void)
{
	ioctl(-1, KVM_CREATE_VM, 0);
}

static void do_kvm_get_lapic(void)
{
	ioctl(-1, KVM_GET_LAPIC, 0);
}

static void do_kvm_set_clock(void)
{
	ioctl(-1, KVM_SET_CLOCK, 0);
}

static void do_epoll(void)
{
	struct epoll_event event;

	epoll_wait(-1, &event, 1, 0);
}

static void do_mkdirat(void)
{
	(void)syscall(__NR_mkdirat, -1, "x", 0700);
	(void)syscall(__NR_flock, -1, LOCK_EX);
}

static void do_renameat(void)
{
	syscall(SYS_renameat2, -1, "a", -1, "b", 0);
}

static void do_unlink(void)
{
	syscall(SYS_unlink, "");
}

static void do_io_uring_setup(void)
{
	syscall(SYS_io_uring_setup, 1, NULL);
}

static void do_io_uring_register(void)
{
	syscall(SYS_io_uring_register, -1, 0, NULL, 0);
}

static void do_ptrace(void)
{
	syscall(SYS_process_vm_writev, 0, NULL, 0, NULL, 0, 0);
}

static void do_x32(void)
{
	syscall(0x40000000 | SYS_getpid);
}

static void do_int80(void)
{
	long ret;

	/* i386's getpid by the old gate: another architecture's numbers. */
	__asm__ volatile("int $0x80" : "=a"(ret) : "a"(20) : "memory");
}

static void do_uffd_wake(void)
{
	ioctl(-1, UFFDIO_WAKE, 0);
}

static void do_lseek(void)
{
	lseek(-1, 0, SEEK_DATA);
}

static void do_waitid(void)
{
	waitid(P_PID, 1, NULL, WEXITED | WNOHANG);
}

#ifndef THAW_SANITIZER /* with one, every thread may open files */
static void do_openat(void)
{
	syscall(SYS_openat, -1, "a", O_RDONLY);
}
#endif

enum thread_kind {
	MAIN,
	VCPU,
	PAGER,
	WATCHER,
	KINDS,
};

static int (*const apply[KINDS])(unsigned int) = {seccomp_apply_main, seccomp_apply_vcpu,
						  seccomp_apply_pager, seccomp_apply_watcher};

/** Return: true if @fn came back, false if it was killed for it. */
static bool survives(enum thread_kind kind, unsigned int options, void (*fn)(void))
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		prctl(PR_SET_DUMPABLE, 0);
		if (apply[kind](options | BASE))
			_exit(2);
		fn();
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status)) {
		CHECK_EQ(WEXITSTATUS(status), 0);
		return true;
	}
	CHECK_EQ(WTERMSIG(status), SIGSYS);
	return false;
}

static void test_allowed(void)
{
	CHECK(survives(MAIN, 0, do_getrandom));
	CHECK(survives(MAIN, 0, do_heap));
	CHECK(survives(VCPU, 0, do_heap));
	CHECK(survives(MAIN, 0, do_kill_self));
	CHECK(survives(MAIN, 0, do_epoll));
	CHECK(survives(VCPU, 0, do_kvm_run));
	CHECK(survives(MAIN, SECCOMP_SNAPSHOT, do_kvm_get_lapic));
	CHECK(survives(MAIN, SECCOMP_SNAPSHOT, do_renameat));
	CHECK(survives(MAIN, SECCOMP_OWNERS, do_mkdirat));
	CHECK(survives(MAIN, SECCOMP_OWNERS, do_unlink));
	CHECK(survives(MAIN, SECCOMP_SNAPSHOT | SECCOMP_JAIL, do_kvm_get_lapic));
	CHECK(survives(MAIN, SECCOMP_WAIT, do_kvm_set_clock));
	CHECK(survives(MAIN, SECCOMP_VSOCK_PATH, do_socket));
	CHECK(survives(VCPU, SECCOMP_VSOCK_PATH, do_socket));
	CHECK(survives(PAGER, 0, do_uffd_wake));
	CHECK(survives(PAGER, 0, do_lseek));
	CHECK(survives(WATCHER, 0, do_waitid));
	CHECK(survives(MAIN, SECCOMP_VSOCK_PATH, do_unlink));
}

static void test_killed(void)
{
	/* In a jail nothing has a path. */
	CHECK(!survives(MAIN, SECCOMP_SNAPSHOT | SECCOMP_JAIL, do_renameat));
	CHECK(!survives(MAIN, SECCOMP_OWNERS | SECCOMP_JAIL, do_mkdirat));
	CHECK(!survives(MAIN, SECCOMP_OWNERS | SECCOMP_JAIL, do_unlink));
	CHECK(!survives(MAIN, SECCOMP_VSOCK_PATH | SECCOMP_JAIL, do_socket));
	CHECK(!survives(VCPU, SECCOMP_VSOCK_PATH | SECCOMP_JAIL, do_socket));
	const unsigned int all = SECCOMP_SNAPSHOT | SECCOMP_VSOCK_PATH;

	CHECK(!survives(MAIN, all, do_execve));
	CHECK(!survives(MAIN, all, do_fork));
	CHECK(!survives(MAIN, all, do_ptrace));
	CHECK(!survives(MAIN, all, do_mmap_exec));
	CHECK(!survives(VCPU, all, do_mprotect_exec));
	CHECK(!survives(MAIN, all, do_tty_ioctl));
	CHECK(!survives(MAIN, all, do_kvm_create_vm));
	CHECK(!survives(MAIN, all, do_x32));
	CHECK(!survives(MAIN, all, do_int80));
	CHECK(!survives(MAIN, all, do_kill_other));
	/* A ring without restrictions would do what the filter forbids. */
	CHECK(!survives(MAIN, all, do_io_uring_setup));
	CHECK(!survives(MAIN, all, do_io_uring_register));
	CHECK(!survives(VCPU, all, do_io_uring_setup));
	/* What only an option brings. */
	CHECK(!survives(MAIN, 0, do_socket));
	CHECK(!survives(MAIN, all, do_inet_socket));
	CHECK(!survives(MAIN, 0, do_renameat));
	CHECK(!survives(MAIN, SECCOMP_VSOCK_PATH, do_kvm_get_lapic));
	CHECK(!survives(MAIN, all, do_kvm_set_clock));
	CHECK(!survives(MAIN, all, do_mkdirat));
	CHECK(!survives(VCPU, SECCOMP_WAIT, do_kvm_set_clock));
	/* What belongs to the other thread. */
	CHECK(!survives(MAIN, all, do_kvm_run));
	CHECK(!survives(VCPU, all, do_epoll));
	CHECK(!survives(VCPU, all, do_renameat));
	CHECK(!survives(MAIN, all, do_uffd_wake));
	CHECK(!survives(WATCHER, 0, do_uffd_wake));
	CHECK(!survives(WATCHER, 0, do_kvm_run));
	CHECK(!survives(PAGER, 0, do_kvm_run));
	CHECK(!survives(PAGER, 0, do_socket));
	CHECK(!survives(PAGER, 0, do_mmap_exec));
#ifndef THAW_SANITIZER
	CHECK(!survives(PAGER, 0, do_openat));
	CHECK(!survives(WATCHER, 0, do_openat));
#endif
	CHECK(!survives(VCPU, all, do_unlink));
}

TEST_MAIN({"allowed", test_allowed}, {"killed", test_killed})
