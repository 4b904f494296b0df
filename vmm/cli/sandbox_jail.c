// SPDX-License-Identifier: Apache-2.0
// Jails of sandboxes: what their machines are told.
//
// A thaw-vmm may not look into its snapshot before it is jailed, and can't open anything
// afterwards. So the names that the snapshot leads to, its parents' and its root image's, are read
// from the manifests here, where nothing but these names is taken from them. Should they be wrong,
// the machine finds that something was not handed over, and does not start.
#include "vmm/cli/sandbox_jail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/manifest.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/* What a machine writes beside memory and disk: its console. */
#define FILE_MORE_BYTES (256 * MIB)

static int read_manifest(const struct state *state, const char *name, struct snap_manifest *out)
{
	char path[PATH_MAX];
	int fd = state_lock_template(state, name, false), ret;

	if (fd < 0) {
		log_err("%s/templates/%s: %s", state->root, name, strerror(-fd));
		return fd;
	}
	state_path(state, "templates", name, "", path);
	ret = snap_manifest_read(fd, path, out);
	fd_close(&fd);
	return ret;
}

static int add_parent(struct sandbox_cell *cell, const char *name)
{
	size_t used = strlen(cell->parents);
	int n;

	if (!state_name_ok(name) && !sandbox_is_snap(name)) {
		log_err("'%.60s': no name of a snapshot", name);
		return -EINVAL;
	}
	n = snprintf(cell->parents + used, sizeof(cell->parents) - used, "%s%s", used ? ":" : "",
		     name);
	return n < (int)(sizeof(cell->parents) - used) ? 0 : -ENAMETOOLONG;
}

/** The names and sizes in the manifests of @name and those it stands on. */
static int read_chain(const struct state *state, const char *name, struct sandbox_cell *cell,
		      struct jail_limits *limits, u64 *file_max_bytes)
{
	struct snap_manifest manifest;
	char next[STATE_NAME_MAX + 1];
	int ret;

	ret = read_manifest(state, name, &manifest);
	if (ret)
		return ret;
	jail_limits_default(limits, manifest.memory_bytes, manifest.vcpus);
	*file_max_bytes = MAX(manifest.memory_bytes, manifest.disk_bytes) + FILE_MORE_BYTES;
	cell->root_image = manifest.root_image ? strdup(manifest.root_image) : NULL;
	if (manifest.root_image && !cell->root_image)
		ret = -ENOMEM;
	for (int depth = 1; !ret && manifest.diff_digest && manifest.parent; depth++) {
		ret = depth < SNAP_CHAIN_MAX ? add_parent(cell, manifest.parent) : -ELOOP;
		snprintf(next, sizeof(next), "%s", manifest.parent);
		snap_manifest_free(&manifest);
		if (!ret)
			ret = read_manifest(state, next, &manifest);
		if (ret)
			return ret;
	}
	snap_manifest_free(&manifest);
	return ret;
}

/** So that who removes the sandbox knows, also with other settings. */
static int write_down(const struct state *state, const struct sandbox *sb, const char *cgroup_path)
{
	char path[PATH_MAX];
	int fd, ret;

	sandbox_path(state, sb->id, "cgroup", path);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	ret = fd < 0 ? -errno : fd_write_full(fd, cgroup_path, strlen(cgroup_path));
	fd_close(&fd);
	if (ret)
		log_err("%s: %s", path, strerror(-ret));
	return ret;
}

static bool are_given(const struct jail_limits *limits)
{
	return limits->memory_max_bytes || limits->cpu_max_milli || limits->cpu_weight ||
	       limits->pids_max || limits->io_max_bytes_s;
}

int sandbox_cell_open(const struct state *state, const char *snapshot, const char *name,
		      const struct sandbox_jail *jail, struct sandbox_cell *cell)
{
	struct jail_limits limits;
	u64 file_max_bytes;
	int ret;

	*cell = (struct sandbox_cell){.jail = {.slot_fd = -1, .cgroup_fd = -1}};
	if (geteuid() != 0) {
		log_err("%s: a jail needs root, which can give a machine a user of its own", name);
		return -EPERM;
	}
	ret = read_chain(state, snapshot, cell, &limits, &file_max_bytes);
	if (ret)
		return ret;
	if (are_given(&jail->limits))
		limits = jail->limits;
	ret = jail_prepare(state, &jail->config, name, &limits, &cell->jail);
	if (ret)
		return ret;
	snprintf(cell->uid, sizeof(cell->uid), "%u", cell->jail.uid);
	snprintf(cell->file_max, sizeof(cell->file_max), "%llu",
		 (unsigned long long)file_max_bytes);
	return 0;
}

int sandbox_cell_make(const struct state *state, const struct sandbox *sb,
		      const struct sandbox_jail *jail, struct sandbox_cell *cell)
{
	int ret = sandbox_cell_open(state, sb->snapshot, sb->id, jail, cell);

	return !ret && cell->jail.cgroup_path[0] ? write_down(state, sb, cell->jail.cgroup_path)
						 : ret;
}

size_t sandbox_cell_words(const struct sandbox_cell *cell, const char **out)
{
	size_t n = 0;

	out[n++] = "--jail";
	out[n++] = cell->uid;
	out[n++] = "--file-max";
	out[n++] = cell->file_max;
	if (cell->parents[0]) {
		out[n++] = "--parents";
		out[n++] = cell->parents;
	}
	if (cell->root_image) {
		out[n++] = "--root-image";
		out[n++] = cell->root_image;
	}
	BUG_ON(n > SANDBOX_JAIL_WORDS);
	return n;
}

void sandbox_cell_close(struct sandbox_cell *cell)
{
	jail_close(&cell->jail);
	free(cell->root_image);
	cell->root_image = NULL;
}

void sandbox_cell_remove(const struct state *state, const char *id)
{
	char path[PATH_MAX], *cgroup_path;

	sandbox_path(state, id, "cgroup", path);
	if (file_read_all(AT_FDCWD, path, PATH_MAX - 1, &cgroup_path, NULL))
		return;
	if (cgroup_path[0] == '/' && jail_remove_path(cgroup_path))
		log_warn("sandbox %s: its cgroup stays", id);
	free(cgroup_path);
}
