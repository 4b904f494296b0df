// SPDX-License-Identifier: Apache-2.0
// No attack: a guest that can be snapshotted, restored and snapshotted again, for tests of the jail
// on hosts where no real guest runs. It writes its scratch disk's place in memory between the
// calls, so that there is something that differs.
#include "lib.h"

int main(void)
{
	volatile u64 *count = alloc(4096, 4096);

	wr32(DOORBELL + 0x08, 1); /* the template's checkpoint */
	wr32(DOORBELL + 0x08, 2); /* resumed */
	wr32(DOORBELL + 0x08, 3); /* ready */
	say("sleeper", "runs", 0);
	for (;;) {
		++*count;
		for (u32 n = 0; n < 20000; n++)
			__asm__ volatile("pause");
		wr32(DOORBELL + 0x08, 1);
	}
}
