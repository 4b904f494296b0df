// SPDX-License-Identifier: Apache-2.0
// The pool's processes: one zygote, and the shells it forks.
//
// A shell is known by its control channel, whose other end is made here and handed to the zygote,
// and by a pidfd, which the zygote hands back. Numbers of processes are for display only: a signal
// goes through the pidfd, which can't hit another process.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/cli/pool_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define POOL_BACKOFF_MIN_NS 1000000000ull
#define POOL_BACKOFF_MAX_NS 30000000000ull
#define POOL_END_MS	    5000

u32 pool_count_ready(const struct pool *pool)
{
	u32 count = 0;

	for (u32 i = 0; i < pool->nshells; i++)
		count += pool_shell_ready(&pool->shells[i]);
	return count;
}

int pool_lock(struct pool *pool)
{
	struct stat st;

	fd_close(&pool->lock_fd);
	pool->lock_fd = state_lock_template(&pool->state, pool->opts.name, false);
	if (pool->lock_fd >= 0 && fstat(pool->lock_fd, &st) == 0) {
		pool->dev = st.st_dev;
		pool->ino = st.st_ino;
		return 0;
	}
	log_err("template '%s': %s", pool->opts.name,
		pool->lock_fd == -ENOENT
			? "there is none of that name: 'thaw template ls' lists them"
		: pool->lock_fd == -EBUSY ? "it is being removed"
					  : strerror(pool->lock_fd < 0 ? -pool->lock_fd : errno));
	return pool->lock_fd < 0 ? pool->lock_fd : -EIO;
}

bool pool_template_changed(const struct pool *pool)
{
	char path[PATH_MAX];
	struct stat st;

	state_path(&pool->state, "templates", pool->opts.name, "", path);
	return stat(path, &st) < 0 || st.st_dev != pool->dev || st.st_ino != pool->ino;
}

static int zygote_start(struct pool *pool)
{
	char folder[PATH_MAX], scratch[PATH_MAX];
	const char *argv[] = {"thaw-vmm",	"restore",    folder,  "--strategy",
			      pool->strategy,	"--disk-dir", scratch, "--zygote-fd",
			      VMMPROC_CTL_TEXT, NULL};
	/* What it and the shells say is the pool's to say. */
	struct vmmproc_opts opts = {
		.argv = argv, .output_fd = -1, .log_fd = STDERR_FILENO, .file_fd = -1};
	int ret;

	ret = state_make_scratch(&pool->state);
	if (ret)
		return ret;
	state_path(&pool->state, "templates", pool->opts.name, "", folder);
	state_path(&pool->state, "scratch", NULL, NULL, scratch);
	pool->zygote_ready = false;
	ret = vmmproc_start(&pool->zygote, &opts);
	if (ret)
		vmmproc_end(&pool->zygote);
	return ret;
}

/** Ask the zygote for one more. */
static int shell_start(struct pool *pool)
{
	struct ctl_msg msg = {
		.version = CTL_VERSION, .type = CTL_FORK, .generation = ++pool->last_serial};
	int pair[2], ret;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
		ret = -errno;
		log_err("control channel: %s", strerror(-ret));
		return ret;
	}
	ret = ctl_send(pool->zygote.ctl_fd, &msg, pair[1]);
	fd_close(&pair[1]);
	if (ret) {
		fd_close(&pair[0]);
		return ret;
	}
	pool->shells[pool->nshells++] =
		(struct pool_shell){.serial = msg.generation, .ctl_fd = pair[0], .pid_fd = -1};
	return 0;
}

int pool_failed(struct pool *pool, u64 now_ns)
{
	if (!pool->announced && !pool->backoff_ns && !pool_count_ready(pool)) {
		log_err("pool of '%s': the first shell could not be made", pool->opts.name);
		return -EIO;
	}
	pool->backoff_ns = pool->backoff_ns ? MIN(2 * pool->backoff_ns, POOL_BACKOFF_MAX_NS)
					    : POOL_BACKOFF_MIN_NS;
	pool->retry_ns = now_ns + pool->backoff_ns;
	log_warn("pool of '%s': a shell could not be made; the next try is in %llu s",
		 pool->opts.name, (unsigned long long)(pool->backoff_ns / 1000000000));
	return 0;
}

int pool_fill(struct pool *pool, u64 now_ns)
{
	u32 under_way = pool->nshells - pool_count_ready(pool);

	if (pool->nshells >= pool->target || now_ns < pool->refill_ns || now_ns < pool->retry_ns)
		return 0;
	if (pool->opts.jail) {
		pool_jail_sweep(pool);
		for (; pool->nshells < pool->target && under_way < pool->at_once; under_way++) {
			if (pool_jail_start(pool))
				return pool_failed(pool, now_ns);
		}
		return 0;
	}
	if (pool->zygote.ctl_fd < 0)
		return zygote_start(pool) ? pool_failed(pool, now_ns) : 0;
	if (!pool->zygote_ready)
		return 0;
	for (; pool->nshells < pool->target && under_way < pool->at_once; under_way++) {
		/* -EPIPE: the loop will see its end; -EAGAIN: it has enough to do. */
		if (shell_start(pool))
			break;
	}
	return 0;
}

int pool_shell_receive(struct pool_shell *shell)
{
	struct ctl_msg msg;
	int fd, ret;

	ret = ctl_recv(shell->ctl_fd, &msg, &fd);
	if (ret == -EAGAIN)
		return 0;
	fd_close(&fd);
	if (ret <= 0)
		return ret ? ret : -EPIPE;
	if (msg.type == CTL_WAITING)
		shell->waiting = true;
	else if (msg.type == CTL_EXIT)
		log_warn("shell %d: %s", (int)shell->pid, msg.text);
	if (msg.type == CTL_WAITING && shell->pid_fd >= 0)
		proc_counters_read(shell->pid, &shell->counters);
	return 0;
}

/** One that was given up meanwhile ends by itself, as does a channel that got no process. */
static void take_forked(struct pool *pool, const struct ctl_msg *msg, int *fd)
{
	for (u32 i = 0; i < pool->nshells && *fd >= 0; i++) {
		struct pool_shell *shell = &pool->shells[i];

		if (shell->serial != msg->generation || shell->pid_fd >= 0)
			continue;
		shell->pid_fd = *fd;
		shell->pid = (pid_t)msg->port;
		*fd = -1;
		if (shell->waiting)
			proc_counters_read(shell->pid, &shell->counters);
	}
}

int pool_zygote_receive(struct pool *pool)
{
	struct ctl_msg msg;
	int fd, ret;

	ret = ctl_recv(pool->zygote.ctl_fd, &msg, &fd);
	if (ret == -EAGAIN)
		return 0;
	if (ret == 1 && msg.type == CTL_READY)
		pool->zygote_ready = true;
	else if (ret == 1 && msg.type == CTL_FORKED)
		take_forked(pool, &msg, &fd);
	fd_close(&fd);
	return ret == 1 ? 0 : ret ? ret : -EPIPE;
}

void pool_shell_forget(struct pool *pool, u32 index)
{
	struct pool_shell *shell = &pool->shells[index];

	fd_close(&shell->ctl_fd);
	fd_close(&shell->pid_fd);
	memmove(shell, shell + 1, (--pool->nshells - index) * sizeof(*shell));
}

void pool_shell_drop(struct pool *pool, u32 index)
{
	int pid_fd = pool->shells[index].pid_fd;

	/* The end of its channel is enough; this is quicker. */
	if (pid_fd >= 0)
		(void)syscall(SYS_pidfd_send_signal, pid_fd, SIGKILL, NULL, 0);
	pool_shell_forget(pool, index);
}

void pool_zygote_drop(struct pool *pool)
{
	for (u32 i = pool->nshells; i-- > 0;) {
		if (pool->shells[i].pid_fd < 0)
			pool_shell_drop(pool, i);
	}
	fd_close(&pool->zygote.ctl_fd);
	vmmproc_reap(&pool->zygote);
	vmmproc_end(&pool->zygote);
	pool->zygote_ready = false;
}

/** A process that is being forked can be waited for only once the zygote has told of it. */
static void wait_forked(struct pool *pool, u64 end_ns)
{
	for (u32 i = 0; i < pool->nshells && pool->zygote.ctl_fd >= 0;) {
		struct pollfd pfd = {.fd = pool->zygote.ctl_fd, .events = POLLIN};
		u64 now_ns = clock_now_ns();

		if (pool->shells[i].pid_fd >= 0)
			i++;
		else if (now_ns >= end_ns ||
			 poll(&pfd, 1, (int)((end_ns - now_ns) / 1000000) + 1) != 1 ||
			 pool_zygote_receive(pool))
			return;
	}
}

void pool_end_all(struct pool *pool)
{
	struct pollfd gone[POOL_SIZE_MAX];
	u64 end_ns = clock_now_ns() + POOL_END_MS * 1000000ull;
	u32 count = 0;

	wait_forked(pool, end_ns);
	while (pool->nshells) {
		u32 last = pool->nshells - 1;
		int fd = fcntl(pool->shells[last].pid_fd, F_DUPFD_CLOEXEC, 3);

		if (fd >= 0)
			gone[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
		pool_shell_drop(pool, last);
	}
	for (u32 i = 0; i < count; i++) {
		u64 now_ns = clock_now_ns();
		int left_ms = now_ns < end_ns ? (int)((end_ns - now_ns) / 1000000) : 0;

		if (poll(&gone[i], 1, left_ms) != 1)
			log_warn("a shell takes long to end");
		fd_close(&gone[i].fd);
	}
	if (pool->opts.jail)
		pool_jail_sweep(pool);
	/* After them, so that it can reap them. */
	pool_zygote_drop(pool);
}
