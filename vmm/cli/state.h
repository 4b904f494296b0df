/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state folder: $THAW_STATE, or /var/lib/thaw.
 *
 *   templates/NAME/       published templates, never changed; a temporary one is .NAME.tmp-*
 *   images/DIGEST/root.erofs   root images, shared by the templates that name them
 *   logs/NAME.log         what the last build of NAME said
 *   scratch/              unnamed files (O_TMPFILE) of running sandboxes; always looks empty
 *   pools/NAME.sock       where the pool of NAME hands out machines, while there is one
 *   run/ID/               sandboxes that stay: see sandbox.h
 *
 * Locks are flock(2) on the template's own folder: shared while a sandbox runs from it, exclusive
 * to remove it. They end with the process that holds them, so a crash leaves none behind.
 */
#ifndef THAW_CLI_STATE_H
#define THAW_CLI_STATE_H

#include <limits.h>

#include "vmm/util/types.h"

#define STATE_NAME_MAX 63
#define STATE_NAME_RULE \
	"expected 1 to 63 of a-z, 0-9, '.', '_' and '-', with a letter or digit first"

struct state {
	char root[PATH_MAX / 2]; /* absolute, no trailing slash */
};

/** state_name_ok() - may @name be a template's name? [a-z0-9][a-z0-9._-]{0,62}: no path can be made
 * of it. */
bool state_name_ok(const char *name);

/** state_init() - find the folder; makes nothing. Return: 0 or -errno (logged: too long, or not
 * absolute). */
int __must_check state_init(struct state *state);

/** state_path() - "ROOT/@sub/@name@suffix" into @out of PATH_MAX bytes; @name NULL: "ROOT/@sub". */
void state_path(const struct state *state, const char *sub, const char *name, const char *suffix,
		char out[PATH_MAX]);

/** state_make() - create the folder and its parts, where missing. Return: 0 or -errno (logged with
 * the path). */
int __must_check state_make(const struct state *state);

/** state_make_scratch() - create only scratch/, if the rest is there: for the path of every run.
 * Return: 0 or -errno (logged). */
int __must_check state_make_scratch(const struct state *state);

/**
 * state_lock_template() - open @name's folder and lock it.
 * @exclusive: to remove it; otherwise shared, to run from it.
 *
 * Return: an fd that holds the lock (the caller closes it), -ENOENT (no such template), -EBUSY (a
 * lock in the way), or -errno. Logs nothing.
 */
int __must_check state_lock_template(const struct state *state, const char *name, bool exclusive);

/** state_in_use() - is some lock held on @name's folder? For display: read from /proc/locks, so
 * that no one else's lock is disturbed. */
bool state_in_use(const struct state *state, const char *name);

/**
 * state_lock_build() - one build of @name at a time; also removes what killed commands left behind
 * (sweep.h). Return: an fd that holds the lock, to be given to state_unlock_build(); -EBUSY; or
 * -errno (logged, but for -EBUSY).
 */
int __must_check state_lock_build(const struct state *state, const char *name);
/** state_unlock_build() - also seals the template (vmm/snapshot/seal.h), if it is there. */
void state_unlock_build(const struct state *state, const char *name, int *lock_fd);

/**
 * state_remove_template() - take @name out of the way by a rename, then delete its files and its
 * log.
 * @lock_fd: from state_lock_template(exclusive). Return: 0 or -errno (logged).
 */
int __must_check state_remove_template(const struct state *state, const char *name, int lock_fd);

/** state_remove_flat() - delete the files of folder @name, then the folder: one that no one else
 * may find, or @leftover, then only if nobody holds it locked, else -EWOULDBLOCK. Templates have no
 * folders inside. Return: 0 or -errno. */
int __must_check state_remove_flat(int parent_fd, const char *name, bool leftover);

/** state_try_build_lock() - lock the file @file (".NAME.build") of the folder templates/; @make it
 * if missing. Return: an fd that holds the lock; -EBUSY; -ESTALE when it was unlinked meanwhile and
 * the caller must try again; -errno. */
int __must_check state_try_build_lock(int parent_fd, const char *file, bool make);

/** Names of the published templates, sorted. */
struct state_names {
	char (*names)[STATE_NAME_MAX + 1];
	size_t count;
};

/** state_list_templates() - Return: 0 (no folder yet counts as none) or -errno (logged).
 * state_names_free() frees. */
int __must_check state_list_templates(const struct state *state, struct state_names *out);
void state_names_free(struct state_names *names);

/** state_disk_usage() - bytes allocated by the files of folder @path, not of folders in it. Return:
 * 0 or -errno. */
int __must_check state_disk_usage(const char *path, u64 *out_bytes);

#endif
