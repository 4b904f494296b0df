// SPDX-License-Identifier: Apache-2.0
// Recipes of templates.
#include "vmm/cli/recipe.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/cli.h"
#include "vmm/kvm/layout.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** Where a reason goes. */
struct why {
	char *text;
	size_t len_bytes;
};

static int refuse(struct why *why, const char *fmt, ...) __printf(2, 3);

static int refuse(struct why *why, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(why->text, why->len_bytes, fmt, args);
	va_end(args);
	return -EINVAL;
}

static int parse_integer(const json_t *value, const char *field, u64 min, u64 max, u64 *out,
			 struct why *why)
{
	json_int_t n = json_integer_value(value);

	if (!json_is_integer(value))
		return refuse(why, "%s: expected an integer", field);
	if (n < 0 || (u64)n < min || (u64)n > max)
		return refuse(why, "%s: %lld is out of range, expected %llu to %llu", field,
			      (long long)n, (unsigned long long)min, (unsigned long long)max);
	*out = (u64)n;
	return 0;
}

static int parse_string(const json_t *value, const char *field, char **out, struct why *why)
{
	if (!json_is_string(value))
		return refuse(why, "%s: expected a string", field);
	free(*out);
	*out = strdup(json_string_value(value));
	return *out ? 0 : -ENOMEM;
}

/*
 * The kernel's command line ends up in one line of a boot parameter: a control character, or a word
 * of thaw's own with another value behind it, would make a guest that does not come up, with no
 * message that says why.
 */
static int check_cmdline(const char *text, struct why *why)
{
	for (const char *p = text; *p; p++) {
		if (*p < 0x20 || *p > 0x7e)
			return refuse(why, "cmdline_extra: byte %#x is not printable ASCII",
				      (unsigned int)(unsigned char)*p);
	}
	if (strlen(text) > 1024)
		return refuse(why, "cmdline_extra: longer than 1024 bytes");
	return 0;
}

int warm_list_add(struct warm_list *list, int argc, char *const *argv)
{
	char ***grown, **copy;

	if (list->count == RECIPE_WARM_MAX || argc < 1 || argc > RECIPE_WARM_ARGS_MAX ||
	    !argv[0][0])
		return -EINVAL;
	grown = reallocarray(list->commands, list->count + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	list->commands = grown;
	copy = calloc((size_t)argc + 1, sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	list->commands[list->count++] = copy;
	for (int i = 0; i < argc; i++) {
		copy[i] = strdup(argv[i]);
		if (!copy[i])
			return -ENOMEM;
	}
	return 0;
}

void warm_list_free(struct warm_list *list)
{
	for (size_t i = 0; i < list->count; i++) {
		for (char **arg = list->commands[i]; *arg; arg++)
			free(*arg);
		free(list->commands[i]);
	}
	free(list->commands);
	*list = (struct warm_list){0};
}

static int parse_warm_command(const json_t *command, size_t index, struct warm_list *list,
			      struct why *why)
{
	size_t argc = json_array_size(command);
	char **argv;
	int ret = 0;

	if (!json_is_array(command) || argc < 1 || argc > RECIPE_WARM_ARGS_MAX)
		return refuse(why, "warm[%zu]: expected an array of 1 to %d strings", index,
			      RECIPE_WARM_ARGS_MAX);
	argv = calloc(argc, sizeof(*argv));
	if (!argv)
		return -ENOMEM;
	for (size_t i = 0; !ret && i < argc; i++) {
		const json_t *arg = json_array_get(command, i);

		if (!json_is_string(arg))
			ret = refuse(why, "warm[%zu][%zu]: expected a string", index, i);
		else if (i == 0 && !json_string_length(arg))
			ret = refuse(why, "warm[%zu][0]: the program is an empty string", index);
		else
			argv[i] = (char *)json_string_value(arg);
	}
	if (!ret)
		ret = warm_list_add(list, (int)argc, argv);
	free(argv);
	return ret;
}

static int parse_warm(const json_t *value, struct recipe *recipe, struct why *why)
{
	size_t count = json_array_size(value);
	int ret = 0;

	if (!json_is_array(value) || count > RECIPE_WARM_MAX)
		return refuse(why, "warm: expected an array of at most %d commands",
			      RECIPE_WARM_MAX);
	for (size_t i = 0; !ret && i < count; i++)
		ret = parse_warm_command(json_array_get(value, i), i, &recipe->warm, why);
	return ret;
}

static int parse_field(const char *field, const json_t *value, struct recipe *recipe,
		       struct why *why)
{
	u64 number = 0;
	int ret;

	if (!strcmp(field, "image")) {
		ret = parse_string(value, field, &recipe->image, why);
		if (!ret && !recipe->image[0])
			ret = refuse(why, "image: empty");
		return ret;
	}
	if (!strcmp(field, "cmdline_extra")) {
		ret = parse_string(value, field, &recipe->cmdline_extra, why);
		return ret ? ret : check_cmdline(recipe->cmdline_extra, why);
	}
	if (!strcmp(field, "vcpus")) {
		ret = parse_integer(value, field, 1, VM_VCPUS_MAX, &number, why);
		recipe->vcpus = (u32)number;
		return ret;
	}
	if (!strcmp(field, "memory_mib")) {
		ret = parse_integer(value, field, VM_RAM_MIN_BYTES / MIB, VM_RAM_MAX_BYTES / MIB,
				    &number, why);
		if (!ret && number % (HUGE_SIZE_BYTES / MIB))
			ret = refuse(why, "memory_mib: not a multiple of 2");
		recipe->memory_bytes = number * MIB;
		return ret;
	}
	if (!strcmp(field, "scratch_mib")) {
		ret = parse_integer(value, field, 0, RECIPE_SCRATCH_MAX_MIB, &number, why);
		if (!ret && number && number < 16)
			ret = refuse(why, "scratch_mib: expected 0 (no disk) or at least 16");
		recipe->scratch_bytes = number * MIB;
		return ret;
	}
	if (!strcmp(field, "warm"))
		return parse_warm(value, recipe, why);
	/* For people, since JSON has no comments. */
	if (!strcmp(field, "comment"))
		return json_is_string(value) ? 0 : refuse(why, "comment: expected a string");
	return refuse(why, "%s: unknown field", field);
}

static int set_defaults(struct recipe *recipe)
{
	*recipe = (struct recipe){
		.image = strdup("debian"),
		.vcpus = 1,
		.memory_bytes = 256 * MIB,
		.scratch_bytes = 4 * GIB,
		.cmdline_extra = strdup(""),
	};
	return recipe->image && recipe->cmdline_extra ? 0 : -ENOMEM;
}

int recipe_parse(const char *text, size_t len_bytes, struct recipe *out, char *why_text,
		 size_t why_bytes)
{
	struct why why = {why_text, why_bytes};
	json_error_t error;
	const char *field;
	json_t *root, *value;
	int ret;

	ret = set_defaults(out);
	/* NUL inside a string would cut an argument short without a word: jansson refuses it unless
	 * asked. */
	root = ret ? NULL : json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, &error);
	if (!ret && !root)
		ret = refuse(&why, "line %d: %s", error.line, error.text);
	if (!ret && !json_is_object(root))
		ret = refuse(&why, "expected an object");
	if (!ret) {
		json_object_foreach(root, field, value)
		{
			ret = parse_field(field, value, out, &why);
			if (ret)
				break;
		}
	}
	json_decref(root);
	if (ret)
		recipe_free(out);
	return ret;
}

int recipe_read(const char *path, struct recipe *out)
{
	size_t len_bytes;
	char why[256];
	char *text;
	int ret;

	ret = file_read_all(AT_FDCWD, path, RECIPE_MAX_BYTES, &text, &len_bytes);
	if (ret) {
		log_err("%s: can't read the recipe: %s", path, strerror(-ret));
		return ret;
	}
	ret = recipe_parse(text, len_bytes, out, why, sizeof(why));
	free(text);
	if (ret)
		log_err("%s: %s", path, ret == -EINVAL ? why : strerror(-ret));
	return ret;
}

void recipe_free(struct recipe *recipe)
{
	free(recipe->image);
	free(recipe->cmdline_extra);
	warm_list_free(&recipe->warm);
	*recipe = (struct recipe){0};
}

static int find_in(const char *folder, const char *name, char *out)
{
	const char *const candidates[] = {name, "debian"};

	for (size_t i = 0; i < ARRAY_SIZE(candidates); i++) {
		int n = snprintf(out, PATH_MAX, "%s/%s", folder, candidates[i]);

		if (n < 0 || n >= PATH_MAX)
			return -ENAMETOOLONG;
		if (access(out, R_OK) == 0)
			return 0;
	}
	return -ENOENT;
}

int recipe_find(const char *name, char *out)
{
	static const char *const places[] = {"../../snapshots/recipes", "../share/thaw/recipes"};
	const char *folder = getenv("THAW_RECIPES");
	char found[PATH_MAX];
	int ret;

	if (folder && *folder) {
		ret = find_in(folder, name, out);
	} else {
		ret = cli_find_near_exe(places, ARRAY_SIZE(places), found);
		if (!ret)
			ret = find_in(found, name, out);
	}
	if (ret)
		log_err("no recipe '%s' or 'debian' in %s: give one with --recipe FILE", name,
			folder && *folder ? folder : "snapshots/recipes or share/thaw/recipes");
	return ret;
}
