/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One vsock stream: its state, its credit, its Unix socket. vsock_table.h has all of them.
 *
 * No virtqueue is touched here. vsock.c hands packets of the guest in, and takes out what is due to
 * the guest when it has a buffer for it. virtio 1.2 §5.10.6; vsock.md tells it in prose.
 */
#ifndef THAW_VIRTIO_VSOCK_CONN_H
#define THAW_VIRTIO_VSOCK_CONN_H

#include <linux/virtio_vsock.h>
#include <sys/uio.h>

#include "vmm/util/ev.h"
#include "vmm/util/types.h"
#include "vmm/virtio/vsock_link.h"

#define VSOCK_HDR_BYTES 44u
#define VSOCK_HOST_CID	2u

_Static_assert(sizeof(struct virtio_vsock_hdr) == VSOCK_HDR_BYTES, "virtio 1.2 §5.10.6");

struct vsock_table;

enum vsock_state {
	VSOCK_REQUESTED, /* host side opened it; the guest has not answered (or not been asked) */
	VSOCK_CONNECTED,
	VSOCK_CLOSING, /* ended here both ways, socket closed; the guest's RST is awaited */
	VSOCK_RESET,   /* a RST is due to the guest; the socket may still take buffered bytes */
	VSOCK_GONE,    /* unknown to the guest; lives until the socket took the buffered bytes */
};

struct vsock_conn {
	struct ev_handler handler; /* the socket; fd -1 when closed */
	struct vsock_table *table;
	struct vsock_link all;	  /* in table->all, oldest first */
	struct vsock_link work;	  /* in table->work while something is due to the guest */
	struct vsock_conn *chain; /* next in the hash bucket */
	u32 host_port, guest_port;
	enum vsock_state state;
	u32 events;	    /* as epoll has them */
	u8 guest_shut;	    /* SHUTDOWN flags received */
	u8 shut, shut_sent; /* SHUTDOWN flags due, and sent; both only grow */

	bool from_guest;
	bool say_ok;	/* "OK <guest port>\n" to the socket once the guest accepts */
	bool announced; /* REQUEST or RESPONSE was sent */
	bool credit_update_due, credit_request_due;
	bool credit_asked; /* a CREDIT_REQUEST is out since the credit ran dry */
	bool hung_up;	   /* both ways ended at the socket's other end; no longer in epoll */
	bool readable;	   /* the socket has, or may have, bytes: no need to wait for EPOLLIN */
	bool mask_in;	   /* epoll said so twice: do not ask again until it is read dry */
	bool read_closed;  /* nothing more goes to the guest */
	bool write_closed; /* the socket takes nothing more; what the guest sends is dropped */
	bool write_shut;   /* shutdown(SHUT_WR) was done for the guest */

	/* guest to socket; free-running counters, virtio 1.2 §5.10.6.3 */
	u32 window_bytes;	/* our buf_alloc, constant */
	u32 rx_cnt, fwd_cnt;	/* received; passed on or dropped */
	u32 fwd_sent;		/* fwd_cnt as the guest knows it */
	u8 *buf;		/* window_bytes long; only while buf_used != 0 */
	u32 buf_head, buf_used; /* buf_used == rx_cnt - fwd_cnt */

	/* socket to guest */
	u32 tx_cnt, peer_buf_alloc, peer_fwd_cnt;
};

/* --- vsock_conn.c: what the guest sends and is sent --- */

/**
 * vsock_conn_packet() - a packet of the guest, with its payload of @hdr->len bytes, the sum of @iov
 * (changed). All else in it is hostile. May free @conn.
 */
void vsock_conn_packet(struct vsock_conn *conn, const struct virtio_vsock_hdr *hdr,
		       struct iovec *iov, unsigned int niov);

/** vsock_conn_refuse() - protocol error: close the socket, reset the guest's end. Settle it next.
 */
void vsock_conn_refuse(struct vsock_conn *conn);

/** vsock_conn_has_control() - is a control packet due? */
bool vsock_conn_has_control(const struct vsock_conn *conn);

/** vsock_conn_control() - header of the next one due, which the caller must send then. */
void vsock_conn_control(struct vsock_conn *conn, struct virtio_vsock_hdr *hdr);

/** vsock_conn_room() - bytes of the socket that the guest can be sent now. */
u32 vsock_conn_room(const struct vsock_conn *conn);

/** vsock_conn_data() - header of a data packet with @len_bytes of what was read. */
void vsock_conn_data(struct vsock_conn *conn, struct virtio_vsock_hdr *hdr, u32 len_bytes);

/**
 * vsock_conn_settle() - after any of the above but packet(): end what has ended, bring the work
 * list and epoll in line. May free @conn.
 */
void vsock_conn_settle(struct vsock_conn *conn);

/* --- vsock_sock.c: the socket's side --- */

/** vsock_conn_attach() - @fd becomes its socket. Return: 0, or -errno: @fd is still the caller's.
 */
int __must_check vsock_conn_attach(struct vsock_conn *conn, int fd);

/** vsock_conn_detach() - close the socket, drop what was buffered for it. */
void vsock_conn_detach(struct vsock_conn *conn);

/** vsock_conn_read() - up to @len_bytes (sum of @iov, <= room). Return: bytes; 0 = none now. */
u32 vsock_conn_read(struct vsock_conn *conn, struct iovec *iov, unsigned int niov, u32 len_bytes);

/** vsock_conn_write() - all of @iov (changed): sent or buffered; it fits, the window was checked.
 */
void vsock_conn_write(struct vsock_conn *conn, struct iovec *iov, unsigned int niov, u32 len_bytes);

/** vsock_conn_watch() - ask epoll for what the state needs; nothing that would make it spin. */
int __must_check vsock_conn_watch(struct vsock_conn *conn);

/** vsock_iov_slice() - [@offset, @offset + @len_bytes) of @iov into @out. Return: its entries. */
unsigned int vsock_iov_slice(const struct iovec *iov, unsigned int niov, size_t offset,
			     size_t len_bytes, struct iovec *out);

#endif
