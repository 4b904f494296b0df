// SPDX-License-Identifier: Apache-2.0
// `thaw completion`: what bash, zsh and fish need to complete a command line, made of the tables
// that parse it.
//
// What an option's value can be is told by the name that help gives it ("on|off", "json", "FILE"),
// but for a few whose values stand elsewhere. Names of sandboxes come from `thaw ps -aq`, those of
// templates from their folder.
#include <stdio.h>
#include <string.h>

#include "vmm/cli/commands.h"
#include "vmm/snapshot/mem.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

const struct optparse_command completion_command = {
	.usage = "thaw completion bash|zsh|fish",
	.summary = "Print what a shell needs to complete thaw's command lines.",
	.details = "bash: eval \"$(thaw completion bash)\"; zsh: thaw completion zsh > a folder of "
		   "$fpath/_thaw;\nfish: thaw completion fish | source",
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "bash, zsh or fish",
	.completes = "shell",
};

/** What a value is; the words of it, or of a kind, into @words. */
static const char *value_kind(const struct optparse_spec *spec, char *words, size_t room)
{
	static const char *const known[][2] = {
		{"populate", "off read write both"},
		{"recorder", "pagemap bpf"},
		{"hot-rule", "half union intersection"},
		{"filter", "label= state=running state=stopped state=paused"},
		{"signal", "TERM INT HUP KILL QUIT USR1 USR2"},
	};
	size_t used = 0;

	words[0] = '\0';
	if (!spec->arg)
		return "flag";
	for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
		if (!strcmp(spec->name, known[i][0]) && spec->arg[0] >= 'A') {
			snprintf(words, room, "%s", known[i][1]);
			return "words";
		}
	}
	if (!strcmp(spec->name, "size") && !strcmp(spec->arg, "SIZE")) {
		snprintf(words, room, "lite basic standard-1 standard-2 standard-3 standard-4");
		return "words";
	}
	if (!strcmp(spec->name, "strategy")) {
		for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops; ops++)
			used += (size_t)snprintf(words + used, room - used, "%s%s", used ? " " : "",
						 (*ops)->name);
		return "words";
	}
	if (strchr(spec->arg, '|') || !strcmp(spec->arg, "json")) {
		snprintf(words, room, "%s", spec->arg);
		for (char *at = words; *at; at++)
			*at = *at == '|' ? ' ' : *at;
		return "words";
	}
	if (!strcmp(spec->name, "env"))
		return "variable";
	if (!strcmp(spec->name, "from"))
		return "template";
	if (!strcmp(spec->name, "sandbox"))
		return "sandbox";
	return strcmp(spec->arg, "FILE") == 0 ? "file" : "other";
}

/** Each command that has options, groups' members too. @path: "template build". */
static void each_command(void (*fn)(const char *path, const struct cli_command *command))
{
	char path[64];

	for (size_t i = 0; i < THAW_COMMANDS; i++) {
		const struct cli_command *command = &thaw_commands[i];

		for (size_t j = 0; j < command->nmembers; j++) {
			snprintf(path, sizeof(path), "%s %s", command->name,
				 command->members[j].name);
			fn(path, &command->members[j]);
		}
		if (command->options)
			fn(command->name, command);
	}
}

static void print_names(const struct cli_command *table, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (table[i].name[0] != '-')
			printf("%s ", table[i].name);
	}
}

/** The first line of a help text. */
static void print_first_line(const char *text, const char *escape)
{
	for (; *text && *text != '\n'; text++) {
		if (strchr(escape, *text))
			printf("\\");
		printf("%c", *text);
	}
}

static void bash_values(const char *path, const struct cli_command *command)
{
	const struct optparse_command *options = command->options;
	char words[256];

	for (size_t i = 0; i < options->nspecs; i++) {
		const struct optparse_spec *spec = &options->specs[i];
		const char *kind = value_kind(spec, words, sizeof(words));

		if (!strcmp(kind, "flag"))
			continue;
		printf("\t'%s:--%s'", path, spec->name);
		if (spec->letter)
			printf(" | '%s:-%c'", path, spec->letter);
		if (!strcmp(kind, "words"))
			printf(") _thaw_fill '%s' ;;\n", words);
		else if (!strcmp(kind, "other"))
			printf(") ;;\n");
		else
			printf(") _thaw_kind %s ;;\n", kind);
	}
}

static void bash_arguments(const char *path, const struct cli_command *command)
{
	const struct optparse_command *options = command->options;

	printf("\t'%s')\n\t\tif [[ $cur == -* ]]; then\n\t\t\t_thaw_fill '", path);
	for (size_t i = 0; i < options->nspecs; i++)
		printf("--%s ", options->specs[i].name);
	printf("--help%s'\n", options->takes_command ? " --" : "");
	if (options->completes)
		printf("\t\telse\n\t\t\t_thaw_kind %s\n", options->completes);
	printf("\t\tfi\n\t\t;;\n");
}

static const char bash_head[] =
	"# SPDX-License-Identifier: Apache-2.0\n"
	"# shellcheck shell=bash\n"
	"# Completion of thaw for bash. Made by 'thaw completion bash': change vmm/cli/completion.c.\n"
	"\n"
	"_thaw_fill() {\n"
	"\tmapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$cur\")\n"
	"}\n"
	"\n"
	"_thaw_templates() {\n"
	"\tlocal folder=\"${THAW_STATE:-/var/lib/thaw}/templates\" path\n"
	"\tfor path in \"$folder\"/*/; do\n"
	"\t\t[[ -d $path && $path != */snap.* ]] || continue\n"
	"\t\tpath=${path%/}\n"
	"\t\tprintf '%s\\n' \"${path##*/}\"\n"
	"\tdone\n"
	"}\n"
	"\n"
	"_thaw_kind() {\n"
	"\tcase $1 in\n"
	"\tsandbox) _thaw_fill \"$(\"${COMP_WORDS[0]}\" ps -aq 2>/dev/null)\" ;;\n"
	"\tcopy)\n"
	"\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
	"\t\tcompopt -o nospace 2>/dev/null\n"
	"\t\tmapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -S : -W \"$(\"${COMP_WORDS[0]}\" ps -q 2>/dev/null)\" -- \"$cur\")\n"
	"\t\t;;\n"
	"\ttemplate) _thaw_fill \"$(_thaw_templates)\" ;;\n"
	"\tsnapshot) _thaw_fill \"$(\"${COMP_WORDS[0]}\" snapshot ls -q 2>/dev/null)\" ;;\n"
	"\tshell) _thaw_fill 'bash zsh fish' ;;\n"
	"\tvariable) mapfile -t COMPREPLY < <(compgen -e -- \"$cur\") ;;\n"
	"\tfile) mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") ;;\n"
	"\tesac\n"
	"}\n"
	"\n";

static void print_bash(void)
{
	printf("%s_thaw() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
	       "path=${COMP_WORDS[1]} i\n\tCOMPREPLY=()\n"
	       "\t# What stands behind \"--\" is the sandbox's: nothing here knows its files.\n"
	       "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
	       "\t\t[[ ${COMP_WORDS[i]} == -- ]] && return\n\tdone\n"
	       "\tif ((COMP_CWORD == 1)); then\n\t\t_thaw_fill '",
	       bash_head);
	print_names(thaw_commands, THAW_COMMANDS);
	printf("help'\n\t\treturn\n\tfi\n\tcase $path in\n");
	for (size_t i = 0; i < THAW_COMMANDS; i++) {
		const struct cli_command *group = &thaw_commands[i];

		if (!group->nmembers)
			continue;
		printf("\t%s)\n\t\tif ((COMP_CWORD == 2)); then\n\t\t\t", group->name);
		/* A group that is a command by itself, too. */
		printf(group->options ? "_thaw_fill \"$(_thaw_templates) " : "_thaw_fill \"");
		print_names(group->members, group->nmembers);
		printf("help\"\n\t\t\treturn\n\t\tfi\n\t\tcase ${COMP_WORDS[2]} in\n\t\t");
		for (size_t j = 0; j < group->nmembers; j++)
			printf("%s%s", j ? " | " : "", group->members[j].name);
		printf(") path+=\" ${COMP_WORDS[2]}\" ;;\n\t\tesac\n\t\t;;\n");
	}
	printf("\tesac\n\tcase $path:$prev in\n");
	each_command(bash_values);
	printf("\t*) _thaw_arguments ;;\n\tesac\n}\n\n"
	       "# Of _thaw(): reads its variables.\n_thaw_arguments() {\n\tcase $path in\n");
	each_command(bash_arguments);
	printf("\tesac\n}\n\ncomplete -F _thaw thaw\n");
}

static void zsh_values(const char *path, const struct cli_command *command)
{
	const struct optparse_command *options = command->options;
	char words[256];

	for (size_t i = 0; i < options->nspecs; i++) {
		const struct optparse_spec *spec = &options->specs[i];
		const char *kind = value_kind(spec, words, sizeof(words));

		if (!strcmp(kind, "flag"))
			continue;
		printf("\t('%s:--%s'", path, spec->name);
		if (spec->letter)
			printf("|'%s:-%c'", path, spec->letter);
		if (!strcmp(kind, "words"))
			printf(") compadd -- %s ;;\n", words);
		else if (!strcmp(kind, "other"))
			printf(") _message '%s' ;;\n", spec->arg);
		else
			printf(") _thaw_kind %s ;;\n", kind);
	}
}

static void zsh_arguments(const char *path, const struct cli_command *command)
{
	const struct optparse_command *options = command->options;

	printf("\t('%s')\n\t\tif [[ $cur == -* ]]; then\n\t\t\titems=(", path);
	for (size_t i = 0; i < options->nspecs; i++) {
		printf("\n\t\t\t\t\"--%s:", options->specs[i].name);
		print_first_line(options->specs[i].help, "\"\\$`:");
		printf("\"");
	}
	printf("\n\t\t\t\t'--help:show help')\n\t\t\t_describe -o option items\n");
	if (options->completes)
		printf("\t\telse\n\t\t\t_thaw_kind %s\n", options->completes);
	printf("\t\tfi\n\t\t;;\n");
}

static void print_zsh(void)
{
	printf("#compdef thaw\n# SPDX-License-Identifier: Apache-2.0\n"
	       "# Completion of thaw for zsh. Made by 'thaw completion zsh': change "
	       "vmm/cli/completion.c.\n\n"
	       "_thaw_kind() {\n\tcase $1 in\n"
	       "\t(sandbox) compadd -- ${(f)\"$($words[1] ps -aq 2>/dev/null)\"} ;;\n"
	       "\t(copy)\n\t\t_files\n"
	       "\t\tcompadd -S : -- ${(f)\"$($words[1] ps -q 2>/dev/null)\"}\n\t\t;;\n"
	       "\t(template) compadd -- ${THAW_STATE:-/var/lib/thaw}/templates/*~*/snap.*(N/:t) ;;\n"
	       "\t(snapshot) compadd -- ${(f)\"$($words[1] snapshot ls -q 2>/dev/null)\"} ;;\n"
	       "\t(shell) compadd -- bash zsh fish ;;\n"
	       "\t(variable) compadd -- ${(k)parameters[(R)*export*]} ;;\n"
	       "\t(file) _files ;;\n\tesac\n}\n\n"
	       "_thaw() {\n\tsetopt localoptions extendedglob\n\tlocal -a items\n"
	       "\tlocal cur=$words[CURRENT] prev=$words[CURRENT-1] what=$words[2]\n"
	       "\t(( ${words[(i)--]} < CURRENT )) && return\n"
	       "\tif (( CURRENT == 2 )); then\n\t\titems=(");
	for (size_t i = 0; i < THAW_COMMANDS; i++) {
		if (thaw_commands[i].name[0] == '-')
			continue;
		printf("\n\t\t\t\"%s:", thaw_commands[i].name);
		print_first_line(thaw_commands[i].summary, "\"\\$`:");
		printf("\"");
	}
	printf(")\n\t\t_describe command items\n\t\treturn\n\tfi\n\tcase $what in\n");
	for (size_t i = 0; i < THAW_COMMANDS; i++) {
		const struct cli_command *group = &thaw_commands[i];

		if (!group->nmembers)
			continue;
		printf("\t(%s)\n\t\tif (( CURRENT == 3 )); then\n\t\t\tcompadd -- ", group->name);
		print_names(group->members, group->nmembers);
		printf("\n\t\t\t%s\n\t\t\treturn\n\t\tfi\n\t\tcase $words[3] in\n\t\t(",
		       group->options ? "_thaw_kind template" : ":");
		for (size_t j = 0; j < group->nmembers; j++)
			printf("%s%s", j ? "|" : "", group->members[j].name);
		printf(") what+=\" $words[3]\" ;;\n\t\tesac\n\t\t;;\n");
	}
	printf("\tesac\n\tcase $what:$prev in\n");
	each_command(zsh_values);
	printf("\t(*) _thaw_arguments ;;\n\tesac\n}\n\n_thaw_arguments() {\n\tcase $what in\n");
	each_command(zsh_arguments);
	printf("\tesac\n}\n\n[[ $funcstack[1] == _thaw ]] && _thaw \"$@\" || compdef _thaw thaw\n");
}

static const char *fish_source(const char *kind)
{
	static const char *const sources[][2] = {
		{"sandbox", "(thaw ps -aq 2>/dev/null)"},
		{"template", "(__thaw_templates)"},
		{"snapshot", "(thaw snapshot ls -q 2>/dev/null)"},
		{"shell", "bash zsh fish"},
		{"variable", "(set -nx)"},
		{"copy", "(thaw ps -q 2>/dev/null | string replace -r \"\\$\" \":\")"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(sources); i++) {
		if (!strcmp(sources[i][0], kind))
			return sources[i][1];
	}
	return NULL;
}

static void fish_command(const char *path, const struct cli_command *command)
{
	const struct optparse_command *options = command->options;
	char words[256];

	for (size_t i = 0; i < options->nspecs; i++) {
		const struct optparse_spec *spec = &options->specs[i];
		const char *kind = value_kind(spec, words, sizeof(words));

		printf("complete -c thaw -n '__thaw_is %s' -l %s", path, spec->name);
		if (spec->letter)
			printf(" -s %c", spec->letter);
		if (!strcmp(kind, "words"))
			printf(" -x -a '%s'", words);
		else if (fish_source(kind))
			printf(" -x -a '%s'", fish_source(kind));
		else if (!strcmp(kind, "file"))
			printf(" -r -F");
		else if (strcmp(kind, "flag") != 0)
			printf(" -x");
		printf(" -d '");
		print_first_line(spec->help, "'\\");
		printf("'\n");
	}
	if (options->completes && fish_source(options->completes))
		printf("complete -c thaw -n '__thaw_is %s' %s-a '%s'\n", path,
		       strcmp(options->completes, "copy") == 0 ? "-F " : "",
		       fish_source(options->completes));
}

static void print_fish(void)
{
	printf("# SPDX-License-Identifier: Apache-2.0\n"
	       "# Completion of thaw for fish. Made by 'thaw completion fish': change "
	       "vmm/cli/completion.c.\n\n"
	       "function __thaw_templates\n"
	       "\tset -q THAW_STATE; or set -l THAW_STATE /var/lib/thaw\n"
	       "\tfor path in $THAW_STATE/templates/*/\n"
	       "\t\tstring match -q '*/snap.*' $path; or path basename $path\n\tend\nend\n\n"
	       "# Is this what the command line begins with? A member's name makes another command.\n"
	       "function __thaw_is\n"
	       "\tset -l words (commandline -opc)\n"
	       "\tset -e words[1]\n"
	       "\tcontains -- -- $words; and return 1\n"
	       "\ttest \"$words[1..(count $argv)]\" = \"$argv\"; or return 1\n"
	       "\ttest \"$argv\" != pool; or not contains -- \"$words[2]\" set ls rm\nend\n\n"
	       "complete -c thaw -f\n");
	for (size_t i = 0; i < THAW_COMMANDS; i++) {
		const struct cli_command *command = &thaw_commands[i];

		if (command->name[0] == '-')
			continue;
		printf("complete -c thaw -n '__fish_use_subcommand' -a %s -d '", command->name);
		print_first_line(command->summary, "'\\");
		printf("'\n");
		for (size_t j = 0; j < command->nmembers; j++) {
			printf("complete -c thaw -n '__thaw_is %s' -a %s -d '", command->name,
			       command->members[j].name);
			print_first_line(command->members[j].summary, "'\\");
			printf("'\n");
		}
	}
	each_command(fish_command);
}

int completion_main(struct cli *cli, int argc, char **argv)
{
	struct optparse_result result;
	int status;

	(void)cli;
	status = cli_parse(&completion_command, NULL, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (!strcmp(result.positional[0], "bash")) {
		print_bash();
	} else if (!strcmp(result.positional[0], "zsh")) {
		print_zsh();
	} else if (!strcmp(result.positional[0], "fish")) {
		print_fish();
	} else {
		log_err("completion: '%.40s': expected bash, zsh or fish", result.positional[0]);
		return CLI_USAGE;
	}
	return cli_flush() ? CLI_FAILED : CLI_OK;
}
