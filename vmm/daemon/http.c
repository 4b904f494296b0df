// SPDX-License-Identifier: Apache-2.0
// The HTTP part of thawd: its listeners, each with an MHD of its own, so that their limits are
// their own too; its start and its end.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define POOL_BYTES	 (64 * KIB) /* of a connection, for its headers and its buffers */
#define PEM_MAX_BYTES	 (256 * KIB)
#define END_GRACE_S	 5
#define SEND_GRACE_TRIES 200u
#define FDS_KEPT_BACK	 1024u

static void mhd_log(void *opaque, const char *fmt, va_list args) __printf(2, 0);
static void mhd_log(void *opaque, const char *fmt, va_list args)
{
	char line[512];
	size_t len;

	(void)opaque;
	vsnprintf(line, sizeof(line), fmt, args);
	len = strlen(line);
	while (len && line[len - 1] == '\n')
		line[--len] = '\0';
	log_debug("%s", line);
}

/** idle_s() - MHD's own time-out, beyond all of ours: for what only MHD sees, a client that takes
 * nothing of an answer whose handler is through. */
static unsigned int idle_s(const struct conf *conf)
{
	u64 ms = MAX(conf->idle_timeout_ms, conf->header_timeout_ms);

	ms = MAX(ms, conf->body_timeout_ms);
	ms = MAX(ms, conf->send_timeout_ms);
	return (unsigned int)(ms / 1000) + 2;
}

/* MHD's: may who has just connected stay? */
static enum MHD_Result accept_policy(void *opaque, const struct sockaddr *addr, socklen_t len_bytes)
{
	const struct http *http = opaque;

	(void)addr;
	(void)len_bytes;
	return __atomic_load_n(&http->stopping, __ATOMIC_ACQUIRE) ? MHD_NO : MHD_YES;
}

static int start_mhd(struct http_listener *listener)
{
	const struct conf *conf = &listener->http->thawd->conf;
	unsigned int flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
			     MHD_ALLOW_UPGRADE | MHD_USE_ERROR_LOG;
	unsigned int threads = (unsigned int)conf->io_threads;
	/* MHD shares its limit out among the threads. */
	unsigned int limit = (unsigned int)conf->max_connections + HTTP_ACCESS_LIMIT * threads;
	struct MHD_OptionItem options[] = {
		{MHD_OPTION_CONNECTION_LIMIT, (intptr_t)(limit * threads), NULL},
		{MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)idle_s(conf), NULL},
		{MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
		{threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, (intptr_t)threads,
		 NULL},
		{MHD_OPTION_END, 0, NULL},
	};
	struct MHD_OptionItem tls[] = {
		{MHD_OPTION_HTTPS_MEM_CERT, 0, listener->cert},
		{MHD_OPTION_HTTPS_MEM_KEY, 0, listener->key},
		{MHD_OPTION_END, 0, NULL},
	};

	if (listener->tls)
		flags |= MHD_USE_TLS;
	listener->daemon = MHD_start_daemon(
		flags, 0, accept_policy, listener->http, http_serve, listener,
		MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL, MHD_OPTION_LISTEN_SOCKET, listener->fd,
		MHD_OPTION_NOTIFY_CONNECTION, http_conn_notify, listener,
		MHD_OPTION_NOTIFY_COMPLETED, http_serve_completed, listener,
		MHD_OPTION_URI_LOG_CALLBACK, http_serve_target, listener,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)MAX(POOL_BYTES, 2 * conf->max_header_bytes),
		MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)(8 * KIB),
		MHD_OPTION_THREAD_STACK_SIZE, (size_t)(256 * KIB), MHD_OPTION_ARRAY,
		listener->tls ? tls : &tls[2], MHD_OPTION_ARRAY, options, MHD_OPTION_END);
	if (listener->daemon)
		return 0;
	log_err("%s: the HTTP server does not start%s", listener->name,
		listener->tls ? "; is the certificate with its key a valid PEM file?" : "");
	return -EIO;
}

static int read_pem(const char *path, char **out)
{
	int ret = file_read_all(AT_FDCWD, path, PEM_MAX_BYTES, out, NULL);

	if (ret)
		log_err("%s: %s", path, strerror(-ret));
	return ret;
}

/** add() - a listener over @fd, which is taken; @cert "": no TLS. */
static int add(struct http *http, enum http_listener_kind kind, const char *name, int fd,
	       const char *cert, const char *key)
{
	struct http_listener *listener = &http->listeners[http->nlisteners];
	int ret = 0;

	if (fd < 0)
		return fd;
	http->nlisteners++;
	listener->http = http;
	listener->kind = kind;
	listener->name = name;
	listener->fd = fd;
	listener->tls = *cert;
	pthread_mutex_init(&listener->lock, NULL);
	for (size_t i = 0; i < ARRAY_SIZE(listener->lists); i++)
		TAILQ_INIT(&listener->lists[i]);
	if (listener->tls) {
		ret = read_pem(cert, &listener->cert);
		if (!ret)
			ret = read_pem(key, &listener->key);
	}
	return ret ? ret : start_mhd(listener);
}

/** raise_files() - as many descriptors as connections may take. */
static void raise_files(const struct conf *conf)
{
	u64 want = 3 * (conf->max_connections + conf->max_requests) + FDS_KEPT_BACK;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= want)
		return;
	limit.rlim_cur = MIN((rlim_t)want, limit.rlim_max);
	if (geteuid() == 0 && limit.rlim_max < want)
		limit.rlim_cur = limit.rlim_max = want;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur < want)
		log_warn("%llu descriptors are allowed, %llu would be needed when all connections "
			 "are used; raise LimitNOFILE or lower max_connections",
			 (unsigned long long)limit.rlim_cur, (unsigned long long)want);
}

/** listen_all() - the Unix socket last: who finds it there may count on the others. */
static int listen_all(struct http *http)
{
	const struct conf *conf = &http->thawd->conf;
	int ret = 0;

	if (*conf->listen)
		ret = add(http, LISTENER_TCP, conf->listen, http_listen_tcp("listen", conf->listen),
			  conf->tls_cert, conf->tls_key);
	if (!ret && *conf->preview_listen)
		ret = add(http, LISTENER_PREVIEW, conf->preview_listen,
			  http_listen_tcp("preview_listen", conf->preview_listen),
			  conf->preview_tls_cert, conf->preview_tls_key);
	if (!ret)
		ret = add(http, LISTENER_UNIX, conf->socket_path, http_listen_unix(http->thawd), "",
			  "");
	return ret;
}

int http_start(struct thawd *thawd)
{
	struct http *http = calloc(1, sizeof(*http));
	pthread_condattr_t attr;
	int ret = 0;

	if (!http)
		return -ENOMEM;
	thawd->http = http;
	http->thawd = thawd;
	auth_init(&http->auth);
	TAILQ_INIT(&http->queue);
	pthread_mutex_init(&http->work_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&http->work_wake, &attr);
	pthread_cond_init(&http->work_done, &attr);
	pthread_condattr_destroy(&attr);
	http->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (http->stop_fd < 0)
		return -errno;
	raise_files(&thawd->conf);
	if (*thawd->conf.token_file)
		ret = auth_load(&http->auth, thawd->conf.token_file);
	return ret ? ret : listen_all(http);
}

int http_reload(struct thawd *thawd)
{
	if (!*thawd->conf.token_file)
		return 0;
	return auth_load(&thawd->http->auth, thawd->conf.token_file);
}

void http_tick(struct thawd *thawd)
{
	for (unsigned int i = 0; i < thawd->http->nlisteners; i++)
		http_conn_expire(&thawd->http->listeners[i]);
}

/** wait_requests() - until no request is with a worker. Return: true, or false after @ms. */
static bool wait_requests(struct http *http, u64 ms)
{
	struct timespec until;
	unsigned int left;
	int ret = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)(ms / 1000);
	pthread_mutex_lock(&http->work_lock);
	do {
		left = 0;
		for (unsigned int i = 0; i < http->nlisteners; i++)
			left += http->listeners[i].requests;
		if (left && !ret)
			ret = pthread_cond_timedwait(&http->work_done, &http->work_lock, &until);
	} while (left && !ret);
	pthread_mutex_unlock(&http->work_lock);
	return !left;
}

/** wait_sent() - until what was answered is on its way, for as long as a client that reads takes at
 * most. */
static void wait_sent(struct http *http)
{
	struct timespec pause = {.tv_nsec = 5000000};

	for (unsigned int tries = 0; tries < SEND_GRACE_TRIES; tries++) {
		bool busy = false;

		for (unsigned int i = 0; i < http->nlisteners; i++)
			busy |= http_conn_busy(&http->listeners[i]);
		if (!busy)
			return;
		nanosleep(&pause, NULL);
	}
}

void http_drain(struct thawd *thawd)
{
	struct http *http = thawd->http;
	bool done;

	if (!http || http->stop_fd < 0)
		return;
	__atomic_store_n(&http->stopping, true, __ATOMIC_RELEASE);
	eventfd_write(http->stop_fd, 1);
	for (unsigned int i = 0; i < http->nlisteners; i++) {
		struct http_listener *listener = &http->listeners[i];

		/*
		 * accept_policy() turns away who comes now. MHD_quiesce_daemon() would be the way,
		 * but of 0.9.75 it aborts the process when one of MHD's threads takes the listener
		 * out of its set in the same moment.
		 */
		if (listener->kind == LISTENER_UNIX)
			unlink(thawd->conf.socket_path);
		http_conn_stop(listener, false);
	}
	done = wait_requests(http, thawd->conf.stop_timeout_ms);
	if (done)
		wait_sent(http);
	for (unsigned int i = 0; i < http->nlisteners; i++)
		http_conn_stop(&http->listeners[i], true);
	if (!done && !wait_requests(http, END_GRACE_S * 1000))
		log_warn("requests are still being served at the end; they are cut off");
}

/** end_workers() - Return: true, or false: some are still inside a handler. */
static bool end_workers(struct http *http)
{
	bool done = wait_requests(http, 0);

	pthread_mutex_lock(&http->work_lock);
	http->ending = true;
	pthread_cond_broadcast(&http->work_wake);
	while (done && http->workers)
		pthread_cond_wait(&http->work_done, &http->work_lock);
	pthread_mutex_unlock(&http->work_lock);
	return done;
}

void http_stop(struct thawd *thawd)
{
	struct http *http = thawd->http;

	if (!http)
		return;
	/* What somebody still uses is left to the end of the process, which comes now. */
	if (!end_workers(http))
		return;
	for (unsigned int i = 0; i < http->nlisteners; i++) {
		struct http_listener *listener = &http->listeners[i];

		/* It closes the listening socket as well. */
		if (listener->daemon) {
			MHD_stop_daemon(listener->daemon);
			listener->fd = -1;
		}
		fd_close(&listener->fd);
		free(listener->cert);
		if (listener->key)
			explicit_bzero(listener->key, strlen(listener->key));
		free(listener->key);
		pthread_mutex_destroy(&listener->lock);
	}
	fd_close(&http->stop_fd);
	auth_destroy(&http->auth);
	pthread_cond_destroy(&http->work_wake);
	pthread_cond_destroy(&http->work_done);
	pthread_mutex_destroy(&http->work_lock);
	free(http);
	thawd->http = NULL;
}
