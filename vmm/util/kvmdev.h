/* SPDX-License-Identifier: Apache-2.0 */
/* /dev/kvm, also where there is no /dev. */
#ifndef THAW_UTIL_KVMDEV_H
#define THAW_UTIL_KVMDEV_H

#include "vmm/util/types.h"

/** kvm_keep() - open it now, for later kvm_open() calls from a jail. Return: 0 or -errno (logged).
 */
int __must_check kvm_keep(void);

/** kvm_open() - Return: an fd of the caller's, or -errno (not logged). */
int __must_check kvm_open(void);

/** kvm_forget() - what kvm_keep() opened is not needed any more. */
void kvm_forget(void);

#endif
