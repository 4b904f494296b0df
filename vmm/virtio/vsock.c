// SPDX-License-Identifier: Apache-2.0
// virtio-vsock: the device and its three queues. virtio 1.2 §5.10; vsock.md tells it in prose.
//
// Theory of operation
//
// vsock_run() is the only place where packets move. It first takes what the guest sent (tx queue)
// and then fills the guest's buffers (rx queue) with what is due: RSTs for packets that belong to
// no connection, and a turn each for the connections on the work list, in rotation. It is called
// when a queue is kicked and when a socket has something, and it interrupts the guest once, at its
// end.
//
// Nothing grows with what the guest does. A packet of the guest changes a connection, of which
// there is a limited number, or adds to the FIFO of RSTs; while that is full, because the guest
// gives no rx buffers, the tx queue is left alone (virtio 1.2 §5.10.6.1.1 demands that a driver
// gives them). A run takes a bounded number of chains of each queue; if there may be more, it asks
// the machine for a kick later, so that a guest that feeds the queues from another vCPU can't hold
// the event loop.
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <stdlib.h>
#include <string.h>

#include "guest/shim/proto.h"
#include "vmm/util/log.h"
#include "vmm/virtio/vsock_dev.h"

/* The device's part of a snapshot section. */
struct vsock_priv {
	u64 guest_cid;
	u32 next_port;
	u32 reset_due; /* the guest may hold sockets that this side no longer knows */
};

_Static_assert(sizeof(struct vsock_priv) <= VIRTIO_PRIV_BYTES, "snapshot ABI");

static struct vsock *vsock_of(struct virtio_dev *dev)
{
	return container_of(dev, struct vsock, dev);
}

static bool vsock_live(const struct vsock *vsock)
{
	return vsock->dev.active && !(vsock->dev.status & VIRTIO_CONFIG_S_NEEDS_RESET);
}

/* --- guest to host --- */

static void vsock_accept(struct vsock *vsock, const struct virtio_vsock_hdr *hdr)
{
	static struct log_limit limit;
	struct vsock_conn *conn;
	int fd = vsock->owner->guest_connect(vsock->owner, hdr->dst_port);
	int ret = fd;

	if (fd >= 0)
		ret = vsock_conn_create(&vsock->table, hdr->dst_port, hdr->src_port, fd, true,
					&conn);
	if (ret < 0) {
		/* Nothing unusual: nobody serves that port. */
		if (log_limit_ok(&limit))
			log_info("vsock: port %u: guest refused: %s", hdr->dst_port,
				 strerror(-ret));
		vsock_rst_add(&vsock->table, hdr->dst_port, hdr->src_port, hdr->type);
		return;
	}
	conn->peer_buf_alloc = hdr->buf_alloc;
	conn->peer_fwd_cnt = hdr->fwd_cnt;
	vsock_conn_settle(conn);
}

/* One packet. The FIFO of RSTs has room for one. */
static int vsock_packet(struct vsock *vsock, struct virtq_chain *chain)
{
	struct virtio_vsock_hdr hdr;
	struct vsock_conn *conn;
	unsigned int niov;

	if (virtq_chain_read(chain, 0, &hdr, sizeof(hdr)) != sizeof(hdr))
		return -EBADMSG;
	if (hdr.src_cid != vsock->table.guest_cid || hdr.dst_cid != VSOCK_HOST_CID) {
		log_guest("vsock: packet from %llu to %llu dropped",
			  (unsigned long long)hdr.src_cid, (unsigned long long)hdr.dst_cid);
		return 0;
	}
	conn = hdr.type == VIRTIO_VSOCK_TYPE_STREAM
		       ? vsock_table_find(&vsock->table, hdr.dst_port, hdr.src_port)
		       : NULL;
	if (hdr.len > chain->read_bytes - sizeof(hdr)) {
		log_guest("vsock: packet of %u bytes says it has %u", chain->read_bytes, hdr.len);
		if (conn) {
			vsock_conn_refuse(conn);
			vsock_conn_settle(conn);
			return 0;
		}
	} else if (conn) {
		niov = vsock_iov_slice(chain->iov, chain->nread, sizeof(hdr), hdr.len, vsock->iov);
		vsock_conn_packet(conn, &hdr, vsock->iov, niov);
		return 0;
	} else if (hdr.type == VIRTIO_VSOCK_TYPE_STREAM && hdr.op == VIRTIO_VSOCK_OP_REQUEST) {
		vsock_accept(vsock, &hdr);
		return 0;
	}
	/* Never a RST for a RST, or two ends could go on for ever. */
	if (hdr.op != VIRTIO_VSOCK_OP_RST)
		vsock_rst_add(&vsock->table, hdr.dst_port, hdr.src_port, hdr.type);
	return 0;
}

static int vsock_run_tx(struct vsock *vsock)
{
	struct virtq *vq = &vsock->dev.queues[TX_QUEUE];
	int ret;

	while (vsock->tx_pending && vsock->tx_left && !vsock_rst_full(&vsock->table)) {
		ret = virtq_pop(vq, &vsock->tx);
		if (ret < 0)
			return ret;
		if (!ret) {
			vsock->tx_pending = false;
			break;
		}
		vsock->tx_left--;
		ret = vsock_packet(vsock, &vsock->tx);
		if (!ret)
			ret = virtq_push(vq, vsock->tx.head, 0);
		if (ret)
			return ret;
	}
	return 0;
}

/*
 * Return: 0; a positive number if there may be more to do now; or -errno: the rings are broken, and
 * all streams were closed, because none can go on.
 */
static int vsock_run(struct vsock *vsock)
{
	bool more;
	int ret;

	if (!vsock_live(vsock))
		return 0;
	vsock->tx_left = vsock->rx_left = RUN_CHAINS;
	do {
		ret = vsock_run_tx(vsock);
		if (!ret)
			ret = vsock_run_rx(vsock);
		/* The FIFO of RSTs may have stopped the first, and been drained by the second. */
		more = vsock->tx_pending && !vsock_rst_full(&vsock->table);
	} while (!ret && more && vsock->tx_left && vsock->rx_left);
	virtio_signal(&vsock->dev, TX_QUEUE);
	virtio_signal(&vsock->dev, RX_QUEUE);
	if (ret) {
		vsock_table_clear(&vsock->table, true);
		return ret;
	}
	return more || !vsock->rx_left;
}

/* A socket has something: not from a kick, so what virtio_kick() does is done here. */
static void vsock_wake(struct vsock_table *table)
{
	struct vsock *vsock = container_of(table, struct vsock, table);
	struct virtio_host *host = vsock->dev.host;
	int ret;

	do {
		ret = vsock_run(vsock);
	} while (ret > 0 && !host->defer);
	if (ret > 0) {
		host->defer(host, vsock->dev.slot, RX_QUEUE);
	} else if (ret < 0) {
		log_guest("vsock: %s, device needs reset", strerror(-ret));
		virtio_needs_reset(&vsock->dev);
	}
}

/* --- virtio_ops --- */

static int vsock_activate(struct virtio_dev *dev)
{
	/*
	 * Buffers can be there before the first kick (virtio 1.2 §3.1.1 step 7). And after a
	 * restore, virtio_resume() sets each avail event to the first chain not taken, when the
	 * queue was served: on the event queue the gate needs it at the end (vsock_rx.c).
	 */
	for (unsigned int q = 0; dev->host->defer && q < NQUEUES; q++)
		dev->host->defer(dev->host, dev->slot, q);
	return 0;
}

static void vsock_reset(struct virtio_dev *dev)
{
	struct vsock *vsock = vsock_of(dev);

	/* A driver that starts has no sockets to reset, and waits for none of these. */
	vsock_table_clear(&vsock->table, true);
	vsock->gate = GATE_OPEN;
	vsock->tx_pending = vsock->rst_last = false;
}

static int vsock_queue(struct virtio_dev *dev, unsigned int q)
{
	struct vsock *vsock = vsock_of(dev);

	if (q == EVENT_QUEUE) {
		int ret = vsock_run_event(vsock);

		if (ret > 0)
			vsock_wake(&vsock->table);
		return MIN(ret, 0);
	}
	if (q == TX_QUEUE)
		vsock->tx_pending = true;
	return vsock_run(vsock);
}

static void vsock_save(const struct virtio_dev *dev, u8 priv[VIRTIO_PRIV_BYTES])
{
	const struct vsock *vsock = container_of(dev, struct vsock, dev);
	const struct vsock_priv state = {
		.guest_cid = vsock->table.guest_cid,
		.next_port = vsock->table.next_port,
		.reset_due = vsock->gate != GATE_OPEN || vsock->table.rst_used,
	};

	memset(priv, 0, VIRTIO_PRIV_BYTES);
	memcpy(priv, &state, sizeof(state));
}

static int vsock_load(struct virtio_dev *dev, const u8 priv[VIRTIO_PRIV_BYTES])
{
	struct vsock *vsock = vsock_of(dev);
	struct vsock_priv state;

	memcpy(&state, priv, sizeof(state));
	for (size_t i = sizeof(state); i < VIRTIO_PRIV_BYTES; i++) {
		if (priv[i])
			return -EINVAL;
	}
	if (state.guest_cid != vsock->table.guest_cid || state.reset_due > 1)
		return -EINVAL;
	/* Go on with the ports: the guest may remember the last ones. */
	vsock->table.next_port = state.next_port;
	if (state.reset_due)
		vsock_transport_reset(dev);
	return 0;
}

static void vsock_destroy(struct virtio_dev *dev)
{
	struct vsock *vsock = vsock_of(dev);

	vsock_table_clear(&vsock->table, false);
	free(vsock);
}

static const struct virtio_ops vsock_ops = {
	.name = "vsock",
	.id = VIRTIO_ID_VSOCK,
	.nqueues = NQUEUES,
	.queue_max = VIRTQ_SIZE_MAX,
	.features = 0,
	.activate = vsock_activate,
	.reset = vsock_reset,
	.queue = vsock_queue,
	.save = vsock_save,
	.load = vsock_load,
	.destroy = vsock_destroy,
};

int vsock_create(struct virtio_host *host, unsigned int slot, struct vsock_owner *owner,
		 struct virtio_dev **out)
{
	struct vsock *vsock = malloc(sizeof(*vsock));

	if (!vsock) {
		log_err("vsock: out of memory");
		return -ENOMEM;
	}
	/* The chains behind are written before they are read: 80 KiB that need no clearing. */
	memset(vsock, 0, offsetof(struct vsock, tx));
	vsock->owner = owner;
	vsock->config.guest_cid = SHIM_GUEST_CID;
	vsock_table_init(&vsock->table, host->ev, SHIM_GUEST_CID, vsock_wake);
	virtio_init(&vsock->dev, &vsock_ops, host, slot, &vsock->config, sizeof(vsock->config));
	*out = &vsock->dev;
	return 0;
}

static int vsock_open(struct virtio_dev *dev, u32 port, int fd, bool say_ok)
{
	struct vsock_table *table = &vsock_of(dev)->table;
	struct vsock_conn *conn;
	int ret = vsock_conn_create(table, vsock_table_port(table, port), port, fd, false, &conn);

	if (ret)
		return ret;
	conn->say_ok = say_ok;
	vsock_conn_settle(conn);
	vsock_wake(table);
	return 0;
}

int vsock_connect(struct virtio_dev *dev, u32 port, int fd)
{
	return vsock_open(dev, port, fd, false);
}

int vsock_connect_announce(struct virtio_dev *dev, u32 port, int fd)
{
	return vsock_open(dev, port, fd, true);
}

u32 vsock_connections(const struct virtio_dev *dev)
{
	return container_of(dev, const struct vsock, dev)->table.known;
}

void vsock_transport_reset(struct virtio_dev *dev)
{
	vsock_of(dev)->gate = GATE_RESET_DUE;
}
