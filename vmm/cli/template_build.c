// SPDX-License-Identifier: Apache-2.0
// `thaw template build`: boot (or restore) a guest, warm it up, have it snapshotted.
//
// Theory of operation
//
// thaw-vmm writes the snapshot and publishes it by a rename; what is here decides what it boots
// from and when it may snapshot:
//
//   root image -> scratch disk -> boot, until the shim listens -> warm-up commands, one after the
//   other -> SHIM_CHECKPOINT -> CTL_SNAPSHOT, CTL_EXIT -> clones that record the hot set
//
// With --from the first three are one restore of another template: a second generation, which keeps
// its machine and its disk.
//
// Everything that is said on the way (guest console, thaw-vmm, mke2fs, output of the warm-ups) goes
// to one file, logs/NAME.log, which stays there; its end is shown when the build fails. Until
// thaw-vmm's rename nothing of the template is visible, so a build that fails or is killed leaves
// the old template as it was.
#include "vmm/cli/template_build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/hot_options.h"
#include "vmm/cli/lineage.h"
#include "vmm/cli/optparse.h"
#include "vmm/cli/sandbox.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define BUILD_TIMEOUT_NS 600000000000ull
#define BUILD_LOG_LINES	 20

#define FIELD(field) offsetof(struct build_opts, field)

static const struct optparse_spec build_specs[] = {
	{"recipe", 0, "FILE", optparse_string, FIELD(recipe_path),
	 "what to build from (default: recipe NAME if there is\none, else debian)", NULL},
	{"vcpus", 0, "N", optparse_vcpus, FIELD(vcpus), "1 to 8, instead of the recipe's", NULL},
	{"memory", 0, "SIZE", optparse_memory, FIELD(memory_bytes),
	 "128M to 64G, instead of the recipe's", NULL},
	{"from", 0, "TEMPLATE", optparse_name, FIELD(from),
	 "restore TEMPLATE and snapshot it again, instead of\nbooting; machine and disk are its",
	 NULL},
	{"whole", 0, NULL, optparse_flag, FIELD(whole),
	 "with --from: keep all of the memory, not only what differs\nfrom TEMPLATE's", NULL},
	{"strategy", 0, "NAME", optparse_string, FIELD(strategy), "with --from: restore strategy",
	 NULL},
	{"warm", 0, "CMD [ARG]... ;", NULL, FIELD(warm),
	 "run CMD before the snapshot, behind the recipe's own;\nends with an argument ';'; may be "
	 "repeated",
	 hot_parse_warm},
	HOT_OPTIONS,
	{"replace", 0, NULL, optparse_flag, FIELD(replace),
	 "replace the template if it exists, once the new one is\nwhole", NULL},
	{"serial", 0, NULL, optparse_flag, FIELD(serial),
	 "kernel messages to a serial port: slow, for guests that\ndie before their console is up",
	 NULL},
	{"timeout", 0, "TIME", optparse_duration, FIELD(timeout_ns),
	 "give up after TIME (default 10m)", NULL},
};

const struct optparse_command template_build_command = {
	.usage = "thaw template build NAME [OPTION]...",
	.summary = "Boot a guest, warm it up and keep a snapshot of it as template NAME.",
	.details = "The log of the build is logs/NAME.log in the state folder.",
	.specs = build_specs,
	.nspecs = ARRAY_SIZE(build_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
};

/** The last lines of the log, with control characters (the guest wrote most of it) shown as '?'. */
static void show_log_tail(const struct build *build)
{
	char buf[8192];
	unsigned int lines = 0;
	off_t end, pos;
	ssize_t n, start;

	end = lseek(build->log_fd, 0, SEEK_END);
	pos = end > (off_t)sizeof(buf) ? end - (off_t)sizeof(buf) : 0;
	n = pread(build->log_fd, buf, sizeof(buf), pos);
	if (n <= 0)
		return;
	for (start = n; start > 0; start--) {
		if (buf[start - 1] == '\n' && start < n && ++lines == BUILD_LOG_LINES)
			break;
	}
	for (ssize_t i = start; i < n; i++) {
		unsigned char c = (unsigned char)buf[i];

		if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
			buf[i] = c == '\r' ? ' ' : '?';
	}
	fprintf(stderr, "--- last lines of %s\n", build->log_path);
	if (!fd_write_full(STDERR_FILENO, buf + start, (size_t)(n - start)))
		fprintf(stderr, "%s---\n", buf[n - 1] == '\n' ? "" : "\n");
}

int build_open_log(struct build *build)
{
	int ret;

	state_path(&build->state, "logs", build->name, ".log", build->log_path);
	build->log_fd = open(build->log_path,
			     O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (build->log_fd >= 0)
		return 0;
	ret = -errno;
	log_err("%s: %s", build->log_path, strerror(-ret));
	return ret;
}

static int check_name_free(struct build *build)
{
	struct stat st;

	state_path(&build->state, "templates", build->name, "", build->folder);
	if (sandbox_is_snap(build->name)) {
		log_err("template '%s': names like this are those of sandboxes' snapshots",
			build->name);
		return -EINVAL;
	}
	if (lstat(build->folder, &st) < 0)
		return 0;
	if (build->opts.replace)
		return lineage_refuse(&build->state, build->name, "replaced");
	log_err("template '%s' exists: give --replace, or remove it with 'thaw template rm %s'",
		build->name, build->name);
	return -EEXIST;
}

static int lock_from(struct build *build)
{
	state_path(&build->state, "templates", build->opts.from, "", build->from_folder);
	build->from_lock_fd = state_lock_template(&build->state, build->opts.from, false);
	if (build->from_lock_fd >= 0)
		return 0;
	log_err("template '%s' (--from): %s", build->opts.from,
		build->from_lock_fd == -ENOENT ? "there is none; 'thaw template ls' lists them"
					       : strerror(-build->from_lock_fd));
	return build->from_lock_fd;
}

static int read_recipe(struct build *build)
{
	char path[PATH_MAX], why[512];
	int ret;

	if (build->opts.recipe_path)
		ret = recipe_read(build->opts.recipe_path, &build->recipe);
	else if (!(ret = recipe_find(build->name, path)))
		ret = recipe_read(path, &build->recipe);
	if (ret)
		return ret;
	if (build->opts.vcpus)
		build->recipe.vcpus = build->opts.vcpus;
	if (build->opts.memory_bytes)
		build->recipe.memory_bytes = build->opts.memory_bytes;
	ret = guest_files_open(&build->guest, why, sizeof(why));
	if (ret) {
		log_err("%s", why);
		return ret;
	}
	if (strcmp(build->guest.image, build->recipe.image) != 0) {
		log_err("the recipe wants image '%s', %s holds '%s'", build->recipe.image,
			build->guest.folder, build->guest.image);
		return -EINVAL;
	}
	return 0;
}

int build_claim(struct build *build)
{
	int ret = state_init(&build->state);

	if (!ret)
		ret = state_make(&build->state);
	if (ret)
		return ret;
	build->build_lock_fd = state_lock_build(&build->state, build->name);
	if (build->build_lock_fd == -EBUSY)
		log_err("template '%s' is being built by another process", build->name);
	return build->build_lock_fd < 0 ? build->build_lock_fd : 0;
}

static int prepare(struct build *build)
{
	int ret;

	ret = build_hot_check(build);
	if (!ret)
		ret = build_claim(build);
	if (!ret)
		ret = check_name_free(build);
	if (!ret)
		ret = build->opts.from ? lock_from(build) : read_recipe(build);
	if (!ret)
		ret = build_open_log(build);
	if (ret || build->opts.from)
		return ret;
	progress_phase(&build->progress, "root image");
	ret = image_store(&build->state, &build->guest, &build->progress, build->image);
	if (ret || !build->recipe.scratch_bytes)
		return ret;
	progress_phase(&build->progress, "scratch disk");
	build->disk_fd = disk_make_base(&build->state, build->recipe.scratch_bytes, build->log_fd);
	return build->disk_fd < 0 ? build->disk_fd : 0;
}

static int build_run(struct build *build)
{
	u64 bytes;
	int ret;

	ret = build_guest(build);
	if (ret)
		return ret;
	ret = build_hot(build);
	if (ret)
		return ret;
	ret = state_disk_usage(build->folder, &bytes);
	if (ret) {
		progress_break(&build->progress);
		log_err("%s: %s", build->folder, strerror(-ret));
		return ret;
	}
	progress_done(&build->progress, "%llu MiB", (unsigned long long)((bytes + MIB - 1) / MIB));
	return 0;
}

void build_init(struct build *build, u64 start_ns, u64 timeout_ns)
{
	*build = (struct build){.build_lock_fd = -1,
				.from_lock_fd = -1,
				.log_fd = -1,
				.disk_fd = -1,
				.start_ns = start_ns,
				.vmm = {.ctl_fd = -1, .log_fd = -1, .accept_fd = -1},
				.opts = {.timeout_ns = timeout_ns, .hot_runs = HOT_RUNS_DEFAULT}};
}

void build_free(struct build *build)
{
	vmmproc_end(&build->vmm);
	fd_close(&build->disk_fd);
	fd_close(&build->log_fd);
	fd_close(&build->from_lock_fd);
	state_unlock_build(&build->state, build->name, &build->build_lock_fd);
	guest_files_free(&build->guest);
	recipe_free(&build->recipe);
	warm_list_free(&build->opts.warm);
}

static const char *usage_conflict(const struct build_opts *opts)
{
	if (opts->from && opts->recipe_path)
		return "--recipe can't be combined with --from: the machine is the template's";
	if (opts->from && (opts->vcpus || opts->memory_bytes))
		return "--vcpus and --memory can't be combined with --from: the machine is the "
		       "template's";
	if (opts->from && opts->serial)
		return "--serial can't be combined with --from";
	if (opts->whole && !opts->from)
		return "--whole needs --from: a boot is always kept whole";
	if (opts->strategy && !opts->from)
		return "--strategy needs --from: a boot restores nothing";
	return hot_options_check(opts);
}

int template_build_main(struct cli *cli, int argc, char **argv)
{
	struct build build;
	struct optparse_result result;
	const char *why;
	int status, ret;

	build_init(&build, cli->start_ns, BUILD_TIMEOUT_NS);
	status = cli_parse(&template_build_command, &build.opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		goto out;
	status = CLI_USAGE;
	if (optparse_name(&build.name, result.positional[0], &why)) {
		log_err("'%.60s' can't be a template's name: %s", result.positional[0], why);
		goto out;
	}
	if (optparse_check_strategy(build.opts.strategy, &result)) {
		log_err("%s", result.error);
		goto out;
	}
	why = usage_conflict(&build.opts);
	if (!why && build.opts.from && !build.opts.whole && !strcmp(build.opts.from, build.name))
		why = "a template can't be kept as the difference from itself: give --whole";
	if (why) {
		log_err("%s", why);
		goto out;
	}
	build.hot_required = build.opts.recorder != NULL;
	progress_init(&build.progress, build.start_ns);
	build.deadline_ns = build.start_ns + build.opts.timeout_ns;
	ret = prepare(&build);
	if (!ret)
		ret = build_run(&build);
	progress_break(&build.progress);
	if (ret && build.log_fd >= 0)
		show_log_tail(&build);
	status = ret ? CLI_FAILED : CLI_OK;
out:
	build_free(&build);
	return status;
}
