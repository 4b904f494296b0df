/* SPDX-License-Identifier: Apache-2.0 */
/* `thaw run -d`: a sandbox that stays. */
#ifndef THAW_CLI_RUN_DETACHED_H
#define THAW_CLI_RUN_DETACHED_H

#include "vmm/cli/run_opts.h"

/** run_detached() - start the sandbox and its command, print its id. Return: exit status. */
int run_detached(const struct run_opts *opts);

#endif
