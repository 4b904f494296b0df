// SPDX-License-Identifier: Apache-2.0
// Block requests that a disk can't serve: past its end, wrapping, not whole sectors, without a
// status byte, of no known type.
#include "lib.h"

static u8 request(u32 type, u64 sector, u64 addr, u32 len, u16 flags)
{
	u64 regs = find(ID_BLK);
	u64 *header = alloc(16, 16);
	u8 *status = alloc(1, 16);
	struct queue q;

	init(regs, 0);
	queue_init(&q, regs, 0, 8);
	driver_ok(regs);
	header[0] = type;
	header[1] = sector;
	*status = 0xff;
	put(&q, 0, (u64)header, 16, F_NEXT, 1);
	put(&q, 1, addr, len, (u16)(flags | F_NEXT), 2);
	put(&q, 2, (u64)status, 1, F_WRITE, 0);
	submit(&q, 0);
	if (!wait_used(&q))
		return rd32(regs + R_STATUS) & S_NEEDS_RESET ? 0xfe : 0xfd;
	return *status;
}

int main(void)
{
	u64 regs = find(ID_BLK);
	u64 sectors = rd32(regs + R_CONFIG) | (u64)rd32(regs + R_CONFIG + 4) << 32;
	u64 buf = (u64)alloc(65536, 4096);
	struct queue q;

	say("good read", "%x", request(0, 0, buf, 4096, F_WRITE));
	say("good write", "%x", request(1, 8, buf, 4096, 0));
	say("read at the end", "%x", request(0, sectors, buf, 512, F_WRITE));
	say("read across the end", "%x", request(0, sectors - 1, buf, 1024, F_WRITE));
	say("write at the end", "%x", request(1, sectors, buf, 512, 0));
	say("write that wraps", "%x", request(1, ~0ull, buf, 512, 0));
	say("write at 2^55", "%x", request(1, 1ull << 55, buf, 512, 0));
	say("half a sector", "%x", request(1, 0, buf, 100, 0));
	say("write from a writable buffer", "%x", request(1, 0, buf, 512, F_WRITE));
	say("read into a readable buffer", "%x", request(0, 0, buf, 512, 0));
	say("unknown type", "%x", request(77, 0, buf, 512, 0));
	/* Discard and write zeroes without the feature, and with ranges of nonsense. */
	((u64 *)buf)[0] = sectors - 1;
	((u64 *)buf)[1] = 0xffffffff;
	say("discard past the end", "%x", request(11, 0, buf, 16, 0));
	say("zeroes past the end", "%x", request(13, 0, buf, 16, 0));
	say("discard of half a range", "%x", request(11, 0, buf, 9, 0));

	/* No status byte, no header, nothing but a status byte. */
	init(regs, 0);
	queue_init(&q, regs, 0, 8);
	driver_ok(regs);
	put(&q, 0, buf, 16, 0, 0);
	submit(&q, 0);
	say("no status byte", broken(regs) ? "needs reset" : "taken", 0);
	init(regs, 0);
	queue_init(&q, regs, 0, 8);
	driver_ok(regs);
	put(&q, 0, buf, 1, F_WRITE, 0);
	submit(&q, 0);
	say("no header", broken(regs) ? "needs reset" : "taken", 0);
	say("good read after all", "%x", request(0, 0, buf, 4096, F_WRITE));
	say("all", "done", 0);
	return 0;
}
