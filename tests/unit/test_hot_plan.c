// SPDX-License-Identifier: Apache-2.0
// Which commands are recorded, the names of rules and recorders, and what a recording's figures
// are.
#include "vmm/cli/hot_plan.h"

#include <errno.h>

#include "tests/unit/test.h"
#include "vmm/cli/hot_recorder.h"

static void add(struct warm_list *list, const char *a, const char *b)
{
	char *argv[] = {(char *)a, (char *)b, NULL};

	CHECK_EQ(warm_list_add(list, b ? 2 : 1, argv), 0);
}

static void test_commands(void)
{
	struct warm_list recipe = {0}, options = {0}, none = {0};
	static struct hot_plan plan;

	hot_plan_make(&plan, &none, &none);
	CHECK_EQ(plan.ncommands, 3);
	CHECK_STR(plan.commands[0].argv[0], "/bin/true");
	CHECK_STR(plan.commands[1].argv[1], "-c");
	CHECK_STR(plan.commands[2].argv[0], "python3");
	for (u32 i = 0; i < 3; i++)
		CHECK(plan.commands[i].optional);

	add(&recipe, "/bin/true", NULL); /* is there already, and known to exist now */
	add(&recipe, "/bin/true", "x");
	add(&options, "/bin/true", "x");
	add(&options, "/srv/load", NULL);
	hot_plan_make(&plan, &recipe, &options);
	CHECK_EQ(plan.ncommands, 5);
	CHECK(!plan.commands[0].optional && plan.commands[1].optional);
	CHECK_STR(plan.commands[3].argv[1], "x");
	CHECK_STR(plan.commands[4].argv[0], "/srv/load");
	CHECK(!plan.commands[4].optional);
	warm_list_free(&recipe);
	warm_list_free(&options);
}

static void test_most_commands(void)
{
	struct warm_list lists[2] = {0};
	static struct hot_plan plan;
	char word[16];

	for (int i = 0; i < 2 * RECIPE_WARM_MAX; i++) {
		snprintf(word, sizeof(word), "cmd%d", i);
		add(&lists[i / RECIPE_WARM_MAX], word, NULL);
	}
	hot_plan_make(&plan, &lists[0], &lists[1]);
	CHECK_EQ(plan.ncommands, HOT_COMMANDS_MAX);
	warm_list_free(&lists[0]);
	warm_list_free(&lists[1]);
}

static void test_names(void)
{
	CHECK_EQ(hot_rule_find("union"), SNAP_HOT_UNION);
	CHECK_EQ(hot_rule_find("half"), SNAP_HOT_HALF);
	CHECK_EQ(hot_rule_find("intersection"), SNAP_HOT_INTERSECTION);
	CHECK_EQ(hot_rule_find("Half"), -EINVAL);
	CHECK_EQ(hot_rule_find(""), -EINVAL);
	CHECK(hot_rule_find(NULL) > 0);
	CHECK_STR(hot_rule_name((u32)hot_rule_find(NULL)), hot_rule_name(SNAP_HOT_HALF));
	CHECK_STR(hot_rule_name(99), "unknown");
	CHECK(hot_recorder_find(NULL) == &hot_recorder_pagemap);
	CHECK(hot_recorder_find("bpf") == &hot_recorder_bpf);
	CHECK(!hot_recorder_find("gdb"));
	CHECK_STR(hot_recorder_name(SNAP_HOT_BPF), "bpf");
	CHECK_STR(hot_recorder_name(0), "unknown");
	for (size_t i = 0; hot_recorder_list()[i]; i++)
		CHECK(hot_recorder_find(hot_recorder_list()[i]->name) == hot_recorder_list()[i]);
}

static void pages(struct snap_hot_set *set, u64 first, u64 count, enum snap_hot_kind kind)
{
	CHECK_EQ(snap_hot_set_add(set, first * PAGE_SIZE_BYTES, count, kind), 0);
}

/** Two commands, two clones each: 100 pages common to all, 100 of each command, 10 by chance. */
static void test_conclude(void)
{
	struct snap_hot_set sets[4] = {0}, out = {0};
	u32 command[] = {0, 2, 0, 2};
	struct hot_record record = {sets, command, 4};
	struct snap_hot_info info = {.rule = SNAP_HOT_HALF};

	for (u32 i = 0; i < 4; i++) {
		pages(&sets[i], 0, 100, SNAP_HOT_READ);
		pages(&sets[i], command[i] ? 200 : 300, 100, SNAP_HOT_WRITE);
		pages(&sets[i], 1000 + 20 * i, 10, SNAP_HOT_WRITE);
	}
	CHECK_EQ(hot_conclude(&record, &info, &out), 0);
	CHECK(info.nclones == 4 && info.ncommands == 2 && info.threshold == 2);
	CHECK(info.union_pages == 340 && info.intersection_pages == 100);
	CHECK_EQ(info.stability_permille, 200 * 1000 / 220);
	CHECK_EQ(info.similarity_permille, 100 * 1000 / 320);
	/* In half of the clones: what every clone of one command needs, and nothing by chance. */
	CHECK_EQ(snap_hot_set_pages(&out, SNAP_HOT_READ), 100);
	CHECK_EQ(snap_hot_set_pages(&out, SNAP_HOT_WRITE), 200);
	snap_hot_set_free(&out);
	info.rule = SNAP_HOT_UNION;
	CHECK_EQ(hot_conclude(&record, &info, &out), 0);
	CHECK_EQ(info.threshold, 1);
	CHECK_EQ(snap_hot_set_pages(&out, SNAP_HOT_WRITE), 240);
	snap_hot_set_free(&out);
	info.rule = SNAP_HOT_INTERSECTION;
	CHECK_EQ(hot_conclude(&record, &info, &out), 0);
	CHECK_EQ(info.threshold, 4);
	CHECK_EQ(snap_hot_set_pages(&out, SNAP_HOT_WRITE), 0);
	snap_hot_set_free(&out);
	for (u32 i = 0; i < 4; i++)
		snap_hot_set_free(&sets[i]);
}

/** Rule half: a command gets the little that it needs besides; one that needs much does not. */
static void test_small_commands(void)
{
	struct snap_hot_set sets[5] = {0}, out = {0};
	u32 command[] = {0, 1, 1, 1, 2};
	struct hot_record record = {sets, command, 5};
	struct snap_hot_info info = {.rule = SNAP_HOT_HALF};

	for (u32 i = 0; i < 5; i++) {
		pages(&sets[i], 0, 5, command[i] == 0 ? SNAP_HOT_WRITE : SNAP_HOT_READ);
		pages(&sets[i], 5, 315, SNAP_HOT_READ);
		if (command[i] == 0)
			pages(&sets[i], 400, 10, SNAP_HOT_READ);
		if (command[i] == 2)
			pages(&sets[i], 500, 21, SNAP_HOT_READ);
		/* Touched by chance, in one of three clones of its command. */
		if (i == 1)
			pages(&sets[i], 600, 1, SNAP_HOT_READ);
	}
	CHECK_EQ(hot_conclude(&record, &info, &out), 0);
	/* A sixteenth of 320 are 20: ten pages and five that are written too; 21 are more. */
	CHECK_EQ(snap_hot_set_pages(&out, SNAP_HOT_WRITE), 5);
	CHECK_EQ(snap_hot_set_pages(&out, SNAP_HOT_READ), 325);
	CHECK_EQ(out.runs[2].gpa, 400 * PAGE_SIZE_BYTES);
	snap_hot_set_free(&out);
	info.rule = SNAP_HOT_INTERSECTION;
	CHECK_EQ(hot_conclude(&record, &info, &out), 0);
	CHECK_EQ(snap_hot_set_pages(&out, SNAP_HOT_READ), 320);
	CHECK_EQ(snap_hot_set_pages(&out, SNAP_HOT_WRITE), 0);
	snap_hot_set_free(&out);
	for (u32 i = 0; i < 5; i++)
		snap_hot_set_free(&sets[i]);
}

TEST_MAIN({"commands", test_commands}, {"most commands", test_most_commands}, {"names", test_names},
	  {"conclude", test_conclude}, {"small commands", test_small_commands})
