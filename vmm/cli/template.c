// SPDX-License-Identifier: Apache-2.0
// `thaw template`: list, inspect, verify and remove templates.
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/hot_show.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/lineage.h"
#include "vmm/cli/optparse.h"
#include "vmm/cli/sandbox.h"
#include "vmm/cli/state.h"
#include "vmm/cli/sweep.h"
#include "vmm/snapshot/seal.h"
#include "vmm/snapshot/snapshot.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

struct template_opts {
	bool json;
};

static const struct optparse_spec json_specs[] = {
	{"output", 'o', "json", optparse_json, offsetof(struct template_opts, json), "as JSON",
	 NULL},
	{"json", 0, NULL, optparse_flag, offsetof(struct template_opts, json), "the same", NULL},
};

const struct optparse_command template_list_command = {
	.usage = "thaw template ls [--json]",
	.summary = "List the templates.",
	.specs = json_specs,
	.nspecs = ARRAY_SIZE(json_specs),
};

const struct optparse_command template_inspect_command = {
	.usage = "thaw template inspect NAME [--json]",
	.summary = "Show what template NAME is: its manifest, its place, its size and its hot set.",
	.specs = json_specs,
	.nspecs = ARRAY_SIZE(json_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
};

const struct optparse_command template_remove_command = {
	.usage = "thaw template rm NAME...",
	.summary = "Remove templates. One that a sandbox runs from is not removed.",
	.positional_min = 1,
	.positional_max = OPTPARSE_POSITIONAL_MAX,
	.positional_name = "NAME",
};

const struct optparse_command template_verify_command = {
	.usage = "thaw template verify NAME",
	.summary =
		"Read all of template NAME and compare it with its digests. A run checks only the small files.",
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
};

/** A template as the listing shows it. */
struct entry {
	char folder[PATH_MAX];
	struct snap_manifest manifest;
	json_t *json;	 /* manifest.json, parsed: for what struct snap_manifest does not hold */
	json_t *lineage; /* what it is a diff of, the parent first */
	json_t *verity;	 /* fs-verity digests of its files by name, or null; entry_read_more() */
	struct hot_summary hot;
	u64 disk_usage_bytes;
	bool in_use;
};

/** Return: 0 (entry_free() is due) or -errno (logged). */
static int entry_read(const struct state *state, const char *name, struct entry *entry)
{
	int dirfd, ret;

	*entry = (struct entry){.json = NULL};
	state_path(state, "templates", name, "", entry->folder);
	dirfd = open(entry->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dirfd < 0) {
		ret = -errno;
		if (ret == -ENOENT)
			log_err("no template '%s' in %s/templates: 'thaw template ls' lists them",
				name, state->root);
		else
			log_err("%s: %s", entry->folder, strerror(-ret));
		return ret;
	}
	ret = snap_manifest_read(dirfd, entry->folder, &entry->manifest);
	close(dirfd);
	if (ret)
		return ret;
	entry->json = json_loadb(entry->manifest.json, entry->manifest.json_len_bytes, 0, NULL);
	entry->lineage = lineage_json(state, &entry->manifest);
	if (!entry->json || !entry->lineage)
		ret = -ENOMEM;
	if (!ret)
		ret = state_disk_usage(entry->folder, &entry->disk_usage_bytes);
	if (ret) {
		log_err("%s: %s", entry->folder, strerror(-ret));
		json_decref(entry->json);
		json_decref(entry->lineage);
		snap_manifest_free(&entry->manifest);
		return ret;
	}
	entry->in_use = state_in_use(state, name);
	return 0;
}

static void entry_free(struct entry *entry)
{
	json_decref(entry->json);
	json_decref(entry->lineage);
	json_decref(entry->verity);
	snap_manifest_free(&entry->manifest);
}

/** Return: what the file system measures each file by, null if none, or NULL without memory. */
static json_t *read_verity(const char *folder)
{
	int dirfd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	json_t *object = json_object();
	char text[SNAP_SEAL_TEXT];

	for (const char *const *name = snap_seal_names(); *name && object; name++) {
		if (dirfd < 0 || snap_seal_digest(dirfd, *name, text) || !*text)
			continue;
		if (json_object_set_new(object, *name, json_string(text))) {
			json_decref(object);
			object = NULL;
		}
	}
	if (dirfd >= 0)
		close(dirfd);
	if (!object || json_object_size(object))
		return object;
	json_decref(object);
	return json_null();
}

/** What only the whole snapshot tells. Return: 0 or -errno (logged). */
static int entry_read_more(struct entry *entry)
{
	entry->verity = read_verity(entry->folder);
	if (!entry->verity) {
		log_err("%s: out of memory", entry->folder);
		return -ENOMEM;
	}
	return hot_summary_read(entry->folder, &entry->hot);
}

static json_t *entry_json(const struct entry *entry, const char *name)
{
	return json_pack("{s:s, s:s, s:I, s:b, s:O, s:O, s:o, s:O}", "name", name, "path",
			 entry->folder, "disk_usage_bytes", (json_int_t)entry->disk_usage_bytes,
			 "in_use", entry->in_use, "lineage", entry->lineage, "verity",
			 entry->verity, "hot", hot_summary_json(&entry->hot), "manifest",
			 entry->json);
}

static long long vcpus_of(const struct entry *entry)
{
	return json_integer_value(json_object_get(entry->json, "vcpus"));
}

static unsigned long long to_mib(u64 bytes)
{
	return (bytes + MIB - 1) / MIB;
}

static void print_row(const char *name, const struct entry *entry)
{
	const struct snap_manifest *manifest = &entry->manifest;

	printf("%-20s %5lld %7llu MiB %6llu MiB  %-28s %-22s %s%s%s\n", name, vcpus_of(entry),
	       to_mib(manifest->memory_bytes), to_mib(entry->disk_usage_bytes), manifest->kernel,
	       manifest->created, manifest->parent ? manifest->parent : "-",
	       manifest->diff_digest ? " (diff)" : "", entry->in_use ? " (in use)" : "");
}

/** @array: NULL for a table. Return: 0, or -errno of one that could not be read: the others are
 * listed all the same. */
static int list_all(const struct state *state, const struct state_names *names, json_t *array)
{
	int ret = 0;

	for (size_t i = 0; i < names->count; i++) {
		struct entry entry;
		int one;

		/* They come and go with sandboxes: thaw ps lists those. */
		if (sandbox_is_snap(names->names[i]))
			continue;
		one = entry_read(state, names->names[i], &entry);

		if (one) {
			/* Removed by another process since the folder was read: not an error of the
			 * listing. */
			ret = access(entry.folder, F_OK) < 0 ? ret : one;
			continue;
		}
		if (!array)
			print_row(names->names[i], &entry);
		else if (entry_read_more(&entry))
			ret = -EIO;
		else if (json_array_append_new(array, entry_json(&entry, names->names[i])))
			ret = -ENOMEM;
		entry_free(&entry);
	}
	return ret;
}

int template_list_main(struct cli *cli, int argc, char **argv)
{
	struct template_opts opts = {0};
	struct optparse_result result;
	struct state_names names;
	struct state state;
	json_t *array = NULL;
	int status, ret;

	(void)cli;
	status = cli_parse(&template_list_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (state_init(&state))
		return CLI_FAILED;
	state_sweep(&state);
	if (state_list_templates(&state, &names))
		return CLI_FAILED;
	if (opts.json)
		array = json_array();
	else if (names.count)
		printf("%-20s %5s %11s %10s  %-28s %-22s %s\n", "NAME", "VCPUS", "MEMORY",
		       "ON DISK", "KERNEL", "CREATED", "PARENT");
	ret = opts.json && !array ? -ENOMEM : list_all(&state, &names, array);
	if (array && json_print(array))
		ret = -EIO;
	if (!opts.json && !names.count)
		fprintf(stderr, "no templates in %s: 'thaw template build debian' makes one\n",
			state.root);
	json_decref(array);
	state_names_free(&names);
	return cli_flush() || ret ? CLI_FAILED : CLI_OK;
}

/** The one positional argument as a name. Return: CLI_OK or the exit status. */
static int take_name(const struct optparse_result *result, int index, const char **out)
{
	const char *why;

	if (!optparse_name(out, result->positional[index], &why))
		return CLI_OK;
	log_err("'%.60s' is not a template's name: %s", result->positional[index], why);
	return CLI_USAGE;
}

/** What a diff stands on: "1234 pages differ from a, which differs from b". */
static void print_lineage(const struct entry *entry)
{
	size_t index;
	json_t *item;

	if (!entry->manifest.diff_digest)
		return;
	printf("diff          %llu pages kept; the others are in",
	       (unsigned long long)entry->manifest.diff_pages);
	json_array_foreach(entry->lineage, index, item)
	{
		printf("%s %s", index ? " <-" : "", json_string_value(item));
	}
	putchar('\n');
}

static void print_text(const char *name, const struct entry *entry)
{
	const struct snap_manifest *manifest = &entry->manifest;

	printf("name          %s\n", name);
	printf("path          %s\n", entry->folder);
	printf("created       %s\n", manifest->created);
	printf("parent        %s\n", manifest->parent ? manifest->parent : "-");
	print_lineage(entry);
	printf("kernel        %s\n", manifest->kernel);
	printf("vcpus         %lld\n", vcpus_of(entry));
	printf("memory        %llu MiB\n", to_mib(manifest->memory_bytes));
	printf("scratch disk  %llu MiB\n", to_mib(manifest->disk_bytes));
	printf("root image    %s\n", manifest->root_image ? manifest->root_image : "-");
	printf("cpu           %s (%s, signature %#x)\n", manifest->cpu_model, manifest->cpu_vendor,
	       manifest->cpu_signature);
	printf("on disk       %llu MiB\n", to_mib(entry->disk_usage_bytes));
	printf("in use        %s\n", entry->in_use ? "yes" : "no");
	printf("verity        %s\n",
	       json_is_null(entry->verity)
		       ? "no"
		       : json_string_value(json_object_get(entry->verity, "memory")) ?: "partly");
	hot_summary_print(&entry->hot);
}

int template_inspect_main(struct cli *cli, int argc, char **argv)
{
	struct template_opts opts = {0};
	struct optparse_result result;
	struct entry entry;
	struct state state;
	const char *name;
	json_t *object;
	int status;

	(void)cli;
	status = cli_parse(&template_inspect_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	status = take_name(&result, 0, &name);
	if (status)
		return status;
	if (state_init(&state) || entry_read(&state, name, &entry))
		return CLI_FAILED;
	if (entry_read_more(&entry)) {
		status = CLI_FAILED;
	} else if (opts.json) {
		object = entry_json(&entry, name);
		if (!object)
			log_err("%s: out of memory", name);
		status = object && !json_print(object) ? CLI_OK : CLI_FAILED;
		json_decref(object);
	} else {
		print_text(name, &entry);
		status = cli_flush() ? CLI_FAILED : CLI_OK;
	}
	entry_free(&entry);
	return status;
}

static int remove_one(const struct state *state, const char *name)
{
	int lock_fd, ret;

	if (sandbox_is_snap(name)) {
		log_err("template '%s' belongs to sandboxes, and goes with them: 'thaw ps' lists them",
			name);
		return -EINVAL;
	}
	lock_fd = state_lock_template(state, name, true);
	if (lock_fd == -ENOENT)
		log_err("no template '%s' in %s/templates", name, state->root);
	else if (lock_fd == -EBUSY)
		log_err("template '%s' is in use: a sandbox runs from it, or a build restores it; "
			"end that first",
			name);
	else if (lock_fd < 0)
		log_err("%s/templates/%s: %s", state->root, name, strerror(-lock_fd));
	if (lock_fd < 0)
		return lock_fd;
	ret = lineage_refuse(state, name, "removed");
	if (!ret)
		ret = state_remove_template(state, name, lock_fd);
	fd_close(&lock_fd);
	return ret;
}

/** has_dependent() - is one of @names a diff of @name? */
static bool has_dependent(const struct state *state, const char *name, const char *const *names,
			  size_t count)
{
	struct state_names dependents;
	bool found = false;

	/* If that can't be told, remove_one() will not remove it. */
	if (lineage_dependents(state, name, &dependents))
		return false;
	for (size_t i = 0; i < dependents.count && !found; i++) {
		for (size_t j = 0; j < count && !found; j++)
			found = names[j] && !strcmp(names[j], dependents.names[i]);
	}
	state_names_free(&dependents);
	return found;
}

/** remove_all() - in an order in which a diff goes before its parent, whatever the order of @names,
 * which is used up. Return: exit status. */
static int remove_all(const struct state *state, const char **names, size_t count)
{
	int status = CLI_OK;
	bool again;

	do {
		again = false;
		for (size_t i = 0; i < count; i++) {
			if (!names[i] || has_dependent(state, names[i], names, count))
				continue;
			if (remove_one(state, names[i]))
				status = CLI_FAILED;
			names[i] = NULL;
			again = true;
		}
	} while (again);
	return status;
}

int template_remove_main(struct cli *cli, int argc, char **argv)
{
	const char *names[OPTPARSE_POSITIONAL_MAX];
	struct template_opts opts = {0};
	struct optparse_result result;
	struct state state;
	int status;

	(void)cli;
	status = cli_parse(&template_remove_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	/* All names first: a mistyped one must not stop half way. */
	for (int i = 0; i < result.npositional; i++) {
		status = take_name(&result, i, &names[i]);
		if (status)
			return status;
	}
	if (state_init(&state))
		return CLI_FAILED;
	state_sweep(&state);
	return remove_all(&state, names, (size_t)result.npositional);
}

int template_verify_main(struct cli *cli, int argc, char **argv)
{
	struct template_opts opts = {0};
	struct optparse_result result;
	char folder[PATH_MAX];
	struct state state;
	struct snap snap;
	const char *name;
	int lock_fd, status;

	(void)cli;
	status = cli_parse(&template_verify_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	status = take_name(&result, 0, &name);
	if (status)
		return status;
	if (state_init(&state))
		return CLI_FAILED;
	lock_fd = state_lock_template(&state, name, false);
	if (lock_fd < 0) {
		log_err("template '%s': %s", name,
			lock_fd == -ENOENT ? "there is none" : strerror(-lock_fd));
		return CLI_FAILED;
	}
	state_path(&state, "templates", name, "", folder);
	status = CLI_FAILED;
	if (!snap_open(&snap, folder)) {
		if (!snap_verify(&snap))
			status = CLI_OK;
		snap_close(&snap);
	}
	fd_close(&lock_fd);
	if (status == CLI_OK)
		printf("%s: whole\n", name);
	return cli_flush() ? CLI_FAILED : status;
}

const struct cli_command template_commands[TEMPLATE_COMMANDS] = {
	CLI_COMMAND("build", "boot a guest, warm it up, keep a snapshot of it", template_build_main,
		    &template_build_command),
	CLI_COMMAND("ls", "list the templates", template_list_main, &template_list_command),
	CLI_COMMAND("inspect", "show what a template is", template_inspect_main,
		    &template_inspect_command),
	CLI_COMMAND("verify", "read all of a template and compare it with its digests",
		    template_verify_main, &template_verify_command),
	CLI_COMMAND("flatten", "make a template whole that is kept as a difference",
		    template_flatten_main, &template_flatten_command),
	CLI_COMMAND("record", "record the hot set again", template_record_main,
		    &template_record_command),
	CLI_COMMAND("rm", "remove templates", template_remove_main, &template_remove_command),
	CLI_COMMAND("export", "write a template as one compressed file", template_export_main,
		    &template_export_command),
	CLI_COMMAND("import", "make a template of an exported one", template_import_main,
		    &template_import_command),
	CLI_COMMAND("pack", "add what strategy pack reads to a template", template_pack_main,
		    &template_pack_command),
};

int template_main(struct cli *cli, int argc, char **argv)
{
	return cli_dispatch(cli, "thaw template", template_commands, TEMPLATE_COMMANDS, argc, argv);
}
