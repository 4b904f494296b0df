/* SPDX-License-Identifier: Apache-2.0 */
/* How many sandboxes there may be, and how much of them may run at once. Not safe from several
 * threads: callers hold the boxes' lock. */
#ifndef THAW_DAEMON_QUOTA_H
#define THAW_DAEMON_QUOTA_H

#include "vmm/daemon/box.h"

struct quota {
	struct box_quota of[BOX_QUOTAS];
};

/** quota_init() - the settings' maxima; one that is 0 is what the host has times an overcommit
 * factor in percent (sandboxes: no limit, 0). */
void quota_init(struct quota *quota, u64 max_sandboxes, u64 max_vcpus, u64 max_memory_bytes,
		u64 cpu_percent, u64 memory_percent);

/** quota_add() - one more sandbox, running or not. Return: 0, or -EDQUOT with @why. */
int __must_check quota_add(struct quota *quota, char *why, size_t why_bytes);
/** quota_add_force() - one that is there already, over the maximum or not. */
void quota_add_force(struct quota *quota);
void quota_drop(struct quota *quota);

/** quota_take() - for one machine. Return: 0, or -EDQUOT with @why, and nothing was taken. */
int __must_check quota_take(struct quota *quota, u32 vcpus, u64 memory_bytes, char *why,
			    size_t why_bytes);
/** quota_force() - for one that runs already, over the maxima or not. */
void quota_force(struct quota *quota, u32 vcpus, u64 memory_bytes);
void quota_give(struct quota *quota, u32 vcpus, u64 memory_bytes);

/** psi_some_avg10() - out of the text of /proc/pressure/memory: hundredths of a percent. Return: 0
 * or -EINVAL. */
int __must_check psi_some_avg10(const char *text, u64 *out);

/** psi_memory() - now; 0 where the kernel does not tell. */
u64 psi_memory(void);

#endif
