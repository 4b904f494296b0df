// SPDX-License-Identifier: Apache-2.0
// Bytes between a stream and the pipes of its command. Bounded: a ring for stdin, two frames for
// output.
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

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

	if (!c->ring_len) {
		c->ring_start = 0;
		done = stdin_write(c, data, len_bytes);
		c->credit += done;
	}
	/* conn_later() has checked the window: the rest fits. */
	while (done < len_bytes) {
		end = (c->ring_start + c->ring_len) % SHIM_STDIN_WINDOW_BYTES;
		n = MIN(len_bytes - done, SHIM_STDIN_WINDOW_BYTES - end);
		memcpy(c->ring + end, data + done, n);
		c->ring_len += n;
		done += n;
	}
}

void pump_stdin(struct conn *c)
{
	u8 credit[4];

	while (c->ring_len) {
		u32 n = MIN(c->ring_len, SHIM_STDIN_WINDOW_BYTES - c->ring_start);
		u32 done = stdin_write(c, c->ring + c->ring_start, n);

		c->ring_start = (c->ring_start + done) % SHIM_STDIN_WINDOW_BYTES;
		c->ring_len -= done;
		c->credit += done;
		if (done < n)
			break;
	}
	if (c->stdin_eof && !c->ring_len && !c->stdin_left)
		conn_close_slot(c, SLOT_STDIN);
	if (c->credit < CREDIT_BYTES || c->stdin_eof || c->out_start + c->out_len > OUT_CONTROL_LOW)
		return;
	frame_put_u32(credit, c->credit);
	conn_put_frame(c, SHIM_STDIN_CREDIT, credit, sizeof(credit));
	c->window_used -= c->credit;
	c->credit = 0;
}

static void pump_pipe(struct conn *c, enum conn_slot slot, enum shim_frame_type type)
{
	u32 *left = &c->must_read[slot - SLOT_STDOUT];
	u32 want = SHIM_DATA_MAX_BYTES;
	ssize_t n;
	u8 *at;

	if (c->fd[slot] < 0 || !c->ready[slot])
		return;
	if (c->out_start || c->out_len > FRAME_HEADER_BYTES + SHIM_DATA_MAX_BYTES + OUT_CONTROL_LOW)
		return;
	if (c->drain_over)
		want = MIN(want, *left);
	at = c->out + c->out_len;
	n = read(c->fd[slot], at + FRAME_HEADER_BYTES, want);
	if (n < 0) {
		if (errno == EAGAIN)
			c->ready[slot] = false;
		else if (errno != EINTR)
			conn_close_slot(c, slot);
		return;
	}
	if (!n) {
		conn_close_slot(c, slot);
		return;
	}
	frame_put(at, type, (u32)n);
	c->out_len += (u32)(FRAME_HEADER_BYTES + (size_t)n);
	/* A short read emptied the pipe, unless its end stands behind the data. */
	if ((u32)n < want && !c->hup[slot])
		c->ready[slot] = false;
	if (c->drain_over) {
		*left -= (u32)n;
		if (!*left)
			conn_close_slot(c, slot);
	}
}

void pump_output(struct conn *c)
{
	pump_pipe(c, SLOT_STDOUT, SHIM_STDOUT);
	pump_pipe(c, SLOT_STDERR, SHIM_STDERR);
}

void pump_drain_over(struct conn *c)
{
	c->drain_over = true;
	for (enum conn_slot slot = SLOT_STDOUT; slot <= SLOT_STDERR; slot++) {
		int pending = 0;

		if (c->fd[slot] < 0)
			continue;
		if (ioctl(c->fd[slot], FIONREAD, &pending) < 0 || pending <= 0) {
			conn_close_slot(c, slot);
			continue;
		}
		c->must_read[slot - SLOT_STDOUT] = (u32)pending;
		c->ready[slot] = true;
	}
}
