// SPDX-License-Identifier: Apache-2.0
// Boxes: what the rest of thawd does with a running one.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/daemon/box_internal.h"
#include "vmm/daemon/http.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

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

/** @box's reference goes into @use, or is put. @req: waits for one that is being started; NULL:
 * does not. Return: 0, -ENODEV with *@state, or -ECANCELED: nobody waits any more. */
static int use_box(struct box *box, struct http_req *req, bool counts, struct box_use *use,
		   enum box_state *state)
{
	struct boxes *boxes = box->boxes;
	int ret = 0;

	pthread_mutex_lock(&box->lock);
	/* One that is being started is worth waiting for. */
	while (req && !ret && !box->gone && box->busy &&
	       (is_coming(box->state) || (box->state == BOX_RUNNING && !box->open)))
		ret = box_wait_changed(box, req);
	*state = box->state;
	if (!ret && (box->gone || box->state != BOX_RUNNING))
		ret = -ENODEV;
	if (ret) {
		pthread_mutex_unlock(&box->lock);
		box_put(box);
		return ret;
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
	int ret;

	*use = (struct box_use){0};
	if (!box) {
		http_reply_error(req, 404, "not_found", NULL, "no sandbox '%.63s'",
				 name ? name : "");
		return -ENOENT;
	}
	ret = use_box(box, req, true, use, &state);
	if (ret == -ECANCELED)
		http_reply_retry(req, 1, "sandbox '%s' is being started, and thawd is about to end",
				 name);
	if (ret != -ENODEV)
		return ret;
	http_reply_error(
		req, 409, "wrong_state", json_pack("{s:s}", "state", box_state_name(state)),
		"sandbox '%s' is %s, not running: %s", name, box_state_name(state), remedy(state));
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
	return box ? use_box(box, NULL, false, use, &state) : -ENOENT;
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

int box_stream(struct thawd *thawd, const struct box_use *use, u64 deadline_ns, int stop_fd)
{
	const u64 latest_ns = clock_now_ns() + thawd->conf.guest_timeout_ms * 1000000;
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
	fd = sandbox_stream_until(&thawd->state, &sb,
				  deadline_ns ? MIN(deadline_ns, latest_ns) : latest_ns, stop_fd);
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
