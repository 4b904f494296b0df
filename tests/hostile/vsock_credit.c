// SPDX-License-Identifier: Apache-2.0
// Credit abuse: the host side of the test connects and never reads; this guest sends without end,
// ignoring the credit it was given.
#include "vsock.h"

int main(void)
{
	struct vsock v;
	struct packet in, out;
	u8 *data = alloc(65536, 4096);
	u32 sent = 0, rst = 0;

	memset(data, 'x', 65536);
	vsock_start(&v, 16);
	wr32(DOORBELL + 0x08, 3); /* ready: the host may connect */
	do {
		if (!vsock_recv(&v, &in)) {
			say("request", "none came", 0);
			return 0;
		}
	} while (in.op != OP_REQUEST);
	say("request", "port %x", in.dst_port);
	out = (struct packet){.src_cid = in.dst_cid,
			      .dst_cid = in.src_cid,
			      .src_port = in.dst_port,
			      .dst_port = in.src_port,
			      .type = 1,
			      .op = OP_RESPONSE,
			      .buf_alloc = 0xffffffff};
	vsock_send(&v, &out, NULL, 0);
	wait_used(&v.tx);
	out.op = OP_RW;
	out.len = 65536;
	/* 64 MiB at most: any sane buffer is smaller. */
	for (u32 n = 0; n < 1024 && !rst; n++) {
		vsock_send(&v, &out, data, 65536);
		if (!wait_used(&v.tx))
			break;
		sent++;
		while (v.rx.used[1] != v.rx.last_used && vsock_recv(&v, &in))
			rst |= in.op == OP_RST;
	}
	for (u32 n = 0; n < 50 && !rst && vsock_recv(&v, &in); n++)
		rst |= in.op == OP_RST;
	say("after too much", rst ? "reset" : "no reset", 0);
	say("sent KiB", "%x", sent * 64);
	say("control", rng_works() ? "rng works" : "rng is dead", 0);
	say("all", "done", 0);
	return 0;
}
