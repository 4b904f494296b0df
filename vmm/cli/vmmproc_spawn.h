/* SPDX-License-Identifier: Apache-2.0 */
/* How vmmproc_start() makes the process. */
#ifndef THAW_CLI_VMMPROC_SPAWN_H
#define THAW_CLI_VMMPROC_SPAWN_H

#include "vmm/cli/vmmproc.h"

/** vmmproc_spawn() - @path as the child of this process, with @child_ctl_fd as VMMPROC_CTL_FD.
 * Return: 0 and @proc->pid, or -errno (logged). */
int __must_check vmmproc_spawn(struct vmmproc *proc, const struct vmmproc_opts *opts,
			       const char *path, int child_ctl_fd);

#endif
