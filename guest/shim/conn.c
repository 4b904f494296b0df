// SPDX-License-Identifier: Apache-2.0
/*
 * A stream from the host, and what it is for.
 *
 * Life: CONN_FIRST until the first frame is complete. A SHIM_EXEC makes a child (CONN_STARTING)
 * that tells over the status pipe whether it got to execve (CONN_RUNNING). The last frame
 * (SHIM_EXIT, SHIM_ERROR, SHIM_PONG) is queued (CONN_LAST), and when it is sent the stream is
 * closed (CONN_DEAD). The connection itself is freed when the process is reaped and its cgroup is
 * gone as well.
 *
 * Input is always read: what the command does not take is kept in the ring, whose size the host
 * must not exceed (SHIM_STDIN_WINDOW_BYTES), so that signals and the end of the stream are seen
 * whatever the command does. Output goes the other way round: nothing is read from the pipes while
 * earlier output is unsent, so that a slow reader slows down its own command and nobody else, and
 * memory stays bounded.
 *
 * The end of the peer's data (recv gives 0) is a half close: the command's stdin ends, the command
 * goes on. A peer that is gone altogether shows in that a send fails. AF_VSOCK does not report that
 * by EPOLLHUP as long as our side is open, so each hang-up event is followed by a send of no bytes,
 * which does nothing but tell. Then everything in the command's cgroup is killed.
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
#include "guest/shim/shim.h"

#define POWEROFF_WAIT_MS 1000 /* for the host to have read SHIM_OK */
#define CONN_ROUNDS	 8    /* before other connections get their turn */

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
	struct conn *c = shim->kept;

	if (c) {
		shim->kept = c->kept_next;
		shim->nkept--;
		memset(c, 0, offsetof(struct conn, stack));
		return c;
	}
	c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
	free(c->req);
	free(c->slots);
	shim->conns[c->index] = NULL;
	shim->nconns--;
	/* A ring that was used is many pages; such memory is given back. */
	if (shim->nkept < SHIM_CONN_KEPT && !c->exec.with_stdin) {
		c->kept_next = shim->kept;
		shim->kept = c;
		shim->nkept++;
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
	struct {
		struct shim_error head;
		char text[SHIM_TEXT_MAX_BYTES];
	} body = {.head = {.stage = stage, .error = (u32)error}};
	const char *reason = strerrordesc_np(error);
	size_t len = 0;

	if (what) {
		/* Room for ": " and the reason stays. */
		len = MIN(strlen(what), sizeof(body.text) - 128);
		memcpy(body.text, what, len);
		memcpy(body.text + len, ": ", 2);
		len += 2;
	}
	if (reason) {
		size_t n = MIN(strlen(reason), sizeof(body.text) - len);

		memcpy(body.text + len, reason, n);
		len += n;
	}
	conn_put_frame(c, SHIM_ERROR, &body, (u32)(sizeof(body.head) + len));
	conn_close_pipes(c);
	if (c->pid && !c->reaped)
		exec_kill(shim, c);
	c->phase = CONN_LAST;
}

void conn_gone(struct shim *shim, struct conn *c)
{
	if (c->phase == CONN_DEAD)
		return;
	/* shutdown: a child before its execve may hold a copy of the fd. */
	if (c->fd[SLOT_STREAM] >= 0)
		shutdown(c->fd[SLOT_STREAM], SHUT_RDWR);
	conn_close_slot(c, SLOT_STREAM);
	conn_close_pipes(c);
	loop_set_deadline(shim, c, 0);
	c->out_len = 0;
	c->phase = CONN_DEAD;
	/* Once it is reaped, cgroup_release() sees to what it left behind. */
	if (c->pid && !c->reaped)
		exec_kill(shim, c);
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
			conn_gone(shim, c);
		else if (c->phase == CONN_RUNNING && c->exec.detach)
			conn_orphan(shim, c);
	}
}

/* The first frame of a stream. */
static void conn_first(struct shim *shim, struct conn *c, const struct shim_frame *frame,
		       const u8 *payload)
{
	switch (frame->type) {
	case SHIM_EXEC:
		c->req = malloc(frame->len_bytes);
		c->req_len = frame->len_bytes;
		if (!c->req)
			conn_fail(shim, c, SHIM_STAGE_SETUP, ENOMEM, "request");
		break;
	case SHIM_PING:
		conn_put_frame(c, SHIM_PONG, payload, frame->len_bytes);
		c->phase = CONN_LAST;
		break;
	case SHIM_CHECKPOINT:
	case SHIM_CHECKPOINT_LIVE:
		if (ckpt_under_way(shim)) {
			conn_fail(shim, c, SHIM_STAGE_REQUEST, EBUSY, "checkpoint");
			break;
		}
		conn_put_frame(c, SHIM_OK, NULL, 0);
		c->phase = CONN_LINGER;
		c->then = frame->type == SHIM_CHECKPOINT ? THEN_CHECKPOINT : THEN_CHECKPOINT_LIVE;
		break;
	case SHIM_SHUTDOWN:
	case SHIM_POWEROFF:
		if (frame->len_bytes)
			c->grace_ms = MIN(frame_get_u32(payload), SHIM_GRACE_MAX_MS);
		conn_put_frame(c, SHIM_OK, NULL, 0);
		c->phase = CONN_LINGER;
		c->then = THEN_POWEROFF;
		loop_set_deadline(shim, c, POWEROFF_WAIT_MS);
		break;
	default:
		conn_fail(shim, c, SHIM_STAGE_REQUEST, EPROTO, "first frame");
		break;
	}
}

/* A frame of a stream whose first one was SHIM_EXEC. */
static void conn_later(struct shim *shim, struct conn *c, const struct shim_frame *frame,
		       const u8 *payload)
{
	switch (frame->type) {
	case SHIM_STDIN:
		if (!c->exec.with_stdin || c->stdin_eof ||
		    frame->len_bytes > SHIM_STDIN_WINDOW_BYTES - c->window_used) {
			conn_fail(shim, c, SHIM_STAGE_REQUEST, EPROTO, "stdin");
			break;
		}
		c->window_used += frame->len_bytes;
		c->stdin_left = frame->len_bytes;
		break;
	case SHIM_STDIN_EOF:
		c->stdin_eof = true;
		break;
	case SHIM_SIGNAL:
		exec_signal(shim, c, frame_get_u32(payload));
		break;
	default:
		conn_fail(shim, c, SHIM_STAGE_REQUEST, EPROTO, "frame");
		break;
	}
}

static bool conn_reads(const struct conn *c)
{
	return c->phase == CONN_FIRST || c->phase == CONN_STARTING || c->phase == CONN_RUNNING;
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
		conn_fail(shim, c, SHIM_STAGE_REQUEST, -ret, "frame header");
		return len;
	}
	/* The payload of these two is taken as it comes; all others are short and taken whole. */
	n = FRAME_HEADER_BYTES;
	if (frame.type != SHIM_EXEC && frame.type != SHIM_STDIN)
		n += frame.len_bytes;
	if (len < n)
		return 0;
	if (c->phase == CONN_FIRST)
		conn_first(shim, c, &frame, data + FRAME_HEADER_BYTES);
	else
		conn_later(shim, c, &frame, data + FRAME_HEADER_BYTES);
	return n;
}

static void conn_consume(struct shim *shim, struct conn *c, const u8 *data, size_t len)
{
	size_t n;

	while (len && conn_reads(c)) {
		n = conn_take(shim, c, data, len);
		if (!n)
			break;
		data += n;
		len -= n;
	}
	if (!conn_reads(c))
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
		if (c->stdin_left || c->head_len) {
			conn_fail(shim, c, SHIM_STAGE_REQUEST, EPROTO, "stream ends in a frame");
			break;
		}
		c->stdin_eof = true;
		break;
	case CONN_FIRST:
	case CONN_LINGER:
		conn_gone(shim, c);
		break;
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
	if (!c->probe || c->connecting || (c->phase != CONN_STARTING && c->phase != CONN_RUNNING))
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
	if (c->ready[SLOT_STDIN] && (c->ring_len || (c->stdin_eof && !c->stdin_left)))
		return true;
	return c->phase == CONN_RUNNING && !c->out_len &&
	       (c->ready[SLOT_STDOUT] || c->ready[SLOT_STDERR]);
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
		if (c->phase != CONN_DEAD)
			conn_flush(shim, c);
	} while (conn_has_work(c) && ++rounds < CONN_ROUNDS);
	if (conn_has_work(c))
		loop_queue(shim, c);
	if (c->phase == CONN_LINGER && c->deadline_ns && c->deadline_ns <= loop_now_ns())
		conn_gone(shim, c);
	/* After the last frame is on its way: the host does not wait for the cgroup's end. */
	if ((c->phase == CONN_LAST || c->phase == CONN_DEAD) && (!c->pid || c->reaped))
		(void)cgroup_release(shim, c);
	if (conn_over(c))
		conn_free(shim, c);
}
