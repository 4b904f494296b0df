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

cli_command_fn run_main;	      /* thaw run */
cli_command_fn template_main;	      /* thaw template: the group */
cli_command_fn template_build_main;   /* thaw template build */
cli_command_fn template_record_main;  /* thaw template record */
cli_command_fn template_list_main;    /* thaw template ls */
cli_command_fn template_inspect_main; /* thaw template inspect */
cli_command_fn template_remove_main;  /* thaw template rm */
cli_command_fn template_verify_main;  /* thaw template verify */
cli_command_fn template_export_main;  /* thaw template export */
cli_command_fn template_import_main;  /* thaw template import */
cli_command_fn template_pack_main;    /* thaw template pack */
cli_command_fn template_flatten_main; /* thaw template flatten */
cli_command_fn pool_main;	      /* thaw pool */
cli_command_fn doctor_main;	      /* thaw doctor */
cli_command_fn exec_main;	      /* thaw exec */
cli_command_fn fork_main;	      /* thaw fork */
cli_command_fn pause_main;	      /* thaw pause */
cli_command_fn resume_main;	      /* thaw resume */
cli_command_fn ps_main;		      /* thaw ps */
cli_command_fn stop_main;	      /* thaw stop */
cli_command_fn rm_main;		      /* thaw rm */

/** A row of a dispatch table; help is printed from it. */
struct cli_command {
	const char *name;
	const char *summary;
	cli_command_fn *run;
};

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

struct optparse_command;
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
