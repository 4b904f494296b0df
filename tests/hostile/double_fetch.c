// SPDX-License-Identifier: Apache-2.0
// Descriptors and rings that change while the device reads them: the device runs on another thread
// of the host, so this one rewrites them all the time.
#include "lib.h"

static void storm(const char *name, u32 id, u32 index, u16 flags, u32 rounds)
{
	u64 regs = find(id);
	u32 resets = 0;
	struct queue q;
	u64 scratch = (u64)alloc(65536, 4096);

	init(regs, 0);
	queue_init(&q, regs, index, 16);
	driver_ok(regs);
	for (u32 n = 0; n < rounds; n++) {
		for (u16 i = 0; i < 16; i++)
			put(&q, i, scratch + 512u * i, 512, (u16)(flags | (i % 4 < 3 ? F_NEXT : 0)),
			    (u16)(i + 1));
		for (u16 i = 0; i < 16; i += 4)
			submit(&q, i);
		for (u32 k = 0; k < 200; k++) {
			u16 i = random32() % 16;

			switch (random32() % 5) {
			case 0:
				q.desc[i].addr = ((u64)random32() << 32) | random32();
				break;
			case 1:
				q.desc[i].len = random32();
				break;
			case 2:
				q.desc[i].flags = (u16)random32();
				break;
			case 3:
				q.desc[i].next = (u16)random32();
				break;
			default:
				q.desc[i].addr = scratch;
				break;
			}
		}
		if (rd32(regs + R_STATUS) & S_NEEDS_RESET) {
			u16 size = q.size;

			resets++;
			init(regs, 0);
			q.avail[1] = q.avail[0] = 0;
			q.used[1] = q.used[0] = 0;
			q.last_used = 0;
			wr32(regs + R_QUEUE_SEL, index);
			wr32(regs + R_QUEUE_SIZE, size);
			wr32(regs + R_QUEUE_DESC, (u32)(u64)q.desc);
			wr32(regs + R_QUEUE_AVAIL, (u32)(u64)q.avail);
			wr32(regs + R_QUEUE_USED, (u32)(u64)q.used);
			wr32(regs + R_QUEUE_READY, 1);
			driver_ok(regs);
		}
	}
	say(name, resets ? "survived, was reset" : "survived, never reset", 0);
	wr32(regs + R_STATUS, 0);
}

int main(void)
{
	storm("rng", ID_RNG, 0, F_WRITE, 300);
	storm("blk", ID_BLK, 0, 0, 300);
	storm("vsock", ID_VSOCK, 1, 0, 300);
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
