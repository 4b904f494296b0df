// SPDX-License-Identifier: Apache-2.0
// Frames and requests of the exec protocol: the bytes of both ends.
#include "guest/shim/frame.h"

#include <errno.h>

#include "guest/shim/parse.h"
#include "tests/unit/test.h"
#include "vmm/cli/exec.h"

static int get(u32 len_bytes, u8 type, u8 version, u8 reserved, enum frame_sender sender)
{
	u8 in[8] = {(u8)len_bytes,
		    (u8)(len_bytes >> 8),
		    (u8)(len_bytes >> 16),
		    (u8)(len_bytes >> 24),
		    type,
		    version,
		    reserved,
		    0};
	struct shim_frame frame = {0};
	int ret = frame_get(in, sender, &frame);

	if (!ret) {
		CHECK_EQ(frame.len_bytes, len_bytes);
		CHECK_EQ(frame.type, type);
	} else {
		CHECK_EQ(frame.version, 0);
	}
	return ret;
}

static void header_bytes(void)
{
	static const u8 golden[8] = {0x04, 0x03, 0x01, 0x00, 65, 1, 0, 0};
	u8 out[8];

	frame_put(out, SHIM_STDOUT, 0x10304);
	CHECK(!memcmp(out, golden, sizeof(golden)));
}

static void header_lengths(void)
{
	const enum frame_sender host = FRAME_FROM_HOST, guest = FRAME_FROM_GUEST;

	CHECK_EQ(get(34, SHIM_EXEC, 1, 0, host), 0);
	CHECK_EQ(get(33, SHIM_EXEC, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(2 << 20, SHIM_EXEC, 1, 0, host), 0);
	CHECK_EQ(get((2 << 20) + 1, SHIM_EXEC, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(UINT32_MAX, SHIM_EXEC, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(0, SHIM_STDIN, 1, 0, host), 0);
	CHECK_EQ(get(65536, SHIM_STDIN, 1, 0, host), 0);
	CHECK_EQ(get(65537, SHIM_STDIN, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(1, SHIM_STDIN_EOF, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(4, SHIM_SIGNAL, 1, 0, host), 0);
	CHECK_EQ(get(3, SHIM_SIGNAL, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(64, SHIM_PING, 1, 0, host), 0);
	CHECK_EQ(get(65, SHIM_PING, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(1, SHIM_CHECKPOINT, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(1, SHIM_CHECKPOINT_LIVE, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(0, SHIM_SHUTDOWN, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(4, SHIM_SHUTDOWN, 1, 0, host), 0);
	CHECK_EQ(get(65536, SHIM_STDERR, 1, 0, guest), 0);
	CHECK_EQ(get(65537, SHIM_STDERR, 1, 0, guest), -EMSGSIZE);
	CHECK_EQ(get(12, SHIM_EXIT, 1, 0, guest), 0);
	CHECK_EQ(get(11, SHIM_EXIT, 1, 0, guest), -EMSGSIZE);
	CHECK_EQ(get(8, SHIM_ERROR, 1, 0, guest), 0);
	CHECK_EQ(get(7, SHIM_ERROR, 1, 0, guest), -EMSGSIZE);
	CHECK_EQ(get(8 + 512, SHIM_ERROR, 1, 0, guest), 0);
	CHECK_EQ(get(8 + 513, SHIM_ERROR, 1, 0, guest), -EMSGSIZE);
	CHECK_EQ(get(4, SHIM_STDIN_CREDIT, 1, 0, guest), 0);
	CHECK_EQ(get(4, SHIM_RESIZE, 1, 0, host), 0);
	CHECK_EQ(get(5, SHIM_RESIZE, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(1, SHIM_KILL, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(4, SHIM_ACK, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(8, SHIM_ACK, 1, 0, host), 0);
	CHECK_EQ(get(24, SHIM_ATTACH, 1, 0, host), 0);
	CHECK_EQ(get(16, SHIM_ATTACH, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(16, SHIM_FORGET, 1, 0, host), 0);
	CHECK_EQ(get(0, SHIM_FORGET, 1, 0, host), -EMSGSIZE);
	CHECK_EQ(get(8, SHIM_CONNECT, 1, 0, host), 0);
	CHECK_EQ(get(24, SHIM_ATTACHED, 1, 0, guest), 0);
	CHECK_EQ(get(23, SHIM_ATTACHED, 1, 0, guest), -EMSGSIZE);
	CHECK_EQ(get(72, SHIM_ENTRY, 1, 0, guest), 0);
	CHECK_EQ(get(56, SHIM_USAGE_REPLY, 1, 0, guest), 0);
}

static void header_refusals(void)
{
	for (int type = 0; type < 256; type++) {
		bool host = type >= SHIM_EXEC && type <= SHIM_USAGE;
		bool guest = type >= SHIM_STARTED && type <= SHIM_USAGE_REPLY;

		CHECK((get(0, (u8)type, 1, 0, FRAME_FROM_HOST) == -EPROTO) == !host);
		CHECK((get(0, (u8)type, 1, 0, FRAME_FROM_GUEST) == -EPROTO) == !guest);
	}
	CHECK_EQ(get(0, SHIM_PING, 0, 0, FRAME_FROM_HOST), -EPROTONOSUPPORT);
	CHECK_EQ(get(0, SHIM_PING, 2, 0, FRAME_FROM_HOST), -EPROTONOSUPPORT);
	CHECK_EQ(get(0, SHIM_PING, 1, 1, FRAME_FROM_HOST), -EPROTO);
}

/* A request as it stands in docs/exec-protocol.md. */
static const char golden_request[] = "\x01\0\0\0"
				     "\x02\0\0\0"
				     "\x01\0\0\0"
				     "\x01\0\0\0"
				     "\xe8\x03\0\0"
				     "\xe9\x03\0\0"
				     "\xf4\x01\0\0"
				     "\0\0\0\0"
				     "echo\0"
				     "hi\0"
				     "A=b\0"
				     "/tmp";

static void request_golden(void)
{
	char *const argv[] = {(char[]){"echo"}, (char[]){"hi"}, NULL};
	char *const env[] = {(char[]){"A=b"}, NULL};
	const struct exec_request req = {
		.argv = argv,
		.env = env,
		.cwd = "/tmp",
		.uid = 1000,
		.gid = 1001,
		.drain_ms = 500,
		.with_stdin = true,
	};
	struct parse_exec exec;
	char *slots[16];
	size_t len;
	u8 *payload;

	CHECK_EQ(exec_payload_build(&req, &payload, &len), 0);
	CHECK_EQ(len, sizeof(golden_request));
	CHECK(!memcmp(payload, golden_request, len));
	CHECK_EQ(parse_exec_slots(payload, len), 2 + 1 + 3);
	CHECK_EQ(parse_exec(payload, len, slots, &exec), 0);
	CHECK_EQ(exec.argc, 2);
	CHECK_STR(exec.argv[0], "echo");
	CHECK_STR(exec.argv[1], "hi");
	CHECK(!exec.argv[2]);
	CHECK_STR(exec.envp[0], "A=b");
	CHECK_STR(exec.envp[1], PARSE_DEFAULT_PATH);
	CHECK(!exec.envp[2]);
	CHECK_STR(exec.path, PARSE_DEFAULT_PATH + 5);
	CHECK_STR(exec.cwd, "/tmp");
	CHECK_EQ(exec.uid, 1000);
	CHECK_EQ(exec.gid, 1001);
	CHECK_EQ(exec.drain_ms, 500);
	CHECK(exec.with_stdin);
	free(payload);
}

/* Every shorter payload is refused, and so is one byte more. */
static void request_truncated(void)
{
	u8 payload[sizeof(golden_request) + 1] = {0};
	struct parse_exec exec;
	char *slots[16];

	for (size_t len = 0; len < sizeof(payload); len++) {
		u8 *copy = malloc(len ? len : 1);

		memcpy(payload, golden_request, sizeof(golden_request));
		memcpy(copy, payload, len);
		CHECK_EQ(parse_exec(copy, len, slots, &exec),
			 len == sizeof(golden_request) ? 0 : -EINVAL);
		free(copy);
	}
	CHECK_EQ(parse_exec(payload, sizeof(payload), slots, &exec), -EINVAL);
}

static int parse_changed(size_t offset, u32 value)
{
	u8 payload[sizeof(golden_request)];
	struct parse_exec exec;
	char *slots[16];
	s64 nslots;

	memcpy(payload, golden_request, sizeof(payload));
	frame_put_u32(payload + offset, value);
	nslots = parse_exec_slots(payload, sizeof(payload));
	if (nslots < 0)
		return (int)nslots;
	CHECK(nslots <= 16);
	return parse_exec(payload, sizeof(payload), slots, &exec);
}

static void request_fields(void)
{
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, flags), 0), 0);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, flags), 2), 0);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, flags), 3), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, flags), 4), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, argc), 0), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, argc), 65536), -E2BIG);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, argc), UINT32_MAX), -E2BIG);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, envc), UINT32_MAX), -E2BIG);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, envc), 65534), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, envc), 0), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, has_cwd), 0), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, has_cwd), 2), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, uid), UINT32_MAX), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, gid), UINT32_MAX), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, gid), UINT32_MAX - 1), 0);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, drain_ms), 3600001), -EINVAL);
	CHECK_EQ(parse_changed(offsetof(struct shim_exec, reserved), 1), -EINVAL);
	/* "A=b" becomes "=Ab": an environment string without a name. */
	CHECK_EQ(parse_changed(sizeof(struct shim_exec) + 8, 0x0062413d), -EINVAL);
}

/* The request with options: golden, and each way to get them wrong. */
static int parse_ext(struct shim_exec_ext ext, u32 flags, struct parse_exec *exec)
{
	struct shim_exec head = {.flags = flags, .argc = 1};
	static u8 payload[sizeof(head) + sizeof(ext) + 2];
	static char *slots[8];
	s64 nslots;

	memcpy(payload, &head, sizeof(head));
	memcpy(payload + sizeof(head), &ext, sizeof(ext));
	memcpy(payload + sizeof(head) + sizeof(ext), "x", 2);
	nslots = parse_exec_slots(payload, sizeof(payload));
	if (nslots < 0)
		return (int)nslots;
	CHECK_EQ(nslots, 1 + 3);
	/* Nothing shorter will do. */
	for (size_t len = 0; len < sizeof(payload); len++)
		CHECK(parse_exec(payload, len, slots, exec) < 0);
	return parse_exec(payload, sizeof(payload), slots, exec);
}

static void request_options(void)
{
	const u32 ext = SHIM_EXEC_EXT, in = SHIM_EXEC_EXT | SHIM_EXEC_STDIN;
	const u32 detached = SHIM_EXEC_EXT | SHIM_EXEC_DETACH;
	struct shim_exec_ext all = {
		.id = {1, [15] = 2},
		.flags = SHIM_EXT_KEEP | SHIM_EXT_PTY | SHIM_EXT_FILES,
		.timeout_ms = 3,
		.size = {4, 5},
		.pids_max = 6,
		.nofile = 7,
	};
	struct parse_exec exec;

	CHECK_EQ(parse_ext(all, in, &exec), 0);
	CHECK(exec.keep && exec.pty && exec.files && !exec.combined && exec.with_stdin);
	CHECK(!memcmp(&exec.ext, &all, sizeof(all)));
	CHECK_STR(exec.argv[0], "x");
	CHECK_EQ(parse_ext(all, ext, &exec), -EINVAL); /* a terminal without stdin */
	all.size.rows = 0;
	CHECK_EQ(parse_ext(all, in, &exec), -EINVAL);
	all.size.cols = 0;
	CHECK_EQ(parse_ext(all, in, &exec), 0);
	CHECK_EQ(exec.ext.size.cols, 80);
	CHECK_EQ(exec.ext.size.rows, 24);
	all.reserved = 1;
	CHECK_EQ(parse_ext(all, in, &exec), -EINVAL);
	CHECK_EQ(parse_ext((struct shim_exec_ext){0}, ext, &exec), 0);
	CHECK(!exec.keep && !exec.pty && !exec.ext.size.cols);
	CHECK_EQ(parse_ext((struct shim_exec_ext){.flags = 16}, ext, &exec), -EINVAL);
	CHECK_EQ(parse_ext((struct shim_exec_ext){.size = {1, 1}}, ext, &exec), -EINVAL);
	CHECK_EQ(parse_ext((struct shim_exec_ext){.id = {1}}, ext, &exec), -EINVAL);
	CHECK_EQ(parse_ext((struct shim_exec_ext){.flags = SHIM_EXT_KEEP}, ext, &exec), -EINVAL);
	CHECK_EQ(parse_ext((struct shim_exec_ext){.flags = SHIM_EXT_COMBINED}, ext, &exec), 0);
	CHECK_EQ(parse_ext((struct shim_exec_ext){.flags = SHIM_EXT_COMBINED}, detached, &exec),
		 -EINVAL);
	CHECK_EQ(parse_ext((struct shim_exec_ext){.id = {1}, .flags = SHIM_EXT_KEEP}, detached,
			   &exec),
		 -EINVAL);
	CHECK_EQ(parse_ext((struct shim_exec_ext){.timeout_ms = 1}, detached, &exec), 0);
	CHECK(exec.detach);
}

static int build(char *const *argv, char *const *env, const char *cwd, u32 uid)
{
	const struct exec_request req = {.argv = argv, .env = env, .cwd = cwd, .uid = uid};
	u8 *payload;
	size_t len;
	int ret = exec_payload_build(&req, &payload, &len);

	if (!ret)
		free(payload);
	return ret;
}

static void build_refusals(void)
{
	char *const good[] = {(char[]){"x"}, NULL};
	char *const empty[] = {(char[]){""}, NULL};
	char *const none[] = {NULL};
	char *const nameless[] = {(char[]){"=x"}, NULL};
	char **many = calloc(SHIM_ARGS_MAX + 2, sizeof(*many));
	char *big = malloc(SHIM_EXEC_MAX_BYTES);
	char *const large[] = {big, NULL};

	CHECK_EQ(build(good, NULL, NULL, 0), 0);
	CHECK_EQ(build(none, NULL, NULL, 0), -EINVAL);
	CHECK_EQ(build(empty, NULL, NULL, 0), -EINVAL);
	CHECK_EQ(build(good, good, NULL, 0), -EINVAL);
	CHECK_EQ(build(good, nameless, NULL, 0), -EINVAL);
	CHECK_EQ(build(good, NULL, "", 0), -EINVAL);
	CHECK_EQ(build(good, NULL, NULL, UINT32_MAX), -EINVAL);
	memset(big, 'x', SHIM_EXEC_MAX_BYTES - 1);
	big[SHIM_EXEC_MAX_BYTES - 1] = '\0';
	CHECK_EQ(build(large, NULL, NULL, 0), -E2BIG);
	big[SHIM_EXEC_MAX_BYTES - 33] = '\0';
	CHECK_EQ(build(large, NULL, NULL, 0), 0);
	big[1] = '\0';
	for (u32 i = 0; i <= SHIM_ARGS_MAX; i++)
		many[i] = big;
	CHECK_EQ(build(many, NULL, NULL, 0), -E2BIG);
	many[SHIM_ARGS_MAX] = NULL;
	CHECK_EQ(build(many, NULL, NULL, 0), 0);
	free(many);
	free(big);
}

TEST_MAIN({"header_bytes", header_bytes}, {"header_lengths", header_lengths},
	  {"header_refusals", header_refusals}, {"request_golden", request_golden},
	  {"request_truncated", request_truncated}, {"request_fields", request_fields},
	  {"request_options", request_options}, {"build_refusals", build_refusals})
