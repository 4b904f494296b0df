// SPDX-License-Identifier: Apache-2.0
// The end of an exec.
#include "vmm/daemon/exec_end.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

#include "vmm/daemon/exec_guest.h"
#include "vmm/daemon/exec_table.h"
#include "vmm/daemon/notes.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define SECOND_NS    1000000000ull
#define FORGET_TRIES 5

int kept_stream(struct kept *kept)
{
	struct thawd *thawd = execs_thawd(kept->execs);
	struct box_use use = {0};
	int fd = box_use_quiet(thawd, kept->box, &use);

	if (fd)
		return fd == -ENOENT ? -ENODEV : fd;
	fd = use.incarnation == kept->incarnation ? box_stream(thawd, &use, 0, -1) : -ENODEV;
	box_use_end(thawd, &use);
	return fd;
}

/* The guest need not hold its ring and status any longer. One that does not answer keeps them until
 * it has too many. */
void kept_forget(struct kept *kept)
{
	int ret = -EBUSY;

	for (int i = 0; i < FORGET_TRIES && ret == -EBUSY && !execs_stopping(kept->execs); i++) {
		int fd;

		/* Until the shim has seen our stream's end, the exec is in use. */
		if (i)
			(void)poll(NULL, 0, 10 << i);
		fd = kept_stream(kept);
		if (fd < 0)
			return;
		ret = exec_guest_call(fd, SHIM_FORGET, kept->raw_id, sizeof(kept->raw_id),
				      clock_now_ns() + 5 * SECOND_NS, -1, NULL, NULL);
		fd_close(&fd);
	}
	if (ret && ret != -ENOENT)
		log_debug("sandbox %s: exec %s is not forgotten: %d", kept->box, kept->id, ret);
}

static void tell(struct kept *kept, const struct kept_end *end)
{
	struct thawd *thawd = execs_thawd(kept->execs);
	json_t *details = json_pack("{s:s}", "id", kept->id);

	if (details) {
		kept_exit_json(end, details);
		json_object_set_new(details, "lost", json_boolean(end->kind == KEPT_LOST));
		json_object_set_new(details, "failed", json_boolean(end->kind == KEPT_FAILED));
	}
	event_emit(thawd, "exec.ended", kept->box, details);
	if (end->kind == KEPT_FAILED)
		metric_add(thawd, METRIC_EXEC_FAILURES, 1);
	if (end->flags & SHIM_EXIT_TIMED_OUT)
		metric_add(thawd, METRIC_EXEC_TIMEOUTS, 1);
	if (end->time_ns > kept->started_ns)
		metric_observe_ns(thawd, METRIC_EXEC_SECONDS, end->time_ns - kept->started_ns);
}

void kept_ended(struct kept *kept, const struct kept_end *end)
{
	bool lost = end->kind == KEPT_LOST, failed = end->kind == KEPT_FAILED;

	pthread_mutex_lock(&kept->lock);
	kept->end = *end;
	kept->state = KEPT_ENDED;
	kept->in.open = false;
	kept->orphan = false;
	fd_close(&kept->wake_fd);
	pthread_mutex_unlock(&kept->lock);
	/* One that is lost may be found again: a paused machine comes back. */
	if (!lost && kept_meta_save(kept))
		log_warn("sandbox %s: exec %s: its end is known to this thawd only", kept->box,
			 kept->id);
	pthread_mutex_lock(&kept->lock);
	kept_log_rest(kept);
	kept_wake_readers(kept);
	pthread_mutex_unlock(&kept->lock);
	tell(kept, end);
	if (kept->entrypoint && !lost && !failed)
		box_entrypoint_ended(execs_thawd(kept->execs), kept->box, kept->incarnation,
				     kept_exit_code(end));
	kept_trim(kept);
	if (!lost && !failed)
		kept_forget(kept);
}
