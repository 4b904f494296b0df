// SPDX-License-Identifier: Apache-2.0
// What nobody in a jail may ask of the kernel, from the moment of its entry.
//
// Between the entry and the guest's first instruction a thaw-vmm reads snapshot files, makes
// threads, rings and a VM; that is too much for a short list of what is allowed. But all ways to
// another program, another namespace, another process, the network, and the parts of the kernel
// that most attacks on it begin with are none of its business.
#include "vmm/jail/filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/util/log.h"

#define X32_BIT 0x40000000u
#define NEW_ANY                                                                        \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | \
	 CLONE_NEWPID | CLONE_NEWNET)

static const int forbidden[] = {
	__NR_execve,
	__NR_execveat,
/* other processes */
#ifndef THAW_SANITIZER
	__NR_ptrace,
	__NR_process_vm_readv,
#endif
	__NR_process_vm_writev,
	__NR_kcmp,
	__NR_pidfd_getfd,
	/* namespaces, mounts */
	__NR_unshare,
	__NR_setns,
	__NR_mount,
	__NR_umount2,
	__NR_pivot_root,
	__NR_chroot,
	__NR_open_tree,
	__NR_move_mount,
	__NR_fsopen,
	__NR_fsconfig,
	__NR_fsmount,
	__NR_fspick,
	__NR_mount_setattr,
	__NR_mknod,
	__NR_mknodat,
	__NR_name_to_handle_at,
	__NR_open_by_handle_at,
	/* parts of the kernel that attacks begin with */
	__NR_bpf,
	__NR_perf_event_open,
	__NR_userfaultfd,
	__NR_keyctl,
	__NR_add_key,
	__NR_request_key,
	__NR_init_module,
	__NR_finit_module,
	__NR_delete_module,
	__NR_kexec_load,
	__NR_kexec_file_load,
	__NR_personality,
	__NR_modify_ldt,
	__NR_iopl,
	__NR_ioperm,
	__NR_quotactl,
	__NR_acct,
	__NR_swapon,
	__NR_swapoff,
	__NR_reboot,
	__NR_syslog,
	__NR_vhangup,
	/* the host's time and names */
	__NR_settimeofday,
	__NR_clock_settime,
	__NR_adjtimex,
	__NR_clock_adjtime,
	__NR_sethostname,
	__NR_setdomainname,
	/* other users, though no capability is left */
	__NR_setuid,
	__NR_setreuid,
	__NR_setresuid,
	__NR_setgid,
	__NR_setregid,
	__NR_setresgid,
	__NR_setgroups,
};

#define PROGRAM_MAX (24 + 2 * ARRAY_SIZE(forbidden))

struct program {
	struct sock_filter code[PROGRAM_MAX];
	unsigned short len;
};

static void emit(struct program *program, u16 code, u32 k, u8 jt, u8 jf)
{
	BUG_ON(program->len == PROGRAM_MAX);
	program->code[program->len++] =
		(struct sock_filter){.code = code, .k = k, .jt = jt, .jf = jf};
}

static void load(struct program *program, size_t offset)
{
	emit(program, BPF_LD | BPF_W | BPF_ABS, (u32)offset, 0, 0);
}

static void build(struct program *program)
{
	const u32 kill = SECCOMP_RET_KILL_PROCESS, number = offsetof(struct seccomp_data, nr);

	load(program, offsetof(struct seccomp_data, arch));
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
	emit(program, BPF_RET | BPF_K, kill, 0, 0);
	load(program, number);
	emit(program, BPF_JMP | BPF_JSET | BPF_K, X32_BIT, 0, 1);
	emit(program, BPF_RET | BPF_K, kill, 0, 0);
	for (size_t i = 0; i < ARRAY_SIZE(forbidden); i++) {
		emit(program, BPF_JMP | BPF_JEQ | BPF_K, (u32)forbidden[i], 0, 1);
		emit(program, BPF_RET | BPF_K, kill, 0, 0);
	}
	/* Its arguments are in memory, where a filter can't look: libc falls back to clone(2). */
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 0, 1);
	emit(program, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS, 0, 0);
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 3);
	load(program, offsetof(struct seccomp_data, args));
	emit(program, BPF_JMP | BPF_JSET | BPF_K, NEW_ANY, 0, 5);
	emit(program, BPF_RET | BPF_K, kill, 0, 0);
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, __NR_socket, 0, 3);
	load(program, offsetof(struct seccomp_data, args));
	emit(program, BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0);
	emit(program, BPF_RET | BPF_K, kill, 0, 0);
	emit(program, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

int jail_filter_apply(void)
{
	struct program program = {.len = 0};
	struct sock_fprog fprog = {.filter = program.code};
	int ret;

	build(&program);
	fprog.len = program.len;
	if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &fprog) == 0)
		return 0;
	ret = -errno;
	log_err("jail: system call filter: %s", strerror(-ret));
	return ret;
}
