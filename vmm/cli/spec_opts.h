/* SPDX-License-Identifier: Apache-2.0 */
/* Options that say what a sandbox of thawd is to be like: `thaw create` and `thaw run` share them.
 */
#ifndef THAW_CLI_SPEC_OPTS_H
#define THAW_CLI_SPEC_OPTS_H

#include <jansson.h>

#include "vmm/cli/optparse.h"
#include "vmm/util/types.h"

/** All pointers go into argv; NULL or 0: not given. */
struct spec_opts {
	const char *name, *size, *snapshot;
	u32 vcpus;
	u64 memory_bytes, scratch_bytes;
	u64 idle_ns, hard_ns;
	u64 pids_max, nofile;
	struct optparse_strings labels;
	bool keep_alive, internet;
};

optparse_fn spec_parse_name;  /* const char * */
optparse_fn spec_parse_size;  /* const char * */
optparse_fn spec_parse_label; /* struct optparse_strings: KEY=VALUE or KEY */
optparse_fn spec_parse_count; /* u64, from 1 */
optparse_fn spec_parse_bytes; /* u64 */

/** Rows of an option table whose structure @type has a struct spec_opts as its member "spec". */
#define SPEC_AT(type, field) (offsetof(type, spec) + offsetof(struct spec_opts, field))
#define SPEC_ROWS(type)                                                                               \
	{"name",                                                                                      \
	 'n',                                                                                         \
	 "NAME",                                                                                      \
	 spec_parse_name,                                                                             \
	 SPEC_AT(type, name),                                                                         \
	 "its name: a-z, 0-9 and '-', at most 63 (default: made up)",                                 \
	 NULL},                                                                                       \
		{"label",                                                                             \
		 'l',                                                                                 \
		 "KEY=VALUE",                                                                         \
		 spec_parse_label,                                                                    \
		 SPEC_AT(type, labels),                                                               \
		 "put a label on it; up to 10",                                                       \
		 NULL},                                                                               \
		{"size",                                                                              \
		 0,                                                                                   \
		 "SIZE",                                                                              \
		 spec_parse_size,                                                                     \
		 SPEC_AT(type, size),                                                                 \
		 "lite, basic, standard-1, -2, -3 or -4 (default: what the\ntemplate was made with)", \
		 NULL},                                                                               \
		{"vcpus",                                                                             \
		 0,                                                                                   \
		 "N",                                                                                 \
		 optparse_vcpus,                                                                      \
		 SPEC_AT(type, vcpus),                                                                \
		 "virtual processors, with --memory instead of --size",                               \
		 NULL},                                                                               \
		{"memory",                                                                            \
		 'm',                                                                                 \
		 "SIZE",                                                                              \
		 optparse_memory,                                                                     \
		 SPEC_AT(type, memory_bytes),                                                         \
		 "memory, with --vcpus instead of --size",                                            \
		 NULL},                                                                               \
		{"scratch",	      0,   "SIZE", spec_parse_bytes, SPEC_AT(type, scratch_bytes),    \
		 "its writable disk", NULL},                                                          \
		{"idle-timeout",                                                                      \
		 0,                                                                                   \
		 "TIME",                                                                              \
		 optparse_duration,                                                                   \
		 SPEC_AT(type, idle_ns),                                                              \
		 "stop it when nobody has used it for TIME, at most 6h",                              \
		 NULL},                                                                               \
		{"hard-timeout",                                                                      \
		 0,                                                                                   \
		 "TIME",                                                                              \
		 optparse_duration,                                                                   \
		 SPEC_AT(type, hard_ns),                                                              \
		 "stop it TIME after its start, used or not",                                         \
		 NULL},                                                                               \
		{"keep-alive",                                                                        \
		 0,                                                                                   \
		 NULL,                                                                                \
		 optparse_flag,                                                                       \
		 SPEC_AT(type, keep_alive),                                                           \
		 "never stop it because it is idle",                                                  \
		 NULL},                                                                               \
		{"internet",                                                                          \
		 0,                                                                                   \
		 NULL,                                                                                \
		 optparse_flag,                                                                       \
		 SPEC_AT(type, internet),                                                             \
		 "let it reach the internet",                                                         \
		 NULL},                                                                               \
		{"pids-limit",                                                                        \
		 0,                                                                                   \
		 "N",                                                                                 \
		 spec_parse_count,                                                                    \
		 SPEC_AT(type, pids_max),                                                             \
		 "processes of one command, at most",                                                 \
		 NULL},                                                                               \
	{                                                                                             \
		"nofile", 0, "N", spec_parse_count, SPEC_AT(type, nofile),                            \
			"open files of one process, at most", NULL                                    \
	}

/** spec_first_given() - an option of these that was given, as "--name"; NULL: none was. */
const char *spec_first_given(const struct spec_opts *spec);

/** spec_check() - Return: 0, or -EINVAL with what does not go together in @result->error. */
int __must_check spec_check(const struct spec_opts *spec, const char *template_name,
			    struct optparse_result *result);

/**
 * spec_json() - the body of a request that makes one.
 * @template_name, @env, @entrypoint (both NULL-terminated arrays), @hostname: NULL: not given.
 * Return: a new reference, or NULL (out of memory, or text that is not UTF-8).
 */
json_t *spec_json(const struct spec_opts *spec, const char *template_name, char *const *env,
		  char *const *entrypoint, const char *hostname);

/** env_json() - {"NAME": "value"} of "NAME=value" strings, or NULL (as above). */
json_t *env_json(char *const *env);
/** argv_json() - an array of strings, or NULL (as above). */
json_t *argv_json(char *const *argv);
/** strings_json() - an array of strings, or NULL (as above). */
json_t *strings_json(const struct optparse_strings *strings);
/** labels_json() - {"key": "value"} of "KEY=VALUE" and "KEY" strings, or NULL (as above). */
json_t *labels_json(const struct optparse_strings *labels);

#endif
