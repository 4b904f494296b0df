// SPDX-License-Identifier: Apache-2.0
// A device reset with requests in flight: once the reset is done nothing may be written into the
// guest's memory any more.
#include "lib.h"

#define REQUESTS 40
#define BYTES	 65536u

int main(void)
{
	u64 regs = find(ID_BLK);
	u64 *headers = alloc(16 * REQUESTS, 16);
	u8 *status = alloc(REQUESTS, 16);
	u8 *data = alloc((u64)REQUESTS * BYTES, 4096);
	u64 base = (u64)alloc(1 << 20, 4096);
	u32 late = 0;

	for (u32 round = 0; round < 60; round++) {
		struct queue q = {.regs = regs, .size = 256};

		q.desc = (void *)base;
		q.avail = (void *)(base + 8192);
		q.used = (void *)(base + 16384);
		memset((void *)base, 0, 32768);
		init(regs, 0);
		wr32(regs + R_QUEUE_SEL, 0);
		wr32(regs + R_QUEUE_SIZE, 128);
		q.size = 128;
		wr32(regs + R_QUEUE_DESC, (u32)(u64)q.desc);
		wr32(regs + R_QUEUE_DESC + 4, 0);
		wr32(regs + R_QUEUE_AVAIL, (u32)(u64)q.avail);
		wr32(regs + R_QUEUE_AVAIL + 4, 0);
		wr32(regs + R_QUEUE_USED, (u32)(u64)q.used);
		wr32(regs + R_QUEUE_USED + 4, 0);
		wr32(regs + R_QUEUE_READY, 1);
		driver_ok(regs);
		for (u16 i = 0; i < REQUESTS; i++) {
			headers[2 * i] = 0; /* IN */
			headers[2 * i + 1] = (u64)i * (BYTES / 512);
			put(&q, (u16)(3 * i), (u64)&headers[2 * i], 16, F_NEXT, (u16)(3 * i + 1));
			put(&q, (u16)(3 * i + 1), (u64)data + (u64)i * BYTES, BYTES,
			    F_WRITE | F_NEXT, (u16)(3 * i + 2));
			put(&q, (u16)(3 * i + 2), (u64)&status[i], 1, F_WRITE, 0);
			submit(&q, (u16)(3 * i));
		}
		wr32(regs + R_STATUS, 0);
		while (rd32(regs + R_STATUS))
			;
		memset(data, 0xa5, (u64)REQUESTS * BYTES);
		memset(status, 0xa5, REQUESTS);
		for (volatile u32 spin = 0; spin < 200000; spin++)
			;
		for (u64 i = 0; i < (u64)REQUESTS * BYTES; i += 512)
			late += data[i] != 0xa5;
		for (u32 i = 0; i < REQUESTS; i++)
			late += status[i] != 0xa5;
	}
	say("writes after a reset", "%x", late);
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
