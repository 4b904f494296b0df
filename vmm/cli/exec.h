/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's side of the exec protocol (guest/shim/proto.h, docs/exec-protocol.md): one operation
 * over one connected stream socket.
 *
 * Everything here blocks the calling thread until the operation is over, and keeps memory flat:
 * what the guest sends is passed on before more is read, what goes to the guest is read only when
 * it can be taken. The guest is not trusted: a malformed frame ends the operation.
 *
 * The caller must ignore or block SIGPIPE.
 */
#ifndef THAW_CLI_EXEC_H
#define THAW_CLI_EXEC_H

#include "guest/shim/proto.h"
#include "vmm/util/types.h"

/** What to run. Strings and arrays stay the caller's. */
struct exec_request {
	char *const *argv; /* NULL-terminated, at least one; no shell */
	char *const *env;  /* NULL-terminated "NAME=value" strings, or NULL; plus a default PATH if
			      they have none */
	const char *cwd;   /* NULL: / */
	u32 uid, gid;
	u32 drain_ms;	 /* 0: 1000 */
	bool with_stdin; /* false: the command's stdin is /dev/null */
	bool detach;	 /* the command goes on without a stream and output; not @with_stdin */
	const struct shim_exec_ext *ext; /* NULL: none. A terminal, a time-out, ... */
};

/**
 * exec_payload_build() - the payload of a SHIM_EXEC frame; also what goes to `thaw-vmm
 * --request-fd`.
 * @out: the caller frees it with free().
 *
 * Return: 0, -EINVAL (no argv, empty argv[0] or cwd, environment string without a name, uid or gid
 * of -1), -E2BIG, or -ENOMEM. Logs nothing.
 */
int __must_check exec_payload_build(const struct exec_request *req, u8 **out, size_t *len_bytes);

/** exec_frame_build() - the same with its frame header in front; for exec_run() and tests. */
int __must_check exec_frame_build(const struct exec_request *req, u8 **out, size_t *len_bytes);

enum exec_kind {
	EXEC_EXITED,	   /* value: exit code */
	EXEC_SIGNALLED,	   /* value: signal number */
	EXEC_DETACHED,	   /* the command runs: it was to be left alone from there on, or the detach
			      keys were pressed */
	EXEC_SPAWN_ERROR,  /* the command did not start: stage, error, text (SHIM_ERROR) */
	EXEC_PROTOCOL,	   /* the guest sent something malformed: text */
	EXEC_LOST,	   /* the stream ended or failed without a last frame: error (or 0), text */
	EXEC_TIMEOUT,	   /* io->deadline_ns passed */
	EXEC_OUTPUT_ERROR, /* writing to stdout_fd or stderr_fd failed: error (EPIPE, ENOSPC...),
			      text */
	EXEC_ABORTED,	   /* watch() said so: error */
};

struct exec_result {
	enum exec_kind kind;
	u32 value;
	u32 stage;    /* enum shim_error_stage */
	int error;    /* positive errno, or 0; EXEC_ABORTED: what watch() returned */
	u32 pid;      /* of the command in the guest; 0: it did not start */
	bool drained; /* the output is complete; false: something else held a pipe and the time ran
			 out */
	bool timed_out;	   /* its request's timeout_ms ended it */
	bool oom_killed;   /* the guest's kernel killed something of it for memory */
	bool stdin_unsure; /* some input was sent and may not have got to the command */
	u64 cursor; /* how much of its output has been passed on, since its start, of both streams
		       together: where to attach again after EXEC_LOST */
	u64 started_ns;			/* clock_now_ns() when SHIM_STARTED was parsed, or 0 */
	u64 exit_ns;			/* clock_now_ns() when the last frame was parsed, or 0 */
	u64 stdout_bytes, stderr_bytes; /* passed on */
	char text[SHIM_TEXT_MAX_BYTES + 1]; /* printable, NUL-terminated; "" unless named above */
};

/** Where the bytes go. The fds stay the caller's and keep their flags. */
struct exec_io {
	int stdin_fd;  /* read to its end and sent; -1: none. Used only with with_stdin */
	int stdout_fd; /* -1: dropped */
	int stderr_fd; /* -1: dropped */
	int signal_fd; /* a signalfd whose signals are forwarded to the command; -1: none */
	bool attach;   /* without a request: SHIM_ATTACHED comes first */
	bool tty;      /* the command has a terminal whose size is that of tty_fd: SIGWINCH of
			       signal_fd tells it to the command instead of being forwarded */
	int tty_fd;
	bool detach_keys; /* ctrl-p ctrl-q in stdin ends it as EXEC_DETACHED, and are not sent */
	int watch_fd;	  /* -1, or polled: watch() is called when it is readable or hung up */
	/** Return: 0 to go on, 1 to go on without watch_fd, or -errno: the exec ends as
	 * EXEC_ABORTED. */
	int (*watch)(void *opaque);
	void *opaque;
	u64 deadline_ns; /* CLOCK_MONOTONIC; 0: none */
};

/**
 * exec_run() - run one command over @stream until its last frame came and its output is written.
 * @stream: a connected stream socket. It is left open; when the caller closes it, whatever still
 * runs there is killed, unless it is kept.
 * @req: NULL when the request got there by another way: the shim called SHIM_FIRST_PORT by itself,
 * or @stream was attached to a command (SHIM_ATTACHED comes first then).
 * Then stdin is sent if io->stdin_fd >= 0 (the request must have had with_stdin).
 *
 * While stdout_fd or stderr_fd takes nothing, nothing more is read from the guest.
 *
 * Return: 0 with @result filled, whatever the kind; -errno for a bad request (exec_payload_build())
 *and this machine's own faults (poll failed), not logged.
 */
int __must_check exec_run(int stream, const struct exec_request *req, const struct exec_io *io,
			  struct exec_result *result);

/**
 * exec_ping() / exec_checkpoint() / exec_checkpoint_live() / exec_poweroff() / exec_shutdown() -
 * one request, one answer.
 * @deadline_ns: CLOCK_MONOTONIC; 0: wait for ever.
 *
 * exec_checkpoint(): the checkpoint comes once the caller has closed @stream and the last exec has
 * ended; what became of it comes by CTL_SNAPSHOT. exec_checkpoint_live() waits for no exec.
 * exec_shutdown(): every process gets SIGTERM and @grace_ms to end first.
 *
 * Return: 0, -ETIMEDOUT, -EPROTO, -EPIPE (the stream ended), or the negative errno the shim refused
 * with. Logs nothing.
 */
int __must_check exec_ping(int stream, u64 deadline_ns);
int __must_check exec_checkpoint(int stream, u64 deadline_ns);
int __must_check exec_checkpoint_live(int stream, u64 deadline_ns);
int __must_check exec_poweroff(int stream, u64 deadline_ns);
int __must_check exec_shutdown(int stream, u32 grace_ms, u64 deadline_ns);

#endif
