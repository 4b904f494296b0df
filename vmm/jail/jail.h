/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The jail of a thaw-vmm: own uid, own user, mount, pid, net, ipc and uts namespaces, an empty
 * root, no capabilities, no new privileges, resource limits, a cgroup of its own. The system call
 * filters (vmm/seccomp.h) come on top, per thread. README.md has the whole of it.
 *
 * Two halves. The owner (root) takes a uid that nobody else has, makes a cgroup with limits, and
 * starts thaw-vmm in a new pid namespace and in that cgroup (jail_spawn()). thaw-vmm opens what it
 * needs by the paths of its command line, and enters the rest by itself (jail_enter()) before it
 * looks at a byte that it does not trust.
 */
#ifndef THAW_JAIL_JAIL_H
#define THAW_JAIL_JAIL_H

#include <limits.h>
#include <sys/types.h>

#include "vmm/util/types.h"

struct state;

/** What a machine may use of the host; 0: no limit. */
struct jail_limits {
	u64 memory_max_bytes; /* guest memory + the VMM's own + what it has in the page cache */
	u32 cpu_max_milli;    /* thousandths of a processor */
	u32 cpu_weight;	      /* 1 to 10000 */
	u32 pids_max;	      /* threads of the VMM */
	u64 io_max_bytes_s;   /* of the disk that has the state folder, each way */
};

struct jail_config {
	u32 uid_base, uid_count; /* range of uids (and equal gids) */
	const char *cgroup_root; /* an absolute path on cgroup2, made if missing */
	bool require_cgroup;	 /* refuse to start without cgroup v2 */
};

/* Defaults. The range is one that systemd leaves alone and that is below 2^31. */
#define JAIL_UID_BASE	 1879048192u
#define JAIL_UID_COUNT	 65536u
#define JAIL_CGROUP_ROOT "/sys/fs/cgroup/thaw"

/** jail_config_default() - the above, with a cgroup required. */
void jail_config_default(struct jail_config *config);

/** jail_limits_default() - @memory_bytes of guest memory with what its VMM needs beside it, and
 * threads enough for @vcpus; no limit of time or disk. */
void jail_limits_default(struct jail_limits *limits, u64 memory_bytes, unsigned int vcpus);

/** One jail, prepared. */
struct jail {
	u32 uid;
	int slot_fd; /* holds the uid (flock); inherited by the VMM, so that the uid is free exactly
			when that has ended */
	int cgroup_fd; /* -1: none */
	char cgroup_path[PATH_MAX];
};

/** jail_prepare() - take a uid and make cgroup @name; what is left in one of that name is killed.
 * Any thread. Return: 0 or -errno (logged). jail_close() is due after success; it does not end what
 * runs there. */
int __must_check jail_prepare(const struct state *state, const struct jail_config *config,
			      const char *name, const struct jail_limits *limits,
			      struct jail *jail);
/** jail_close() - safe twice, and on one that is all -1. */
void jail_close(struct jail *jail);

/** jail_set_limits() - of cgroup @name, while it is in use. @state: tells the disk of
 * io_max_bytes_s. Return: 0 or -errno (logged). */
int __must_check jail_set_limits(const struct state *state, const struct jail_config *config,
				 const char *name, const struct jail_limits *limits);

/** jail_remove() - of a machine that has ended: its cgroup; what is left in it is killed. Return: 0
 * or -errno (logged). Not there: 0. */
int __must_check jail_remove(const struct jail_config *config, const char *name);
/** jail_remove_path() - the same by jail.cgroup_path. */
int __must_check jail_remove_path(const char *cgroup_path);

/** jail_memory_bytes() - memory.current of cgroup @name, or 0. */
u64 jail_memory_bytes(const struct jail_config *config, const char *name);
/** jail_oom_kills() - how often something in cgroup @name was killed for want of memory. */
u64 jail_oom_kills(const struct jail_config *config, const char *name);

/** A process to be born in a jail. */
struct jail_birth {
	const char *path; /* of the executable */
	char *const *argv;
	char *const *env;
	/* become fds 0, 1, ... of the new process, in this order, the jail's slot behind them; -1:
	 * /dev/null. No other fd is inherited. Not owned */
	const int *fds;
	unsigned int nfds; /* at most 8 */
};

/**
 * jail_spawn() - start a process in a new pid namespace and in the jail's cgroup, a session of its
 * own, all signals as by default. Any thread. An executable that can't be run ends it with status
 * 127 and a message on its stderr.
 *
 * Return: its pid, or -errno (not logged).
 */
pid_t __must_check jail_spawn(const struct jail *jail, const struct jail_birth *birth);

/** What thaw-vmm has to tell about its jail. */
struct jail_entry {
	u32 uid;
	u64 file_max_bytes; /* RLIMIT_FSIZE; 0: none */
	u32 threads_max;    /* RLIMIT_NPROC */
	bool no_filter;	    /* of tests, that want to see what else stops them */
	int pagemap_fd; /* out: /proc/self/pagemap, opened without privileges; -1 if that failed */
};

/**
 * jail_enter() - of thaw-vmm, while it is root of the host, has one thread and has opened all it
 * needs: namespaces, empty root, uid and gid, no capabilities, no_new_privs, rlimits, a filter that
 * takes away the calls no later step needs. Return: 0 or -errno (logged); after a failure the
 * process must end.
 */
int __must_check jail_enter(struct jail_entry *entry);

/** jail_detach_folder() - @path (as for openat(2)) as a mount of its own that is attached nowhere:
 * nothing above it can be reached, not by ".." either. Needs root. Return: an fd of the folder or
 * -errno (not logged). */
int __must_check jail_detach_folder(int at_fd, const char *path, bool read_only);

#endif
