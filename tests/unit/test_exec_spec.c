// SPDX-License-Identifier: Apache-2.0
// Requests for execs: JSON and frames to the payload that the shim gets.
#include "vmm/daemon/exec_spec.h"

#include "guest/shim/parse.h"
#include "tests/unit/test.h"
#include "vmm/daemon/exec_kept.h"
#include "vmm/util/util.h"

static const struct exec_spec_limits limits = {.pids_max = 77, .nofile = 99};
static struct exec_spec_error error;
static struct exec_spec spec;
static struct parse_exec parsed;
static char *slots[64];

static int make(const char *text, enum exec_spec_form form)
{
	json_t *json = json_loads(text, JSON_ALLOW_NUL, NULL);
	int ret;

	CHECK(json);
	exec_spec_destroy(&spec);
	ret = exec_spec_json(&spec, json, form, &limits, &error);
	json_decref(json);
	if (!ret)
		CHECK_EQ(parse_exec(spec.payload, spec.payload_bytes, slots, &parsed), 0);
	return ret;
}

static void test_json(void)
{
	char id[33];

	CHECK_EQ(make("{\"argv\":[\"echo\",\"hi\"],\"env\":{\"A\":\"b\"},\"cwd\":\"/tmp\","
		      "\"user\":\"1:2\",\"timeout_ms\":5,\"drain_ms\":6,\"combined\":true}",
		      EXEC_FORM_POST),
		 0);
	CHECK_EQ(parsed.argc, 2);
	CHECK_STR(parsed.argv[1], "hi");
	CHECK_STR(parsed.envp[0], "A=b");
	CHECK_STR(parsed.cwd, "/tmp");
	CHECK_EQ(parsed.uid, 1);
	CHECK_EQ(parsed.gid, 2);
	CHECK_EQ(parsed.drain_ms, 6);
	CHECK(!parsed.with_stdin && !parsed.pty && parsed.keep && parsed.combined);
	CHECK_EQ(parsed.ext.timeout_ms, 5);
	CHECK_EQ(parsed.ext.pids_max, 77);
	CHECK_EQ(parsed.ext.nofile, 99);
	for (u32 i = 0; i < SHIM_ID_BYTES; i++)
		snprintf(id + 2 * i, 3, "%02x", parsed.ext.id[i]);
	CHECK_STR(spec.id, id);
	CHECK_EQ(spec.output_max_bytes, EXEC_OUTPUT_DEFAULT);
}

static void test_forms(void)
{
	CHECK_EQ(make("{\"argv\":[\"x\"],\"pty\":{\"cols\":100,\"rows\":2}}", EXEC_FORM_POST), 0);
	CHECK(parsed.pty && parsed.with_stdin);
	CHECK_EQ(parsed.ext.size.cols, 100);
	CHECK_EQ(parsed.ext.size.rows, 2);
	CHECK_EQ(make("{\"argv\":[\"x\"],\"pty\":true}", EXEC_FORM_SOCKET), 0);
	CHECK_EQ(parsed.ext.size.cols, 80);
	CHECK_EQ(make("{\"argv\":[\"x\"]}", EXEC_FORM_SOCKET), 0);
	CHECK(parsed.with_stdin);
	CHECK_EQ(make("{\"argv\":[\"x\"],\"detach\":true}", EXEC_FORM_POST), 0);
	CHECK_EQ(spec.raw_id[15] & 3, KEPT_ID_DETACHED);
	CHECK_EQ(make("{\"argv\":[\"x\"]}", EXEC_FORM_ENTRYPOINT), 0);
	CHECK_EQ(spec.raw_id[15] & 3, KEPT_ID_DETACHED | KEPT_ID_ENTRYPOINT);
	CHECK_EQ(make("{\"argv\":[\"x\"],\"stdin\":\"aGk=\",\"stdin_encoding\":\"base64\"}",
		      EXEC_FORM_POST),
		 0);
	CHECK(spec.in_bytes == 2 && !memcmp(spec.in, "hi", 2) && parsed.with_stdin);
}

static void test_refused(void)
{
	static const char *const bad[] = {
		"{}",
		"[]",
		"{\"argv\":[]}",
		"{\"argv\":[\"a\\u0000b\"]}",
		"{\"argv\":[\"x\"],\"cwd\":\"\"}",
		"{\"argv\":[\"x\"],\"cwd\":\"/\\u0000\"}",
		"{\"argv\":[\"x\"],\"env\":{\"A\":\"\\u0000\"}}",
		"{\"argv\":[\"x\"],\"env\":{\"A=\":\"b\"}}",
		"{\"argv\":[\"x\"],\"user\":\":\"}",
		"{\"argv\":[\"x\"],\"user\":\"1:\"}",
		"{\"argv\":[\"x\"],\"user\":\"-1:2\"}",
		"{\"argv\":[\"x\"],\"user\":\"11111111111111111111:2\"}",
		"{\"argv\":[\"x\"],\"user\":5}",
		"{\"argv\":[\"x\"],\"detach\":1}",
		"{\"argv\":[\"x\"],\"drain_ms\":3600001}",
		"{\"argv\":[\"x\"],\"pty\":\"yes\"}",
		"{\"argv\":[\"x\"],\"stdin\":1}",
		"{\"argv\":[\"x\"],\"stdin_encoding\":1}",
		"{\"argv\":[\"x\"],\"what\":1}",
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		if (make(bad[i], EXEC_FORM_POST) == 0) {
			fprintf(stderr, "taken: %s\n", bad[i]);
			exit(1);
		}
		CHECK_EQ(error.status, 400);
	}
	CHECK(make("{\"argv\":[\"x\"],\"stdin\":\"\"}", EXEC_FORM_SOCKET));
	CHECK_STR(error.field, "stdin");
	exec_spec_destroy(&spec);
}

static int frame(const struct shim_exec *head, const struct shim_exec_ext *ext, const char *strings,
		 size_t strings_bytes)
{
	u8 payload[256];
	size_t len = sizeof(*head);
	int ret;

	memcpy(payload, head, sizeof(*head));
	if (ext) {
		memcpy(payload + len, ext, sizeof(*ext));
		len += sizeof(*ext);
	}
	memcpy(payload + len, strings, strings_bytes);
	exec_spec_destroy(&spec);
	spec = (struct exec_spec){0};
	CHECK_EQ(exec_spec_new_id(&spec), 0);
	ret = exec_spec_frame(&spec, payload, len + strings_bytes, &limits, &error);
	if (!ret)
		CHECK_EQ(parse_exec(spec.payload, spec.payload_bytes, slots, &parsed), 0);
	return ret;
}

static void test_frames(void)
{
	struct shim_exec_ext ext = {.flags = SHIM_EXT_PTY | SHIM_EXT_KEEP,
				    .id = {1},
				    .timeout_ms = 9,
				    .pids_max = 1000000,
				    .nofile = 1000000,
				    .size = {10, 20}};
	struct shim_exec head = {.argc = 1, .uid = 3};

	CHECK_EQ(frame(&head, NULL, "a", 2), 0);
	CHECK(parsed.keep && !parsed.pty);
	CHECK_EQ(parsed.uid, 3);
	/* Id and limits are thawd's own, whatever the client says. */
	head.flags = SHIM_EXEC_EXT | SHIM_EXEC_STDIN;
	CHECK_EQ(frame(&head, &ext, "a", 2), 0);
	CHECK(parsed.pty && parsed.with_stdin);
	CHECK(!memcmp(parsed.ext.id, spec.raw_id, SHIM_ID_BYTES));
	CHECK_EQ(parsed.ext.pids_max, 77);
	CHECK_EQ(parsed.ext.nofile, 99);
	CHECK_EQ(parsed.ext.timeout_ms, 9);
	CHECK_EQ(parsed.ext.size.rows, 20);
	ext = (struct shim_exec_ext){.flags = SHIM_EXT_FILES};
	CHECK(frame(&head, &ext, "a", 2));
	head = (struct shim_exec){.argc = 1, .flags = SHIM_EXEC_DETACH};
	CHECK(frame(&head, NULL, "a", 2));
	head = (struct shim_exec){.argc = 2};
	CHECK(frame(&head, NULL, "a", 2));
	exec_spec_destroy(&spec);
}

TEST_MAIN({"json", test_json}, {"forms", test_forms}, {"refused", test_refused},
	  {"frames", test_frames})
