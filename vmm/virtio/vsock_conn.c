// SPDX-License-Identifier: Apache-2.0
// A vsock stream as the guest sees it: states, shutdown, credit. virtio 1.2 §5.10.6.
//
// Theory of operation
//
// Nothing is sent from here. What is due to the guest is a function of the connection's fields
// (vsock_conn_due() for control packets, vsock_conn_room() for data), so it is bounded by itself:
// two credit updates that find no buffer become one. vsock_conn_settle() runs after every change
// and keeps the connection in table->work exactly while something is due.
//
// The two directions end apart. Towards the guest: the socket's end of file makes us send
// SHUTDOWN(SEND), after the last byte; the guest's SHUTDOWN(RCV) ends the reading. Towards the
// socket: the guest's SHUTDOWN(SEND) becomes shutdown(SHUT_WR) once the buffer is empty; a socket
// that takes no more makes us send SHUTDOWN(RCV). When both have ended here the socket is closed,
// SHUTDOWN(both) is sent and the guest answers with RST. When the guest ends both, we answer with
// RST at once, so that its close() is done, and go on writing what we hold: the bytes were
// acknowledged by nobody else. The same holds when the guest resets: a Linux guest gives up 8 s
// after close(), which a slow reader on our side must not pay for with lost output.
//
// Credit. The guest may have window_bytes under way (rx_cnt - fwd_cnt); more is answered with RST.
// fwd_cnt grows only when the socket took bytes, so a slow reader stops exactly its own stream. We
// tell fwd_cnt in every packet, and by a CREDIT_UPDATE when half a window is not told yet: at most
// half of it can be unknown to a guest whose bytes are all written, so it can always go on. In the
// other direction we never have more than peer_buf_alloc under way; a guest that tells nonsense
// (negative or shrinking credit) only stops itself.
#include <stdio.h>
#include <sys/socket.h>

#include "vmm/util/log.h"
#include "vmm/virtio/vsock_table.h"

#define SHUTDOWN_BOTH (VIRTIO_VSOCK_SHUTDOWN_RCV | VIRTIO_VSOCK_SHUTDOWN_SEND)

static u32 vsock_conn_credit(const struct vsock_conn *conn)
{
	u32 under_way = conn->tx_cnt - conn->peer_fwd_cnt;

	return under_way < conn->peer_buf_alloc ? conn->peer_buf_alloc - under_way : 0;
}

/* May data flow to the guest, credit aside? */
static bool vsock_conn_sends(const struct vsock_conn *conn)
{
	return conn->state == VSOCK_CONNECTED && conn->announced && conn->readable &&
	       !conn->read_closed;
}

u32 vsock_conn_room(const struct vsock_conn *conn)
{
	return vsock_conn_sends(conn) ? vsock_conn_credit(conn) : 0;
}

/* The control packet that is due first, or VIRTIO_VSOCK_OP_INVALID. */
static u16 vsock_conn_due(const struct vsock_conn *conn)
{
	switch (conn->state) {
	case VSOCK_REQUESTED:
		return conn->announced ? VIRTIO_VSOCK_OP_INVALID : VIRTIO_VSOCK_OP_REQUEST;
	case VSOCK_RESET:
		return VIRTIO_VSOCK_OP_RST;
	case VSOCK_GONE:
		return VIRTIO_VSOCK_OP_INVALID;
	case VSOCK_CONNECTED:
		if (!conn->announced)
			return VIRTIO_VSOCK_OP_RESPONSE;
		if (conn->credit_update_due)
			return VIRTIO_VSOCK_OP_CREDIT_UPDATE;
		if (conn->credit_request_due)
			return VIRTIO_VSOCK_OP_CREDIT_REQUEST;
		break;
	case VSOCK_CLOSING:
		break;
	}
	/* After a hang-up the end of file is near: one SHUTDOWN tells both, unless credit is out.
	 */
	if (conn->shut == conn->shut_sent || (conn->hung_up && vsock_conn_room(conn)))
		return VIRTIO_VSOCK_OP_INVALID;
	return VIRTIO_VSOCK_OP_SHUTDOWN;
}

bool vsock_conn_has_control(const struct vsock_conn *conn)
{
	return vsock_conn_due(conn) != VIRTIO_VSOCK_OP_INVALID;
}

/* Every packet tells our credit, so none is due by itself after it. */
static void vsock_conn_header(struct vsock_conn *conn, struct virtio_vsock_hdr *hdr, u16 op)
{
	*hdr = (struct virtio_vsock_hdr){
		.src_cid = VSOCK_HOST_CID,
		.dst_cid = conn->table->guest_cid,
		.src_port = conn->host_port,
		.dst_port = conn->guest_port,
		.type = VIRTIO_VSOCK_TYPE_STREAM,
		.op = op,
		.buf_alloc = conn->window_bytes,
		.fwd_cnt = conn->fwd_cnt,
	};
	conn->fwd_sent = conn->fwd_cnt;
	conn->credit_update_due = false;
}

void vsock_conn_control(struct vsock_conn *conn, struct virtio_vsock_hdr *hdr)
{
	u16 op = vsock_conn_due(conn);

	BUG_ON(op == VIRTIO_VSOCK_OP_INVALID);
	vsock_conn_header(conn, hdr, op);
	switch (op) {
	case VIRTIO_VSOCK_OP_REQUEST:
	case VIRTIO_VSOCK_OP_RESPONSE:
		conn->announced = true;
		break;
	case VIRTIO_VSOCK_OP_RST:
		vsock_conn_forget(conn);
		break;
	case VIRTIO_VSOCK_OP_SHUTDOWN:
		hdr->flags = conn->shut;
		conn->shut_sent = conn->shut;
		break;
	case VIRTIO_VSOCK_OP_CREDIT_REQUEST:
		conn->credit_request_due = false;
		break;
	default:
		break;
	}
}

void vsock_conn_data(struct vsock_conn *conn, struct virtio_vsock_hdr *hdr, u32 len_bytes)
{
	vsock_conn_header(conn, hdr, VIRTIO_VSOCK_OP_RW);
	hdr->len = len_bytes;
	conn->tx_cnt += len_bytes;
}

void vsock_conn_refuse(struct vsock_conn *conn)
{
	vsock_conn_detach(conn);
	if (conn->state != VSOCK_GONE)
		conn->state = VSOCK_RESET;
}

/*
 * The guest is done with the stream, and a RST is due to it or (@known false) not. What it sent
 * before is still written; the socket's other end can't send any more.
 */
static void vsock_conn_end(struct vsock_conn *conn, bool known)
{
	/* Also when it is the second end: a RST on the heels of a SHUTDOWN. */
	if (conn->buf_used)
		shutdown(conn->handler.fd, SHUT_RD);
	else
		vsock_conn_detach(conn);
	if (known)
		conn->state = VSOCK_RESET;
	else
		vsock_conn_forget(conn);
}

/* The socket is fresh, so that a few bytes fit; if they do not, its other end is gone and the
 * stream ends by itself. */
static void vsock_conn_say_ok(struct vsock_conn *conn)
{
	char text[16];
	int n = snprintf(text, sizeof(text), "OK %u\n", conn->guest_port);

	if (conn->handler.fd >= 0 &&
	    send(conn->handler.fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) != n)
		log_guest("vsock: port %u: nobody hears the OK", conn->host_port);
}

/* The handlers return false for a protocol error. */
static bool vsock_conn_response(struct vsock_conn *conn)
{
	if (conn->state != VSOCK_REQUESTED || !conn->announced)
		return false;
	conn->state = VSOCK_CONNECTED;
	if (conn->say_ok)
		vsock_conn_say_ok(conn);
	/* The first bytes are most often there already: saves a turn of the loop. */
	conn->readable = true;
	return true;
}

static bool vsock_conn_shutdown(struct vsock_conn *conn, u32 flags)
{
	if (conn->state != VSOCK_CONNECTED && conn->state != VSOCK_CLOSING)
		return false;
	conn->guest_shut |= flags & SHUTDOWN_BOTH;
	if (conn->guest_shut == SHUTDOWN_BOTH) {
		vsock_conn_end(conn, true);
	} else if ((conn->guest_shut & VIRTIO_VSOCK_SHUTDOWN_RCV) && !conn->read_closed) {
		conn->read_closed = true;
		conn->readable = false;
		if (conn->handler.fd >= 0)
			shutdown(conn->handler.fd, SHUT_RD);
	}
	return true;
}

static bool vsock_conn_receive(struct vsock_conn *conn, struct iovec *iov, unsigned int niov,
			       u32 len_bytes)
{
	if (conn->state != VSOCK_CONNECTED && conn->state != VSOCK_CLOSING)
		return false;
	if (conn->guest_shut & VIRTIO_VSOCK_SHUTDOWN_SEND)
		return false;
	if (len_bytes > conn->window_bytes - (conn->rx_cnt - conn->fwd_cnt)) {
		log_guest("vsock: port %u: the guest sends beyond its credit", conn->host_port);
		return false;
	}
	if (len_bytes)
		vsock_conn_write(conn, iov, niov, len_bytes);
	return true;
}

static bool vsock_conn_dispatch(struct vsock_conn *conn, const struct virtio_vsock_hdr *hdr,
				struct iovec *iov, unsigned int niov)
{
	switch (hdr->op) {
	case VIRTIO_VSOCK_OP_RESPONSE:
		return vsock_conn_response(conn);
	case VIRTIO_VSOCK_OP_SHUTDOWN:
		return vsock_conn_shutdown(conn, hdr->flags);
	case VIRTIO_VSOCK_OP_RW:
		return vsock_conn_receive(conn, iov, niov, hdr->len);
	case VIRTIO_VSOCK_OP_CREDIT_UPDATE:
		return true;
	case VIRTIO_VSOCK_OP_CREDIT_REQUEST:
		conn->credit_update_due = true;
		return true;
	default:
		/* A REQUEST for a stream that exists, or no operation of the specification. */
		return false;
	}
}

void vsock_conn_packet(struct vsock_conn *conn, const struct virtio_vsock_hdr *hdr,
		       struct iovec *iov, unsigned int niov)
{
	if (hdr->op == VIRTIO_VSOCK_OP_RST) {
		vsock_conn_end(conn, false);
	} else if (conn->state != VSOCK_RESET) {
		conn->peer_buf_alloc = hdr->buf_alloc;
		conn->peer_fwd_cnt = hdr->fwd_cnt;
		if (vsock_conn_credit(conn))
			conn->credit_asked = false;
		if (!vsock_conn_dispatch(conn, hdr, iov, niov)) {
			log_guest("vsock: port %u: operation %u in state %d, reset",
				  conn->host_port, hdr->op, conn->state);
			vsock_conn_refuse(conn);
		}
	}
	vsock_conn_settle(conn);
}

static void vsock_conn_settle_connected(struct vsock_conn *conn)
{
	if ((conn->guest_shut & VIRTIO_VSOCK_SHUTDOWN_SEND) && !conn->buf_used &&
	    !conn->write_shut) {
		conn->write_shut = true;
		shutdown(conn->handler.fd, SHUT_WR);
	}
	if (conn->read_closed && (conn->write_closed || conn->write_shut)) {
		conn->shut = SHUTDOWN_BOTH;
		conn->state = VSOCK_CLOSING;
		vsock_conn_detach(conn);
		return;
	}
	if (conn->fwd_cnt - conn->fwd_sent >= conn->window_bytes / 2)
		conn->credit_update_due = true;
	if (vsock_conn_sends(conn) && !vsock_conn_credit(conn) && !conn->credit_asked)
		conn->credit_asked = conn->credit_request_due = true;
}

void vsock_conn_settle(struct vsock_conn *conn)
{
	bool work;

	if (conn->state == VSOCK_CONNECTED)
		vsock_conn_settle_connected(conn);
	if ((conn->state == VSOCK_RESET || conn->state == VSOCK_GONE) && !conn->buf_used)
		vsock_conn_detach(conn);
	if (vsock_conn_watch(conn)) {
		log_err("vsock: port %u: epoll refuses the socket", conn->host_port);
		vsock_conn_refuse(conn);
	}
	if (conn->state == VSOCK_GONE && conn->handler.fd < 0) {
		vsock_conn_free(conn);
		return;
	}
	work = vsock_conn_has_control(conn) || vsock_conn_room(conn);
	if (!work)
		vsock_link_del(&conn->work);
	else if (vsock_link_empty(&conn->work))
		vsock_link_add_tail(&conn->table->work, &conn->work);
}
