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

/** exec_kill_all() - SHIM_KILL: the same for a command that is to end by itself after that. */
void exec_kill_all(struct shim *shim, struct conn *c);

/** exec_uncount() - it is none of those that run any more. */
void exec_uncount(struct shim *shim, struct conn *c);

/** exec_reap() - collect every ended process. */
void exec_reap(struct shim *shim);

/**
 * spawn_child() - start c->exec in a child that shares memory until its execve, and does not stop
 * the shim. It is born in c->cgroup, if there is one.
 * @stdio: three fds for 0, 1, 2 (>= 3, close-on-exec)
 * @status_fd: write end of the status pipe (close-on-exec)
 *
 * c->req, c->slots and c->stack belong to the child until the status pipe ends.
 * Return: the pid or -errno.
 */
int __must_check spawn_child(struct shim *shim, struct conn *c, const int stdio[3], int status_fd);

/** What a terminal can hold of a command's output at most. */
#define PTY_BUFFER_BYTES 131072u

/**
 * pty_open() - a terminal for @c: SLOT_STDIN and SLOT_STDOUT are its master side.
 * Return: its other side (blocking, the caller closes it), or -errno.
 */
int __must_check pty_open(struct shim *shim, struct conn *c);

/** pty_resize() - SHIM_RESIZE; SIGWINCH for who has the terminal. */
void pty_resize(struct conn *c, const struct shim_size *size);

/** pty_eof() - c->stdin_eof: the terminal's end-of-file character, if it takes it now. */
void pty_eof(struct conn *c);

#endif
