// SPDX-License-Identifier: Apache-2.0
// The doorbell, rung without pause: every command, unknown ones, every width; nobody at the control
// channel need read what comes of it.
#include "lib.h"

int main(void)
{
	for (u32 n = 0; n < 3000; n++) {
		wr32(DOORBELL + 0x08, 1);
		if (rd32(DOORBELL + 0x0c) != 95) {
			say("checkpoint without a place", "status %x", rd32(DOORBELL + 0x0c));
			break;
		}
	}
	say("checkpoint without a place", "EOPNOTSUPP", 0);
	for (u32 n = 0; n < 3000; n++)
		wr32(DOORBELL + 0x08, 2 + n % 2);
	for (u32 n = 0; n < 3000; n++)
		wr32(DOORBELL + 0x08, random32());
	for (u32 n = 0; n < 2000; n++) {
		volatile u8 *at = (volatile u8 *)(DOORBELL + random32() % 0x1000);

		*at = (u8)random32();
		*(volatile u64 *)at = random32();
		(void)*(volatile u16 *)at;
	}
	say("magic", "%x", rd32(DOORBELL));
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
