/* SPDX-License-Identifier: Apache-2.0 */
/* From a request to a process (spawn.c makes it) and to its exit status. */
#ifndef THAW_SHIM_EXEC_H
#define THAW_SHIM_EXEC_H

#include "guest/shim/conn.h"

/** What a child tells over the status pipe before it dies. */
struct spawn_error {
	u32 stage;
	u32 error;
};

/** exec_begin() - @c->req is complete: make the process, or fail the connection. */
void exec_begin(struct shim *shim, struct conn *c);

/** exec_progress() - status pipe, output, end of the process; queues the last frame in its time. */
void exec_progress(struct shim *shim, struct conn *c);

/** exec_signal() - SHIM_SIGNAL. */
void exec_signal(struct shim *shim, struct conn *c, u32 number);

/** exec_kill() - SIGKILL for everything in the cgroup (without one: the process group). */
void exec_kill(struct shim *shim, struct conn *c);

/** exec_reap() - collect every ended process. */
void exec_reap(struct shim *shim);

/**
 * spawn_child() - start c->exec in a child that shares memory until its execve, and does not stop
 * the shim.
 * @stdio: three fds for 0, 1, 2 (>= 3, close-on-exec)
 * @status_fd: write end of the status pipe (close-on-exec)
 * @cgroup_fd: where the child is born, or -1
 *
 * c->req, c->slots and c->stack belong to the child until the status pipe ends.
 * Return: the pid or -errno.
 */
int __must_check spawn_child(struct conn *c, const int stdio[3], int status_fd, int cgroup_fd);

#endif
