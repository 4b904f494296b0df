// SPDX-License-Identifier: Apache-2.0
// `thaw fork`: clones of a sandbox that runs.
//
// Theory of operation
//
// The machine is held inside its guest's checkpoint call (thaw.ko), written as a diff of what it
// was restored from, and goes on. Commands in it notice nothing. Then each clone is restored from
// that diff as a sandbox of its own: the call returns in it with its own generation, entropy and
// clock, its commands go on without the streams that the parent's have.
//
// One clone that fails does not take the others with it: each has a result of its own.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/sandbox.h"
#include "vmm/cli/spec_opts.h"
#include "vmm/cli/verb.h"
#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/snapshot.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define FORK_COUNT_MAX 1000
#define FORK_WINDOW    32

struct fork_opts {
	u64 count;
	const char *strategy;
	struct optparse_strings names, labels; /* of thawd's */
	bool json;
};

/** One of the clones. */
struct clone {
	struct sandbox sb;
	struct vmmproc vmm;
	u64 start_ns, resumed_ns;
	int error;     /* 0: it runs */
	char why[320]; /* else */
};

struct fork {
	struct fork_opts opts;
	struct state state;
	struct sandbox parent;
	char snapshot[STATE_NAME_MAX + 1];
	u32 pause_us;
	u64 memory_bytes, disk_usage_bytes;
	bool is_diff;
	struct clone *clones;
};

static int parse_count(void *dest, const char *value, const char **why)
{
	*why = "expected 1 to 1000";
	return parse_u64(value, 1, FORK_COUNT_MAX, dest);
}

static int parse_clone_name(void *dest, const char *value, const char **why)
{
	const char *name;
	int ret = spec_parse_name(&name, value, why);

	return ret ? ret : optparse_strings(dest, name, why);
}

#define FIELD(field) offsetof(struct fork_opts, field)

static const struct optparse_spec fork_specs[] = {
	{"count", 'n', "N", parse_count, FIELD(count), "how many clones (default 1)", NULL},
	{"name", 0, "NAME", parse_clone_name, FIELD(names),
	 "name of a clone; once for each (default: made up)", NULL},
	{"label", 'l', "KEY=VALUE", spec_parse_label, FIELD(labels),
	 "labels of the clones (default: the sandbox's)", NULL},
	{"strategy", 0, "NAME", optparse_string, FIELD(strategy),
	 "how guest memory comes back in the clones, without thawd", NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "the result as JSON", NULL},
};

const struct optparse_command fork_command = {
	.usage = "thaw fork NAME [OPTION]...",
	.summary = "Make clones of a sandbox, which goes on, and print their names.",
	.details =
		"Memory, processes and files are the sandbox's at that moment; generation, entropy, clock "
		"and host\nname are each clone's own. Commands go on in the clones, but without their "
		"streams: what they print\nis dropped there. Exit status: 0 when all clones run, 1 "
		"otherwise.",
	.specs = fork_specs,
	.nspecs = ARRAY_SIZE(fork_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
	.completes = "sandbox",
};

static int read_size(struct fork *fork)
{
	struct snap_manifest manifest;
	char folder[PATH_MAX];
	int fd, ret;

	state_path(&fork->state, "templates", fork->snapshot, "", folder);
	ret = state_disk_usage(folder, &fork->disk_usage_bytes);
	if (ret) {
		log_err("%s: %s", folder, strerror(-ret));
		return ret;
	}
	fd = state_lock_template(&fork->state, fork->snapshot, false);
	if (fd < 0)
		return fd;
	ret = snap_manifest_read(fd, folder, &manifest);
	fd_close(&fd);
	if (ret)
		return ret;
	fork->is_diff = manifest.diff_digest != NULL;
	fork->memory_bytes =
		fork->is_diff ? manifest.diff_pages * PAGE_SIZE_BYTES : manifest.memory_bytes;
	snap_manifest_free(&manifest);
	return 0;
}

static int snapshot(struct fork *fork)
{
	struct vmmproc vmm;
	int ret;

	ret = sandbox_snap_name(fork->snapshot);
	if (!ret)
		ret = sandbox_own(&fork->state, &fork->parent, &vmm);
	if (ret)
		return ret;
	ret = sandbox_snapshot(&fork->state, &fork->parent, &vmm, false, fork->snapshot);
	fork->pause_us = vmm.pause_us;
	vmmproc_release(&vmm);
	return ret ? ret : read_size(fork);
}

static int start_clone(struct fork *fork, struct clone *clone)
{
	const struct sandbox_opts opts = {.strategy = fork->opts.strategy};
	struct sandbox *sb = &clone->sb;
	int ret;

	clone->start_ns = clock_now_ns();
	ret = sandbox_new(&fork->state, sb);
	if (ret)
		return ret;
	sb->state = SANDBOX_RUNNING;
	memcpy(sb->template_name, fork->parent.template_name, sizeof(sb->template_name));
	memcpy(sb->snapshot, fork->snapshot, sizeof(sb->snapshot));
	memcpy(sb->parent, fork->parent.id, sizeof(sb->parent));
	snprintf(sb->hostname, sizeof(sb->hostname), "%s", sb->id);
	sb->jail = fork->parent.jail;
	ret = sandbox_save(&fork->state, sb);
	return ret ? ret : sandbox_start(&fork->state, sb, &opts, &clone->vmm);
}

static void wait_clone(struct fork *fork, struct clone *clone)
{
	if (!clone->error)
		clone->error = sandbox_wait_resumed(&fork->state, &clone->sb, &clone->vmm,
						    clone->why, sizeof(clone->why));
	if (!clone->error) {
		clone->resumed_ns = clock_now_ns();
		vmmproc_release(&clone->vmm);
		sandbox_unlock(&clone->sb);
		return;
	}
	if (!clone->why[0])
		snprintf(clone->why, sizeof(clone->why), "%s", strerror(-clone->error));
	vmmproc_end(&clone->vmm);
	if (clone->sb.lock_fd >= 0 && sandbox_remove(&fork->state, &clone->sb))
		log_warn("sandbox %s: its folder stays", clone->sb.id);
}

/** Up to FORK_WINDOW are under way at a time: each holds some files here, and processors are few.
 * Return: how many failed, or -ENOMEM. */
static int make_clones(struct fork *fork)
{
	u64 waited = 0;
	int failed = 0;

	fork->clones = calloc(fork->opts.count, sizeof(*fork->clones));
	if (!fork->clones) {
		log_err("fork: out of memory");
		return -ENOMEM;
	}
	for (u64 i = 0; i < fork->opts.count; i++) {
		struct clone *clone = &fork->clones[i];

		clone->sb.lock_fd = -1;
		clone->vmm = (struct vmmproc){.ctl_fd = -1, .log_fd = -1, .accept_fd = -1};
		clone->error = start_clone(fork, clone);
		if (i - waited + 1 == FORK_WINDOW)
			wait_clone(fork, &fork->clones[waited++]);
	}
	while (waited < fork->opts.count)
		wait_clone(fork, &fork->clones[waited++]);
	for (u64 i = 0; i < fork->opts.count; i++)
		failed += fork->clones[i].error != 0;
	return failed;
}

static json_t *clone_json(const struct fork *fork, const struct clone *clone)
{
	const struct vmmproc *vmm = &clone->vmm;
	const u64 us = (clone->resumed_ns - clone->start_ns) / 1000;
	char generation[24];

	if (clone->error)
		return json_pack("{s:s, s:s}", "id", clone->sb.id, "error", clone->why);
	/* As text: half of all JSON readers can't hold 64 bits. */
	snprintf(generation, sizeof(generation), "%llu", (unsigned long long)vmm->generation);
	return json_pack(
		"{s:s, s:n, s:s, s:s, s:o, s:f}", "id", clone->sb.id, "error", "generation",
		generation, "strategy",
		vmm->restore_note[0] ? vmm->restore_note : snap_mem_find(fork->opts.strategy)->name,
		"clocks_ms", start_clocks_json(&vmm->clocks), "start_ms", (double)us / 1000.0);
}

static int print_json(const struct fork *fork)
{
	json_t *list = json_array(), *object;
	int ret = list ? 0 : -ENOMEM;

	for (u64 i = 0; !ret && i < fork->opts.count; i++)
		ret = json_array_append_new(list, clone_json(fork, &fork->clones[i])) ? -ENOMEM : 0;
	object = ret ? NULL
		     : json_pack("{s:s, s:s, s:f, s:b, s:I, s:I, s:O}", "parent", fork->parent.id,
				 "snapshot", fork->snapshot, "pause_ms",
				 (double)fork->pause_us / 1000.0, "diff", fork->is_diff,
				 "memory_bytes", (json_int_t)fork->memory_bytes, "disk_usage_bytes",
				 (json_int_t)fork->disk_usage_bytes, "clones", list);
	ret = object ? json_print(object) : -ENOMEM;
	json_decref(object);
	json_decref(list);
	return ret;
}

static int print_result(const struct fork *fork)
{
	if (fork->opts.json)
		return print_json(fork);
	fprintf(stderr, "paused for %.1f ms; %llu KiB of memory differ%s, %llu KiB on disk\n",
		(double)fork->pause_us / 1000.0, (unsigned long long)fork->memory_bytes / 1024,
		fork->is_diff ? "" : " (all of it: a diff was not possible)",
		(unsigned long long)fork->disk_usage_bytes / 1024);
	for (u64 i = 0; i < fork->opts.count; i++) {
		const struct clone *clone = &fork->clones[i];

		if (clone->error)
			log_err("clone %s: %s", clone->sb.id, clone->why);
		else
			printf("%s\n", clone->sb.id);
	}
	return 0;
}

static int fork_sandbox(struct fork *fork, const char *prefix)
{
	int all_fd, ret;

	all_fd = sandbox_lock_all(&fork->state, false);
	if (all_fd < 0)
		return all_fd;
	ret = sandbox_find_locked(&fork->state, prefix, &fork->parent);
	if (!ret)
		ret = sandbox_want_running(&fork->state, &fork->parent, "fork");
	if (!ret)
		ret = snapshot(fork);
	sandbox_unlock(&fork->parent);
	if (!ret)
		ret = make_clones(fork);
	if (fork->clones && print_result(fork))
		ret = -EIO;
	fd_close(&all_fd);
	return ret;
}

/** Each clone's name, or what went wrong with it. Return: 0 or -EIO. */
static int print_forks(const json_t *answer)
{
	const json_t *one;
	int failed = 0;
	size_t i;

	fprintf(stderr, "paused for %.1f ms\n",
		json_number_value(json_object_get(answer, "pause_ms")));
	json_array_foreach(json_object_get(answer, "forks"), i, one)
	{
		const json_t *box = json_object_get(one, "sandbox");
		char text[512];

		if (box) {
			printf("%s\n", client_string(box, "name"));
			continue;
		}
		failed = -EIO;
		log_err("clone %zu: %s", i + 1,
			client_printable(client_string(json_object_get(one, "error"), "message"),
					 text, sizeof(text)));
	}
	return failed;
}

static int fork_by_thawd(struct client *client, const char *box, const struct fork_opts *opts)
{
	json_t *body =
		json_pack("{s:I}", "count", (json_int_t)MAX(opts->count, (u64)opts->names.count));
	json_t *answer;
	int ret, failed;

	if (opts->names.count)
		json_object_set_new(body, "names", strings_json(&opts->names));
	if (opts->labels.count)
		json_object_set_new(body, "labels", labels_json(&opts->labels));
	ret = verb_post(client, box, "fork", body, &answer);
	if (ret)
		return ret;
	failed = opts->json ? json_print(answer) : print_forks(answer);
	json_decref(answer);
	return failed;
}

/** Return: exit status, or -1: it is none of thawd's. */
static int try_thawd(const char *prefix, const struct fork_opts *opts)
{
	struct client client;
	json_t *box = NULL;
	int ret = client_open(&client);

	if (ret)
		return ret == -ENOENT ? -1 : CLI_FAILED;
	ret = client_find(&client, prefix, &box);
	if (!ret)
		ret = fork_by_thawd(&client, client_string(box, "name"), opts);
	else if (ret == -ENOENT && verb_is_local_id(prefix))
		ret = 1;
	else if (ret == -ENOENT)
		log_err("no sandbox '%.60s': 'thaw ps -a' lists them", prefix);
	json_decref(box);
	client_close(&client);
	if (ret == 1)
		return -1;
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

int fork_main(struct cli *cli, int argc, char **argv)
{
	struct fork fork = {.opts = {.count = 1}, .parent = {.lock_fd = -1}};
	struct optparse_result result;
	int status, ret;

	(void)cli;
	status = cli_parse(&fork_command, &fork.opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (optparse_check_strategy(fork.opts.strategy, &result)) {
		log_err("%s", result.error);
		return CLI_USAGE;
	}
	status = try_thawd(result.positional[0], &fork.opts);
	if (status >= 0)
		return status;
	if (fork.opts.names.count || fork.opts.labels.count) {
		log_err("options --name and --label are for sandboxes of thawd");
		return CLI_USAGE;
	}
	if (state_init(&fork.state))
		return CLI_FAILED;
	ret = fork_sandbox(&fork, result.positional[0]);
	/* After a failure also the snapshot that nobody runs from. */
	sandbox_sweep(&fork.state);
	free(fork.clones);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}
