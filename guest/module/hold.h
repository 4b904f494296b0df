/* SPDX-License-Identifier: GPL-2.0-only */
/* What the two halves of thaw.ko share: the device, and the checkpoint with the machine held. */
#ifndef THAW_HOLD_H
#define THAW_HOLD_H

#include <linux/atomic.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/stddef.h>
#include <linux/time64.h>
#include <linux/types.h>

#include "thaw_uapi.h"

/**
 * struct thaw - the node
 * @registers: the doorbell page
 * @control: the control page; the VMM writes it only while no CPU of this machine runs
 * @request: THAW_REQUEST_BYTES
 * @lock: held for every use of @registers and what follows, the counters excepted
 * @generation: of this machine; a checkpoint that finds another one in the page is in a clone
 * @vm_id, @hostname: of this machine; @hostname is terminated
 * @checkpoints: calls that returned 0 or 1
 * @vmfork_count: what the random generator reported
 */
struct thaw {
	void __iomem *registers;
	struct thaw_control *control;
	void *request;
	struct mutex lock;
	u64 generation;
	u8 vm_id[sizeof_field(struct thaw_control, vm_id)];
	char hostname[sizeof_field(struct thaw_control, hostname)];
	u64 checkpoints;
	atomic_t vmfork_count;
	struct notifier_block vmfork;
	struct miscdevice misc;
};

/**
 * thaw_hold_init() - find the kernel's reseed function.
 *
 * Return: 0; -EOPNOTSUPP on a CPU where it can't be called; -errno when it can't be found. Logged.
 */
int thaw_hold_init(void);

/**
 * thaw_hold_checkpoint() - ring the doorbell with every CPU held; in a clone, fix it up.
 * @thaw: locked
 * @wall: out; in a clone, what the real-time clock was stepped to, else zero
 *
 * When it returns 0, the random generator is reseeded, the clock stepped, and @thaw has the clone's
 * generation, vm_id and hostname; no user instruction has run since the snapshot. Sleeps before and
 * after. A clone that can't be fixed up panics.
 *
 * Return: 0 in a clone; 1 in the machine that was snapshotted; -errno when no snapshot was made.
 */
int thaw_hold_checkpoint(struct thaw *thaw, struct timespec64 *wall);

/**
 * thaw_take_identity() - copy vm_id and hostname from the control page.
 */
void thaw_take_identity(struct thaw *thaw);

/**
 * thaw_status_to_errno() - THAW_REG_STATUS as 0 or -errno; -EIO for what is no errno.
 */
int thaw_status_to_errno(u32 status);

#endif
