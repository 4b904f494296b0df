/* SPDX-License-Identifier: Apache-2.0 */
/* What a VMM that was taken over may try, and what has to come of it. */
#ifndef THAW_TESTS_JAIL_ATTEMPTS_H
#define THAW_TESTS_JAIL_ATTEMPTS_H

#include "vmm/util/types.h"

/* fds of the attacker: where it tells, a detached read-only folder, a file to write, the host's
 * network namespace. */
enum { FD_RESULT = 3, FD_FOLDER, FD_FILE, FD_NET, FD_COUNT };

#define FILE_MAX    (1 * MIB)
#define THREADS_MAX 40 /* a sanitizer and a host with other tests of this uid have some */
#define MEMORY_MAX  (64 * MIB)
#define PIDS_MAX    16

/** What there is to attack; inherited by address space no more, so told by the environment. */
struct targets {
	int pid, port, key;
	const char *path, *abstract, *secret;
	int pagemap_fd;
};

enum outcome {
	ANY,	 /* the host decides */
	WORKS,	 /* harmless in there */
	FAILS,	 /* an error code */
	SYSCALL, /* the filter ends the process */
	KILLED,	 /* the cgroup does */
};

enum layer { BARE, FILTER, THREAD, LAYERS };

struct attempt {
	const char *name;
	int (*fn)(const struct targets *t); /* 0: it worked, or -errno */
	enum outcome want[LAYERS];
	bool cgroup; /* needs the controllers */
	u64 memory_max_bytes;
};

extern const struct attempt attempts[];
extern const unsigned int nattempts;

#endif
