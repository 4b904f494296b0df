/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch of port and memory-mapped accesses to their handlers. Filled before the first KVM_RUN
 * and constant after, so it needs no lock. */
#ifndef THAW_KVM_BUS_H
#define THAW_KVM_BUS_H

#include "vmm/util/types.h"

#define BUS_RANGES_MAX 16

/** @offset: from the range's base; @data: @len_bytes (1, 2, 4, 8), to fill (read) or to take
 * (write). */
typedef void bus_fn(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write);

struct bus_range {
	u64 base;
	u64 len_bytes;
	bus_fn *fn;
	void *opaque;
};

struct bus {
	struct bus_range ranges[BUS_RANGES_MAX]; /* sorted by base */
	unsigned int nranges;
};

/** bus_add() - Return: 0, -EINVAL (empty, wraps, overlaps) or -ENOSPC. */
int __must_check bus_add(struct bus *bus, u64 base, u64 len_bytes, bus_fn *fn, void *opaque);

/**
 * bus_access() - one access. Where nobody answers, or the access straddles a range's end, a read
 * gives all ones and a write is dropped. Return: true if a handler took it.
 */
bool bus_access(const struct bus *bus, u64 addr, void *data, u32 len_bytes, bool is_write);

#endif
