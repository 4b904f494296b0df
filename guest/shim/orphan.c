// SPDX-License-Identifier: Apache-2.0
/*
 * Commands without a stream.
 *
 * A command usually ends with its stream. There are two that go on: one that was started detached,
 * and, in a clone of a machine that was snapshotted while commands ran, every command: the host's
 * ends of their streams stayed with the other machine. What such a command writes to its pipes is
 * still read, or it would block; when it ends, what it left behind is killed as ever.
 */
#include <sys/socket.h>

#include "guest/shim/exec.h"
#include "guest/shim/shim.h"

void conn_orphan(struct shim *shim, struct conn *c)
{
	if (c->orphan || c->phase == CONN_DEAD)
		return;
	c->then = THEN_NOTHING;
	/* Looked at once more in any case: to be freed, or to close stdin. */
	loop_queue(shim, c);
	if (c->phase != CONN_STARTING && c->phase != CONN_RUNNING) {
		conn_gone(shim, c);
		return;
	}
	/* shutdown: a child before its execve may hold a copy of the fd. */
	shutdown(c->fd[SLOT_STREAM], SHUT_RDWR);
	conn_close_slot(c, SLOT_STREAM);
	c->orphan = true;
	c->connecting = false;
	c->probe = false;
	c->rx_eof = true;
	c->head_len = 0;
	c->stdin_left = 0;
	c->stdin_eof = true;
	c->out_start = c->out_len = 0;
}
