// SPDX-License-Identifier: Apache-2.0
// Boxes in the table of execs: their machines come and go, and what those left stays for a while.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "vmm/daemon/exec_table.h"

json_t *kept_known(struct execs *execs, const struct kept *kept)
{
	struct kept *found = NULL;
	json_t *meta = NULL;

	pthread_mutex_lock(&execs->lock);
	for (struct exec_box *box = execs->boxes; box && !found; box = box->next)
		for (struct kept *at = box->first; at && !found; at = at->next)
			if (at != kept && !strcmp(at->id, kept->id)) {
				at->refs++;
				found = at;
			}
	pthread_mutex_unlock(&execs->lock);
	if (found) {
		meta = kept_meta_json(found);
		kept_put(found);
	}
	return meta;
}

struct kept *kept_find_entrypoint(struct execs *execs, const char *name)
{
	struct exec_box *box;
	struct kept *at = NULL;

	pthread_mutex_lock(&execs->lock);
	box = execs_box_find(execs, name);
	for (at = box ? box->first : NULL; at && !at->entrypoint;)
		at = at->next;
	if (at)
		at->refs++;
	pthread_mutex_unlock(&execs->lock);
	return at;
}

static struct exec_box *box_add_locked(struct execs *execs, const char *name)
{
	struct exec_box *box = calloc(1, sizeof(*box));

	if (!box)
		return NULL;
	snprintf(box->name, sizeof(box->name), "%s", name);
	box->last = &box->first;
	box->next = execs->boxes;
	execs->boxes = box;
	return box;
}

/* Its puller ends. */
static void leave(struct kept *kept)
{
	pthread_mutex_lock(&kept->lock);
	kept->gone = true;
	if (kept->wake_fd >= 0)
		eventfd_write(kept->wake_fd, 1);
	pthread_mutex_unlock(&kept->lock);
}

/* Of those that are out of the table. */
static void leave_all(struct kept *all)
{
	struct kept *next;

	for (struct kept *at = all; at; at = next) {
		next = at->next;
		at->next = NULL;
		leave(at);
		kept_put(at);
	}
}

int execs_box_begin(struct execs *execs, const struct box_use *use, char **paused_folder,
		    bool unknown_only)
{
	const char *name = box_name(use->box);
	struct exec_box *box;
	struct kept *before = NULL;
	char path[PATH_MAX];
	char *folder;
	int ret = -ENOMEM;

	*paused_folder = NULL;
	box_run_path(use, "", path);
	folder = strdup(path);
	pthread_mutex_lock(&execs->lock);
	box = execs_box_find(execs, name);
	if (box && unknown_only)
		ret = -EEXIST;
	else if (!box)
		box = box_add_locked(execs, name);
	if (ret != -EEXIST && box && folder) {
		if (box->paused)
			*paused_folder = box->folder;
		else
			free(box->folder);
		box->folder = folder;
		folder = NULL;
		box->incarnation = use->incarnation;
		box->running = true;
		before = execs_box_take(box);
		box->paused = false;
		ret = 0;
	}
	pthread_mutex_unlock(&execs->lock);
	free(folder);
	leave_all(before);
	return ret;
}

void execs_box_end(struct execs *execs, const char *name, u64 incarnation, bool paused)
{
	struct exec_box *box;

	pthread_mutex_lock(&execs->lock);
	box = execs_box_find(execs, name);
	if (box && box->incarnation == incarnation && box->running) {
		box->running = false;
		box->paused = paused;
		for (struct kept *at = box->first; at; at = at->next)
			leave(at);
	}
	pthread_mutex_unlock(&execs->lock);
}

void execs_box_forget(struct execs *execs, const char *name)
{
	struct kept *all = NULL;
	struct exec_box **at, *box;

	pthread_mutex_lock(&execs->lock);
	for (at = &execs->boxes; *at && strcmp((*at)->name, name);)
		at = &(*at)->next;
	box = *at;
	if (box) {
		*at = box->next;
		all = execs_box_take(box);
		free(box->folder);
		free(box);
	}
	pthread_mutex_unlock(&execs->lock);
	leave_all(all);
}
