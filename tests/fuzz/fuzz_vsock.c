// SPDX-License-Identifier: Apache-2.0
// A hostile vsock driver and hostile host processes, as a sequence of steps; see seeds_vsock.py for
// the format.
//
// Oracles: the sanitizers; the event loop comes to rest (rig_run() fails when it spins); while the
// rings are sound, packets are well-formed and nothing outside the buffers given is written.
#include <linux/virtio_config.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "tests/unit/vsock_rig.h"
#include "vmm/virtio/vsock_table.h"

#define STEPS_MAX 200
#define SOCKS_MAX 16
#define GUARD_GPA 0x300000u /* above the rx buffers: no descriptor of the driver points here */

struct input {
	const u8 *data;
	size_t left;
};

struct target {
	struct rig rig;
	int socks[SOCKS_MAX]; /* host ends of connections made here */
	u32 nsocks;
	bool corrupt; /* the fuzzer wrote to the rings: only memory safety can be expected */
};

static u32 take(struct input *in, unsigned int len_bytes)
{
	u32 value = 0;

	for (unsigned int i = 0; i < len_bytes && in->left; i++, in->left--)
		value |= (u32)*in->data++ << (8 * i);
	return value;
}

static bool broken(const struct target *target)
{
	return !target->rig.dev->active || (target->rig.dev->status & VIRTIO_CONFIG_S_NEEDS_RESET);
}

/* A packet: most fields plausible, so that it often meets a connection; any can be spoilt. */
static void step_packet(struct target *target, struct input *in)
{
	struct virtio_vsock_hdr hdr = rig_header(take(in, 1) % 10, take(in, 1) % 4, take(in, 1));
	u32 real_len = take(in, 2), field, at;
	u64 bufs[2][2] = {{0x80000, sizeof(hdr)}, {0x90000, real_len}};
	u16 old = target->rig.queues[RIG_TX].avail;

	/* Host ports below 128 are the guest's choice; above, those of vsock_connect(). */
	if (hdr.dst_port >= 128)
		hdr.dst_port += 0x40000000 - 128;
	hdr.len = real_len;
	hdr.flags = take(in, 1);
	hdr.buf_alloc = take(in, 2) << 4;
	hdr.fwd_cnt = take(in, 2);
	field = take(in, 1);
	if (field & 0x80) {
		at = field % sizeof(hdr);
		((u8 *)&hdr)[at] ^= take(in, 1);
		bufs[0][1] -= take(in, 1) % 2;
	}
	memcpy(target->rig.ram + bufs[0][0], &hdr, sizeof(hdr));
	rig_add(&target->rig, RIG_TX, real_len ? 2 : 1, bufs, false);
	rig_kick_if_wanted(&target->rig, RIG_TX, old);
}

static void step_drain(struct target *target)
{
	struct rig_packet packet;

	if (target->corrupt) {
		target->rig.queues[RIG_RX].used += rig_used(&target->rig, RIG_RX);
		return;
	}
	while (rig_take(&target->rig, &packet)) {
		CHECK(packet.hdr.op >= VIRTIO_VSOCK_OP_REQUEST &&
		      packet.hdr.op <= VIRTIO_VSOCK_OP_CREDIT_REQUEST);
		CHECK(!packet.hdr.len || packet.hdr.op == VIRTIO_VSOCK_OP_RW);
	}
}

static void step_connect(struct target *target, struct input *in)
{
	u32 port = take(in, 1) % 4;
	int fds[2];

	if (target->nsocks == SOCKS_MAX)
		return;
	rig_pair(fds);
	target->socks[target->nsocks++] = fds[1];
	CHECK_EQ(vsock_connect(target->rig.dev, port, fds[0]), 0);
}

/* One of the host ends: of a connection made here, or one the guest made. */
static int *pick_sock(struct target *target, struct input *in)
{
	u32 i = take(in, 1);

	if (i % 2 && target->rig.naccepted)
		return &target->rig.accepted[i / 2 % target->rig.naccepted];
	return target->nsocks ? &target->socks[i / 2 % target->nsocks] : NULL;
}

static void step_sock(struct target *target, struct input *in)
{
	static u8 buf[65536];
	int *sock = pick_sock(target, in);
	u32 what = take(in, 1), len = take(in, 2);

	if (!sock || *sock < 0)
		return;
	switch (what % 5) {
	case 0:
		(void)!send(*sock, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	case 1:
		(void)!recv(*sock, buf, len, MSG_DONTWAIT);
		break;
	case 2:
		shutdown(*sock, SHUT_WR);
		break;
	case 3:
		shutdown(*sock, SHUT_RD);
		break;
	default:
		close(*sock);
		*sock = -1;
		break;
	}
}

/* Any byte of rings and descriptors. */
static void step_corrupt(struct target *target, struct input *in)
{
	u32 gpa = take(in, 3) % 0x30000;

	target->corrupt = true;
	target->rig.ram[gpa] = take(in, 1);
	for (unsigned int q = 0; q < 3; q++)
		virtio_kick(target->rig.dev, q);
}

/* Save into the same machine: the connections are gone, the rings and RAM go on. */
static void step_restore(struct target *target, struct input *in)
{
	struct rig *rig = &target->rig;
	struct snap_virtio state;

	virtio_save(rig->dev, &state);
	virtio_destroy(rig->dev);
	CHECK_EQ(vsock_create(&rig->host, 5, &rig->owner, &rig->dev), 0);
	CHECK_EQ(virtio_load(rig->dev, &state), 0);
	if (take(in, 1) % 2)
		vsock_transport_reset(rig->dev);
	CHECK_EQ(virtio_resume(rig->dev), 0);
}

static void step(struct target *target, struct input *in)
{
	struct rig *rig = &target->rig;
	u32 n;

	switch (take(in, 1) % 9) {
	case 0:
	case 1:
		step_packet(target, in);
		break;
	case 2:
		n = take(in, 1) % 32;
		if ((u16)(rig->queues[RIG_RX].avail - rig->queues[RIG_RX].used) + n <= RIG_SIZE)
			rig_post(rig, RIG_RX, n, MIN(take(in, 2) + 40, RIG_BUF_BYTES));
		break;
	case 3:
		step_drain(target);
		break;
	case 4:
		step_connect(target, in);
		break;
	case 5:
		step_sock(target, in);
		break;
	case 6:
		n = rig_used(rig, RIG_EVENT);
		rig->queues[RIG_EVENT].used += n;
		rig_post(rig, RIG_EVENT, 1 + take(in, 1) % 2, sizeof(struct virtio_vsock_event));
		break;
	case 7:
		if (take(in, 1) % 4 == 0)
			step_corrupt(target, in);
		else if (!broken(target))
			step_restore(target, in);
		break;
	default:
		if (take(in, 1) % 8 == 0 && !target->corrupt)
			rig_start_driver(rig);
		break;
	}
	rig->queues[RIG_TX].used += rig_used(rig, RIG_TX);
	rig_run(rig);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	static struct target target;
	struct input in = {data, size};

	target.nsocks = 0;
	target.corrupt = false;
	rig_open(&target.rig);
	for (u32 i = 0; i < STEPS_MAX && in.left; i++) {
		if (target.rig.naccepted >= SOCKS_MAX)
			target.rig.answer = -1;
		step(&target, &in);
		CHECK(vsock_connections(target.rig.dev) <= VSOCK_CONN_MAX);
	}
	for (u64 at = GUARD_GPA; !target.corrupt && at < RIG_RAM_BYTES; at += sizeof(u64))
		CHECK(!*(u64 *)(target.rig.ram + at));
	for (u32 i = 0; i < target.nsocks; i++) {
		if (target.socks[i] >= 0)
			close(target.socks[i]);
	}
	rig_close(&target.rig);
	return 0;
}
