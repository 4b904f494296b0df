// SPDX-License-Identifier: Apache-2.0
// Buffers that are not RAM: past the end, across the end, in the hole, over device registers, the
// mailbox and the shared root image, and addresses that wrap.
#include "lib.h"

int main(void)
{
	static const struct {
		u64 addr;
		u32 len;
	} places[] = {
		{RAM_END, 16},
		{RAM_END - 8, 16},
		{0xc0000000ull, 16},
		{VIRTIO_BASE, 16},
		{0xd0001000ull, 16},  /* mailbox */
		{0x100000000ull, 16}, /* the root image, mapped read-only */
		{0xfee00000ull, 16},
		{0xfffffffffffffff8ull, 16},
		{0x8000000000000000ull, 16},
		{ARENA, 0xffffffff},
		{ARENA, 0},
	};
	u64 regs = find(ID_RNG);
	u64 blk = find(ID_BLK);
	struct queue q;

	for (u32 n = 0; n < sizeof(places) / sizeof(places[0]); n++) {
		init(regs, 0);
		queue_init(&q, regs, 0, 8);
		driver_ok(regs);
		put(&q, 0, places[n].addr, places[n].len, F_WRITE, 0);
		submit(&q, 0);
		say("rng write to", broken(regs) ? "%x: needs reset" : "%x: taken", places[n].addr);
	}
	/* The same as the data buffer of a block read, behind a good header. */
	for (u32 n = 0; n < sizeof(places) / sizeof(places[0]); n++) {
		u64 *header = alloc(16, 16);
		u8 *status = alloc(1, 16);

		*status = 0xff;
		init(blk, 0);
		queue_init(&q, blk, 0, 8);
		driver_ok(blk);
		put(&q, 0, (u64)header, 16, F_NEXT, 1);
		put(&q, 1, places[n].addr, places[n].len & ~511u ? places[n].len & ~511u : 512,
		    F_WRITE | F_NEXT, 2);
		put(&q, 2, (u64)status, 1, F_WRITE, 0);
		submit(&q, 0);
		if (broken(blk))
			say("blk read to", "%x: refused", places[n].addr);
		else
			say("blk read to", *status == 0 ? "%x: taken" : "%x: refused",
			    places[n].addr);
	}
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
