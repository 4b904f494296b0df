// SPDX-License-Identifier: Apache-2.0
// Command lines: options of `thaw run`, the parser under them, template names, durations.
#include <errno.h>

#include "test.h"
#include "vmm/cli/commands.h"
#include "vmm/cli/run_opts.h"
#include "vmm/cli/state.h"

#define MAX_ARGS 24

struct line {
	char *argv[MAX_ARGS + 1];
	int argc;
	char text[512];
};

/** Words parted by '|', so that blanks and empty words can be written. */
static void split(const char *text, struct line *line)
{
	char *rest = line->text, *word;

	snprintf(line->text, sizeof(line->text), "%s", text);
	line->argc = 0;
	while ((word = strsep(&rest, "|")) && line->argc < MAX_ARGS)
		line->argv[line->argc++] = word;
	line->argv[line->argc] = NULL;
}

static void accepted(const char *text, struct line *line, struct run_opts *opts)
{
	struct optparse_result result;

	split(text, line);
	if (run_opts_parse(opts, line->argc, line->argv, &result)) {
		fprintf(stderr, "%s: refused: %s\n", text, result.error);
		exit(1);
	}
	CHECK(!result.help);
}

/** Refused, and the message holds @part: the option's name or the fix. */
static void refused(const char *text, const char *part)
{
	struct optparse_result result;
	struct run_opts opts;
	struct line line;

	split(text, &line);
	CHECK_EQ(run_opts_parse(&opts, line.argc, line.argv, &result), -EINVAL);
	if (!strstr(result.error, part)) {
		fprintf(stderr, "%s: error is \"%s\", expected \"%s\" in it\n", text, result.error,
			part);
		exit(1);
	}
	run_opts_free(&opts);
}

static const char *env_value(const struct run_opts *opts, const char *name)
{
	size_t len = strlen(name);
	const char *found = NULL;

	for (size_t i = 0; i < opts->env.count; i++) {
		if (!strncmp(opts->env.vars[i], name, len) && opts->env.vars[i][len] == '=') {
			CHECK(!found); /* a name stands there once */
			found = opts->env.vars[i] + len + 1;
		}
	}
	return found;
}

static void test_plain(void)
{
	struct run_opts opts;
	struct line line;

	accepted("debian|--|echo|a b|--json|-i", &line, &opts);
	CHECK_STR(opts.template_name, "debian");
	CHECK_STR(opts.argv[0], "echo");
	CHECK_STR(opts.argv[1], "a b");
	CHECK_STR(opts.argv[2], "--json");
	CHECK_STR(opts.argv[3], "-i");
	CHECK(!opts.argv[4]);
	CHECK(!opts.with_stdin && !opts.no_pool && !opts.json_path && !opts.strategy && !opts.cwd);
	CHECK_EQ(opts.timeout_ns, 0);
	CHECK_EQ(opts.user.uid, 0);
	CHECK_STR(env_value(&opts, "HOME"), "/root");
	CHECK_STR(env_value(&opts, "LANG"), "C.UTF-8");
	CHECK_EQ(opts.env.count, 2);
	CHECK(!opts.env.vars[2]);
	run_opts_free(&opts);
	/* "--" in the command is the command's. */
	accepted("debian|--|--|--", &line, &opts);
	CHECK_STR(opts.argv[0], "--");
	CHECK_STR(opts.argv[1], "--");
	run_opts_free(&opts);
}

static void test_all_options(void)
{
	struct run_opts opts;
	struct line line;

	accepted(
		"-i|-e|A=1|-eB=x=y|--env=C=|-e|A=2|-w|/tmp|-u|1000:2000|d|--strategy|copy|--json=r.json|"
		"--timeout|1.5s|--hostname|h-1.x|--console|c.log|--no-pool|--|x",
		&line, &opts);
	CHECK(opts.with_stdin && opts.no_pool);
	CHECK_STR(env_value(&opts, "A"), "2");
	CHECK_STR(env_value(&opts, "B"), "x=y");
	CHECK_STR(env_value(&opts, "C"), "");
	CHECK_EQ(opts.env.count, 5);
	CHECK_STR(opts.cwd, "/tmp");
	CHECK_EQ(opts.user.uid, 1000);
	CHECK_EQ(opts.user.gid, 2000);
	CHECK_STR(opts.template_name, "d");
	CHECK_STR(opts.strategy, "copy");
	CHECK(!opts.populate && !opts.prefault && !opts.huge && !opts.threads);
	CHECK_STR(opts.json_path, "r.json");
	CHECK_EQ(opts.timeout_ns, 1500000000);
	CHECK_STR(opts.hostname, "h-1.x");
	CHECK_STR(opts.console_path, "c.log");
	CHECK_STR(env_value(&opts, "HOME"), "/");
	run_opts_free(&opts);
}

static void test_env_passed_on(void)
{
	struct run_opts opts;
	struct line line;

	CHECK(!setenv("THAW_TEST_HERE", "here", 1));
	CHECK(!unsetenv("THAW_TEST_GONE"));
	accepted("d|-e|THAW_TEST_HERE|-e|THAW_TEST_GONE|-e|HOME=/h|--|x", &line, &opts);
	CHECK_STR(env_value(&opts, "THAW_TEST_HERE"), "here");
	CHECK(!env_value(&opts, "THAW_TEST_GONE"));
	CHECK_STR(env_value(&opts, "HOME"), "/h");
	run_opts_free(&opts);
}

static void test_user(void)
{
	struct run_opts opts;
	struct line line;

	accepted("d|-u|7|--|x", &line, &opts);
	CHECK_EQ(opts.user.uid, 7);
	CHECK_EQ(opts.user.gid, 7);
	run_opts_free(&opts);
	accepted("d|-u|4294967294:0|--|x", &line, &opts);
	CHECK_EQ(opts.user.uid, 4294967294u);
	CHECK_EQ(opts.user.gid, 0);
	run_opts_free(&opts);
	refused("d|-u|4294967295|--|x", "--user");
	refused("d|-u|root|--|x", "as numbers");
	refused("d|-u|1:|--|x", "--user");
	refused("d|-u|:1|--|x", "--user");
	refused("d|-u|1:2:3|--|x", "--user");
	refused("d|-u|-1|--|x", "--user");
	refused("d|-u|00000000000000000001|--|x", "--user");
}

static void test_refused(void)
{
	refused("", "command is missing");
	refused("--|x", "TEMPLATE is missing");
	refused("d", "command is missing");
	refused("d|--", "command is missing");
	refused("d|--|", "empty string");
	refused("-d|d|--", "command is missing");
	refused("-d|d|-i", "--detach");
	refused("-d|d|--json|f", "--detach");
	refused("-d|d|--timeout|1s|--|x", "--detach");
	refused("d|--nope|--|x", "'--nope'");
	refused("d|-z|--|x", "'-z'");
	refused("d|--json", "--json needs a value");
	refused("d|--json|", "--json");
	refused("d|-e|--|env", "--env needs a value");
	refused("d|--timeout|--|x", "--timeout needs a value");
	refused("d|--interactive=yes|--|x", "--interactive takes no value");
	refused("d|-e|=x|--|x", "--env");
	refused("d|-w|tmp|--|x", "absolute path");
	refused("d|--strategy|nope|--|x", "'nope' is not a restore strategy; there are:");
	refused("d|--strategy|nope|--|x", " mmap");
	refused("d|--populate|some|--|x", "expected off, read, write or both");
	refused("d|--prefault|both|--|x", "expected on or off");
	refused("d|--huge|2M|--|x", "expected none or thp");
	refused("d|--threads|0|--|x", "expected 1 to 64");
	refused("d|--threads|65|--|x", "expected 1 to 64");
	refused("d|--fault-window|5K|--strategy|uffd|--|x", "a power of two from 4K to 2M");
	refused("d|--fault-window|4M|--strategy|uffd|--|x", "a power of two from 4K to 2M");
	refused("d|--fault-window|4K|--|x", "needs --strategy uffd");
	refused("d|--fault-window|4K|--strategy|ws|--|x", "needs --strategy uffd");
	refused("d|--timeout|0|--|x", "--timeout");
	refused("d|--hostname|-a|--|x", "--hostname");
	refused("d|--hostname|a..b|--|x", "--hostname");
	refused("d|--hostname|a_b|--|x", "--hostname");
	refused("../x|--|x", "'../x'");
	refused("D|--|x", "not a template's name");
}

static void test_help(void)
{
	struct optparse_result result;
	struct run_opts opts;
	struct line line;

	split("d|--nope-behind-is-not-read", &line);
	split("--help|--nope", &line);
	CHECK_EQ(run_opts_parse(&opts, line.argc, line.argv, &result), 0);
	CHECK(result.help);
	run_opts_free(&opts);
	/* Behind "--" it is the command's. */
	split("d|--|--help", &line);
	CHECK_EQ(run_opts_parse(&opts, line.argc, line.argv, &result), 0);
	CHECK(!result.help);
	run_opts_free(&opts);
}

/** Every option has a help text, and none is there twice: the table is what help is made of. */
static void test_table(void)
{
	for (size_t i = 0; i < run_command.nspecs; i++) {
		const struct optparse_spec *spec = &run_command.specs[i];

		CHECK(spec->help && *spec->help && (spec->parse || spec->parse_list));
		CHECK(strcmp(spec->name, "help") != 0 && spec->letter != 'h');
		for (size_t j = 0; j < i; j++) {
			CHECK(strcmp(spec->name, run_command.specs[j].name) != 0);
			CHECK(!spec->letter || spec->letter != run_command.specs[j].letter);
		}
	}
}

static void test_duration(void)
{
	static const struct {
		const char *text;
		u64 ns;
	} good[] = {
		{"1", 1000000000ull},
		{"1s", 1000000000ull},
		{"250ms", 250000000ull},
		{"0.5", 500000000ull},
		{"1.25ms", 1250000ull},
		{"2m", 120000000000ull},
		{"1h", 3600000000000ull},
		{"0.000001", 1000ull},
		{"8760h", 31536000000000000ull},
		{"0.33333333333", 333333000ull},
	};
	static const char *const bad[] = {"",	   "0",	    "-1",   "1d",  "s",
					  ".5",	   "1.",    "1 s",  "1S",  "+1",
					  "8761h", "0.0ms", "1.5.", "0x1", "99999999999999999999"};
	u64 ns;

	for (size_t i = 0; i < ARRAY_SIZE(good); i++) {
		CHECK_EQ(parse_duration(good[i].text, &ns), 0);
		CHECK_EQ(ns, good[i].ns);
	}
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		if (parse_duration(bad[i], &ns) != -EINVAL) {
			fprintf(stderr, "'%s' was taken\n", bad[i]);
			exit(1);
		}
	}
}

static void test_names(void)
{
	char name[80];

	CHECK(state_name_ok("a"));
	CHECK(state_name_ok("debian-13.1_x"));
	CHECK(state_name_ok("0"));
	CHECK(!state_name_ok(""));
	CHECK(!state_name_ok("."));
	CHECK(!state_name_ok(".."));
	CHECK(!state_name_ok(".a"));
	CHECK(!state_name_ok("-a"));
	CHECK(!state_name_ok("_a"));
	CHECK(!state_name_ok("a/b"));
	CHECK(!state_name_ok("A"));
	CHECK(!state_name_ok("a b"));
	CHECK(!state_name_ok("a\n"));
	CHECK(!state_name_ok("\xc3\xa9"));
	memset(name, 'a', sizeof(name));
	name[63] = '\0';
	CHECK(state_name_ok(name));
	name[63] = 'a';
	name[64] = '\0';
	CHECK(!state_name_ok(name));
}

/** A list option ends at ";" and leaves what comes behind alone. */
static int collect_list(void *dest, int argc, char **argv, const char **why)
{
	*why = "no x";
	if (!strcmp(argv[0], "x"))
		return -EINVAL;
	*(int *)dest += argc;
	return 0;
}

static void test_list(void)
{
	static const struct optparse_spec specs[] = {
		{"warm", 0, "CMD ;", NULL, 0, "run", collect_list},
	};
	const struct optparse_command command = {.usage = "t",
						 .specs = specs,
						 .nspecs = 1,
						 .positional_max = 1,
						 .positional_name = "N"};
	struct optparse_result result;
	struct line line;
	int words = 0;

	split("--warm|a|--b|;|n|--warm|c|;", &line);
	CHECK_EQ(optparse(&command, &words, line.argc, line.argv, &result), 0);
	CHECK_EQ(words, 3);
	CHECK_EQ(result.npositional, 1);
	CHECK_STR(result.positional[0], "n");
	split("--warm|a|b", &line);
	CHECK_EQ(optparse(&command, &words, line.argc, line.argv, &result), -EINVAL);
	CHECK(strstr(result.error, "';'"));
	split("--warm|;", &line);
	CHECK_EQ(optparse(&command, &words, line.argc, line.argv, &result), -EINVAL);
	split("--warm=a|;", &line);
	CHECK_EQ(optparse(&command, &words, line.argc, line.argv, &result), -EINVAL);
	split("--warm|x|;", &line);
	CHECK_EQ(optparse(&command, &words, line.argc, line.argv, &result), -EINVAL);
	CHECK(strstr(result.error, "no x"));
	split("a|b", &line);
	CHECK_EQ(optparse(&command, &words, line.argc, line.argv, &result), -EINVAL);
	split("a|--|b", &line);
	CHECK_EQ(optparse(&command, &words, line.argc, line.argv, &result), -EINVAL);
}

TEST_MAIN({"plain", test_plain}, {"all options", test_all_options},
	  {"env passed on", test_env_passed_on}, {"user", test_user}, {"refused", test_refused},
	  {"help", test_help}, {"table", test_table}, {"duration", test_duration},
	  {"names", test_names}, {"list", test_list})
