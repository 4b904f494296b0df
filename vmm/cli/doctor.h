/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `thaw doctor`: each looks at one thing and leaves the machine as it was. */
#ifndef THAW_CLI_DOCTOR_H
#define THAW_CLI_DOCTOR_H

#include "vmm/cli/kvmkind.h"
#include "vmm/cli/state.h"
#include "vmm/util/types.h"

enum doctor_status {
	DOCTOR_OK,
	DOCTOR_WARN, /* `thaw run` works without it */
	DOCTOR_FAIL, /* `thaw run` can't work */
};

struct doctor_finding {
	enum doctor_status status;
	char detail[384];
	const char *fix; /* what to do; NULL: nothing, or @detail says it */
};

/** What later checks take over from earlier ones. */
struct doctor {
	struct state state;
	enum kvm_kind kind;
	bool cpu_has_virt; /* vmx or svm in /proc/cpuinfo */
	int kvm_fd;	   /* -1: could not be opened */
	bool guest_found;
};

typedef void doctor_fn(struct doctor *doctor, struct doctor_finding *finding);

struct doctor_check {
	const char *name;
	doctor_fn *run;
};

/** doctor_say() - fill in @finding's status and text. */
void doctor_say(struct doctor_finding *finding, enum doctor_status status, const char *fmt, ...)
	__printf(3, 4);

/* doctor_run.c: what `thaw run` and `thaw template build` stand on */
doctor_fn doctor_check_cpu, doctor_check_kvm, doctor_check_kvm_features, doctor_check_kernel,
	doctor_check_vmm, doctor_check_state, doctor_check_guest, doctor_check_templates,
	doctor_check_space, doctor_check_memory, doctor_check_mke2fs;

/* doctor_kernel.c: kernel features that parts of thaw use when they are there */
doctor_fn doctor_check_io_uring, doctor_check_thp, doctor_check_userfaultfd, doctor_check_bpf,
	doctor_check_tun;

/* doctor_jail.c: what the jail of thawd's sandboxes stands on */
doctor_fn doctor_check_jail, doctor_check_cgroup;

#endif
