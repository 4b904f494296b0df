// SPDX-License-Identifier: Apache-2.0
// The pool's loop: clients, shells, time.
//
// Off the request path. A claim is one message each way. What follows from it (a new shell) waits
// until no claim has come for a moment, because its set-up would take processor time from the clone
// that was just handed out; but not when no shell is left, and at most as many are under way as
// there are processors.
//
// A client that says nothing costs one of a few places, and loses it to the next one. No client can
// make the loop wait: everything is non-blocking.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vmm/cli/pool_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define POOL_CALM_NS 100000000ull

enum {
	PFD_LISTEN,
	PFD_SIGNAL,
	PFD_ZYGOTE,
	PFD_CLIENTS,
	PFD_SHELLS = PFD_CLIENTS + POOL_CLIENTS_MAX,
	PFD_MAX = PFD_SHELLS + POOL_SIZE_MAX,
};

/** The template was replaced or moved: shells of the old one are of no use. Return: 0 or -errno
 * (logged): there is none any more. */
static int follow_template(struct pool *pool)
{
	if (!pool_template_changed(pool))
		return 0;
	log_warn("template '%s' was replaced: its pool starts anew", pool->opts.name);
	pool_end_all(pool);
	return pool_lock(pool);
}

/** Hand out the youngest shell whose process lives: its pages are the likeliest to be in caches.
 * Return: false when there is none. */
static bool give_shell(struct pool *pool, int client)
{
	for (u32 i = pool->nshells; i-- > 0;) {
		struct pool_shell *shell = &pool->shells[i];
		struct pollfd pfd = {.fd = shell->pid_fd, .events = POLLIN};
		const int fds[] = {shell->ctl_fd, shell->pid_fd};
		struct pool_msg msg = {
			.version = POOL_VERSION, .type = POOL_SHELL, .pid = shell->pid};
		int ret;

		/* One that died just now: the loop will hear of it. */
		if (!pool_shell_ready(shell) || poll(&pfd, 1, 0) != 0)
			continue;
		snprintf(msg.strategy, sizeof(msg.strategy), "%s", pool->strategy);
		msg.counters = shell->counters;
		ret = pool_send(client, &msg, fds, ARRAY_SIZE(fds));
		/* A client that went away has not got it. */
		if (!ret)
			pool_shell_forget(pool, i);
		else
			log_debug("claim: %s", strerror(-ret));
		pool->hits += !ret;
		return true;
	}
	return false;
}

static int serve_claim(struct pool *pool, int client)
{
	struct pool_msg empty = {.version = POOL_VERSION, .type = POOL_EMPTY};
	u64 now_ns = clock_now_ns();
	int ret;

	ret = follow_template(pool);
	if (ret || !give_shell(pool, client)) {
		pool->misses++;
		if (pool_send(client, &empty, NULL, 0))
			log_debug("claim: the client is gone");
	}
	pool->target = pool->opts.size;
	pool->refill_ns = pool_count_ready(pool) ? now_ns + POOL_CALM_NS : now_ns;
	pool->idle_ns = pool->opts.idle_ns ? now_ns + pool->opts.idle_ns : 0;
	return ret;
}

static void serve_status(const struct pool *pool, int client)
{
	struct pool_msg msg = {
		.version = POOL_VERSION,
		.type = POOL_STATE,
		.size = pool->opts.size,
		.target = pool->target,
		.ready = pool_count_ready(pool),
		.hits = pool->hits,
		.misses = pool->misses,
		.zygote_pid = pool->zygote.pid,
	};

	snprintf(msg.strategy, sizeof(msg.strategy), "%s", pool->strategy);
	msg.starting = pool->nshells - msg.ready;
	for (u32 i = 0; i < pool->nshells; i++) {
		if (pool->shells[i].pid_fd >= 0)
			msg.pids[msg.npids++] = pool->shells[i].pid;
	}
	if (pool_send(client, &msg, NULL, 0))
		log_debug("status: the client is gone");
}

/** Return: 1 when @client has got its answer or never will, 0 when it has said nothing yet, or
 * -errno (logged): the pool can't go on. */
static int serve_client(struct pool *pool, int client)
{
	int fds[POOL_FDS_MAX], ret;
	struct pool_msg msg;

	ret = pool_recv(client, &msg, fds);
	fd_close(&fds[0]);
	fd_close(&fds[1]);
	if (ret == -EAGAIN)
		return 0;
	if (ret == 1 && msg.type == POOL_CLAIM) {
		ret = serve_claim(pool, client);
		return ret ? ret : 1;
	}
	if (ret == 1 && msg.type == POOL_STATUS)
		serve_status(pool, client);
	else if (ret)
		log_guest("pool of '%s': a client that does not speak its language",
			  pool->opts.name);
	return 1;
}

static int accept_client(struct pool *pool)
{
	int fd = accept4(pool->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), ret;
	unsigned int place;

	if (fd < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			log_guest("pool of '%s': accept: %s", pool->opts.name, strerror(errno));
		return 0;
	}
	/* Its question is usually there already. */
	ret = serve_client(pool, fd);
	if (ret) {
		fd_close(&fd);
		return MIN(ret, 0);
	}
	for (place = 0; place < POOL_CLIENTS_MAX && pool->clients[place] >= 0; place++)
		;
	if (place == POOL_CLIENTS_MAX)
		place = pool->next_client++ % POOL_CLIENTS_MAX;
	fd_close(&pool->clients[place]);
	pool->clients[place] = fd;
	return 0;
}

/** The pool has done nothing for a while: one shell will do until the next claim. */
static void shrink(struct pool *pool)
{
	pool->idle_ns = 0;
	pool->target = 1;
	while (pool->nshells > pool->target)
		pool_shell_drop(pool, pool->nshells - 1);
}

static void announce(struct pool *pool)
{
	pool->announced = true;
	printf("pool of %s: %u ready\n", pool->opts.name, pool->nshells);
	(void)fflush(stdout);
}

static int timeout_ms(const struct pool *pool, u64 now_ns)
{
	u64 next_ns = pool->idle_ns ? pool->idle_ns : UINT64_MAX;

	/* Only what is still to come: what is due now was tried, and an event will end it. */
	if (pool->nshells < pool->target) {
		u64 fill_ns = MAX(pool->refill_ns, pool->retry_ns);

		if (fill_ns > now_ns)
			next_ns = MIN(next_ns, fill_ns);
	}
	if (next_ns == UINT64_MAX)
		return -1;
	/* Rounded up: a wait that ends too early would spin. */
	return next_ns <= now_ns ? 0 : (int)MIN((next_ns - now_ns) / 1000000 + 1, 3600000ull);
}

static u32 fill_pfds(const struct pool *pool, struct pollfd *pfds)
{
	pfds[PFD_LISTEN] = (struct pollfd){.fd = pool->listen_fd, .events = POLLIN};
	pfds[PFD_SIGNAL] = (struct pollfd){.fd = pool->signal_fd, .events = POLLIN};
	pfds[PFD_ZYGOTE] = (struct pollfd){.fd = pool->zygote.ctl_fd, .events = POLLIN};
	for (u32 i = 0; i < POOL_CLIENTS_MAX; i++)
		pfds[PFD_CLIENTS + i] = (struct pollfd){.fd = pool->clients[i], .events = POLLIN};
	for (u32 i = 0; i < pool->nshells; i++)
		pfds[PFD_SHELLS + i] =
			(struct pollfd){.fd = pool->shells[i].ctl_fd, .events = POLLIN};
	return PFD_SHELLS + pool->nshells;
}

/** Shells from the last to the first, so that one that is dropped moves none that is still to be
 * looked at. */
static int serve_processes(struct pool *pool, const struct pollfd *pfds, u32 nshells)
{
	u64 now_ns = clock_now_ns();
	int ret = 0;

	for (u32 i = nshells; i-- > 0 && !ret;) {
		bool was_ready = pool_shell_ready(&pool->shells[i]);

		if (!pfds[PFD_SHELLS + i].revents || !pool_shell_receive(&pool->shells[i]))
			continue;
		if (was_ready)
			log_warn("shell %d is gone: it is replaced", (int)pool->shells[i].pid);
		pool_shell_drop(pool, i);
		if (!was_ready)
			ret = pool_failed(pool, now_ns);
	}
	if (!ret && pfds[PFD_ZYGOTE].revents && pool_zygote_receive(pool)) {
		log_warn("pool of '%s': the zygote is gone", pool->opts.name);
		pool_zygote_drop(pool);
		ret = pool_failed(pool, now_ns);
	}
	if (pool_count_ready(pool) == pool->target) {
		pool->backoff_ns = 0;
		if (!pool->announced)
			announce(pool);
	}
	return ret;
}

/** Clients after processes: a claim may change the list of shells. */
static int serve_clients(struct pool *pool, const struct pollfd *pfds)
{
	int ret = 0;

	for (u32 i = 0; i < POOL_CLIENTS_MAX && ret >= 0; i++) {
		if (!pfds[PFD_CLIENTS + i].revents)
			continue;
		ret = serve_client(pool, pool->clients[i]);
		if (ret)
			fd_close(&pool->clients[i]);
	}
	if (ret >= 0 && pfds[PFD_LISTEN].revents)
		ret = accept_client(pool);
	return MIN(ret, 0);
}

int pool_serve(struct pool *pool)
{
	struct pollfd pfds[PFD_MAX];
	u64 now_ns = clock_now_ns();
	int ret = 0;

	pool->idle_ns = pool->opts.idle_ns ? now_ns + pool->opts.idle_ns : 0;
	for (;;) {
		u32 nshells, npfds;

		if (pool->idle_ns && now_ns >= pool->idle_ns)
			shrink(pool);
		ret = pool_fill(pool, now_ns);
		if (ret)
			return ret;
		nshells = pool->nshells;
		npfds = fill_pfds(pool, pfds);
		if (poll(pfds, npfds, timeout_ms(pool, now_ns)) < 0) {
			if (errno == EINTR)
				continue;
			ret = -errno;
			log_err("poll: %s", strerror(-ret));
			return ret;
		}
		if (pfds[PFD_SIGNAL].revents)
			return 0;
		ret = serve_processes(pool, pfds, nshells);
		if (!ret)
			ret = serve_clients(pool, pfds);
		if (ret)
			return ret;
		now_ns = clock_now_ns();
	}
}
