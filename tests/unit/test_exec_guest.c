// SPDX-License-Identifier: Apache-2.0
// thawd's end of a shim stream, against scripted guests that lie.
#include "vmm/daemon/exec_guest.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/shim/frame.h"
#include "tests/unit/test.h"
#include "vmm/util/util.h"

#define SECOND_NS 1000000000ull

struct seen {
	char text[512]; /* what came, in order */
	u64 offset;
};

static int on_output(void *opaque, enum exec_stream stream, const u8 *data, size_t len_bytes)
{
	struct seen *seen = opaque;

	snprintf(seen->text + strlen(seen->text), 64, "%d:%.*s ", stream,
		 (int)MIN(len_bytes, (size_t)40), (const char *)data);
	return 0;
}

static void on_started(void *opaque, u32 pid)
{
	struct seen *seen = opaque;

	snprintf(seen->text + strlen(seen->text), 64, "started:%u ", pid);
}

static void on_attached(void *opaque, const struct shim_attached *attached)
{
	struct seen *seen = opaque;

	snprintf(seen->text + strlen(seen->text), 64, "attached:%llu ",
		 (unsigned long long)attached->offset);
}

static void on_exited(void *opaque, const struct shim_exit *end)
{
	struct seen *seen = opaque;

	snprintf(seen->text + strlen(seen->text), 64, "exit:%u:%u:%u ", end->kind, end->value,
		 end->flags);
}

static void on_failed(void *opaque, const struct shim_error *error, const char *text)
{
	struct seen *seen = opaque;

	snprintf(seen->text + strlen(seen->text), 64, "failed:%u:%u:%.20s ", error->stage,
		 error->error, text);
}

static void on_room(void *opaque)
{
	struct seen *seen = opaque;

	strcat(seen->text, "room ");
}

static const struct exec_guest_ops ops = {on_output, on_started, on_attached,
					  on_exited, on_failed,	 on_room};

static struct exec_guest g;
static struct seen seen;
static int guest = -1;

/* A stream that began with SHIM_EXEC, or SHIM_ATTACH at @offset. */
static void begin(bool attach, u64 offset)
{
	static const u8 id[SHIM_ID_BYTES] = {1, 2, 3};
	u8 sent[64];
	int fds[2];

	fd_close(&guest);
	exec_guest_destroy(&g);
	seen = (struct seen){0};
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	guest = fds[1];
	CHECK_EQ(exec_guest_init(&g, fds[0], &ops, &seen), 0);
	if (attach)
		CHECK_EQ(exec_guest_attach(&g, id, offset), 0);
	else
		CHECK_EQ(exec_guest_exec(&g, "request", 7), 0);
	CHECK_EQ(exec_guest_send(&g), 0);
	CHECK_EQ(read(guest, sent, sizeof(sent)), attach ? 8 + 24 : 8 + 7);
	CHECK_EQ(sent[4], attach ? SHIM_ATTACH : SHIM_EXEC);
}

static void say(enum shim_frame_type type, const void *payload, u32 len_bytes)
{
	u8 head[8];

	frame_put(head, type, len_bytes);
	CHECK_EQ(write(guest, head, 8), 8);
	if (len_bytes)
		CHECK_EQ(write(guest, payload, len_bytes), len_bytes);
}

static void say_u32(enum shim_frame_type type, u32 value)
{
	say(type, &value, sizeof(value));
}

static void say_exit(u32 kind, u32 value, u32 flags)
{
	struct shim_exit end = {kind, value, flags};

	say(SHIM_EXIT, &end, sizeof(end));
}

static void say_attached(u64 offset, u64 end, u32 pid, u32 state)
{
	struct shim_attached body = {offset, end, pid, state};

	say(SHIM_ATTACHED, &body, sizeof(body));
}

static void test_whole_life(void)
{
	begin(false, 0);
	say_u32(SHIM_STARTED, 42);
	say(SHIM_STDOUT, "out", 3);
	say(SHIM_STDERR, "err", 3);
	say(SHIM_STDOUT, "", 0);
	say_exit(0, 7, SHIM_EXIT_DRAINED);
	CHECK_EQ(exec_guest_receive(&g), 0);
	CHECK_STR(seen.text, "started:42 1:out 2:err exit:0:7:1 ");
	CHECK_EQ(g.offset, 6);
	CHECK_EQ(g.state, EXEC_GUEST_OVER);
	fd_close(&guest);
	CHECK_EQ(exec_guest_receive(&g), -ENODATA);
}

/* The same, a byte at a time. */
static void test_in_pieces(void)
{
	u8 bytes[256];
	ssize_t n;
	int fds[2];

	begin(false, 0);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	dup2(fds[1], guest);
	say_u32(SHIM_STARTED, 42);
	say(SHIM_STDOUT, "ab", 2);
	say_exit(1, 9, 0);
	n = read(fds[0], bytes, sizeof(bytes));
	close(fds[0]);
	close(fds[1]);
	begin(false, 0);
	for (ssize_t i = 0; i < n; i++) {
		CHECK_EQ(write(guest, bytes + i, 1), 1);
		CHECK_EQ(exec_guest_receive(&g), 0);
	}
	CHECK_STR(seen.text, "started:42 1:a 1:b exit:1:9:0 ");
}

static void test_attach(void)
{
	begin(true, 10);
	say_attached(10, 12, 5, SHIM_STATE_RUNNING);
	say(SHIM_STDOUT, "kl", 2);
	say_exit(0, 0, 0);
	CHECK_EQ(exec_guest_receive(&g), 0);
	CHECK_STR(seen.text, "attached:10 started:5 1:kl exit:0:0:0 ");
	CHECK_EQ(g.offset, 12);
	/* Older output is gone: told by the offset. Started later. */
	begin(true, 0);
	say_attached(100, 100, 0, SHIM_STATE_RUNNING);
	say_u32(SHIM_STARTED, 6);
	CHECK_EQ(exec_guest_receive(&g), 0);
	CHECK_STR(seen.text, "attached:100 started:6 ");
	/* At the end, wherever that is. */
	begin(true, UINT64_MAX);
	say_attached(7, 7, 1, SHIM_STATE_ENDED);
	CHECK_EQ(exec_guest_receive(&g), 0);
}

static void test_failure(void)
{
	u8 body[8 + 4] = {3, 0, 0, 0, 2, 0, 0, 0, 'a', 27, 'b', 0xff};

	begin(false, 0);
	say(SHIM_ERROR, body, sizeof(body));
	CHECK_EQ(exec_guest_receive(&g), 0);
	CHECK_STR(seen.text, "failed:3:2:a?b? ");
}

static void lie(bool attach, void (*what)(void), const char *name)
{
	begin(attach, 10);
	what();
	if (exec_guest_receive(&g) != -EPROTO) {
		fprintf(stderr, "taken: %s (%s)\n", name, seen.text);
		exit(1);
	}
}

static void output_first(void)
{
	say(SHIM_STDOUT, "x", 1);
}
static void exit_first(void)
{
	say_exit(0, 0, 0);
}
static void started_twice(void)
{
	say_u32(SHIM_STARTED, 1);
	say_u32(SHIM_STARTED, 2);
}
static void no_pid(void)
{
	say_u32(SHIM_STARTED, 0);
}
static void bad_exit(void)
{
	say_u32(SHIM_STARTED, 1);
	say_exit(0, 256, 0);
}
static void bad_signal(void)
{
	say_u32(SHIM_STARTED, 1);
	say_exit(1, 65, 0);
}
static void bad_flags(void)
{
	say_u32(SHIM_STARTED, 1);
	say_exit(0, 0, 8);
}
static void after_the_end(void)
{
	say_u32(SHIM_STARTED, 1);
	say_exit(0, 0, 0);
	say(SHIM_STDOUT, "x", 1);
}
static void credit_never_used(void)
{
	say_u32(SHIM_STDIN_CREDIT, 1);
}
static void not_asked(void)
{
	say_attached(10, 10, 1, 0);
}
static void a_frame_of_hosts(void)
{
	say(SHIM_KILL, NULL, 0);
}
static void too_long(void)
{
	u8 head[8];

	frame_put(head, SHIM_STDOUT, SHIM_DATA_MAX_BYTES + 1);
	CHECK_EQ(write(guest, head, 8), 8);
}
static void offset_behind_end(void)
{
	say_attached(11, 10, 1, 0);
}
static void older_than_asked(void)
{
	say_attached(9, 20, 1, 0);
}
static void huge_end(void)
{
	say_attached(10, UINT64_MAX - 1, 1, 0);
}
static void bad_state(void)
{
	say_attached(10, 10, 1, 2);
}
static void pong(void)
{
	say(SHIM_PONG, NULL, 0);
}
static void error_without_errno(void)
{
	say(SHIM_ERROR, (u8[8]){1}, 8);
}

static void test_lies(void)
{
#define LIE(attach, fn) lie(attach, fn, #fn)
	LIE(false, output_first);
	LIE(false, exit_first);
	LIE(false, started_twice);
	LIE(false, no_pid);
	LIE(false, bad_exit);
	LIE(false, bad_signal);
	LIE(false, bad_flags);
	LIE(false, after_the_end);
	LIE(false, credit_never_used);
	LIE(false, not_asked);
	LIE(false, a_frame_of_hosts);
	LIE(false, too_long);
	LIE(false, pong);
	LIE(false, error_without_errno);
	LIE(true, output_first);
	LIE(true, offset_behind_end);
	LIE(true, older_than_asked);
	LIE(true, huge_end);
	LIE(true, bad_state);
}

static void test_window(void)
{
	static u8 data[SHIM_DATA_MAX_BYTES], sink[1 << 20];

	begin(false, 0);
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(exec_guest_stdin_room(&g), SHIM_DATA_MAX_BYTES);
		CHECK_EQ(exec_guest_put(&g, SHIM_STDIN, data, sizeof(data)), 0);
		while (g.tx_len) {
			CHECK_EQ(exec_guest_send(&g), 0);
			CHECK(recv(guest, sink, sizeof(sink), MSG_DONTWAIT) > 0);
		}
	}
	CHECK_EQ(exec_guest_stdin_room(&g), 0);
	say_u32(SHIM_STARTED, 1);
	say_u32(SHIM_STDIN_CREDIT, 100);
	CHECK_EQ(exec_guest_receive(&g), 0);
	CHECK_STR(seen.text, "started:1 room ");
	CHECK_EQ(exec_guest_stdin_room(&g), 100);
	/* Attached: full until the shim says what is free. */
	begin(true, 0);
	say_attached(0, 0, 1, 0);
	CHECK_EQ(exec_guest_receive(&g), 0);
	CHECK_EQ(exec_guest_stdin_room(&g), 0);
	say_u32(SHIM_STDIN_CREDIT, SHIM_STDIN_WINDOW_BYTES);
	CHECK_EQ(exec_guest_receive(&g), 0);
	CHECK_EQ(exec_guest_stdin_room(&g), SHIM_DATA_MAX_BYTES);
}

/* --- exec_guest_call() --- */

static int entries;

static void on_entry(void *opaque, const struct shim_entry *entry)
{
	(void)opaque;
	entries += (int)entry->pid;
}

static int call(enum shim_frame_type type)
{
	entries = 0;
	return exec_guest_call(g.fd, type, NULL, 0, clock_now_ns() + SECOND_NS / 10, -1, on_entry,
			       NULL);
}

static void test_call(void)
{
	static u8 flood[600][8 + sizeof(struct shim_entry)];
	struct shim_entry entry = {.pid = 3, .end = 5, .oldest = 1};

	begin(false, 0);
	say(SHIM_ENTRY, &entry, sizeof(entry));
	entry.pid = 4;
	say(SHIM_ENTRY, &entry, sizeof(entry));
	say(SHIM_OK, NULL, 0);
	CHECK_EQ(call(SHIM_LIST), 0);
	CHECK_EQ(entries, 7);
	begin(false, 0);
	say(SHIM_ERROR, (u8[8]){0, 0, 0, 0, ENOENT}, 8);
	CHECK_EQ(call(SHIM_FORGET), -ENOENT);
	begin(false, 0);
	CHECK_EQ(call(SHIM_LIST), -ETIMEDOUT);
	begin(false, 0);
	fd_close(&guest);
	CHECK(call(SHIM_LIST) < 0);
	begin(false, 0);
	entry.oldest = 6;
	say(SHIM_ENTRY, &entry, sizeof(entry));
	CHECK_EQ(call(SHIM_LIST), -EPROTO);
	/* One that never stops. */
	begin(false, 0);
	entry.oldest = 0;
	for (int i = 0; i < 600; i++) {
		frame_put(flood[i], SHIM_ENTRY, sizeof(entry));
		memcpy(flood[i] + 8, &entry, sizeof(entry));
	}
	CHECK_EQ(write(guest, flood, sizeof(flood)), sizeof(flood));
	CHECK_EQ(call(SHIM_LIST), -EPROTO);
	exec_guest_destroy(&g);
	fd_close(&guest);
}

TEST_MAIN({"whole life", test_whole_life}, {"in pieces", test_in_pieces}, {"attach", test_attach},
	  {"failure", test_failure}, {"lies", test_lies}, {"window", test_window},
	  {"call", test_call})
