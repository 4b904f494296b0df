/* SPDX-License-Identifier: Apache-2.0 */
/* thaw-vmm in a jail (--jail): what it opens as root, and the way in. */
#ifndef THAW_VMM_JAILED_H
#define THAW_VMM_JAILED_H

#include "vmm/opts.h"

/** jailed_enter() - open all that a restore may need by the paths of @opts, look at none of it, and
 * enter the jail. @disk_fd: gets the scratch disk's file, still empty, or -1. @pagemap_fd: gets
 * /proc/self/pagemap, or -1. Return: 0 or -errno (logged): the process must end. */
int __must_check jailed_enter(const struct opts *opts, int *disk_fd, int *pagemap_fd);

/** jailed_settle() - the VM is restored: what was only kept for that is closed. Safe without a
 * jail. */
void jailed_settle(void);

#endif
