// SPDX-License-Identifier: Apache-2.0
// Command-line options from tables.
#include "vmm/cli/optparse.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "vmm/cli/state.h"
#include "vmm/kvm/layout.h"
#include "vmm/snapshot/mem.h"
#include "vmm/util/util.h"

/** Where the parser stands; one call's worth of state. */
struct cursor {
	const struct optparse_command *command;
	struct optparse_result *result;
	void *dest;
	int argc, index; /* @index: the next argument to look at */
	char **argv;
};

static int fail(struct cursor *cur, const char *fmt, ...) __printf(2, 3);

static int fail(struct cursor *cur, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(cur->result->error, sizeof(cur->result->error), fmt, args);
	va_end(args);
	return -EINVAL;
}

static const struct optparse_spec *find_long(const struct cursor *cur, const char *name, size_t len)
{
	for (size_t i = 0; i < cur->command->nspecs; i++) {
		const struct optparse_spec *spec = &cur->command->specs[i];

		if (strlen(spec->name) == len && !memcmp(spec->name, name, len))
			return spec;
	}
	return NULL;
}

static const struct optparse_spec *find_letter(const struct cursor *cur, char letter)
{
	for (size_t i = 0; i < cur->command->nspecs; i++) {
		if (cur->command->specs[i].letter == letter)
			return &cur->command->specs[i];
	}
	return NULL;
}

static int take_list(struct cursor *cur, const struct optparse_spec *spec)
{
	const char *why = "malformed";
	int first = cur->index;
	int ret;

	while (cur->index < cur->argc && strcmp(cur->argv[cur->index], ";") != 0)
		cur->index++;
	if (cur->index == cur->argc)
		return fail(
			cur,
			"option --%s has no end: put an argument ';' (\\; in a shell) behind it",
			spec->name);
	if (cur->index == first)
		return fail(cur, "option --%s is empty: it needs %s", spec->name, spec->arg);
	ret = spec->parse_list((char *)cur->dest + spec->offset, cur->index - first,
			       cur->argv + first, &why);
	cur->index++;
	if (ret == -EINVAL)
		return fail(cur, "option --%s: %s", spec->name, why);
	return ret;
}

/** @value: what was glued to the option ("--a=b", "-ab"), or NULL. */
static int take_option(struct cursor *cur, const struct optparse_spec *spec, const char *value)
{
	const char *why = "malformed";
	int ret;

	if (spec->parse_list) {
		if (value)
			return fail(cur,
				    "option --%s takes separate arguments up to ';', not =VALUE",
				    spec->name);
		return take_list(cur, spec);
	}
	if (!spec->arg && value)
		return fail(cur, "option --%s takes no value", spec->name);
	if (spec->arg && !value) {
		/* "run t -e -- cmd": what stands before the command is no value. */
		if (cur->index == cur->argc || !strcmp(cur->argv[cur->index], "--"))
			return fail(cur, "option --%s needs a value: --%s %s", spec->name,
				    spec->name, spec->arg);
		value = cur->argv[cur->index++];
	}
	ret = spec->parse((char *)cur->dest + spec->offset, value, &why);
	if (ret == -EINVAL)
		return fail(cur, "option --%s: '%.60s' is not valid: %s", spec->name,
			    value ? value : "", why);
	return ret;
}

/** "it" of -it: flags, and behind them perhaps an option with its value. */
static int take_letters(struct cursor *cur, const char *letters)
{
	for (; *letters; letters++) {
		const struct optparse_spec *spec = find_letter(cur, *letters);
		int ret;

		if (!spec)
			return fail(cur, "unknown option '-%c': see --help", *letters);
		if (spec->arg || spec->parse_list)
			return take_option(cur, spec, letters[1] ? letters + 1 : NULL);
		ret = take_option(cur, spec, NULL);
		if (ret)
			return ret;
	}
	return 0;
}

/** Once the positional arguments are there, what is no option begins the command. */
static bool begins_command(const struct cursor *cur)
{
	const char *arg = cur->argv[cur->index];

	return cur->command->takes_command &&
	       cur->result->npositional == cur->command->positional_max &&
	       (arg[0] != '-' || !arg[1]);
}

static int take_argument(struct cursor *cur)
{
	const struct optparse_spec *spec;
	char *arg = cur->argv[cur->index++];
	char *equals;

	if (arg[0] != '-' || !arg[1]) {
		if (cur->result->npositional == cur->command->positional_max)
			return fail(cur, "unexpected argument '%.60s'", arg);
		cur->result->positional[cur->result->npositional++] = arg;
		return 0;
	}
	if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
		cur->result->help = true;
		return 0;
	}
	if (arg[1] != '-')
		return take_letters(cur, arg + 1);
	equals = strchr(arg, '=');
	spec = find_long(cur, arg + 2, equals ? (size_t)(equals - arg - 2) : strlen(arg + 2));
	if (!spec)
		return fail(cur, "unknown option '%.60s': see --help", arg);
	return take_option(cur, spec, equals ? equals + 1 : NULL);
}

static int check_complete(struct cursor *cur, bool dashes)
{
	const struct optparse_command *command = cur->command;

	if (cur->result->npositional < command->positional_min)
		return fail(cur, "%s is missing: usage: %s", command->positional_name,
			    command->usage);
	if (command->takes_command && (!dashes || cur->index == cur->argc) &&
	    (dashes || !command->command_optional))
		return fail(cur, "the command is missing: usage: %s", command->usage);
	if (!command->takes_command && cur->index < cur->argc)
		return fail(cur, "unexpected argument '%.60s'", cur->argv[cur->index]);
	if (command->takes_command && cur->index < cur->argc && !cur->argv[cur->index][0])
		return fail(cur, "the command is an empty string: give a program");
	cur->result->command = cur->argv + cur->index;
	cur->result->command_argc = cur->argc - cur->index;
	return 0;
}

int optparse(const struct optparse_command *command, void *dest, int argc, char **argv,
	     struct optparse_result *result)
{
	struct cursor cur = {
		.command = command, .result = result, .dest = dest, .argc = argc, .argv = argv};
	bool dashes = false;
	int ret;

	memset(result, 0, sizeof(*result));
	while (cur.index < argc) {
		if (!strcmp(argv[cur.index], "--")) {
			cur.index++;
			dashes = true;
			break;
		}
		if (begins_command(&cur)) {
			dashes = true;
			break;
		}
		ret = take_argument(&cur);
		if (ret || result->help)
			return ret;
	}
	return check_complete(&cur, dashes);
}

static void help_lines(FILE *out, const char *left, const char *text)
{
	bool first = true;

	while (*text) {
		size_t len = strcspn(text, "\n");

		if (first && strlen(left) >= 28)
			fprintf(out, "%s\n", left);
		fprintf(out, "%-28s%.*s\n", first && strlen(left) < 28 ? left : "", (int)len, text);
		first = false;
		text += len + (text[len] == '\n');
	}
}

void optparse_help(const struct optparse_command *command, FILE *out)
{
	char left[96];

	fprintf(out, "Usage: %s\n\n%s\n\nOptions:\n", command->usage, command->summary);
	for (size_t i = 0; i < command->nspecs; i++) {
		const struct optparse_spec *spec = &command->specs[i];
		char letter[8] = "    ";

		if (spec->letter)
			snprintf(letter, sizeof(letter), "-%c, ", spec->letter);
		snprintf(left, sizeof(left), "  %s--%s%s%s", letter, spec->name,
			 spec->arg ? " " : "", spec->arg ? spec->arg : "");
		help_lines(out, left, spec->help);
	}
	help_lines(out, "  -h, --help", "show this text");
	if (command->details)
		fprintf(out, "\n%s\n", command->details);
}

int optparse_flag(void *dest, const char *value, const char **why)
{
	(void)value;
	(void)why;
	*(bool *)dest = true;
	return 0;
}

int optparse_string(void *dest, const char *value, const char **why)
{
	if (!*value) {
		*why = "it must not be empty";
		return -EINVAL;
	}
	*(const char **)dest = value;
	return 0;
}

int optparse_strings(void *dest, const char *value, const char **why)
{
	struct optparse_strings *strings = dest;

	*why = "it must not be empty";
	if (!*value)
		return -EINVAL;
	if (strings->count == OPTPARSE_STRINGS_MAX) {
		*why = "it is given too often";
		return -EINVAL;
	}
	strings->items[strings->count++] = value;
	return 0;
}

int parse_duration(const char *text, u64 *out_ns)
{
	static const struct {
		const char *name;
		u64 ns;
	} units[] = {
		{"", 1000000000ull},   {"ms", 1000000ull},	{"s", 1000000000ull},
		{"m", 60000000000ull}, {"h", 3600000000000ull},
	};
	const u64 year_s = 31536000;
	u64 whole = 0, frac = 0, frac_unit = 1;
	const char *p = text;

	if (!isdigit((unsigned char)*p))
		return -EINVAL;
	for (; isdigit((unsigned char)*p); p++) {
		whole = whole * 10 + (u64)(*p - '0');
		if (whole > year_s * 1000)
			return -EINVAL;
	}
	if (*p == '.') {
		p++;
		if (!isdigit((unsigned char)*p))
			return -EINVAL;
		/* Digits behind the sixth are below a microsecond of a second: read, not used. */
		for (; isdigit((unsigned char)*p); p++) {
			if (frac_unit < 1000000) {
				frac = frac * 10 + (u64)(*p - '0');
				frac_unit *= 10;
			}
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
		u64 limit = year_s * 1000000000ull / units[i].ns;
		u64 ns;

		if (strcmp(p, units[i].name) != 0)
			continue;
		if (whole > limit)
			return -EINVAL;
		/* frac < 10^6 and ns <= 3.6 * 10^12: their product fits in 64 bits. */
		ns = whole * units[i].ns + frac * units[i].ns / frac_unit;
		if (!ns)
			return -EINVAL;
		*out_ns = ns;
		return 0;
	}
	return -EINVAL;
}

int optparse_duration(void *dest, const char *value, const char **why)
{
	*why = "expected a time such as 30, 1.5s, 250ms, 2m or 1h";
	return parse_duration(value, dest);
}

int optparse_name(void *dest, const char *value, const char **why)
{
	if (!state_name_ok(value)) {
		*why = STATE_NAME_RULE;
		return -EINVAL;
	}
	*(const char **)dest = value;
	return 0;
}

int optparse_json(void *dest, const char *value, const char **why)
{
	*why = "expected json";
	*(bool *)dest = true;
	return strcmp(value, "json") != 0 ? -EINVAL : 0;
}

int optparse_hostname(void *dest, const char *value, const char **why)
{
	size_t len = strlen(value);

	*why = "expected letters, digits, '-' and '.', at most 63, no dash or dot at an end";
	if (!len || len > 63 || !isalnum((unsigned char)value[0]) ||
	    !isalnum((unsigned char)value[len - 1]))
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (!isalnum((unsigned char)value[i]) && value[i] != '-' && value[i] != '.')
			return -EINVAL;
		if (value[i] == '.' && value[i + 1] == '.')
			return -EINVAL;
	}
	*(const char **)dest = value;
	return 0;
}

int optparse_check_strategy(const char *name, struct optparse_result *result)
{
	const struct snap_mem_ops *const *ops;
	const size_t room = sizeof(result->error);
	size_t used;

	if (snap_mem_find(name))
		return 0;
	used = (size_t)snprintf(
		result->error, room,
		"option --strategy: '%.60s' is not a restore strategy; there are:", name);
	for (ops = snap_mem_list(); *ops && used < room; ops++)
		used += (size_t)snprintf(result->error + used, room - used, " %s", (*ops)->name);
	return -EINVAL;
}

int optparse_vcpus(void *dest, const char *value, const char **why)
{
	u64 count;

	if (parse_u64(value, 1, VM_VCPUS_MAX, &count)) {
		*why = "expected a number from 1 to 8";
		return -EINVAL;
	}
	*(u32 *)dest = (u32)count;
	return 0;
}

int optparse_memory(void *dest, const char *value, const char **why)
{
	u64 bytes;

	if (parse_size(value, &bytes) || bytes < VM_RAM_MIN_BYTES || bytes > VM_RAM_MAX_BYTES ||
	    bytes % HUGE_SIZE_BYTES) {
		*why = "expected a size from 128M to 64G, a multiple of 2M";
		return -EINVAL;
	}
	*(u64 *)dest = bytes;
	return 0;
}
