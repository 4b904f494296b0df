/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the thaw command share: exit statuses, the start of the process, the commands.
 */
#ifndef THAW_CLI_CLI_H
#define THAW_CLI_CLI_H

#include "vmm/util/types.h"

/** Exit statuses. `thaw run` keeps its own ones above those that commands use, as env(1) and
 * timeout(1) do. */
enum cli_exit {
	CLI_OK = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,
	CLI_RUN_TIMEOUT = 124,
	CLI_RUN_FAILED = 125, /* thaw's own error, usage errors included */
	CLI_RUN_NOT_EXECUTABLE = 126,
	CLI_RUN_NOT_FOUND = 127,
	CLI_RUN_SIGNAL_BASE = 128,
};

/** One process of thaw. */
struct cli {
	/** CLOCK_MONOTONIC of the process's start: what main() saw, less the CPU time that had been
	 * used until then. */
	u64 start_ns;
	const char *command; /* as typed, for messages: "template build" */
};

/** A command or a group's member; @argv does not hold the command's own name and is
 * NULL-terminated. Return: exit status. */
typedef int cli_command_fn(struct cli *cli, int argc, char **argv);

struct optparse_command;

/** A row of a dispatch table; help and completions are printed from it. */
struct cli_command {
	const char *name;
	const char *summary;
	cli_command_fn *run;
	const struct optparse_command *options; /* NULL: it has none of its own */
	const struct cli_command *members;	/* of a group */
	size_t nmembers;
};

/* Rows: of a command, of a group (which may be a command by itself). */
/* NOLINTBEGIN(bugprone-macro-parentheses): members of an initializer */
#define CLI_COMMAND(name_, summary_, run_, options_)                                 \
	{                                                                            \
		.name = name_, .summary = summary_, .run = run_, .options = options_ \
	}
#define CLI_GROUP(name_, summary_, run_, options_, members_, count_)                  \
	{                                                                             \
		.name = name_, .summary = summary_, .run = run_, .options = options_, \
		.members = members_, .nmembers = count_                               \
	}
/* NOLINTEND(bugprone-macro-parentheses) */

/**
 * cli_dispatch() - find @argv[0] in @table and run it with the rest; prints help for "help",
 * "--help" and "-h".
 * @group: words before it ("thaw", "thaw template"). Return: the exit status; CLI_USAGE with a
 * message when there is no such command.
 */
int cli_dispatch(struct cli *cli, const char *group, const struct cli_command *table, size_t count,
		 int argc, char **argv);

/** cli_flush() - have what was printed to stdout written. Return: 0, or -errno (logged): output
 * that is lost must not look like success. */
int __must_check cli_flush(void);

struct optparse_result;

/**
 * cli_parse() - optparse(), and what every command does about its outcome: help is printed to
 * stdout, an error to stderr.
 * @usage_status: exit status of a usage error.
 *
 * Return: -1 to go on, else the exit status to end with.
 */
int cli_parse(const struct optparse_command *command, void *dest, int argc, char **argv,
	      struct optparse_result *result, int usage_status);

/** cli_find_near_exe() - the first of the @count paths that exists, each relative to the folder of
 * this executable, into @out of PATH_MAX bytes. Return: 0, -ENOENT, or -errno. */
int __must_check cli_find_near_exe(const char *const *relative, size_t count, char *out);

#endif
