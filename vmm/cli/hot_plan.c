// SPDX-License-Identifier: Apache-2.0
// The hot set's commands, and from many recorded sets to one.
//
// Each command runs several times, each time in a fresh clone. What a command touches by chance
// differs from one clone to the next; what it needs does not. And what one command needs may be
// dead weight for another: a page made ready for nothing costs time at every start, a written one
// also memory. So the rule asks in how many of the clones a page was touched. Which of the rules
// is the default was measured: docs/restore.md.
#include "vmm/cli/hot_plan.h"

#include <errno.h>
#include <string.h>

#include "vmm/util/log.h"

static const char *const builtin_true[] = {"/bin/true", NULL};
static const char *const builtin_sh[] = {"/bin/sh", "-c", ":", NULL};
static const char *const builtin_python[] = {"python3", "-c", "0", NULL};

static const struct {
	const char *name;
	enum snap_hot_rule rule;
} rules[] = {
	{"half", SNAP_HOT_HALF},
	{"union", SNAP_HOT_UNION},
	{"intersection", SNAP_HOT_INTERSECTION},
};

int hot_rule_find(const char *name)
{
	if (!name)
		return rules[0].rule;
	for (size_t i = 0; i < ARRAY_SIZE(rules); i++) {
		if (!strcmp(rules[i].name, name))
			return rules[i].rule;
	}
	return -EINVAL;
}

const char *hot_rule_name(u32 rule)
{
	for (size_t i = 0; i < ARRAY_SIZE(rules); i++) {
		if (rules[i].rule == rule)
			return rules[i].name;
	}
	return "unknown";
}

static bool same_words(const char *const *a, const char *const *b)
{
	for (; *a && *b; a++, b++) {
		if (strcmp(*a, *b) != 0)
			return false;
	}
	return *a == *b;
}

static void plan_add(struct hot_plan *plan, const char *const *argv, bool optional)
{
	for (u32 i = 0; i < plan->ncommands; i++) {
		if (!same_words(plan->commands[i].argv, argv))
			continue;
		/* The recipe ran it, so it is there. */
		plan->commands[i].optional &= optional;
		return;
	}
	BUG_ON(plan->ncommands == HOT_COMMANDS_MAX);
	plan->commands[plan->ncommands++] = (struct hot_command){argv, optional};
}

void hot_plan_make(struct hot_plan *plan, const struct warm_list *first,
		   const struct warm_list *second)
{
	const struct warm_list *lists[] = {first, second};

	plan->ncommands = 0;
	plan_add(plan, builtin_true, true);
	plan_add(plan, builtin_sh, true);
	plan_add(plan, builtin_python, true);
	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		for (size_t k = 0; k < lists[i]->count; k++)
			plan_add(plan, (const char *const *)lists[i]->commands[k], false);
	}
}

static u32 count_commands(const struct hot_record *record)
{
	bool seen[HOT_COMMANDS_MAX] = {false};
	u32 count = 0;

	for (u32 i = 0; i < record->nclones; i++) {
		BUG_ON(record->command[i] >= HOT_COMMANDS_MAX);
		count += !seen[record->command[i]];
		seen[record->command[i]] = true;
	}
	return count;
}

int hot_conclude(const struct hot_record *record, struct snap_hot_info *info,
		 struct snap_hot_set *out)
{
	int ret;

	info->nclones = record->nclones;
	info->ncommands = count_commands(record);
	info->threshold = snap_hot_threshold(info->rule, record->nclones);
	ret = snap_hot_common(record->sets, record->nclones, 1, &info->union_pages);
	if (!ret)
		ret = snap_hot_common(record->sets, record->nclones, record->nclones,
				      &info->intersection_pages);
	if (!ret)
		ret = snap_hot_stability(record->sets, record->command, record->nclones,
					 &info->stability_permille, &info->similarity_permille);
	if (!ret)
		ret = snap_hot_merge(record->sets, record->nclones, info->threshold, out);
	return ret;
}
