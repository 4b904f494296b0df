// SPDX-License-Identifier: Apache-2.0
// System call filters of thaw-vmm.
//
// One table says what each thread may do, and why. It is turned into a classic BPF program: check
// the architecture, then compare the number with each entry in turn (the frequent ones stand
// first), then kill the process. Where one number stands for many operations (ioctl) or for a
// dangerous one among harmless (mmap with PROT_EXEC), an argument is looked at too; only its low
// half, which is all that the kernel looks at for these.
//
// vCPU threads run device code as well: a status write of the guest resets a device, which closes
// sockets and waits for disk requests. So their list is the loop's without what only the loop does.
//
// No thread may make an io_uring: operations of a ring are not seen by a filter, so that a ring
// that was not restricted before would undo all of this.
//
// A filter can't be taken back and is kept across fork and exec, of which neither is allowed.
#include "vmm/seccomp.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/util/log.h"

enum seccomp_who {
	LOOP = 1u << 0,	 /* the event loop */
	VCPU = 1u << 1,	 /* a vCPU thread */
	SNAP = 1u << 2,	 /* the event loop, if it may write a snapshot */
	PATHS = 1u << 3, /* both, if guest streams go to paths */
	SANITIZER = 1u << 4,
	PAGER = 1u << 6,    /* a page fault server */
	WATCHER = 1u << 7,  /* the thread that watches the page fault servers */
	WAIT = 1u << 5,	    /* the event loop, if the VM waits for its start */
	LISTEN = 1u << 8,   /* the event loop, if it has a listener */
	OWNERS = 1u << 9,   /* the event loop, if its owners may ask for snapshots */
	PUBLISH = 1u << 10, /* the event loop, if it gives its snapshots their place */
	BOTH = LOOP | VCPU,
	EACH = BOTH | PAGER | WATCHER,
};

enum seccomp_check {
	CHECK_NONE = 0,
	CHECK_IOCTL,   /* argument 1 is one of seccomp_ioctls */
	CHECK_NO_EXEC, /* argument 2 has no PROT_EXEC */
	CHECK_SELF,    /* argument 0 is this process */
	CHECK_UNIX,    /* argument 0 is AF_UNIX */
};

static const struct seccomp_rule {
	int nr;
	unsigned int who;
	enum seccomp_check check;
} seccomp_rules[] = {
	{__NR_ioctl, BOTH | PAGER, CHECK_IOCTL}, /* KVM; userfaultfd */
	{__NR_epoll_wait, LOOP, 0},		 /* the event loop waits */
	{__NR_futex, BOTH | WATCHER, 0},	 /* dev_lock, the rendezvous, thread ends */
	{__NR_read, BOTH | PAGER, 0}, /* eventfds, signalfd, vsock sockets, userfaultfd */
	{__NR_write, BOTH | PAGER | WATCHER, 0}, /* eventfds, console, vsock sockets, log */
	{__NR_writev, BOTH, 0},			 /* last words of libc before an abort() */
	{__NR_sendmsg, BOTH | WATCHER, 0},	 /* vsock sockets, control channel */
	{__NR_recvmsg, BOTH, 0},		 /* vsock sockets, control channel */
	{__NR_sendto, BOTH | PAGER | WATCHER,
	 0},				  /* vsock sockets: send(); server to VMM and back */
	{__NR_recvfrom, BOTH | PAGER, 0}, /* vsock listener's clients: recv(); a server's task */
	{__NR_epoll_ctl, BOTH, 0},	  /* watch and forget sockets */
	{__NR_io_uring_enter, BOTH | PAGER, 0}, /* disk, memory file; the ring is restricted */
	{__NR_preadv, BOTH | PAGER, 0},		/* disk, memory file without io_uring */
	{__NR_pwritev, BOTH, 0},		/* disk requests without io_uring */
	{__NR_pread64, BOTH, 0},		/* disk requests without io_uring */
	{__NR_pwrite64, BOTH, 0},		/* disk requests without io_uring */
	{__NR_fdatasync, BOTH, 0},		/* disk flush without io_uring */
	{__NR_fallocate, BOTH, 0},		/* disk discard without io_uring */
	{__NR_close, BOTH | WATCHER, 0},	/* streams that end; a dead server's pidfd */
	{__NR_timerfd_settime, LOOP, 0},	/* the hard time-out, moved */
	{__NR_shutdown, BOTH, 0},		/* half-closed streams */
	{__NR_getsockopt, BOTH, 0},		/* is what the owner passed a socket? */
	{__NR_accept4, LOOP, 0},		/* vsock listener */
	{__NR_socketpair, BOTH, CHECK_UNIX},	/* guest-initiated streams for the owner */
	{__NR_socket, PATHS, CHECK_UNIX},	/* guest-initiated streams to a path */
	{__NR_connect, PATHS, 0},		/* guest-initiated streams to a path */
	{__NR_unlink, LISTEN, 0},		/* the listener's own path, at the end */
	{__NR_poll, BOTH | PAGER | WATCHER,
	 0}, /* can the console take more? a server, its watcher */
	{__NR_ppoll, BOTH | PAGER | WATCHER, 0}, /* the same, by another name in libc */
	{__NR_clock_nanosleep, BOTH | PAGER, 0}, /* while the kernel is out of memory */
	{__NR_getrandom, BOTH, 0},		 /* virtio-rng; heap checks of libc */
	{__NR_clock_gettime, BOTH | PAGER, 0},	 /* where the vDSO has no fast clock */
	{__NR_gettimeofday, BOTH, 0},		 /* the same */
	{__NR_brk, BOTH, 0},			 /* heap */
	{__NR_mmap, BOTH, CHECK_NO_EXEC},	 /* heap, stream buffers */
	{__NR_mprotect, BOTH, CHECK_NO_EXEC},	 /* heap, thread stacks */
	{__NR_munmap, BOTH | WATCHER, 0},	 /* heap, stream buffers; a thread's end */
	{__NR_mremap, BOTH, 0},			 /* realloc of large blocks */
	{__NR_madvise, BOTH | WATCHER, 0},	 /* stack of a thread that ends; heap trim */
	{__NR_tgkill, EACH, CHECK_SELF},	 /* kick a vCPU; abort() */
	{__NR_getpid, EACH, 0},			 /* abort(), pthread_kill() */
	{__NR_gettid, EACH, 0},			 /* abort(), pthread_kill() */
	{__NR_rt_sigprocmask, EACH, 0},		 /* pthread_kill(), thread ends */
	{__NR_rt_sigaction, EACH, 0},		 /* abort() */
	{__NR_rt_sigreturn, BOTH, 0},		 /* return from the kick's handler */
	{__NR_restart_syscall, EACH, 0},	 /* after a stop and continue */
	{__NR_rseq, VCPU | WATCHER, 0},		 /* thread end in some libcs */
	{__NR_exit, BOTH | WATCHER, 0},		 /* end of a thread */
	{__NR_exit_group, EACH, 0},		 /* end of the process */

	{__NR_waitid, WATCHER, 0},   /* how a server ended */
	{__NR_lseek, PAGER, 0},	     /* SEEK_DATA and SEEK_HOLE */
	{__NR_newfstatat, PAGER, 0}, /* did the memory file shrink? */
	{__NR_fstat, PAGER, 0},	     /* the same */

	{__NR_openat, SNAP, 0},	      /* the snapshot's files, if not open yet */
	{__NR_newfstatat, SNAP, 0},   /* sizes */
	{__NR_fstat, SNAP, 0},	      /* sizes */
	{__NR_lseek, SNAP, 0},	      /* SEEK_DATA and SEEK_HOLE */
	{__NR_ftruncate, SNAP, 0},    /* sparse files */
	{__NR_fsync, SNAP, 0},	      /* files and folders */
	{__NR_fchmod, SNAP, 0},	      /* published files are read-only */
	{__NR_renameat2, PUBLISH, 0}, /* publish */
	{__NR_unlinkat, SNAP, 0},     /* what was replaced, or failed */
	{__NR_mkdirat, OWNERS, 0},    /* the snapshot's folder, made when it is asked for */
	{__NR_flock, OWNERS, 0},      /* held while it is written */

	/* Shadow memory, symbolizer, leak check at exit. */
	{__NR_openat, SANITIZER, 0},
	{__NR_readlink, SANITIZER, 0},
	{__NR_newfstatat, SANITIZER, 0},
	{__NR_fstat, SANITIZER, 0},
	{__NR_lseek, SANITIZER, 0},
	{__NR_sigaltstack, SANITIZER, 0},
	{__NR_sched_yield, SANITIZER, 0},
	{__NR_sched_getaffinity, SANITIZER, 0},
	{__NR_prctl, SANITIZER, 0},
	{__NR_prlimit64, SANITIZER, 0},
	{__NR_getdents64, SANITIZER, 0},
	{__NR_clone, SANITIZER, 0},
	{__NR_wait4, SANITIZER, 0},
	{__NR_ptrace, SANITIZER, 0},
	{__NR_getppid, SANITIZER, 0},
	{__NR_pipe2, SANITIZER, 0},
	{__NR_process_vm_readv, SANITIZER, 0},
	{__NR_set_robust_list, SANITIZER, 0},
	/* Of threads that have no heap otherwise. */
	{__NR_mmap, SANITIZER, CHECK_NO_EXEC},
	{__NR_mprotect, SANITIZER, CHECK_NO_EXEC},
};

static const struct {
	u32 op;
	unsigned int who;
} seccomp_ioctls[] = {
	{KVM_RUN, VCPU},
	{KVM_SIGNAL_MSI, BOTH}, /* interrupts */
	{UFFDIO_COPY, PAGER},
	{UFFDIO_ZEROPAGE, PAGER},
	{UFFDIO_WAKE, PAGER},
	{KVM_GET_REGS, BOTH},	   /* where a vCPU failed; snapshot */
	{KVM_KVMCLOCK_CTRL, LOOP}, /* after a pause */
	{KVM_SET_CLOCK, WAIT},	   /* the clocks go on from the snapshot, not from the set-up */
	{KVM_GET_MSRS, WAIT},
	{KVM_SET_MSRS, WAIT},
	{KVM_GET_DEVICE_ATTR, WAIT},
	{KVM_SET_DEVICE_ATTR, WAIT},
	{KVM_CHECK_EXTENSION, SNAP}, /* size of the XSAVE area */
	{KVM_GET_MP_STATE, SNAP},
	{KVM_GET_SREGS, SNAP},
	{KVM_GET_XCRS, SNAP},
	{KVM_GET_XSAVE, SNAP},
	{KVM_GET_XSAVE2, SNAP},
	{KVM_GET_DEBUGREGS, SNAP},
	{KVM_GET_MSR_INDEX_LIST, SNAP},
	{KVM_GET_MSRS, SNAP},
	{KVM_GET_LAPIC, SNAP},
	{KVM_GET_VCPU_EVENTS, SNAP},
	{KVM_GET_CLOCK, SNAP},
	{KVM_GET_TSC_KHZ, SNAP},
};

/* Five for the architecture and the end, at most five an entry, two an ioctl. */
#define SECCOMP_PROGRAM_MAX (8 + 5 * ARRAY_SIZE(seccomp_rules) + 2 * ARRAY_SIZE(seccomp_ioctls))

struct seccomp_program {
	struct sock_filter code[SECCOMP_PROGRAM_MAX];
	unsigned short len;
};

static void seccomp_emit(struct seccomp_program *program, u16 code, u32 k, u8 jt, u8 jf)
{
	BUG_ON(program->len == SECCOMP_PROGRAM_MAX);
	program->code[program->len++] =
		(struct sock_filter){.code = code, .k = k, .jt = jt, .jf = jf};
}

static void seccomp_return(struct seccomp_program *program, u32 action)
{
	seccomp_emit(program, BPF_RET | BPF_K, action, 0, 0);
}

static void seccomp_load(struct seccomp_program *program, size_t offset)
{
	seccomp_emit(program, BPF_LD | BPF_W | BPF_ABS, (u32)offset, 0, 0);
}

/** Low half of argument @index, on a little-endian machine. */
static void seccomp_load_arg(struct seccomp_program *program, unsigned int index)
{
	seccomp_load(program, offsetof(struct seccomp_data, args) + index * sizeof(u64));
}

/** Ends the program for this system call: allowed if the argument passes, killed if not. Return:
 * how many instructions. */
static unsigned int seccomp_emit_check(struct seccomp_program *program, enum seccomp_check check,
				       unsigned int who)
{
	unsigned short start = program->len;

	switch (check) {
	case CHECK_NONE:
		seccomp_return(program, SECCOMP_RET_ALLOW);
		return 1;
	case CHECK_IOCTL:
		seccomp_load_arg(program, 1);
		for (size_t i = 0; i < ARRAY_SIZE(seccomp_ioctls); i++) {
			if (!(seccomp_ioctls[i].who & who))
				continue;
			seccomp_emit(program, BPF_JMP | BPF_JEQ | BPF_K, seccomp_ioctls[i].op, 0,
				     1);
			seccomp_return(program, SECCOMP_RET_ALLOW);
		}
		break;
	case CHECK_NO_EXEC:
		seccomp_load_arg(program, 2);
		seccomp_emit(program, BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0);
		seccomp_return(program, SECCOMP_RET_ALLOW);
		break;
	case CHECK_SELF:
		seccomp_load_arg(program, 0);
		seccomp_emit(program, BPF_JMP | BPF_JEQ | BPF_K, (u32)getpid(), 0, 1);
		seccomp_return(program, SECCOMP_RET_ALLOW);
		break;
	case CHECK_UNIX:
		seccomp_load_arg(program, 0);
		seccomp_emit(program, BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 0, 1);
		seccomp_return(program, SECCOMP_RET_ALLOW);
		break;
	default:
		BUG_ON(true);
	}
	seccomp_return(program, SECCOMP_RET_KILL_PROCESS);
	return program->len - start;
}

static void seccomp_build(struct seccomp_program *program, unsigned int who)
{
	program->len = 0;
	seccomp_load(program, offsetof(struct seccomp_data, arch));
	seccomp_emit(program, BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
	seccomp_return(program, SECCOMP_RET_KILL_PROCESS);
	seccomp_load(program, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < ARRAY_SIZE(seccomp_rules); i++) {
		unsigned short jump = program->len;
		unsigned int skip;

		if (!(seccomp_rules[i].who & who))
			continue;
		seccomp_emit(program, BPF_JMP | BPF_JEQ | BPF_K, (u32)seccomp_rules[i].nr, 0, 0);
		skip = seccomp_emit_check(program, seccomp_rules[i].check, who);
		BUG_ON(skip > UINT8_MAX);
		program->code[jump].jf = (u8)skip;
	}
	/* x32 calls have a bit set that no entry has: they end here as well. */
	seccomp_return(program, SECCOMP_RET_KILL_PROCESS);
}

static int seccomp_apply(unsigned int who)
{
	struct seccomp_program program;
	struct sock_fprog fprog = {.filter = program.code};
	int ret;

	seccomp_build(&program, who);
	fprog.len = program.len;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &fprog) < 0) {
		ret = -errno;
		log_err("system call filter: %s", strerror(-ret));
		return ret;
	}
	return 0;
}

int seccomp_apply_main(unsigned int options)
{
	u32 who = LOOP | (options & SECCOMP_SNAPSHOT ? SNAP | PUBLISH : 0) |
		  (options & SECCOMP_WAIT ? WAIT : 0) |
		  (options & SECCOMP_VSOCK_PATH ? PATHS | LISTEN : 0) |
		  (options & SECCOMP_OWNERS ? OWNERS | LISTEN : 0) |
		  (options & SECCOMP_SANITIZER ? SANITIZER : 0);

	/* There is no path, and whoever asks for a snapshot has made its folder. */
	if (options & SECCOMP_JAIL)
		who &= ~(u32)(PUBLISH | PATHS | LISTEN | OWNERS);
	return seccomp_apply(who);
}

int seccomp_apply_vcpu(unsigned int options)
{
	const bool paths = (options & SECCOMP_VSOCK_PATH) && !(options & SECCOMP_JAIL);

	return seccomp_apply(VCPU | (paths ? PATHS : 0) |
			     (options & SECCOMP_SANITIZER ? SANITIZER : 0));
}

int seccomp_apply_pager(unsigned int options)
{
	return seccomp_apply(PAGER | (options & SECCOMP_SANITIZER ? SANITIZER : 0));
}

int seccomp_apply_watcher(unsigned int options)
{
	return seccomp_apply(WATCHER | (options & SECCOMP_SANITIZER ? SANITIZER : 0));
}
