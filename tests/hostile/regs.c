// SPDX-License-Identifier: Apache-2.0
// Register accesses in no order that any driver has: every device page, every width, every
// alignment.
#include "lib.h"

int main(void)
{
	volatile u8 *base = (volatile u8 *)VIRTIO_BASE;
	u64 sum = 0;

	for (u32 n = 0; n < 20000; n++) {
		u32 slot = random32() % 6;
		u32 offset = random32() % 4 ? (random32() % 0x120) & ~3u : random32() % 0x1000;
		u32 value = random32() % 3 ? random32() % 16 : random32();
		volatile u8 *at = base + slot * 0x1000 + offset;

		switch (random32() % 8) {
		case 0:
			sum += *(volatile u32 *)at;
			break;
		case 1:
			*(volatile u8 *)at = (u8)value;
			break;
		case 2:
			*(volatile u16 *)at = (u16)value;
			break;
		case 3:
			*(volatile u64 *)at = value;
			break;
		case 4:
			sum += *(volatile u8 *)at + *(volatile u16 *)at + *(volatile u64 *)at;
			break;
		default:
			*(volatile u32 *)at = value;
			break;
		}
	}
	say("random accesses", sum ? "survived" : "survived", 0);

	/* The state machine: DRIVER_OK without features, features after FEATURES_OK, all bits, no
	 * VERSION_1. */
	u64 regs = find(ID_RNG);

	wr32(regs + R_STATUS, 0);
	wr32(regs + R_STATUS, S_ACK | S_DRIVER | S_DRIVER_OK);
	wr32(regs + R_QUEUE_NOTIFY, 0);
	wr32(regs + R_STATUS, 0);
	wr32(regs + R_STATUS, S_ACK | S_DRIVER);
	wr32(regs + R_DRIVER_FEATURES_SEL, 0);
	wr32(regs + R_DRIVER_FEATURES, 0xffffffff);
	wr32(regs + R_DRIVER_FEATURES_SEL, 1);
	wr32(regs + R_DRIVER_FEATURES, 0xffffffff);
	wr32(regs + R_STATUS, S_ACK | S_DRIVER | S_FEATURES_OK);
	say("features not offered", rd32(regs + R_STATUS) & S_FEATURES_OK ? "accepted" : "refused",
	    0);
	wr32(regs + R_STATUS, 0);
	wr32(regs + R_STATUS, S_ACK | S_DRIVER);
	wr32(regs + R_DRIVER_FEATURES_SEL, 0);
	wr32(regs + R_DRIVER_FEATURES, 0);
	wr32(regs + R_DRIVER_FEATURES_SEL, 1);
	wr32(regs + R_DRIVER_FEATURES, 0);
	wr32(regs + R_STATUS, S_ACK | S_DRIVER | S_FEATURES_OK);
	say("no VERSION_1", rd32(regs + R_STATUS) & S_FEATURES_OK ? "accepted" : "refused", 0);
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
