// SPDX-License-Identifier: Apache-2.0
// The table of vsock streams: look-up by ports, admission, life and death, and the FIFO of RSTs.
#include <errno.h>
#include <stdlib.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"
#include "vmm/virtio/vsock_table.h"

#define HOST_PORT_FIRST (1u << 30)
#define HOST_PORT_MASK	(HOST_PORT_FIRST - 1)

void vsock_table_init(struct vsock_table *table, struct ev *ev, u64 guest_cid,
		      void (*wake)(struct vsock_table *table))
{
	*table = (struct vsock_table){.ev = ev, .guest_cid = guest_cid, .wake = wake};
	vsock_link_init(&table->all);
	vsock_link_init(&table->work);
}

static unsigned int vsock_hash(u32 host_port, u32 guest_port)
{
	u64 key = (u64)host_port << 32 | guest_port;

	/* Fibonacci hashing: the high bits of the product depend on all bits of the key. */
	return (key * 0x9e3779b97f4a7c15ull) >> 54;
}

_Static_assert(VSOCK_BUCKETS == 1u << (64 - 54), "vsock_hash() yields an index into buckets");

struct vsock_conn *vsock_table_find(const struct vsock_table *table, u32 host_port, u32 guest_port)
{
	struct vsock_conn *conn = table->buckets[vsock_hash(host_port, guest_port)];

	while (conn && (conn->host_port != host_port || conn->guest_port != guest_port))
		conn = conn->chain;
	return conn;
}

u32 vsock_table_port(struct vsock_table *table, u32 guest_port)
{
	u32 port;

	/* Ends: there are far more ports than connections. */
	do {
		port = HOST_PORT_FIRST | (table->next_port++ & HOST_PORT_MASK);
	} while (vsock_table_find(table, port, guest_port));
	return port;
}

bool vsock_rst_full(const struct vsock_table *table)
{
	return table->rst_used == VSOCK_RST_MAX;
}

void vsock_rst_add(struct vsock_table *table, u32 host_port, u32 guest_port, u16 type)
{
	BUG_ON(vsock_rst_full(table));
	table->rst[(table->rst_head + table->rst_used++) % VSOCK_RST_MAX] =
		(struct vsock_rst){host_port, guest_port, type};
}

bool vsock_rst_next(struct vsock_table *table, struct virtio_vsock_hdr *hdr)
{
	const struct vsock_rst *rst = &table->rst[table->rst_head];

	if (!table->rst_used)
		return false;
	*hdr = (struct virtio_vsock_hdr){
		.src_cid = VSOCK_HOST_CID,
		.dst_cid = table->guest_cid,
		.src_port = rst->host_port,
		.dst_port = rst->guest_port,
		.type = rst->type,
		.op = VIRTIO_VSOCK_OP_RST,
	};
	table->rst_head = (table->rst_head + 1) % VSOCK_RST_MAX;
	table->rst_used--;
	return true;
}

/*
 * Make room in a full table: the oldest connection that has ended on both sides here, and whose
 * reset the guest owes us, is reset instead. No timer is needed for guests that never answer. The
 * last place of the FIFO stays free: it belongs to the packet that the room is made for, which is
 * answered by a RST if there is no connection for it after all.
 */
static bool vsock_table_evict(struct vsock_table *table)
{
	if (table->rst_used + 1 >= VSOCK_RST_MAX)
		return false;
	for (struct vsock_link *link = table->all.next; link != &table->all; link = link->next) {
		struct vsock_conn *conn = container_of(link, struct vsock_conn, all);

		if (conn->state != VSOCK_CLOSING)
			continue;
		vsock_rst_add(table, conn->host_port, conn->guest_port, VIRTIO_VSOCK_TYPE_STREAM);
		vsock_conn_free(conn);
		return true;
	}
	return false;
}

static int vsock_table_admit(struct vsock_table *table, bool from_guest)
{
	if (from_guest && table->from_guest >= VSOCK_GUEST_CONN_MAX)
		return -EMFILE;
	if (table->count >= VSOCK_CONN_MAX && !vsock_table_evict(table))
		return -EMFILE;
	return 0;
}

static void vsock_table_insert(struct vsock_table *table, struct vsock_conn *conn)
{
	struct vsock_conn **bucket = &table->buckets[vsock_hash(conn->host_port, conn->guest_port)];

	conn->chain = *bucket;
	*bucket = conn;
	vsock_link_add_tail(&table->all, &conn->all);
	table->count++;
	table->known++;
	table->from_guest += conn->from_guest;
	table->window_bytes += conn->window_bytes;
}

int vsock_conn_create(struct vsock_table *table, u32 host_port, u32 guest_port, int fd,
		      bool from_guest, struct vsock_conn **out)
{
	struct vsock_conn *conn;
	int ret = vsock_table_admit(table, from_guest);

	if (ret)
		goto err_close;
	ret = -ENOMEM;
	conn = calloc(1, sizeof(*conn));
	if (!conn)
		goto err_close;
	vsock_link_init(&conn->work);
	conn->table = table;
	conn->host_port = host_port;
	conn->guest_port = guest_port;
	conn->from_guest = from_guest;
	conn->state = from_guest ? VSOCK_CONNECTED : VSOCK_REQUESTED;
	conn->window_bytes = table->window_bytes + VSOCK_WINDOW_BYTES <= VSOCK_WINDOWS_BYTES
				     ? VSOCK_WINDOW_BYTES
				     : VSOCK_WINDOW_SMALL_BYTES;
	ret = vsock_conn_attach(conn, fd);
	if (ret)
		goto err_free;
	vsock_table_insert(table, conn);
	*out = conn;
	return 0;

err_free:
	free(conn);
err_close:
	fd_close(&fd);
	return ret;
}

void vsock_conn_forget(struct vsock_conn *conn)
{
	struct vsock_table *table = conn->table;
	struct vsock_conn **pos = &table->buckets[vsock_hash(conn->host_port, conn->guest_port)];

	if (conn->state == VSOCK_GONE)
		return;
	while (*pos != conn)
		pos = &(*pos)->chain;
	*pos = conn->chain;
	conn->chain = NULL;
	conn->state = VSOCK_GONE;
	table->known--;
}

void vsock_conn_free(struct vsock_conn *conn)
{
	struct vsock_table *table = conn->table;

	vsock_conn_forget(conn);
	vsock_conn_detach(conn);
	vsock_link_del(&conn->work);
	vsock_link_del(&conn->all);
	table->count--;
	table->from_guest -= conn->from_guest;
	table->window_bytes -= conn->window_bytes;
	free(conn);
}

void vsock_table_clear(struct vsock_table *table, bool keep_unsent)
{
	struct vsock_link *next;

	for (struct vsock_link *link = table->all.next; link != &table->all; link = next) {
		struct vsock_conn *conn = container_of(link, struct vsock_conn, all);

		next = link->next;
		if (keep_unsent && conn->state == VSOCK_REQUESTED && !conn->announced)
			continue;
		vsock_conn_free(conn);
	}
	table->rst_head = table->rst_used = 0;
}
