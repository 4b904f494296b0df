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
		      struct box **existing)
{
	struct box *box = NULL;
	bool found;
	size_t i;

	*existing = NULL;
	pthread_mutex_lock(&boxes->lock);
	i = place_of(boxes, name, &found);
	if (found) {
		*existing = boxes->table[i];
		(*existing)->refs++;
	} else if (!make_room(boxes)) {
		box = box_new(boxes, name, spec);
	}
	if (box) {
		memmove(&boxes->table[i + 1], &boxes->table[i],
			(boxes->count - i) * sizeof(struct box *));
		boxes->table[i] = box;
		boxes->count++;
	}
	pthread_mutex_unlock(&boxes->lock);
	if (!box)
		box_spec_free(spec);
	return box;
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

int box_begin(struct box *box)
{
	int ret;

	pthread_mutex_lock(&box->lock);
	while (box->busy && !box->gone)
		pthread_cond_wait(&box->changed, &box->lock);
	ret = box->gone ? -ENOENT : 0;
	if (!ret)
		box->busy = true;
	pthread_mutex_unlock(&box->lock);
	return ret;
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

static bool is_coming(enum box_state state)
{
	return state == BOX_CREATING || state == BOX_STARTING || state == BOX_RESUMING;
}

/** What to call when it is in @state and should run. */
static const char *remedy(enum box_state state)
{
	switch (state) {
	case BOX_PAUSED:
	case BOX_PAUSING:
		return "POST .../resume brings it back";
	case BOX_STOPPED:
	case BOX_FAILED:
		return "POST .../start starts it afresh";
	case BOX_CREATING:
	case BOX_STARTING:
	case BOX_RESUMING:
	case BOX_STOPPING:
	case BOX_RUNNING:
	case BOX_STATES:
		break;
	}
	return "wait for that, then start it";
}

/** @box's reference goes into @use, or is put. Return: 0 or -ENODEV with *@state. */
static int use_box(struct box *box, bool wait, bool counts, struct box_use *use,
		   enum box_state *state)
{
	struct boxes *boxes = box->boxes;

	pthread_mutex_lock(&box->lock);
	/* One that is being started is worth waiting for. */
	while (wait && !box->gone && box->busy &&
	       (is_coming(box->state) || (box->state == BOX_RUNNING && !box->open)))
		pthread_cond_wait(&box->changed, &box->lock);
	*state = box->state;
	if (box->gone || box->state != BOX_RUNNING) {
		pthread_mutex_unlock(&box->lock);
		box_put(box);
		return -ENODEV;
	}
	use->box = box;
	use->incarnation = box->incarnation;
	use->counts = counts;
	if (counts) {
		box->uses++;
		box->activity_ms = boxes->now_ms();
		box->last_ms = utc_now_ms();
	}
	pthread_mutex_unlock(&box->lock);
	return 0;
}

int box_use(struct thawd *thawd, struct http_req *req, struct box_use *use)
{
	const char *name = http_param(req, "name");
	struct box *box = name ? boxes_get(thawd->boxes, name) : NULL;
	enum box_state state;

	*use = (struct box_use){0};
	if (!box) {
		http_reply_error(req, 404, "not_found", NULL, "no sandbox '%.63s'",
				 name ? name : "");
		return -ENOENT;
	}
	if (!use_box(box, true, true, use, &state))
		return 0;
	http_reply_error(req, 409, "wrong_state", json_pack("{s:s}", "state", state_names[state]),
			 "sandbox '%s' is %s, not running: %s", name, state_names[state],
			 remedy(state));
	return -ENODEV;
}

int box_use_any(struct thawd *thawd, struct http_req *req, struct box_use *use)
{
	const char *name = http_param(req, "name");
	struct box *box = name ? boxes_get(thawd->boxes, name) : NULL;

	*use = (struct box_use){.box = box};
	if (!box) {
		http_reply_error(req, 404, "not_found", NULL, "no sandbox '%.63s'",
				 name ? name : "");
		return -ENOENT;
	}
	pthread_mutex_lock(&box->lock);
	use->incarnation = box->incarnation;
	pthread_mutex_unlock(&box->lock);
	return 0;
}

void box_use_end(struct thawd *thawd, struct box_use *use)
{
	struct box *box = use->box;

	if (!box)
		return;
	use->box = NULL;
	if (use->counts) {
		pthread_mutex_lock(&box->lock);
		box->uses--;
		box->activity_ms = thawd->boxes->now_ms();
		box->last_ms = utc_now_ms();
		pthread_mutex_unlock(&box->lock);
		super_touch(box);
	}
	box_put(box);
}

int box_use_quiet(struct thawd *thawd, const char *name, struct box_use *use)
{
	struct box *box = boxes_get(thawd->boxes, name);
	enum box_state state;

	*use = (struct box_use){0};
	return box ? use_box(box, false, false, use, &state) : -ENOENT;
}

const char *box_name(const struct box *box)
{
	return box->name;
}

void box_run_path(const struct box_use *use, const char *file, char *out)
{
	char id[SANDBOX_ID_CHARS + 1];

	pthread_mutex_lock(&use->box->lock);
	memcpy(id, use->box->machine, sizeof(id));
	pthread_mutex_unlock(&use->box->lock);
	sandbox_path(&use->box->boxes->thawd->state, id, file, out);
}

int box_stream(struct thawd *thawd, const struct box_use *use)
{
	struct box *box = use->box;
	struct log_keep keep;
	struct sandbox sb;
	bool mine;
	int fd;

	pthread_mutex_lock(&box->lock);
	mine = box->incarnation == use->incarnation && box->pid_fd >= 0 && !box->ended;
	box_sandbox(box, &sb);
	pthread_mutex_unlock(&box->lock);
	if (!mine)
		return -ENODEV;
	log_keep_begin(&keep, true);
	fd = sandbox_stream(&thawd->state, &sb);
	log_keep_end(&keep);
	return fd == -ENOENT || fd == -ECONNREFUSED || fd == -EPIPE || fd == -ECONNRESET ? -ENODEV
											 : fd;
}

void box_limits(const struct box_use *use, struct box_limits *out)
{
	pthread_mutex_lock(&use->box->lock);
	*out = (struct box_limits){.pids_max = use->box->spec.pids_max,
				   .nofile = use->box->spec.nofile};
	pthread_mutex_unlock(&use->box->lock);
}

void box_preview_token(struct thawd *thawd, const struct box_use *use, char out[33])
{
	(void)thawd;
	memcpy(out, use->box->token, 33);
}

void box_entrypoint_ended(struct thawd *thawd, const char *name, u64 incarnation, int exit_code)
{
	struct box *box = boxes_get(thawd->boxes, name);

	if (!box)
		return;
	box_stop_later(box, BOX_EXITED, exit_code, incarnation);
	box_put(box);
}
