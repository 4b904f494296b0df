/* SPDX-License-Identifier: Apache-2.0 */
/* A vsock driver for tests: rings in fake RAM, kicks by EVENT_IDX as Linux does, an event loop by
 * hand. */
#ifndef THAW_TESTS_UNIT_VSOCK_RIG_H
#define THAW_TESTS_UNIT_VSOCK_RIG_H

#include <linux/virtio_vsock.h>

#include "vmm/virtio/devices.h"

#define RIG_RAM_BYTES (4u << 20)
#define RIG_SIZE      256u /* entries of each queue */
#define RIG_RX	      0u
#define RIG_TX	      1u
#define RIG_EVENT     2u
#define RIG_BUF_BYTES 4096u

struct rig_queue {
	u16 avail; /* as the driver last wrote it */
	u16 used;  /* the driver's place in the used ring */
};

struct rig {
	u8 *ram;
	struct gmem gmem;
	struct ev ev;
	struct virtio_host host;
	struct vsock_owner owner;
	struct virtio_dev *dev;
	struct rig_queue queues[3];
	u32 deferred; /* bit a queue */
	u32 interrupts;
	u32 turns; /* of the event loop, in the last rig_run() */

	/* what owner->guest_connect() saw and does */
	u32 asked_port;
	u32 asked;
	int answer; /* -errno, or 0: a socket pair, the other end of which is accepted[] */
	int accepted[2048];
	u32 naccepted;
};

struct rig_packet {
	struct virtio_vsock_hdr hdr;
	const u8 *data; /* in RAM, until the buffer is posted again */
	u32 len_bytes;	/* of the used element */
};

/** rig_open() - a device with a driver that has set it up: EVENT_IDX, three queues, no buffers. */
void rig_open(struct rig *rig);

/** rig_open_dead() - the device alone, no driver yet. rig_start_driver() is the rest of rig_open().
 */
void rig_open_dead(struct rig *rig);
void rig_start_driver(struct rig *rig);

/** rig_close() - destroy the device and all sockets of accepted[]. */
void rig_close(struct rig *rig);

/**
 * rig_clone() - save @rig's device, copy its RAM, load into a new device. The rings go on. @due:
 * call vsock_transport_reset() before virtio_resume().
 */
void rig_clone(struct rig *clone, const struct rig *rig, bool due);

/** rig_run() - deferred kicks and socket events until nothing happens; fails if it never ends. */
void rig_run(struct rig *rig);

/** rig_post() - @n more buffers of @len_bytes in the rx or event queue, a kick if the device wants
 * it. */
void rig_post(struct rig *rig, unsigned int q, unsigned int n, u32 len_bytes);

/** rig_add() - an avail entry for a chain of @n buffers {gpa, len}, written by the device if
 * @writable. */
void rig_add(struct rig *rig, unsigned int q, unsigned int n, const u64 (*bufs)[2], bool writable);

/** rig_kick_if_wanted() - what Linux does after an add; returns whether it kicked. */
bool rig_kick_if_wanted(struct rig *rig, unsigned int q, u16 old_avail);

/** rig_used() - number of used entries not yet taken. */
u16 rig_used(struct rig *rig, unsigned int q);

/** rig_take() - the next packet for the guest; false if there is none. */
bool rig_take(struct rig *rig, struct rig_packet *packet);

/** rig_expect() - the next packet, which must be there and have @op; its buffer is posted again. */
struct rig_packet rig_expect(struct rig *rig, u16 op);

/** rig_expect_none() - no packet is there. */
void rig_expect_none(struct rig *rig);

/** rig_header() - a packet from the guest on these ports, with a guest buffer of 256 KiB. */
struct virtio_vsock_hdr rig_header(u16 op, u32 guest_port, u32 host_port);

/** rig_send() - send it with @hdr->len bytes of @data, kick, run; the chain must come back. */
void rig_send(struct rig *rig, const struct virtio_vsock_hdr *hdr, const void *data);

/** rig_send_op() - a packet without payload, as rig_header(). */
void rig_send_op(struct rig *rig, u16 op, u32 guest_port, u32 host_port);

/** rig_connect() - host end of an established stream to @guest_port; *@host_port as the device
 * chose it. */
int rig_connect(struct rig *rig, u32 guest_port, u32 *host_port);

/** rig_pair() - a socket pair; [0] is for the device. */
void rig_pair(int fds[2]);

/** rig_at_end() - is @fd at its end of file (and nothing before it)? */
bool rig_at_end(int fd);

#endif
