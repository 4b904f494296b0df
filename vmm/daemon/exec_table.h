/* SPDX-License-Identifier: Apache-2.0 */
/* The table of execs, for the exec code itself: handlers need exec_kept.h alone. */
#ifndef THAW_DAEMON_EXEC_TABLE_H
#define THAW_DAEMON_EXEC_TABLE_H

#include "vmm/daemon/exec_kept.h"

struct exec_box {
	struct exec_box *next;
	char name[BOX_NAME_MAX + 1];
	u64 incarnation;
	bool running, paused;
	struct kept *first, **last; /* oldest first */
	char *folder;		    /* of its machine's files */
};

struct execs {
	struct thawd *thawd;
	struct exec_settings settings;
	pthread_mutex_t lock;
	pthread_cond_t idle;
	struct exec_box *boxes;
	unsigned int pullers;
	bool stopping;
};

/* With execs->lock held. */
struct exec_box *execs_box_find(struct execs *execs, const char *name);
/** execs_box_take() - all of a box's list, with the list's references. */
struct kept *execs_box_take(struct exec_box *box);

/** execs_thawd(), execs_settings() - what it was made with. */
struct thawd *execs_thawd(const struct execs *execs);
const struct exec_settings *execs_settings(const struct execs *execs);
bool execs_stopping(const struct execs *execs);

/** kept_new() - with paths in the run folder of @use; in no table yet. NULL: no memory. */
struct kept *kept_new(struct execs *execs, const struct box_use *use, const char *id);
/** kept_add() - into the table, which takes a reference; @limit: unless the box has so many
 * running ones. Return: 0, -EAGAIN, -EEXIST, -ENODEV (the box has another machine now), -ENOMEM. */
int __must_check kept_add(struct kept *kept, u32 limit);
/** kept_drop() - out of the table, files stay. */
void kept_drop(struct kept *kept);
/** kept_trim() - remove the oldest ended ones of its box until the bounds are kept. */
void kept_trim(struct kept *kept);
/** kept_wake_readers() - kept->lock is held. */
void kept_wake_readers(struct kept *kept);
/** kept_log_reopen() - after kept_log_rest(), or a restart. kept->lock is held. Return: 0 or
 * -errno. */
int __must_check kept_log_reopen(struct kept *kept);
/** kept_log_rest() - close the files if nobody reads them. kept->lock is held. */
void kept_log_rest(struct kept *kept);
/** kept_known() - argv and the rest of a live exec with this id in any other box: it is a fork of
 * that. Return: a meta object (kept_meta_json()), or NULL. */
json_t *kept_known(struct execs *execs, const struct kept *kept);

/**
 * execs_box_begin() - @use is the machine of its box from now on.
 * @paused_folder: where the files of the box's execs are if it was paused, to be freed; else NULL.
 * @unknown_only: -EEXIST for a box that is known.
 * Return: 0 or -ENOMEM.
 */
int __must_check execs_box_begin(struct execs *execs, const struct box_use *use,
				 char **paused_folder, bool unknown_only);
/** exec_box_left() - what a machine that does not run left in its folder is in the table after
 * this, also if an earlier thawd has seen its end. */
void exec_box_left(struct thawd *thawd, const struct box_use *use);
/** execs_box_end() - that machine has gone; @paused: for now. What it left stays until its next
 * machine. */
void execs_box_end(struct execs *execs, const char *name, u64 incarnation, bool paused);
/** execs_box_forget() - there is no such box any more. */
void execs_box_forget(struct execs *execs, const char *name);

/** kept_pull_start() - start the puller. @payload: of SHIM_EXEC, NULL: attach. @stream: owned from
 * now on, -1: to be opened. @listed: the shim knows the id. Return: 0 or -errno. */
int __must_check kept_pull_start(struct kept *kept, const u8 *payload, size_t payload_bytes,
				 int stream, bool listed);
/** execs_puller_count() - @change: +1 or -1. execs_free() waits for 0. */
void execs_puller_count(struct execs *execs, int change);

/* exec_meta.c */
json_t *kept_meta_json(struct kept *kept);
/** kept_meta_save() - Return: 0 or -errno (logged). */
int __must_check kept_meta_save(struct kept *kept);
/** kept_meta_take() - what @meta says; a part that makes no sense is left out. */
void kept_meta_take(struct kept *kept, const json_t *meta);

#endif
