/* SPDX-License-Identifier: Apache-2.0 */
/* What `thaw run` needs of `thaw exec`. */
#ifndef THAW_CLI_EXEC_CMD_H
#define THAW_CLI_EXEC_CMD_H

#include "vmm/cli/client.h"
#include "vmm/cli/run_opts.h"

/** exec_by_thawd() - the command of @opts in sandbox @box, in the foreground. @signal_fd: of
 * exec_open_signals(). @left: set when the user has left the command alone (detach keys). Return:
 * exit status. */
int exec_by_thawd(struct client *client, const char *box, const struct run_opts *opts, u64 start_ns,
		  int signal_fd, bool *left);

/** run_by_thawd() - `thaw run` in a sandbox of thawd. Return: exit status. */
int run_by_thawd(struct client *client, const struct run_opts *opts, u64 start_ns);

#endif
