/* SPDX-License-Identifier: Apache-2.0 */
/* Commands on sandboxes that stay without thawd (`thaw run -d --local`); sandbox.h is below them.
 */
#ifndef THAW_CLI_LOCAL_H
#define THAW_CLI_LOCAL_H

#include <jansson.h>

#include "vmm/cli/state.h"
#include "vmm/util/types.h"

/** local_list() - append an object for each of them to @array. Return: 0 or -errno (logged). */
int __must_check local_list(const struct state *state, json_t *array);

/** local_stop() / local_remove() - by the start of its id. Return: 0 or -errno (logged). */
int __must_check local_stop(const char *prefix, u64 grace_ns);
int __must_check local_remove(const char *prefix, bool force);

/** local_pause() / local_resume() - @object: what to print as JSON, a new reference. @strategy:
 * NULL: the default. Return: 0 or -errno (logged). */
int __must_check local_pause(const char *prefix, json_t **object);
int __must_check local_resume(const char *prefix, const char *strategy, json_t **object);

#endif
