// SPDX-License-Identifier: Apache-2.0
// Sandboxes by name: the table, and what the rest of thawd sees.
//
// Theory of operation
//
// A box is found by its name in a sorted table and lives as long as somebody has a reference. Two
// things keep its users apart. Its lock is held for moments: to read, to change a field. Who does
// something with it that takes time (a start, a stop, a snapshot) makes it busy (box_begin()), and
// works without any lock; others who want to change it wait for that, those who only look do not.
// So nothing that concerns one box waits for another one's machine.
//
// Every such step is written to the database before it begins ("starting", "stopping") and when it
// is done. reconcile.c knows what each half of a step means for the next thawd.
//
// The end of a machine is seen by the supervisor (box_super.c). If the box is busy then, whoever
// has it finds out by himself, or box_done() does what is left.
#include "vmm/daemon/box.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "vmm/daemon/box_internal.h"
#include "vmm/daemon/http.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define LOOK_NS 250000000ull /* how often who waits looks for its client */

static const char *const state_names[] = {
	[BOX_CREATING] = "creating", [BOX_STARTING] = "starting", [BOX_RUNNING] = "running",
	[BOX_STOPPING] = "stopping", [BOX_STOPPED] = "stopped",	  [BOX_PAUSING] = "pausing",
	[BOX_PAUSED] = "paused",     [BOX_RESUMING] = "resuming", [BOX_FAILED] = "failed",
};

const char *box_state_name(enum box_state state)
{
	return state_names[state];
}

bool box_name_ok(const char *name)
{
	size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return len && len <= BOX_NAME_MAX && !name[len] && name[0] != '-' && name[len - 1] != '-';
}

s64 utc_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (s64)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void utc_text(s64 time_ms, char out[32])
{
	time_t seconds = (time_t)(time_ms / 1000);
	char text[24];
	struct tm tm;

	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", gmtime_r(&seconds, &tm));
	snprintf(out, 32, "%s.%03uZ", text, (unsigned int)(time_ms % 1000) % 1000);
}

/** Where @name is or belongs; *@found. With the boxes' lock. */
static size_t place_of(const struct boxes *boxes, const char *name, bool *found)
{
	size_t low = 0, high = boxes->count;

	*found = false;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(boxes->table[middle]->name, name);

		if (!order) {
			*found = true;
			return middle;
		}
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void box_free(struct box *box)
{
	BUG_ON(box->pid_fd >= 0);
	box_spec_free(&box->spec);
	pthread_cond_destroy(&box->changed);
	pthread_mutex_destroy(&box->lock);
	free(box);
}

void box_get(struct box *box)
{
	pthread_mutex_lock(&box->boxes->lock);
	box->refs++;
	pthread_mutex_unlock(&box->boxes->lock);
}

void box_put(struct box *box)
{
	struct boxes *boxes;
	bool last;

	if (!box)
		return;
	boxes = box->boxes;
	pthread_mutex_lock(&boxes->lock);
	BUG_ON(!box->refs);
	last = !--box->refs;
	pthread_mutex_unlock(&boxes->lock);
	if (last)
		box_free(box);
}

struct box *boxes_get(struct boxes *boxes, const char *name)
{
	struct box *box = NULL;
	bool found;
	size_t i;

	pthread_mutex_lock(&boxes->lock);
	i = place_of(boxes, name, &found);
	if (found) {
		box = boxes->table[i];
		box->refs++;
	}
	pthread_mutex_unlock(&boxes->lock);
	return box;
}

static struct box *box_new(struct boxes *boxes, const char *name, struct box_spec *spec)
{
	struct box *box = calloc(1, sizeof(*box));
	pthread_condattr_t attr;
	u8 token[16];

	if (!box || getrandom(token, sizeof(token), 0) != sizeof(token)) {
		free(box);
		return NULL;
	}
	box->boxes = boxes;
	box->refs = 2; /* the table's and the caller's */
	box->busy = true;
	box->pid_fd = -1;
	box->vmm = (struct vmmproc){.ctl_fd = -1, .log_fd = -1, .accept_fd = -1, .pid_fd = -1};
	box->spec = *spec;
	box->created_ms = utc_now_ms();
	snprintf(box->name, sizeof(box->name), "%s", name);
	for (size_t i = 0; i < sizeof(token); i++)
		snprintf(box->token + 2 * i, 3, "%02x", token[i]);
	pthread_mutex_init(&box->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&box->changed, &attr);
	pthread_condattr_destroy(&attr);
	return box;
}

/** With the boxes' lock. Return: 0 or -ENOMEM. */
static int make_room(struct boxes *boxes)
{
	size_t room = boxes->room ? boxes->room * 2 : 64;
	struct box **table;

	if (boxes->count < boxes->room)
		return 0;
	table = reallocarray(boxes->table, room, sizeof(struct box *));
	if (!table)
		return -ENOMEM;
	boxes->table = table;
	boxes->room = room;
	return 0;
}

struct box *boxes_add(struct boxes *boxes, const char *name, struct box_spec *spec,
		      struct box **existing, struct box_error *err)
{
	struct box *box = NULL;
	char why[200] = "";
	bool found;
	int ret = 0;
	size_t i;

	*existing = NULL;
	pthread_mutex_lock(&boxes->lock);
	i = place_of(boxes, name, &found);
	if (found) {
		*existing = boxes->table[i];
		(*existing)->refs++;
	} else {
		if (err)
			ret = quota_add(&boxes->quota, why, sizeof(why));
		else
			quota_add_force(&boxes->quota);
		if (!ret && !make_room(boxes))
			box = box_new(boxes, name, spec);
		if (!ret && !box)
			quota_drop(&boxes->quota);
	}
	if (box) {
		memmove(&boxes->table[i + 1], &boxes->table[i],
			(boxes->count - i) * sizeof(struct box *));
		boxes->table[i] = box;
		boxes->count++;
	}
	pthread_mutex_unlock(&boxes->lock);
	if (box)
		return box;
	box_spec_free(spec);
	if (ret) {
		metric_add(boxes->thawd, METRIC_QUOTA_REFUSALS, 1);
		err->retry_s = BOX_RETRY_S;
		box_refuse(err, 503, "capacity", NULL, "no room for sandbox '%s': %s", name, why);
	} else if (err && !*existing) {
		box_refuse(err, 500, "internal", NULL, "out of memory");
	}
	return NULL;
}

void boxes_remove(struct boxes *boxes, struct box *box)
{
	bool found;
	size_t i;

	pthread_mutex_lock(&box->lock);
	box->gone = true;
	pthread_cond_broadcast(&box->changed);
	pthread_mutex_unlock(&box->lock);
	pthread_mutex_lock(&boxes->lock);
	i = place_of(boxes, box->name, &found);
	BUG_ON(!found || boxes->table[i] != box);
	boxes->count--;
	quota_drop(&boxes->quota);
	memmove(&boxes->table[i], &boxes->table[i + 1], (boxes->count - i) * sizeof(struct box *));
	pthread_mutex_unlock(&boxes->lock);
	box_put(box);
}

size_t boxes_all(struct boxes *boxes, struct box ***out)
{
	size_t count;

	pthread_mutex_lock(&boxes->lock);
	count = boxes->count;
	*out = calloc(count ? count : 1, sizeof(struct box *));
	if (!*out)
		count = 0;
	for (size_t i = 0; i < count; i++) {
		(*out)[i] = boxes->table[i];
		(*out)[i]->refs++;
	}
	pthread_mutex_unlock(&boxes->lock);
	return count;
}

void boxes_each(struct boxes *boxes, bool (*fn)(void *opaque, struct box *box), void *opaque)
{
	struct box **all;
	size_t count = boxes_all(boxes, &all);
	bool more = true;

	for (size_t i = 0; i < count; i++) {
		more = more && fn(opaque, all[i]);
		box_put(all[i]);
	}
	free(all);
}

int box_wait_changed(struct box *box, struct http_req *req)
{
	struct pollfd client = {.events = POLLRDHUP};
	struct timespec until;
	u64 until_ns;

	if (!req) {
		pthread_cond_wait(&box->changed, &box->lock);
		return 0;
	}
	client.fd = http_client_fd(req);
	if (http_stopping(req) || poll(&client, 1, 0) > 0)
		return -ECANCELED;
	until_ns = clock_now_ns() + LOOK_NS;
	until = (struct timespec){.tv_sec = (time_t)(until_ns / 1000000000),
				  .tv_nsec = (long)(until_ns % 1000000000)};
	pthread_cond_timedwait(&box->changed, &box->lock, &until);
	return 0;
}

int box_begin(struct box *box, struct http_req *req)
{
	int ret = 0;

	pthread_mutex_lock(&box->lock);
	while (!ret && box->busy && !box->gone)
		ret = box_wait_changed(box, req);
	if (box->gone)
		ret = -ENOENT;
	if (!ret)
		box->busy = true;
	pthread_mutex_unlock(&box->lock);
	return ret;
}

int box_refuse_begin(const struct box *box, int ret, struct box_error *err)
{
	if (ret != -ECANCELED)
		return box_refuse(err, 404, "not_found", NULL, "no sandbox '%s'", box->name);
	/* Who has left does not read it. */
	err->retry_s = 1;
	return box_refuse(err, 503, "capacity", NULL,
			  "sandbox '%s' is busy, and thawd is about to end: nothing was done",
			  box->name);
}

int box_try_begin(struct box *box)
{
	int ret;

	pthread_mutex_lock(&box->lock);
	ret = box->gone ? -ENOENT : box->busy ? -EBUSY : 0;
	if (!ret)
		box->busy = true;
	pthread_mutex_unlock(&box->lock);
	return ret;
}

void box_done(struct box *box)
{
	pthread_mutex_lock(&box->lock);
	while (box->ended && box->state == BOX_RUNNING) {
		pthread_mutex_unlock(&box->lock);
		box_ended(box);
		pthread_mutex_lock(&box->lock);
	}
	box->busy = false;
	pthread_cond_broadcast(&box->changed);
	pthread_mutex_unlock(&box->lock);
	super_touch(box);
}

void box_set_state(struct box *box, enum box_state state)
{
	pthread_mutex_lock(&box->lock);
	box->state = state;
	pthread_cond_broadcast(&box->changed);
	pthread_mutex_unlock(&box->lock);
}
