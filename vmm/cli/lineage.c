// SPDX-License-Identifier: Apache-2.0
// Diffs among the templates: who depends on whom, and `thaw template flatten`.
#include "vmm/cli/lineage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/optparse.h"
#include "vmm/cli/sandbox.h"
#include "vmm/snapshot/diff.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * A diff names its parent and the digest of the parent's state file. A template of the parent's
 * name but with another digest is no parent: the diff is orphaned already, and stands in nobody's
 * way.
 *
 * Between the look at the dependents and the removal another build may make a new diff. It holds
 * its parent locked (shared) from before it restores it until it is published, and `rm` looks while
 * it holds that lock exclusively, so `rm` can't miss one. What replaces a template takes no such
 * lock; there the diff's writer looks whether its parent is still in its place before it publishes,
 * a build looks for diffs once more right before its snapshot, and a sandbox that is forked or
 * paused while its template is being built is written whole (snapreq.c).
 */

static int open_template(const struct state *state, const char *name)
{
	char path[PATH_MAX];
	int fd;

	state_path(state, "templates", name, "", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/** read_digest() - header.digest of a template's state file, not checked. Return: 0 or -errno. */
static int read_digest(int dirfd, char hex[SNAP_DIGEST_HEX])
{
	struct snap_header header;
	int fd, ret;

	fd = openat(dirfd, SNAP_FILE_STATE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = fd_pread_full(fd, &header, sizeof(header), 0);
	fd_close(&fd);
	if (!ret)
		snap_digest_hex(header.digest, hex);
	return ret;
}

/** read_manifest() - without a message: one that is damaged is told of by those who use it. */
static int read_manifest(const struct state *state, const char *name, struct snap_manifest *out)
{
	int dirfd = open_template(state, name), ret;
	char *text = NULL;
	size_t len_bytes;

	*out = (struct snap_manifest){.version = 0};
	if (dirfd < 0)
		return dirfd;
	ret = file_read_all(dirfd, SNAP_FILE_MANIFEST, SNAP_MANIFEST_MAX_BYTES, &text, &len_bytes);
	if (!ret)
		ret = snap_manifest_parse(text, len_bytes, out, NULL, 0);
	free(text);
	fd_close(&dirfd);
	return ret;
}

/** depends() - is template @name a diff of @parent, whose state has @digest_hex ("": unknown, any)?
 * Return: 1, 0 (also of what is damaged), or -errno: it could not be looked at. */
static int depends(const struct state *state, const char *name, const char *parent,
		   const char *digest_hex)
{
	struct snap_manifest manifest;
	bool found;
	int ret;

	ret = read_manifest(state, name, &manifest);
	/* Not the manifest's fault: the next look may find a diff. */
	if (ret == -EMFILE || ret == -ENFILE || ret == -ENOMEM || ret == -EIO)
		return ret;
	if (ret)
		return 0;
	found = manifest.diff_parent_state && !strcmp(manifest.parent, parent) &&
		(!*digest_hex || !strcmp(manifest.diff_parent_state, digest_hex));
	snap_manifest_free(&manifest);
	return found;
}

int lineage_dependents(const struct state *state, const char *name, struct state_names *out)
{
	char digest_hex[SNAP_DIGEST_HEX] = "";
	size_t kept = 0;
	int dirfd, ret;

	ret = state_list_templates(state, out);
	if (ret)
		return ret;
	dirfd = open_template(state, name);
	/* Then any that names it counts: rather one refusal too many. */
	if (dirfd < 0 || read_digest(dirfd, digest_hex))
		digest_hex[0] = '\0';
	fd_close(&dirfd);
	ret = 0;
	for (size_t i = 0; i < out->count && ret >= 0; i++) {
		ret = depends(state, out->names[i], name, digest_hex);
		if (ret > 0)
			memmove(out->names[kept++], out->names[i], sizeof(out->names[i]));
		else if (ret < 0)
			log_err("%s/templates/%s: can't tell whether it is a diff of '%s': %s",
				state->root, out->names[i], name, strerror(-ret));
	}
	out->count = kept;
	if (ret < 0)
		state_names_free(out);
	return MIN(ret, 0);
}

int lineage_refuse(const struct state *state, const char *name, const char *what)
{
	struct state_names names;
	char list[512] = "";
	size_t used = 0;
	int ret;

	ret = lineage_dependents(state, name, &names);
	if (ret)
		return ret;
	for (size_t i = 0; i < names.count; i++) {
		if (used < sizeof(list))
			used += (size_t)snprintf(list + used, sizeof(list) - used, "%s'%s'",
						 used ? ", " : "", names.names[i]);
	}
	if (!names.count) {
		state_names_free(&names);
		return 0;
	}
	if (sandbox_is_snap(names.names[0]) && sandbox_is_snap(names.names[names.count - 1])) {
		log_err("template '%s' can't be %s: sandboxes that were forked or paused need it: "
			"'thaw ps' lists them",
			name, what);
		state_names_free(&names);
		return -EBUSY;
	}
	log_err("template '%s' can't be %s: %zu template%s only what differs from it: %s%s; "
		"'thaw template flatten' makes %s whole",
		name, what, names.count, names.count == 1 ? " holds" : "s hold", list,
		used < sizeof(list) ? "" : "...", names.count == 1 ? "it" : "each of them");
	state_names_free(&names);
	return -EBUSY;
}

json_t *lineage_json(const struct state *state, const struct snap_manifest *manifest)
{
	json_t *list = json_array();
	struct snap_manifest link;
	char name[STATE_NAME_MAX + 1];

	if (!list || !manifest->diff_digest)
		return list;
	snprintf(name, sizeof(name), "%s", manifest->parent);
	for (unsigned int depth = 1; depth < SNAP_CHAIN_MAX; depth++) {
		bool more;

		if (json_array_append_new(list, json_string(name))) {
			json_decref(list);
			return NULL;
		}
		if (read_manifest(state, name, &link))
			break;
		more = link.diff_digest != NULL;
		if (more)
			snprintf(name, sizeof(name), "%s", link.parent);
		snap_manifest_free(&link);
		if (!more)
			break;
	}
	return list;
}

struct flatten_opts {
	bool none;
};

const struct optparse_command template_flatten_command = {
	.usage = "thaw template flatten NAME",
	.summary = "Make template NAME whole, if it holds only what differs from its parent.",
	.details = "Its content and hot set stay. Sandboxes that run from it go on.",
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
};

struct flatten {
	const struct state *state;
	const char *name;
};

/** Its digest changes: diffs of it would lose their parent. */
static bool has_no_diffs(void *opaque)
{
	const struct flatten *flatten = opaque;

	return !lineage_refuse(flatten->state, flatten->name, "flattened");
}

static int flatten(const struct state *state, const char *name)
{
	struct flatten which = {.state = state, .name = name};
	char folder[PATH_MAX];
	struct snap snap;
	int ret;

	state_path(state, "templates", name, "", folder);
	ret = snap_load(&snap, folder);
	if (!ret && !snap.diff)
		printf("%s: is whole already\n", name);
	if (!ret && snap.diff) {
		/* Now, before all the work, and again when it is done. */
		ret = has_no_diffs(&which) ? snap_flatten(&snap, has_no_diffs, &which) : -EBUSY;
		if (!ret)
			printf("%s: whole\n", name);
	}
	snap_close(&snap);
	return ret;
}

int template_flatten_main(struct cli *cli, int argc, char **argv)
{
	struct flatten_opts opts = {0};
	struct optparse_result result;
	struct state state;
	const char *name, *why;
	int lock_fd, status, ret;

	(void)cli;
	status = cli_parse(&template_flatten_command, &opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (optparse_name(&name, result.positional[0], &why)) {
		log_err("'%.60s' is not a template's name: %s", result.positional[0], why);
		return CLI_USAGE;
	}
	if (state_init(&state))
		return CLI_FAILED;
	lock_fd = open_template(&state, name);
	if (lock_fd < 0) {
		log_err("template '%s': %s", name,
			lock_fd == -ENOENT ? "there is none" : strerror(-lock_fd));
		return CLI_FAILED;
	}
	fd_close(&lock_fd);
	/* A build of this name would publish over what is published here, or the other way round.
	 */
	lock_fd = state_lock_build(&state, name);
	if (lock_fd == -EBUSY)
		log_err("template '%s' is being built by another process", name);
	if (lock_fd < 0)
		return CLI_FAILED;
	ret = flatten(&state, name);
	state_unlock_build(&state, name, &lock_fd);
	return ret || fflush(stdout) ? CLI_FAILED : CLI_OK;
}
