// SPDX-License-Identifier: Apache-2.0
// What a new thawd makes of what the last one left.
//
// The order of writes in box_start.c, box_stop.c and box_pause.c is what this relies on: the row
// names the machine's folder before the machine exists, and says that it runs only when it does; it
// says that a box stops, and why, before that begins; a snapshot is kept before it is written.
#include "vmm/daemon/reconcile.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/cli/sandbox_jail.h"
#include "vmm/daemon/box_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define GONE_MS	    10000
#define RECONCILERS 64 /* threads: a guest that is stuck takes seconds, and there may be many */

enum reconcile_action reconcile_decide(enum box_state state, const struct reconcile_found *found)
{
	enum reconcile_action lost = found->deleting ? RECONCILE_REMOVE
				     : found->over   ? RECONCILE_OVER
						     : RECONCILE_LOST;

	switch (state) {
	case BOX_CREATING:
		return RECONCILE_REMOVE;
	case BOX_STARTING:
		/* Who asked for it never heard of it, and its entrypoint may not run. */
		return found->deleting ? RECONCILE_REMOVE : RECONCILE_LOST;
	case BOX_RUNNING:
		return found->lives && found->settled ? RECONCILE_ADOPT : lost;
	case BOX_STOPPING:
		return found->deleting ? RECONCILE_REMOVE : RECONCILE_STOP;
	case BOX_PAUSING:
		if (found->lives && found->settled)
			return RECONCILE_ADOPT;
		return found->snapshot && !found->lives ? RECONCILE_PAUSED : lost;
	case BOX_RESUMING:
		return RECONCILE_PAUSED;
	case BOX_STOPPED:
	case BOX_FAILED:
		return found->deleting ? RECONCILE_REMOVE : RECONCILE_KEEP;
	case BOX_PAUSED:
	case BOX_STATES:
		break;
	}
	return RECONCILE_KEEP;
}

static bool snapshot_there(const struct state *state, const char *name)
{
	char path[PATH_MAX];

	if (!*name)
		return false;
	state_path(state, "templates", name, "", path);
	return access(path, F_OK) == 0;
}

static void find(struct box *box, struct reconcile_found *out)
{
	const struct state *state = &box->boxes->thawd->state;
	struct sandbox sb;
	pid_t pid;
	int fd;

	*out = (struct reconcile_found){
		.deleting = box->deleting || (box->spec.auto_remove && box->state != BOX_PAUSED),
		.over = box->spec.hard_ms &&
			utc_now_ms() >= box->started_ms + (s64)box->spec.hard_ms,
	};
	if (box->machine[0]) {
		fd = sandbox_pidfd(state, box->machine, &pid);
		out->lives = fd >= 0;
		fd_close(&fd);
	}
	if (out->lives && (box->state == BOX_RUNNING || box->state == BOX_PAUSING))
		out->settled = sandbox_settled(state, box->machine);
	if (box->state != BOX_PAUSING)
		return;
	out->snapshot = snapshot_there(state, box->snapshot);
	if (!out->lives && !out->snapshot) {
		box_sandbox(box, &sb);
		out->snapshot = !sandbox_stage_recover(state, &sb);
	}
}

/** Its thaw-vmm, written down or not. */
static void end_machine(const struct state *state, const char *id)
{
	struct pollfd gone = {.events = POLLIN};
	pid_t pid;

	gone.fd = sandbox_pidfd(state, id, &pid);
	if (gone.fd >= 0 && !syscall(SYS_pidfd_send_signal, gone.fd, SIGKILL, NULL, 0) &&
	    poll(&gone, 1, GONE_MS) != 1)
		log_warn("run/%s: its thaw-vmm was killed, but does not end", id);
	fd_close(&gone.fd);
	sandbox_end_stray(state, id);
}

static int adopt(struct box *box)
{
	struct thawd *thawd = box->boxes->thawd;
	struct box_error err = {0};
	struct sandbox sb;
	int ret;

	box_sandbox(box, &sb);
	ret = sandbox_own(&thawd->state, &sb, &box->vmm);
	if (!ret)
		ret = box_watch(box);
	if (ret)
		return ret;
	pthread_mutex_lock(&box->boxes->lock);
	quota_force(&box->boxes->quota, box->vcpus, box->memory_bytes);
	box->reserved = true;
	box->reserved_vcpus = box->vcpus;
	box->reserved_bytes = box->memory_bytes;
	pthread_mutex_unlock(&box->boxes->lock);
	box->incarnation++;
	box->snapshot[0] = '\0';
	box_running(box);
	box_set_state(box, BOX_RUNNING);
	metric_add(thawd, METRIC_ADOPTED, 1);
	if (box_save(box))
		log_warn("sandbox '%s': that it runs is not written down", box->name);
	if (box_started(box, false, &err))
		log_warn("%s", err.message);
	json_decref(err.details);
	return 0;
}

static void now_stopped(struct box *box, enum reconcile_action action)
{
	static const char lost[] = "its machine had ended when thawd started";
	struct thawd *thawd = box->boxes->thawd;
	char paused[STATE_NAME_MAX + 1];

	memcpy(paused, box->snapshot, sizeof(paused));
	box->snapshot[0] = '\0';
	if (action == RECONCILE_OVER)
		box_stop_fill(&box->stop, BOX_HARD_TIMEOUT, -1, NULL);
	else if (action == RECONCILE_LOST || !box->stop.set)
		box_stop_fill(&box->stop, BOX_LOST, -1, lost);
	box_drop_claims(box);
	box_set_state(box, BOX_STOPPED);
	if (box_save(box))
		log_warn("sandbox '%s': that it stopped is not written down", box->name);
	if (box->stop.reason == BOX_LOST)
		metric_add(thawd, METRIC_STOPS_LOST, 1);
	event_emit(thawd, "sandbox.stopped", box->name, box_stop_json(&box->stop));
	audit_write(thawd, NULL, "sandbox.reconcile", box->name, "ok", box_stop_json(&box->stop));
	if (paused[0])
		snaps_unkeep(box->boxes, paused);
}

static void reconcile_one(struct box *box)
{
	const struct state *state = &box->boxes->thawd->state;
	enum reconcile_action action;
	struct reconcile_found found;

	if (box_begin(box, NULL))
		return;
	find(box, &found);
	action = reconcile_decide(box->state, &found);
	if (action == RECONCILE_ADOPT && adopt(box)) {
		box_drop_machine(box);
		action = found.deleting ? RECONCILE_REMOVE : RECONCILE_LOST;
	}
	if (action != RECONCILE_ADOPT && action != RECONCILE_KEEP && box->machine[0])
		end_machine(state, box->machine);
	if (action == RECONCILE_REMOVE) {
		(void)box_remove(box, NULL);
	} else if (action == RECONCILE_PAUSED) {
		box_set_state(box, BOX_PAUSED);
		if (box_save(box))
			log_warn("sandbox '%s': that it is paused is not written down", box->name);
	} else if (action != RECONCILE_ADOPT && action != RECONCILE_KEEP) {
		now_stopped(box, action);
	}
	box_done(box);
}

struct round {
	struct box **all;
	size_t count;
	atomic_size_t next;
};

static void *reconcile_some(void *opaque)
{
	struct round *round = opaque;
	size_t i;

	while ((i = atomic_fetch_add(&round->next, 1)) < round->count) {
		reconcile_one(round->all[i]);
		box_put(round->all[i]);
	}
	return NULL;
}

/** By several threads, if they are to be had: nobody is served before all are seen to. */
static void reconcile_boxes(struct boxes *boxes)
{
	struct round round = {0};
	pthread_t threads[RECONCILERS];
	size_t started = 0;
	pthread_attr_t attr;

	round.count = boxes_all(boxes, &round.all);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, BOX_STACK_BYTES);
	while (started < RECONCILERS && started + 1 < round.count &&
	       !pthread_create(&threads[started], &attr, reconcile_some, &round))
		started++;
	pthread_attr_destroy(&attr);
	(void)reconcile_some(&round);
	while (started)
		pthread_join(threads[--started], NULL);
	free(round.all);
}

struct owned {
	const char *id;
	bool found;
};

static bool owns(void *opaque, struct box *box)
{
	struct owned *owned = opaque;

	owned->found = !strcmp(box->machine, owned->id);
	return !owned->found;
}

/** Machines and folders of thawd's that no row has. Return: 0 or -errno (logged). */
static int remove_orphans(struct boxes *boxes)
{
	const struct state *state = &boxes->thawd->state;
	struct sandbox_ids ids;
	int ret = sandbox_list(state, &ids);

	for (size_t i = 0; !ret && i < ids.count; i++) {
		struct owned owned = {.id = ids.ids[i]};
		struct sandbox sb;

		/* One without a readable meta.json is nobody's: sandbox_sweep() has it. */
		if (sandbox_load(state, ids.ids[i], &sb) || !sb.thawd)
			continue;
		boxes_each(boxes, owns, &owned);
		if (owned.found)
			continue;
		end_machine(state, sb.id);
		if (sandbox_remove(state, &sb))
			log_warn("run/%s of no sandbox stays", sb.id);
		metric_add(boxes->thawd, METRIC_ORPHANS_REMOVED, 1);
		audit_write(boxes->thawd, NULL, "orphan.remove", sb.id, "ok", NULL);
	}
	free(ids.ids);
	return ret;
}

/** Names in keep/ whose need has gone with the last thawd. */
static void unkeep_all(struct boxes *boxes)
{
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *dir;

	state_path(&boxes->thawd->state, "keep", NULL, NULL, path);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		snaps_unkeep(boxes, entry->d_name);
	if (dir)
		closedir(dir);
}

int reconcile_all(struct boxes *boxes)
{
	int ret;

	reconcile_boxes(boxes);
	ret = remove_orphans(boxes);
	unkeep_all(boxes);
	return ret;
}
