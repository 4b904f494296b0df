// SPDX-License-Identifier: Apache-2.0
// Boxes: how they get a machine.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vmm/daemon/box_internal.h"
#include "vmm/daemon/pools.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define READY_NS	 120000000000ull
#define PRESSURE_WAIT_MS 5000u
#define PRESSURE_STEP_MS 250u

/** One start, from its beginning on. */
struct start {
	struct box *box;
	struct sandbox sb;
	struct sandbox_jail jail;
	struct sandbox_opts opts;
	u64 start_ns, hard_ms;
	int all_fd;
	char why[400];
};

void box_sandbox(const struct box *box, struct sandbox *sb)
{
	*sb = (struct sandbox){.lock_fd = -1, .state = SANDBOX_RUNNING, .thawd = true};
	memcpy(sb->id, box->machine, sizeof(sb->id));
	memcpy(sb->template_name, box->spec.template_name, sizeof(sb->template_name));
	memcpy(sb->snapshot, box->from, sizeof(sb->snapshot));
	memcpy(sb->next, box->snapshot, sizeof(sb->next));
	memcpy(sb->hostname, box->spec.hostname, sizeof(sb->hostname));
	utc_text(box->started_ms, sb->created);
	sb->jail = box_jail_kind(box->boxes->thawd);
}

int box_reserve(struct box *box, struct box_error *err)
{
	struct boxes *boxes = box->boxes;
	const u64 max = boxes->thawd->conf.memory_pressure_max * 100;
	char why[200] = "";
	int ret;

	/* Starts come one after the other then, or not at all. */
	for (u32 ms = 0; max && ms < PRESSURE_WAIT_MS && psi_memory() > max; ms += PRESSURE_STEP_MS)
		nanosleep(&(struct timespec){.tv_nsec = PRESSURE_STEP_MS * 1000000}, NULL);
	ret = max && psi_memory() > max ? -EDQUOT : 0;
	if (ret)
		snprintf(why, sizeof(why),
			 "the host is short of memory (setting memory_pressure_max)");
	pthread_mutex_lock(&boxes->lock);
	BUG_ON(box->reserved);
	if (!ret)
		ret = quota_take(&boxes->quota, box->vcpus, box->memory_bytes, why, sizeof(why));
	if (!ret) {
		box->reserved = true;
		box->reserved_vcpus = box->vcpus;
		box->reserved_bytes = box->memory_bytes;
	}
	pthread_mutex_unlock(&boxes->lock);
	if (!ret)
		return 0;
	metric_add(boxes->thawd, METRIC_QUOTA_REFUSALS, 1);
	box_refuse(err, 503, "capacity", NULL, "no room for sandbox '%s': %s", box->name, why);
	err->retry_s = BOX_RETRY_S;
	return -EINVAL;
}

void box_release(struct box *box)
{
	struct boxes *boxes = box->boxes;

	pthread_mutex_lock(&boxes->lock);
	if (box->reserved)
		quota_give(&boxes->quota, box->reserved_vcpus, box->reserved_bytes);
	box->reserved = false;
	pthread_mutex_unlock(&boxes->lock);
}

int box_watch(struct box *box)
{
	struct boxes *boxes = box->boxes;
	struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
	int pid_fd, ret = 0;

	pid_fd = box->vmm.adopted ? fcntl(box->vmm.pid_fd, F_DUPFD_CLOEXEC, 3)
				  : (int)syscall(SYS_pidfd_open, box->vmm.pid, 0);
	if (pid_fd < 0)
		ret = -errno;
	event.data.u64 = ++boxes->watches;
	box->watch = event.data.u64;
	/* Before its end can be seen. */
	pthread_mutex_lock(&box->lock);
	box->pid_fd = pid_fd;
	box->pid = box->vmm.pid;
	box->faults = (struct box_faults){0};
	if (!ret && epoll_ctl(boxes->epoll_fd, EPOLL_CTL_ADD, pid_fd, &event) < 0) {
		ret = -errno;
		fd_close(&box->pid_fd);
	}
	pthread_mutex_unlock(&box->lock);
	if (ret)
		log_err("sandbox '%s': can't be watched: %s", box->name, strerror(-ret));
	return ret;
}

void box_running(struct box *box)
{
	struct boxes *boxes = box->boxes;
	s64 left_ms;

	pthread_mutex_lock(&box->lock);
	box->activity_ms = boxes->now_ms();
	box->last_ms = utc_now_ms();
	box->hard_due_ms = 0;
	if (box->spec.hard_ms) {
		left_ms = box->started_ms + (s64)box->spec.hard_ms - box->last_ms;
		box->hard_due_ms = box->activity_ms + (u64)MAX(left_ms, (s64)1);
	}
	pthread_mutex_unlock(&box->lock);
}

int box_started(struct box *box, bool entrypoint, struct box_error *err)
{
	struct box_use use = {.box = box, .incarnation = box->incarnation};
	char why[300] = "", id[33];
	int ret;

	ret = exec_box_started(box->boxes->thawd, &use, entrypoint ? box->spec.entrypoint : NULL,
			       box->spec.env, why, sizeof(why));
	pthread_mutex_lock(&box->lock);
	box->open = true;
	pthread_cond_broadcast(&box->changed);
	pthread_mutex_unlock(&box->lock);
	if (!ret && entrypoint && box->spec.entrypoint &&
	    exec_box_entrypoint(box->boxes->thawd, box->name, id)) {
		pthread_mutex_lock(&box->lock);
		memcpy(box->entrypoint_exec, id, sizeof(box->entrypoint_exec));
		pthread_mutex_unlock(&box->lock);
		if (box_save(box))
			log_warn("sandbox '%s': its entrypoint's id is not written down",
				 box->name);
	}
	if (ret)
		box_refuse(err, 422, "spawn_failed",
			   json_pack("{s:s, s:s}", "stage",
				     ret == -ENOENT || ret == -EACCES || ret == -ENOEXEC ? "exec"
											 : "setup",
				     "errno", strerrorname_np(-ret)),
			   "sandbox '%s': %s", box->name, why[0] ? why : strerror(-ret));
	return ret;
}

enum sandbox_jail_kind box_jail_kind(const struct thawd *thawd)
{
	if (!thawd->conf.jail)
		return SANDBOX_JAIL_NONE;
	return thawd->conf.require_cgroup ? SANDBOX_JAIL_FULL : SANDBOX_JAIL_NO_CGROUP;
}

const struct sandbox_jail *box_jail(const struct thawd *thawd, const struct box_size *size,
				    u32 vcpus, u64 memory_bytes, struct sandbox_jail *out)
{
	const struct conf *conf = &thawd->conf;

	if (!conf->jail)
		return NULL;
	out->config = (struct jail_config){.uid_base = (u32)conf->jail_uid_base,
					   .uid_count = (u32)conf->jail_uid_count,
					   .cgroup_root = conf->cgroup_root,
					   .require_cgroup = conf->require_cgroup};
	jail_limits_default(&out->limits, memory_bytes, vcpus);
	/* A hard limit also slows the restore itself down: only where the operator wants it. */
	if (size)
		out->limits.cpu_weight = size->cpu_weight;
	if (size && conf->cpu_hard_limit)
		out->limits.cpu_max_milli = size->cpu_max_milli;
	return out;
}

static void start_init(struct start *start, struct box *box)
{
	*start = (struct start){.box = box, .start_ns = clock_now_ns(), .all_fd = -1};
	start->sb.lock_fd = -1;
	start->hard_ms = box->spec.hard_ms;
	start->opts.jail = box_jail(box->boxes->thawd, box->spec.size, box->vcpus,
				    box->memory_bytes, &start->jail);
}

/** Everything is done but the run. Return: 0 or -errno with start->why. */
static int wait_ready(struct start *start)
{
	struct vmmproc *vmm = &start->box->vmm;
	int ret = vmmproc_wait(vmm, &vmm->waiting, clock_now_ns() + READY_NS, -1, NULL, NULL);

	if (!ret)
		return 0;
	snprintf(start->why, sizeof(start->why), "its machine does not get ready");
	if (ret == -ETIMEDOUT)
		return ret;
	if (!vmm->exit_seen)
		vmmproc_reap(vmm);
	vmmproc_why(vmm, start->why, sizeof(start->why));
	sandbox_last_words(&start->box->boxes->thawd->state, &start->sb, start->why,
			   sizeof(start->why));
	return ret;
}

/** The machine of @start->sb runs; box->vmm owns it. Return: 0 or -errno. */
static int run_machine(struct start *start, const char *from, bool waits)
{
	struct box *box = start->box;
	const struct state *state = &box->boxes->thawd->state;
	int ret;

	/* It runs when it is told to, and till then it ends with us: so none is ever left that
	 * nobody wrote down. */
	start->opts.wait = true;
	memcpy(start->sb.snapshot, from, sizeof(start->sb.snapshot));
	ret = sandbox_save(state, &start->sb);
	if (!ret && !waits)
		ret = sandbox_start(state, &start->sb, &start->opts, &box->vmm);
	if (!ret && !waits)
		ret = wait_ready(start);
	/* A pool's machine is of no named size yet. */
	if (!ret && waits && start->opts.jail && box->spec.size)
		ret = jail_set_limits(state, &start->jail.config, start->sb.id,
				      &start->jail.limits);
	if (!ret)
		ret = vmmproc_begin(&box->vmm, start->sb.hostname, -1, start->hard_ms);
	if (!ret)
		ret = sandbox_wait_resumed(state, &start->sb, &box->vmm, start->why,
					   sizeof(start->why));
	if (!ret)
		ret = box_watch(box);
	return ret;
}

/** A folder, or a machine of a pool that has one; written down before it runs. Return: 0 or -errno
 * (logged, or @err). */
static int take_machine(struct start *start, bool *waits, struct box_error *err)
{
	struct box *box = start->box;
	const struct state *state = &box->boxes->thawd->state;
	enum box_pool pool = BOX_POOL_NONE;
	char id[SANDBOX_ID_CHARS + 1];
	int ret;

	if (!box->spec.snapshot[0])
		pool = pools_take(box->boxes, box->base, &start->sb, &box->vmm);
	*waits = pool == BOX_POOL_HIT;
	ret = *waits ? 0 : sandbox_new(state, &start->sb);
	if (ret)
		return ret;
	memcpy(id, start->sb.id, sizeof(id));
	pthread_mutex_lock(&box->lock);
	memcpy(box->machine, id, sizeof(box->machine));
	snprintf(box->from, sizeof(box->from), "%s",
		 box->spec.snapshot[0] ? box->spec.snapshot : box->base);
	box->pool = pool;
	box->ended = false;
	box->open = false;
	box->entrypoint_exec[0] = '\0';
	box->incarnation++;
	box->started_ms = utc_now_ms();
	pthread_mutex_unlock(&box->lock);
	ret = box_enter(box, BOX_STARTING, err);
	if (!ret) {
		int lock_fd = start->sb.lock_fd;

		box_sandbox(box, &start->sb);
		start->sb.lock_fd = lock_fd;
	}
	return ret;
}

static void told_started(struct start *start)
{
	static const char *const names[] = {"none", "hit", "miss"};
	struct box *box = start->box;
	struct thawd *thawd = box->boxes->thawd;
	const u64 ns = clock_now_ns() - start->start_ns;
	const bool hit = box->pool == BOX_POOL_HIT;

	pthread_mutex_lock(&box->lock);
	box->start_us = MAX(ns / 1000, (u64)1);
	pthread_mutex_unlock(&box->lock);
	metric_add(thawd, hit ? METRIC_STARTS_POOL_HIT : METRIC_STARTS_POOL_MISS, 1);
	metric_observe_ns(thawd,
			  hit ? METRIC_START_SECONDS_POOL_HIT : METRIC_START_SECONDS_POOL_MISS, ns);
	event_emit(thawd, "sandbox.started", box->name,
		   json_pack("{s:s, s:f, s:s}", "pool", names[box->pool], "ms", (double)ns / 1e6,
			     "id", box->machine));
}

static bool was_hurried(struct box *box)
{
	bool hurried;

	pthread_mutex_lock(&box->lock);
	hurried = box->hurried;
	pthread_mutex_unlock(&box->lock);
	return hurried;
}

/** One try. Return: 0; -EAGAIN: a pool's machine had died; or -errno, with @err filled in. */
static int try_start(struct box *box, struct box_error *err)
{
	struct log_keep keep;
	struct start start;
	bool waits = false;
	int ret;

	start_init(&start, box);
	log_keep_begin(&keep, false);
	start.all_fd = sandbox_lock_all(&box->boxes->thawd->state, false);
	ret = start.all_fd < 0 ? start.all_fd : take_machine(&start, &waits, err);
	if (!ret)
		ret = run_machine(&start, box->from, waits);
	if (!ret) {
		box_running(box);
		told_started(&start);
		ret = box_enter(box, BOX_RUNNING, err);
	}
	log_keep_end(&keep);
	sandbox_unlock(&start.sb);
	fd_close(&start.all_fd);
	if (!ret)
		return 0;
	box_drop_machine(box);
	if (was_hurried(box))
		return box_refuse(err, 502, "guest_lost", NULL,
				  "sandbox '%s' was ended while it started", box->name);
	if (waits)
		return -EAGAIN;
	box_refuse(err, ret == -ENOSPC ? 507 : 500, ret == -ENOSPC ? "no_space" : "internal", NULL,
		   "sandbox '%s' did not start: %s", box->name,
		   start.why[0]	  ? start.why
		   : keep.text[0] ? keep.text
				  : strerror(-ret));
	return ret;
}

static void start_failed(struct box *box, const struct box_error *err)
{
	struct thawd *thawd = box->boxes->thawd;
	const bool hurried = was_hurried(box);

	pthread_mutex_lock(&box->lock);
	box_stop_fill(&box->stop, hurried ? BOX_DESTROYED : BOX_START_FAILED, -1, err->message);
	pthread_mutex_unlock(&box->lock);
	if (!hurried)
		metric_add(thawd, METRIC_START_FAILURES, 1);
	event_emit(thawd, "sandbox.stopped", box->name, box_stop_json(&box->stop));
	box_set_state(box, hurried ? BOX_STOPPED : BOX_FAILED);
	if (box->spec.auto_remove)
		(void)box_remove(box, NULL);
	else if (box_save(box))
		log_warn("sandbox '%s': that its start failed is not written down", box->name);
}

int box_start(struct box *box, struct box_error *err)
{
	const bool entrypoint = box->spec.entrypoint && !box->forked;
	struct box_stop stop;
	int ret;

	/* A removal that could not be is not wanted any more. */
	pthread_mutex_lock(&box->lock);
	box->deleting = false;
	box->hurried = false;
	pthread_mutex_unlock(&box->lock);
	ret = box_template(box, err);
	if (!ret) {
		ret = box_reserve(box, err);
		/* Nothing has happened to it: it is what it was. */
		if (ret)
			return ret;
	}
	if (!ret) {
		box_drop_folder(box);
		ret = try_start(box, err);
		if (ret == -EAGAIN) {
			box_drop_folder(box);
			ret = try_start(box, err);
		}
		if (ret == -EAGAIN)
			ret = box_refuse(
				err, 500, "internal", NULL,
				"sandbox '%s' did not start: machines of the pool of '%s' die",
				box->name, box->base);
	}
	if (ret) {
		box_release(box);
		start_failed(box, err);
		return ret;
	}
	ret = box_started(box, entrypoint, err);
	if (!ret)
		return 0;
	box_stop_fill(&stop, BOX_START_FAILED, -1, err->message);
	metric_add(box->boxes->thawd, METRIC_START_FAILURES, 1);
	(void)!box_stop(box, &stop, false, 0, err);
	return ret;
}

int box_resume(struct box *box, struct box_error *err)
{
	struct thawd *thawd = box->boxes->thawd;
	char snapshot[STATE_NAME_MAX + 1];
	struct log_keep keep;
	struct start start;
	int ret;

	ret = box_reserve(box, err);
	if (ret)
		return ret;
	start_init(&start, box);
	if (box->spec.hard_ms)
		start.hard_ms =
			(u64)MAX(box->started_ms + (s64)box->spec.hard_ms - utc_now_ms(), (s64)1);
	memcpy(snapshot, box->snapshot, sizeof(snapshot));
	log_keep_begin(&keep, false);
	start.all_fd = sandbox_lock_all(&thawd->state, false);
	ret = start.all_fd < 0 ? start.all_fd : box_enter(box, BOX_RESUMING, err);
	pthread_mutex_lock(&box->lock);
	box->ended = false;
	box->open = false;
	box->incarnation++;
	box_sandbox(box, &start.sb);
	start.sb.next[0] = '\0';
	pthread_mutex_unlock(&box->lock);
	if (!ret)
		ret = run_machine(&start, snapshot, false);
	log_keep_end(&keep);
	fd_close(&start.all_fd);
	if (ret) {
		box_drop_machine(box);
		box_release(box);
		box_set_state(box, BOX_PAUSED);
		(void)!box_save(box);
		return box_refuse(err, 500, "internal", NULL,
				  "sandbox '%s' can't be resumed, and stays paused: %s", box->name,
				  start.why[0] ? start.why : keep.text);
	}
	pthread_mutex_lock(&box->lock);
	memcpy(box->from, snapshot, sizeof(box->from));
	box->snapshot[0] = '\0';
	box->start_us = MAX((clock_now_ns() - start.start_ns) / 1000, (u64)1);
	box->pool = BOX_POOL_NONE;
	pthread_mutex_unlock(&box->lock);
	box_running(box);
	box_set_state(box, BOX_RUNNING);
	if (box_save(box))
		log_warn("sandbox '%s': that it was resumed is not written down", box->name);
	snaps_unkeep(box->boxes, snapshot);
	metric_add(thawd, METRIC_RESUMES, 1);
	event_emit(thawd, "sandbox.resumed", box->name, json_pack("{s:s}", "id", box->machine));
	return box_started(box, false, err);
}
