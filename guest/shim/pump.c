// SPDX-License-Identifier: Apache-2.0
// Bytes between a stream and the pipes or the terminal of its command. Bounded: a ring for stdin,
// two frames for output, and for a kept command the ring that its output can be read from again.
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "guest/shim/exec.h"
#include "guest/shim/shim.h"

/* Credit is given back in pieces of this size: one small frame for many bytes of input. */
#define CREDIT_BYTES (SHIM_STDIN_WINDOW_BYTES / 4)

/* Below this much pending output a pipe may be read or a credit frame queued. */
#define OUT_CONTROL_LOW 256u

/*
 * Return: bytes the pipe took or that are of no use to anybody because it is closed; less than
 * @len_bytes when it is full.
 */
static u32 stdin_write(struct conn *c, const u8 *data, u32 len_bytes)
{
	u32 done = 0;

	while (done < len_bytes) {
		ssize_t n;

		if (c->fd[SLOT_STDIN] < 0)
			return len_bytes;
		if (!c->ready[SLOT_STDIN])
			break;
		n = write(c->fd[SLOT_STDIN], data + done, len_bytes - done);
		if (n >= 0) {
			done += (u32)n;
			if (done)
				c->stdin_last = data[done - 1];
		} else if (errno == EAGAIN) {
			c->ready[SLOT_STDIN] = false;
		} else if (errno != EINTR) {
			/* EPIPE: the command has closed its stdin. That is its right. */
			conn_close_slot(c, SLOT_STDIN);
		}
	}
	return done;
}

void pump_stdin_bytes(struct conn *c, const u8 *data, u32 len_bytes)
{
	u32 done = 0, end, n;

	if (!c->in_len) {
		c->in_start = 0;
		done = stdin_write(c, data, len_bytes);
		c->credit += done;
	}
	/* request_later() has checked the window: the rest fits. */
	while (done < len_bytes) {
		end = (c->in_start + c->in_len) % SHIM_STDIN_WINDOW_BYTES;
		n = MIN(len_bytes - done, SHIM_STDIN_WINDOW_BYTES - end);
		memcpy(c->in + end, data + done, n);
		c->in_len += n;
		done += n;
	}
}

void pump_stdin(struct conn *c)
{
	u8 credit[4];

	while (c->in_len) {
		u32 n = MIN(c->in_len, SHIM_STDIN_WINDOW_BYTES - c->in_start);
		u32 done = stdin_write(c, c->in + c->in_start, n);

		c->in_start = (c->in_start + done) % SHIM_STDIN_WINDOW_BYTES;
		c->in_len -= done;
		c->credit += done;
		if (done < n)
			break;
	}
	if (c->stdin_eof && !c->in_len && !c->stdin_left) {
		if (c->exec.pty)
			pty_eof(c);
		else
			conn_close_slot(c, SLOT_STDIN);
	}
	if (c->orphan || c->credit < CREDIT_BYTES || c->stdin_over ||
	    c->out_start + c->out_len > OUT_CONTROL_LOW)
		return;
	frame_put_u32(credit, c->credit);
	conn_put_frame(c, SHIM_STDIN_CREDIT, credit, sizeof(credit));
	c->window_used -= c->credit;
	c->credit = 0;
}

/* What a read of @want bytes from a pipe or a terminal means. Return: bytes, 0: none. */
static u32 pipe_got(struct conn *c, enum conn_slot slot, u32 want, ssize_t n)
{
	u32 *left = &c->must_read[slot - SLOT_STDOUT];

	if (n <= 0) {
		if (n < 0 && errno == EINTR)
			return 0;
		/* A terminal whose last process is gone says EIO. */
		if (n < 0 && errno == EAGAIN && !(c->drain_over && c->exec.pty))
			c->ready[slot] = false;
		else
			conn_close_slot(c, slot);
		return 0;
	}
	/* A short read emptied the pipe, unless its end stands behind the data. A terminal gives
	 * what it has in small pieces. */
	if ((u32)n < want && !c->hup[slot] && !c->exec.pty)
		c->ready[slot] = false;
	if (c->drain_over) {
		*left -= (u32)n;
		if (!*left)
			conn_close_slot(c, slot);
	}
	return (u32)n;
}

static u32 pipe_want(const struct conn *c, enum conn_slot slot)
{
	if (c->fd[slot] < 0 || !c->ready[slot])
		return 0;
	return c->drain_over ? MIN(SHIM_DATA_MAX_BYTES, c->must_read[slot - SLOT_STDOUT])
			     : SHIM_DATA_MAX_BYTES;
}

static void pump_pipe(struct conn *c, enum conn_slot slot, enum shim_frame_type type)
{
	u32 want = pipe_want(c, slot), n;
	u8 *at;

	if (!want || c->out_start ||
	    c->out_len > FRAME_HEADER_BYTES + SHIM_DATA_MAX_BYTES + OUT_CONTROL_LOW)
		return;
	at = c->out + c->out_len;
	n = pipe_got(c, slot, want, read(c->fd[slot], at + FRAME_HEADER_BYTES, want));
	if (!n)
		return;
	frame_put(at, type, n);
	c->out_len += (u32)FRAME_HEADER_BYTES + n;
}

/* A kept command's output goes to its ring. */
static void keep_pipe(struct conn *c, enum conn_slot slot)
{
	const bool err = slot == SLOT_STDERR;
	u32 want = pipe_want(c, slot);
	struct iovec iov[2];

	if (!want || !ring_room(&c->ring))
		return;
	want = ring_reserve(&c->ring, err, want, iov);
	if (!want) {
		shim_log(3, "no memory for output of pid %d: it is cut off", c->pid);
		conn_close_slot(c, slot);
		return;
	}
	ring_commit(&c->ring, err,
		    pipe_got(c, slot, want, readv(c->fd[slot], iov, iov[1].iov_len ? 2 : 1)));
}

/* ... and from there to whoever reads it. */
static void pump_ring(struct conn *c)
{
	u8 *at = c->out + c->out_len;
	bool err = false;
	u32 n;

	if (c->orphan || c->out_start || c->out_len > OUT_CONTROL_LOW)
		return;
	n = ring_read(&c->ring, at + FRAME_HEADER_BYTES, SHIM_DATA_MAX_BYTES, &err);
	if (!n)
		return;
	frame_put(at, err ? SHIM_STDERR : SHIM_STDOUT, n);
	c->out_len += (u32)FRAME_HEADER_BYTES + n;
}

void pump_output(struct conn *c)
{
	if (!c->kept) {
		pump_pipe(c, SLOT_STDOUT, SHIM_STDOUT);
		pump_pipe(c, SLOT_STDERR, SHIM_STDERR);
		return;
	}
	keep_pipe(c, SLOT_STDOUT);
	keep_pipe(c, SLOT_STDERR);
	pump_ring(c);
}

bool pump_can(const struct conn *c)
{
	if (c->phase != CONN_RUNNING && c->phase != CONN_ENDED)
		return false;
	if (c->kept && !c->orphan && !c->out_len && c->ring.view.offset < c->ring.end)
		return true;
	if (!c->ready[SLOT_STDOUT] && !c->ready[SLOT_STDERR])
		return false;
	return c->kept ? ring_room(&c->ring) > 0 : !c->out_len;
}

void pump_drain_over(struct conn *c)
{
	c->drain_over = true;
	for (enum conn_slot slot = SLOT_STDOUT; slot <= SLOT_STDERR; slot++) {
		int pending = 0;

		if (c->fd[slot] < 0)
			continue;
		if (c->exec.pty) {
			/* It tells only a part; it never holds more than this. */
			c->must_read[slot - SLOT_STDOUT] = PTY_BUFFER_BYTES;
			c->ready[slot] = true;
			continue;
		}
		if (ioctl(c->fd[slot], FIONREAD, &pending) < 0 || pending <= 0) {
			conn_close_slot(c, slot);
			continue;
		}
		c->must_read[slot - SLOT_STDOUT] = (u32)pending;
		c->ready[slot] = true;
	}
}
