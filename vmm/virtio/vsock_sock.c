// SPDX-License-Identifier: Apache-2.0
// The Unix socket's side of a vsock stream: reading, writing, buffering, epoll.
//
// The socket belongs to another process, which may do anything with its end. All calls are
// non-blocking by their flags, whatever the mode of the file. Descriptors it passes are not
// received: no room for control data is offered, so the kernel drops them.
//
// epoll is level-triggered and always reports HUP and ERR. So that the loop never spins:
//  - EPOLLIN is taken once, as `readable`; only when it comes again, because the guest gives no
//    credit or no buffer, is it masked (vsock_conn_read() unmasks it when the socket is dry). While
//    data flows, epoll_ctl() is not called at all;
//  - EPOLLOUT is asked for only while bytes are buffered;
//  - on HUP or ERR the socket leaves epoll for good. Nothing more can be written then, and what is
//    left to read is read as the guest takes it, up to the end of file.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"
#include "vmm/virtio/vsock_table.h"

unsigned int vsock_iov_slice(const struct iovec *iov, unsigned int niov, size_t offset,
			     size_t len_bytes, struct iovec *out)
{
	unsigned int nout = 0;

	for (unsigned int i = 0; i < niov && len_bytes; i++) {
		u8 *base = iov[i].iov_base;
		size_t n = iov[i].iov_len;

		if (offset >= n) {
			offset -= n;
			continue;
		}
		n = MIN(n - offset, len_bytes);
		out[nout++] = (struct iovec){base + offset, n};
		len_bytes -= n;
		offset = 0;
	}
	return nout;
}

static void vsock_sock_drop_buffer(struct vsock_conn *conn)
{
	free(conn->buf);
	conn->buf = NULL;
	conn->fwd_cnt += conn->buf_used;
	conn->buf_used = conn->buf_head = 0;
}

/* The socket takes nothing more: tell the guest, if it is still there, and stop holding its bytes.
 */
static void vsock_sock_write_closed(struct vsock_conn *conn)
{
	conn->write_closed = true;
	conn->shut |= VIRTIO_VSOCK_SHUTDOWN_RCV;
	vsock_sock_drop_buffer(conn);
}

/* Return: bytes sent, 0 if it would block; on an error the write side is closed, and 0. */
static u32 vsock_sock_send(struct vsock_conn *conn, struct iovec *iov, unsigned int niov)
{
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = niov};
	ssize_t n;

	do {
		n = sendmsg(conn->handler.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n >= 0)
		return n;
	if (errno != EAGAIN && errno != ENOBUFS)
		vsock_sock_write_closed(conn);
	return 0;
}

static void vsock_sock_flush(struct vsock_conn *conn)
{
	u32 first = MIN(conn->buf_used, conn->window_bytes - conn->buf_head);
	struct iovec iov[2] = {
		{conn->buf + conn->buf_head, first},
		{conn->buf, conn->buf_used - first},
	};
	u32 sent;

	if (!conn->buf_used)
		return;
	sent = vsock_sock_send(conn, iov, iov[1].iov_len ? 2 : 1);
	conn->buf_head = (conn->buf_head + sent) % conn->window_bytes;
	if (conn->write_closed)
		return;
	conn->buf_used -= sent;
	conn->fwd_cnt += sent;
	if (!conn->buf_used)
		vsock_sock_drop_buffer(conn);
}

/* Append @len_bytes of @iov from @offset on. The window was checked: they fit. */
static int vsock_sock_buffer(struct vsock_conn *conn, const struct iovec *iov, unsigned int niov,
			     size_t offset)
{
	if (!conn->buf)
		conn->buf = malloc(conn->window_bytes);
	if (!conn->buf)
		return -ENOMEM;
	for (unsigned int i = 0; i < niov; i++) {
		const u8 *base = iov[i].iov_base;
		size_t done = MIN(offset, iov[i].iov_len);

		offset -= done;
		while (done < iov[i].iov_len) {
			u32 tail = (conn->buf_head + conn->buf_used) % conn->window_bytes;
			size_t n = MIN(iov[i].iov_len - done, (size_t)(conn->window_bytes - tail));

			BUG_ON(n > conn->window_bytes - conn->buf_used);
			memcpy(conn->buf + tail, base + done, n);
			conn->buf_used += n;
			done += n;
		}
	}
	return 0;
}

void vsock_conn_write(struct vsock_conn *conn, struct iovec *iov, unsigned int niov, u32 len_bytes)
{
	u32 sent = 0;

	conn->rx_cnt += len_bytes;
	if (!conn->write_closed && !conn->buf_used && conn->handler.fd >= 0)
		sent = vsock_sock_send(conn, iov, niov);
	if (conn->write_closed || conn->handler.fd < 0) {
		conn->fwd_cnt += len_bytes;
		return;
	}
	conn->fwd_cnt += sent;
	if (sent < len_bytes && vsock_sock_buffer(conn, iov, niov, sent)) {
		log_err("vsock: no memory to buffer for port %u", conn->host_port);
		vsock_conn_refuse(conn);
	}
}

u32 vsock_conn_read(struct vsock_conn *conn, struct iovec *iov, unsigned int niov, u32 len_bytes)
{
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = niov};
	bool blocked;
	ssize_t n;

	do {
		n = recvmsg(conn->handler.fd, &msg, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	blocked = n < 0 && errno == EAGAIN;
	if (n > 0 || (blocked && !conn->hung_up)) {
		/* A short read emptied the socket. After a hang-up only its end of file stops it.
		 */
		if (n < (ssize_t)len_bytes) {
			conn->readable = conn->hung_up;
			conn->mask_in = false;
		}
		return MAX(n, 0);
	}
	if (n < 0 && !blocked)
		vsock_sock_write_closed(conn);
	conn->read_closed = true;
	conn->readable = false;
	conn->shut |= VIRTIO_VSOCK_SHUTDOWN_SEND;
	return 0;
}

/* Nobody is at the other end, or it has ended both ways. */
static void vsock_sock_hang_up(struct vsock_conn *conn)
{
	ev_del(conn->table->ev, &conn->handler);
	conn->hung_up = true;
	vsock_sock_write_closed(conn);
	conn->readable = !conn->read_closed;
	switch (conn->state) {
	case VSOCK_REQUESTED:
		/* Like a TCP client that closes before the handshake is over: it never happened. */
		vsock_conn_detach(conn);
		if (conn->announced)
			conn->state = VSOCK_RESET;
		else
			vsock_conn_forget(conn);
		break;
	case VSOCK_RESET:
	case VSOCK_GONE:
		vsock_conn_detach(conn);
		break;
	case VSOCK_CONNECTED:
	case VSOCK_CLOSING:
		break;
	}
}

static void vsock_sock_event(struct ev_handler *handler, u32 events)
{
	struct vsock_conn *conn = container_of(handler, struct vsock_conn, handler);
	struct vsock_table *table = conn->table;

	if (events & (EPOLLHUP | EPOLLERR)) {
		vsock_sock_hang_up(conn);
	} else {
		if (events & EPOLLOUT)
			vsock_sock_flush(conn);
		if (events & EPOLLIN) {
			conn->mask_in = conn->readable;
			conn->readable = !conn->read_closed;
		}
	}
	vsock_conn_settle(conn);
	table->wake(table);
}

int vsock_conn_watch(struct vsock_conn *conn)
{
	u32 want = 0;
	int ret;

	if (conn->handler.fd < 0 || conn->hung_up)
		return 0;
	if (conn->state == VSOCK_CONNECTED && !conn->read_closed && !conn->mask_in)
		want |= EPOLLIN;
	if (conn->buf_used)
		want |= EPOLLOUT;
	if (want == conn->events)
		return 0;
	ret = ev_mod(conn->table->ev, &conn->handler, want);
	if (!ret)
		conn->events = want;
	return ret;
}

int vsock_conn_attach(struct vsock_conn *conn, int fd)
{
	int ret;

	conn->handler = (struct ev_handler){vsock_sock_event, fd};
	conn->events = 0;
	ret = ev_add(conn->table->ev, &conn->handler, conn->events);
	if (ret)
		conn->handler.fd = -1;
	return ret;
}

void vsock_conn_detach(struct vsock_conn *conn)
{
	vsock_sock_drop_buffer(conn);
	if (conn->handler.fd >= 0 && !conn->hung_up)
		ev_del(conn->table->ev, &conn->handler);
	fd_close(&conn->handler.fd);
}
