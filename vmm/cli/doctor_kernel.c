// SPDX-License-Identifier: Apache-2.0
// Checks of `thaw doctor`: kernel features that parts of thaw use when they are there.
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/bpf.h>
#include <linux/magic.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "vmm/cli/doctor.h"
#include "vmm/util/util.h"

void doctor_check_io_uring(struct doctor *doctor, struct doctor_finding *finding)
{
	struct io_uring ring;
	int ret;

	(void)doctor;
	ret = io_uring_queue_init(2, &ring, 0);
	if (ret < 0) {
		doctor_say(finding, DOCTOR_WARN,
			   "can't be had: %s; files are read and written by "
			   "plain calls, which is slower",
			   strerror(-ret));
		finding->fix = "sysctl kernel.io_uring_disabled=0, or allow io_uring_setup in the "
			       "container's seccomp profile";
		return;
	}
	io_uring_queue_exit(&ring);
	doctor_say(finding, DOCTOR_OK, "available");
}

void doctor_check_thp(struct doctor *doctor, struct doctor_finding *finding)
{
	char text[128] = "";
	char *start, *end;
	ssize_t n;
	int fd;

	(void)doctor;
	fd = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	fd_close(&fd);
	start = n > 0 ? strchr(text, '[') : NULL;
	end = start ? strchr(start, ']') : NULL;
	if (!end) {
		doctor_say(finding, DOCTOR_OK, "transparent huge pages: not in this kernel");
		return;
	}
	*end = '\0';
	doctor_say(finding, DOCTOR_OK, "transparent huge pages: %s", start + 1);
}

void doctor_check_userfaultfd(struct doctor *doctor, struct doctor_finding *finding)
{
	int fd;

	(void)doctor;
	/* Without UFFD_USER_MODE_ONLY: the faults of interest come from KVM, that is, from the
	 * kernel. */
	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		fd = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		doctor_say(finding, DOCTOR_WARN,
			   "can't be had: %s; restore strategy uffd "
			   "needs it",
			   strerror(errno));
		finding->fix = "sysctl vm.unprivileged_userfaultfd=1, or run as root";
		return;
	}
	fd_close(&fd);
	doctor_say(finding, DOCTOR_OK, "available");
}

void doctor_check_bpf(struct doctor *doctor, struct doctor_finding *finding)
{
	/* r0 = 0; exit: the smallest program the verifier takes. */
	static const struct bpf_insn program[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = 0},
		{.code = BPF_JMP | BPF_EXIT},
	};
	static const char license[] = "Dual BSD/GPL";
	union bpf_attr attr;
	int fd;

	(void)doctor;
	memset(&attr, 0, sizeof(attr));
	attr.prog_type = BPF_PROG_TYPE_SCHED_CLS;
	attr.insns = (u64)(uintptr_t)program;
	attr.insn_cnt = ARRAY_SIZE(program);
	attr.license = (u64)(uintptr_t)license;
	fd = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));
	if (fd < 0) {
		doctor_say(finding, DOCTOR_WARN,
			   "a tc program can't be loaded: %s; sandboxes have no "
			   "network without it",
			   strerror(errno));
		finding->fix = errno == ENOSYS ? "use a kernel with CONFIG_BPF_SYSCALL"
					       : "run as root or with CAP_BPF and CAP_NET_ADMIN";
		return;
	}
	fd_close(&fd);
	doctor_say(finding, DOCTOR_OK, "tc programs can be loaded");
}

void doctor_check_tun(struct doctor *doctor, struct doctor_finding *finding)
{
	int fd;

	(void)doctor;
	fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		doctor_say(finding, DOCTOR_WARN,
			   "/dev/net/tun: %s; sandboxes have no network "
			   "without it",
			   strerror(errno));
		finding->fix = errno == EACCES ? "run as root" : "modprobe tun";
		return;
	}
	fd_close(&fd);
	doctor_say(finding, DOCTOR_OK, "/dev/net/tun opens");
}
