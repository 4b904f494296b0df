// SPDX-License-Identifier: Apache-2.0
// What a VMM that was taken over may try, and what has to come of it.
#include "tests/jail/attempts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/util/util.h"

static int result(long ret)
{
	return ret < 0 ? -errno : 0;
}

static int try_open(const struct targets *t)
{
	const char *paths[] = {t->secret,	  "/etc/passwd", "/proc/self/mem",
			       "/dev/kvm",	  "/tmp",	 "/sys/fs/cgroup",
			       "/proc/1/environ", "../etc",	 "/.."};
	struct stat st;

	for (size_t i = 0; i + 1 < ARRAY_SIZE(paths); i++) {
		if (open(paths[i], O_RDONLY) >= 0)
			return 0;
	}
	/* The root is there, and nothing in it. */
	return open("/x", O_RDWR | O_CREAT, 0600) >= 0 || (stat("/.", &st) == 0 && st.st_nlink > 2)
		       ? 0
		       : -ENOENT;
}

static int try_climb(const struct targets *t)
{
	(void)t;
	for (int fd = 0; fd < 64; fd++) {
		if (openat(fd, "../secret", O_RDONLY) >= 0 ||
		    openat(fd, "../../../../etc/passwd", O_RDONLY) >= 0)
			return 0;
	}
	return -ENOENT;
}

static int try_write_folder(const struct targets *t)
{
	(void)t;
	return result(openat(FD_FOLDER, "new", O_RDWR | O_CREAT, 0600));
}

static int try_unix(const char *name, bool abstract)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (fd < 0)
		return -errno;
	snprintf(addr.sun_path + abstract, sizeof(addr.sun_path) - 1, "%s", name);
	return result(connect(fd, (struct sockaddr *)&addr, sizeof(addr)));
}

static int try_connect_path(const struct targets *t)
{
	return try_unix(t->path, false);
}

static int try_connect_abstract(const struct targets *t)
{
	return try_unix(t->abstract, true);
}

static int try_connect_tcp(const struct targets *t)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,
				   .sin_port = htons((u16)t->port),
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	return fd < 0 ? -errno : result(connect(fd, (struct sockaddr *)&addr, sizeof(addr)));
}

static int try_ptrace(const struct targets *t)
{
	return result(ptrace(PTRACE_ATTACH, t->pid, NULL, NULL));
}

static int try_vm_write(const struct targets *t)
{
	char byte = 0;
	struct iovec here = {&byte, 1}, there = {&byte, 1};

	return result(syscall(SYS_process_vm_writev, t->pid, &here, 1, &there, 1, 0));
}

static int try_kill(const struct targets *t)
{
	return result(kill(t->pid, SIGKILL));
}

static int try_kill_all(const struct targets *t)
{
	(void)t;
	return result(kill(-1, SIGKILL));
}

static int try_fork(const struct targets *t)
{
	pid_t pid = fork();

	(void)t;
	if (pid == 0)
		_exit(0);
	return result(pid);
}

static int try_forks(const struct targets *t)
{
	(void)t;
	for (int i = 0; i < 4 * THREADS_MAX; i++) {
		pid_t pid = fork();

		if (pid == 0)
			pause();
		if (pid < 0)
			return -errno;
	}
	return 0;
}

static int try_execve(const struct targets *t)
{
	char *argv[] = {"sh", NULL};

	(void)t;
	return result(execve("/bin/sh", argv, NULL));
}

static int try_mount(const struct targets *t)
{
	(void)t;
	return result(mount("none", "/", "tmpfs", 0, NULL));
}

static int try_umount(const struct targets *t)
{
	(void)t;
	return result(umount2("/", MNT_DETACH));
}

static int try_setns(const struct targets *t)
{
	(void)t;
	return result(setns(FD_NET, CLONE_NEWNET));
}

static int try_unshare(const struct targets *t)
{
	(void)t;
	return result(unshare(CLONE_NEWUSER));
}

static int try_clone_user(const struct targets *t)
{
	(void)t;
	return result(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, 0));
}

static int try_bpf(const struct targets *t)
{
	union bpf_attr attr = {0};

	(void)t;
	return result(syscall(SYS_bpf, BPF_PROG_GET_NEXT_ID, &attr, sizeof(attr)));
}

static int try_perf(const struct targets *t)
{
	struct perf_event_attr attr = {.type = PERF_TYPE_HARDWARE, .size = sizeof(attr)};

	(void)t;
	return result(syscall(SYS_perf_event_open, &attr, -1, 0, -1, 0));
}

static int try_uring(const struct targets *t)
{
	struct io_uring_params params = {0};

	(void)t;
	return result(syscall(SYS_io_uring_setup, 4, &params));
}

static int try_rlimit(const struct targets *t)
{
	struct rlimit limit = {1 << 20, 1 << 20};

	(void)t;
	return result(setrlimit(RLIMIT_NOFILE, &limit));
}

static int try_key(const struct targets *t)
{
	char value[16];

	return result(syscall(SYS_keyctl, KEYCTL_READ, t->key, value, sizeof(value)));
}

static int try_setuid(const struct targets *t)
{
	(void)t;
	return result(setresuid(0, 0, 0));
}

static int try_caps(const struct targets *t)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {
		{.effective = 1 << CAP_SYS_ADMIN, .permitted = 1 << CAP_SYS_ADMIN}};

	(void)t;
	return result(syscall(SYS_capset, &header, data));
}

static int try_chroot(const struct targets *t)
{
	(void)t;
	return result(chroot("/"));
}

static int try_mknod(const struct targets *t)
{
	(void)t;
	return result(mknodat(FD_FOLDER, "null", S_IFCHR | 0600, 0x103));
}

static int try_hostname(const struct targets *t)
{
	(void)t;
	return result(sethostname("x", 1));
}

static int try_big_file(const struct targets *t)
{
	(void)t;
	return result(pwrite(FD_FILE, "x", 1, FILE_MAX + 4096));
}

/** Where in physical memory is a page of ours? (Documentation/admin-guide/mm/pagemap.rst) */
static int try_page_frames(const struct targets *t)
{
	static u8 page[2 * PAGE_SIZE_BYTES];
	u64 entry = 0;

	*(volatile u8 *)page = 1;
	if (pread(t->pagemap_fd, &entry, sizeof(entry),
		  (off_t)((uintptr_t)page / PAGE_SIZE_BYTES * sizeof(entry))) != sizeof(entry))
		return -EIO;
	return entry & ((1ull << 55) - 1) ? 0 : -EPERM;
}

static int try_memory(const struct targets *t)
{
	const size_t len_bytes = 4 * MEMORY_MAX;
	u8 *at = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)t;
	if (at == MAP_FAILED)
		return -errno;
	for (size_t i = 0; i < len_bytes; i += PAGE_SIZE_BYTES)
		((volatile u8 *)at)[i] = 1;
	return 0;
}

const struct attempt attempts[] = {
	{.name = "open a host file", .fn = try_open, .want = {FAILS, FAILS, FAILS}},
	{.name = "climb from an inherited folder", .fn = try_climb, .want = {FAILS, FAILS, FAILS}},
	{.name = "write into the template", .fn = try_write_folder, .want = {FAILS, FAILS, FAILS}},
	{.name = "connect to a socket's path",
	 .fn = try_connect_path,
	 .want = {FAILS, FAILS, SYSCALL}},
	{.name = "connect to an abstract socket",
	 .fn = try_connect_abstract,
	 .want = {FAILS, FAILS, SYSCALL}},
	{.name = "connect by TCP", .fn = try_connect_tcp, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "ptrace", .fn = try_ptrace, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "write another process's memory",
	 .fn = try_vm_write,
	 .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "kill another process", .fn = try_kill, .want = {FAILS, FAILS, SYSCALL}},
	{.name = "kill all processes", .fn = try_kill_all, .want = {FAILS, FAILS, SYSCALL}},
	{.name = "fork", .fn = try_fork, .want = {WORKS, WORKS, SYSCALL}},
	{.name = "fork without end", .fn = try_forks, .want = {FAILS, FAILS, SYSCALL}},
	{.name = "execve", .fn = try_execve, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "mount", .fn = try_mount, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "umount", .fn = try_umount, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "setns", .fn = try_setns, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "unshare", .fn = try_unshare, .want = {ANY, SYSCALL, SYSCALL}},
	{.name = "clone with a user namespace",
	 .fn = try_clone_user,
	 .want = {ANY, SYSCALL, SYSCALL}},
	{.name = "bpf", .fn = try_bpf, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "perf_event_open", .fn = try_perf, .want = {ANY, SYSCALL, SYSCALL}},
	{.name = "io_uring_setup", .fn = try_uring, .want = {ANY, ANY, SYSCALL}},
	{.name = "raise a resource limit", .fn = try_rlimit, .want = {FAILS, FAILS, SYSCALL}},
	{.name = "read a key", .fn = try_key, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "become root", .fn = try_setuid, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "raise a capability", .fn = try_caps, .want = {FAILS, FAILS, SYSCALL}},
	{.name = "chroot", .fn = try_chroot, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "mknod", .fn = try_mknod, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "set the host's name", .fn = try_hostname, .want = {FAILS, SYSCALL, SYSCALL}},
	{.name = "fill the disk", .fn = try_big_file, .want = {FAILS, FAILS, FAILS}},
	{.name = "see physical addresses", .fn = try_page_frames, .want = {FAILS, FAILS, FAILS}},
	{.name = "take all memory",
	 .fn = try_memory,
	 .want = {KILLED, KILLED, KILLED},
	 .cgroup = true,
	 .memory_max_bytes = MEMORY_MAX},
	{.name = "take all process numbers",
	 .fn = try_forks,
	 .want = {FAILS, FAILS, SYSCALL},
	 .cgroup = true},
};

const unsigned int nattempts = ARRAY_SIZE(attempts);
