/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's side of one WebSocket (RFC 6455), by wslay, over a connected socket that its owner
 * polls. The client is hostile: messages are bounded, and a client that floods pings while it reads
 * nothing is not read any more.
 */
#ifndef THAW_DAEMON_WS_H
#define THAW_DAEMON_WS_H

#include "vmm/util/types.h"

#define WS_MESSAGE_MAX	(1u << 20)
#define WS_ACCEPT_CHARS 28

enum ws_close_code {
	WS_CLOSE_NORMAL = 1000,
	WS_CLOSE_GOING_AWAY = 1001,
	WS_CLOSE_PROTOCOL = 1002,
	WS_CLOSE_ERROR = 1011,
};

struct ws_ops {
	/** A whole message. Return: 0, or -errno: the connection is closed with WS_CLOSE_PROTOCOL.
	 */
	int (*text)(void *opaque, const char *text, size_t len_bytes);
	int (*binary)(void *opaque, const u8 *data, size_t len_bytes);
};

struct ws {
	int fd; /* owned */
	void *ctx;
	const struct ws_ops *ops;
	void *opaque;
	bool failed;
	unsigned int close_due; /* enum ws_close_code; 0: not yet */
	u64 sent_bytes;		/* grows when the client takes something */
};

/**
 * ws_accept_key() - Sec-WebSocket-Accept for a Sec-WebSocket-Key.
 * Return: 0, or -EINVAL: it is not the base64 of 16 bytes.
 */
int __must_check ws_accept_key(const char *key, char out[WS_ACCEPT_CHARS + 1]);

/** ws_init() - takes over @fd, also if it fails. Return: 0 or -ENOMEM. */
int __must_check ws_init(struct ws *ws, int fd, const struct ws_ops *ops, void *opaque);
/** ws_destroy() - safe twice. */
void ws_destroy(struct ws *ws);

/** ws_events() - what to poll for; without @may_read nothing is read. */
short ws_events(const struct ws *ws, bool may_read);
/** ws_receive() / ws_send_some() - what can be done without waiting. Return: 0, or -errno: the
 * connection is of no more use. */
int __must_check ws_receive(struct ws *ws);
int __must_check ws_send_some(struct ws *ws);

/** ws_idle() - nothing waits to be sent. */
bool ws_idle(const struct ws *ws);
/** ws_text() / ws_binary() / ws_ping() - queue; copied. Return: 0 or -errno. */
int __must_check ws_text(struct ws *ws, const char *text);
int __must_check ws_binary(struct ws *ws, const void *data, size_t len_bytes);
int __must_check ws_ping(struct ws *ws);
/** ws_close() - the closing frame follows what is queued; nothing can be queued behind it. */
void ws_close(struct ws *ws, enum ws_close_code code);
/** ws_over() - the closing frames were exchanged, or ours is sent. */
bool ws_over(const struct ws *ws);

#endif
