// SPDX-License-Identifier: Apache-2.0
// Dispatch of port and memory-mapped accesses: a sorted array, constant once the guest runs.
#include "vmm/kvm/bus.h"

#include <errno.h>
#include <string.h>

#include "vmm/util/util.h"

int bus_add(struct bus *bus, u64 base, u64 len_bytes, bus_fn *fn, void *opaque)
{
	unsigned int at;
	u64 end;

	if (!len_bytes || !fn || !u64_add_ok(base, len_bytes, &end))
		return -EINVAL;
	for (unsigned int i = 0; i < bus->nranges; i++) {
		const struct bus_range *r = &bus->ranges[i];

		if (base < r->base + r->len_bytes && r->base < end)
			return -EINVAL;
	}
	if (bus->nranges == BUS_RANGES_MAX)
		return -ENOSPC;
	for (at = bus->nranges; at > 0 && bus->ranges[at - 1].base > base; at--)
		bus->ranges[at] = bus->ranges[at - 1];
	bus->ranges[at] = (struct bus_range){
		.base = base, .len_bytes = len_bytes, .fn = fn, .opaque = opaque};
	bus->nranges++;
	return 0;
}

bool bus_access(const struct bus *bus, u64 addr, void *data, u32 len_bytes, bool is_write)
{
	unsigned int low = 0, high = bus->nranges;

	while (low < high) {
		unsigned int mid = (low + high) / 2;
		const struct bus_range *r = &bus->ranges[mid];

		if (addr < r->base) {
			high = mid;
		} else if (addr - r->base >= r->len_bytes) {
			low = mid + 1;
		} else {
			if (len_bytes > r->len_bytes - (addr - r->base))
				break;
			r->fn(r->opaque, addr - r->base, data, len_bytes, is_write);
			return true;
		}
	}
	if (!is_write)
		memset(data, 0xff, len_bytes);
	return false;
}
