/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines that have done everything but run, for boxes to take: as many of a template as the
 * setting `pools` or the API says. A waiting machine is a whole sandbox with a folder of its own,
 * which ends with thawd as long as it waits.
 */
#ifndef THAW_DAEMON_POOLS_H
#define THAW_DAEMON_POOLS_H

#include "vmm/daemon/box_internal.h"

#define POOLS_SIZE_MAX 128u

/** pools_start() - pools of the setting, and the thread that fills them. Return: 0 or -errno
 * (logged). */
int __must_check pools_start(struct boxes *boxes);
/** pools_stop() - ends what waits. */
void pools_stop(struct boxes *boxes);

/** pools_take() - a machine of template @name that waits: sb->lock_fd is held, vmmproc_begin() is
 * due. */
enum box_pool pools_take(struct boxes *boxes, const char *name, struct sandbox *sb,
			 struct vmmproc *vmm);

/** pools_set() - @size 0: no pool of it. Return: 0 or -ENOMEM. */
int __must_check pools_set(struct boxes *boxes, const char *name, u32 size);
/** pools_flush() - what waits of @name is of a template that is replaced: make it anew. */
void pools_flush(struct boxes *boxes, const char *name);
/** pools_json() - of @name, or all as an array. NULL: there is none, or no memory. */
json_t *pools_json(struct boxes *boxes, const char *name);

#endif
