// SPDX-License-Identifier: Apache-2.0
// Boxes: their memory and disk in a snapshot, with the machine's end (pause) or without.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "vmm/daemon/box_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** Whoever looks without thawd's database reads it from the folder: see sandbox_sweep.c. */
static int save_meta(struct box *box, enum sandbox_state state)
{
	struct sandbox sb;

	box_sandbox(box, &sb);
	sb.state = state;
	if (state != SANDBOX_PAUSING)
		sb.next[0] = '\0';
	if (state == SANDBOX_PAUSED)
		memcpy(sb.snapshot, box->snapshot, sizeof(sb.snapshot));
	return sandbox_save(&box->boxes->thawd->state, &sb);
}

static void look_whether_it_lives(struct box *box)
{
	struct pollfd pfd = {.fd = box->pid_fd, .events = POLLIN};

	if (box->vmm.ctl_fd >= 0 && poll(&pfd, 1, 0) == 0)
		return;
	pthread_mutex_lock(&box->lock);
	box->ended = true;
	pthread_mutex_unlock(&box->lock);
}

/** Into @name, which is kept from before it exists. Return: 0 or -errno (logged). */
static int write_snapshot(struct box *box, const char *name, bool ends)
{
	const struct state *state = &box->boxes->thawd->state;
	int all_fd = sandbox_lock_all(state, false), ret;
	struct sandbox sb;

	ret = all_fd < 0 ? all_fd : sandbox_keep(state, name, true);
	if (!ret && ends)
		ret = save_meta(box, SANDBOX_PAUSING);
	box_sandbox(box, &sb);
	sb.pid = box->vmm.pid;
	if (!ret)
		ret = sandbox_snapshot(state, &sb, &box->vmm, ends, name);
	fd_close(&all_fd);
	return ret;
}

static int refuse(struct box *box, const char *what, int ret, const struct log_keep *keep,
		  struct box_error *err)
{
	const bool full = ret == -ENOSPC || ret == -EDQUOT;

	box_refuse(err, full ? 507 : 500, full ? "no_space" : "internal", NULL,
		   "sandbox '%s': %s: %s", box->name, what,
		   keep->text[0] ? keep->text : strerror(-ret));
	return ret;
}

int box_snapshot(struct box *box, struct box_snapshot *out, struct box_error *err)
{
	struct log_keep keep;
	int ret;

	log_keep_begin(&keep, false);
	ret = sandbox_snap_name(out->id);
	if (!ret)
		ret = write_snapshot(box, out->id, false);
	log_keep_end(&keep);
	out->pause_ms = (double)box->vmm.pause_us / 1000.0;
	if (!ret)
		return 0;
	look_whether_it_lives(box);
	snaps_unkeep(box->boxes, out->id);
	return refuse(box, "no snapshot", ret, &keep, err);
}

/** It goes on, or has ended by itself. */
static void pause_failed(struct box *box)
{
	char name[STATE_NAME_MAX + 1];

	pthread_mutex_lock(&box->lock);
	memcpy(name, box->snapshot, sizeof(name));
	box->snapshot[0] = '\0';
	box->state = BOX_RUNNING;
	pthread_cond_broadcast(&box->changed);
	pthread_mutex_unlock(&box->lock);
	look_whether_it_lives(box);
	(void)!save_meta(box, SANDBOX_RUNNING);
	if (box_save(box))
		log_warn("sandbox '%s': that it was not paused is not written down", box->name);
	snaps_unkeep(box->boxes, name);
}

int box_pause(struct box *box, struct box_error *err)
{
	struct thawd *thawd = box->boxes->thawd;
	char name[STATE_NAME_MAX + 1];
	struct log_keep keep;
	int ret;

	log_keep_begin(&keep, false);
	ret = sandbox_snap_name(name);
	if (!ret) {
		pthread_mutex_lock(&box->lock);
		memcpy(box->snapshot, name, sizeof(box->snapshot));
		pthread_mutex_unlock(&box->lock);
		ret = box_enter(box, BOX_PAUSING, err);
	}
	if (!ret)
		ret = write_snapshot(box, name, true);
	log_keep_end(&keep);
	if (ret) {
		pause_failed(box);
		return refuse(box, "not paused", ret, &keep, err);
	}
	box_drop_machine(box);
	exec_box_paused(thawd, box->name, box->incarnation);
	box_release(box);
	(void)!save_meta(box, SANDBOX_PAUSED);
	box_set_state(box, BOX_PAUSED);
	if (box_save(box))
		log_warn("sandbox '%s': that it is paused is not written down", box->name);
	super_sweep(box->boxes);
	metric_add(thawd, METRIC_PAUSES, 1);
	event_emit(thawd, "sandbox.paused", box->name, json_pack("{s:s}", "snapshot", name));
	return 0;
}
