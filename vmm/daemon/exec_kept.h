/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The execs of all boxes, as thawd has them: every one is a kept exec of its shim.
 *
 *   shim ── SHIM_EXEC/ATTACH stream ──> puller thread ──> log (exec_log.h) ──> readers
 *
 * Each running exec has one puller (exec_pull.c), which owns the guest's stream: it writes output
 * to the log, acknowledges what is there, and carries out what others ask for (signals, stdin...).
 * Handlers are readers of the log, at any cursor. One that holds (a foreground client) is never
 * overtaken: when it is behind, the puller stops, the shim's ring fills and the command blocks.
 *
 * What must be known after kill -9 of thawd is in the machine's run folder: exec-ID.json before the
 * request is sent and again when the exec has ended, exec-ID.log all the time. What the guest did
 * meanwhile, the shim tells.
 *
 * Locks: execs->lock (who is there) before kept->lock (what it is doing). Nothing waits under one,
 * except for the log's file.
 */
#ifndef THAW_DAEMON_EXEC_KEPT_H
#define THAW_DAEMON_EXEC_KEPT_H

#include <jansson.h>
#include <pthread.h>

#include "guest/shim/proto.h"
#include "vmm/daemon/box.h"
#include "vmm/daemon/exec_log.h"
#include "vmm/util/types.h"

#define KEPT_ID_CHARS	  32
#define KEPT_STDIN_MAX	  SHIM_STDIN_WINDOW_BYTES
#define KEPT_WINDOW_BYTES (512 * KIB) /* how far the log may be ahead of a reader that holds */
#define KEPT_REPLAY_BYTES (256 * KIB) /* of a terminal that is attached without a cursor */
#define KEPT_ENDED_MAX	  64

/* The id tells what a clone's thawd could not know otherwise: bits of its last byte. */
#define KEPT_ID_ENTRYPOINT 1u
#define KEPT_ID_DETACHED   2u

struct exec_settings {
	u32 running_max; /* per box */
	u64 log_bytes;	 /* cap of one exec's log */
	bool audit_argv; /* all of argv in the audit log */
};

struct execs;
struct exec_spec;
/** execs_new() - before any box is started or adopted. NULL: no memory. */
struct execs *execs_new(struct thawd *thawd, const struct exec_settings *settings);
/** execs_free() - when no request and no box can come any more: ends all pullers; commands go on in
 * their guests. NULL is fine. */
void execs_free(struct execs *execs);
struct execs *thawd_execs(struct thawd *thawd);

enum kept_state {
	KEPT_STARTING,
	KEPT_RUNNING,
	KEPT_ENDED,
};

enum kept_end_kind {
	KEPT_EXITED,	/* value: exit code */
	KEPT_SIGNALLED, /* value: signal */
	KEPT_FAILED,	/* it did not start: stage, error, text */
	KEPT_LOST,	/* nobody knows: the machine or the guest's side of it has gone; text */
};

struct kept_end {
	enum kept_end_kind kind;
	u32 value;
	u32 flags; /* enum shim_exit_flags */
	u32 stage; /* enum shim_error_stage */
	int error; /* positive errno */
	u64 time_ns;
	char text[128];
};

struct kept_reader {
	struct kept *kept;
	struct kept_reader *next;
	int fd; /* eventfd: something has changed */
	u64 cursor;
	struct exec_log_hint hint;
	bool holds;
	bool taken; /* another client has taken the exec over; under kept->lock */
};

struct kept_stdin {
	u8 *buf; /* KEPT_STDIN_MAX bytes as long as there is something in it */
	size_t start, len;
	bool open; /* more may come */
	bool eof_due;
};

struct kept {
	struct execs *execs;
	struct kept *next; /* in its box */
	unsigned int refs; /* execs->lock */
	char id[KEPT_ID_CHARS + 1];
	u8 raw_id[SHIM_ID_BYTES];
	char box[BOX_NAME_MAX + 1];
	u64 incarnation;
	char *meta_path, *log_path;
	json_t *argv; /* array of strings; empty: not known */
	bool pty, combined, detached, entrypoint, with_stdin;
	u32 timeout_ms;
	u64 started_ns; /* CLOCK_REALTIME */

	pthread_mutex_t lock; /* from here on */
	enum kept_state state;
	u32 pid;
	struct kept_end end;
	struct exec_log log;
	bool log_open;
	u64 oldest;	   /* exec_log_oldest() while the log is closed */
	u64 hold_until_ns; /* nothing is given up before, for the client to come back */
	struct kept_reader *readers;
	struct kept_reader *owner; /* the client that has the terminal or the streams */
	bool orphan; /* in the foreground, its client was lost with an earlier thawd */

	int wake_fd; /* of the puller; -1: none */
	bool gone;   /* the box has no such machine any more */
	bool blocked;
	u64 signals; /* to be sent: bit n-1 is signal n */
	bool kill_due, resize_due;
	struct shim_size size;
	struct kept_stdin in;
};

/**
 * kept_start() - begin an exec in the running box of @use; how it goes on is for a reader to see.
 * @spec: its stdin is not sent, kept_stdin_push() is for the caller. @stop_fd: see box_stream().
 * Return: 0 with a reference in @out; -EAGAIN: too many run; -ENODEV: the machine has gone;
 * -ETIMEDOUT: the guest is deaf; -ECANCELED: @stop_fd; or -errno.
 */
int __must_check kept_start(struct thawd *thawd, const struct box_use *use,
			    const struct exec_spec *spec, int stop_fd, struct kept **out);

/** kept_find() - by its id, of the present machine of the box @name, or its last one. Return: a
 * reference or NULL. */
struct kept *kept_find(struct execs *execs, const char *name, const char *id);
/** kept_find_entrypoint() - of the same. Return: a reference or NULL. */
struct kept *kept_find_entrypoint(struct execs *execs, const char *name);
/** kept_list() - references of all, oldest first. @out: free() it. Return: how many, or -ENOMEM. */
ssize_t kept_list(struct execs *execs, const char *name, struct kept ***out);
void kept_get(struct kept *kept);
void kept_put(struct kept *kept);
/** kept_remove() - out of the table, its files too; it has ended. */
void kept_remove(struct kept *kept);

/** kept_id_parse() - 32 lower-case hex digits. Return: 0 or -EINVAL. */
int __must_check kept_id_parse(const char *id, u8 raw[SHIM_ID_BYTES]);
/** kept_id_new() - random, with @bits (KEPT_ID_*). Return: 0 or -errno. */
int __must_check kept_id_new(u32 bits, u8 raw[SHIM_ID_BYTES], char id[KEPT_ID_CHARS + 1]);

/* Requests to the puller; of one that has ended: -ESRCH. */
int __must_check kept_signal(struct kept *kept, u32 number);
/** kept_kill() - SIGKILL for the command and all its descendants. */
void kept_kill(struct kept *kept);
int __must_check kept_resize(struct kept *kept, u16 cols, u16 rows);
/** kept_stdin_push() - Return: how much was taken (0: full, wait for the reader's fd), -EPIPE (no
 * stdin, or closed), -ESRCH, -ENOMEM. */
ssize_t kept_stdin_push(struct kept *kept, const void *data, size_t len_bytes);
int __must_check kept_stdin_close(struct kept *kept);

struct kept_view {
	enum kept_state state;
	u32 pid;
	struct kept_end end;
	u64 oldest, output_end;
	u64 out_bytes, err_bytes;
	bool taken;
	bool drained; /* the reader is at the end, and there will be no more */
};

/** kept_reader_open() - @cursor: UINT64_MAX: the end. @holds: is never overtaken. Return: 0 or
 * -errno. The reader has its own reference. */
int __must_check kept_reader_open(struct kept_reader *reader, struct kept *kept, u64 cursor,
				  bool holds);
/** kept_reader_close() - safe twice. */
void kept_reader_close(struct kept_reader *reader);
/** kept_reader_own() - the client takes the exec over: the reader that owned it is told so. */
void kept_reader_own(struct kept_reader *reader);
/** kept_read() - as exec_log_read() at the reader's cursor, which moves on. */
ssize_t kept_read(struct kept_reader *reader, void *buf, size_t max_bytes,
		  struct exec_log_chunk *chunk);
void kept_view(struct kept *kept, const struct kept_reader *reader, struct kept_view *view);

enum kept_woken {
	KEPT_WOKEN_EXEC = 1u << 0,
	KEPT_WOKEN_LEFT = 1u << 1, /* the client; of @sock: nothing follows what is there */
	KEPT_WOKEN_STOP = 1u << 2, /* thawd ends */
	KEPT_WOKEN_SOCK = 1u << 3,
};

/**
 * kept_wait() - until something happens.
 * @req: whose client may leave; its thawd's end is noticed, too.
 * @sock: an upgraded connection, watched for @events instead of the client; -1: none.
 * @timeout_ms: -1: none.
 * Return: enum kept_woken; 0: the time is over.
 */
unsigned int kept_wait(struct kept_reader *reader, struct http_req *req, int sock, short events,
		       int timeout_ms);

/** kept_json() - the object of .../execs/{id}. */
json_t *kept_json(struct kept *kept);
/** kept_exit_json() - exit_code, signal, timed_out, oom_killed, drained, into @object. */
void kept_exit_json(const struct kept_end *end, json_t *object);
/** kept_exit_code() - 0 to 255; 124 when timed out, 128 + n by signal n; -1: not known. */
int kept_exit_code(const struct kept_end *end);

#endif
