// SPDX-License-Identifier: Apache-2.0
// What MHD calls: a request begins, its body comes, its answer is due, it is over.
//
// Theory of operation
//
// MHD calls http_serve() once when the headers are complete, then for each piece of the body, then
// once more when all has come. The first call checks the request and hands it to a worker; from
// then on the worker and MHD's thread meet in struct http_req, under its lock:
//
//   body in    pieces go into the ring; when it is full the connection is suspended, and resumed
//              by the worker that took something out
//   last call  when there is no answer yet the connection is suspended until there is one
//   answer     a whole one is queued; of a streamed one MHD takes what is in the other ring, and
//              is suspended when that is empty
//
// So a connection is suspended only in these three places, always inside a callback and with the
// lock held, and MHD never has a reason to spin. A resume too many is harmless: the callback comes
// again and suspends again.
//
// MHD takes an answer only before or after the body, not inside. So of a worker that answers early
// the rest of the body is dropped as it comes, for no longer than header_timeout, and its answer
// follows; or, when there may be much to come, http_answer() writes it past MHD and the connection
// ends behind the body. A client that sends "Expect: 100-continue" is held in the first call, which
// MHD repeats after a resume, until the worker wants the body or has answered: what is refused
// costs no transfer.
//
// What is refused before it got to a worker is answered at once where the client has sent no body
// yet, or where the framing can't be trusted; the connection ends then.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/daemon/preview.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static const struct http_route *const api_tables[] = {
	api_core_routes, api_sandbox_routes, api_snapshot_routes, api_template_routes,
	api_exec_routes, api_file_routes,    api_port_routes,	  NULL,
};

void *http_serve_target(void *opaque, const char *uri, struct MHD_Connection *mhd)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct http_conn *conn = info ? info->socket_context : NULL;

	if (!conn)
		return NULL;
	http_conn_begin(conn);
	return http_req_new(opaque, mhd, uri);
}

struct header_copy {
	struct http_req *req;
	size_t bytes;
	char *at;
	bool too_many;
};

static enum MHD_Result count_header(void *opaque, enum MHD_ValueKind kind, const char *name,
				    const char *value)
{
	struct header_copy *copy = opaque;

	(void)kind;
	if (++copy->req->nheaders > HTTP_HEADERS_MAX)
		copy->too_many = true;
	copy->bytes += strlen(name) + (value ? strlen(value) : 0) + 2;
	return MHD_YES;
}

static const char *copy_text(struct header_copy *copy, const char *text)
{
	size_t len = text ? strlen(text) : 0;
	char *at = copy->at;

	memcpy(at, text ? text : "", len);
	at[len] = '\0';
	copy->at += len + 1;
	return at;
}

static enum MHD_Result copy_header(void *opaque, enum MHD_ValueKind kind, const char *name,
				   const char *value)
{
	struct header_copy *copy = opaque;
	struct route_pair *pair = &copy->req->headers[copy->req->nheaders++];

	(void)kind;
	pair->name = copy_text(copy, name);
	pair->value = copy_text(copy, value);
	return MHD_YES;
}

/** take_headers() - copies, since the worker may be there longer than MHD's. Return: 0, or -EINVAL:
 * answered. */
static int take_headers(struct http_req *req)
{
	u64 limit = req->http->thawd->conf.max_header_bytes;
	struct header_copy copy = {.req = req};

	MHD_get_connection_values(req->mhd, MHD_HEADER_KIND, count_header, &copy);
	req->nheaders = 0;
	if (copy.too_many || copy.bytes > limit) {
		http_reply_error(req, 431, "too_large", NULL,
				 "more than %u headers or %llu bytes of them", HTTP_HEADERS_MAX,
				 (unsigned long long)limit);
		return -EINVAL;
	}
	req->header_memory = malloc(copy.bytes + 1);
	if (!req->header_memory) {
		http_reply_error(req, 500, "internal", NULL, "out of memory");
		return -EINVAL;
	}
	copy.at = req->header_memory;
	MHD_get_connection_values(req->mhd, MHD_HEADER_KIND, copy_header, &copy);
	return 0;
}

/**
 * take_framing() - where the body ends must have one meaning, or somebody in front of thawd may
 * see other requests than it does. Return: 0, or -EINVAL: answered.
 */
static int take_framing(struct http_req *req)
{
	const char *length = NULL, *coding = NULL;
	u64 bytes = 0;
	bool bad = false;

	for (unsigned int i = 0; i < req->nheaders; i++) {
		const struct route_pair *pair = &req->headers[i];

		if (!strcasecmp(pair->name, "Content-Length")) {
			bad |= length != NULL || parse_u64(pair->value, 0, INT64_MAX, &bytes);
			length = pair->value;
		} else if (!strcasecmp(pair->name, "Transfer-Encoding")) {
			bad |= coding != NULL || strcasecmp(pair->value, "chunked") != 0;
			coding = pair->value;
		}
	}
	req->length_bytes = coding ? -1 : (s64)bytes;
	req->body_done = !req->length_bytes;
	if (!bad && !(length && coding))
		return 0;
	http_add_header(req, "Connection", "close");
	http_reply_error(req, 400, "invalid_request", NULL,
			 "the body's length is ambiguous: expected one Content-Length, or one "
			 "Transfer-Encoding: chunked");
	return -EINVAL;
}

static void describe_client(struct http_req *req)
{
	const struct http_conn *conn = req->conn;

	snprintf(req->peer, sizeof(req->peer), "%s", conn->peer);
	if (req->listener->kind == LISTENER_UNIX)
		snprintf(req->who, sizeof(req->who), "uid %d pid %d", (int)conn->uid,
			 (int)conn->pid);
	else
		snprintf(req->who, sizeof(req->who), "%s from %s",
			 req->listener->kind == LISTENER_TCP ? "token" : "preview", conn->peer);
}

static void reply_method(struct http_req *req, unsigned int allowed)
{
	static const char *const names[] = {"GET", "PUT", "POST", "DELETE", "PATCH"};
	char list[64] = "";
	size_t used = 0;

	for (unsigned int i = 0; i < ARRAY_SIZE(names); i++) {
		if (allowed & (1u << i))
			used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
						 used ? ", " : "", names[i]);
	}
	http_add_header(req, "Allow", list);
	http_reply_error(req, 405, "method_not_allowed", json_pack("{s:s}", "allow", list),
			 "%s is not a method of this path; it has %s", req->method, list);
}

/** check_query() - only parameters that the route knows. Return: 0, or -EINVAL: answered. */
static int check_query(struct http_req *req)
{
	const char *const *known;
	int ret;

	if (req->route->flags & HTTP_RAW_QUERY)
		return 0;
	ret = route_query_parse(&req->target);
	if (ret) {
		http_reply_error(req, 400, "invalid_request", NULL,
				 ret == -E2BIG ? "more query parameters than any call has"
					       : "the query is not properly percent-encoded");
		return -EINVAL;
	}
	for (unsigned int i = 0; i < req->target.nqueries; i++) {
		const char *name = req->target.queries[i].name;

		for (known = req->route->query; known && *known && strcmp(*known, name); known++)
			;
		if (known && *known)
			continue;
		http_reply_error(req, 400, "unknown_field", json_pack("{s:s}", "field", name),
				 "unknown query parameter '%.200s'", name);
		return -EINVAL;
	}
	return 0;
}

/** find_route() - Return: 0, or -EINVAL: answered. */
static int find_route(struct http_req *req)
{
	static const struct http_route preview = {HTTP_ANY, "/", NULL, HTTP_RAW_QUERY,
						  preview_serve};
	unsigned int allowed;
	int ret;

	if (req->listener->kind == LISTENER_PREVIEW) {
		req->route = &preview;
		return 0;
	}
	ret = route_find(api_tables, &req->target, req->method, &req->route, &allowed);
	if (req->listener->kind == LISTENER_TCP &&
	    !(req->route && req->route->flags & HTTP_NO_AUTH) &&
	    !auth_check(&req->http->auth, http_header(req, "Authorization"))) {
		http_add_header(req, "WWW-Authenticate", "Bearer realm=\"thaw\"");
		http_reply_error(
			req, 401, "unauthorized", NULL,
			"this needs a header 'Authorization: Bearer TOKEN' with a token of "
			"thawd's token_file");
		return -EINVAL;
	}
	if (req->route)
		return check_query(req);
	if (ret == -ENOENT)
		http_reply_error(req, 404, "not_found",
				 json_pack("{s:s}", "path", req->target.path),
				 "no such path: %.200s", req->target.path);
	else if (ret == -EPERM)
		reply_method(req, allowed);
	else
		http_reply_error(req, 400, "invalid_request", NULL,
				 "the path has a part that is not properly percent-encoded");
	return -EINVAL;
}

/** begin() - the headers are there. Return: false: answered, and the connection must end with
 * that. */
static bool begin(struct http_req *req, const char *method)
{
	int ret;

	req->begun = true;
	snprintf(req->method, sizeof(req->method), "%s", method);
	req->is_head = !strcmp(method, "HEAD");
	describe_client(req);
	http_conn_set(req->conn, CONN_BUSY);
	ret = route_target_init(&req->target, req->raw_target);
	if (take_headers(req) || take_framing(req))
		return false;
	if (ret || strlen(method) >= sizeof(req->method)) {
		http_reply_error(req, ret == -ENAMETOOLONG ? 414 : 400,
				 ret == -ENAMETOOLONG ? "too_large" : "invalid_request", NULL,
				 "expected a path of at most %u bytes", ROUTE_TARGET_MAX);
		return true;
	}
	if (find_route(req))
		return true;
	req->submitted = !http_work_submit(req);
	if (!req->submitted)
		http_reply_retry(req, 1,
				 "as many requests are being served as the setting max_requests "
				 "allows");
	return true;
}

/** queue() - the answer goes to MHD. */
static enum MHD_Result queue(struct http_req *req, struct MHD_Connection *mhd)
{
	enum MHD_Result ret = MHD_queue_response(mhd, req->status, req->response);

	http_drop_response(req);
	if (ret != MHD_YES)
		log_warn("%s %s: answer %u could not be queued", req->method, req->target.path,
			 req->status);
	return ret;
}

/** hold() - the client waits to be told to send its body. */
static enum MHD_Result hold(struct http_req *req, struct MHD_Connection *mhd)
{
	bool answered;

	http_req_lock(req);
	answered = req->answered;
	req->holds = !answered && !req->want_body;
	if (req->holds) {
		req->suspended = true;
		MHD_suspend_connection(mhd);
	}
	http_req_unlock(req);
	return answered ? queue(req, mhd) : MHD_YES;
}

/** take_body() - the next piece; suspends when there is no room for all of it. */
static enum MHD_Result take_body(struct http_req *req, struct MHD_Connection *mhd, const char *data,
				 size_t *len_bytes)
{
	enum MHD_Result ret = MHD_YES;

	http_req_lock(req);
	if (req->answered) {
		*len_bytes = 0;
	} else {
		*len_bytes -= http_ring_put(&req->in, data, *len_bytes);
		http_req_wake(req);
		if (*len_bytes && !req->in.used) { /* no memory for the ring */
			ret = MHD_NO;
		} else if (*len_bytes) {
			req->suspended = true;
			MHD_suspend_connection(mhd);
		}
	}
	http_req_unlock(req);
	return ret;
}

/** take_end() - all of the body has come. */
static enum MHD_Result take_end(struct http_req *req, struct MHD_Connection *mhd)
{
	bool answered, raw_sent, was_done;

	http_req_lock(req);
	was_done = req->body_done;
	req->body_done = true;
	http_req_wake(req);
	raw_sent = req->raw_sent;
	answered = req->answered;
	if (!answered) {
		req->suspended = true;
		MHD_suspend_connection(mhd);
	}
	http_req_unlock(req);
	if (raw_sent)
		return MHD_NO;
	if (!answered)
		return MHD_YES;
	if (!was_done)
		http_conn_set(req->conn, CONN_BUSY);
	return queue(req, mhd);
}

enum MHD_Result http_serve(void *opaque, struct MHD_Connection *mhd, const char *url,
			   const char *method, const char *version, const char *upload_data,
			   size_t *upload_bytes, void **context)
{
	struct http_req *req = *context;
	const char *expect;

	(void)opaque;
	(void)url;
	(void)version;
	if (!req || !req->conn)
		return MHD_NO;
	if (req->begun) {
		if (*upload_bytes)
			return take_body(req, mhd, upload_data, upload_bytes);
		return req->holds ? hold(req, mhd) : take_end(req, mhd);
	}
	if (!begin(req, method))
		return queue(req, mhd);
	expect = http_header(req, "Expect");
	if (!expect || strcasecmp(expect, "100-continue") || !req->length_bytes)
		return MHD_YES;
	return req->submitted ? hold(req, mhd) : queue(req, mhd);
}

void http_serve_completed(void *opaque, struct MHD_Connection *mhd, void **context,
			  enum MHD_RequestTerminationCode code)
{
	struct http_req *req = *context;
	struct http_conn *conn;

	(void)opaque;
	(void)mhd;
	if (!req)
		return;
	*context = NULL;
	http_req_lock(req);
	conn = req->conn;
	req->mhd = NULL;
	req->conn = NULL;
	req->suspended = false;
	if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK) {
		req->out_failed = true;
		if (req->client_fd >= 0) /* who polls it is woken */
			shutdown(req->client_fd, SHUT_RDWR);
	}
	http_req_wake(req);
	http_req_unlock(req);
	http_drop_response(req);
	if (conn) {
		__atomic_store_n(&conn->watched, false, __ATOMIC_RELAXED);
		http_conn_set(conn, CONN_IDLE);
	}
	http_req_put(req);
}
