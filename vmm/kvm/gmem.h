/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guest RAM as devices see it: the only file that turns a guest physical address into a host
 * pointer.
 *
 * Only RAM is in here: not the pmem range, not the mailbox, not registers. So a descriptor can
 * never make a device write to the shared root image or to another device. The table is filled
 * before the first vCPU runs and never changed after.
 */
#ifndef THAW_KVM_GMEM_H
#define THAW_KVM_GMEM_H

#include "vmm/util/types.h"

#define GMEM_REGIONS_MAX 2 /* below the PCI hole, above 4 GiB */

struct gmem_region {
	u64 gpa;
	u64 len_bytes;
	void *hva;
};

struct gmem {
	struct gmem_region regions[GMEM_REGIONS_MAX];
	unsigned int nregions;
};

/** gmem_add() - RAM [@gpa, @gpa + @len_bytes) is at @hva. Return: 0, -EINVAL (empty, wraps,
 * overlaps), -ENOSPC. */
int __must_check gmem_add(struct gmem *gmem, u64 gpa, u64 len_bytes, void *hva);

/**
 * gmem_ptr() - host address of [@gpa, @gpa + @len_bytes), if all of it is in one region.
 * Return: the pointer, or NULL (also for a length of 0 or one that wraps). What it points to may
 * change under the reader's feet: copy first, then check, then use.
 */
void *gmem_ptr(const struct gmem *gmem, u64 gpa, u64 len_bytes);

/** gmem_read() / gmem_write() - copy out of / into guest RAM. Return: 0 or -EFAULT. */
int __must_check gmem_read(const struct gmem *gmem, u64 gpa, void *dst, u64 len_bytes);
int __must_check gmem_write(const struct gmem *gmem, u64 gpa, const void *src, u64 len_bytes);

#endif
