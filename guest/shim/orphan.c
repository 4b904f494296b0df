// SPDX-License-Identifier: Apache-2.0
/*
 * Commands without a stream.
 *
 * A command usually ends with its stream. There are two that go on: one that was started detached,
 * and, in a clone of a machine that was snapshotted while commands ran, every command: the host's
 * ends of their streams stayed with the other machine. What such a command writes to its pipes is
 * still read, or it would block; when it ends, what it left behind is killed as ever. (A kept one
 * is another matter: kept.c.)
 */
#include "guest/shim/exec.h"
#include "guest/shim/shim.h"

void conn_orphan(struct shim *shim, struct conn *c)
{
	if (c->orphan || c->phase == CONN_DEAD)
		return;
	c->then = THEN_NOTHING;
	/* Looked at once more in any case: to be freed, or to close stdin. */
	loop_queue(shim, c);
	if (c->kept || (c->phase != CONN_STARTING && c->phase != CONN_RUNNING)) {
		conn_gone(shim, c);
		return;
	}
	conn_close_stream(c);
	c->orphan = true;
	c->stdin_over = c->stdin_eof = true;
}
