// SPDX-License-Identifier: Apache-2.0
// /v1/sandboxes/NAME/...: what happens to one.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "guest/shim/proto.h"
#include "vmm/daemon/api_box.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/util/util.h"

#define GRACE_MAX_MS 600000u
#define REASON_MAX   256u
#define FORK_MAX     100u
#define WAIT_MAX_MS  600000u
#define WAIT_STEP_NS 250000000ull
#define STATS_NS     10000000000ull

static const char *const no_fields[] = {NULL};

static int wrong_state(struct box *box, struct box_error *err, const char *remedy)
{
	return box_refuse(err, 409, "wrong_state",
			  json_pack("{s:s}", "state", box_state_name(box->state)),
			  "sandbox '%s' is %s: %s", box->name, box_state_name(box->state), remedy);
}

/** Make it busy, do it, answer with the object. */
static void change(struct thawd *thawd, struct http_req *req, const char *action,
		   int (*fn)(struct box *box, struct box_error *err))
{
	struct box *box = api_box(thawd, req);
	json_t *body = box ? api_body(req, no_fields) : NULL;
	struct box_error err = {0};
	int ret;

	if (body && !api_busy(box, req)) {
		ret = fn(box, &err);
		box_done(box);
		if (ret)
			api_refused(thawd, req, action, box->name, &err);
		else
			api_reply_box(thawd, req, action, box, 200);
	}
	json_decref(body);
	box_put(box);
}

static int start(struct box *box, struct box_error *err)
{
	if (box->state == BOX_PAUSED)
		return wrong_state(box, err, "POST .../resume brings it back");
	if (box->state != BOX_STOPPED && box->state != BOX_FAILED)
		return wrong_state(box, err, "stop it first");
	return box_start(box, err);
}

void api_start(struct thawd *thawd, struct http_req *req)
{
	change(thawd, req, "sandbox.start", start);
}

static int pause_it(struct box *box, struct box_error *err)
{
	if (box->state != BOX_RUNNING)
		return wrong_state(box, err, "only a running one can be paused");
	return box_pause(box, err);
}

void api_pause(struct thawd *thawd, struct http_req *req)
{
	change(thawd, req, "sandbox.pause", pause_it);
}

static int resume(struct box *box, struct box_error *err)
{
	if (box->state != BOX_PAUSED)
		return wrong_state(box, err, "only a paused one can be resumed");
	return box_resume(box, err);
}

void api_resume(struct thawd *thawd, struct http_req *req)
{
	change(thawd, req, "sandbox.resume", resume);
}

static void end(struct thawd *thawd, struct http_req *req, bool graceful)
{
	static const char *const stop_fields[] = {"grace_ms", "reason", NULL};
	static const char *const destroy_fields[] = {"reason", NULL};
	const char *action = graceful ? "sandbox.stop" : "sandbox.destroy", *reason = NULL;
	struct box *box = api_box(thawd, req);
	json_t *body = box ? api_body(req, graceful ? stop_fields : destroy_fields) : NULL;
	struct box_error err = {0};
	u64 grace_ms = BOX_GRACE_MS;
	struct box_stop stop;
	int ret;

	if (!body || api_text(req, body, "reason", REASON_MAX, &reason) ||
	    api_number(req, body, "grace_ms", 0, GRACE_MAX_MS, &grace_ms))
		goto out;
	if (!graceful || !grace_ms)
		box_hurry(box);
	if (api_busy(box, req))
		goto out;
	box_stop_fill(&stop, graceful ? BOX_STOP_ASKED : BOX_DESTROYED, -1, reason);
	ret = box_stop(box, &stop, graceful && grace_ms, (u32)grace_ms, &err);
	box_done(box);
	if (ret)
		api_refused(thawd, req, action, box->name, &err);
	else
		api_reply_box(thawd, req, action, box, 200);
out:
	json_decref(body);
	box_put(box);
}

void api_stop(struct thawd *thawd, struct http_req *req)
{
	end(thawd, req, true);
}

void api_destroy(struct thawd *thawd, struct http_req *req)
{
	end(thawd, req, false);
}

void api_signal(struct thawd *thawd, struct http_req *req)
{
	static const char *const fields[] = {"signal", NULL};
	json_t *body = api_body(req, fields);
	struct box_use use;
	int signo, ret;

	if (!body)
		return;
	signo = exec_signal_number(json_object_get(body, "signal"));
	json_decref(body);
	if (signo < 0) {
		http_reply_error(req, 400, "invalid_request", json_pack("{s:s}", "field", "signal"),
				 "field 'signal': expected a name, as \"SIGTERM\", or 1 to 64");
		return;
	}
	if (box_use(thawd, req, &use))
		return;
	ret = exec_box_signal_entrypoint(thawd, &use, (u32)signo);
	if (ret == -ESRCH)
		http_reply_error(req, 409, "wrong_state", NULL,
				 "sandbox '%s' has no entrypoint that runs: signals for other "
				 "commands go to .../execs/ID/signal",
				 box_name(use.box));
	else if (ret)
		http_reply_error(req, 502, "guest_lost", NULL, "sandbox '%s': %s",
				 box_name(use.box), strerror(-ret));
	else
		http_reply_empty(req, 204);
	audit_write(thawd, req, "sandbox.signal", box_name(use.box), ret ? "wrong_state" : "ok",
		    json_pack("{s:i}", "signal", signo));
	box_use_end(thawd, &use);
}

void api_touch(struct thawd *thawd, struct http_req *req)
{
	json_t *body = api_body(req, no_fields);
	struct box_use use;

	json_decref(body);
	if (!body || box_use(thawd, req, &use))
		return;
	box_use_end(thawd, &use);
	http_reply_empty(req, 204);
}

void api_fork(struct thawd *thawd, struct http_req *req)
{
	static const char *const fields[] = {"count", "names", "labels", NULL};
	struct box *box = api_box(thawd, req);
	json_t *body = box ? api_body(req, fields) : NULL, *answer = NULL;
	const json_t *names = json_object_get(body, "names"), *labels = NULL;
	struct box_error err = {0};
	u64 count = names ? json_array_size(names) : 1;
	int ret;

	if (!body || api_number(req, body, "count", 1, FORK_MAX, &count) ||
	    api_labels(req, body, &labels))
		goto out;
	if (names && (!json_is_array(names) || json_array_size(names) != count || !count ||
		      count > FORK_MAX)) {
		http_reply_error(req, 400, "invalid_request", json_pack("{s:s}", "field", "names"),
				 "field 'names': expected an array of one name for each clone");
		goto out;
	}
	ret = box_fork(box, req, names, count, labels, &answer, &err);
	if (ret) {
		api_refused(thawd, req, "sandbox.fork", box->name, &err);
		goto out;
	}
	audit_write(thawd, req, "sandbox.fork", box->name, "ok",
		    json_pack("{s:I}", "count", (json_int_t)count));
	http_reply_json(req, 200, answer);
out:
	json_decref(body);
	box_put(box);
}

static bool is_live(enum box_state state)
{
	return state != BOX_STOPPED && state != BOX_FAILED;
}

/** Until it runs no more, the time is over or nobody waits. With the lock. */
static void wait_stopped(struct box *box, struct http_req *req, u64 timeout_ms)
{
	const u64 end_ns = clock_now_ns() + timeout_ms * 1000000;
	struct pollfd client = {.fd = http_client_fd(req), .events = POLLRDHUP};
	struct timespec until;
	u64 now_ns = clock_now_ns(), next_ns;

	while (is_live(box->state) && !box->gone && now_ns < end_ns) {
		next_ns = MIN(end_ns, now_ns + WAIT_STEP_NS);
		until = (struct timespec){.tv_sec = (time_t)(next_ns / 1000000000),
					  .tv_nsec = (long)(next_ns % 1000000000)};
		pthread_cond_timedwait(&box->changed, &box->lock, &until);
		if (http_stopping(req) || poll(&client, 1, 0) > 0)
			return;
		now_ns = clock_now_ns();
	}
}

void api_wait(struct thawd *thawd, struct http_req *req)
{
	struct box *box = api_box(thawd, req);
	json_t *answer;
	u64 timeout_ms;

	if (!box)
		return;
	if (!http_query_u64(req, "timeout_ms", 0, WAIT_MAX_MS, 30000, &timeout_ms)) {
		pthread_mutex_lock(&box->lock);
		wait_stopped(box, req, timeout_ms);
		answer = is_live(box->state) && !box->gone
				 ? json_pack("{s:b, s:n}", "running", 1, "stop")
				 : json_pack("{s:b, s:o}", "running", 0, "stop",
					     box_stop_json(&box->stop));
		pthread_mutex_unlock(&box->lock);
		http_reply_json(req, 200, answer);
	}
	box_put(box);
}

/** The guest's answer to SHIM_USAGE. Return: 0 or -errno. */
static int read_usage(struct thawd *thawd, const struct box_use *use, int stop_fd,
		      struct shim_usage *out)
{
	const struct shim_frame ask = {.type = SHIM_USAGE, .version = SHIM_PROTO_VERSION};
	struct {
		struct shim_frame head;
		struct shim_usage usage;
	} reply;
	const u64 deadline_ns = clock_now_ns() + STATS_NS;
	int fd = box_stream(thawd, use, deadline_ns, stop_fd), ret;
	size_t used = 0;

	if (fd < 0)
		return fd;
	ret = send(fd, &ask, sizeof(ask), MSG_NOSIGNAL) == sizeof(ask) ? 0 : -EPIPE;
	while (!ret && used < sizeof(reply)) {
		struct pollfd pfds[] = {{.fd = fd, .events = POLLIN},
					{.fd = stop_fd, .events = POLLRDHUP}};
		u64 now_ns = clock_now_ns();
		ssize_t n = recv(fd, (char *)&reply + used, sizeof(reply) - used, MSG_DONTWAIT);

		if (n > 0)
			used += (size_t)n;
		else if (n == 0)
			ret = -EPIPE;
		else if (errno != EAGAIN && errno != EINTR)
			ret = -errno;
		else if (now_ns >= deadline_ns)
			ret = -ETIMEDOUT;
		else if (poll(pfds, ARRAY_SIZE(pfds), (int)((deadline_ns - now_ns) / 1000000 + 1)) >
				 0 &&
			 pfds[1].revents)
			ret = -ECANCELED;
	}
	fd_close(&fd);
	if (!ret &&
	    (reply.head.type != SHIM_USAGE_REPLY || reply.head.len_bytes != sizeof(reply.usage)))
		ret = -EPROTO;
	*out = reply.usage;
	return ret;
}

static json_t *vmm_memory(struct thawd *thawd, const struct box_use *use)
{
	struct jail_config config = {.cgroup_root = thawd->conf.cgroup_root};
	u64 bytes = thawd->conf.jail ? jail_memory_bytes(&config, use->box->machine) : 0;

	return bytes ? json_integer((json_int_t)bytes) : json_null();
}

void api_stats(struct thawd *thawd, struct http_req *req)
{
	struct shim_usage usage;
	struct box_use use;
	int ret;

	if (box_use(thawd, req, &use))
		return;
	ret = read_usage(thawd, &use, http_client_fd(req), &usage);
	if (ret == -ETIMEDOUT)
		http_reply_error(req, 504, "timeout", NULL, "sandbox '%s' does not answer",
				 box_name(use.box));
	else if (ret == -ECANCELED)
		http_reply_retry(req, 1, "thawd is about to end");
	else if (ret)
		http_reply_error(req, 502, "guest_lost", NULL, "sandbox '%s': %s",
				 box_name(use.box), strerror(-ret));
	else
		http_reply_json(
			req, 200,
			json_pack("{s:I, s:I, s:I, s:I, s:I, s:i, s:o, s:I}", "cpu_usage_us",
				  (json_int_t)usage.cpu_usage_us, "memory_total_bytes",
				  (json_int_t)usage.memory_total_bytes, "memory_available_bytes",
				  (json_int_t)usage.memory_available_bytes, "disk_total_bytes",
				  (json_int_t)usage.disk_total_bytes, "disk_free_bytes",
				  (json_int_t)usage.disk_free_bytes, "processes",
				  (int)(usage.processes & INT32_MAX), "vmm_memory_bytes",
				  vmm_memory(thawd, &use), "uptime_ms",
				  (json_int_t)usage.uptime_ms));
	box_use_end(thawd, &use);
}
