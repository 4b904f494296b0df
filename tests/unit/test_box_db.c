// SPDX-License-Identifier: Apache-2.0
// thawd's database, and what a new thawd makes of its rows.
#include <errno.h>
#include <sqlite3.h>
#include <unistd.h>

#include "test.h"
#include "vmm/daemon/db.h"
#include "vmm/daemon/reconcile.h"

static enum reconcile_action decide(enum box_state state, bool lives, bool settled, bool snapshot)
{
	const struct reconcile_found found = {
		.lives = lives, .settled = settled, .snapshot = snapshot};

	return reconcile_decide(state, &found);
}

static void test_decide(void)
{
	struct reconcile_found found = {.over = true};

	CHECK_EQ(decide(BOX_CREATING, false, false, false), RECONCILE_REMOVE);
	CHECK_EQ(decide(BOX_STARTING, true, true, false), RECONCILE_LOST);
	CHECK_EQ(decide(BOX_STARTING, false, false, false), RECONCILE_LOST);
	CHECK_EQ(decide(BOX_RUNNING, true, true, false), RECONCILE_ADOPT);
	CHECK_EQ(decide(BOX_RUNNING, true, false, false), RECONCILE_LOST);
	CHECK_EQ(decide(BOX_RUNNING, false, false, false), RECONCILE_LOST);
	CHECK_EQ(decide(BOX_STOPPING, true, true, false), RECONCILE_STOP);
	CHECK_EQ(decide(BOX_STOPPING, false, false, false), RECONCILE_STOP);
	CHECK_EQ(decide(BOX_PAUSING, true, true, false), RECONCILE_ADOPT);
	/* Written, and its machine about to end: neither is sure of, and there is only one of it.
	 */
	CHECK_EQ(decide(BOX_PAUSING, true, true, true), RECONCILE_ADOPT);
	CHECK_EQ(decide(BOX_PAUSING, false, false, true), RECONCILE_PAUSED);
	CHECK_EQ(decide(BOX_PAUSING, false, false, false), RECONCILE_LOST);
	CHECK_EQ(decide(BOX_RESUMING, true, true, true), RECONCILE_PAUSED);
	CHECK_EQ(decide(BOX_PAUSED, false, false, true), RECONCILE_KEEP);
	CHECK_EQ(decide(BOX_STOPPED, false, false, false), RECONCILE_KEEP);
	CHECK_EQ(decide(BOX_FAILED, false, false, false), RECONCILE_KEEP);
	CHECK_EQ(reconcile_decide(BOX_RUNNING, &found), RECONCILE_OVER);
	found.lives = found.settled = true;
	CHECK_EQ(reconcile_decide(BOX_RUNNING, &found), RECONCILE_ADOPT);
}

static void test_decide_deleting(void)
{
	struct reconcile_found found = {.deleting = true};

	for (int state = BOX_CREATING; state < BOX_STATES; state++) {
		enum reconcile_action action = reconcile_decide((enum box_state)state, &found);

		/* A paused one does not run: it waits to be brought back. */
		if (state == BOX_PAUSED)
			CHECK_EQ(action, RECONCILE_KEEP);
		else if (state == BOX_RESUMING)
			CHECK_EQ(action, RECONCILE_PAUSED);
		else
			CHECK_EQ(action, RECONCILE_REMOVE);
	}
}

static char folder[] = "/tmp/test_box_db.XXXXXX", path[64];

static int count_boxes(void *opaque, const char *name, const char *state, const char *machine,
		       const char *data)
{
	char *seen = opaque;

	strcat(seen, name);
	strcat(seen, state);
	strcat(seen, machine);
	strcat(seen, data);
	return 0;
}

static int count_snaps(void *opaque, const char *id, const char *data)
{
	char *seen = opaque;

	strcat(seen, id);
	strcat(seen, data);
	return *data == '!' ? -EINTR : 0;
}

static void test_rows(void)
{
	char seen[200] = "";
	struct db *db;

	CHECK_EQ(db_open(path, &db), 0);
	CHECK_EQ(db_box_put(db, "b", "running", "id", "{}"), 0);
	CHECK_EQ(db_box_put(db, "a", "stopped", "", "x"), 0);
	CHECK_EQ(db_box_put(db, "b", "paused", "id", "y"), 0);
	CHECK_EQ(db_snap_put(db, "s", "!"), 0);
	db_close(db);
	CHECK_EQ(db_open(path, &db), 0);
	CHECK_EQ(db_box_each(db, count_boxes, seen), 0);
	CHECK_STR(seen, "astoppedxbpausedidy");
	seen[0] = '\0';
	CHECK_EQ(db_snap_each(db, count_snaps, seen), -EINTR);
	CHECK_STR(seen, "s!");
	CHECK_EQ(db_box_delete(db, "a"), 0);
	CHECK_EQ(db_box_delete(db, "a"), 0);
	CHECK_EQ(db_snap_delete(db, "s"), 0);
	seen[0] = '\0';
	CHECK_EQ(db_box_each(db, count_boxes, seen), 0);
	CHECK_EQ(db_snap_each(db, count_snaps, seen), 0);
	CHECK_STR(seen, "bpausedidy");
	db_close(db);
}

static void set_version(int version)
{
	char sql[60];
	sqlite3 *handle;

	snprintf(sql, sizeof(sql), "PRAGMA user_version=%d", version);
	CHECK_EQ(sqlite3_open(path, &handle), SQLITE_OK);
	CHECK_EQ(sqlite3_exec(handle, sql, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(handle);
}

static void test_versions(void)
{
	struct db *db;

	set_version(DB_VERSION + 1);
	CHECK_EQ(db_open(path, &db), -EPROTONOSUPPORT);
	set_version(DB_VERSION);
	CHECK_EQ(db_open(path, &db), 0);
	db_close(db);
}

static void test_damage(void)
{
	FILE *file = fopen(path, "r+");
	struct db *db;
	sqlite3 *handle;
	long len;

	CHECK(file);
	CHECK(fwrite("no database, but a letter to mum", 32, 1, file) == 1);
	CHECK(!fclose(file));
	CHECK_EQ(db_open(path, &db), -EUCLEAN);
	file = fopen(path, "r");
	fseek(file, 0, SEEK_END);
	len = ftell(file);
	CHECK(len > 4096 && !fclose(file));
	/* Another program's is not taken over, and not written to. */
	CHECK(!unlink(path));
	CHECK_EQ(sqlite3_open(path, &handle), SQLITE_OK);
	CHECK_EQ(sqlite3_exec(handle, "CREATE TABLE boxes(x)", NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(handle);
	CHECK_EQ(db_open(path, &db), -EUCLEAN);
	CHECK(!unlink(path));
	CHECK(!rmdir(folder));
}

static void test_folder(void)
{
	CHECK(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/thawd.db", folder);
}

TEST_MAIN({"decide", test_decide}, {"decide, deleting", test_decide_deleting},
	  {"folder", test_folder}, {"rows", test_rows}, {"versions", test_versions},
	  {"damage", test_damage})
