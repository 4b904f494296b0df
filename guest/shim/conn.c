// SPDX-License-Identifier: Apache-2.0
/*
 * A stream from the host, and what it is for.
 *
 * Life: CONN_FIRST until the first frame is complete. A SHIM_EXEC makes a child (CONN_STARTING)
 * that tells over the status pipe whether it got to execve (CONN_RUNNING). The last frame
 * (SHIM_EXIT, SHIM_ERROR, SHIM_PONG) is queued (CONN_LAST), and when it is sent the stream is
 * closed (CONN_DEAD). The connection itself is freed when the process is reaped and its cgroup is
 * gone as well. A stream can also leave its connection: for a kept command's, or for a tunnel.
 *
 * Input is always read: what the command does not take is kept in the ring, whose size the host
 * must not exceed (SHIM_STDIN_WINDOW_BYTES), so that signals and the end of the stream are seen
 * whatever the command does. Output goes the other way round: nothing is read from the pipes while
 * earlier output is unsent, so that a slow reader slows down its own command and nobody else, and
 * memory stays bounded.
 *
 * The end of the peer's data (recv gives 0) is a half close: the command's stdin ends, the command
 * goes on (of a kept command not even stdin ends: kept.c). A peer that is gone altogether shows in
 * that a send fails. AF_VSOCK does not report that by EPOLLHUP as long as our side is open, so each
 * hang-up event is followed by a send of no bytes, which does nothing but tell. Then everything in
 * the command's cgroup is killed.
 *
 * All of it is written for a peer that lies: frame.c checks headers, parse.c requests, and a frame
 * out of order ends the stream.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/shim/boot.h"
#include "guest/shim/exec.h"
#include "guest/shim/kept.h"
#include "guest/shim/shim.h"
#include "guest/shim/tunnel.h"

#define CONN_ROUNDS 8 /* before other connections get their turn */

/* Sent to a peer whose connection can't be had at all. */
static void conn_refuse(int stream, int error)
{
	struct shim_error body = {.stage = SHIM_STAGE_REQUEST, .error = (u32)error};
	u8 frame[FRAME_HEADER_BYTES + sizeof(body)];

	frame_put(frame, SHIM_ERROR, sizeof(body));
	memcpy(frame + FRAME_HEADER_BYTES, &body, sizeof(body));
	(void)!send(stream, frame, sizeof(frame), MSG_DONTWAIT | MSG_NOSIGNAL);
	close(stream);
}

static struct conn *conn_alloc(struct shim *shim)
{
	struct conn *c = shim->warm;

	if (c) {
		shim->warm = c->warm_next;
		shim->nwarm--;
		memset(c, 0, offsetof(struct conn, stack));
		return c;
	}
	c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return c == MAP_FAILED ? NULL : c;
}

struct conn *conn_new(struct shim *shim, int stream)
{
	struct conn *c = NULL;
	u32 index = 0;

	while (index < SHIM_CONN_MAX && shim->conns[index])
		index++;
	if (index < SHIM_CONN_MAX)
		c = conn_alloc(shim);
	if (!c) {
		conn_refuse(stream, EAGAIN);
		return NULL;
	}
	for (int slot = 0; slot < SLOT_COUNT; slot++)
		c->fd[slot] = -1;
	c->cgroup.dir_fd = -1;
	c->index = index;
	if (!++shim->generation)
		shim->generation = 1;
	c->generation = shim->generation;
	c->fd[SLOT_STREAM] = stream;
	/* Most often the request is there already: no need to be told first. */
	c->ready[SLOT_STREAM] = true;
	c->writable = true;
	shim->conns[index] = c;
	shim->nconns++;
	loop_queue(shim, c);
	if (loop_watch(shim, c, SLOT_STREAM, EPOLLIN | EPOLLOUT | EPOLLRDHUP)) {
		c->fd[SLOT_STREAM] = -1;
		conn_refuse(stream, EAGAIN);
		c->phase = CONN_DEAD;
		return NULL;
	}
	return c;
}

/* Ready to be freed: nothing of it is left in the kernel, and nothing in the queue. */
static bool conn_over(const struct conn *c)
{
	return c->phase == CONN_DEAD && (!c->pid || c->reaped) && !c->cgroup.id && !c->queued;
}

static void conn_free(struct shim *shim, struct conn *c)
{
	enum conn_then then = c->then;
	u32 grace_ms = c->grace_ms;

	for (int slot = 0; slot < SLOT_COUNT; slot++)
		conn_close_slot(c, slot);
	loop_set_deadline(shim, c, 0);
	loop_set_timeout(shim, c, 0);
	free(c->req);
	free(c->slots);
	ring_free(&c->ring);
	exec_uncount(shim, c);
	shim->conns[c->index] = NULL;
	shim->nconns--;
	/* Room for stdin that was used is many pages; such memory is given back. */
	if (shim->nwarm < SHIM_CONN_WARM && !c->exec.with_stdin) {
		c->warm_next = shim->warm;
		shim->warm = c;
		shim->nwarm++;
	} else {
		munmap(c, sizeof(*c));
	}
	if (then == THEN_CHECKPOINT)
		shim->checkpoint_wanted = true;
	else if (then == THEN_CHECKPOINT_LIVE)
		shim->checkpoint_live = true;
	else if (then == THEN_POWEROFF)
		ckpt_poweroff(shim, grace_ms);
}

void conn_close_slot(struct conn *c, enum conn_slot slot)
{
	if (c->fd[slot] >= 0)
		close(c->fd[slot]);
	c->fd[slot] = -1;
	c->ready[slot] = false;
}

void conn_put_frame(struct conn *c, enum shim_frame_type type, const void *payload, u32 len_bytes)
{
	u8 *at = c->out + c->out_start + c->out_len;

	/* Can't be: pumps leave CONN_CONTROL_BYTES, and only a few small frames exist that are not
	 * paced by the peer. */
	if (c->out_start + c->out_len + FRAME_HEADER_BYTES + len_bytes > CONN_OUT_BYTES)
		shim_panic("output buffer overrun by frame %d", type);
	frame_put(at, type, len_bytes);
	if (len_bytes)
		memcpy(at + FRAME_HEADER_BYTES, payload, len_bytes);
	c->out_len += (u32)FRAME_HEADER_BYTES + len_bytes;
}

static void conn_flush(struct shim *shim, struct conn *c);

/* Nothing more goes in or out of the command. */
static void conn_close_pipes(struct conn *c)
{
	conn_close_slot(c, SLOT_STDIN);
	conn_close_slot(c, SLOT_STDOUT);
	conn_close_slot(c, SLOT_STDERR);
}

void conn_fail(struct shim *shim, struct conn *c, enum shim_error_stage stage, int error,
	       const char *what)
{
	conn_put_error(c, stage, error, what);
	conn_close_pipes(c);
	if (c->pid && !c->reaped)
		exec_kill(shim, c);
	c->kept = false;
	c->phase = CONN_LAST;
}

/* A kept command whose stream may come and go. */
static bool conn_stays(const struct conn *c)
{
	return c->kept &&
	       (c->phase == CONN_STARTING || c->phase == CONN_RUNNING || c->phase == CONN_ENDED);
}

void conn_bad_frame(struct shim *shim, struct conn *c, int error, const char *what)
{
	if (!conn_stays(c)) {
		conn_fail(shim, c, SHIM_STAGE_REQUEST, error, what);
		return;
	}
	/* Told if it can be told at once. */
	if (!c->exit_queued)
		conn_put_error(c, SHIM_STAGE_REQUEST, error, what);
	conn_flush(shim, c);
	if (!c->orphan)
		kept_detach(shim, c);
}

void conn_close_stream(struct conn *c)
{
	/* shutdown: a child before its execve may hold a copy of the fd. */
	if (c->fd[SLOT_STREAM] >= 0)
		shutdown(c->fd[SLOT_STREAM], SHUT_RDWR);
	conn_close_slot(c, SLOT_STREAM);
	c->connecting = c->probe = false;
	c->rx_eof = true;
	c->head_len = 0;
	c->stdin_left = 0;
	c->out_start = c->out_len = 0;
}

void conn_end(struct shim *shim, struct conn *c)
{
	if (c->phase == CONN_DEAD)
		return;
	if (c->phase == CONN_ENDED)
		shim->nended--;
	conn_close_stream(c);
	conn_close_pipes(c);
	loop_set_deadline(shim, c, 0);
	loop_set_timeout(shim, c, 0);
	c->kept = false;
	c->phase = CONN_DEAD;
	/* Once it is reaped, cgroup_release() sees to what it left behind. */
	if (c->pid && !c->reaped)
		exec_kill(shim, c);
}

void conn_gone(struct shim *shim, struct conn *c)
{
	if (conn_stays(c))
		kept_detach(shim, c);
	else
		conn_end(shim, c);
}

static void conn_flush(struct shim *shim, struct conn *c)
{
	if (c->orphan)
		c->out_len = 0;
	while (c->out_len && c->writable && !c->connecting) {
		ssize_t n = send(c->fd[SLOT_STREAM], c->out + c->out_start, c->out_len,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			c->writable = false;
			return;
		}
		if (n < 0) {
			conn_gone(shim, c);
			return;
		}
		c->out_start += (u32)n;
		c->out_len -= (u32)n;
	}
	if (!c->out_len) {
		c->out_start = 0;
		if (c->phase == CONN_LAST)
			conn_end(shim, c);
		else if (c->phase == CONN_RUNNING && c->exec.detach)
			conn_orphan(shim, c);
		else if (c->kept)
			kept_flushed(shim, c);
	}
}

bool conn_reads(const struct conn *c)
{
	return c->phase == CONN_FIRST || c->phase == CONN_STARTING || c->phase == CONN_RUNNING ||
	       c->phase == CONN_ENDED;
}

/* One frame, or a part of a long one. Return: bytes taken, 0 when more are needed first. */
static size_t conn_take(struct shim *shim, struct conn *c, const u8 *data, size_t len)
{
	struct shim_frame frame;
	size_t n;
	int ret;

	if (c->stdin_left) {
		n = MIN(len, c->stdin_left);
		c->stdin_left -= (u32)n;
		pump_stdin_bytes(c, data, (u32)n);
		return n;
	}
	if (c->phase == CONN_FIRST && c->req) {
		n = MIN(len, c->req_len - c->req_got);
		memcpy(c->req + c->req_got, data, n);
		c->req_got += (u32)n;
		if (c->req_got == c->req_len)
			exec_begin(shim, c);
		return n;
	}
	if (len < FRAME_HEADER_BYTES)
		return 0;
	ret = frame_get(data, FRAME_FROM_HOST, &frame);
	if (ret) {
		conn_bad_frame(shim, c, -ret, "frame header");
		return len;
	}
	/* The payload of these two is taken as it comes; all others are short and taken whole. */
	n = FRAME_HEADER_BYTES;
	if (frame.type != SHIM_EXEC && frame.type != SHIM_STDIN)
		n += frame.len_bytes;
	if (len < n)
		return 0;
	if (c->phase == CONN_FIRST)
		request_first(shim, c, &frame, data + FRAME_HEADER_BYTES);
	else
		request_later(shim, c, &frame, data + FRAME_HEADER_BYTES);
	return n;
}

static void conn_consume(struct shim *shim, struct conn *c, const u8 *data, size_t len)
{
	size_t n;

	while (len && conn_reads(c) && c->fd[SLOT_STREAM] >= 0) {
		n = conn_take(shim, c, data, len);
		if (!n)
			break;
		data += n;
		len -= n;
		if (c->tunnel) {
			tunnel_input(shim, c->tunnel, data, (u32)len);
			c->tunnel = NULL;
			return;
		}
		if (c->moved_to) {
			struct conn *to = c->moved_to;

			c->moved_to = NULL;
			c = to;
		}
	}
	/* Without a stream: it was given up for what came on it. */
	if (!conn_reads(c) || c->fd[SLOT_STREAM] < 0)
		return;
	/* Less than the longest short frame, or conn_take() would have taken it. */
	memcpy(c->head, data, len);
	c->head_len = (u32)len;
}

/* The peer will send nothing more. */
static void conn_eof(struct shim *shim, struct conn *c)
{
	c->rx_eof = true;
	switch (c->phase) {
	case CONN_STARTING:
	case CONN_RUNNING:
		/* A host that was killed ends its streams like this, too. */
		if (c->kept)
			break;
		if (c->stdin_left || c->head_len) {
			conn_fail(shim, c, SHIM_STAGE_REQUEST, EPROTO, "stream ends in a frame");
			break;
		}
		c->stdin_over = c->stdin_eof = true;
		break;
	case CONN_FIRST:
	case CONN_LINGER:
		conn_gone(shim, c);
		break;
	case CONN_ENDED:
	case CONN_LAST:
	case CONN_DEAD:
		break;
	}
}

static void conn_read(struct shim *shim, struct conn *c)
{
	ssize_t n;

	if (!c->ready[SLOT_STREAM] || c->rx_eof || c->connecting)
		return;
	if (!conn_reads(c) && c->phase != CONN_LINGER)
		return;
	memcpy(shim->io, c->head, c->head_len);
	n = recv(c->fd[SLOT_STREAM], shim->io + c->head_len, CONN_READ_BYTES, MSG_DONTWAIT);
	if (n < 0) {
		if (errno == EAGAIN)
			c->ready[SLOT_STREAM] = false;
		else if (errno != EINTR)
			conn_gone(shim, c);
		return;
	}
	if (!n) {
		conn_eof(shim, c);
		return;
	}
	/* A short read emptied the queue, unless the end of the stream stands behind it. */
	if ((size_t)n < CONN_READ_BYTES && !c->hup[SLOT_STREAM])
		c->ready[SLOT_STREAM] = false;
	/* Lingering streams are read for their end only. */
	if (c->phase == CONN_LINGER)
		return;
	n += c->head_len;
	c->head_len = 0;
	conn_consume(shim, c, shim->io, (size_t)n);
}

/* After a hang-up event: is the peer there at all? See the top of this file. */
static void conn_probe(struct shim *shim, struct conn *c)
{
	if (!c->probe || c->connecting || c->fd[SLOT_STREAM] < 0 || c->exit_sent ||
	    (c->phase != CONN_STARTING && c->phase != CONN_RUNNING && c->phase != CONN_ENDED))
		return;
	c->probe = false;
	if (send(c->fd[SLOT_STREAM], "", 0, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN)
		conn_gone(shim, c);
}

/* A stream that the shim opened itself (ckpt.c). */
static void conn_connected(struct shim *shim, struct conn *c)
{
	socklen_t len = sizeof(int);
	int error = 0;

	if (!c->connecting || !c->writable || c->phase == CONN_DEAD)
		return;
	if (getsockopt(c->fd[SLOT_STREAM], SOL_SOCKET, SO_ERROR, &error, &len) < 0)
		error = errno;
	if (error) {
		shim_log(4, "the host does not take the first request's stream: %s",
			 strerror(error));
		conn_gone(shim, c);
		return;
	}
	c->connecting = false;
	c->ready[SLOT_STREAM] = true;
}

static bool conn_has_work(const struct conn *c)
{
	if (c->phase == CONN_DEAD)
		return false;
	if (c->ready[SLOT_STREAM] && !c->rx_eof && !c->connecting &&
	    (conn_reads(c) || c->phase == CONN_LINGER))
		return true;
	if (c->ready[SLOT_STDIN] && (c->in_len || (c->stdin_eof && !c->stdin_left)))
		return true;
	return pump_can(c);
}

void conn_run(struct shim *shim, struct conn *c)
{
	int rounds = 0;

	do {
		conn_connected(shim, c);
		conn_read(shim, c);
		conn_probe(shim, c);
		if (c->phase == CONN_STARTING || c->phase == CONN_RUNNING) {
			pump_stdin(c);
			exec_progress(shim, c);
		}
		if (c->phase == CONN_ENDED) {
			pump_output(c);
			kept_progress(shim, c);
		}
		if (c->phase != CONN_DEAD)
			conn_flush(shim, c);
	} while (conn_has_work(c) && ++rounds < CONN_ROUNDS);
	if (conn_has_work(c))
		loop_queue(shim, c);
	if ((c->phase == CONN_LINGER || c->phase == CONN_LAST) && c->deadline_ns &&
	    c->deadline_ns <= loop_now_ns())
		conn_end(shim, c);
	/* After the last frame is on its way: the host does not wait for the cgroup's end. */
	if ((c->phase == CONN_LAST || c->phase == CONN_ENDED || c->phase == CONN_DEAD) &&
	    (!c->pid || c->reaped))
		(void)cgroup_release(shim, c);
	if (conn_over(c))
		conn_free(shim, c);
}
