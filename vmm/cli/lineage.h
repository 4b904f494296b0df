/* SPDX-License-Identifier: Apache-2.0 */
/* Which templates are diffs of which (snapshots/FORMAT.md, "Diff snapshots"), as their manifests
 * and state files say; nothing else of a template is opened. */
#ifndef THAW_CLI_LINEAGE_H
#define THAW_CLI_LINEAGE_H

#include <jansson.h>

#include "vmm/cli/state.h"
#include "vmm/snapshot/manifest.h"

/**
 * lineage_dependents() - names of the templates that are diffs of template @name as it is now, so
 * that they could not be used without it; sorted. A damaged template does not count: it can't be
 * used as it is. Return: 0 (state_names_free() is due) or -errno (logged), also if one can't be
 * looked at now: it may be a diff.
 */
int __must_check lineage_dependents(const struct state *state, const char *name,
				    struct state_names *out);

/**
 * lineage_refuse() - is template @name free to be removed, or replaced by one of another content?
 * @what: what its user wants, for the message ("removed").
 *
 * Return: 0, or -EBUSY (logged with the names of the dependents), or -errno (logged).
 */
int __must_check lineage_refuse(const struct state *state, const char *name, const char *what);

/** lineage_json() - names of what the template of @manifest is a diff of, its parent first; empty
 * for a whole one. A missing one ends the list. Return: a new array, or NULL without memory. */
json_t *lineage_json(const struct state *state, const struct snap_manifest *manifest);

#endif
