// SPDX-License-Identifier: Apache-2.0
// Chains that are legal link by link but too much: lengths whose sum wraps 32 bits, and more
// available entries than the ring has.
#include "lib.h"

int main(void)
{
	static const u32 ids[] = {ID_RNG, ID_BLK, ID_CONSOLE};

	for (u32 n = 0; n < 3; n++) {
		u64 regs = find(ids[n]);
		u32 index = ids[n] == ID_CONSOLE;
		u16 flags = ids[n] == ID_RNG ? F_WRITE : 0;
		struct queue q;

		init(regs, 0);
		queue_init(&q, regs, index, 128);
		driver_ok(regs);
		/* 127 times 64 MiB, all inside RAM: the sum is about 8 GiB. */
		for (u16 i = 0; i < 127; i++)
			put(&q, i, ARENA, 64u << 20, (u16)(flags | (i < 126 ? F_NEXT : 0)),
			    (u16)(i + 1));
		submit(&q, 0);
		say("sum over 4 GiB", broken(regs) ? "%x: needs reset" : "%x: not noticed", ids[n]);

		init(regs, 0);
		queue_init(&q, regs, index, 8);
		driver_ok(regs);
		q.avail[1] = 1000; /* claims 1,000 entries in a ring of 8 */
		barrier();
		wr32(regs + R_QUEUE_NOTIFY, index);
		say("avail index jump", broken(regs) ? "%x: needs reset" : "%x: not noticed",
		    ids[n]);

		init(regs, 0);
		queue_init(&q, regs, index, 8);
		driver_ok(regs);
		submit(&q, 4000); /* a head past the table */
		say("head past the table", broken(regs) ? "%x: needs reset" : "%x: not noticed",
		    ids[n]);
	}
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
