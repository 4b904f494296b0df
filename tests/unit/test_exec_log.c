// SPDX-License-Identifier: Apache-2.0
// The host's log of an exec: order, cursors, the cap, and what a crash leaves.
#include "vmm/daemon/exec_log.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/util/util.h"

#define CAP EXEC_LOG_CAP_MIN

static char folder[] = "/tmp/test_exec_log.XXXXXX";
static char path[64];

static void fresh(struct exec_log *log)
{
	if (!*path) {
		CHECK(mkdtemp(folder));
		snprintf(path, sizeof(path), "%s/log", folder);
	}
	exec_log_init(log, path, CAP, 0);
}

static void add(struct exec_log *log, enum exec_stream stream, const char *text)
{
	CHECK_EQ(exec_log_append(log, stream, 5, text, strlen(text)), 0);
}

/* All of it from @cursor, in pieces of @piece; "1" or "2" in front of each. */
static void read_all(struct exec_log *log, u64 cursor, size_t piece, char *out)
{
	struct exec_log_hint hint = {0};
	struct exec_log_chunk chunk;
	char buf[65536];
	ssize_t n;

	*out = '\0';
	while ((n = exec_log_read(log, cursor, &hint, buf, piece, &chunk)) > 0) {
		sprintf(out + strlen(out), "%d%.*s", chunk.stream, (int)n, buf);
		CHECK_EQ(chunk.cursor, cursor + chunk.skipped);
		CHECK_EQ(chunk.time_ns, 5);
		cursor = chunk.cursor + (u64)n;
	}
	CHECK_EQ(n, 0);
}

static void test_order_and_cursors(void)
{
	struct exec_log log;
	char out[256];

	fresh(&log);
	add(&log, EXEC_STDOUT, "abc");
	add(&log, EXEC_STDERR, "DE");
	add(&log, EXEC_STDOUT, "f");
	CHECK_EQ(log.end, 6);
	read_all(&log, 0, 100, out);
	CHECK_STR(out, "1abc2DE1f");
	read_all(&log, 2, 100, out);
	CHECK_STR(out, "1c2DE1f");
	read_all(&log, 0, 2, out);
	CHECK_STR(out, "1ab1c2DE1f");
	read_all(&log, 6, 100, out);
	CHECK_STR(out, "");
	exec_log_remove(&log);
	CHECK_EQ(access(path, F_OK), -1);
}

static void test_it_is_found_again(void)
{
	struct exec_log log;
	char out[256];

	fresh(&log);
	add(&log, EXEC_STDOUT, "abc");
	add(&log, EXEC_STDERR, "DE");
	exec_log_close(&log);
	CHECK_EQ(exec_log_open(&log, path, CAP), 0);
	CHECK_EQ(log.end, 5);
	CHECK_EQ(log.count[EXEC_STDOUT], 3);
	CHECK_EQ(log.count[EXEC_STDERR], 2);
	add(&log, EXEC_STDOUT, "f");
	read_all(&log, 0, 100, out);
	CHECK_STR(out, "1abc2DE1f");
	exec_log_remove(&log);
	CHECK_EQ(exec_log_open(&log, path, CAP), 0);
	CHECK_EQ(log.end, 0);
}

/* Cut at every byte: whole records stay, the rest goes, and appending goes on. */
static void test_crash_in_a_record(void)
{
	struct exec_log log;
	char out[256], want[64];
	struct stat st;
	off_t size;

	fresh(&log);
	add(&log, EXEC_STDOUT, "abc");
	add(&log, EXEC_STDERR, "DE");
	exec_log_close(&log);
	CHECK_EQ(stat(path, &st), 0);
	for (size = st.st_size; size-- > 0;) {
		bool first = size >= 32 + 24 + 3;

		CHECK_EQ(truncate(path, size), 0);
		CHECK_EQ(exec_log_open(&log, path, CAP), 0);
		CHECK_EQ(log.end, first ? 3 : 0);
		add(&log, EXEC_STDERR, "xy");
		snprintf(want, sizeof(want), "%s2xy", first ? "1abc" : "");
		read_all(&log, 0, 100, out);
		CHECK_STR(out, want);
		exec_log_remove(&log);
		/* The same two again. */
		exec_log_init(&log, path, CAP, 0);
		add(&log, EXEC_STDOUT, "abc");
		add(&log, EXEC_STDERR, "DE");
		exec_log_close(&log);
	}
	exec_log_remove(&log);
}

/* Every byte of the file flipped: nothing is read beyond it, no order is broken. */
static void test_damage(void)
{
	struct exec_log_hint hint;
	struct exec_log_chunk chunk;
	struct exec_log log;
	u8 whole[256], buf[64];
	ssize_t size, n;
	int fd;

	fresh(&log);
	add(&log, EXEC_STDOUT, "abc");
	add(&log, EXEC_STDERR, "DE");
	exec_log_close(&log);
	fd = open(path, O_RDWR);
	size = read(fd, whole, sizeof(whole));
	CHECK(size > 32);
	for (ssize_t i = 0; i < size; i++) {
		u64 cursor = 0;

		CHECK_EQ(ftruncate(fd, 0), 0);
		CHECK_EQ(pwrite(fd, whole, (size_t)size, 0), size);
		whole[i] ^= 0xff;
		CHECK_EQ(pwrite(fd, whole + i, 1, i), 1);
		whole[i] ^= 0xff;
		CHECK_EQ(exec_log_open(&log, path, CAP), 0);
		hint = (struct exec_log_hint){0};
		while ((n = exec_log_read(&log, cursor, &hint, buf, sizeof(buf), &chunk)) > 0) {
			CHECK(chunk.cursor >= cursor);
			cursor = chunk.cursor + (u64)n;
			CHECK(cursor <= log.end);
		}
		CHECK_EQ(n, 0);
		exec_log_close(&log);
	}
	/* Under one that is open. */
	CHECK_EQ(pwrite(fd, whole, (size_t)size, 0), size);
	CHECK_EQ(exec_log_open(&log, path, CAP), 0);
	memset(whole, 0xee, sizeof(whole));
	CHECK_EQ(pwrite(fd, whole, (size_t)size, 0), size);
	hint = (struct exec_log_hint){0};
	CHECK_EQ(exec_log_read(&log, 0, &hint, buf, sizeof(buf), &chunk), -EIO);
	close(fd);
	exec_log_remove(&log);
}

/* 4 times the cap: the oldest half goes at a time, and every cursor finds its byte. */
static void test_cap(void)
{
	static char record[1000], out[1000];
	struct exec_log_chunk chunk;
	struct exec_log_hint hint = {0};
	struct exec_log log;
	u64 at, oldest;
	ssize_t n;

	fresh(&log);
	for (int i = 0; i < 1000; i++) {
		memset(record, 'a' + i % 26, sizeof(record));
		CHECK_EQ(exec_log_append(&log, EXEC_STDOUT, 5, record, sizeof(record)), 0);
		CHECK(exec_log_disk(&log) <= CAP);
	}
	CHECK_EQ(log.end, 1000000);
	CHECK_EQ(log.count[EXEC_STDOUT], 1000000);
	oldest = exec_log_oldest(&log);
	CHECK(oldest > 0 && log.end - oldest >= CAP / 2 - 70000);
	n = exec_log_read(&log, 1, &hint, out, 10, &chunk);
	CHECK_EQ(n, 10);
	CHECK_EQ(chunk.cursor, oldest);
	CHECK_EQ(chunk.skipped, oldest - 1);
	for (at = oldest; at < log.end; at += 777) {
		hint = (struct exec_log_hint){0};
		CHECK_EQ(exec_log_read(&log, at, &hint, out, 1, &chunk), 1);
		CHECK_EQ(out[0], 'a' + (int)(at / 1000) % 26);
	}
	exec_log_close(&log);
	CHECK_EQ(exec_log_open(&log, path, CAP), 0);
	CHECK_EQ(log.end, 1000000);
	CHECK_EQ(log.count[EXEC_STDOUT], 1000000);
	CHECK_EQ(exec_log_oldest(&log), oldest);
	exec_log_remove(&log);
}

static void test_hints_survive_a_turn(void)
{
	static char record[60000], out[60000];
	struct exec_log_chunk chunk;
	struct exec_log_hint hint = {0};
	struct exec_log log;
	u64 cursor = 0;

	fresh(&log);
	for (int i = 0; i < 40; i++) {
		memset(record, 'A' + i, sizeof(record));
		CHECK_EQ(exec_log_append(&log, EXEC_STDERR, 5, record, sizeof(record)), 0);
		/* A reader that is one record behind. */
		if (!i)
			continue;
		CHECK_EQ(exec_log_read(&log, cursor, &hint, out, sizeof(out), &chunk), 60000);
		CHECK_EQ(chunk.skipped, 0);
		CHECK_EQ(out[59999], 'A' + i - 1);
		cursor = chunk.cursor + 60000;
	}
	exec_log_remove(&log);
}

static void test_gap(void)
{
	struct exec_log_chunk chunk;
	struct exec_log_hint hint = {0};
	struct exec_log log;
	char out[16];

	fresh(&log);
	add(&log, EXEC_STDOUT, "abc");
	exec_log_skip(&log, 100);
	exec_log_skip(&log, 50);
	add(&log, EXEC_STDOUT, "z");
	exec_log_close(&log);
	CHECK_EQ(exec_log_open(&log, path, CAP), 0);
	CHECK_EQ(log.end, 101);
	CHECK_EQ(exec_log_read(&log, 3, &hint, out, 16, &chunk), 1);
	CHECK_EQ(chunk.cursor, 100);
	CHECK_EQ(chunk.skipped, 97);
	exec_log_remove(&log);
	rmdir(folder);
}

TEST_MAIN({"order and cursors", test_order_and_cursors}, {"found again", test_it_is_found_again},
	  {"crash in a record", test_crash_in_a_record}, {"damage", test_damage}, {"cap", test_cap},
	  {"hints survive a turn", test_hints_survive_a_turn}, {"gap", test_gap})
