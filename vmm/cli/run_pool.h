/* SPDX-License-Identifier: Apache-2.0 */
/* `thaw run`: a machine that waits in a pool instead of a new one. */
#ifndef THAW_CLI_RUN_POOL_H
#define THAW_CLI_RUN_POOL_H

#include "vmm/cli/pool.h"
#include "vmm/cli/run_opts.h"
#include "vmm/cli/vmmproc.h"

/** What became of it. */
struct run_pool {
	const char *outcome; /* "hit", "miss" (a pool, but no machine ready), "none": static */
	/* of a hit */
	char strategy[20];
	struct proc_counters counters; /* what the machine had used before */
};

/**
 * run_pool_start() - claim a machine of the template's pool and start it with the first request of
 * @request_fd (-1: none). Options that a machine can only be made with (a strategy, a console) pass
 * the pool by.
 *
 * Return: true on a hit: @vmm has it. Otherwise one must be made. Faults of the pool are logged.
 */
bool run_pool_start(const struct state *state, const struct run_opts *opts, int request_fd,
		    struct vmmproc *vmm, struct run_pool *out);

#endif
