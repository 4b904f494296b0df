// SPDX-License-Identifier: Apache-2.0
// The hot set's commands, and from many recorded sets to one.
//
// Each command runs several times, each time in a fresh clone. What a command touches by chance
// differs from one clone to the next; what it needs does not. And what one command needs may be
// dead weight for another: a page made ready for nothing costs time at every start, a written one
// also memory. So the rule asks in how many of the clones a page was touched. Which of the rules
// is the default was measured: docs/restore.md.
//
// Rule "half" alone would leave out a few pages of each command, those of its own program: with a
// cold page cache every one of them is a wait for the disk, and its read-around brings thirty more.
// So a command that needs little besides what half of the clones needed gets all of it.
#include "vmm/cli/hot_plan.h"

#include <errno.h>
#include <stdlib.h>
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

/** A command's own pages are few if they cost at most this share of the set. */
#define SMALL_SHARE 16

/** command_set() - what at least half of the clones that ran @command touched. */
static int command_set(const struct hot_record *record, u32 command, struct snap_hot_set *out)
{
	struct snap_hot_set *own = calloc(record->nclones, sizeof(*own));
	u32 n = 0;
	int ret;

	if (!own)
		return -ENOMEM;
	for (u32 i = 0; i < record->nclones; i++) {
		if (record->command[i] == command)
			own[n++] = record->sets[i];
	}
	ret = n ? snap_hot_merge(own, n, snap_hot_threshold(SNAP_HOT_HALF, n), out) : 0;
	free(own);
	return ret;
}

/** What a set costs: a page to make ready, and a written one also its memory. */
static u64 set_cost(const struct snap_hot_set *set)
{
	return snap_hot_set_pages(set, SNAP_HOT_READ) + 2 * snap_hot_set_pages(set, SNAP_HOT_WRITE);
}

/** add_small() - @own into @set, if @set costs at most @limit more then. */
static int add_small(struct snap_hot_set *set, const struct snap_hot_set *own, u64 limit)
{
	struct snap_hot_set pair[] = {*set, *own}, both = {.pmem_gpa = set->pmem_gpa};
	int ret;

	ret = snap_hot_merge(pair, ARRAY_SIZE(pair), 1, &both);
	if (!ret && set_cost(&both) <= set_cost(set) + limit) {
		snap_hot_set_free(set);
		*set = both;
		return 0;
	}
	snap_hot_set_free(&both);
	return ret;
}

/** add_small_commands() - see above. The limit is that of the set as it came. */
static int add_small_commands(const struct hot_record *record, struct snap_hot_set *set)
{
	const u64 limit = set_cost(set) / SMALL_SHARE;
	int ret = 0;

	for (u32 command = 0; command < HOT_COMMANDS_MAX && !ret; command++) {
		struct snap_hot_set own = {.pmem_gpa = set->pmem_gpa};

		ret = command_set(record, command, &own);
		if (!ret && own.nruns)
			ret = add_small(set, &own, limit);
		snap_hot_set_free(&own);
	}
	return ret;
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
	if (!ret && info->rule == SNAP_HOT_HALF)
		ret = add_small_commands(record, out);
	return ret;
}
