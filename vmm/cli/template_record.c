// SPDX-License-Identifier: Apache-2.0
// `thaw template record`: record the hot set of a template that exists. Sandboxes that run from it
// are not disturbed: the new file replaces the old one by a rename, and is advice anyway.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/hot_options.h"
#include "vmm/cli/optparse.h"
#include "vmm/cli/template_build.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define RECORD_TIMEOUT_NS 600000000000ull

#define FIELD(field) offsetof(struct build_opts, field)

static const struct optparse_spec record_specs[] = {
	HOT_OPTIONS,
	{"recipe", 0, "FILE", optparse_string, FIELD(recipe_path),
	 "also with the warm-up commands of this recipe", NULL},
	{"warm", 0, "CMD [ARG]... ;", NULL, FIELD(warm),
	 "also with CMD; ends with an argument ';'; may be repeated", hot_parse_warm},
	{"timeout", 0, "TIME", optparse_duration, FIELD(timeout_ns),
	 "give up after TIME (default 10m)", NULL},
};

const struct optparse_command template_record_command = {
	.usage = "thaw template record NAME [OPTION]...",
	.summary =
		"Record the hot set of template NAME again: the pages that a first command touches.",
	.details = "The log is logs/NAME.log in the state folder.",
	.specs = record_specs,
	.nspecs = ARRAY_SIZE(record_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
};

static int prepare(struct build *build)
{
	int ret;

	ret = build_hot_check(build);
	if (!ret && build->opts.recipe_path)
		ret = recipe_read(build->opts.recipe_path, &build->recipe);
	if (!ret)
		ret = build_claim(build);
	if (ret)
		return ret;
	state_path(&build->state, "templates", build->name, "", build->folder);
	if (access(build->folder, F_OK) < 0) {
		log_err("no template '%s' in %s/templates: 'thaw template ls' lists them",
			build->name, build->state.root);
		return -ENOENT;
	}
	return build_open_log(build);
}

int template_record_main(struct cli *cli, int argc, char **argv)
{
	struct build build;
	struct optparse_result result;
	const char *why;
	int status, ret;

	build_init(&build, cli->start_ns, RECORD_TIMEOUT_NS);
	build.hot_required = true;
	status = cli_parse(&template_record_command, &build.opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		goto out;
	status = CLI_USAGE;
	if (optparse_name(&build.name, result.positional[0], &why)) {
		log_err("'%.60s' is not a template's name: %s", result.positional[0], why);
		goto out;
	}
	why = hot_options_check(&build.opts);
	if (why) {
		log_err("%s", why);
		goto out;
	}
	progress_init(&build.progress, build.start_ns);
	build.deadline_ns = build.start_ns + build.opts.timeout_ns;
	ret = prepare(&build);
	if (!ret)
		ret = build_hot(&build);
	if (!ret)
		progress_done(&build.progress, "%s", build.name);
	progress_break(&build.progress);
	status = ret ? CLI_FAILED : CLI_OK;
out:
	build_free(&build);
	return status;
}
