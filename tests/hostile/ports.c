// SPDX-License-Identifier: Apache-2.0
// Ports, holes of the address space and the IOAPIC, at random.
#include "lib.h"

int main(void)
{
	static const u64 bases[] = {0xc0000000, 0xd0000000, 0xd0008000, 0xd0010000, 0xe0000000,
				    0xfec00000, 0xfec01000, 0xfed00000, 0xff000000};
	u64 sum = 0;

	for (u32 n = 0; n < 5000; n++) {
		u16 port = (u16)random32();

		if (port == 0x600 || port == 0x604 || (port & ~7) == 0x3f8)
			continue;
		if (n & 1)
			outb(port, (u8)random32());
		else
			sum += inb(port);
	}
	say("ports", "survived", 0);
	for (u32 n = 0; n < 5000; n++) {
		u64 at = bases[random32() % 9] + (random32() & 0xffc);

		if (at >= DOORBELL && at < DOORBELL + 0x1000)
			continue; /* doorbell.c does that */
		if (n & 1)
			wr32(at, random32());
		else
			sum += rd32(at);
	}
	say("holes", "survived", 0);
	for (u32 n = 0; n < 5000; n++) {
		wr32(0xfec00000, random32() % 0x60);
		if (n & 1)
			wr32(0xfec00010, random32());
		else
			sum += rd32(0xfec00010);
	}
	say("ioapic", sum ? "survived" : "survived", 0);
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
