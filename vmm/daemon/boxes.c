// SPDX-License-Identifier: Apache-2.0
// Sandboxes by name: the start and the end of this part of thawd.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vmm/daemon/box_internal.h"
#include "vmm/daemon/pools.h"
#include "vmm/daemon/reconcile.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static u64 boottime_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (u64)now.tv_sec * 1000 + (u64)now.tv_nsec / 1000000;
}

void boxes_quota(struct thawd *thawd, struct box_quota out[BOX_QUOTAS])
{
	pthread_mutex_lock(&thawd->boxes->lock);
	memcpy(out, thawd->boxes->quota.of, sizeof(thawd->boxes->quota.of));
	pthread_mutex_unlock(&thawd->boxes->lock);
}

static bool count_one(void *opaque, struct box *box)
{
	u64 *counts = opaque;

	pthread_mutex_lock(&box->lock);
	counts[box->state]++;
	pthread_mutex_unlock(&box->lock);
	return true;
}

void boxes_count_states(struct thawd *thawd, u64 counts[BOX_STATES])
{
	memset(counts, 0, BOX_STATES * sizeof(*counts));
	boxes_each(thawd->boxes, count_one, counts);
}

/** Out of /proc/PID/stat, whose second field may have anything in it. Return: 0 or -errno. */
static int read_faults(pid_t pid, struct box_faults *out)
{
	unsigned long long minor, major;
	char path[40], text[512];
	const char *rest;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	fd_close(&fd);
	if (n <= 0)
		return -ESRCH;
	text[n] = '\0';
	rest = strrchr(text, ')');
	if (!rest ||
	    sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %llu %*u %llu", &minor, &major) != 2)
		return -EPROTO;
	*out = (struct box_faults){.minor = minor, .major = major};
	return 0;
}

/** What came since somebody looked last. With the boxes' fault lock. */
static bool add_faults(void *opaque, struct box *box)
{
	struct box_faults *sum = opaque, now;

	pthread_mutex_lock(&box->lock);
	/* It has not been waited for, if it can be signalled: so the number is still its. */
	if (box->pid > 0 && box->pid_fd >= 0 && !read_faults(box->pid, &now) &&
	    !syscall(SYS_pidfd_send_signal, box->pid_fd, 0, NULL, 0)) {
		sum->minor += now.minor - MIN(now.minor, box->faults.minor);
		sum->major += now.major - MIN(now.major, box->faults.major);
		box->faults = now;
	}
	pthread_mutex_unlock(&box->lock);
	return true;
}

static void fault_counters(struct boxes *boxes, struct metric_out *out)
{
	static const char name[] = "thaw_vmm_page_faults_total";
	static const char help[] =
		"Page faults of machines, from /proc/PID/stat, as seen when these are asked for.";
	struct box_faults sum;

	pthread_mutex_lock(&boxes->fault_lock);
	boxes_each(boxes, add_faults, &boxes->faults);
	sum = boxes->faults;
	pthread_mutex_unlock(&boxes->fault_lock);
	metric_counter(out, name, help, "kind", "minor", sum.minor);
	metric_counter(out, name, help, "kind", "major", sum.major);
}

static void gauges(struct thawd *thawd, struct metric_out *out)
{
	u64 counts[BOX_STATES];

	boxes_count_states(thawd, counts);
	for (int i = 0; i < BOX_STATES; i++)
		metric_gauge(out, "thaw_sandboxes", "Sandboxes by state.", "state",
			     box_state_name((enum box_state)i), (double)counts[i]);
	fault_counters(thawd->boxes, out);
}

static struct boxes *new_boxes(struct thawd *thawd)
{
	const struct conf *conf = &thawd->conf;
	struct boxes *boxes = calloc(1, sizeof(*boxes));

	if (!boxes)
		return NULL;
	boxes->thawd = thawd;
	boxes->now_ms = boottime_ms;
	boxes->next_ms = TIMER_NEVER;
	pthread_mutex_init(&boxes->lock, NULL);
	pthread_mutex_init(&boxes->fault_lock, NULL);
	pthread_mutex_init(&boxes->snap_lock, NULL);
	pthread_mutex_init(&boxes->build_lock, NULL);
	pthread_cond_init(&boxes->build_done, NULL);
	boxes->snaps = json_object();
	boxes->building = json_object();
	boxes->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	boxes->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	quota_init(&boxes->quota, conf->max_sandboxes, conf->max_vcpus, conf->max_memory_bytes,
		   conf->cpu_overcommit, conf->memory_overcommit);
	return boxes;
}

int boxes_start(struct thawd *thawd)
{
	struct boxes *boxes = new_boxes(thawd);
	char path[PATH_MAX];
	int lock_fd, ret;

	thawd->boxes = boxes;
	if (!boxes || !boxes->snaps || !boxes->building || boxes->epoll_fd < 0 ||
	    boxes->wake_fd < 0)
		return -ENOMEM;
	/* Makes run/ as well. */
	lock_fd = sandbox_lock_all(&thawd->state, false);
	if (lock_fd < 0)
		return lock_fd;
	fd_close(&lock_fd);
	state_path(&thawd->state, "thawd.db", NULL, NULL, path);
	ret = db_open(path, &boxes->db);
	if (!ret)
		ret = snaps_load(boxes);
	if (!ret)
		ret = boxes_load(boxes);
	if (!ret)
		ret = reconcile_all(boxes);
	if (!ret)
		ret = super_start(boxes);
	if (!ret)
		ret = pools_start(boxes);
	if (ret)
		return ret;
	metric_register(thawd, gauges);
	super_sweep(boxes);
	return 0;
}

/** Sandboxes stay: their machines are only let go of. */
static void let_go(struct box *box)
{
	vmmproc_release(&box->vmm);
	fd_close(&box->pid_fd);
	box_put(box);
}

void boxes_stop(struct thawd *thawd)
{
	struct boxes *boxes = thawd->boxes;

	/* A handler that did not end in time is still at work here: all of it goes with the
	 * process, as if that had been killed. */
	if (!boxes || thawd->http)
		return;
	super_stop(boxes);
	pools_stop(boxes);
	if (!super_save(boxes))
		log_warn("some states of sandboxes are not written down: the next thawd finds out");
	for (size_t i = 0; i < boxes->count; i++)
		let_go(boxes->table[i]);
	free(boxes->table);
	db_close(boxes->db);
	json_decref(boxes->snaps);
	json_decref(boxes->building);
	fd_close(&boxes->epoll_fd);
	fd_close(&boxes->wake_fd);
	pthread_cond_destroy(&boxes->build_done);
	pthread_mutex_destroy(&boxes->build_lock);
	pthread_mutex_destroy(&boxes->snap_lock);
	pthread_mutex_destroy(&boxes->fault_lock);
	pthread_mutex_destroy(&boxes->lock);
	free(boxes);
	thawd->boxes = NULL;
}
