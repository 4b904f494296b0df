/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes by name: what the files of this part share. box.c tells how they work together.
 */
#ifndef THAW_DAEMON_BOX_INTERNAL_H
#define THAW_DAEMON_BOX_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "vmm/cli/sandbox.h"
#include "vmm/daemon/box.h"
#include "vmm/daemon/box_spec.h"
#include "vmm/daemon/db.h"
#include "vmm/daemon/notes.h"
#include "vmm/daemon/quota.h"
#include "vmm/daemon/thawd.h"
#include "vmm/daemon/timer.h"

#define BOX_STACK_BYTES (512 * KIB)
#define BOX_GRACE_MS	10000u
#define BOX_RETRY_S	5u
#define BOX_TASKS_MAX	64u /* of thawd's own: stops by time-outs and ends */

/** Why a box stopped, as the API has it. */
enum box_reason {
	BOX_EXITED,
	BOX_IDLE,
	BOX_HARD_TIMEOUT,
	BOX_STOP_ASKED,
	BOX_DESTROYED,
	BOX_LOST,
	BOX_START_FAILED,
	BOX_REASONS,
};

struct box_stop {
	bool set;
	enum box_reason reason;
	int exit_code; /* -1: none */
	char message[240];
	s64 time_ms; /* UTC */
};

/** Page faults of a thaw-vmm: most are pages of its guest's memory that are touched first. */
struct box_faults {
	u64 minor, major;
};

enum box_pool { BOX_POOL_NONE, BOX_POOL_HIT, BOX_POOL_MISS };

struct box {
	struct boxes *boxes;
	char name[BOX_NAME_MAX + 1];
	char token[33]; /* of previews */
	u32 refs;	/* of boxes->lock */
	bool reserved;	/* of boxes->lock: its quota is taken: */
	u32 reserved_vcpus;
	u64 reserved_bytes;

	/* What follows is of this lock, held for moments only. Who changes the box has it busy
	 * (box_begin()), for as long as that takes; what only such a one touches is marked (B). */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* state, busy, gone */
	bool busy, gone;
	bool open;  /* it runs, and its execs and its entrypoint are seen to: for all to use */
	bool ended; /* its machine's process has ended, and that was not dealt with yet */
	enum box_state state;
	struct box_spec spec;
	char base[STATE_NAME_MAX + 1]; /* the template of its size; "": not known yet */
	u32 vcpus;		       /* of it, as are memory and disk */
	u64 memory_bytes, scratch_bytes;
	char machine[SANDBOX_ID_CHARS + 1]; /* its run folder, also after the end; "": none */
	char snapshot[STATE_NAME_MAX + 1];  /* that it is paused in, or being paused into */
	char from[STATE_NAME_MAX + 1];	    /* the snapshot or template its machine runs from */
	char parent[BOX_NAME_MAX + 1];	    /* "": it is no fork */
	char entrypoint_exec[33];	    /* of its last start; "": it has no entrypoint */
	bool forked;			    /* its snapshot has its entrypoint running in it */
	bool deleting;			    /* stopping is the first half of its removal */
	atomic_bool unsaved;		    /* its row is not what it is: the supervisor's to do */
	bool hurried;			    /* somebody ended its start, which is under way */
	struct vmmproc vmm;		    /* (B) of a running one */
	int pid_fd;			    /* of its thaw-vmm; -1: no machine */
	pid_t pid;			    /* of the same; 0: no machine */
	struct box_faults faults;	    /* that it had when somebody looked last */
	_Atomic u64 watch;		    /* what the supervisor knows that machine by; 0: not */
	u64 incarnation;
	u32 uses;
	/* A stop that is due: by itself, not by a request. */
	bool pending, tasked;
	enum box_reason pending_reason;
	int pending_code;
	u64 pending_incarnation;
	u64 activity_ms, hard_due_ms;	     /* of boxes_now_ms() */
	s64 created_ms, started_ms, last_ms; /* UTC; 0: never */
	enum box_pool pool;
	u64 start_us; /* how long the last start took; 0: never started */
	struct box_stop stop;
};

struct box_template_builds;
struct pools;

struct boxes {
	struct thawd *thawd;
	struct db *db;
	struct pools *pools;

	pthread_mutex_t lock; /* the table, references, quotas; taken before no other lock */
	struct box **table;   /* sorted by name */
	size_t count, room;
	struct quota quota;

	pthread_mutex_t fault_lock;
	struct box_faults faults; /* of all machines, those that ended included */

	pthread_mutex_t snap_lock; /* rows of snapshots (box_snap.c) */
	json_t *snaps;		   /* id: object of the API */

	pthread_mutex_t build_lock; /* templates that are being built (box_template.c) */
	pthread_cond_t build_done;
	json_t *building; /* set of names */

	u64 (*now_ms)(void); /* CLOCK_BOOTTIME */
	pthread_t supervisor;
	bool supervised;
	int epoll_fd, wake_fd;
	_Atomic u64 watches, next_ms; /* the next time-out that it knows of */
	atomic_bool unsaved;	      /* some box is */
	atomic_uint tasks;
	atomic_bool stopping, sweep_due, sweeping;
};

/* box.c: the table. */

/** boxes_get() - by name, with a reference. NULL: there is none. */
struct box *boxes_get(struct boxes *boxes, const char *name);
/** boxes_add() - a new one, busy, with a reference, in state BOX_CREATING. @spec is stolen in every
 * case. *@existing: the one of that name, with a reference, if there is one. @err: NULL: it has a
 * row already, and no quota keeps it out. Return: NULL if there is one; or, with @err, without
 * memory or when there are as many as there may be. */
struct box *boxes_add(struct boxes *boxes, const char *name, struct box_spec *spec,
		      struct box **existing, struct box_error *err);
/** boxes_remove() - from the table; references stay good. */
void boxes_remove(struct boxes *boxes, struct box *box);
void box_get(struct box *box);
void box_put(struct box *box);
/** boxes_all() - the table as it is now, with references. Return: how many; free() *@out. */
size_t boxes_all(struct boxes *boxes, struct box ***out);
/** boxes_each() - call @fn for all, in order of names, until it returns false. */
void boxes_each(struct boxes *boxes, bool (*fn)(void *opaque, struct box *box), void *opaque);

/** box_begin() - wait until nobody else changes it. @req: for whom; NULL: thawd itself. Return: 0
 * (box_done() is due); -ENOENT: it was deleted meanwhile; -ECANCELED: the client of @req left, or
 * thawd is about to end. */
int __must_check box_begin(struct box *box, struct http_req *req);
/** box_refuse_begin() - what a box_begin() that returned @ret means to a client. Return: -EINVAL
 * with @err. */
int box_refuse_begin(const struct box *box, int ret, struct box_error *err);
/** box_wait_changed() - with the lock, which is let go of: until it has changed, or a moment has
 * passed. Return: 0, or -ECANCELED as box_begin(). */
int __must_check box_wait_changed(struct box *box, struct http_req *req);
/** box_try_begin() - the same without waiting: -EBUSY. */
int __must_check box_try_begin(struct box *box);
/** box_done() - also deals with the end of its machine, if that came meanwhile. */
void box_done(struct box *box);
/** box_set_state() - in memory; wakes who waits. */
void box_set_state(struct box *box, enum box_state state);

s64 utc_now_ms(void);
void utc_text(s64 time_ms, char out[32]);

/* box_row.c: in the database and in the API. */

/** box_save() - its row, as it is now. Return: 0 or -errno (logged); the supervisor tries again
 * then. */
int __must_check box_save(struct box *box);
/** box_enter() - box_set_state() and box_save(); if that fails the state stays what it was. Return:
 * 0, or -errno with @err. */
int __must_check box_enter(struct box *box, enum box_state state, struct box_error *err);
/** box_refuse_row() - @ret of the database as an error: 503 (locked), 507 or 500. Return: -EINVAL
 * with @err. */
int box_refuse_row(int ret, struct box_error *err, const char *fmt, ...) __printf(3, 4);
/** boxes_load() - all rows into the table. Return: 0 or -errno (logged). */
int __must_check boxes_load(struct boxes *boxes);
/** box_json() - object of the API. Return: NULL without memory. */
json_t *box_json(struct box *box);
json_t *box_stop_json(const struct box_stop *stop);
const char *box_reason_name(enum box_reason reason);

/* box_start.c: machines. All need the box busy. */

/** box_start() - of a box that has no machine: its template first, if need be. Return: 0, or -errno
 * with @err; it is stopped or failed then. */
int __must_check box_start(struct box *box, struct box_error *err);
/** box_resume() - of a paused one; it stays so after a failure. */
int __must_check box_resume(struct box *box, struct box_error *err);
/** box_watch() - its machine's end will be noticed. Return: 0 or -errno (logged). */
int __must_check box_watch(struct box *box);
/** box_running() - what a machine that runs brings with it: clocks, time-outs. */
void box_running(struct box *box);
/** box_jail_kind() - as the settings want it. */
enum sandbox_jail_kind box_jail_kind(const struct thawd *thawd);
/** box_jail() - the jail of a machine of that size, by the settings. @size: NULL: none of the named
 * ones. Return: @out, or NULL: none. */
const struct sandbox_jail *box_jail(const struct thawd *thawd, const struct box_size *size,
				    u32 vcpus, u64 memory_bytes, struct sandbox_jail *out);
/** box_sandbox() - the structure that sandbox.h works with. */
void box_sandbox(const struct box *box, struct sandbox *sb);
/** box_reserve() - its quota. Return: 0 or -EINVAL with @err (503). */
int __must_check box_reserve(struct box *box, struct box_error *err);
void box_release(struct box *box);
/** box_started() - tell the exec part; with @entrypoint that is run. Return: 0 or -errno with @err.
 */
int __must_check box_started(struct box *box, bool entrypoint, struct box_error *err);

/* box_stop.c: ends. All need the box busy. */

/** box_stop() - with SIGTERM first and @grace_ms, or at once. Return: 0, or -errno with @err. Does
 * nothing for one that has no machine, but for a paused one: that is given up. */
int __must_check box_stop(struct box *box, const struct box_stop *why, bool graceful, u32 grace_ms,
			  struct box_error *err);
/** box_ended() - its machine has ended by itself. */
void box_ended(struct box *box);
/** box_delete() - machine, row and folder. Return: 0; or -errno with @err: it is stopped or failed
 * then, and can be deleted again. */
int __must_check box_delete(struct box *box, const char *message, struct box_error *err);
/** box_drop_machine() - kill what lives of it and wait until it is gone; folder and quota stay. */
void box_drop_machine(struct box *box);
/** box_drop_claims() - a folder that stays for its logs says of what it ran from no more: that may
 * go.
 */
void box_drop_claims(struct box *box);
/** box_remove() - the row, and then all else, of one that has no machine. @err: NULL: nobody asked
 * for it, and if it can't be now, the supervisor tries again. Return: 0; or -errno with @err: it is
 * stopped or failed. */
int box_remove(struct box *box, struct box_error *err);
/** box_drop_folder() - run/ID of a machine that has ended. */
void box_drop_folder(struct box *box);
void box_stop_fill(struct box_stop *stop, enum box_reason reason, int exit_code,
		   const char *message);
/** box_hurry() - a stop with grace, or a start, that is under way comes to its end at once. Without
 * box_begin(). */
void box_hurry(struct box *box);
/** box_stop_later() - by a thread of thawd's own: @reason, @exit_code. */
void box_stop_later(struct box *box, enum box_reason reason, int exit_code, u64 incarnation);

/* box_pause.c: snapshots. Need the box busy, but for forks of it. */

struct box_snapshot {
	char id[STATE_NAME_MAX + 1];
	double pause_ms;
};

int __must_check box_pause(struct box *box, struct box_error *err);
/** box_snapshot() - of a running one, which goes on; the snapshot is kept (sandbox_keep()). */
int __must_check box_snapshot(struct box *box, struct box_snapshot *out, struct box_error *err);
/** box_fork() - @count clones of @box, which is not busy. @req: see box_begin(). Return: 0 with the
 * answer of the API, or -errno with @err. */
int __must_check box_fork(struct box *box, struct http_req *req, const json_t *names, u64 count,
			  const json_t *labels, json_t **out, struct box_error *err);

/* box_create.c */

/** box_create() - with @start also its machine. @spec is stolen. @exclusive: one of that name is an
 * error; otherwise it is taken if its specification is the same. @req: who waits for that one, see
 * box_begin(). *@created: it was not there.
 * Return: 0 with a reference in *@out, or -errno with @err. */
int __must_check box_create(struct boxes *boxes, const char *name, struct box_spec *spec,
			    bool start, bool exclusive, struct http_req *req, struct box **out,
			    bool *created, struct box_error *err);
/** box_random_name() - adjective-noun-hex. Return: 0 or -errno (logged). */
int __must_check box_random_name(char out[BOX_NAME_MAX + 1]);

/* box_snap.c: snapshots that are kept. */

int __must_check snaps_load(struct boxes *boxes);
/** snaps_find() - by id or name. Return: a new reference or NULL. */
json_t *snaps_find(struct boxes *boxes, const char *name);
/** snaps_resolve() - spec->snapshot from name to id; its template into the spec. Return: 0 or
 * -EINVAL with @err (404). */
int __must_check snaps_resolve(struct boxes *boxes, struct box_spec *spec, struct box_error *err);
/** snaps_make() - of @box, which is not busy. @req: see box_begin(). */
int __must_check snaps_make(struct box *box, struct http_req *req, const char *name,
			    const json_t *labels, json_t **out, struct box_error *err);
/** snaps_remove() - 404, or 409 with what needs it. */
int __must_check snaps_remove(struct boxes *boxes, const char *name, struct box_error *err);
json_t *snaps_list(struct boxes *boxes, const char *box_name);
/** snaps_unkeep() - if no box and no row needs @id any more, it may go. */
void snaps_unkeep(struct boxes *boxes, const char *id);
/** snaps_prune() - remove all that nothing needs; their ids are added to @removed. */
void snaps_prune(struct boxes *boxes, json_t *removed);

/* box_template.c */

/** box_template() - box->base and the numbers of its size, building the template if need be.
 * Return: 0 or -errno with @err. */
int __must_check box_template(struct box *box, struct box_error *err);
/** template_build() - run `thaw template build`. @progress: called with each line it says; may be
 * NULL. @recipe: a recipe's text, or NULL. Return: 0 or -errno with @err. */
int __must_check template_build(struct boxes *boxes, const char *name, const char *recipe,
				bool replace, bool (*progress)(void *opaque, const char *line),
				void *opaque, struct box_error *err);
/** template_known() - is there such a template, or a recipe to build it from? Return: 0, or -EINVAL
 * with @err (404). */
int __must_check template_known(const struct state *state, const char *name, struct box_error *err);
/** template_recipe() - text of the recipe @name: one that a template was made from here, or an
 * installed one; @size: with its numbers; NULL: its own. Return: free() it; NULL: with @err (404).
 */
char *template_recipe(const struct state *state, const char *name, const struct box_size *size,
		      struct box_error *err);
/** template_derived() - name of @base in another size. Return: 0 or -ENAMETOOLONG. */
int __must_check template_derived(const char *base, u32 vcpus, u64 memory_bytes, s64 scratch_bytes,
				  char out[STATE_NAME_MAX + 1]);

/* box_super.c */

int __must_check super_start(struct boxes *boxes);
void super_stop(struct boxes *boxes);
/** super_wake() - look at all boxes now. */
void super_wake(struct boxes *boxes);
/** super_touch() - time-outs of @box may have changed. */
void super_touch(struct box *box);
/** super_times() - what timer_check() wants to know of it. With the box's lock. */
void super_times(const struct box *box, struct timer_times *out);
/** super_unsaved() - what could not be written to the database has to be. */
void super_unsaved(struct boxes *boxes);
/** super_save() - write that, as far as it can be. Return: is nothing left? */
bool super_save(struct boxes *boxes);
/** super_sweep() - snapshots may have become superfluous. */
void super_sweep(struct boxes *boxes);
/** super_task() - run @fn in a thread of thawd's own. Return: 0, -EAGAIN: too many run. */
int __must_check super_task(struct boxes *boxes, void *(*fn)(void *opaque), void *opaque);

#endif
