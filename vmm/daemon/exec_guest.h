/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thawd's end of a shim stream for a kept exec: frames out of a queue, frames in by callbacks.
 *
 * Nothing here waits: the owner polls the socket and says when to receive and when to send. The
 * guest is hostile: a frame that can't stand where it stands ends the stream with -EPROTO, and what
 * it says about offsets is checked before anybody counts on it.
 */
#ifndef THAW_DAEMON_EXEC_GUEST_H
#define THAW_DAEMON_EXEC_GUEST_H

#include "guest/shim/proto.h"
#include "vmm/daemon/exec_log.h"
#include "vmm/util/types.h"

struct exec_guest_ops {
	/** Output at g->offset (before it is counted). Return: 0, or -errno, which ends the stream.
	 */
	int (*output)(void *opaque, enum exec_stream stream, const u8 *data, size_t len_bytes);
	/** SHIM_STARTED, or SHIM_ATTACHED with a pid. */
	void (*started)(void *opaque, u32 pid);
	/** SHIM_ATTACHED: output goes on at g->offset. */
	void (*attached)(void *opaque, const struct shim_attached *attached);
	/** Last: the command has ended. */
	void (*exited)(void *opaque, const struct shim_exit *end);
	/** Last: SHIM_ERROR; @text is printable and NUL-terminated. */
	void (*failed)(void *opaque, const struct shim_error *error, const char *text);
	/** stdin that the guest has taken: there is room for more. */
	void (*room)(void *opaque);
};

enum exec_guest_state {
	EXEC_GUEST_FRESH,     /* SHIM_EXEC sent: STARTED or ERROR is due */
	EXEC_GUEST_ATTACHING, /* SHIM_ATTACH sent: ATTACHED or ERROR is due */
	EXEC_GUEST_RUNNING,   /* output, EXIT; STARTED after an ATTACHED without pid */
	EXEC_GUEST_OVER,      /* the last frame came */
};

struct exec_guest {
	int fd; /* owned */
	enum exec_guest_state state;
	const struct exec_guest_ops *ops;
	void *opaque;
	u64 offset; /* of the next byte of output */
	u64 asked;  /* by exec_guest_attach() */
	u32 pid;
	u32 window_used; /* stdin bytes the guest has not credited */

	enum exec_stream data_stream;
	u32 data_left;
	size_t rx_start, rx_len;
	u8 *rx; /* EXEC_GUEST_RX_BYTES */

	u8 *tx; /* what is to be sent */
	size_t tx_start, tx_len, tx_max;
};

#define EXEC_GUEST_RX_BYTES (8 + SHIM_DATA_MAX_BYTES)

/** exec_guest_init() - takes over @fd, connected and non-blocking; also if it fails. Return: 0 or
 * -ENOMEM. */
int __must_check exec_guest_init(struct exec_guest *g, int fd, const struct exec_guest_ops *ops,
				 void *opaque);
/** exec_guest_destroy() - closes the fd. Safe twice. */
void exec_guest_destroy(struct exec_guest *g);

/** exec_guest_put() - queue a frame. Return: 0 or -ENOMEM. */
int __must_check exec_guest_put(struct exec_guest *g, enum shim_frame_type type,
				const void *payload, size_t len_bytes);
/** exec_guest_exec() / exec_guest_attach() - queue the first frame. */
int __must_check exec_guest_exec(struct exec_guest *g, const void *payload, size_t len_bytes);
int __must_check exec_guest_attach(struct exec_guest *g, const u8 id[SHIM_ID_BYTES], u64 offset);
/** exec_guest_stdin_room() - how much SHIM_STDIN payload may be queued now; 0 also while earlier
 * frames wait to be sent. */
size_t exec_guest_stdin_room(const struct exec_guest *g);

/** exec_guest_send() - what the socket takes of the queue. Return: 0 (g->tx_len tells what is
 * left), or -errno: nothing can be sent any more; what was received may still have to be read. */
int __must_check exec_guest_send(struct exec_guest *g);
/** exec_guest_receive() - what is there, once. Return: 0, -ENODATA (the stream's end), -EPROTO,
 * or -errno of recv(2) or output(). */
int __must_check exec_guest_receive(struct exec_guest *g);

/**
 * exec_guest_call() - a stream of one request and its answers: SHIM_LIST, SHIM_FORGET.
 * @fd: stays the caller's. @entry: called for each SHIM_ENTRY; may be NULL.
 * @stop_fd: gives up when it is readable; -1: none.
 * Return: 0 (SHIM_OK), the negative errno of SHIM_ERROR, -ETIMEDOUT, -ECANCELED, -EPROTO, -ENODATA.
 */
int __must_check exec_guest_call(int fd, enum shim_frame_type type, const void *payload,
				 size_t len_bytes, u64 deadline_ns, int stop_fd,
				 void (*entry)(void *opaque, const struct shim_entry *entry),
				 void *opaque);

/** exec_guest_exit_ok() - is this an end that a command can have? */
bool exec_guest_exit_ok(u32 kind, u32 value, u32 flags);

#endif
