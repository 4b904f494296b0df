// SPDX-License-Identifier: Apache-2.0
// Boxes: how they end.
//
// A machine ends because somebody asks for it, because its time is over, or by itself. In every
// case its process is gone before the box is said to be stopped, and why is kept. Its folder stays
// for its logs until the next start, or until the box is deleted.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/shim/proto.h"
#include "vmm/daemon/box_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/usock.h"
#include "vmm/util/util.h"

#define SHUTDOWN_EXTRA_MS 3000u /* for the guest to power off behind the grace */
#define GONE_MS		  10000

void box_stop_fill(struct box_stop *stop, enum box_reason reason, int exit_code,
		   const char *message)
{
	*stop = (struct box_stop){
		.set = true, .reason = reason, .exit_code = exit_code, .time_ms = utc_now_ms()};
	snprintf(stop->message, sizeof(stop->message), "%.*s", (int)sizeof(stop->message) - 1,
		 message ? message : "");
}

/** Wait until @fd is readable or the machine has ended. Return: 0, or -EPIPE or -ETIMEDOUT. */
static int wait_for(int fd, int pid_fd, u64 deadline_ns)
{
	struct pollfd pfds[] = {{.fd = pid_fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
	u64 now_ns = clock_now_ns();
	int n = 0;

	while (now_ns < deadline_ns && n <= 0) {
		n = poll(pfds, ARRAY_SIZE(pfds), (int)((deadline_ns - now_ns) / 1000000 + 1));
		now_ns = clock_now_ns();
	}
	if (pfds[0].revents)
		return -EPIPE;
	return n > 0 ? 0 : -ETIMEDOUT;
}

/** SHIM_SHUTDOWN over a stream of its own. Whatever the guest does, it ends at @deadline_ns.
 * Return: 0: asked; or -errno. */
static int ask_shutdown(struct box *box, u32 grace_ms, u64 deadline_ns)
{
	const struct shim_frame head = {.len_bytes = sizeof(grace_ms),
					.type = SHIM_SHUTDOWN,
					.version = SHIM_PROTO_VERSION};
	char path[PATH_MAX], line[40], frame[sizeof(head) + sizeof(grace_ms)];
	size_t used = 0;
	int fd, n, ret = 0;

	sandbox_path(&box->boxes->thawd->state, box->machine, "vsock", path);
	fd = usock_connect(path, SOCK_STREAM);
	if (fd < 0)
		return fd;
	n = snprintf(line, sizeof(line), "CONNECT %u\n", SHIM_PORT);
	if (send(fd, line, (size_t)n, MSG_NOSIGNAL) != n)
		ret = -EPIPE;
	while (!ret && (!used || line[used - 1] != '\n')) {
		ret = wait_for(fd, box->pid_fd, deadline_ns);
		if (!ret && (used == sizeof(line) || recv(fd, line + used, 1, 0) != 1))
			ret = -EPIPE;
		used++;
	}
	memcpy(frame, &head, sizeof(head));
	memcpy(frame + sizeof(head), &grace_ms, sizeof(grace_ms));
	if (!ret && send(fd, frame, sizeof(frame), MSG_NOSIGNAL) != sizeof(frame))
		ret = -EPIPE;
	/* Its answer: behind it the stream may go. */
	if (!ret)
		ret = wait_for(fd, box->pid_fd, deadline_ns);
	fd_close(&fd);
	return ret == -EPIPE ? 0 : ret;
}

static void shut_down(struct box *box, u32 grace_ms)
{
	const u64 deadline_ns = clock_now_ns() + ((u64)grace_ms + SHUTDOWN_EXTRA_MS) * 1000000;
	struct pollfd pfd = {.fd = box->pid_fd, .events = POLLIN};
	u64 now_ns;

	if (ask_shutdown(box, grace_ms, deadline_ns))
		return;
	now_ns = clock_now_ns();
	if (now_ns < deadline_ns)
		(void)!poll(&pfd, 1, (int)((deadline_ns - now_ns) / 1000000 + 1));
}

void box_drop_machine(struct box *box)
{
	struct pollfd gone = {.fd = box->pid_fd, .events = POLLIN};
	int pid_fd = box->pid_fd;

	box->watch = 0;
	if (pid_fd >= 0)
		(void)epoll_ctl(box->boxes->epoll_fd, EPOLL_CTL_DEL, pid_fd, NULL);
	vmmproc_end(&box->vmm);
	if (pid_fd >= 0) {
		/* An adopted one is not waited for by that. */
		(void)syscall(SYS_pidfd_send_signal, pid_fd, SIGKILL, NULL, 0);
		if (poll(&gone, 1, GONE_MS) != 1)
			log_warn("sandbox '%s': its thaw-vmm was killed, but does not end",
				 box->name);
	}
	pthread_mutex_lock(&box->lock);
	fd_close(&box->pid_fd);
	box->pid = 0;
	box->ended = false;
	box->hard_due_ms = 0;
	box->pending = false;
	pthread_mutex_unlock(&box->lock);
}

void box_drop_folder(struct box *box)
{
	const struct state *state = &box->boxes->thawd->state;
	struct sandbox sb;
	char path[PATH_MAX];
	int all_fd;

	if (!box->machine[0])
		return;
	exec_box_deleted(box->boxes->thawd, box->name);
	/* Nobody tidies up meanwhile. */
	all_fd = sandbox_lock_all(state, false);
	box_sandbox(box, &sb);
	sandbox_path(state, sb.id, "", path);
	if (access(path, F_OK) == 0 && sandbox_remove(state, &sb))
		log_warn("sandbox '%s': its folder stays", box->name);
	fd_close(&all_fd);
	pthread_mutex_lock(&box->lock);
	box->machine[0] = '\0';
	pthread_mutex_unlock(&box->lock);
}

void box_drop_claims(struct box *box)
{
	const struct state *state = &box->boxes->thawd->state;
	struct sandbox sb;

	if (!box->machine[0] || sandbox_load(state, box->machine, &sb))
		return;
	box_sandbox(box, &sb);
	memcpy(sb.snapshot, sb.template_name, sizeof(sb.snapshot));
	sb.next[0] = '\0';
	if (sandbox_save(state, &sb))
		log_warn("sandbox '%s': its snapshot stays", box->name);
}

/** Its row is still there: so is it, for who tries again. */
static int not_removed(struct box *box, int ret, const char *why, struct box_error *err)
{
	pthread_mutex_lock(&box->lock);
	box->deleting = !err;
	if (box->state != BOX_STOPPED && box->state != BOX_FAILED) {
		if (!box->stop.set)
			box_stop_fill(&box->stop, BOX_START_FAILED, -1, why);
		box->state = BOX_FAILED;
		pthread_cond_broadcast(&box->changed);
	}
	pthread_mutex_unlock(&box->lock);
	if (err) {
		(void)box_refuse_row(ret, err, "sandbox '%s' can't be deleted: %s", box->name, why);
		/* The row may say that it is being deleted; the supervisor sees to it if this
		 * fails. */
		(void)!box_save(box);
	} else {
		atomic_store(&box->unsaved, true);
		super_unsaved(box->boxes);
	}
	return ret;
}

int box_remove(struct box *box, struct box_error *err)
{
	struct boxes *boxes = box->boxes;
	char snapshot[STATE_NAME_MAX + 1], paused[STATE_NAME_MAX + 1];
	struct log_keep keep;
	int ret;

	/* First: what is gone for its client is gone for the next thawd. */
	log_keep_begin(&keep, false);
	ret = db_box_delete(boxes->db, box->name);
	log_keep_end(&keep);
	if (ret)
		return not_removed(box, ret, keep.text, err);
	pthread_mutex_lock(&box->lock);
	memcpy(snapshot, box->spec.snapshot, sizeof(snapshot));
	memcpy(paused, box->snapshot, sizeof(paused));
	box->deleting = true;
	pthread_mutex_unlock(&box->lock);
	box_drop_folder(box);
	event_emit(boxes->thawd, "sandbox.deleted", box->name, NULL);
	boxes_remove(boxes, box);
	if (snapshot[0])
		snaps_unkeep(boxes, snapshot);
	if (paused[0])
		snaps_unkeep(boxes, paused);
	return 0;
}

static void count_stop(struct thawd *thawd, enum box_reason reason)
{
	static const enum metric_counter counters[] = {
		[BOX_EXITED] = METRIC_STOPS_EXITED,
		[BOX_IDLE] = METRIC_STOPS_IDLE,
		[BOX_HARD_TIMEOUT] = METRIC_STOPS_HARD_TIMEOUT,
		[BOX_STOP_ASKED] = METRIC_STOPS_REQUESTED,
		[BOX_DESTROYED] = METRIC_STOPS_REQUESTED,
		[BOX_LOST] = METRIC_STOPS_LOST,
		[BOX_START_FAILED] = METRIC_STOPS_LOST,
	};

	metric_add(thawd, counters[reason], 1);
}

/** The machine is gone, box->stop tells why. Return: 0, or -errno with @err: it was to be deleted,
 * and can't be. */
static int finish(struct box *box, struct box_error *err)
{
	struct thawd *thawd = box->boxes->thawd;
	const bool failed = box->stop.reason == BOX_START_FAILED;
	const bool asked = box->stop.reason == BOX_STOP_ASKED || box->stop.reason == BOX_DESTROYED;

	exec_box_stopped(thawd, box->name, box->incarnation);
	box_release(box);
	box_drop_claims(box);
	count_stop(thawd, box->stop.reason);
	event_emit(thawd, "sandbox.stopped", box->name, box_stop_json(&box->stop));
	if (!asked)
		audit_write(thawd, NULL, "sandbox.stop", box->name, "ok",
			    box_stop_json(&box->stop));
	box_set_state(box, failed ? BOX_FAILED : BOX_STOPPED);
	if (box_save(box))
		log_warn("sandbox '%s': that it stopped is not written down", box->name);
	/* A sweep looks at all sandboxes: only for what it could find. */
	if (sandbox_is_snap(box->from))
		super_sweep(box->boxes);
	if (box->deleting)
		return box_remove(box, err);
	if (box->spec.auto_remove)
		(void)box_remove(box, NULL);
	return 0;
}

static int give_up_paused(struct box *box, const struct box_stop *why, struct box_error *err)
{
	char snapshot[STATE_NAME_MAX + 1];
	int ret;

	pthread_mutex_lock(&box->lock);
	memcpy(snapshot, box->snapshot, sizeof(snapshot));
	box->snapshot[0] = '\0';
	box->stop = *why;
	pthread_mutex_unlock(&box->lock);
	ret = finish(box, err);
	snaps_unkeep(box->boxes, snapshot);
	return ret;
}

int box_stop(struct box *box, const struct box_stop *why, bool graceful, u32 grace_ms,
	     struct box_error *err)
{
	struct box_error unsaid = {0};

	if (box->state == BOX_PAUSED)
		return give_up_paused(box, why, err);
	if (box->state != BOX_RUNNING)
		return 0;
	pthread_mutex_lock(&box->lock);
	box->stop = *why;
	pthread_mutex_unlock(&box->lock);
	/* A full disk keeps nobody from ending it. */
	if (box_enter(box, BOX_STOPPING, &unsaid)) {
		json_decref(unsaid.details);
		box_set_state(box, BOX_STOPPING);
	}
	if (graceful)
		shut_down(box, grace_ms);
	box_drop_machine(box);
	pthread_mutex_lock(&box->lock);
	box->stop.time_ms = utc_now_ms();
	pthread_mutex_unlock(&box->lock);
	return finish(box, err);
}

void box_ended(struct box *box)
{
	struct thawd *thawd = box->boxes->thawd;
	char why[300] = "";
	struct box_stop stop;
	struct sandbox sb;
	bool over;

	(void)!vmmproc_receive(&box->vmm);
	vmmproc_reap(&box->vmm);
	vmmproc_why(&box->vmm, why, sizeof(why));
	over = (box->vmm.exit_seen && box->vmm.exit_reason == CTL_EXIT_DEADLINE) ||
	       (box->hard_due_ms && box->boxes->now_ms() >= box->hard_due_ms);
	if (over) {
		box_stop_fill(&stop, BOX_HARD_TIMEOUT, -1, NULL);
	} else if (box->vmm.exit_seen && box->vmm.exit_reason == CTL_EXIT_POWEROFF) {
		box_stop_fill(&stop, BOX_EXITED, -1, why);
	} else {
		box_sandbox(box, &sb);
		sandbox_last_words(&thawd->state, &sb, why, sizeof(why));
		box_stop_fill(&stop, BOX_LOST, -1, why);
	}
	pthread_mutex_lock(&box->lock);
	box->stop = stop;
	pthread_mutex_unlock(&box->lock);
	box_drop_machine(box);
	(void)finish(box, NULL);
}

int box_delete(struct box *box, const char *message, struct box_error *err)
{
	struct box_stop stop;

	box_stop_fill(&stop, BOX_DESTROYED, -1, message);
	pthread_mutex_lock(&box->lock);
	box->deleting = true;
	pthread_mutex_unlock(&box->lock);
	/* That removes it as well, if there was something to end. */
	if (box->state == BOX_RUNNING || box->state == BOX_PAUSED)
		return box_stop(box, &stop, false, 0, err);
	return box_remove(box, err);
}

void box_hurry(struct box *box)
{
	pid_t pid;
	int fd = -1;

	pthread_mutex_lock(&box->lock);
	if (box->state == BOX_STOPPING && box->pid_fd >= 0)
		(void)syscall(SYS_pidfd_send_signal, box->pid_fd, SIGKILL, NULL, 0);
	else if (box->state == BOX_STARTING && box->machine[0])
		fd = sandbox_pidfd(&box->boxes->thawd->state, box->machine, &pid);
	if (fd >= 0) {
		box->hurried = true;
		(void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
	}
	pthread_mutex_unlock(&box->lock);
	fd_close(&fd);
}

void box_stop_later(struct box *box, enum box_reason reason, int exit_code, u64 incarnation)
{
	pthread_mutex_lock(&box->lock);
	if (!box->pending && box->incarnation == incarnation) {
		box->pending = true;
		box->pending_reason = reason;
		box->pending_code = exit_code;
		box->pending_incarnation = incarnation;
	}
	pthread_mutex_unlock(&box->lock);
	super_wake(box->boxes);
}
