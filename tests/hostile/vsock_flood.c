// SPDX-License-Identifier: Apache-2.0
// Packets for nobody, packets that lie about their length, foreign addresses, unknown operations;
// first without a single receive buffer, so that answers can't go out.
#include "vsock.h"

int main(void)
{
	struct vsock v;
	struct packet out;
	u8 *data = alloc(4096, 4096);
	u32 answers = 0;
	struct packet in;

	vsock_start(&v, 0);
	for (u32 n = 0; n < 5000; n++) {
		out = (struct packet){.src_cid = 3,
				      .dst_cid = 2,
				      .src_port = random32(),
				      .dst_port = random32(),
				      .type = 1,
				      .op = (u16)(1 + n % 7)};
		switch (n % 9) {
		case 0:
			out.len = random32();
			break;
		case 1:
			out.src_cid = random32();
			break;
		case 2:
			out.dst_cid = ((u64)random32() << 32) | random32();
			break;
		case 3:
			out.op = (u16)random32();
			break;
		case 4:
			out.type = (u16)random32();
			break;
		default:
			break;
		}
		vsock_send(&v, &out, data, n % 3 ? 0 : 512);
		if (!(n % 16))
			for (volatile u32 spin = 0; spin < 3000; spin++)
				;
		if (rd32(v.regs + R_STATUS) & S_NEEDS_RESET) {
			say("flood", "needs reset", 0);
			break;
		}
	}
	say("flood", "survived", 0);
	vsock_start(&v, 16);
	out = (struct packet){
		.src_cid = 3, .dst_cid = 2, .src_port = 77, .dst_port = 78, .type = 1, .op = OP_RW};
	vsock_send(&v, &out, NULL, 0);
	while (answers < 1 && vsock_recv(&v, &in))
		answers += in.op == OP_RST && in.dst_port == 77 && in.src_port == 78;
	say("stray packet", answers ? "answered by RST" : "not answered", 0);
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
