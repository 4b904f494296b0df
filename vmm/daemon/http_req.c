// SPDX-License-Identifier: Apache-2.0
// A request's life and what a handler may ask about it.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

size_t http_ring_put(struct http_ring *ring, const void *buf, size_t len_bytes)
{
	size_t n = MIN(len_bytes, HTTP_RING_BYTES - ring->used), at, first;

	if (!n)
		return 0;
	if (!ring->buf)
		ring->buf = malloc(HTTP_RING_BYTES);
	if (!ring->buf)
		return 0;
	at = (ring->start + ring->used) % HTTP_RING_BYTES;
	first = MIN(n, HTTP_RING_BYTES - at);
	memcpy(ring->buf + at, buf, first);
	memcpy(ring->buf, (const u8 *)buf + first, n - first);
	ring->used += n;
	return n;
}

size_t http_ring_take(struct http_ring *ring, void *buf, size_t max_bytes)
{
	size_t n = MIN(max_bytes, ring->used), first;

	if (!n)
		return 0;
	first = MIN(n, HTTP_RING_BYTES - ring->start);
	memcpy(buf, ring->buf + ring->start, first);
	memcpy((u8 *)buf + first, ring->buf, n - first);
	ring->start = (ring->start + n) % HTTP_RING_BYTES;
	ring->used -= n;
	return n;
}

struct http_req *http_req_new(struct http_listener *listener, struct MHD_Connection *mhd,
			      const char *raw_target)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct http_req *req = calloc(1, sizeof(*req));
	pthread_condattr_t attr;

	if (!req)
		return NULL;
	req->raw_target = strdup(raw_target);
	if (!req->raw_target) {
		free(req);
		return NULL;
	}
	req->http = listener->http;
	req->listener = listener;
	req->mhd = mhd;
	req->conn = info ? info->socket_context : NULL;
	req->refs = 1;
	req->client_fd = -1;
	req->upgrade_fd = -1;
	req->body_fd = -1;
	req->stream_left = -1;
	req->start_ns = clock_now_ns();
	pthread_mutex_init(&req->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&req->wake, &attr);
	pthread_condattr_destroy(&attr);
	return req;
}

static void req_free(struct http_req *req)
{
	if (req->response)
		MHD_destroy_response(req->response);
	for (unsigned int i = 0; i < req->nextra; i++) {
		free(req->extra[i][0]);
		free(req->extra[i][1]);
	}
	fd_close(&req->client_fd);
	fd_close(&req->upgrade_fd);
	fd_close(&req->body_fd);
	free(req->early);
	free(req->in.buf);
	free(req->out.buf);
	free(req->plain);
	free(req->header_memory);
	free(req->raw_target);
	route_target_free(&req->target);
	pthread_cond_destroy(&req->wake);
	pthread_mutex_destroy(&req->lock);
	free(req);
}

void http_req_put(struct http_req *req)
{
	bool last;

	pthread_mutex_lock(&req->lock);
	last = --req->refs == 0;
	pthread_mutex_unlock(&req->lock);
	if (last)
		req_free(req);
}

void http_req_lock(struct http_req *req)
{
	pthread_mutex_lock(&req->lock);
}

void http_req_unlock(struct http_req *req)
{
	pthread_mutex_unlock(&req->lock);
}

void http_req_unlock_resume(struct http_req *req)
{
	struct MHD_Connection *mhd = req->suspended ? req->mhd : NULL;

	/* MHD leaves a suspended connection alone, and whoever takes the flag away resumes: it
	 * can't go between these lines. */
	req->suspended = false;
	pthread_mutex_unlock(&req->lock);
	if (mhd)
		MHD_resume_connection(mhd);
}

int http_req_wait(struct http_req *req, u64 deadline_ns)
{
	struct timespec until = {
		.tv_sec = (time_t)(deadline_ns / 1000000000),
		.tv_nsec = (long)(deadline_ns % 1000000000),
	};

	if (!deadline_ns) {
		pthread_cond_wait(&req->wake, &req->lock);
		return 0;
	}
	if (clock_now_ns() >= deadline_ns)
		return -ETIMEDOUT;
	pthread_cond_timedwait(&req->wake, &req->lock, &until);
	return 0;
}

void http_req_wake(struct http_req *req)
{
	pthread_cond_broadcast(&req->wake);
	if (req->body_fd >= 0)
		eventfd_write(req->body_fd, 1);
}

void http_req_cut(struct http_req *req)
{
	if (req->mhd && req->conn)
		http_conn_cut(req->conn);
}

const char *http_param(const struct http_req *req, const char *name)
{
	size_t len = strlen(name);

	for (unsigned int i = 0; i < req->target.nparams; i++) {
		const struct route_pair *pair = &req->target.params[i];

		/* The name is in the pattern: "name}" or "name...}". */
		if (!strncmp(pair->name, name, len) &&
		    (pair->name[len] == '}' || pair->name[len] == '.'))
			return pair->value;
	}
	return NULL;
}

const char *http_query(const struct http_req *req, const char *name)
{
	for (unsigned int i = 0; i < req->target.nqueries; i++) {
		if (!strcmp(req->target.queries[i].name, name))
			return req->target.queries[i].value;
	}
	return NULL;
}

int http_query_all(const struct http_req *req, const char *name,
		   int (*fn)(void *opaque, const char *value), void *opaque)
{
	int ret = 0;

	for (unsigned int i = 0; i < req->target.nqueries && !ret; i++) {
		if (!strcmp(req->target.queries[i].name, name))
			ret = fn(opaque, req->target.queries[i].value);
	}
	return ret;
}

int http_query_u64(struct http_req *req, const char *name, u64 min, u64 max, u64 otherwise,
		   u64 *out)
{
	const char *text = http_query(req, name);

	*out = otherwise;
	if (!text || !parse_u64(text, min, max, out))
		return 0;
	http_reply_error(req, 400, "invalid_request", json_pack("{s:s}", "parameter", name),
			 "query parameter '%s': expected a number from %llu to %llu", name,
			 (unsigned long long)min, (unsigned long long)max);
	return -EINVAL;
}

const char *http_header(const struct http_req *req, const char *name)
{
	for (unsigned int i = 0; i < req->nheaders; i++) {
		if (!strcasecmp(req->headers[i].name, name))
			return req->headers[i].value;
	}
	return NULL;
}

void http_headers_all(const struct http_req *req,
		      void (*fn)(void *opaque, const char *name, const char *value), void *opaque)
{
	for (unsigned int i = 0; i < req->nheaders; i++)
		fn(opaque, req->headers[i].name, req->headers[i].value);
}

const char *http_method_name(const struct http_req *req)
{
	return req->method;
}

const char *http_raw_target(const struct http_req *req)
{
	return req->raw_target;
}

/** list_has() - is @word one of the comma-separated items of @list, parameters (";q=1") aside? */
static bool list_has(const char *list, const char *word)
{
	size_t len = strlen(word);

	while (*list) {
		size_t item;

		list += strspn(list, " \t,");
		item = strcspn(list, " \t,;");
		if (item == len && !strncasecmp(list, word, len))
			return true;
		list += strcspn(list, ",");
	}
	return false;
}

/** any_has() - list_has() over all headers of that name. */
static bool any_has(const struct http_req *req, const char *header, const char *word)
{
	for (unsigned int i = 0; i < req->nheaders; i++) {
		if (!strcasecmp(req->headers[i].name, header) &&
		    list_has(req->headers[i].value, word))
			return true;
	}
	return false;
}

bool http_accepts(const struct http_req *req, const char *type)
{
	return any_has(req, "Accept", type);
}

bool http_wants_upgrade(const struct http_req *req, const char *protocol)
{
	return any_has(req, "Connection", "upgrade") && any_has(req, "Upgrade", protocol);
}

const char *http_who(const struct http_req *req)
{
	return req->who;
}

const char *http_peer(const struct http_req *req)
{
	return req->peer;
}

bool http_over_tls(const struct http_req *req)
{
	return req->listener->tls;
}

/** hung_up_fd() - a descriptor that polls as hung up. */
static int hung_up_fd(void)
{
	int fds[2] = {-1, -1};

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -1;
	fd_close(&fds[1]);
	return fds[0];
}

int http_client_fd(const struct http_req *asked)
{
	struct http_req *req = (struct http_req *)asked;

	http_req_lock(req);
	/* A duplicate: MHD closes its own when the connection ends, and the number may be
	 * another's then. */
	if (req->client_fd < 0 && req->mhd && req->conn) {
		req->client_fd = fcntl(req->conn->fd, F_DUPFD_CLOEXEC, 3);
		__atomic_store_n(&req->conn->watched, true, __ATOMIC_SEQ_CST);
		if (__atomic_load_n(&req->http->stopping, __ATOMIC_SEQ_CST))
			shutdown(req->client_fd, SHUT_RD);
	}
	if (req->client_fd < 0)
		req->client_fd = hung_up_fd();
	http_req_unlock(req);
	return req->client_fd;
}

bool http_stopping(const struct http_req *req)
{
	return __atomic_load_n(&req->http->stopping, __ATOMIC_ACQUIRE);
}

int http_stop_fd(const struct http_req *req)
{
	return req->http->stop_fd;
}
