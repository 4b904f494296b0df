/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CLI as a client of thawd: HTTP over its Unix socket, JSON calls, server-sent events, names.
 *
 * thawd is trusted to be thawd, but not what passes through it: text of guests is made printable
 * before it gets to a terminal.
 */
#ifndef THAW_CLI_CLIENT_H
#define THAW_CLI_CLIENT_H

#include <jansson.h>

#include "vmm/util/httpc.h"
#include "vmm/util/types.h"

#define CLIENT_SOCKET	  "/run/thaw/thaw.sock"
#define CLIENT_NAME_BYTES 64u /* of a sandbox, NUL included */

struct client {
	struct httpc http;
	int fd; /* -1: not connected at the moment */
	const char *path;
	/* Of the last answer that was an error. */
	unsigned int status;
	char code[32];
	char stage[16], error_name[32]; /* of a command that could not be started, else "" */
	u64 idle_ns; /* client_events() ends, without an error, when nothing came for so long; 0:
			never */
	bool quiet;  /* such an answer is not logged */
	bool silent; /* nor is anything else */
};

/**
 * client_open() - connect to $THAW_SOCKET or CLIENT_SOCKET. client_close() is due after success.
 *
 * Return: 0; -ENOENT (not logged): no thawd listens there, and $THAW_SOCKET is not set, or is set
 * and empty, which means that none shall be asked; another -errno (logged): it is there, or was
 * named, and can't be reached.
 */
int __must_check client_open(struct client *client);

/** client_want() - the same for commands that need it: -ENOENT is logged with how to start it. */
int __must_check client_want(struct client *client, const char *verb);
void client_close(struct client *client);

/** A path with its query, built piece by piece; too long ends in an error of the call. */
struct client_target {
	char text[20480];
	size_t len;
	bool overflow, has_query;
};

/** client_target() - start it with @base ("/v1/sandboxes"), taken as it is. */
void client_target(struct client_target *target, const char *base);
/** client_target_add() - "/@segment", encoded. */
void client_target_add(struct client_target *target, const char *segment);
/** client_target_query() - "?@name=@value", encoded. */
void client_target_query(struct client_target *target, const char *name, const char *value);
void client_target_u64(struct client_target *target, const char *name, u64 value);
/** client_target_box() - "/v1/sandboxes/@name", and "/@verb" unless that is NULL. */
void client_target_box(struct client_target *target, const char *name, const char *verb);

/**
 * client_call() - one call with JSON both ways.
 * @steal: the body, or NULL: none. @out: the answer (a new reference, NULL if it has none), or
 * NULL.
 *
 * Return: 0; -EREMOTEIO: thawd answered with an error, which is in client->status and code, and
 * logged unless client->quiet; another -errno (logged).
 */
int __must_check client_call(struct client *client, const char *method,
			     const struct client_target *target, json_t *steal, json_t **out);

/**
 * client_begin() - send a request's head; httpc_send_body() and httpc_send_end() are the caller's.
 * A connection that was used before and is closed now is made again. Return: 0 or -errno (logged).
 */
int __must_check client_begin(struct client *client, const char *method,
			      const struct client_target *target,
			      const struct httpc_header *headers, s64 body_bytes);
/** client_answer() - the answer's head; an error is dealt with as in client_call(). Return: 0 (then
 * httpc_response_free() is due), -EREMOTEIO or -errno (logged). */
int __must_check client_answer(struct client *client, bool is_head,
			       struct httpc_response *response);

/**
 * client_upgrade() - @method @target with "Upgrade: @protocol".
 * @response: the 101; httpc_response_free() is due. The socket stays client->fd.
 * Return: 0, -EREMOTEIO or -errno (logged), as client_call().
 */
int __must_check client_upgrade(struct client *client, const char *method,
				const struct client_target *target, const char *protocol,
				struct httpc_response *response);

/** Return: 0 to go on, 1: enough, or -errno. @data: borrowed. */
typedef int client_event_fn(void *opaque, const char *event, const char *id, const json_t *data);
/** client_events() - GET @target as server-sent events, each given to @fn, until their end. Return:
 * 0, what @fn returned if it is negative, -EREMOTEIO, or -errno (logged). */
int __must_check client_events(struct client *client, const struct client_target *target,
			       client_event_fn *fn, void *opaque);
/** client_post_events() - the same by POST with a JSON body. */
int __must_check client_post_events(struct client *client, const struct client_target *target,
				    json_t *steal, client_event_fn *fn, void *opaque);

/**
 * client_list() - all of a paged list: @target's field @field, of every page.
 * @out: an array, a new reference. Return: 0, -EREMOTEIO or -errno (logged).
 */
int __must_check client_list(struct client *client, const struct client_target *target,
			     const char *field, json_t **out);

/**
 * client_find() - the sandbox that @prefix means: one of that name, else the only one whose name
 * begins with it, else the only one whose id does.
 * @out: its object, a new reference.
 * Return: 0; -ENOENT: there is none, not logged; -EINVAL: more than one, which are listed; or as
 * client_call().
 */
int __must_check client_find(struct client *client, const char *prefix, json_t **out);
/** client_find_name() - the same; its name into @name. -ENOENT is logged. */
int __must_check client_find_name(struct client *client, const char *prefix,
				  char name[CLIENT_NAME_BYTES]);

/** client_string() - field of an object as text; "" when it is not there, null or no string. */
const char *client_string(const json_t *object, const char *field);

/** client_printable() - @text without control characters, into @out. Return: @out. */
const char *client_printable(const char *text, char *out, size_t out_bytes);

#endif
