/* SPDX-License-Identifier: Apache-2.0 */
/* One cgroup an exec. */
#ifndef THAW_SHIM_CGROUP_H
#define THAW_SHIM_CGROUP_H

#include "vmm/util/types.h"

struct shim;
struct conn;

struct cgroup {
	u32 id;	    /* directory exec-<id>; 0: none */
	int dir_fd; /* owned; -1: none */
	bool killed;
};

/**
 * cgroup_setup() - controllers on, a first spare.
 * @path: a cgroup v2 directory
 * Return: 0 or -errno.
 */
int __must_check cgroup_setup(struct shim *shim, const char *path);

/** cgroup_setup_guest() - the same below a cgroup of @root that holds all execs and has limits: the
 * shim, which is in the root, stays able to work whatever they do. Return: 0 or -errno. */
int __must_check cgroup_setup_guest(struct shim *shim, const char *root);

/** cgroup_limit_pids() - how many processes there may be in it. Return: 0 or -errno. */
int __must_check cgroup_limit_pids(const struct cgroup *cg, u32 pids_max);

/** cgroup_saw_oom() - did the kernel kill something in it for memory? */
bool cgroup_saw_oom(const struct cgroup *cg);

/** cgroup_has_spare() - is there nothing for cgroup_make_spare() to do? */
bool cgroup_has_spare(const struct shim *shim);

/** cgroup_take() - a fresh cgroup for an exec (the spare if there is one). Return: 0 or -errno. */
int __must_check cgroup_take(struct shim *shim, struct cgroup *cg);

/** cgroup_make_spare() - make one ahead if there is none. */
void cgroup_make_spare(struct shim *shim);

/** cgroup_kill() - SIGKILL to all in it and below. */
void cgroup_kill(struct cgroup *cg);

/**
 * cgroup_release() - kill what is left and remove the directory; never waits.
 * Return: true when it is gone (or given up); else it is to be called again when SLOT_CGROUP is
 * ready.
 */
bool cgroup_release(struct shim *shim, struct conn *c);

#endif
