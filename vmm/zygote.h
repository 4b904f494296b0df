/* SPDX-License-Identifier: Apache-2.0 */
/* The zygote: a thaw-vmm that has a snapshot open and checked, and forks a process for every
 * waiting VM it is asked for. */
#ifndef THAW_VMM_ZYGOTE_H
#define THAW_VMM_ZYGOTE_H

#include "vmm/util/types.h"

/**
 * zygote_serve() - serve CTL_FORK on @sock until its other end closes. No thread and no VM may
 * exist yet: KVM ties a VM to the process that creates it.
 * @ctl_fd: in a new process, its end of its own control channel.
 *
 * Return: 1 in a new process, which goes on by itself; 0 in the zygote at the channel's end; or
 * -errno (logged).
 */
int __must_check zygote_serve(int sock, int *ctl_fd);

#endif
