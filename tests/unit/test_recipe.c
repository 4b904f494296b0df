// SPDX-License-Identifier: Apache-2.0
// Recipes: what is taken, what is refused, and that a refusal names the field.
#include <errno.h>

#include "test.h"
#include "vmm/cli/recipe.h"

static int parse(const char *text, struct recipe *recipe, char *why, size_t why_bytes)
{
	memset(why, 0, why_bytes);
	return recipe_parse(text, strlen(text), recipe, why, why_bytes);
}

/** @text must be refused, with a reason that begins with @field. */
static void refused(const char *text, const char *field)
{
	struct recipe recipe;
	char why[256];

	CHECK_EQ(parse(text, &recipe, why, sizeof(why)), -EINVAL);
	if (strncmp(why, field, strlen(field)) != 0) {
		fprintf(stderr, "%s: reason is \"%s\", expected it to begin with \"%s\"\n", text,
			why, field);
		exit(1);
	}
	/* What is left is empty: a second free must be harmless. */
	CHECK(!recipe.image && !recipe.cmdline_extra && !recipe.warm.commands);
	recipe_free(&recipe);
}

static void test_defaults(void)
{
	struct recipe recipe;
	char why[256];

	CHECK_EQ(parse("{}", &recipe, why, sizeof(why)), 0);
	CHECK_STR(recipe.image, "debian");
	CHECK_EQ(recipe.vcpus, 1);
	CHECK_EQ(recipe.memory_bytes, 256 * MIB);
	CHECK_EQ(recipe.scratch_bytes, 4 * GIB);
	CHECK_STR(recipe.cmdline_extra, "");
	CHECK_EQ(recipe.warm.count, 0);
	recipe_free(&recipe);
}

static void test_full(void)
{
	static const char text[] =
		"{\"image\": \"x\", \"vcpus\": 8, \"memory_mib\": 65536, \"scratch_mib\": 0,"
		" \"comment\": \"c\", \"cmdline_extra\": \"a=b c\", \"warm\": [[\"/bin/true\"],"
		" [\"python3\", \"-c\", \"0\"], [\"echo\", \"\", \"two words\"]]}";
	struct recipe recipe;
	char why[256];

	CHECK_EQ(parse(text, &recipe, why, sizeof(why)), 0);
	CHECK_STR(recipe.image, "x");
	CHECK_EQ(recipe.vcpus, 8);
	CHECK_EQ(recipe.memory_bytes, 64 * GIB);
	CHECK_EQ(recipe.scratch_bytes, 0);
	CHECK_STR(recipe.cmdline_extra, "a=b c");
	CHECK_EQ(recipe.warm.count, 3);
	CHECK_STR(recipe.warm.commands[0][0], "/bin/true");
	CHECK(!recipe.warm.commands[0][1]);
	CHECK_STR(recipe.warm.commands[1][2], "0");
	CHECK(!recipe.warm.commands[1][3]);
	CHECK_STR(recipe.warm.commands[2][1], "");
	CHECK_STR(recipe.warm.commands[2][2], "two words");
	recipe_free(&recipe);
}

static void test_refused(void)
{
	refused("", "line 1");
	refused("[]", "expected an object");
	refused("{} {}", "line 1");
	refused("{\"vcpus\": 1, \"vcpus\": 2}", "line 1");
	refused("{\"memory\": 256}", "memory: unknown field");
	refused("{\"vcpus\": 0}", "vcpus: 0 is out of range");
	refused("{\"vcpus\": 9}", "vcpus: 9 is out of range");
	refused("{\"vcpus\": -1}", "vcpus: -1 is out of range");
	refused("{\"vcpus\": 1.0}", "vcpus: expected an integer");
	refused("{\"vcpus\": \"1\"}", "vcpus: expected an integer");
	refused("{\"memory_mib\": 127}", "memory_mib: 127");
	refused("{\"memory_mib\": 126}", "memory_mib: 126");
	refused("{\"memory_mib\": 129}", "memory_mib: not a multiple");
	refused("{\"memory_mib\": 65538}", "memory_mib: 65538");
	refused("{\"scratch_mib\": 15}", "scratch_mib: expected 0");
	refused("{\"scratch_mib\": 1048577}", "scratch_mib: 1048577");
	refused("{\"scratch_mib\": null}", "scratch_mib: expected an integer");
	refused("{\"image\": \"\"}", "image: empty");
	refused("{\"comment\": 1}", "comment: expected a string");
	refused("{\"image\": 1}", "image: expected a string");
	refused("{\"image\": \"a\\u0000b\"}", "line 1");
	refused("{\"cmdline_extra\": \"a\\nb\"}", "cmdline_extra: byte 0xa");
	refused("{\"cmdline_extra\": \"\\u00e9\"}", "cmdline_extra: byte 0xc3");
	refused("{\"warm\": {}}", "warm: expected an array");
	refused("{\"warm\": [\"true\"]}", "warm[0]: expected an array");
	refused("{\"warm\": [[\"a\"], []]}", "warm[1]: expected an array of 1");
	refused("{\"warm\": [[\"a\", 1]]}", "warm[0][1]: expected a string");
	refused("{\"warm\": [[\"\"]]}", "warm[0][0]: the program is an empty string");
}

static void test_bounds(void)
{
	size_t room = 64 + 1025 * 4;
	char *text = malloc(room), why[256];
	struct recipe recipe;
	size_t used;

	CHECK(text);
	/* One word too many. */
	used = (size_t)snprintf(text, room, "{\"warm\": [[\"a\"");
	for (int i = 0; i < RECIPE_WARM_ARGS_MAX; i++)
		used += (size_t)snprintf(text + used, room - used, ",\"\"");
	snprintf(text + used, room - used, "]]}");
	refused(text, "warm[0]: expected an array of 1 to 1024");
	/* One command too many, and exactly as many as go. */
	for (int count = RECIPE_WARM_MAX; count <= RECIPE_WARM_MAX + 1; count++) {
		used = (size_t)snprintf(text, room, "{\"warm\": [[\"a\"]");
		for (int i = 1; i < count; i++)
			used += (size_t)snprintf(text + used, room - used, ",[\"a\"]");
		snprintf(text + used, room - used, "]}");
		if (count > RECIPE_WARM_MAX) {
			refused(text, "warm: expected an array of at most 64");
			continue;
		}
		CHECK_EQ(parse(text, &recipe, why, sizeof(why)), 0);
		CHECK_EQ(recipe.warm.count, RECIPE_WARM_MAX);
		recipe_free(&recipe);
	}
	free(text);
}

/** A reason longer than its buffer is cut, not written behind it. */
static void test_why_is_cut(void)
{
	static const char text[] = "{\"a_field_of_quite_some_length\": 1}";
	struct recipe recipe;
	char why[16];

	why[15] = 'x';
	CHECK_EQ(recipe_parse(text, strlen(text), &recipe, why, 15), -EINVAL);
	CHECK_STR(why, "a_field_of_qui");
	CHECK_EQ(why[15], 'x');
}

/** Cut anywhere, a recipe is refused: there is no prefix of it that would be taken for whole. */
static void test_truncated(void)
{
	static const char text[] =
		"{\"image\": \"debian\", \"vcpus\": 2, \"warm\": [[\"/bin/true\"]]}";
	struct recipe recipe;
	char why[256];

	for (size_t len = 0; len < strlen(text); len++)
		CHECK_EQ(recipe_parse(text, len, &recipe, why, sizeof(why)), -EINVAL);
	CHECK_EQ(recipe_parse(text, strlen(text), &recipe, why, sizeof(why)), 0);
	recipe_free(&recipe);
}

TEST_MAIN({"defaults", test_defaults}, {"full", test_full}, {"refused", test_refused},
	  {"bounds", test_bounds}, {"why is cut", test_why_is_cut}, {"truncated", test_truncated})
