// SPDX-License-Identifier: Apache-2.0
// vsock, host to guest: filling the rx queue, and the transport reset on the event queue.
//
// Data go from the socket straight into the guest's buffers, several packets by one system call:
// the chains are popped, their data parts are strung together, and the chains that got nothing are
// given back. Data of the guest go straight from its buffers into the socket.
//
// Transport reset (virtio 1.2 §5.10.6.7). A clone has sockets of its snapshot that exist no longer.
// The event makes the guest's driver reset them, but all of them: also a connection that was made
// between the restore and the moment when the driver works on the event. So nothing is sent to the
// guest until it has put a new buffer into the event queue, which the driver does after it handled
// the event. The gate is therefore closed in two steps: RESET_DUE until the guest has a buffer for
// the event, RESET_SENT until it gave the next one. Nobody pops those buffers, so that next add
// would not kick (EVENT_IDX): vsock_event_arm() moves the avail event to the end of what was added.
#include <errno.h>

#include "vmm/virtio/vsock_dev.h"

/*
 * Take a buffer of the guest into @chain. Return: 1, 0 when there is none, -EBADMSG. One that has
 * no room for a header and a byte is a fault of the driver: it could never carry data.
 */
static int vsock_rx_pop(struct vsock *vsock, struct virtq_chain *chain)
{
	int ret = virtq_pop(&vsock->dev.queues[RX_QUEUE], chain);

	if (ret > 0 && chain->write_bytes <= VSOCK_HDR_BYTES)
		return -EBADMSG;
	return ret;
}

/* Give the guest @chain with @hdr in front of @len_bytes that are there already. */
static int vsock_rx_push(struct vsock *vsock, const struct virtq_chain *chain,
			 const struct virtio_vsock_hdr *hdr, u32 len_bytes)
{
	virtq_chain_write(chain, 0, hdr, sizeof(*hdr));
	vsock->rx_left--;
	return virtq_push(&vsock->dev.queues[RX_QUEUE], chain->head, VSOCK_HDR_BYTES + len_bytes);
}

static int vsock_rx_reset(struct vsock *vsock)
{
	struct virtio_vsock_hdr hdr;
	int ret = vsock_rx_pop(vsock, &vsock->rx[0]);

	if (ret <= 0)
		return ret;
	if (!vsock_rst_next(&vsock->table, &hdr))
		return -EINVAL;
	vsock->rst_last = true;
	ret = vsock_rx_push(vsock, &vsock->rx[0], &hdr, 0);
	return ret ? ret : 1;
}

/* String the data parts of buffers together, up to @room bytes. Return: their number, or -EBADMSG.
 */
static int vsock_rx_gather(struct vsock *vsock, u32 room, u32 lens[TURN_CHAINS], unsigned int *niov,
			   u32 *total)
{
	unsigned int limit = MIN(TURN_CHAINS, vsock->rx_left);
	unsigned int n = 0;

	*niov = 0;
	*total = 0;
	while (n < limit && *total < room) {
		struct virtq_chain *chain = &vsock->rx[n];
		int ret = vsock_rx_pop(vsock, chain);

		if (ret < 0)
			return ret;
		if (!ret)
			break;
		if (*niov + chain->nwrite > ARRAY_SIZE(vsock->iov)) {
			virtq_unpop(&vsock->dev.queues[RX_QUEUE]);
			break;
		}
		lens[n] = MIN(chain->write_bytes - VSOCK_HDR_BYTES, room - *total);
		*niov += vsock_iov_slice(chain->iov + chain->nread, chain->nwrite, VSOCK_HDR_BYTES,
					 lens[n], vsock->iov + *niov);
		*total += lens[n++];
	}
	return n;
}

/* Return: 1, 0 when the guest has no buffer, or -errno. */
static int vsock_rx_data(struct vsock *vsock, struct vsock_conn *conn)
{
	u32 room = MIN(vsock_conn_room(conn), TURN_BYTES);
	struct virtio_vsock_hdr hdr;
	u32 lens[TURN_CHAINS] = {0};
	unsigned int niov;
	u32 total, left;
	int n, used;
	int ret = 0;

	n = vsock_rx_gather(vsock, room, lens, &niov, &total);
	if (n <= 0)
		return n;
	left = vsock_conn_read(conn, vsock->iov, niov, total);
	for (used = 0; used < n && left && !ret; used++) {
		u32 len_bytes = MIN(left, lens[used]);

		vsock_conn_data(conn, &hdr, len_bytes);
		ret = vsock_rx_push(vsock, &vsock->rx[used], &hdr, len_bytes);
		left -= len_bytes;
	}
	for (; used < n; used++)
		virtq_unpop(&vsock->dev.queues[RX_QUEUE]);
	return ret ? ret : 1;
}

/* One turn of @conn. Return: 1, 0 when the guest has no buffer, or -errno. May free @conn. */
static int vsock_rx_turn(struct vsock *vsock, struct vsock_conn *conn)
{
	struct virtio_vsock_hdr hdr;
	int ret = 1;

	while (ret > 0 && vsock->rx_left && vsock_conn_has_control(conn)) {
		ret = vsock_rx_pop(vsock, &vsock->rx[0]);
		if (ret <= 0)
			break;
		vsock_conn_control(conn, &hdr);
		ret = vsock_rx_push(vsock, &vsock->rx[0], &hdr, 0);
		ret = ret ? ret : 1;
	}
	if (ret > 0 && vsock->rx_left && vsock_conn_room(conn))
		ret = vsock_rx_data(vsock, conn);
	/* To the end of the list, unless it could not have its turn. */
	if (ret > 0) {
		vsock->rst_last = false;
		vsock_link_del(&conn->work);
	}
	vsock_conn_settle(conn);
	return ret;
}

int vsock_run_rx(struct vsock *vsock)
{
	struct vsock_table *table = &vsock->table;
	int ret = 1;

	if (vsock->gate != GATE_OPEN)
		return 0;
	while (ret > 0 && vsock->rx_left) {
		bool work = !vsock_link_empty(&table->work);

		if (table->rst_used && !(work && vsock->rst_last))
			ret = vsock_rx_reset(vsock);
		else if (work)
			ret = vsock_rx_turn(
				vsock, container_of(table->work.next, struct vsock_conn, work));
		else
			break;
	}
	return MIN(ret, 0);
}

/* --- transport reset --- */

/*
 * Be kicked when the driver adds to what it has added so far. It can't add more than the queue
 * holds before something is given back: one that goes on all the same, from another vCPU, must not
 * keep the loop here.
 */
static int vsock_event_arm(struct vsock *vsock)
{
	struct virtq *vq = &vsock->dev.queues[EVENT_QUEUE];
	unsigned int n = 0;
	int ret;

	while (n <= vq->size && (ret = virtq_pop(vq, &vsock->event)) > 0)
		n++;
	if (n > vq->size)
		ret = -EBADMSG;
	while (n--)
		virtq_unpop(vq);
	return ret;
}

static int vsock_event_send(struct vsock *vsock)
{
	const struct virtio_vsock_event event = {.id = VIRTIO_VSOCK_EVENT_TRANSPORT_RESET};
	struct virtq *vq = &vsock->dev.queues[EVENT_QUEUE];
	int ret = virtq_pop(vq, &vsock->event);
	int avail;

	if (ret <= 0)
		return ret;
	avail = virtq_avail_idx(vq);
	if (avail < 0 || vsock->event.write_bytes < sizeof(event))
		return -EBADMSG;
	virtq_chain_write(&vsock->event, 0, &event, sizeof(event));
	ret = virtq_push(vq, vsock->event.head, sizeof(event));
	if (ret)
		return ret;
	vsock->gate = GATE_RESET_SENT;
	vsock->gate_avail = avail;
	virtio_signal(&vsock->dev, EVENT_QUEUE);
	return 0;
}

int vsock_run_event(struct vsock *vsock)
{
	int ret = 0;

	if (vsock->gate == GATE_RESET_DUE)
		ret = vsock_event_send(vsock);
	if (ret || vsock->gate != GATE_RESET_SENT)
		return ret;
	/* Armed first, looked at after: an add in between is seen here, a later one kicks. */
	ret = vsock_event_arm(vsock);
	if (ret)
		return ret;
	ret = virtq_avail_idx(&vsock->dev.queues[EVENT_QUEUE]);
	if (ret < 0)
		return ret;
	if (ret == vsock->gate_avail)
		return 0;
	vsock->gate = GATE_OPEN;
	return 1;
}
