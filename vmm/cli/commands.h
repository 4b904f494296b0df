/* SPDX-License-Identifier: Apache-2.0 */
/* Every command of thaw: its main function and its options. */
#ifndef THAW_CLI_COMMANDS_H
#define THAW_CLI_COMMANDS_H

#include "vmm/cli/cli.h"
#include "vmm/cli/optparse.h"

cli_command_fn run_main, create_main, start_main, exec_main, ps_main, stop_main, rm_main, kill_main,
	wait_main, fork_main, snapshot_main, pause_main, resume_main, cp_main, logs_main,
	attach_main, inspect_main, stats_main, top_main, forward_main, events_main, prune_main,
	doctor_main, version_main, completion_main, template_main, template_group_main, pool_main,
	pool_group_main;
cli_command_fn template_build_main, template_record_main, template_list_main, template_inspect_main,
	template_remove_main, template_verify_main, template_export_main, template_import_main,
	template_pack_main, template_flatten_main;

extern const struct optparse_command run_command, create_command, start_command, exec_command,
	ps_command, stop_command, rm_command, kill_command, wait_command, fork_command,
	pause_command, resume_command, cp_command, logs_command, attach_command, inspect_command,
	stats_command, top_command, forward_command, events_command, prune_command, doctor_command,
	version_command, completion_command, pool_command;
extern const struct optparse_command template_build_command, template_record_command,
	template_list_command, template_inspect_command, template_remove_command,
	template_verify_command, template_export_command, template_import_command,
	template_pack_command, template_flatten_command;
extern const struct optparse_command snapshot_create_command, snapshot_list_command,
	snapshot_remove_command, pool_set_command, pool_list_command, pool_remove_command;

/* Groups. */
#define TEMPLATE_COMMANDS 10
#define SNAPSHOT_COMMANDS 3
#define POOL_COMMANDS	  3
extern const struct cli_command template_commands[TEMPLATE_COMMANDS],
	snapshot_commands[SNAPSHOT_COMMANDS], pool_commands[POOL_COMMANDS];

/* Of thaw itself. */
#define THAW_COMMANDS 28
extern const struct cli_command thaw_commands[THAW_COMMANDS];

#endif
