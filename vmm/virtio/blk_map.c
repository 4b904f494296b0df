// SPDX-License-Identifier: Apache-2.0
// The copy-on-write map of the scratch disk.
#include "vmm/virtio/blk_map.h"

#include <errno.h>
#include <sys/mman.h>

#include "vmm/util/log.h"

#define BLOCKS_PER_WORD 32
#define STATE_MASK	3ull

int blk_map_init(struct blk_map *map, u64 nblocks)
{
	u64 len_bytes = (nblocks + BLOCKS_PER_WORD - 1) / BLOCKS_PER_WORD * sizeof(u64);
	void *words;

	*map = (struct blk_map){0};
	if (nblocks == 0 || nblocks > (u64)1 << 48)
		return -EINVAL;
	words = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (words == MAP_FAILED)
		return -errno;
	*map = (struct blk_map){.nblocks = nblocks, .words = words, .len_bytes = len_bytes};
	return 0;
}

void blk_map_destroy(struct blk_map *map)
{
	if (map->words)
		BUG_ON(munmap(map->words, map->len_bytes));
	*map = (struct blk_map){0};
}

static enum blk_state word_state(u64 word, u64 block)
{
	return (enum blk_state)(word >> (block % BLOCKS_PER_WORD * 2) & STATE_MASK);
}

/* A word in which every block has @state. */
static u64 full_word(enum blk_state state)
{
	return (u64)state * 0x5555555555555555ull;
}

enum blk_state blk_map_get(const struct blk_map *map, u64 block)
{
	BUG_ON(block >= map->nblocks);
	return word_state(map->words[block / BLOCKS_PER_WORD], block);
}

void blk_map_set(struct blk_map *map, u64 block, u64 count, enum blk_state state)
{
	BUG_ON(block > map->nblocks || count > map->nblocks - block);
	while (count) {
		u64 *word = &map->words[block / BLOCKS_PER_WORD];
		u64 first = block % BLOCKS_PER_WORD;
		u64 n = MIN(count, BLOCKS_PER_WORD - first);
		u64 mask = n == BLOCKS_PER_WORD ? ~0ull : ((1ull << (n * 2)) - 1) << (first * 2);
		u64 value = (*word & ~mask) | (full_word(state) & mask);

		/* A page of the map that stays as it is must not be allocated for nothing. */
		if (*word != value)
			*word = value;
		block += n;
		count -= n;
	}
}

u64 blk_map_run(const struct blk_map *map, u64 block, u64 max)
{
	enum blk_state state = blk_map_get(map, block);
	u64 n = 1;

	BUG_ON(max == 0 || max > map->nblocks - block);
	while (n < max) {
		u64 word = map->words[(block + n) / BLOCKS_PER_WORD];

		if ((block + n) % BLOCKS_PER_WORD == 0 && word == full_word(state)) {
			n += BLOCKS_PER_WORD;
			continue;
		}
		if (word_state(word, block + n) != state)
			break;
		n++;
	}
	return MIN(n, max);
}
