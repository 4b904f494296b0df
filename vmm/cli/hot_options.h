/* SPDX-License-Identifier: Apache-2.0 */
/* Options about recording that `thaw template build` and `thaw template record` share. */
#ifndef THAW_CLI_HOT_OPTIONS_H
#define THAW_CLI_HOT_OPTIONS_H

#include "vmm/cli/hot_plan.h"
#include "vmm/cli/optparse.h"
#include "vmm/cli/template_build.h"

/** Rows for a table whose options structure is struct build_opts. */
#define HOT_OPTIONS                                                                            \
	{"recorder",                                                                           \
	 0,                                                                                    \
	 "NAME",                                                                               \
	 optparse_string,                                                                      \
	 offsetof(struct build_opts, recorder),                                                \
	 "how the hot set is recorded: pagemap (default) or bpf\n"                             \
	 "(root, and EPT or NPT); a named one must work",                                      \
	 NULL},                                                                                \
		{"hot-runs",                                                                   \
		 0,                                                                            \
		 "N",                                                                          \
		 hot_parse_runs,                                                               \
		 offsetof(struct build_opts, hot_runs),                                        \
		 "clones in which each command is recorded: 1 to 16\n(default 3)",             \
		 NULL},                                                                        \
	{                                                                                      \
		"hot-rule", 0, "RULE", optparse_string, offsetof(struct build_opts, hot_rule), \
			"a page is hot if it was touched in half of the clones\n"              \
			"(half, the default), in one of them (union), in all\n(intersection)", \
			NULL                                                                   \
	}

optparse_fn hot_parse_runs; /* u32 */

/** hot_parse_warm() - parse_list of an option --warm; the field is a struct warm_list. */
int hot_parse_warm(void *dest, int argc, char **argv, const char **why);

/** hot_options_check() - are there a recorder and a rule of these names? Return: NULL, or a static
 * text for a usage error. */
const char *hot_options_check(const struct build_opts *opts);

#endif
