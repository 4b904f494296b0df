// SPDX-License-Identifier: Apache-2.0
// Rings where none can be: past memory, misaligned, over registers; impossible sizes; queues that
// do not exist.
#include "lib.h"

static void setup(u64 regs, u64 desc, u64 avail, u64 used, u32 size)
{
	init(regs, 0);
	wr32(regs + R_QUEUE_SEL, 0);
	wr32(regs + R_QUEUE_SIZE, size);
	for (u32 half = 0; half < 2; half++) {
		wr32(regs + R_QUEUE_DESC + 4 * half, (u32)(desc >> (32 * half)));
		wr32(regs + R_QUEUE_AVAIL + 4 * half, (u32)(avail >> (32 * half)));
		wr32(regs + R_QUEUE_USED + 4 * half, (u32)(used >> (32 * half)));
	}
	wr32(regs + R_QUEUE_READY, 1);
	driver_ok(regs);
	wr32(regs + R_QUEUE_NOTIFY, 0);
}

int main(void)
{
	u64 regs = find(ID_RNG);
	u64 good = ARENA;
	static const u64 bad[] = {
		RAM_END - 8,	    RAM_END,  0xc0000000, VIRTIO_BASE, 0xfffffffffffff000,
		0x8000000000000000, ARENA + 1};
	static const u32 sizes[] = {0, 3, 5, 257, 512, 32768, 65535, 65536, 0xffffffff};
	u32 alive = 0;

	for (u32 n = 0; n < sizeof(bad) / sizeof(bad[0]); n++) {
		setup(regs, bad[n], good + 4096, good + 8192, 8);
		say("descriptor table at", broken(regs) ? "%x: needs reset" : "%x: ignored",
		    bad[n]);
		setup(regs, good, bad[n], good + 8192, 8);
		say("avail ring at", broken(regs) ? "%x: needs reset" : "%x: ignored", bad[n]);
		setup(regs, good, good + 4096, bad[n], 8);
		say("used ring at", broken(regs) ? "%x: needs reset" : "%x: ignored", bad[n]);
	}
	for (u32 n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
		setup(regs, good, good + 4096, good + 8192, sizes[n]);
		alive += rd32(regs + R_MAGIC) == 0x74726976;
	}
	say("sizes", "%x survived", alive);
	/* Queues past the last, and notifications for them. */
	init(regs, 0);
	for (u32 n = 1; n < 100000; n = n * 3 + 1) {
		wr32(regs + R_QUEUE_SEL, n);
		wr32(regs + R_QUEUE_SIZE, 8);
		wr32(regs + R_QUEUE_READY, 1);
		wr32(regs + R_QUEUE_NOTIFY, n);
		if (rd32(regs + R_QUEUE_SIZE_MAX))
			say("queue", "%x exists", n);
	}
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
