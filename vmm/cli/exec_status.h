/* SPDX-License-Identifier: Apache-2.0 */
/* What `thaw run` and `thaw exec` share: signals that go to the command, and exit statuses. */
#ifndef THAW_CLI_EXEC_STATUS_H
#define THAW_CLI_EXEC_STATUS_H

#include "vmm/cli/exec.h"

/**
 * exec_open_signals() - a signalfd of SIGINT, SIGTERM, SIGHUP and SIGQUIT, but for those that the
 * caller of this process had ignored; SIGPIPE is ignored from now on. Return: the fd (the caller's)
 * or -errno (logged).
 */
int __must_check exec_open_signals(bool tty);

/**
 * exec_exit_status() - the exit status for what became of a command, with a message where thaw
 * itself has something to say; of EXEC_LOST the caller has told why already.
 * @request: what was asked for. @signal_number: set when the command was ended by a signal.
 */
int exec_exit_status(const struct exec_request *request, const struct exec_result *result,
		     int *signal_number);

#endif
