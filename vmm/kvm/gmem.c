// SPDX-License-Identifier: Apache-2.0
// Guest RAM: guest physical addresses to host pointers, and nothing else does that.
#include "vmm/kvm/gmem.h"

#include <errno.h>
#include <string.h>

#include "vmm/util/util.h"

int gmem_add(struct gmem *gmem, u64 gpa, u64 len_bytes, void *hva)
{
	u64 end;

	if (!len_bytes || !hva || !u64_add_ok(gpa, len_bytes, &end))
		return -EINVAL;
	for (unsigned int i = 0; i < gmem->nregions; i++) {
		const struct gmem_region *r = &gmem->regions[i];

		if (gpa < r->gpa + r->len_bytes && r->gpa < end)
			return -EINVAL;
	}
	if (gmem->nregions == GMEM_REGIONS_MAX)
		return -ENOSPC;
	gmem->regions[gmem->nregions++] =
		(struct gmem_region){.gpa = gpa, .len_bytes = len_bytes, .hva = hva};
	return 0;
}

void *gmem_ptr(const struct gmem *gmem, u64 gpa, u64 len_bytes)
{
	for (unsigned int i = 0; len_bytes && i < gmem->nregions; i++) {
		const struct gmem_region *r = &gmem->regions[i];

		/* Written as differences: a sum could wrap with a hostile gpa or length. */
		if (gpa >= r->gpa && gpa - r->gpa < r->len_bytes &&
		    len_bytes <= r->len_bytes - (gpa - r->gpa))
			return (char *)r->hva + (gpa - r->gpa);
	}
	return NULL;
}

int gmem_read(const struct gmem *gmem, u64 gpa, void *dst, u64 len_bytes)
{
	const void *src = gmem_ptr(gmem, gpa, len_bytes);

	if (!src)
		return -EFAULT;
	memcpy(dst, src, len_bytes);
	return 0;
}

int gmem_write(const struct gmem *gmem, u64 gpa, const void *src, u64 len_bytes)
{
	void *dst = gmem_ptr(gmem, gpa, len_bytes);

	if (!dst)
		return -EFAULT;
	memcpy(dst, src, len_bytes);
	return 0;
}
