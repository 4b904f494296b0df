/* SPDX-License-Identifier: Apache-2.0 */
/* Where each 4 KiB block of the scratch disk is: two bits a block, in memory that costs nothing
 * until it is written. */
#ifndef THAW_VIRTIO_BLK_MAP_H
#define THAW_VIRTIO_BLK_MAP_H

#include "vmm/util/types.h"

#define BLK_BLOCK_BYTES ((u64)4096)

enum blk_state {
	BLK_BASE = 0,  /* in the base file; zeros where there is none */
	BLK_DELTA = 1, /* in the delta file */
	BLK_ZERO = 2,  /* reads as zeros: discarded, whatever the files hold */
};

struct blk_map {
	u64 nblocks;
	u64 *words; /* 32 blocks a word; mapped, so that an untouched page stays unallocated */
	size_t len_bytes;
};

/** blk_map_init() - @nblocks (> 0) blocks, all BLK_BASE. Return: 0 or -errno. blk_map_destroy()
 * frees; fine on a zeroed map. */
int __must_check blk_map_init(struct blk_map *map, u64 nblocks);
void blk_map_destroy(struct blk_map *map);

/** blk_map_get() - state of @block, which must be below nblocks. */
enum blk_state blk_map_get(const struct blk_map *map, u64 block);

/** blk_map_set() - set [@block, @block + @count), which must lie inside the map. Words that hold
 * the state already are not written. */
void blk_map_set(struct blk_map *map, u64 block, u64 count, enum blk_state state);

/** blk_map_run() - how many blocks from @block on, at most @max (>= 1; inside the map), have
 * @block's state. Return: 1..@max. */
u64 blk_map_run(const struct blk_map *map, u64 block, u64 max);

#endif
