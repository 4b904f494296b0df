/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thawd's database, $THAW_STATE/thawd.db: what sandboxes and snapshots there are, in which state.
 *
 * SQLite in WAL mode, synchronous=NORMAL: a killed thawd loses nothing; a power cut may lose the
 * last transitions, never the file. Rows are written before and after each step of a box, so that
 * the next thawd can finish or undo what was under way (reconcile.h). All functions are safe from
 * any thread.
 *
 * -EBUSY: another process has it locked. No call waits for that for longer than two seconds, and
 * one that comes behind such a one hardly at all.
 */
#ifndef THAW_DAEMON_DB_H
#define THAW_DAEMON_DB_H

#include "vmm/util/types.h"

struct db;

/** Version of the schema that this thawd writes. */
#define DB_VERSION 1

/**
 * db_open() - open or make the file at @path.
 * Return: 0, -EPROTONOSUPPORT (a newer thawd wrote it), -EUCLEAN (damaged; nothing is changed or
 * deleted), or another -errno; logged with the path and what to do.
 */
int __must_check db_open(const char *path, struct db **out);
void db_close(struct db *db);

/** db_box_put() - insert or replace. @machine: id of its run folder or "". Return: 0 or -errno
 * (logged). */
int __must_check db_box_put(struct db *db, const char *name, const char *state, const char *machine,
			    const char *data);
int __must_check db_box_delete(struct db *db, const char *name);
/** db_box_each() - in order of names, until @fn returns other than 0, which is returned. @fn must
 * not call the database. */
int __must_check db_box_each(struct db *db,
			     int (*fn)(void *opaque, const char *name, const char *state,
				       const char *machine, const char *data),
			     void *opaque);

int __must_check db_snap_put(struct db *db, const char *id, const char *data);
int __must_check db_snap_delete(struct db *db, const char *id);
int __must_check db_snap_each(struct db *db,
			      int (*fn)(void *opaque, const char *id, const char *data),
			      void *opaque);

#endif
