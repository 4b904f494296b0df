// SPDX-License-Identifier: Apache-2.0
/*
 * A stream to a port of the guest.
 *
 * A tunnel is its own small thing beside the connections: it has no command, holds no place of one,
 * and there may be many. Two fds, two buffers, edge-triggered like all else: bytes go from a side
 * to a buffer only when that is empty, so memory is bounded and a side that takes nothing stops the
 * other. A half close goes through behind the data; when both have gone through, or one side
 * fails, the tunnel ends.
 *
 * 127.0.0.1 is tried first, ::1 if nobody listens there. Both answer at once; a listener whose
 * queue is full makes the kernel try again for two minutes, and meanwhile the host may give up.
 */
#include "guest/shim/tunnel.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/shim/shim.h"

#define TUNNEL_BYTES  CONN_READ_BYTES
#define TUNNEL_ROUNDS 8

enum { SIDE_HOST, SIDE_GUEST, SIDE_COUNT };

struct tunnel {
	u32 index, generation;
	bool queued;
	bool connected;
	bool refused; /* SHIM_ERROR is on its way, then it ends */
	bool six;     /* ::1 is being tried */
	u16 port;
	struct tunnel *run_next;
	struct side {
		int fd;
		bool ready, writable, probe;
		bool hup;
		bool eof;  /* it sends nothing more */
		bool shut; /* it was told that nothing more comes */
		u32 start, len;
	} side[SIDE_COUNT];
	/* On its way to that side. */
	_Alignas(4096) u8 data[SIDE_COUNT][TUNNEL_BYTES];
};

static void tunnel_queue(struct shim *shim, struct tunnel *t)
{
	if (t->queued)
		return;
	t->queued = true;
	t->run_next = NULL;
	if (!shim->tunnel_first)
		shim->tunnel_last = &shim->tunnel_first;
	*shim->tunnel_last = t;
	shim->tunnel_last = &t->run_next;
}

/* It may not be in the queue. */
static void tunnel_free(struct shim *shim, struct tunnel *t)
{
	for (int i = 0; i < SIDE_COUNT; i++)
		if (t->side[i].fd >= 0)
			close(t->side[i].fd);
	shim->tunnels[t->index] = NULL;
	shim->ntunnels--;
	munmap(t, sizeof(*t));
}

/* Return: 0 (on its way, or connected), or -errno. */
static int tunnel_connect(struct shim *shim, struct tunnel *t)
{
	const struct sockaddr_in four = {
		.sin_family = AF_INET,
		.sin_port = htons(t->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	const struct sockaddr_in6 six = {
		.sin6_family = AF_INET6,
		.sin6_port = htons(t->port),
		.sin6_addr = IN6ADDR_LOOPBACK_INIT,
	};
	const struct sockaddr *addr = t->six ? (const void *)&six : (const void *)&four;
	socklen_t len = t->six ? sizeof(six) : sizeof(four);
	struct side *side = &t->side[SIDE_GUEST];
	int ret, one = 1;

	if (side->fd >= 0)
		close(side->fd);
	side->writable = side->ready = side->probe = side->hup = false;
	side->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (side->fd < 0)
		return -errno;
	(void)setsockopt(side->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(side->fd, addr, len) < 0 && errno != EINPROGRESS)
		return -errno;
	/* Watched from here on: the end of the connecting is an event, too. */
	ret = loop_watch_tunnel(shim, side->fd, t->index, t->generation, SIDE_GUEST, false);
	return ret;
}

static void tunnel_put(struct tunnel *t, enum shim_frame_type type, const void *payload, u32 len)
{
	struct side *host = &t->side[SIDE_HOST];

	frame_put(t->data[SIDE_HOST], type, len);
	if (len)
		memcpy(t->data[SIDE_HOST] + FRAME_HEADER_BYTES, payload, len);
	host->start = 0;
	host->len = (u32)FRAME_HEADER_BYTES + len;
}

static void tunnel_refuse(struct tunnel *t, int error)
{
	struct {
		struct shim_error head;
		char text[SHIM_TEXT_MAX_BYTES];
	} body = {.head = {.stage = SHIM_STAGE_REQUEST, .error = (u32)error}};
	const char *reason = strerrordesc_np(error);
	u32 len = reason ? (u32)strlen(reason) : 0;

	memcpy(body.text, reason ? reason : "", len);
	tunnel_put(t, SHIM_ERROR, &body, (u32)sizeof(body.head) + len);
	t->refused = true;
}

/* Nobody there: ::1, and if that is not better, what 127.0.0.1 said. */
static void tunnel_next(struct shim *shim, struct tunnel *t, int error)
{
	if (!t->six && error == ECONNREFUSED) {
		t->six = true;
		if (!tunnel_connect(shim, t))
			return;
	}
	tunnel_refuse(t, t->six ? ECONNREFUSED : error);
}

static void tunnel_connecting(struct shim *shim, struct tunnel *t)
{
	struct side *guest = &t->side[SIDE_GUEST];
	socklen_t len = sizeof(int);
	int error = 0;

	if (t->connected || t->refused || !guest->writable)
		return;
	if (getsockopt(guest->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
		error = errno;
	if (error) {
		tunnel_next(shim, t, error);
		return;
	}
	t->connected = true;
	guest->ready = true;
	tunnel_put(t, SHIM_OK, NULL, 0);
}

static struct tunnel *tunnel_new(struct shim *shim, u16 port)
{
	u32 index = 0;
	struct tunnel *t;

	while (index < SHIM_TUNNEL_MAX && shim->tunnels[index])
		index++;
	if (index == SHIM_TUNNEL_MAX)
		return NULL;
	t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (t == MAP_FAILED)
		return NULL;
	t->index = index;
	if (!++shim->generation)
		shim->generation = 1;
	t->generation = shim->generation;
	t->port = port;
	t->side[SIDE_HOST].fd = t->side[SIDE_GUEST].fd = -1;
	shim->tunnels[index] = t;
	shim->ntunnels++;
	return t;
}

void tunnel_begin(struct shim *shim, struct conn *c, const u8 *payload)
{
	struct shim_connect req;
	struct tunnel *t = NULL;
	struct side *host;
	int ret;

	memcpy(&req, payload, sizeof(req));
	if (!req.port || req.port > UINT16_MAX || req.reserved) {
		conn_fail(shim, c, SHIM_STAGE_REQUEST, EINVAL, "connect");
		return;
	}
	t = tunnel_new(shim, (u16)req.port);
	if (!t) {
		conn_fail(shim, c, SHIM_STAGE_REQUEST, EAGAIN, "connect");
		return;
	}
	ret = loop_watch_tunnel(shim, c->fd[SLOT_STREAM], t->index, t->generation, SIDE_HOST, true);
	if (ret) {
		tunnel_free(shim, t);
		conn_fail(shim, c, SHIM_STAGE_REQUEST, -ret, "connect");
		return;
	}
	host = &t->side[SIDE_HOST];
	host->fd = c->fd[SLOT_STREAM];
	host->ready = host->writable = host->probe = true;
	host->hup = c->hup[SLOT_STREAM];
	c->fd[SLOT_STREAM] = -1;
	conn_end(shim, c);
	loop_queue(shim, c);
	c->tunnel = t;
	ret = tunnel_connect(shim, t);
	if (ret)
		tunnel_next(shim, t, -ret);
	tunnel_queue(shim, t);
}

void tunnel_input(struct shim *shim, struct tunnel *t, const u8 *data, u32 len_bytes)
{
	struct side *guest = &t->side[SIDE_GUEST];

	memcpy(t->data[SIDE_GUEST], data, len_bytes);
	guest->start = 0;
	guest->len = len_bytes;
	tunnel_queue(shim, t);
}

/* From @from into the buffer of the other side. Return: 0 or -errno. */
static int side_read(struct tunnel *t, int from)
{
	struct side *in = &t->side[from], *out = &t->side[!from];
	ssize_t n;

	if (out->len || in->eof || !in->ready)
		return 0;
	n = recv(in->fd, t->data[!from], TUNNEL_BYTES, MSG_DONTWAIT);
	if (n < 0) {
		if (errno == EAGAIN)
			in->ready = false;
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	}
	if (!n)
		in->eof = true;
	/* A short read emptied the queue, unless the end stands behind it. */
	if (n < (ssize_t)TUNNEL_BYTES && !in->hup)
		in->ready = false;
	out->start = 0;
	out->len = (u32)n;
	return 0;
}

/* What waits for @to, and behind it the end. Return: 0 or -errno. */
static int side_write(struct tunnel *t, int to)
{
	struct side *out = &t->side[to];

	while (out->len && out->writable) {
		ssize_t n = send(out->fd, t->data[to] + out->start, out->len,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n >= 0) {
			out->start += (u32)n;
			out->len -= (u32)n;
		} else if (errno == EAGAIN) {
			out->writable = false;
		} else if (errno != EINTR) {
			return -errno;
		}
	}
	if (!out->len && t->side[!to].eof && !out->shut) {
		out->shut = true;
		if (shutdown(out->fd, SHUT_WR) < 0)
			return -errno;
	}
	return 0;
}

/* A peer that is gone altogether shows in that a send fails (conn.c says why). */
static int side_probe(struct side *host)
{
	/* After our own half-close every send fails; then its end of data tells, too. */
	if (!host->probe || host->shut)
		return 0;
	host->probe = false;
	if (send(host->fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN)
		return -errno;
	return 0;
}

static bool tunnel_has_work(const struct tunnel *t)
{
	const struct side *host = &t->side[SIDE_HOST], *guest = &t->side[SIDE_GUEST];

	if (t->refused)
		return false;
	return (host->ready && !host->eof && !guest->len) ||
	       (t->connected && guest->ready && !guest->eof && !host->len);
}

/* Return: 0 while it lives. */
static int tunnel_round(struct shim *shim, struct tunnel *t)
{
	const struct side *host = &t->side[SIDE_HOST], *guest = &t->side[SIDE_GUEST];
	int ret;

	tunnel_connecting(shim, t);
	ret = side_probe(&t->side[SIDE_HOST]);
	if (!ret && t->refused) {
		ret = side_write(t, SIDE_HOST);
		return ret ? ret : (host->len ? 0 : -ECONNREFUSED);
	}
	if (!ret)
		ret = side_read(t, SIDE_HOST);
	if (!ret && t->connected)
		ret = side_write(t, SIDE_GUEST);
	if (!ret && t->connected)
		ret = side_read(t, SIDE_GUEST);
	if (!ret)
		ret = side_write(t, SIDE_HOST);
	if (!ret && host->shut && guest->shut)
		ret = -EPIPE;
	return ret;
}

static void tunnel_run(struct shim *shim, struct tunnel *t)
{
	int rounds = 0, ret;

	do {
		ret = tunnel_round(shim, t);
	} while (!ret && tunnel_has_work(t) && ++rounds < TUNNEL_ROUNDS);
	if (ret)
		tunnel_free(shim, t);
	else if (tunnel_has_work(t))
		tunnel_queue(shim, t);
}

void tunnel_event(struct shim *shim, u32 index, u32 generation, u32 side, u32 events)
{
	struct tunnel *t = index < SHIM_TUNNEL_MAX ? shim->tunnels[index] : NULL;
	const bool ends = events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP);

	if (!t || t->generation != generation || side >= SIDE_COUNT)
		return;
	t->side[side].ready |= (events & EPOLLIN) || ends;
	t->side[side].writable |= (events & EPOLLOUT) || ends;
	t->side[side].probe |= ends;
	t->side[side].hup |= ends;
	tunnel_queue(shim, t);
}

void tunnel_run_queue(struct shim *shim)
{
	struct tunnel *t = shim->tunnel_first;

	shim->tunnel_first = NULL;
	while (t) {
		struct tunnel *next = t->run_next;

		t->queued = false;
		tunnel_run(shim, t);
		t = next;
	}
}

void tunnel_end_all(struct shim *shim)
{
	shim->tunnel_first = NULL;
	for (u32 i = 0; i < SHIM_TUNNEL_MAX; i++)
		if (shim->tunnels[i])
			tunnel_free(shim, shim->tunnels[i]);
}
