// SPDX-License-Identifier: Apache-2.0
// thawd's database.
#include "vmm/daemon/db.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define DB_APPLICATION 0x74687764 /* "thwd": not somebody else's file */
#define DB_BUSY_MS     2000u /* how long a call may wait for another process, its turn included */
#define DB_OPEN_MS     10000
#define DB_LOCKED_MS   50u /* as long as the last one has waited in vain */

enum statement { BOX_PUT, BOX_DELETE, BOX_EACH, SNAP_PUT, SNAP_DELETE, SNAP_EACH, STATEMENTS };

static const char *const statements[] = {
	[BOX_PUT] = "INSERT INTO boxes(name, state, machine, data) VALUES(?1, ?2, ?3, ?4) "
		    "ON CONFLICT(name) DO UPDATE SET state=?2, machine=?3, data=?4",
	[BOX_DELETE] = "DELETE FROM boxes WHERE name=?1",
	[BOX_EACH] = "SELECT name, state, machine, data FROM boxes ORDER BY name",
	[SNAP_PUT] = "INSERT INTO snapshots(id, data) VALUES(?1, ?2) "
		     "ON CONFLICT(id) DO UPDATE SET data=?2",
	[SNAP_DELETE] = "DELETE FROM snapshots WHERE id=?1",
	[SNAP_EACH] = "SELECT id, data FROM snapshots ORDER BY id",
};

static const char schema[] =
	"BEGIN IMMEDIATE;"
	"CREATE TABLE IF NOT EXISTS boxes(name TEXT PRIMARY KEY NOT NULL, state TEXT NOT NULL, "
	"machine TEXT NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;"
	"CREATE TABLE IF NOT EXISTS snapshots(id TEXT PRIMARY KEY NOT NULL, data TEXT NOT NULL) "
	"WITHOUT ROWID;"
	"PRAGMA application_id=1953003364;"
	"PRAGMA user_version=1;"
	"COMMIT";

_Static_assert(DB_APPLICATION == 1953003364 && DB_VERSION == 1, "as in the schema");

struct db {
	pthread_mutex_t lock;
	sqlite3 *handle;
	char *path;
	bool locked; /* by another process, when it was tried last */
	sqlite3_stmt *prepared[STATEMENTS];
};

/** Return: the -errno of what SQLite says. */
static int error_of(int code)
{
	switch (code & 0xff) {
	case SQLITE_OK:
	case SQLITE_DONE:
	case SQLITE_ROW:
		return 0;
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
		return -EUCLEAN;
	case SQLITE_FULL:
		return -ENOSPC;
	case SQLITE_NOMEM:
		return -ENOMEM;
	case SQLITE_READONLY:
		return -EROFS;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return -EBUSY;
	default:
		return -EIO;
	}
}

static int failed(const struct db *db, int code, const char *what)
{
	int ret = error_of(code);

	if (ret == -EUCLEAN)
		log_err("%s: damaged (%s): nothing was changed; put back a copy of it, or move it "
			"away to begin anew (sandboxes that run are then ended)",
			db->path, sqlite3_errmsg(db->handle));
	else if (ret == -EBUSY)
		log_err("%s: %s: another process has it locked", db->path, what);
	else
		log_err("%s: %s: %s", db->path, what, sqlite3_errmsg(db->handle));
	return ret ? ret : -EIO;
}

/** One number that @sql asks for. Return: 0 or -errno (logged). */
static int ask(struct db *db, const char *sql, s64 *out)
{
	sqlite3_stmt *stmt = NULL;
	int code = sqlite3_prepare_v2(db->handle, sql, -1, &stmt, NULL), ret = 0;

	if (code == SQLITE_OK)
		code = sqlite3_step(stmt);
	if (code == SQLITE_ROW)
		*out = sqlite3_column_int64(stmt, 0);
	else
		ret = failed(db, code, sql);
	sqlite3_finalize(stmt);
	return ret;
}

static int execute(struct db *db, const char *sql)
{
	int code = sqlite3_exec(db->handle, sql, NULL, NULL, NULL);

	return code == SQLITE_OK ? 0 : failed(db, code, "can't be set up");
}

/** Before anything is written. Return: 0 or -errno (logged). */
static int check(struct db *db, s64 *version)
{
	s64 application, tables;
	sqlite3_stmt *stmt = NULL;
	int code, ret;

	ret = ask(db, "PRAGMA user_version", version);
	ret = ret ? ret : ask(db, "PRAGMA application_id", &application);
	ret = ret ? ret : ask(db, "SELECT count(*) FROM sqlite_schema", &tables);
	if (ret)
		return ret;
	if (tables && application != DB_APPLICATION) {
		log_err("%s: not a database of thawd's: move it away", db->path);
		return -EUCLEAN;
	}
	if (*version > DB_VERSION) {
		log_err("%s: of a newer thawd (version %lld of the schema, this one knows %d): "
			"install that one again",
			db->path, (long long)*version, DB_VERSION);
		return -EPROTONOSUPPORT;
	}
	code = sqlite3_prepare_v2(db->handle, "PRAGMA quick_check(1)", -1, &stmt, NULL);
	if (code == SQLITE_OK)
		code = sqlite3_step(stmt);
	if (code != SQLITE_ROW) {
		ret = failed(db, code, "quick_check");
	} else if (sqlite3_stricmp((const char *)sqlite3_column_text(stmt, 0), "ok") != 0) {
		log_err("%s: damaged (%s): nothing was changed; put back a copy of it, or move it "
			"away to begin anew (sandboxes that run are then ended)",
			db->path, (const char *)sqlite3_column_text(stmt, 0));
		ret = -EUCLEAN;
	}
	sqlite3_finalize(stmt);
	return ret;
}

static int prepare(struct db *db)
{
	for (int i = 0; i < STATEMENTS; i++) {
		int code = sqlite3_prepare_v3(db->handle, statements[i], -1,
					      SQLITE_PREPARE_PERSISTENT, &db->prepared[i], NULL);

		if (code != SQLITE_OK)
			return failed(db, code, "prepare");
	}
	return 0;
}

int db_open(const char *path, struct db **out)
{
	struct db *db = calloc(1, sizeof(*db));
	s64 version = 0;
	int code, fd, ret = 0;

	*out = NULL;
	if (!db)
		return -ENOMEM;
	pthread_mutex_init(&db->lock, NULL);
	db->path = sqlite3_mprintf("%s", path);
	/* SQLite's own files take their mode from this one. */
	fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0) {
		ret = -errno;
		log_err("%s: %m", path);
	} else {
		close(fd);
	}
	code = ret ? SQLITE_OK
		   : sqlite3_open_v2(path, &db->handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
				     NULL);
	if (code != SQLITE_OK)
		ret = failed(db, code, "can't open");
	if (!ret) {
		sqlite3_busy_timeout(db->handle, DB_OPEN_MS);
		ret = check(db, &version);
	}
	if (!ret)
		ret = execute(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; "
				  "PRAGMA cache_size=-512; PRAGMA trusted_schema=OFF");
	if (!ret && version < DB_VERSION)
		ret = execute(db, schema);
	if (!ret)
		ret = prepare(db);
	if (ret)
		db_close(db);
	else
		*out = db;
	return ret;
}

void db_close(struct db *db)
{
	if (!db)
		return;
	for (int i = 0; i < STATEMENTS; i++)
		sqlite3_finalize(db->prepared[i]);
	sqlite3_close(db->handle);
	sqlite3_free(db->path);
	pthread_mutex_destroy(&db->lock);
	free(db);
}

/** Run @which with up to four texts. Return: 0 or -errno (logged). */
static int change(struct db *db, enum statement which, const char *a, const char *b, const char *c,
		  const char *d)
{
	const char *const values[] = {a, b, c, d};
	const u64 start_ns = clock_now_ns();
	sqlite3_stmt *stmt = db->prepared[which];
	int code = SQLITE_OK, ret = 0;
	u64 waited_ms, left_ms;

	pthread_mutex_lock(&db->lock);
	/* What waited behind one that waited in vain has waited already. */
	waited_ms = (clock_now_ns() - start_ns) / 1000000;
	left_ms = db->locked || waited_ms >= DB_BUSY_MS ? DB_LOCKED_MS : DB_BUSY_MS - waited_ms;
	sqlite3_busy_timeout(db->handle, (int)left_ms);
	for (int i = 0; i < sqlite3_bind_parameter_count(stmt) && code == SQLITE_OK; i++)
		code = sqlite3_bind_text(stmt, i + 1, values[i], -1, SQLITE_STATIC);
	if (code == SQLITE_OK)
		code = sqlite3_step(stmt);
	if (code != SQLITE_DONE)
		ret = failed(db, code, a);
	db->locked = ret == -EBUSY;
	sqlite3_reset(stmt);
	sqlite3_clear_bindings(stmt);
	pthread_mutex_unlock(&db->lock);
	return ret;
}

int db_box_put(struct db *db, const char *name, const char *state, const char *machine,
	       const char *data)
{
	return change(db, BOX_PUT, name, state, machine, data);
}

int db_box_delete(struct db *db, const char *name)
{
	return change(db, BOX_DELETE, name, NULL, NULL, NULL);
}

int db_snap_put(struct db *db, const char *id, const char *data)
{
	return change(db, SNAP_PUT, id, data, NULL, NULL);
}

int db_snap_delete(struct db *db, const char *id)
{
	return change(db, SNAP_DELETE, id, NULL, NULL, NULL);
}

static const char *column(sqlite3_stmt *stmt, int i)
{
	const char *text = (const char *)sqlite3_column_text(stmt, i);

	return text ? text : "";
}

int db_box_each(struct db *db,
		int (*fn)(void *opaque, const char *name, const char *state, const char *machine,
			  const char *data),
		void *opaque)
{
	sqlite3_stmt *stmt = db->prepared[BOX_EACH];
	int code, ret = 0;

	pthread_mutex_lock(&db->lock);
	while ((code = sqlite3_step(stmt)) == SQLITE_ROW && !ret)
		ret = fn(opaque, column(stmt, 0), column(stmt, 1), column(stmt, 2),
			 column(stmt, 3));
	if (!ret && code != SQLITE_DONE)
		ret = failed(db, code, "read");
	sqlite3_reset(stmt);
	pthread_mutex_unlock(&db->lock);
	return ret;
}

int db_snap_each(struct db *db, int (*fn)(void *opaque, const char *id, const char *data),
		 void *opaque)
{
	sqlite3_stmt *stmt = db->prepared[SNAP_EACH];
	int code, ret = 0;

	pthread_mutex_lock(&db->lock);
	while ((code = sqlite3_step(stmt)) == SQLITE_ROW && !ret)
		ret = fn(opaque, column(stmt, 0), column(stmt, 1));
	if (!ret && code != SQLITE_DONE)
		ret = failed(db, code, "read");
	sqlite3_reset(stmt);
	pthread_mutex_unlock(&db->lock);
	return ret;
}
