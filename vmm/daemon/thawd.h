/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thawd: what its parts share. A part has a pointer of its own here, to a structure that only
 * the part knows, made by its start function and freed by its stop function. main.c calls them in
 * the order below and stops in the reverse order.
 */
#ifndef THAW_DAEMON_THAWD_H
#define THAW_DAEMON_THAWD_H

#include "vmm/cli/state.h"
#include "vmm/daemon/conf.h"
#include "vmm/util/types.h"

struct http;
struct notes;
struct boxes;
struct execs;

struct thawd {
	struct conf conf;      /* constant after the start, but for what conf_reload() may change */
	const char *conf_path; /* where it was read; to be read again at SIGHUP */
	struct state state;    /* the state folder */
	int state_lock_fd;     /* held: no other thawd has it; 0: none */
	u64 start_ns;	       /* CLOCK_MONOTONIC */
	struct notes *notes;   /* events, audit log, metrics */
	struct http *http;     /* listeners, connections, workers */
	struct boxes *boxes;   /* sandboxes by name */
	struct execs *execs;   /* what runs in them */
};

/*
 * The parts. *_start(): 0 or -errno, logged. *_stop(): safe when the start failed or never was.
 */

/** notes_start() - before all others: they tell what they do. notes_reload(): at SIGHUP, opens the
 * audit log again. */
int __must_check notes_start(struct thawd *thawd);
void notes_reload(struct thawd *thawd);
void notes_stop(struct thawd *thawd);

/** boxes_start() - opens the database, reconciles it with what runs, starts the timers. The HTTP
 * part listens only afterwards. boxes_stop(): sandboxes stay as they are. */
int __must_check boxes_start(struct thawd *thawd);
void boxes_stop(struct thawd *thawd);

/** execs_start() - before boxes_start(), which calls exec_box_started() for each machine it adopts.
 * execs_stop(): detaches from what runs; nothing is ended. */
int __must_check execs_start(struct thawd *thawd);
void execs_stop(struct thawd *thawd);

/**
 * http_start() - all listeners. http_drain(): no new connections, streams are told to end
 * (http_stopping()), requests that run may go on for the setting `stop_timeout`; called before the
 * other parts stop. http_stop(): frees.
 */
int __must_check http_start(struct thawd *thawd);
int __must_check http_reload(struct thawd *thawd);
void http_drain(struct thawd *thawd);
void http_stop(struct thawd *thawd);
/** http_tick() - about once a second: connections whose time is up are cut. */
void http_tick(struct thawd *thawd);

#endif
