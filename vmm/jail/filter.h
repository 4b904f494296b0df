/* SPDX-License-Identifier: Apache-2.0 */
/* The filter of a jail: a short list of system calls that end the process. The filters of
 * vmm/seccomp.h, which allow a short list instead, come on top before the guest runs. */
#ifndef THAW_JAIL_FILTER_H
#define THAW_JAIL_FILTER_H

#include "vmm/util/types.h"

/** jail_filter_apply() - on this thread and all that it makes; no_new_privs is set. Return: 0 or
 * -errno (logged). */
int __must_check jail_filter_apply(void);

#endif
