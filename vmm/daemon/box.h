/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes by name, as the rest of thawd sees them. A box is a name with a specification and a
 * state; while it runs it has a machine. All functions are safe from any thread.
 */
#ifndef THAW_DAEMON_BOX_H
#define THAW_DAEMON_BOX_H

#include <jansson.h>

#include "vmm/util/types.h"

#define BOX_NAME_MAX 63

struct thawd;
struct http_req;
struct box;

/** box_name_ok() - [a-z0-9]([a-z0-9-]*[a-z0-9])?, at most BOX_NAME_MAX: it becomes part of host
 * names. */
bool box_name_ok(const char *name);

/** A request that uses a running box: as long as one is there, the box is active. */
struct box_use {
	struct box *box; /* NULL: none */
	u64 incarnation; /* counts its starts: a stream belongs to one of them */
	bool counts;	 /* as activity */
};

/**
 * box_use() - the running box that the request's {name} means, with its activity counted and a
 * reference held.
 * Return: 0; or -errno, and @req has been answered: 404 `not_found`, 409 `wrong_state` (it names
 * the state and the call that changes it).
 */
int __must_check box_use(struct thawd *thawd, struct http_req *req, struct box_use *use);
/** box_use_any() - the same for one that need not run, for what it has left behind: box_run_path()
 * works, and no activity is counted. Return: 0, or -ENOENT: 404 has been answered. */
int __must_check box_use_any(struct thawd *thawd, struct http_req *req, struct box_use *use);
/** box_use_end() - safe twice. */
void box_use_end(struct thawd *thawd, struct box_use *use);
/** box_use_quiet() - the same by name and without counting as activity, for thawd's own work (log
 * pullers). Return: 0, -ENOENT, -ENODEV (not running). Answers nobody. */
int __must_check box_use_quiet(struct thawd *thawd, const char *name, struct box_use *use);

const char *box_name(const struct box *box);
/** box_run_path() - "$THAW_STATE/run/ID/@file" of the machine of @use, into PATH_MAX bytes. */
void box_run_path(const struct box_use *use, const char *file, char *out);

/**
 * box_stream() - a new stream to the machine's shim (SHIM_PORT), a connected, non-blocking socket
 * of the caller's. It can be written to at once. A guest that is deaf has for as long as the
 * setting guest_timeout, and no longer than until @deadline_ns (CLOCK_MONOTONIC; 0: none).
 * @stop_fd: http_client_fd() of the request that it is for; -1: for none. Return: the fd, or
 * -errno: -ENODEV when the machine has gone meanwhile, -ETIMEDOUT, -ECANCELED when
 * @stop_fd has hung up. Logs nothing.
 */
int __must_check box_stream(struct thawd *thawd, const struct box_use *use, u64 deadline_ns,
			    int stop_fd);

/** Limits for what is run in it; 0: none of its own. */
struct box_limits {
	u32 pids_max, nofile;
};
void box_limits(const struct box_use *use, struct box_limits *out);

/**
 * box_preview_token() - the box's own token for its preview, made with the box, 32 hex digits and a
 * NUL.
 */
void box_preview_token(struct thawd *thawd, const struct box_use *use, char out[33]);

enum box_state {
	BOX_CREATING,
	BOX_STARTING,
	BOX_RUNNING,
	BOX_STOPPING,
	BOX_STOPPED,
	BOX_PAUSING,
	BOX_PAUSED,
	BOX_RESUMING,
	BOX_FAILED,
	BOX_STATES,
};

/** box_state_name() - as the API has it. */
const char *box_state_name(enum box_state state);
/** boxes_count_states() - how many boxes are in each state, for metrics. */
void boxes_count_states(struct thawd *thawd, u64 counts[BOX_STATES]);

enum box_quota_kind { BOX_QUOTA_SANDBOXES, BOX_QUOTA_VCPUS, BOX_QUOTA_MEMORY, BOX_QUOTAS };

struct box_quota {
	u64 used; /* all sandboxes; what machines have that run or start: vCPUs, bytes of memory */
	u64 max;  /* 0: no limit */
};
void boxes_quota(struct thawd *thawd, struct box_quota out[BOX_QUOTAS]);

/*
 * What the exec part does for boxes (exec_box.c); called by the box part.
 */

/** exec_box_started() - a machine of @use runs: fresh, resumed, forked or adopted. Its kept execs
 * are listed and those that still matter are attached; the entrypoint is run if @entrypoint (fresh
 * starts of a box that has one). Return: 0 or -errno with the reason in @why. */
int __must_check exec_box_started(struct thawd *thawd, const struct box_use *use,
				  const json_t *entrypoint, const json_t *env, char *why,
				  size_t why_bytes);
/** exec_box_stopped() - its machine is gone: streams end, records become "ended" or lost. */
void exec_box_stopped(struct thawd *thawd, const char *name, u64 incarnation);
/** exec_box_paused() - the same, but the machine comes back: exec_box_started() with its next
 * incarnation finds the records and logs of this one, whose folder is still there. */
void exec_box_paused(struct thawd *thawd, const char *name, u64 incarnation);
/** exec_box_deleted() - there is no such box any more. */
void exec_box_deleted(struct thawd *thawd, const char *name);
/** exec_box_entrypoint() - the exec of its entrypoint, running or ended. Return: is there one? */
bool exec_box_entrypoint(struct thawd *thawd, const char *name, char out[33]);
/** exec_box_signal_entrypoint() - Return: 0, -ESRCH (there is none), or -errno. */
int __must_check exec_box_signal_entrypoint(struct thawd *thawd, const struct box_use *use,
					    u32 signal);
/** exec_box_paused() - its machine is gone, but comes back: streams end, records stay as they are.
 * exec_box_started() follows, with another incarnation and without entrypoint. */
void exec_box_paused(struct thawd *thawd, const char *name, u64 incarnation);
/** exec_box_deleted() - records and logs of what was run in it go: it is deleted, or starts afresh.
 */
void exec_box_deleted(struct thawd *thawd, const char *name);
/** exec_box_entrypoint() - id of its entrypoint's exec, 32 hex digits. Return: is there one? */
bool exec_box_entrypoint(struct thawd *thawd, const char *name, char out[33]);
/** box_entrypoint_ended() - the exec part tells: the box stops with reason "exited". */
void box_entrypoint_ended(struct thawd *thawd, const char *name, u64 incarnation, int exit_code);

#endif
