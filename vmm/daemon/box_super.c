// SPDX-License-Identifier: Apache-2.0
// Boxes: the supervisor, one thread that waits for what happens by itself.
//
// It sleeps until a machine's process ends (a pidfd in epoll), until the next time-out, or until it
// is woken. It takes no time itself: what does (a stop with its grace, cleaning up) runs in a
// thread of its own, a bounded number at a time; what does not fit is due again at the next look.
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "vmm/daemon/box_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define AGAIN_MS      200u
#define BATCH	      32
#define SAVE_AGAIN_MS 500u

void super_times(const struct box *box, struct timer_times *out)
{
	*out = (struct timer_times){
		.activity_ms = box->activity_ms,
		.inactivity_ms = box->spec.inactivity_ms
					 ? box->spec.inactivity_ms
					 : box->boxes->thawd->conf.inactivity_timeout_ms,
		.hard_due_ms = box->hard_due_ms,
		.uses = box->uses,
		.keep_alive = box->spec.keep_alive,
	};
}

void super_wake(struct boxes *boxes)
{
	const u64 one = 1;

	if (write(boxes->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_warn("supervisor: %s", strerror(errno));
}

void super_touch(struct box *box)
{
	struct timer_times times;
	u64 due_ms = TIMER_NEVER;

	pthread_mutex_lock(&box->lock);
	super_times(box, &times);
	if (box->state == BOX_RUNNING)
		(void)timer_check(&times, 0, &due_ms);
	if (box->pending)
		due_ms = 0;
	pthread_mutex_unlock(&box->lock);
	if (due_ms < atomic_load(&box->boxes->next_ms))
		super_wake(box->boxes);
}

struct task {
	struct boxes *boxes;
	void *(*fn)(void *opaque);
	void *opaque;
};

static void *run_task(void *opaque)
{
	struct task task = *(struct task *)opaque;

	free(opaque);
	(void)task.fn(task.opaque);
	atomic_fetch_sub(&task.boxes->tasks, 1);
	super_wake(task.boxes);
	return NULL;
}

int super_task(struct boxes *boxes, void *(*fn)(void *opaque), void *opaque)
{
	struct task *task;
	pthread_attr_t attr;
	pthread_t thread;
	int ret;

	if (atomic_fetch_add(&boxes->tasks, 1) >= BOX_TASKS_MAX) {
		atomic_fetch_sub(&boxes->tasks, 1);
		return -EAGAIN;
	}
	task = malloc(sizeof(*task));
	ret = task ? 0 : -ENOMEM;
	if (!ret) {
		*task = (struct task){.boxes = boxes, .fn = fn, .opaque = opaque};
		pthread_attr_init(&attr);
		pthread_attr_setstacksize(&attr, BOX_STACK_BYTES);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		ret = -pthread_create(&thread, &attr, run_task, task);
		pthread_attr_destroy(&attr);
	}
	if (ret) {
		free(task);
		atomic_fetch_sub(&boxes->tasks, 1);
	}
	return ret ? -EAGAIN : 0;
}

/** What is due for @box now. With its lock. *@due_ms: when it is, if not now. */
static bool is_due(const struct box *box, u64 now_ms, enum box_reason *reason, int *code,
		   u64 *due_ms)
{
	struct timer_times times;
	enum timer_what what;

	*due_ms = TIMER_NEVER;
	if (box->state != BOX_RUNNING)
		return false;
	if (box->pending && box->pending_incarnation == box->incarnation) {
		*reason = box->pending_reason;
		*code = box->pending_code;
		return true;
	}
	super_times(box, &times);
	what = timer_check(&times, now_ms, due_ms);
	*reason = what == TIMER_HARD ? BOX_HARD_TIMEOUT : BOX_IDLE;
	*code = -1;
	return what != TIMER_NOTHING;
}

static void *stop_task(void *opaque)
{
	struct box *box = opaque;
	struct box_error err = {0};
	enum box_reason reason;
	struct box_stop stop;
	bool due = false;
	u64 due_ms;
	int code;

	if (!box_begin(box, NULL)) {
		/* It may have been used, or started anew, since. */
		pthread_mutex_lock(&box->lock);
		due = !box->ended && is_due(box, box->boxes->now_ms(), &reason, &code, &due_ms);
		pthread_mutex_unlock(&box->lock);
		if (due) {
			box_stop_fill(&stop, reason, code, NULL);
			(void)!box_stop(box, &stop, reason != BOX_EXITED, BOX_GRACE_MS, &err);
		}
		pthread_mutex_lock(&box->lock);
		box->tasked = false;
		pthread_mutex_unlock(&box->lock);
		box_done(box);
	}
	box_put(box);
	return NULL;
}

struct look {
	u64 now_ms, next_ms;
};

static bool look_at(void *opaque, struct box *box)
{
	struct look *look = opaque;
	enum box_reason reason;
	u64 due_ms;
	bool due;
	int code;

	pthread_mutex_lock(&box->lock);
	due = is_due(box, look->now_ms, &reason, &code, &due_ms) && !box->tasked;
	box->tasked |= due;
	pthread_mutex_unlock(&box->lock);
	if (!due) {
		/* Who has it under way wakes us when that is done. */
		if (due_ms > look->now_ms)
			look->next_ms = MIN(look->next_ms, due_ms);
		return true;
	}
	box_get(box);
	if (super_task(box->boxes, stop_task, box)) {
		pthread_mutex_lock(&box->lock);
		box->tasked = false;
		pthread_mutex_unlock(&box->lock);
		box_put(box);
		look->next_ms = MIN(look->next_ms, look->now_ms + AGAIN_MS);
	}
	return true;
}

struct ended {
	u64 watch;
	struct box *found;
};

static bool find_watch(void *opaque, struct box *box)
{
	struct ended *ended = opaque;

	if (box->watch != ended->watch)
		return true;
	ended->found = box;
	box_get(box);
	return false;
}

static void machine_ended(struct boxes *boxes, u64 watch)
{
	struct ended ended = {.watch = watch};
	struct box *box;

	boxes_each(boxes, find_watch, &ended);
	box = ended.found;
	if (!box)
		return;
	pthread_mutex_lock(&box->lock);
	/* Or it is another one's end by now. */
	box->ended = box->watch == watch;
	pthread_mutex_unlock(&box->lock);
	if (!box_try_begin(box))
		box_done(box);
	box_put(box);
}

static void *sweep_task(void *opaque)
{
	struct boxes *boxes = opaque;
	struct log_keep keep;

	log_keep_begin(&keep, false);
	/* Somebody makes a sandbox just now: later. */
	if (!sandbox_sweep(&boxes->thawd->state))
		atomic_store(&boxes->sweep_due, true);
	log_keep_end(&keep);
	atomic_store(&boxes->sweeping, false);
	return NULL;
}

void super_sweep(struct boxes *boxes)
{
	if (!atomic_exchange(&boxes->sweep_due, true))
		super_wake(boxes);
}

/** Return: ms until it has to be tried again; UINT64_MAX: nothing to do. */
static u64 sweep(struct boxes *boxes)
{
	if (!atomic_load(&boxes->sweep_due))
		return UINT64_MAX;
	if (atomic_exchange(&boxes->sweeping, true))
		return AGAIN_MS;
	atomic_store(&boxes->sweep_due, false);
	if (!super_task(boxes, sweep_task, boxes))
		return UINT64_MAX;
	atomic_store(&boxes->sweeping, false);
	atomic_store(&boxes->sweep_due, true);
	return AGAIN_MS;
}

void super_unsaved(struct boxes *boxes)
{
	if (!atomic_exchange(&boxes->unsaved, true))
		super_wake(boxes);
}

/** Until the first that can't be: the others can't, either. */
static bool save_one(void *opaque, struct box *box)
{
	bool *left = opaque, failed;

	if (!atomic_load(&box->unsaved))
		return true;
	/* Who has it under way writes it, or asks for this again. */
	if (box_try_begin(box)) {
		*left |= !box->gone;
		return true;
	}
	if (box->deleting && (box->state == BOX_STOPPED || box->state == BOX_FAILED))
		failed = box_remove(box, NULL) != 0;
	else
		failed = box_save(box) != 0;
	box_done(box);
	*left |= failed;
	return !failed;
}

bool super_save(struct boxes *boxes)
{
	bool left = false;

	if (!atomic_exchange(&boxes->unsaved, false))
		return true;
	boxes_each(boxes, save_one, &left);
	if (left)
		atomic_store(&boxes->unsaved, true);
	return !left;
}

static int sleep_ms(struct boxes *boxes)
{
	struct look look = {.now_ms = boxes->now_ms(), .next_ms = TIMER_NEVER};
	u64 again_ms, left_ms;

	/* Who has something earlier from here on wakes us. */
	atomic_store(&boxes->next_ms, TIMER_NEVER);
	boxes_each(boxes, look_at, &look);
	again_ms = sweep(boxes);
	if (!super_save(boxes))
		again_ms = MIN(again_ms, (u64)SAVE_AGAIN_MS);
	atomic_store(&boxes->next_ms, look.next_ms);
	left_ms = look.next_ms == TIMER_NEVER ? UINT64_MAX : look.next_ms - look.now_ms;
	left_ms = MIN(left_ms, again_ms);
	return left_ms == UINT64_MAX ? -1 : (int)MIN(left_ms, (u64)60000);
}

static void *supervise(void *opaque)
{
	struct epoll_event events[BATCH];
	struct boxes *boxes = opaque;
	u64 count;

	while (!atomic_load(&boxes->stopping)) {
		int n = epoll_wait(boxes->epoll_fd, events, BATCH, sleep_ms(boxes));

		for (int i = 0; i < n; i++) {
			if (events[i].data.u64)
				machine_ended(boxes, events[i].data.u64);
			else if (read(boxes->wake_fd, &count, sizeof(count)) < 0)
				continue;
		}
	}
	return NULL;
}

int super_start(struct boxes *boxes)
{
	struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = 0}};
	pthread_attr_t attr;
	int ret;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, BOX_STACK_BYTES);
	ret = epoll_ctl(boxes->epoll_fd, EPOLL_CTL_ADD, boxes->wake_fd, &event) < 0 ? -errno : 0;
	if (!ret)
		ret = -pthread_create(&boxes->supervisor, &attr, supervise, boxes);
	pthread_attr_destroy(&attr);
	boxes->supervised = !ret;
	if (ret)
		log_err("supervisor: %s", strerror(-ret));
	return ret;
}

void super_stop(struct boxes *boxes)
{
	if (!boxes->supervised)
		return;
	atomic_store(&boxes->stopping, true);
	super_wake(boxes);
	pthread_join(boxes->supervisor, NULL);
	boxes->supervised = false;
	/* Stops under way are seen to their end: they are bounded by their grace. */
	while (atomic_load(&boxes->tasks))
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}
