// SPDX-License-Identifier: Apache-2.0
// Parts of the CLI that need no thawd: clustered options, specifications as JSON, paths of cp,
// detach keys, base64, ages and sizes, and that the tables of all commands are sound.
#include <errno.h>
#include <jansson.h>

#include "tests/unit/test.h"
#include "vmm/cli/base64.h"
#include "vmm/cli/client.h"
#include "vmm/cli/commands.h"
#include "vmm/cli/cp_path.h"
#include "vmm/cli/exec_internal.h"
#include "vmm/cli/run_opts.h"
#include "vmm/cli/verb.h"

static struct run_opts opts;
static struct optparse_result result;

/** @words: parted by '|'. */
static int parse(const char *words, bool is_run)
{
	static char text[512], *argv[32];
	char *rest = text, *word;
	int argc = 0;

	run_opts_free(&opts);
	snprintf(text, sizeof(text), "%s", words);
	while ((word = strsep(&rest, "|")) && argc < 31)
		argv[argc++] = word;
	argv[argc] = NULL;
	return is_run ? run_opts_parse(&opts, argc, argv, &result)
		      : exec_opts_parse(&opts, argc, argv, &result);
}

static void check_refused(const char *words, bool is_run, const char *part)
{
	CHECK_EQ(parse(words, is_run), -EINVAL);
	if (!strstr(result.error, part)) {
		fprintf(stderr, "%s: error is \"%s\", expected \"%s\" in it\n", words, result.error,
			part);
		exit(1);
	}
}

static void test_docker_habits(void)
{
	CHECK_EQ(parse("-it|box|bash", false), 0);
	CHECK(opts.with_stdin && opts.tty && !opts.detach);
	CHECK_STR(opts.template_name, "box");
	CHECK_STR(opts.argv[0], "bash");
	/* Behind the command nothing is an option. */
	CHECK_EQ(parse("box|-i|ls|-l|-t|--", false), 0);
	CHECK(opts.with_stdin && !opts.tty);
	CHECK_STR(opts.argv[1], "-l");
	CHECK_STR(opts.argv[3], "--");
	CHECK_EQ(parse("-iw|/tmp|-eA=b|box|--|env", false), 0);
	CHECK_STR(opts.cwd, "/tmp");
	CHECK_EQ(parse("-dlteam=a|--name|x-1|debian|sleep|1", true), 0);
	CHECK(opts.detach);
	CHECK_STR(opts.spec.name, "x-1");
	CHECK_EQ(opts.spec.labels.count, 1);
	CHECK_STR(opts.spec.labels.items[0], "team=a");
	CHECK_EQ(parse("debian|-", true), 0);
	CHECK_STR(opts.argv[0], "-");
	check_refused("-iz|box|x", false, "'-z'");
	check_refused("-dit|box|x", false, "--detach");
	check_refused("box", false, "command is missing");
	check_refused("box|--", false, "command is missing");
	check_refused("box|", false, "empty string");
	check_refused("-iw", false, "--workdir needs a value");
	run_opts_free(&opts);
}

static void test_terminals_have_a_term(void)
{
	bool found = false;

	setenv("TERM", "vt-test", 1);
	CHECK_EQ(parse("-t|box|x", false), 0);
	for (size_t i = 0; i < opts.env.count; i++)
		found |= !strcmp(opts.env.vars[i], "TERM=vt-test");
	CHECK(found);
	/* -e wins, and an environment without -t has none. */
	CHECK_EQ(parse("-t|-eTERM=dumb|box|x", false), 0);
	for (size_t i = 0; i < opts.env.count; i++)
		CHECK(strcmp(opts.env.vars[i], "TERM=vt-test") != 0);
	CHECK_EQ(parse("box|x", false), 0);
	for (size_t i = 0; i < opts.env.count; i++)
		CHECK(strncmp(opts.env.vars[i], "TERM=", 5) != 0);
	run_opts_free(&opts);
}

static void test_specs(void)
{
	char *text;
	json_t *json;

	CHECK_EQ(parse("--size|basic|-l|a=b=c|-l|k|--idle-timeout|90s|--hostname|h|d|x", true), 0);
	json = spec_json(&opts.spec, "d", (char *[]){"A=1=2", NULL}, (char *[]){"x", "y", NULL},
			 opts.hostname);
	text = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
	CHECK_STR(text, "{\"entrypoint\":[\"x\",\"y\"],\"env\":{\"A\":\"1=2\"},\"hostname\":\"h\","
			"\"inactivity_timeout_ms\":90000,\"labels\":{\"a\":\"b=c\",\"k\":\"\"},"
			"\"size\":\"basic\",\"template\":\"d\"}");
	free(text);
	json_decref(json);
	CHECK(!spec_json(&opts.spec, "\xff", NULL, NULL, NULL));
	CHECK(!env_json((char *[]){"A=\xff", NULL}));
	CHECK(!argv_json((char *[]){"\xff", NULL}));
	check_refused("--size|huge|d|x", true, "standard-4");
	check_refused("--size|lite|--vcpus|1|--memory|1G|d|x", true, "--size");
	check_refused("--vcpus|1|d|x", true, "go together");
	check_refused("--name|-a|d|x", true, "--name");
	check_refused("--name|A|d|x", true, "--name");
	check_refused("-l|=x|d|x", true, "--label");
	check_refused("-l|12345678901234567=x|d|x", true, "--label");
	check_refused("--name|a|--json|f|d|x", true, "--name");
	check_refused("--name|a|--local|d|x", true, "--local");
	check_refused("-o|json|d|x", true, "needs --detach");
	run_opts_free(&opts);
}

static void check_last(const char *path, const char *name)
{
	char out[NAME_MAX + 1];

	cp_last_name(path, out);
	CHECK_STR(out, name);
}

static void test_cp_paths(void)
{
	char here[] = "./a:b", there[] = "box:/x:y", none[] = "plain", odd[] = ":x", out[PATH_MAX];

	CHECK(!cp_find_colon(here));
	CHECK_STR(cp_find_colon(there), ":/x:y");
	CHECK(!cp_find_colon(none));
	CHECK(!cp_find_colon(odd));
	CHECK_STR(cp_guest_path("tmp", out), "/tmp");
	CHECK_STR(cp_guest_path("/tmp", out), "/tmp");
	CHECK_STR(cp_guest_path("", out), "/");
	check_last("/a/b", "b");
	check_last("a", "a");
	check_last("/a/b//", "b");
	check_last("/a/.", "");
	check_last("/", "");
	check_last(".", "");
	CHECK_EQ(cp_join("/a", "b", out), 0);
	CHECK_STR(out, "/a/b");
	CHECK_EQ(cp_join("/", "b", out), 0);
	CHECK_STR(out, "/b");
}

static void test_detach_keys(void)
{
	struct detach_keys keys = {0};
	u8 data[16];

	memcpy(data,
	       "ab\x10\x11"
	       "cd",
	       6);
	CHECK_EQ(detach_filter(&keys, data, 6), 2);
	CHECK(keys.pressed);
	/* A ctrl-p waits for what comes next, and is sent before it. */
	keys = (struct detach_keys){0};
	memcpy(data, "a\x10", 2);
	CHECK_EQ(detach_filter(&keys, data, 2), 1);
	CHECK(keys.held && !keys.pressed);
	data[0] = 'x';
	CHECK_EQ(detach_filter(&keys, data, 1), 2);
	CHECK(!memcmp(data, "\x10x", 2) && !keys.held);
	data[0] = 0x10;
	CHECK_EQ(detach_filter(&keys, data, 1), 0);
	data[0] = 0x11;
	CHECK_EQ(detach_filter(&keys, data, 1), 0);
	CHECK(keys.pressed);
	keys = (struct detach_keys){0};
	memcpy(data, "\x10\x10\x11", 3);
	CHECK_EQ(detach_filter(&keys, data, 3), 1);
	CHECK(keys.pressed && data[0] == 0x10);
}

static void test_base64(void)
{
	static const char *const bad[] = {"a",	  "ab",	  "abc",  "ab=c",
					  "====", "a===", "ab c", "ab\n="};
	size_t len;
	u8 *out;

	out = base64_decode("aGVsbG8=", 8, &len);
	CHECK(out && len == 5 && !memcmp(out, "hello", 5));
	free(out);
	out = base64_decode("AP+/AA==", 8, &len);
	CHECK(out && len == 4 && !memcmp(out, "\0\xff\xbf\0", 4));
	free(out);
	out = base64_decode("", 0, &len);
	CHECK(out && len == 0);
	free(out);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		CHECK(!base64_decode(bad[i], strlen(bad[i]), &len));
}

static void test_text(void)
{
	static struct client_target target;
	char out[32];

	CHECK_STR(verb_bytes(0, out, sizeof(out)), "0B");
	CHECK_STR(verb_bytes(1536, out, sizeof(out)), "1.5K");
	CHECK_STR(verb_bytes(256 * MIB, out, sizeof(out)), "256M");
	CHECK_EQ(verb_time("1970-01-02T00:00:01.5Z"), 86401);
	CHECK_EQ(verb_time("soon"), -1);
	CHECK_STR(verb_age("never", out, sizeof(out)), "-");
	CHECK_STR(client_printable("a\x1b[31m\n", out, sizeof(out)), "a?[31m?");
	CHECK_STR(client_printable("abcdef", out, 4), "abc");
	client_target_box(&target, "a b", "files/tar");
	client_target_query(&target, "path", "/x?y");
	client_target_u64(&target, "n", 7);
	CHECK_STR(target.text, "/v1/sandboxes/a%20b/files/tar?path=%2Fx%3Fy&n=7");
	CHECK(!target.overflow);
	for (int i = 0; i < 4000; i++)
		client_target_query(&target, "path", "/x?y");
	CHECK(target.overflow);
}

TEST_MAIN({"docker's habits", test_docker_habits}, {"TERM", test_terminals_have_a_term},
	  {"specifications", test_specs}, {"paths of cp", test_cp_paths},
	  {"detach keys", test_detach_keys}, {"base64", test_base64}, {"texts", test_text})
