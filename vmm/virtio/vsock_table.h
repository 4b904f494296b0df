/* SPDX-License-Identifier: Apache-2.0 */
/* The table of vsock streams: look-up by ports, admission, life and death, and the FIFO of RSTs. */
#ifndef THAW_VIRTIO_VSOCK_TABLE_H
#define THAW_VIRTIO_VSOCK_TABLE_H

#include "vmm/virtio/vsock_conn.h"

#define VSOCK_CONN_MAX	     2048u
#define VSOCK_GUEST_CONN_MAX 1536u /* of them opened by the guest: it can't shut the host out */
#define VSOCK_RST_MAX	     64u
#define VSOCK_BUCKETS	     1024u

/*
 * Bytes the guest may have under way to one socket. The large window is given while the sum of all
 * windows is below the total, so a guest whose peers never read pins at most
 * VSOCK_WINDOWS_BYTES + VSOCK_CONN_MAX * VSOCK_WINDOW_SMALL_BYTES = 64 MiB.
 */
#define VSOCK_WINDOW_BYTES	 (256u << 10)
#define VSOCK_WINDOW_SMALL_BYTES (16u << 10)
#define VSOCK_WINDOWS_BYTES	 (32u << 20)

struct vsock_rst {
	u32 host_port, guest_port;
	u16 type;
};

struct vsock_table {
	struct ev *ev;
	u64 guest_cid;
	/** Called from socket events when something may be due to the guest. May free any of them.
	 */
	void (*wake)(struct vsock_table *table);
	struct vsock_conn *buckets[VSOCK_BUCKETS];
	struct vsock_link all, work;
	u32 count;	  /* in `all` */
	u32 known;	  /* of them in the hash, that is, of concern to the guest */
	u32 from_guest;	  /* of them opened by the guest */
	u64 window_bytes; /* sum of window_bytes */
	u32 next_port;
	struct vsock_rst rst[VSOCK_RST_MAX]; /* for packets that belong to no connection; a FIFO */
	u32 rst_head, rst_used;
};

/** vsock_table_init() - empty; @ev must outlive it. */
void vsock_table_init(struct vsock_table *table, struct ev *ev, u64 guest_cid,
		      void (*wake)(struct vsock_table *table));

/** vsock_table_clear() - free all; @keep_unsent spares those the guest was never told of. */
void vsock_table_clear(struct vsock_table *table, bool keep_unsent);

/** vsock_table_find() - the connection the guest knows by these ports, or NULL. */
struct vsock_conn *vsock_table_find(const struct vsock_table *table, u32 host_port, u32 guest_port);

/** vsock_table_port() - a host port, from 2^30 to 2^31 - 1, without connection to @guest_port. */
u32 vsock_table_port(struct vsock_table *table, u32 guest_port);

/** The FIFO of RSTs: add() only when not full; next() fills the header, false when it is empty. */
bool vsock_rst_full(const struct vsock_table *table);
void vsock_rst_add(struct vsock_table *table, u32 host_port, u32 guest_port, u16 type);
bool vsock_rst_next(struct vsock_table *table, struct virtio_vsock_hdr *hdr);

/**
 * vsock_conn_create() - a connection on socket @fd, which is owned from now on, whatever is
 * returned. @from_guest: CONNECTED, a RESPONSE is due; else REQUESTED, a REQUEST is due.
 * Return: 0 and *@out, -EMFILE (too many), -ENOMEM, -errno of epoll. Settle it next.
 */
int __must_check vsock_conn_create(struct vsock_table *table, u32 host_port, u32 guest_port, int fd,
				   bool from_guest, struct vsock_conn **out);

/** vsock_conn_forget() - take it out of the hash: GONE. */
void vsock_conn_forget(struct vsock_conn *conn);

/** vsock_conn_free() - close the socket and free it, in any state. */
void vsock_conn_free(struct vsock_conn *conn);

#endif
