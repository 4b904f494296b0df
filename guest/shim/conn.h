/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection: a stream from the host, and the command behind it. A kept command stays when its
 * stream has ended, and gets another one (kept.c).
 *
 * conn.c has the stream: bytes in, bytes out, its end; request.c what its frames mean. pump.c moves
 * bytes between it and the command's pipes or terminal (pty.c).
 */
#ifndef THAW_SHIM_CONN_H
#define THAW_SHIM_CONN_H

#include <sys/types.h>

#include "guest/shim/cgroup.h"
#include "guest/shim/frame.h"
#include "guest/shim/parse.h"
#include "guest/shim/ring.h"

struct shim;

#define CONN_READ_BYTES	 65536u
#define CONN_STACK_BYTES 8192u
/* Room for one full data frame of each pipe and for every control frame that can come on top. */
#define CONN_CONTROL_BYTES 1024u
#define CONN_OUT_BYTES	   (2 * (FRAME_HEADER_BYTES + SHIM_DATA_MAX_BYTES) + CONN_CONTROL_BYTES)

enum conn_slot {
	SLOT_STREAM,
	SLOT_STATUS, /* read end: the child tells why it could not exec, or it closes */
	SLOT_STDIN,  /* of a terminal: its other side; SLOT_STDOUT is a copy */
	SLOT_STDOUT, /* with SHIM_EXT_COMBINED of both, then there is no SLOT_STDERR */
	SLOT_STDERR,
	SLOT_CGROUP, /* cgroup.events, while leftovers are waited for */
	SLOT_COUNT,
};

enum conn_phase {
	CONN_FIRST,    /* the first frame is not complete */
	CONN_STARTING, /* the child has not reached execve */
	CONN_RUNNING,  /* the command runs, or has ended and its output is drained */
	CONN_ENDED,    /* a kept command has ended, all its output is in the ring */
	CONN_LINGER,   /* answered; something is to happen when the peer closes */
	CONN_LAST,     /* the last frame is queued; the stream closes behind it */
	CONN_DEAD,     /* the stream is closed; waits for the process and its cgroup */
};

/** What happens when a CONN_LINGER stream ends. */
enum conn_then {
	THEN_NOTHING,
	THEN_CHECKPOINT,
	THEN_CHECKPOINT_LIVE,
	THEN_POWEROFF,
};

struct conn {
	u32 index, generation; /* place in shim->conns; together the key of its epoll events */
	enum conn_phase phase;
	enum conn_then then;
	u32 grace_ms; /* of THEN_POWEROFF */
	bool queued;
	bool orphan;  /* the command goes on without a stream; output is dropped, or kept */
	bool counted; /* in shim->nexecs */
	struct conn *run_next, *warm_next;

	/*
	 * Edge-triggered: ready is set by an event and cleared when the fd had nothing more. Once
	 * hup is set, a short read does not clear it: the end stands behind it.
	 */
	int fd[SLOT_COUNT];
	bool ready[SLOT_COUNT];
	bool hup[SLOT_COUNT];
	bool writable;	 /* of the stream */
	bool connecting; /* the shim opened this stream itself */
	bool probe;	 /* a hang-up event has not been looked into */
	bool rx_eof;	 /* the peer sends nothing more */

	u8 head[FRAME_HEADER_BYTES + SHIM_PING_MAX_BYTES]; /* a frame that is not complete */
	u32 head_len;
	u32 stdin_left; /* payload of the current SHIM_STDIN frame still to come */

	u8 *req; /* payload of SHIM_EXEC while the child may look at it; owned */
	u32 req_len, req_got;
	char **slots; /* owned */
	struct parse_exec exec;

	bool stdin_over; /* this stream sends no more of it */
	bool stdin_eof;	 /* close stdin behind what is in @in */
	u8 stdin_last;	 /* of a terminal: the last byte that was written */
	u32 window_used; /* payload received and not given back yet */
	u32 credit;	 /* consumed, to be given back */
	u32 in_start, in_len;

	pid_t pid; /* 0: none was made */
	bool reaped;
	int wait_status;
	struct cgroup cgroup;

	u64 deadline_ns; /* of the drain, of CONN_LINGER or CONN_LAST, of a stream behind its
			    SHIM_EXIT; 0: none */
	u64 timeout_ns;	 /* of the command; 0: none, or it has passed */
	bool timed_out;
	bool drain_over;
	u32 must_read[2]; /* after drain_over: what was in each pipe at that moment */

	/* A kept command. */
	bool kept;
	bool exit_queued; /* SHIM_EXIT is on its way to this stream */
	bool exit_sent;	  /* ... and this side of the stream is closed */
	u64 started_ns;	  /* CLOCK_REALTIME */
	u64 ended_number; /* order of ends, from 1; 0: it has not */
	struct shim_exit status;
	struct conn *moved_to; /* has taken the stream over, and what was read from it */
	struct tunnel *tunnel; /* the same */
	struct ring ring;

	u32 out_start, out_len;

	/* Each on pages of its own: a short exec touches one of each and none of the last. */
	_Alignas(4096) u8 stack[CONN_STACK_BYTES];
	u8 out[CONN_OUT_BYTES];
	u8 in[SHIM_STDIN_WINDOW_BYTES];
};

_Static_assert(offsetof(struct conn, stack) == 4096, "the head is one page");

/**
 * conn_new() - a connection over @stream (non-blocking; owned from now on, also on failure).
 * Return: the connection, queued; NULL when there are too many or memory is short (the peer is
 * told).
 */
struct conn *conn_new(struct shim *shim, int stream);

/** conn_run() - do all that can be done for @c now; may free it. */
void conn_run(struct shim *shim, struct conn *c);

/** conn_put_frame() - queue a control frame (@len_bytes <= 80, or an error's) on the stream. */
void conn_put_frame(struct conn *c, enum shim_frame_type type, const void *payload, u32 len_bytes);

/** conn_put_error() - a SHIM_ERROR; @what may be NULL. */
void conn_put_error(struct conn *c, enum shim_error_stage stage, int error, const char *what);

/** conn_fail() - the last frame is a SHIM_ERROR; what runs is killed. @what may be NULL. */
void conn_fail(struct shim *shim, struct conn *c, enum shim_error_stage stage, int error,
	       const char *what);

/** conn_bad_frame() - as conn_fail() with SHIM_STAGE_REQUEST; but a kept command is only left by
 * its stream. */
void conn_bad_frame(struct shim *shim, struct conn *c, int error, const char *what);

/** conn_gone() - the peer is not there any more: a kept command stays, else conn_end(). */
void conn_gone(struct shim *shim, struct conn *c);

/** conn_end() - kill, close, wait for the rest. */
void conn_end(struct shim *shim, struct conn *c);

/** conn_close_stream() - close it, forget what was under way on it. */
void conn_close_stream(struct conn *c);

/** conn_reads() - are frames expected? */
bool conn_reads(const struct conn *c);

/** conn_close_slot() - close an fd of @c, if open. */
void conn_close_slot(struct conn *c, enum conn_slot slot);

/**
 * conn_orphan() - the stream is gone, but not the command, which goes on without: its stdin ends
 * behind what has come, its output is read and dropped; a kept one only waits for another stream.
 * Without a command @c ends.
 */
void conn_orphan(struct shim *shim, struct conn *c);

/**
 * request_first() / request_later() - a frame, whole but for the payload of SHIM_EXEC and
 * SHIM_STDIN, which follows.
 */
void request_first(struct shim *shim, struct conn *c, const struct shim_frame *frame,
		   const u8 *payload);
void request_later(struct shim *shim, struct conn *c, const struct shim_frame *frame,
		   const u8 *payload);

/** pump_stdin_bytes() - payload of SHIM_STDIN came: to the pipe, the ring, or nowhere. */
void pump_stdin_bytes(struct conn *c, const u8 *data, u32 len_bytes);

/** pump_stdin() - ring to pipe; closes the pipe at the end; queues credit. */
void pump_stdin(struct conn *c);

/** pump_output() - both pipes to frames or to the ring, and that to frames, as far as there is
 * room. */
void pump_output(struct conn *c);

/** pump_drain_over() - from now on read only what is in the pipes at this moment. */
void pump_drain_over(struct conn *c);

/** pump_can() - would pump_output() get something done? */
bool pump_can(const struct conn *c);

#endif
