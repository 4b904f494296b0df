// SPDX-License-Identifier: Apache-2.0
// Worker threads: each runs one handler after the other. Made when a request finds none idle, gone
// after ten seconds without one. How many requests each listener may have there is bounded, so that
// clients of one can't keep those of another from being served.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define IDLE_S	      10
#define RESERVED_PART 4 /* of max_requests: for those that do not wait, see HTTP_RESERVED */

/** finish() - what a handler has left undone. */
static void finish(struct http_req *req)
{
	if (!http_replied(req)) {
		log_err("%s %s: not answered by its handler", req->method, req->target.path);
		http_reply_error(req, 500, "internal", NULL, "thawd gave no answer to this");
	}
	http_req_lock(req);
	if (req->stream_left > 0 && !req->is_head)
		req->out_failed = true;
	req->out_done = true;
	http_req_unlock_resume(req);
	http_upgrade_end(req);
	log_debug("%s: %s %s: %u, %llu us", req->who, req->method, req->target.path, req->status,
		  (unsigned long long)(clock_now_ns() - req->start_ns) / 1000);
}

static struct http_req *next(struct http *http)
{
	struct timespec until;
	struct http_req *req;
	int ret = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += IDLE_S;
	http->idle++;
	while (TAILQ_EMPTY(&http->queue) && ret != ETIMEDOUT && !http->ending)
		ret = pthread_cond_timedwait(&http->work_wake, &http->work_lock, &until);
	http->idle--;
	req = TAILQ_FIRST(&http->queue);
	if (req) {
		TAILQ_REMOVE(&http->queue, req, queue_link);
		http->queued--;
	}
	return req;
}

static void *worker_main(void *opaque)
{
	struct http *http = opaque;
	struct http_req *req;

	pthread_mutex_lock(&http->work_lock);
	while ((req = next(http)) != NULL) {
		struct http_listener *listener = req->listener;

		pthread_mutex_unlock(&http->work_lock);
		req->route->serve(http->thawd, req);
		finish(req);
		http_req_put(req);
		pthread_mutex_lock(&http->work_lock);
		listener->requests--;
		pthread_cond_broadcast(&http->work_done);
	}
	http->workers--;
	pthread_cond_broadcast(&http->work_done);
	pthread_mutex_unlock(&http->work_lock);
	return NULL;
}

static int spawn(struct http *http)
{
	pthread_attr_t attr;
	pthread_t thread;
	int ret;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, HTTP_STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	ret = pthread_create(&thread, &attr, worker_main, http);
	pthread_attr_destroy(&attr);
	return -ret;
}

int http_work_submit(struct http_req *req)
{
	struct http *http = req->http;
	u64 max = http->thawd->conf.max_requests;
	int ret = 0;

	if (!(req->route->flags & HTTP_RESERVED) && req->listener->kind != LISTENER_PREVIEW)
		max -= max / RESERVED_PART;
	pthread_mutex_lock(&http->work_lock);
	if (req->listener->requests >= max || http->ending)
		ret = -EAGAIN;
	if (!ret && http->queued >= http->idle) {
		ret = spawn(http);
		if (ret)
			log_guest("no thread for another request: %s", strerror(-ret));
		else
			http->workers++;
	}
	if (!ret) {
		req->refs++; /* nobody else has it yet */
		req->listener->requests++;
		http->queued++;
		TAILQ_INSERT_TAIL(&http->queue, req, queue_link);
		pthread_cond_signal(&http->work_wake);
	}
	pthread_mutex_unlock(&http->work_lock);
	return ret;
}
