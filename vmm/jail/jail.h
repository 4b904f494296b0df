/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The jail of a thaw-vmm: own uid, own user, mount, pid, net, ipc and uts namespaces, an empty
 * root, no capabilities, no new privileges, resource limits, a cgroup of its own. The system call
 * filters (vmm/seccomp.h) come on top, per thread.
 *
 * Two halves. The owner (root) prepares: a uid nobody else has, a cgroup with limits, listening
 * sockets, folders as detached mounts (open_tree(2): nothing above them can be reached, not by ".."
 * either). thaw-vmm is born in new namespaces and in its cgroup, and enters the rest by itself
 * (jail_enter()) before it looks at a byte that it does not trust.
 */
#ifndef THAW_JAIL_JAIL_H
#define THAW_JAIL_JAIL_H

#include <limits.h>

#include "vmm/util/types.h"

struct state;

/** What a machine may use of the host; 0: no limit. */
struct jail_limits {
	u64 memory_max_bytes; /* guest memory + the VMM's own */
	u32 cpu_max_milli;    /* thousandths of a processor */
	u32 cpu_weight;	      /* 1 to 10000 */
	u32 pids_max;	      /* threads of the VMM */
	u64 io_max_bytes_s;   /* of the disk that has the state folder; 0: none */
};

struct jail_config {
	u32 uid_base, uid_count; /* range of uids (and equal gids) */
	const char *cgroup_root; /* an absolute path on cgroup2, made if missing */
	bool require_cgroup;	 /* refuse to start without cgroup v2 */
};

/** One jail, prepared. */
struct jail {
	u32 uid;
	int slot_fd; /* holds the uid (flock); inherited by the VMM, so that the uid is free exactly
			when that has ended */
	int cgroup_fd; /* -1: none */
	char cgroup_path[PATH_MAX];
};

/** jail_prepare() - take a uid and make cgroup @name. Return: 0 or -errno (logged). jail_close() is
 * due after success; it does not end what runs there. */
int __must_check jail_prepare(const struct state *state, const struct jail_config *config,
			      const char *name, const struct jail_limits *limits,
			      struct jail *jail);
void jail_close(struct jail *jail);

/** jail_remove() - of a machine that has ended: its cgroup; what is left in it is killed. Return: 0
 * or -errno (logged). Not there: 0. */
int __must_check jail_remove(const struct jail_config *config, const char *name);

/** jail_memory_bytes() - memory.current of cgroup @name, or 0. */
u64 jail_memory_bytes(const struct jail_config *config, const char *name);

/**
 * jail_enter() - of thaw-vmm, born in new namespaces as root of the host: empty root, uid and gid
 * @uid, no capabilities, no_new_privs, rlimits. Everything it needs is open. Return: 0 or -errno
 * (logged); after a failure the process must end.
 */
int __must_check jail_enter(u32 uid);

#endif
