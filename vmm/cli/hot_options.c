// SPDX-License-Identifier: Apache-2.0
// Options about recording, parsed and checked.
#include "vmm/cli/hot_options.h"

#include <errno.h>

#include "vmm/cli/hot_recorder.h"
#include "vmm/util/util.h"

int hot_parse_runs(void *dest, const char *value, const char **why)
{
	u64 runs;

	*why = "expected 1 to 16";
	if (parse_u64(value, 1, HOT_RUNS_MAX, &runs))
		return -EINVAL;
	*(u32 *)dest = (u32)runs;
	return 0;
}

int hot_parse_warm(void *dest, int argc, char **argv, const char **why)
{
	*why = "too many commands or words, or an empty program";
	return warm_list_add(dest, argc, argv);
}

const char *hot_options_check(const struct build_opts *opts)
{
	if (!hot_recorder_find(opts->recorder))
		return "--recorder must be pagemap or bpf";
	if (hot_rule_find(opts->hot_rule) < 0)
		return "--hot-rule must be half, union or intersection";
	return NULL;
}
