// SPDX-License-Identifier: Apache-2.0
// Sandboxes that stay: what nobody needs any more goes.
//
// There is no daemon that watches, so every command that deals with sandboxes looks first. It takes
// run/.lock exclusively, which it gets only while nobody makes or changes a sandbox: a snapshot
// that was published and is not locked by a clone yet can't be mistaken for one that has no clones
// left.
//
// A running thaw-vmm holds the folder of each snapshot of its chain locked (shared), however it
// ends. A paused sandbox has no process; there its meta.json counts.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/cli/lineage.h"
#include "vmm/cli/sandbox.h"
#include "vmm/cli/sandbox_jail.h"
#include "vmm/util/log.h"
#include "vmm/util/usock.h"
#include "vmm/util/util.h"

#define STRAY_WAIT_MS 5000
#define SETTLED_NS    1000000000ull

static bool snapshot_there(const struct state *state, const char *name)
{
	char path[PATH_MAX];
	struct stat st;

	state_path(state, "templates", name, "", path);
	return lstat(path, &st) == 0;
}

void sandbox_end_stray(const struct state *state, const char *id)
{
	struct ucred peer = {.pid = 0};
	socklen_t len = sizeof(peer);
	struct pollfd gone = {.events = POLLIN};
	char path[PATH_MAX];
	int fd;

	sandbox_path(state, id, "ctl", path);
	fd = usock_connect(path, SOCK_SEQPACKET);
	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid > 0) {
		gone.fd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
		if (gone.fd >= 0 && !syscall(SYS_pidfd_send_signal, gone.fd, SIGKILL, NULL, 0))
			(void)!poll(&gone, 1, STRAY_WAIT_MS);
		fd_close(&gone.fd);
	}
	fd_close(&fd);
}

bool sandbox_settled(const struct state *state, const char *id)
{
	struct vmmproc vmm;
	char path[PATH_MAX];
	bool resumed;

	sandbox_path(state, id, "ctl", path);
	if (vmmproc_own(&vmm, path, clock_now_ns() + SETTLED_NS))
		return false;
	resumed = vmm.resumed;
	vmmproc_release(&vmm);
	return resumed;
}

/** Finish or undo what a killed command left at half; remove what is dead. */
static void sweep_sandbox(const struct state *state, const char *id)
{
	struct sandbox sb;
	int ret = sandbox_load(state, id, &sb);

	/* -ENOENT: whoever made it did not get far. It can't be one that is being made: see above.
	 */
	if (ret && ret != -ENOENT) {
		log_warn("run/%s/meta.json in %s: %s: left alone", id, state->root, strerror(-ret));
		return;
	}
	if (!ret && sb.thawd)
		return;
	if (!ret && sb.pid) {
		if (sb.state == SANDBOX_RUNNING)
			return;
		/* A pause that was not written; a resume whose command was killed. One that may
		 * still be written, or still fail, is left for the next look: of a sandbox that is
		 * said to run nothing stays when its machine ends. */
		if (!sandbox_settled(state, id))
			return;
		sb.state = SANDBOX_RUNNING;
		sb.next[0] = '\0';
		ret = sandbox_save(state, &sb);
	} else if (!ret && sb.state == SANDBOX_PAUSING &&
		   (snapshot_there(state, sb.next) || !sandbox_stage_recover(state, &sb))) {
		sb.state = SANDBOX_PAUSED;
		memcpy(sb.snapshot, sb.next, sizeof(sb.snapshot));
		sb.next[0] = '\0';
		ret = sandbox_save(state, &sb);
	} else if (!ret && sb.state == SANDBOX_RESUMING) {
		/* Or there would be two of it after the next resume. */
		sandbox_end_stray(state, id);
		sb.state = SANDBOX_PAUSED;
		ret = sandbox_save(state, &sb);
	} else if (ret || sb.state != SANDBOX_PAUSED) {
		sandbox_end_stray(state, id);
		ret = sandbox_remove(state, &sb);
	}
	if (ret)
		log_warn("sandbox %s: could not be tidied up", id);
}

int sandbox_keep(const struct state *state, const char *name, bool keep)
{
	char path[PATH_MAX];
	int fd, ret = 0;

	state_path(state, "keep", NULL, NULL, path);
	if (keep && mkdir(path, 0700) < 0 && errno != EEXIST)
		ret = -errno;
	state_path(state, "keep", name, "", path);
	if (!ret && keep) {
		fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
		ret = fd < 0 ? -errno : 0;
		fd_close(&fd);
	} else if (!ret && unlink(path) < 0 && errno != ENOENT) {
		ret = -errno;
	}
	if (ret)
		log_err("%s: %s", path, strerror(-ret));
	return ret;
}

bool sandbox_kept(const struct state *state, const char *name)
{
	char path[PATH_MAX];

	state_path(state, "keep", name, "", path);
	return access(path, F_OK) == 0;
}

/** Does a sandbox without a process need it? */
static bool snapshot_wanted(const struct state *state, const struct sandbox_ids *ids,
			    const char *name)
{
	struct sandbox sb;

	if (sandbox_kept(state, name))
		return true;
	for (size_t i = 0; i < ids->count; i++) {
		int ret = sandbox_load(state, ids->ids[i], &sb);

		/* One that can't be read is left alone, so perhaps it does. One that is being
		 * paused does as soon as its machine, which may have written it, has ended. */
		if (ret ? ret != -ENOENT : !strcmp(sb.snapshot, name) || !strcmp(sb.next, name))
			return true;
	}
	return false;
}

/** Return: true when it was removed. */
static bool sweep_snapshot(const struct state *state, const struct sandbox_ids *ids,
			   const char *name)
{
	struct state_names dependents;
	bool needed;
	int fd;

	if (snapshot_wanted(state, ids, name))
		return false;
	if (lineage_dependents(state, name, &dependents))
		return false;
	needed = dependents.count != 0;
	state_names_free(&dependents);
	if (needed)
		return false;
	fd = state_lock_template(state, name, true);
	if (fd < 0)
		return false;
	needed = state_remove_template(state, name, fd) != 0;
	fd_close(&fd);
	return !needed;
}

/** Removing one may leave its parent without dependents. */
static void sweep_snapshots(const struct state *state, const struct sandbox_ids *ids)
{
	struct state_names names;
	bool again;

	do {
		again = false;
		if (state_list_templates(state, &names))
			return;
		for (size_t i = 0; i < names.count; i++) {
			if (sandbox_is_snap(names.names[i]))
				again |= sweep_snapshot(state, ids, names.names[i]);
		}
		state_names_free(&names);
	} while (again);
}

/** Folders of snapshots whose machine was killed while it wrote them. */
static void sweep_halves(const struct state *state, const struct sandbox_ids *ids)
{
	char path[PATH_MAX], name[SANDBOX_SNAP_CHARS + 1];
	struct dirent *entry;
	DIR *dir;

	state_path(state, "templates", NULL, NULL, path);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, "." SANDBOX_SNAP_PREFIX,
			    sizeof("." SANDBOX_SNAP_PREFIX) - 1))
			continue;
		/* What one is being paused into may be all that is left of it. */
		snprintf(name, sizeof(name), "%s", entry->d_name + 1);
		if (!snapshot_wanted(state, ids, name))
			(void)!state_remove_flat(dirfd(dir), entry->d_name, true);
	}
	if (dir)
		closedir(dir);
}

bool sandbox_sweep(const struct state *state)
{
	struct sandbox_ids ids;
	char path[PATH_MAX];
	struct stat st;
	int lock_fd;

	state_path(state, "run", NULL, NULL, path);
	if (lstat(path, &st) < 0)
		return true;
	lock_fd = sandbox_lock_all(state, true);
	if (lock_fd < 0)
		return false;
	if (!sandbox_list(state, &ids)) {
		for (size_t i = 0; i < ids.count; i++)
			sweep_sandbox(state, ids.ids[i]);
		sweep_halves(state, &ids);
		sweep_snapshots(state, &ids);
	}
	free(ids.ids);
	fd_close(&lock_fd);
	return true;
}
