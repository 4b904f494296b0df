// SPDX-License-Identifier: Apache-2.0
// Connections of clients: how many, how long each may take for its next request.
//
// Theory of operation
//
// MHD's own time-out is one of idleness: a client that sends a byte a second keeps a connection for
// ever. So each connection has a deadline here: for all headers of a request (FRESH), for the time
// between requests (IDLE). Both are constants, so that a list with the newest at its end is sorted
// by deadline and http_conn_expire() looks only at those that it cuts. BUSY ones are up to whoever
// serves them.
//
// The number is bounded. When it is reached, a newcomer takes the place of the connection that has
// waited longest without a request, idle ones first: somebody who opens thousands of connections
// and sends nothing, or little, throws out his own, while a client that sends its request at once
// is served. Only when all are busy is the newcomer sent away.
//
// A connection is cut by shutdown(2); MHD sees the end of the stream and closes. It tells
// http_conn_notify() before it closes the descriptor, so one that is listed is never another's.
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define MS_NS ((u64)1000000)

static u64 timeout_ns(const struct http_conn *conn, enum http_conn_state state)
{
	const struct conf *conf = &conn->listener->http->thawd->conf;
	u64 ms = state == CONN_IDLE ? conf->idle_timeout_ms : conf->header_timeout_ms;

	return ms * MS_NS;
}

static void list_into(struct http_conn *conn, enum http_conn_state state)
{
	conn->state = state;
	conn->deadline_ns = clock_now_ns() + timeout_ns(conn, state);
	TAILQ_INSERT_TAIL(&conn->listener->lists[state], conn, link);
}

static void cut_locked(struct http_conn *conn)
{
	if (conn->cut)
		return;
	conn->cut = true;
	shutdown(conn->fd, SHUT_RDWR);
}

static struct http_conn *oldest(struct http_listener *listener, enum http_conn_state state)
{
	struct http_conn *conn;

	while ((conn = TAILQ_FIRST(&listener->lists[state])) != NULL && conn->cut) {
		/* On its way out: it is no room a second time. */
		TAILQ_REMOVE(&listener->lists[state], conn, link);
		list_into(conn, CONN_BUSY);
	}
	return conn;
}

/** make_room() - with the listener's lock held: @conn is one too many. */
static void make_room(struct http_listener *listener, struct http_conn *conn)
{
	struct http_conn *victim = oldest(listener, CONN_IDLE);

	if (!victim)
		victim = oldest(listener, CONN_FRESH);
	if (!victim || victim == conn)
		log_guest("%s: %u connections, all of them busy; another one is sent away. "
			  "Setting max_connections allows more",
			  listener->name, listener->count);
	cut_locked(victim ? victim : conn);
}

static void describe_peer(struct http_conn *conn, struct MHD_Connection *mhd)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	const struct sockaddr *addr = info ? info->client_addr : NULL;
	struct ucred cred = {.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
	socklen_t len = sizeof(cred);

	conn->uid = (uid_t)-1;
	if (conn->listener->kind == LISTENER_UNIX) {
		if (getsockopt(conn->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0) {
			conn->uid = cred.uid;
			conn->pid = cred.pid;
		}
		return;
	}
	snprintf(conn->peer, sizeof(conn->peer), "unknown");
	if (addr && addr->sa_family == AF_INET)
		inet_ntop(AF_INET, &((const struct sockaddr_in *)addr)->sin_addr, conn->peer,
			  sizeof(conn->peer));
	else if (addr && addr->sa_family == AF_INET6)
		inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)addr)->sin6_addr, conn->peer,
			  sizeof(conn->peer));
}

static struct http_conn *conn_new(struct http_listener *listener, struct MHD_Connection *mhd)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct http_conn *conn;

	if (!info)
		return NULL;
	conn = calloc(1, sizeof(*conn));
	if (!conn) {
		/* Nothing is served on it; see http_serve_target(). */
		shutdown(info->connect_fd, SHUT_RDWR);
		return NULL;
	}
	conn->listener = listener;
	conn->fd = info->connect_fd;
	describe_peer(conn, mhd);
	pthread_mutex_lock(&listener->lock);
	list_into(conn, CONN_FRESH);
	if (++listener->count > listener->http->thawd->conf.max_connections)
		make_room(listener, conn);
	pthread_mutex_unlock(&listener->lock);
	if (__atomic_load_n(&listener->http->stopping, __ATOMIC_ACQUIRE))
		http_conn_cut(conn);
	return conn;
}

void http_conn_notify(void *opaque, struct MHD_Connection *mhd, void **context,
		      enum MHD_ConnectionNotificationCode code)
{
	struct http_listener *listener = opaque;
	struct http_conn *conn = *context;

	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		*context = conn_new(listener, mhd);
		return;
	}
	if (!conn)
		return;
	*context = NULL;
	pthread_mutex_lock(&listener->lock);
	TAILQ_REMOVE(&listener->lists[conn->state], conn, link);
	listener->count--;
	pthread_mutex_unlock(&listener->lock);
	free(conn);
}

void http_conn_set(struct http_conn *conn, enum http_conn_state state)
{
	struct http_listener *listener = conn->listener;

	pthread_mutex_lock(&listener->lock);
	TAILQ_REMOVE(&listener->lists[conn->state], conn, link);
	list_into(conn, conn->cut ? CONN_BUSY : state);
	pthread_mutex_unlock(&listener->lock);
	/* Between this connection's last request and the end of thawd nothing else is begun. */
	if (state == CONN_IDLE && __atomic_load_n(&listener->http->stopping, __ATOMIC_ACQUIRE))
		http_conn_cut(conn);
}

void http_conn_begin(struct http_conn *conn)
{
	struct http_listener *listener = conn->listener;

	pthread_mutex_lock(&listener->lock);
	if (conn->state == CONN_IDLE && !conn->cut) {
		TAILQ_REMOVE(&listener->lists[CONN_IDLE], conn, link);
		list_into(conn, CONN_FRESH);
	}
	pthread_mutex_unlock(&listener->lock);
}

void http_conn_cut(struct http_conn *conn)
{
	pthread_mutex_lock(&conn->listener->lock);
	cut_locked(conn);
	pthread_mutex_unlock(&conn->listener->lock);
}

void http_conn_expire(struct http_listener *listener)
{
	static const enum http_conn_state states[] = {CONN_FRESH, CONN_IDLE};
	u64 now_ns = clock_now_ns();
	struct http_conn *conn;

	pthread_mutex_lock(&listener->lock);
	for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
		while ((conn = oldest(listener, states[i])) != NULL && conn->deadline_ns <= now_ns)
			cut_locked(conn);
	}
	pthread_mutex_unlock(&listener->lock);
}

bool http_conn_busy(struct http_listener *listener)
{
	struct http_conn *conn;
	bool busy = false;

	pthread_mutex_lock(&listener->lock);
	TAILQ_FOREACH(conn, &listener->lists[CONN_BUSY], link)
	{
		busy |= !conn->cut;
	}
	pthread_mutex_unlock(&listener->lock);
	return busy;
}

void http_conn_stop(struct http_listener *listener, bool all)
{
	struct http_conn *conn;

	pthread_mutex_lock(&listener->lock);
	for (size_t state = 0; state < ARRAY_SIZE(listener->lists); state++) {
		TAILQ_FOREACH(conn, &listener->lists[state], link)
		{
			if (all || state != CONN_BUSY)
				cut_locked(conn);
			else if (!conn->cut && __atomic_load_n(&conn->watched, __ATOMIC_RELAXED) &&
				 !__atomic_load_n(&conn->upgraded, __ATOMIC_RELAXED))
				shutdown(conn->fd, SHUT_RD);
		}
	}
	pthread_mutex_unlock(&listener->lock);
}
