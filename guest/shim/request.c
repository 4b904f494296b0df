// SPDX-License-Identifier: Apache-2.0
// What a stream's frames mean: its first one says what it is for; and the answer that is a refusal.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "guest/shim/boot.h"
#include "guest/shim/exec.h"
#include "guest/shim/kept.h"
#include "guest/shim/shim.h"
#include "guest/shim/tunnel.h"

#define POWEROFF_WAIT_MS 1000 /* for the host to have read SHIM_OK */

void conn_put_error(struct conn *c, enum shim_error_stage stage, int error, const char *what)
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
}

/* The first frame of a stream. */
void request_first(struct shim *shim, struct conn *c, const struct shim_frame *frame,
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
	case SHIM_ATTACH:
		kept_attach(shim, c, payload);
		break;
	case SHIM_LIST:
		kept_list(shim, c);
		break;
	case SHIM_FORGET:
		kept_forget(shim, c, payload);
		break;
	case SHIM_CONNECT:
		tunnel_begin(shim, c, payload);
		break;
	case SHIM_USAGE:
		usage_reply(shim, c);
		break;
	default:
		conn_fail(shim, c, SHIM_STAGE_REQUEST, EPROTO, "first frame");
		break;
	}
}

static void take_stdin(struct shim *shim, struct conn *c, u32 len_bytes)
{
	if (!c->exec.with_stdin || c->stdin_over ||
	    len_bytes > SHIM_STDIN_WINDOW_BYTES - c->window_used) {
		conn_bad_frame(shim, c, EPROTO, "stdin");
		return;
	}
	c->window_used += len_bytes;
	c->stdin_left = len_bytes;
}

static void take_ack(struct shim *shim, struct conn *c, u64 offset)
{
	if (!c->kept || offset > c->ring.end) {
		conn_bad_frame(shim, c, EPROTO, "acknowledgement");
		return;
	}
	ring_ack(&c->ring, offset);
}

static void take_size(struct shim *shim, struct conn *c, const u8 *payload)
{
	struct shim_size size;

	memcpy(&size, payload, sizeof(size));
	if (!c->exec.pty || !size.cols || !size.rows) {
		conn_bad_frame(shim, c, EPROTO, "size of a terminal");
		return;
	}
	pty_resize(c, &size);
}

void request_later(struct shim *shim, struct conn *c, const struct shim_frame *frame,
		   const u8 *payload)
{
	switch (frame->type) {
	case SHIM_STDIN:
		take_stdin(shim, c, frame->len_bytes);
		break;
	case SHIM_STDIN_EOF:
		/* A second one is harmless; one without stdin, too. */
		c->stdin_over = c->stdin_eof = true;
		break;
	case SHIM_SIGNAL:
		exec_signal(shim, c, frame_get_u32(payload));
		break;
	case SHIM_KILL:
		exec_kill_all(shim, c);
		break;
	case SHIM_ACK:
		take_ack(shim, c, frame_get_u64(payload));
		break;
	case SHIM_RESIZE:
		take_size(shim, c, payload);
		break;
	default:
		conn_bad_frame(shim, c, EPROTO, "frame");
		break;
	}
}
