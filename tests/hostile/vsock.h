/* SPDX-License-Identifier: Apache-2.0 */
/* virtio-vsock packets as the hostile guests make them; virtio 1.2 section 5.10.6. */
#ifndef THAW_TESTS_HOSTILE_VSOCK_H
#define THAW_TESTS_HOSTILE_VSOCK_H

#include "lib.h"

enum {
	OP_REQUEST = 1,
	OP_RESPONSE,
	OP_RST,
	OP_SHUTDOWN,
	OP_RW,
	OP_CREDIT_UPDATE,
	OP_CREDIT_REQUEST
};

struct packet {
	u64 src_cid, dst_cid;
	u32 src_port, dst_port;
	u32 len;
	u16 type, op;
	u32 flags, buf_alloc, fwd_cnt;
} __attribute__((packed));

struct vsock {
	u64 regs;
	struct queue rx, tx, event;
	u8 *rx_buf[16];
};

/** vsock_start() - all three queues, @nrx (<= 16) receive buffers of 4 KiB posted. */
static inline void vsock_start(struct vsock *v, u32 nrx)
{
	v->regs = find(ID_VSOCK);
	init(v->regs, 0);
	queue_init(&v->rx, v->regs, 0, 16);
	queue_init(&v->tx, v->regs, 1, 64);
	queue_init(&v->event, v->regs, 2, 8);
	driver_ok(v->regs);
	for (u16 i = 0; i < nrx; i++) {
		v->rx_buf[i] = alloc(4096, 4096);
		put(&v->rx, i, (u64)v->rx_buf[i], 4096, F_WRITE, 0);
		submit(&v->rx, i);
	}
}

/** vsock_recv() - next packet from the host, or NULL after a bounded wait; its buffer is posted
 * again. */
static inline bool vsock_recv(struct vsock *v, struct packet *out)
{
	u32 id;

	if (!wait_used(&v->rx))
		return false;
	barrier();
	id = *(volatile u32 *)&v->rx.used[2 + 4 * ((v->rx.last_used - 1) % v->rx.size)];
	memcpy(out, v->rx_buf[id % 16], sizeof(*out));
	submit(&v->rx, (u16)id);
	return true;
}

/** vsock_send() - header and @len bytes at @data, without waiting for the device. */
static inline void vsock_send(struct vsock *v, const struct packet *packet, const void *data,
			      u32 len)
{
	static u16 next;
	static u8 *headers; /* 32 slots, reused in turn */
	u16 head = (u16)(next * 2 % 64);
	struct packet *copy;

	if (!headers)
		headers = alloc(32 * 64, 64);
	copy = (struct packet *)(headers + 64 * (next % 32));
	next++;
	*copy = *packet;
	put(&v->tx, head, (u64)copy, sizeof(*copy), len ? F_NEXT : 0, (u16)(head + 1));
	if (len)
		put(&v->tx, (u16)(head + 1), (u64)data, len, 0, 0);
	submit(&v->tx, head);
}

#endif
