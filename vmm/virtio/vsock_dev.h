/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the vsock device, shared by vsock.c and vsock_rx.c. Contract: devices.h. */
#ifndef THAW_VIRTIO_VSOCK_DEV_H
#define THAW_VIRTIO_VSOCK_DEV_H

#include "vmm/virtio/devices.h"
#include "vmm/virtio/vsock_table.h"

#define RX_QUEUE    0
#define TX_QUEUE    1
#define EVENT_QUEUE 2
#define NQUEUES	    3

#define RUN_CHAINS  256u /* of each queue, in one run */
#define TURN_CHAINS 16u	 /* data packets of one connection before the next has its turn */
#define TURN_BYTES  65536u

enum vsock_gate {
	GATE_OPEN = 0,
	GATE_RESET_DUE = 1,
	GATE_RESET_SENT = 2,
};

struct vsock {
	struct virtio_dev dev;
	struct vsock_owner *owner;
	struct virtio_vsock_config config;
	struct vsock_table table;
	enum vsock_gate gate;
	u16 gate_avail;	 /* the driver's avail index of the event queue when the event was sent */
	bool tx_pending; /* the tx queue may hold chains that were not looked at */
	bool rst_last;	 /* the last rx buffer went to the FIFO of RSTs: a connection is next */
	unsigned int tx_left, rx_left; /* chains this run may still take */
	struct virtq_chain tx, event;
	struct virtq_chain rx[TURN_CHAINS];
	struct iovec iov[2 * VIRTQ_SIZE_MAX];
};

/** vsock_run_rx() - fill the guest's buffers with what is due. Return: 0, or -EBADMSG: the ring is
 * broken. */
int __must_check vsock_run_rx(struct vsock *vsock);

/** vsock_run_event() - bring a transport reset on. Return: 1 when the gate has opened by this call,
 * 0, or -EBADMSG. */
int __must_check vsock_run_event(struct vsock *vsock);

#endif
