// SPDX-License-Identifier: Apache-2.0
// The shells of a jailed pool.
//
// No zygote: it would have to be root to give its children users of their own, and it has looked
// into the snapshot. Each shell is a process that was started for itself, with a uid, namespaces
// and a cgroup of its own, and shares no address space layout with its siblings. That costs the
// pool some milliseconds of work a shell, and a claim nothing.
//
// A shell that was handed out may outlive the pool, so its cgroup is removed by whoever of this
// pool, or the next one of the template, finds it empty.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/cli/pool_internal.h"
#include "vmm/cli/sandbox_jail.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static void jail_config(const struct pool *pool, struct sandbox_jail *jail)
{
	*jail = (struct sandbox_jail){.limits = {0}};
	jail_config_default(&jail->config);
	jail->config.require_cgroup = pool->opts.jail != SANDBOX_JAIL_NO_CGROUP;
}

static int prefix(const struct pool *pool, char *out, size_t max)
{
	return snprintf(out, max, "pool.%s.", pool->opts.name) < (int)max ? 0 : -ENAMETOOLONG;
}

/** Start it, with @cell to be born in. */
static int start(struct pool *pool, const struct sandbox_cell *cell, struct vmmproc *proc)
{
	char folder[PATH_MAX], scratch[PATH_MAX];
	const char *argv[10 + SANDBOX_JAIL_WORDS] = {"thaw-vmm", "restore", folder, "--strategy"};
	struct vmmproc_opts opts = {.argv = argv,
				    .output_fd = -1,
				    .log_fd = STDERR_FILENO,
				    .file_fd = -1,
				    .jail = &cell->jail};
	size_t n = 4;
	int ret;

	ret = state_make_scratch(&pool->state);
	if (ret)
		return ret;
	state_path(&pool->state, "templates", pool->opts.name, "", folder);
	state_path(&pool->state, "scratch", NULL, NULL, scratch);
	argv[n++] = pool->strategy;
	argv[n++] = "--disk-dir";
	argv[n++] = scratch;
	argv[n++] = "--wait";
	argv[n++] = "--ctl-fd";
	argv[n++] = VMMPROC_CTL_TEXT;
	n += sandbox_cell_words(cell, argv + n);
	argv[n] = NULL;
	return vmmproc_start(proc, &opts);
}

int pool_jail_start(struct pool *pool)
{
	struct vmmproc proc = {.ctl_fd = -1, .log_fd = -1, .accept_fd = -1};
	char start_of[STATE_NAME_MAX + 8], name[STATE_NAME_MAX + 8 + SANDBOX_ID_CHARS];
	char hex[SANDBOX_ID_CHARS + 1];
	struct sandbox_cell cell;
	struct sandbox_jail jail;
	int pid_fd = -1, ret;

	jail_config(pool, &jail);
	ret = prefix(pool, start_of, sizeof(start_of));
	ret = ret ?: sandbox_random_hex(hex);
	if (ret)
		return ret;
	snprintf(name, sizeof(name), "%s%s", start_of, hex);
	ret = sandbox_cell_open(&pool->state, pool->opts.name, name, &jail, &cell);
	ret = ret ?: start(pool, &cell, &proc);
	sandbox_cell_close(&cell);
	if (!ret) {
		pid_fd = (int)syscall(SYS_pidfd_open, proc.pid, 0);
		ret = pid_fd < 0 ? -errno : 0;
	}
	if (ret) {
		vmmproc_end(&proc);
		return ret;
	}
	/* From here on known by its channel and its pidfd, as a zygote's; SIGCHLD is ignored, so
	 * that nobody has to reap it. */
	pool->shells[pool->nshells++] = (struct pool_shell){.serial = ++pool->last_serial,
							    .ctl_fd = proc.ctl_fd,
							    .pid_fd = pid_fd,
							    .pid = proc.pid};
	return 0;
}

void pool_jail_sweep(const struct pool *pool)
{
	struct sandbox_jail jail;
	char start_of[NAME_MAX + 1];
	struct dirent *entry;
	DIR *dir;

	jail_config(pool, &jail);
	dir = opendir(jail.config.cgroup_root);
	while (dir && !prefix(pool, start_of, sizeof(start_of)) && (entry = readdir(dir))) {
		/* Refused while somebody is in there. */
		if (!strncmp(entry->d_name, start_of, strlen(start_of)))
			(void)unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
	}
	if (dir)
		closedir(dir);
}
