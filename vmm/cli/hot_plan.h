/* SPDX-License-Identifier: Apache-2.0 */
/* Which commands the hot set is recorded with, and what becomes of what they touched. Pure. */
#ifndef THAW_CLI_HOT_PLAN_H
#define THAW_CLI_HOT_PLAN_H

#include "vmm/cli/recipe.h"
#include "vmm/snapshot/hot_set.h"

#define HOT_RUNS_DEFAULT 3
#define HOT_RUNS_MAX	 16
#define HOT_BUILTINS	 3
#define HOT_COMMANDS_MAX (HOT_BUILTINS + 2 * RECIPE_WARM_MAX)

_Static_assert(HOT_COMMANDS_MAX *HOT_RUNS_MAX <= SNAP_HOT_CLONES_MAX, "all fit in the file");

struct hot_command {
	const char *const *argv; /* NULL-terminated, not owned */
	bool optional;		 /* the guest may not have it */
};

struct hot_plan {
	struct hot_command commands[HOT_COMMANDS_MAX];
	u32 ncommands;
};

/** hot_plan_make() - what is on the path of every first command, then those of @first and @second,
 * each once. The lists must outlive the plan. */
void hot_plan_make(struct hot_plan *plan, const struct warm_list *first,
		   const struct warm_list *second);

/** What was recorded: @sets[i] was touched by command @command[i]. */
struct hot_record {
	struct snap_hot_set *sets;
	u32 *command;
	u32 nclones;
};

/**
 * hot_conclude() - one set out of all, by @info->rule; fills @info's threshold, counts and shares.
 * @out: empty but for pmem_gpa; snap_hot_set_free() is due in both cases.
 *
 * Return: 0, -E2BIG or -ENOMEM.
 */
int __must_check hot_conclude(const struct hot_record *record, struct snap_hot_info *info,
			      struct snap_hot_set *out);

/** hot_rule_find() - "union", "half", "intersection"; NULL = the default. Return: enum
 * snap_hot_rule, or -EINVAL. */
int hot_rule_find(const char *name);

/** hot_rule_name() - "unknown" when there is none of that number. */
const char *hot_rule_name(u32 rule);

#endif
