/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command-line options from tables: parsing, error texts and help all come from the same rows.
 *
 * Accepted: --name VALUE, --name=VALUE, -n VALUE, -nVALUE, flags without a value, also several
 * letters in one word (-it), and "--", after which everything is left alone. Options and positional
 * arguments may be mixed. Where a command is taken, it begins behind "--" or, once there are all
 * positional arguments, with the first word that is no option. Nothing is global, nothing is
 * printed.
 */
#ifndef THAW_CLI_OPTPARSE_H
#define THAW_CLI_OPTPARSE_H

#include <stdio.h>

#include "vmm/util/types.h"

/** Parsers of one value; @dest points at the field. Return: 0, -EINVAL (@why says what was
 * expected) or -ENOMEM. */
typedef int optparse_fn(void *dest, const char *value, const char **why);

struct optparse_spec {
	const char *name; /* without dashes */
	char letter;	  /* 0: none */
	const char *arg;  /* name of the value in help; NULL: a flag */
	optparse_fn *parse;
	size_t offset;	  /* of the field in the options structure */
	const char *help; /* may have several lines, parted by \n */
	/**
	 * Non-NULL: a list. The option takes every argument up to one that is ";", as find(1) does
	 * with -exec; @parse is not used. @argv holds @argc >= 1 strings that live as long as
	 * main's.
	 */
	int (*parse_list)(void *dest, int argc, char **argv, const char **why);
};

/** One command: its options and how its help starts. */
struct optparse_command {
	const char *usage;   /* "thaw run TEMPLATE [OPTION]... -- CMD [ARG]..." */
	const char *summary; /* one sentence */
	const char *details; /* text behind the options, or NULL */
	const struct optparse_spec *specs;
	size_t nspecs;
	int positional_min, positional_max;
	const char *positional_name; /* for the error text: "TEMPLATE" */
	bool takes_command;	     /* at least one word behind the positional arguments */
	bool command_optional;	     /* with @takes_command: or neither it nor a "--" */
	const char *completes; /* what the positional arguments are, for shells: see completion.c */
};

#define OPTPARSE_POSITIONAL_MAX 256

struct optparse_result {
	bool help; /* --help or -h was seen: the rest is not filled in */
	int npositional;
	char *positional[OPTPARSE_POSITIONAL_MAX];
	int command_argc; /* words of the command */
	char **command;	  /* NULL-terminated: the tail of argv */
	char error[256];  /* filled when optparse() fails: names the option and the fix */
};

/**
 * optparse() - parse @argv[0..@argc) (the command's name already skipped) into *@dest by @command's
 * table.
 * @argv must be NULL-terminated at @argc.
 *
 * Return: 0, -EINVAL (usage error, @result->error) or -ENOMEM.
 */
int __must_check optparse(const struct optparse_command *command, void *dest, int argc, char **argv,
			  struct optparse_result *result);

/** optparse_help() - the help text of @command, from its table. */
void optparse_help(const struct optparse_command *command, FILE *out);

/* Parsers; the type of the field is behind the name. */
optparse_fn optparse_flag;     /* bool: set */
optparse_fn optparse_string;   /* const char *: points into argv, not empty */
optparse_fn optparse_duration; /* u64: nanoseconds, see parse_duration() */
optparse_fn optparse_name;     /* const char *: a template name, see state_name_ok() */
optparse_fn optparse_json;     /* bool: set by "json", the only other format there is */
optparse_fn optparse_hostname; /* const char *: RFC 1123, at most 63 characters */
optparse_fn optparse_vcpus;    /* u32: 1-8 */
optparse_fn optparse_memory;   /* u64: bytes, 128 MiB-64 GiB, multiple of 2 MiB */
optparse_fn optparse_strings;  /* struct optparse_strings: may be repeated */

/** Values of an option that may be repeated; they point into argv. */
#define OPTPARSE_STRINGS_MAX 64
struct optparse_strings {
	const char *items[OPTPARSE_STRINGS_MAX];
	size_t count;
};

/**
 * optparse_check_strategy() - is there a restore strategy @name (NULL: the default)?
 * Return: 0, or -EINVAL: @result->error lists those there are.
 */
int __must_check optparse_check_strategy(const char *name, struct optparse_result *result);

/**
 * parse_duration() - "30", "1.5s", "250ms", "2m", "1h" to nanoseconds; without a unit it is
 * seconds. Return: 0, or -EINVAL: malformed, zero, or over a year.
 */
int __must_check parse_duration(const char *text, u64 *out_ns);

#endif
