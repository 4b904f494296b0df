/* SPDX-License-Identifier: Apache-2.0 */
/* Leftovers of commands that were killed. */
#ifndef THAW_CLI_SWEEP_H
#define THAW_CLI_SWEEP_H

#include "vmm/cli/state.h"

/**
 * state_sweep() - remove from the state folder what belongs to no living process: temporary folders
 * and lock files of builds, unfinished hot sets, folders of images that never came, sockets of
 * pools. Work under way is left alone. What can't be removed is logged and stays.
 */
void state_sweep(const struct state *state);

#endif
