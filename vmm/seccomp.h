/* SPDX-License-Identifier: Apache-2.0 */
/* System call filters of thaw-vmm: one for the event loop, a smaller one for vCPU threads.
 * Violations kill the process. */
#ifndef THAW_VMM_SECCOMP_H
#define THAW_VMM_SECCOMP_H

#include "vmm/util/types.h"

enum seccomp_options {
	/* a checkpoint will be written: openat, rename, fsync in the prepared folder */
	SECCOMP_SNAPSHOT = 1u << 0,
	SECCOMP_VSOCK_PATH = 1u << 1, /* guest-initiated streams connect to paths */
	SECCOMP_OWNERS = 1u << 4,     /* owners come to a listener and ask for snapshots; with
					 SECCOMP_SNAPSHOT */
	SECCOMP_JAIL = 1u << 5,	      /* nothing is named by a path, snapshots go into a folder of
					 their own */
	SECCOMP_WAIT = 1u << 3,	      /* the clocks are set again when a waiting VM starts */
	SECCOMP_SANITIZER = 1u << 2,  /* built with a sanitizer: its own calls */
};

/* What every process of this build needs. */
#ifdef THAW_SANITIZER
#define SECCOMP_BUILD SECCOMP_SANITIZER
#else
#define SECCOMP_BUILD 0u
#endif

/** seccomp_apply_main() - on the main thread, after every file is open and every vCPU thread was
 * started. Return: 0 or -errno (logged). */
int __must_check seccomp_apply_main(unsigned int options);

/** seccomp_apply_vcpu() - on a vCPU thread, before its first KVM_RUN. Return: 0 or -errno (logged).
 */
int __must_check seccomp_apply_vcpu(unsigned int options);

/** seccomp_apply_pager() - on a page fault server (snapshot/pager.h), once all is open.
 * seccomp_apply_watcher() - on the thread that watches these. Return: 0 or -errno (logged). */
int __must_check seccomp_apply_pager(unsigned int options);
int __must_check seccomp_apply_watcher(unsigned int options);

#endif
