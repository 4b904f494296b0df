// SPDX-License-Identifier: Apache-2.0
// Answers that are written piece by piece, and server-sent events.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define MS_NS	    ((u64)1000000)
#define SSE_PING_NS (10000 * MS_NS)

/** stream_take() - MHD wants bytes; in its thread. */
static ssize_t stream_take(void *opaque, u64 at_bytes, char *buf, size_t max_bytes)
{
	struct http_req *req = opaque;
	ssize_t ret;

	(void)at_bytes;
	http_req_lock(req);
	ret = (ssize_t)http_ring_take(&req->out, buf, max_bytes);
	if (ret) {
		pthread_cond_broadcast(&req->wake);
	} else if (req->out_failed) {
		ret = MHD_CONTENT_READER_END_WITH_ERROR;
	} else if (req->out_done) {
		ret = MHD_CONTENT_READER_END_OF_STREAM;
	} else {
		req->suspended = true;
		MHD_suspend_connection(req->mhd);
	}
	http_req_unlock(req);
	return ret;
}

static void stream_free(void *opaque)
{
	http_req_put(opaque);
}

void http_stream_begin(struct http_req *req, unsigned int status, const char *type, s64 len_bytes)
{
	struct MHD_Response *response;

	http_req_lock(req);
	req->refs++;
	http_req_unlock(req);
	response =
		MHD_create_response_from_callback(len_bytes < 0 ? MHD_SIZE_UNKNOWN : (u64)len_bytes,
						  32 * KIB, stream_take, req, stream_free);
	BUG_ON(!response);
	/* MHD 0.9.75 ends a chunked body that a HEAD does not have: not chunked then, and the
	 * connection is closed. */
	if (req->is_head && len_bytes < 0)
		MHD_set_response_options(response, MHD_RF_HTTP_1_0_COMPATIBLE_STRICT, MHD_RO_END);
	req->streaming = true;
	req->stream_left = len_bytes;
	if (type)
		MHD_add_response_header(response, "Content-Type", type);
	http_add_extra(req, response);
	http_answer(req, status, response, NULL);
}

int http_stream_write(struct http_req *req, const void *buf, size_t len_bytes)
{
	const u8 *at = buf;

	if (!req->streaming)
		return -EPIPE;
	if (req->is_head)
		return 0;
	if (req->stream_left >= 0) {
		if (len_bytes > (u64)req->stream_left) {
			log_err("%s %s: the body is longer than was announced", req->method,
				req->target.path);
			http_stream_fail(req);
			return -EPIPE;
		}
		req->stream_left -= (s64)len_bytes;
	}
	while (len_bytes) {
		u64 deadline_ns = clock_now_ns() + req->http->thawd->conf.send_timeout_ms * MS_NS;
		size_t n;
		int ret = 0;

		http_req_lock(req);
		while (req->mhd && req->out.used == HTTP_RING_BYTES && !ret)
			ret = http_req_wait(req, deadline_ns);
		if (ret)
			http_req_cut(req);
		if (ret || !req->mhd || req->out_failed) {
			http_req_unlock(req);
			return -EPIPE;
		}
		n = http_ring_put(&req->out, at, len_bytes);
		if (!n) { /* no memory for the ring */
			http_req_unlock(req);
			http_stream_fail(req);
			return -EPIPE;
		}
		http_req_unlock_resume(req);
		at += n;
		len_bytes -= n;
	}
	return 0;
}

void http_stream_fail(struct http_req *req)
{
	http_req_lock(req);
	req->out_failed = true;
	http_req_unlock_resume(req);
}

void http_sse_begin(struct http_req *req)
{
	http_add_header(req, "Cache-Control", "no-store");
	http_add_header(req, "X-Accel-Buffering", "no");
	http_stream_begin(req, 200, "text/event-stream", -1);
	req->sse_sent_ns = clock_now_ns();
}

int http_sse_send(struct http_req *req, const char *event, const char *id, json_t *data)
{
	char *text = json_dumps(data, JSON_COMPACT | JSON_ENCODE_ANY), *frame = NULL;
	int len, ret;

	json_decref(data);
	if (!text)
		return -EPIPE;
	len = asprintf(&frame, "event: %s\n%s%s%sdata: %s\n\n", event, id ? "id: " : "",
		       id ? id : "", id ? "\n" : "", text);
	free(text);
	if (len < 0)
		return -EPIPE;
	ret = http_stream_write(req, frame, (size_t)len);
	free(frame);
	req->sse_sent_ns = clock_now_ns();
	return ret;
}

int http_sse_ping(struct http_req *req)
{
	static const char ping[] = "event: ping\ndata: {}\n\n";

	if (clock_now_ns() - req->sse_sent_ns < SSE_PING_NS)
		return 0;
	req->sse_sent_ns = clock_now_ns();
	return http_stream_write(req, ping, sizeof(ping) - 1);
}
