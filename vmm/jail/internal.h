/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the jail share. */
#ifndef THAW_JAIL_INTERNAL_H
#define THAW_JAIL_INTERNAL_H

#include "vmm/jail/jail.h"

/** jail_take_uid() - fill in uid and slot_fd of @jail. Return: 0 or -errno (logged). */
int __must_check jail_take_uid(const struct state *state, const struct jail_config *config,
			       struct jail *jail);

/** jail_cgroup_make() - fill in cgroup_fd and cgroup_path of @jail. Without cgroup v2, and none
 * required: -1 and "". Return: 0 or -errno (logged). */
int __must_check jail_cgroup_make(const struct state *state, const struct jail_config *config,
				  const char *name, const struct jail_limits *limits,
				  struct jail *jail);

#endif
