// SPDX-License-Identifier: Apache-2.0
/*
 * Making a process.
 *
 * clone3 with CLONE_VM: nothing of the shim's memory is copied, not even page tables, which is most
 * of what a fork costs in a clone whose pages are all still shared with the snapshot. Without
 * CLONE_VFORK: chdir and execve may wait for a file system that a command of this very guest serves
 * (FUSE), and PID 1 must not wait with them. So for a moment parent and child run at the same time
 * in one memory, and the child must be modest:
 *
 * - it has a stack of its own, inside its connection (the frame of the caller may be gone before it
 * is done);
 * - it makes system calls by hand: errno and everything else that is thread-local is the parent's;
 * - it writes nowhere but to its stack; what it reads (request, slots) is kept until the status
 * pipe ends;
 * - it has no signal handlers (CLONE_CLEAR_SIGHAND; the shim has none anyway), and its mask is
 * emptied last.
 *
 * It is born in its cgroup (CLONE_INTO_CGROUP), so no descendant can ever be outside.
 *
 * oom_score_adj is not touched: the kernel never picks PID 1, and the children's value is the
 * default because the shim's is.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/shim/exec.h"
#include "guest/shim/shim.h"

#define SPAWN_PATH_BYTES 4096

/* The child's code must not be instrumented: it runs on a stack the sanitizers do not know. */
#define SPAWN_CHILD __attribute__((no_sanitize("address", "undefined", "thread")))

struct spawn_args {
	const struct parse_exec *exec;
	int stdio[3];
	int status_fd;
	int files_fd; /* the program, or -1: argv[0] */
	struct rlimit nofile;
};

/* At the far end of the stack from where it is used from. */
struct spawn_stack {
	char path[SPAWN_PATH_BYTES];
	u8 stack[(CONN_STACK_BYTES - SPAWN_PATH_BYTES - sizeof(struct spawn_args)) & ~15ul];
	struct spawn_args args;
} __attribute__((aligned(16)));

_Static_assert(sizeof(struct spawn_stack) <= CONN_STACK_BYTES, "fits the connection");

/* A system call that leaves errno alone. */
static inline SPAWN_CHILD long raw(long number, long a, long b, long c)
{
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "0"(number), "D"(a), "S"(b), "d"(c)
			 : "rcx", "r11", "memory");
	return ret;
}

static inline SPAWN_CHILD long raw_mask(const u64 *mask)
{
	register long size __asm__("r10") = sizeof(*mask);
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "0"((long)SYS_rt_sigprocmask), "D"((long)SIG_SETMASK), "S"(mask),
			   "d"(0L), "r"(size)
			 : "rcx", "r11", "memory");
	return ret;
}

/* execveat(2) of the fd itself. */
static inline SPAWN_CHILD long raw_execve_fd(int fd, char *const *argv, char *const *envp)
{
	register const char *const *env __asm__("r10") = (const char *const *)envp;
	register long flags __asm__("r8") = AT_EMPTY_PATH;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "0"((long)SYS_execveat), "D"((long)fd), "S"(""), "d"(argv), "r"(env),
			   "r"(flags)
			 : "rcx", "r11", "memory");
	return ret;
}

/* All fds but 0 to 2 and these two; -1: none. */
static SPAWN_CHILD void child_close_others(int one, int two)
{
	int low = one < two ? one : two, high = one < two ? two : one;

	if (low >= 0) {
		raw(SYS_close_range, STDERR_FILENO + 1, low - 1, 0);
		raw(SYS_close_range, low + 1, high - 1, 0);
	} else {
		raw(SYS_close_range, STDERR_FILENO + 1, high - 1, 0);
	}
	raw(SYS_close_range, high + 1, UINT_MAX, 0);
}

static SPAWN_CHILD _Noreturn void child_fail(const struct spawn_args *args, u32 stage, long error)
{
	struct spawn_error report = {.stage = stage, .error = (u32)-error};

	raw(SYS_write, args->status_fd, (long)&report, sizeof(report));
	for (;;)
		raw(SYS_exit_group, 127, 0, 0);
}

/* "dir/name" into @path. Return: false when it does not fit. */
static SPAWN_CHILD bool child_join(char *path, const char *dir, size_t dir_len, const char *name)
{
	size_t at = 0;

	if (dir_len >= SPAWN_PATH_BYTES)
		return false;
	for (size_t i = 0; i < dir_len; i++)
		path[at++] = dir[i];
	if (dir_len)
		path[at++] = '/';
	do {
		if (at >= SPAWN_PATH_BYTES)
			return false;
		path[at++] = *name;
	} while (*name++);
	return true;
}

static SPAWN_CHILD long child_execve(const struct parse_exec *exec, const char *path)
{
	return raw(SYS_execve, (long)path, (long)exec->argv, (long)exec->envp);
}

/*
 * execvpe(3), but no shell is tried for a file that is neither program nor script. Return: the
 * errno that says most: a candidate that may not be executed outweighs places where there is none.
 */
static SPAWN_CHILD long child_exec(const struct parse_exec *exec, char *path)
{
	const char *name = exec->argv[0], *dir = exec->path, *end;
	bool denied = false;
	long ret;

	for (const char *p = name; *p; p++)
		if (*p == '/')
			return child_execve(exec, name);
	for (;; dir = end + 1) {
		for (end = dir; *end && *end != ':'; end++)
			;
		ret = -ENOENT;
		if (child_join(path, dir, (size_t)(end - dir), name))
			ret = child_execve(exec, path);
		if (ret == -EACCES)
			denied = true;
		else if (ret != -ENOENT && ret != -ENOTDIR && ret != -ESTALE && ret != -ENODEV &&
			 ret != -ETIMEDOUT)
			return ret;
		if (!*end)
			return denied ? -EACCES : -ENOENT;
	}
}

static SPAWN_CHILD _Noreturn void child_main(struct spawn_stack *mem)
{
	const struct spawn_args *args = &mem->args;
	const struct parse_exec *exec = args->exec;
	const u64 no_signals = 0;
	long ret;

	raw(SYS_setsid, 0, 0, 0);
	for (int i = 0; i < 3; i++) {
		ret = raw(SYS_dup3, args->stdio[i], i, 0);
		if (ret < 0)
			child_fail(args, SHIM_STAGE_SETUP, ret);
	}
	ret = exec->pty ? raw(SYS_ioctl, 0, TIOCSCTTY, 0) : 0;
	/*
	 * Not left to the execve: it may be long in coming, and a copy of another connection's
	 * stdin pipe would keep that command from its end of file. The table is the child's own.
	 */
	child_close_others(args->status_fd, args->files_fd);
	/* Limits, groups and gid while still root. */
	if (!ret)
		ret = raw(SYS_setrlimit, RLIMIT_NOFILE, (long)&args->nofile, 0);
	if (!ret)
		ret = raw(SYS_setgroups, 0, 0, 0);
	if (!ret)
		ret = raw(SYS_setresgid, exec->gid, exec->gid, exec->gid);
	if (!ret)
		ret = raw(SYS_setresuid, exec->uid, exec->uid, exec->uid);
	if (ret < 0)
		child_fail(args, SHIM_STAGE_SETUP, ret);
	/* With the user's rights, like the execve. */
	if (exec->cwd) {
		ret = raw(SYS_chdir, (long)exec->cwd, 0, 0);
		if (ret < 0)
			child_fail(args, SHIM_STAGE_CWD, ret);
	}
	raw_mask(&no_signals);
	if (args->files_fd >= 0)
		child_fail(args, SHIM_STAGE_EXEC,
			   raw_execve_fd(args->files_fd, exec->argv, exec->envp));
	child_fail(args, SHIM_STAGE_EXEC, child_exec(exec, mem->path));
}

/*
 * The child starts on its own stack, so it must not return through this frame: it calls
 * child_main() from here and never comes back.
 */
static long spawn_clone(struct clone_args *clone, void (*fn)(struct spawn_stack *),
			struct spawn_stack *mem)
{
	register long r8 __asm__("r8") = (long)fn;
	register long r9 __asm__("r9") = (long)mem;
	long ret;

	__asm__ volatile("syscall\n\t"
			 "testq %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xorl %%ebp, %%ebp\n\t"
			 "movq %%r9, %%rdi\n\t"
			 "callq *%%r8\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(ret)
			 : "0"((long)SYS_clone3), "D"(clone), "S"(sizeof(*clone)), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory", "cc");
	return ret;
}

int spawn_child(struct shim *shim, struct conn *c, const int stdio[3], int status_fd)
{
	struct spawn_stack *mem = (struct spawn_stack *)c->stack;
	struct clone_args clone = {
		.flags = CLONE_VM | CLONE_CLEAR_SIGHAND,
		.exit_signal = SIGCHLD,
		.stack = (u64)(uintptr_t)mem->stack,
		.stack_size = sizeof(mem->stack),
	};

	mem->args = (struct spawn_args){
		.exec = &c->exec,
		.stdio = {stdio[0], stdio[1], stdio[2]},
		.status_fd = status_fd,
		.files_fd = c->exec.files ? shim->files_fd : -1,
		.nofile = shim->nofile,
	};
	if (c->exec.ext.nofile)
		mem->args.nofile = (struct rlimit){c->exec.ext.nofile, c->exec.ext.nofile};
	if (c->cgroup.dir_fd >= 0) {
		clone.flags |= CLONE_INTO_CGROUP;
		clone.cgroup = (u64)c->cgroup.dir_fd;
	}
	return (int)spawn_clone(&clone, (void (*)(struct spawn_stack *))child_main, mem);
}
