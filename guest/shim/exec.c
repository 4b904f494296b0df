// SPDX-License-Identifier: Apache-2.0
// From a request to a process, and from its end to the last frame.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/shim/exec.h"
#include "guest/shim/kept.h"
#include "guest/shim/shim.h"

static void close_pair(int pair[2])
{
	for (int i = 0; i < 2; i++)
		if (pair[i] >= 0)
			close(pair[i]);
}

/* A pipe whose end @ours is the shim's: non-blocking, watched. The other one stays blocking, as
 * programs expect. */
static int make_pipe(struct shim *shim, struct conn *c, enum conn_slot slot, int ours, int pair[2])
{
	int ret;

	if (pipe2(pair, O_CLOEXEC) < 0) {
		pair[0] = pair[1] = -1;
		return -errno;
	}
	c->fd[slot] = pair[ours];
	pair[ours] = -1;
	if (fcntl(c->fd[slot], F_SETFL, O_NONBLOCK) < 0)
		return -errno;
	ret = loop_watch(shim, c, slot, ours ? EPOLLOUT : EPOLLIN);
	/* An empty pipe takes something at once. */
	c->ready[slot] = ours == 1;
	return ret;
}

/* The fds of the child are the other ends; @stdio are copies of them. */
struct child_fds {
	int in[2], out[2], err[2], status[2];
	int terminal;
};

static int make_pipes(struct shim *shim, struct conn *c, struct child_fds *fds, int stdio[3])
{
	int ret = 0;

	stdio[0] = stdio[1] = stdio[2] = shim->null_fd;
	if (c->exec.pty) {
		fds->terminal = ret = pty_open(shim, c);
		if (ret < 0)
			return ret;
		stdio[0] = stdio[1] = stdio[2] = fds->terminal;
		return 0;
	}
	if (c->exec.with_stdin) {
		ret = make_pipe(shim, c, SLOT_STDIN, 1, fds->in);
		stdio[0] = fds->in[0];
	}
	if (ret || c->exec.detach)
		return ret;
	ret = make_pipe(shim, c, SLOT_STDOUT, 0, fds->out);
	stdio[1] = stdio[2] = fds->out[1];
	if (ret || c->exec.combined)
		return ret;
	ret = make_pipe(shim, c, SLOT_STDERR, 0, fds->err);
	stdio[2] = fds->err[1];
	return ret;
}

static int take_cgroup(struct shim *shim, struct conn *c)
{
	int ret;

	if (shim->cgroup_fd < 0)
		return 0;
	ret = cgroup_take(shim, &c->cgroup);
	if (!ret && c->exec.ext.pids_max)
		ret = cgroup_limit_pids(&c->cgroup, c->exec.ext.pids_max);
	/* Tests may have a cgroup without controllers. */
	return ret == -ENOENT && !shim->is_init ? 0 : ret;
}

static int start_child(struct shim *shim, struct conn *c)
{
	struct child_fds fds = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}, -1};
	int stdio[3];
	int ret;

	ret = make_pipes(shim, c, &fds, stdio);
	if (!ret)
		ret = make_pipe(shim, c, SLOT_STATUS, 0, fds.status);
	if (!ret)
		ret = take_cgroup(shim, c);
	if (!ret)
		ret = spawn_child(shim, c, stdio, fds.status[1]);
	/* The child has copies. */
	close_pair(fds.in);
	close_pair(fds.out);
	close_pair(fds.err);
	close_pair(fds.status);
	if (fds.terminal >= 0)
		close(fds.terminal);
	if (ret < 0)
		return ret;
	c->pid = ret;
	return 0;
}

void exec_uncount(struct shim *shim, struct conn *c)
{
	shim->nexecs -= c->counted;
	c->counted = false;
}

static int exec_admit(struct shim *shim, struct conn *c)
{
	if (shim->nexecs >= SHIM_EXEC_MAX)
		return -EAGAIN;
	shim->nexecs++;
	c->counted = true;
	return c->exec.keep ? kept_begin(shim, c) : 0;
}

void exec_begin(struct shim *shim, struct conn *c)
{
	s64 nslots = parse_exec_slots(c->req, c->req_len);
	int ret;

	if (nslots < 0) {
		conn_fail(shim, c, SHIM_STAGE_REQUEST, (int)-nslots, "request");
		return;
	}
	c->slots = malloc((size_t)nslots * sizeof(*c->slots));
	if (!c->slots) {
		conn_fail(shim, c, SHIM_STAGE_SETUP, ENOMEM, "request");
		return;
	}
	ret = parse_exec(c->req, c->req_len, c->slots, &c->exec);
	if (!ret)
		ret = exec_admit(shim, c);
	if (ret) {
		conn_fail(shim, c, SHIM_STAGE_REQUEST, -ret, "request");
		return;
	}
	if (c->exec.files && shim->files_fd < 0) {
		conn_fail(shim, c, SHIM_STAGE_EXEC, ENOENT, "thaw-files");
		return;
	}
	ret = start_child(shim, c);
	if (ret) {
		conn_close_slot(c, SLOT_STATUS);
		conn_fail(shim, c, SHIM_STAGE_SETUP, -ret, "start");
		return;
	}
	c->phase = CONN_STARTING;
	loop_set_timeout(shim, c, c->exec.ext.timeout_ms);
}

/* The child has left the shared memory, by execve or by its end. */
static void child_left(struct conn *c)
{
	conn_close_slot(c, SLOT_STATUS);
	free(c->req);
	free(c->slots);
	c->req = NULL;
	c->slots = NULL;
}

static void exec_started(struct shim *shim, struct conn *c)
{
	struct spawn_error error;
	char what[256];
	u8 pid[4];
	ssize_t n;

	if (!c->ready[SLOT_STATUS] && !c->reaped)
		return;
	n = read(c->fd[SLOT_STATUS], &error, sizeof(error));
	if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
		c->ready[SLOT_STATUS] = errno == EINTR;
		return;
	}
	if (n == sizeof(error)) {
		const char *name = error.stage == SHIM_STAGE_CWD ? c->exec.cwd : c->exec.argv[0];

		if (error.stage == SHIM_STAGE_SETUP)
			name = "credentials or limits";
		else if (error.stage == SHIM_STAGE_EXEC && c->exec.files)
			name = "thaw-files";
		what[sizeof(what) - 1] = '\0';
		strncpy(what, name, sizeof(what) - 1);
		child_left(c);
		conn_fail(shim, c, error.stage, (int)error.error, what);
		return;
	}
	child_left(c);
	c->phase = CONN_RUNNING;
	frame_put_u32(pid, (u32)c->pid);
	conn_put_frame(c, SHIM_STARTED, pid, sizeof(pid));
}

/*
 * The process has ended: the last frame follows the last byte of its output. A process it left
 * behind may hold the pipes open; then output is waited for until the drain time is over, and what
 * is in the pipes at that moment is still sent. So nothing the command itself wrote can be lost,
 * however slow the reader, and nothing the others do can hold up the exit for ever.
 */
static void exec_ended(struct shim *shim, struct conn *c)
{
	struct shim_exit *body = &c->status;

	if (c->fd[SLOT_STDOUT] >= 0 || c->fd[SLOT_STDERR] >= 0) {
		if (!c->deadline_ns && !c->drain_over)
			loop_set_deadline(shim, c, c->exec.drain_ms);
		else if (!c->drain_over && c->deadline_ns <= loop_now_ns()) {
			loop_set_deadline(shim, c, 0);
			pump_drain_over(c);
			pump_output(c);
		}
		if (c->fd[SLOT_STDOUT] >= 0 || c->fd[SLOT_STDERR] >= 0)
			return;
	}
	body->kind = WIFSIGNALED(c->wait_status) ? SHIM_EXIT_SIGNAL : SHIM_EXIT_CODE;
	body->value = (u32)(WIFSIGNALED(c->wait_status) ? WTERMSIG(c->wait_status)
							: WEXITSTATUS(c->wait_status));
	body->flags = c->drain_over ? 0 : SHIM_EXIT_DRAINED;
	if (c->timed_out)
		body->flags |= SHIM_EXIT_TIMED_OUT;
	if (c->cgroup.id && cgroup_saw_oom(&c->cgroup))
		body->flags |= SHIM_EXIT_OOM;
	conn_close_slot(c, SLOT_STDIN);
	loop_set_deadline(shim, c, 0);
	exec_uncount(shim, c);
	if (c->kept) {
		kept_ended(shim, c);
		return;
	}
	conn_put_frame(c, SHIM_EXIT, body, sizeof(*body));
	c->phase = CONN_LAST;
}

/* The time a command has is over: what it left behind has the drain time instead. */
static void exec_time_out(struct shim *shim, struct conn *c)
{
	if (!c->timeout_ns || (!c->reaped && c->timeout_ns > loop_now_ns()))
		return;
	loop_set_timeout(shim, c, 0);
	if (c->reaped)
		return;
	c->timed_out = true;
	exec_kill_all(shim, c);
}

void exec_progress(struct shim *shim, struct conn *c)
{
	exec_time_out(shim, c);
	if (c->phase == CONN_STARTING)
		exec_started(shim, c);
	if (c->phase != CONN_RUNNING)
		return;
	pump_output(c);
	if (c->reaped)
		exec_ended(shim, c);
}

void exec_signal(struct shim *shim, struct conn *c, u32 number)
{
	if (number < 1 || number > 64) {
		conn_bad_frame(shim, c, EINVAL, "signal");
		return;
	}
	/* Not reaped, so the number is still this process's (see loop.c). Before its execve the
	 * signal waits and then hits it. */
	if (c->pid && !c->reaped)
		kill(c->pid, (int)number);
}

void exec_kill(struct shim *shim, struct conn *c)
{
	if (c->cgroup.id) {
		cgroup_kill(&c->cgroup);
		return;
	}
	if (shim->cgroup_fd >= 0)
		return;
	/* Tests without cgroups. The child may not have got to setsid yet. */
	kill(-c->pid, SIGKILL);
	if (!c->reaped)
		kill(c->pid, SIGKILL);
}

void exec_kill_all(struct shim *shim, struct conn *c)
{
	if (!c->pid || (c->phase != CONN_STARTING && c->phase != CONN_RUNNING))
		return;
	/* Of a process group that has no member left the number may be another's. */
	if (shim->cgroup_fd < 0 && c->reaped)
		return;
	exec_kill(shim, c);
	/* It may still get members: by root in the guest. They are killed at the end. */
	c->cgroup.killed = false;
}

void exec_reap(struct shim *shim)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (u32 i = 0; i < SHIM_CONN_MAX; i++) {
			struct conn *c = shim->conns[i];

			if (!c || c->pid != pid || c->reaped)
				continue;
			c->reaped = true;
			c->wait_status = status;
			/* Its end is not to wait for acknowledgements. */
			c->ring.ending = true;
			/* Their last events may be in a later batch. */
			for (enum conn_slot slot = SLOT_STATUS; slot <= SLOT_STDERR; slot++)
				if (slot != SLOT_STDIN)
					c->ready[slot] = c->fd[slot] >= 0;
			loop_queue(shim, c);
			break;
		}
	}
}
