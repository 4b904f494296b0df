// SPDX-License-Identifier: Apache-2.0
// Descriptor chains without an end: a descriptor that names itself, and a ring of all of them.
#include "lib.h"

static void attack(const char *name, u32 id, u32 queue, u16 flags)
{
	u64 regs = find(id);
	struct queue q;

	init(regs, 0);
	queue_init(&q, regs, queue, 16);
	driver_ok(regs);
	put(&q, 0, ARENA, 64, flags | F_NEXT, 0);
	submit(&q, 0);
	say(name, broken(regs) ? "self loop: needs reset" : "self loop: not noticed", 0);

	init(regs, 0);
	queue_init(&q, regs, queue, 16);
	driver_ok(regs);
	for (u16 i = 0; i < 16; i++)
		put(&q, i, ARENA, 64, flags | F_NEXT, (u16)((i + 1) % 16));
	submit(&q, 3);
	say(name, broken(regs) ? "long loop: needs reset" : "long loop: not noticed", 0);

	init(regs, 0);
	queue_init(&q, regs, queue, 16);
	driver_ok(regs);
	put(&q, 0, ARENA, 64, flags | F_NEXT, 16); /* next past the table */
	submit(&q, 0);
	say(name,
	    broken(regs) ? "next past the table: needs reset" : "next past the table: not noticed",
	    0);
}

int main(void)
{
	attack("rng", ID_RNG, 0, F_WRITE);
	attack("blk", ID_BLK, 0, 0);
	attack("console", ID_CONSOLE, 1, 0);
	attack("vsock", ID_VSOCK, 1, 0);
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
