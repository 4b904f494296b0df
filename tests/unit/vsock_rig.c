// SPDX-License-Identifier: Apache-2.0
// The driver's side of a vsock device, for tests. RAM: rings from 0, events, tx and rx buffers
// above.
#include "tests/unit/vsock_rig.h"

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/util/log.h"

#define QUEUE_GPA(q)  (0x10000ull * (q))
#define AVAIL_OFF     0x4000u
#define USED_OFF      0x8000u
#define EVENT_BUF_GPA 0x40000ull
#define TX_BUF_GPA    0x80000ull
#define RX_BUF_GPA    0x200000ull

static void rig_interrupt(struct virtio_host *host, unsigned int slot)
{
	(void)slot;
	container_of(host, struct rig, host)->interrupts++;
}

static void rig_defer(struct virtio_host *host, unsigned int slot, unsigned int q)
{
	(void)slot;
	container_of(host, struct rig, host)->deferred |= 1u << q;
}

void rig_pair(int fds[2])
{
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

static int rig_guest_connect(struct vsock_owner *owner, u32 port)
{
	struct rig *rig = container_of(owner, struct rig, owner);
	int fds[2];

	rig->asked_port = port;
	rig->asked++;
	if (rig->answer < 0)
		return rig->answer;
	rig_pair(fds);
	CHECK(rig->naccepted < ARRAY_SIZE(rig->accepted));
	rig->accepted[rig->naccepted++] = fds[1];
	return fds[0];
}

void rig_open_dead(struct rig *rig)
{
	*rig = (struct rig){
		.host = {.interrupt = rig_interrupt, .defer = rig_defer},
		.owner = {.guest_connect = rig_guest_connect},
	};
	log_set_level(LOG_ERROR);
	rig->ram = calloc(1, RIG_RAM_BYTES);
	CHECK(rig->ram);
	CHECK_EQ(gmem_add(&rig->gmem, 0, RIG_RAM_BYTES, rig->ram), 0);
	CHECK_EQ(ev_init(&rig->ev), 0);
	rig->host.gmem = &rig->gmem;
	rig->host.ev = &rig->ev;
	CHECK_EQ(vsock_create(&rig->host, 5, &rig->owner, &rig->dev), 0);
}

void rig_start_driver(struct rig *rig)
{
	struct virtio_dev *dev = rig->dev;
	const u32 steps = VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER;

	virtio_set_status(dev, 0);
	memset(rig->ram, 0, QUEUE_GPA(3));
	virtio_set_status(dev, steps);
	dev->driver_features = 1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_RING_F_EVENT_IDX;
	virtio_set_status(dev, steps | VIRTIO_CONFIG_S_FEATURES_OK);
	for (unsigned int q = 0; q < 3; q++) {
		struct virtq *vq = &dev->queues[q];

		vq->size = RIG_SIZE;
		vq->desc_gpa = QUEUE_GPA(q);
		vq->avail_gpa = QUEUE_GPA(q) + AVAIL_OFF;
		vq->used_gpa = QUEUE_GPA(q) + USED_OFF;
		virtio_set_queue_ready(dev, q, true);
		CHECK(vq->ready);
		rig->queues[q] = (struct rig_queue){0};
	}
	virtio_set_status(dev, steps | VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK);
	CHECK(dev->active);
}

void rig_open(struct rig *rig)
{
	rig_open_dead(rig);
	rig_start_driver(rig);
	rig_run(rig);
}

void rig_close(struct rig *rig)
{
	virtio_destroy(rig->dev);
	ev_destroy(&rig->ev);
	for (u32 i = 0; i < rig->naccepted; i++) {
		if (rig->accepted[i] >= 0)
			close(rig->accepted[i]);
	}
	free(rig->ram);
}

void rig_clone(struct rig *clone, const struct rig *rig, bool due)
{
	struct snap_virtio state;

	virtio_save(rig->dev, &state);
	rig_open_dead(clone);
	memcpy(clone->ram, rig->ram, RIG_RAM_BYTES);
	memcpy(clone->queues, rig->queues, sizeof(clone->queues));
	CHECK_EQ(virtio_load(clone->dev, &state), 0);
	if (due)
		vsock_transport_reset(clone->dev);
}

static u16 *rig_u16(struct rig *rig, u64 gpa)
{
	return (u16 *)(rig->ram + gpa);
}

bool rig_kick_if_wanted(struct rig *rig, unsigned int q, u16 old_avail)
{
	u16 event = *rig_u16(rig, QUEUE_GPA(q) + USED_OFF + 4 + 8 * RIG_SIZE);
	u16 new_avail = rig->queues[q].avail;

	if ((u16)(new_avail - event - 1) >= (u16)(new_avail - old_avail))
		return false;
	virtio_kick(rig->dev, q);
	return true;
}

void rig_add(struct rig *rig, unsigned int q, unsigned int n, const u64 (*bufs)[2], bool writable)
{
	struct vring_desc *table = (void *)(rig->ram + QUEUE_GPA(q));
	u64 avail_gpa = QUEUE_GPA(q) + AVAIL_OFF;
	/* Chains of one buffer use the slot of their ring entry; longer ones go from there on. */
	u16 head = rig->queues[q].avail % RIG_SIZE;

	for (unsigned int i = 0; i < n; i++) {
		table[(head + i) % RIG_SIZE] = (struct vring_desc){
			.addr = bufs[i][0],
			.len = (u32)bufs[i][1],
			.flags = (writable ? VRING_DESC_F_WRITE : 0) |
				 (i + 1 < n ? VRING_DESC_F_NEXT : 0),
			.next = (head + i + 1) % RIG_SIZE,
		};
	}
	*rig_u16(rig, avail_gpa + 4 + 2 * (rig->queues[q].avail % RIG_SIZE)) = head;
	rig->queues[q].avail++;
	*rig_u16(rig, avail_gpa + 2) = rig->queues[q].avail;
	/* used_event: interrupt at the next used entry, as a driver that waits. */
	*rig_u16(rig, avail_gpa + 4 + 2 * RIG_SIZE) = rig->queues[q].used;
}

void rig_post(struct rig *rig, unsigned int q, unsigned int n, u32 len_bytes)
{
	u64 base_gpa = q == RIG_RX ? RX_BUF_GPA : EVENT_BUF_GPA;
	u16 old = rig->queues[q].avail;

	for (unsigned int i = 0; i < n; i++) {
		u64 buf[1][2] = {
			{base_gpa + RIG_BUF_BYTES * (rig->queues[q].avail % RIG_SIZE), len_bytes}};

		if (q == RIG_EVENT)
			buf[0][0] = base_gpa + 64u * (rig->queues[q].avail % RIG_SIZE);
		rig_add(rig, q, 1, buf, true);
	}
	rig_kick_if_wanted(rig, q, old);
	rig_run(rig);
}

u16 rig_used(struct rig *rig, unsigned int q)
{
	return *rig_u16(rig, QUEUE_GPA(q) + USED_OFF + 2) - rig->queues[q].used;
}

static struct vring_used_elem rig_take_used(struct rig *rig, unsigned int q)
{
	struct vring_used_elem *ring = (void *)(rig->ram + QUEUE_GPA(q) + USED_OFF + 4);

	CHECK(rig_used(rig, q) > 0);
	return ring[rig->queues[q].used++ % RIG_SIZE];
}

bool rig_take(struct rig *rig, struct rig_packet *packet)
{
	const struct vring_desc *table = (void *)(rig->ram + QUEUE_GPA(RIG_RX));
	struct vring_used_elem elem;

	if (!rig_used(rig, RIG_RX))
		return false;
	elem = rig_take_used(rig, RIG_RX);
	CHECK(elem.len >= sizeof(packet->hdr));
	packet->len_bytes = elem.len;
	memcpy(&packet->hdr, rig->ram + table[elem.id].addr, sizeof(packet->hdr));
	packet->data = rig->ram + table[elem.id].addr + sizeof(packet->hdr);
	CHECK_EQ(elem.len, sizeof(packet->hdr) + packet->hdr.len);
	CHECK_EQ(packet->hdr.src_cid, 2);
	CHECK_EQ(packet->hdr.dst_cid, 3);
	return true;
}

struct rig_packet rig_expect(struct rig *rig, u16 op)
{
	struct rig_packet packet;

	CHECK(rig_take(rig, &packet));
	CHECK_EQ(packet.hdr.op, op);
	rig_post(rig, RIG_RX, 1, RIG_BUF_BYTES);
	return packet;
}

void rig_expect_none(struct rig *rig)
{
	struct rig_packet packet;

	if (rig_take(rig, &packet))
		CHECK_EQ(packet.hdr.op, -1);
}

struct virtio_vsock_hdr rig_header(u16 op, u32 guest_port, u32 host_port)
{
	return (struct virtio_vsock_hdr){
		.src_cid = 3,
		.dst_cid = 2,
		.src_port = guest_port,
		.dst_port = host_port,
		.type = VIRTIO_VSOCK_TYPE_STREAM,
		.op = op,
		.buf_alloc = 256 << 10,
	};
}

void rig_send(struct rig *rig, const struct virtio_vsock_hdr *hdr, const void *data)
{
	u16 old = rig->queues[RIG_TX].avail;
	/* Header and payload over two buffers each: the device must not care. */
	const u64 bufs[4][2] = {{TX_BUF_GPA, 10},
				{TX_BUF_GPA + 0x1000, sizeof(*hdr) - 10},
				{TX_BUF_GPA + 0x2000, hdr->len / 3},
				{TX_BUF_GPA + 0x2000 + hdr->len / 3, hdr->len - hdr->len / 3}};

	memcpy(rig->ram + bufs[0][0], hdr, 10);
	memcpy(rig->ram + bufs[1][0], (const u8 *)hdr + 10, sizeof(*hdr) - 10);
	if (hdr->len)
		memcpy(rig->ram + bufs[2][0], data, hdr->len);
	rig_add(rig, RIG_TX, hdr->len ? 4 : 2, bufs, false);
	CHECK(rig_kick_if_wanted(rig, RIG_TX, old));
	rig_run(rig);
	CHECK_EQ(rig_take_used(rig, RIG_TX).len, 0);
}

void rig_send_op(struct rig *rig, u16 op, u32 guest_port, u32 host_port)
{
	const struct virtio_vsock_hdr hdr = rig_header(op, guest_port, host_port);

	rig_send(rig, &hdr, NULL);
}

int rig_connect(struct rig *rig, u32 guest_port, u32 *host_port)
{
	struct rig_packet packet;
	int fds[2];

	rig_pair(fds);
	CHECK_EQ(vsock_connect(rig->dev, guest_port, fds[0]), 0);
	packet = rig_expect(rig, VIRTIO_VSOCK_OP_REQUEST);
	*host_port = packet.hdr.src_port;
	rig_send_op(rig, VIRTIO_VSOCK_OP_RESPONSE, guest_port, *host_port);
	return fds[1];
}

bool rig_at_end(int fd)
{
	u8 byte;

	return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static void rig_run_deferred(struct rig *rig)
{
	u32 deferred = rig->deferred;

	rig->deferred = 0;
	for (unsigned int q = 0; q < 3; q++) {
		if (deferred & 1u << q)
			virtio_kick(rig->dev, q);
	}
}

void rig_run(struct rig *rig)
{
	struct ev *ev = &rig->ev;
	int n;

	for (rig->turns = 0;; rig->turns++) {
		CHECK(rig->turns < 5000); /* else the loop spins */
		rig_run_deferred(rig);
		n = epoll_wait(ev->epoll_fd, ev->batch, EV_BATCH, 0);
		CHECK(n >= 0);
		if (!n && !rig->deferred)
			return;
		ev->batch_len = n;
		for (int i = 0; i < n; i++) {
			struct ev_handler *handler = ev->batch[i].data.ptr;

			if (handler)
				handler->fn(handler, ev->batch[i].events);
		}
		ev->batch_len = 0;
	}
}
