// SPDX-License-Identifier: Apache-2.0
/*
 * The puller: one thread for each exec that runs.
 *
 * It is the only one that talks to the guest about its exec. It waits in one poll() for the guest,
 * for requests of others (kept->wake_fd) and for its deadlines; nothing in it waits for the guest
 * alone, so a guest that is stuck costs a thread and nothing else until its machine ends.
 *
 * A stream that breaks is followed by another one that attaches where the log ends, as after a
 * restart of thawd: what was not acknowledged is still in the shim's ring, so nothing is missing
 * and nothing comes twice. SHIM_ACK follows what is in the log.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "vmm/daemon/exec_end.h"
#include "vmm/daemon/exec_guest.h"
#include "vmm/daemon/exec_table.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/daemon/notes.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define MS_NS		 1000000ull
#define ACK_BYTES	 65536u
#define BATCH_BYTES	 16384u
#define BATCH_SMALL	 4096u
#define STACK_BYTES	 (128u << 10)
#define DEADLINE_LATE_MS 2000u	/* behind the shim's own */
#define KILL_WAIT_MS	 10000u /* for a guest to say that it has killed */
#define UNLISTED_TRIES	 5	/* a request may still be on its way to the shim */

struct pull {
	struct kept *kept;
	struct exec_guest g;
	u8 *payload; /* SHIM_EXEC's; NULL once it is queued, or to attach */
	size_t payload_bytes;
	int stream;
	bool fresh; /* the stream began with SHIM_EXEC */
	bool listed;
	int tries;
	u64 acked;
	u64 start_by_ns; /* the guest has begun with it by then */
	u64 deadline_ns; /* thawd kills then; 0: never */
	u64 lost_ns;	 /* thawd gives up then; 0: never */
	bool timed_out;
	bool over;
	struct kept_end end;
	u32 batch_len;
	enum exec_stream batch_stream;
	u8 *batch;
};

static void end_lost(struct pull *p, const char *text)
{
	p->over = true;
	p->end = (struct kept_end){.kind = KEPT_LOST};
	snprintf(p->end.text, sizeof(p->end.text), "%s", text);
}

/* --- what the guest says --- */

static void append(struct pull *p, enum exec_stream stream, const u8 *data, size_t len_bytes)
{
	struct kept *kept = p->kept;
	int ret;

	pthread_mutex_lock(&kept->lock);
	ret = exec_log_append(&kept->log, stream, exec_now_ns(), data, len_bytes);
	if (ret) {
		/* The command must not hang for want of disk: the gap is told to readers. */
		exec_log_skip(&kept->log, kept->log.end + len_bytes);
		kept->log.count[stream] += len_bytes;
		if (ret != -ENOENT)
			log_guest("%s: %s; output is lost", kept->log_path, strerror(-ret));
	}
	kept_wake_readers(kept);
	pthread_mutex_unlock(&kept->lock);
	metric_add(execs_thawd(kept->execs), METRIC_BYTES_EXEC_OUT, len_bytes);
}

static void flush_batch(struct pull *p)
{
	if (p->batch_len)
		append(p, p->batch_stream, p->batch, p->batch_len);
	p->batch_len = 0;
}

/* Small pieces that came together become one record. */
static int on_output(void *opaque, enum exec_stream stream, const u8 *data, size_t len_bytes)
{
	struct pull *p = opaque;

	if (p->batch_len && (stream != p->batch_stream || len_bytes > BATCH_BYTES - p->batch_len))
		flush_batch(p);
	if (!p->batch)
		p->batch = malloc(BATCH_BYTES);
	if (!p->batch || len_bytes >= BATCH_SMALL) {
		flush_batch(p);
		append(p, stream, data, len_bytes);
		return 0;
	}
	memcpy(p->batch + p->batch_len, data, len_bytes);
	p->batch_stream = stream;
	p->batch_len += (u32)len_bytes;
	return 0;
}

static void on_started(void *opaque, u32 pid)
{
	struct pull *p = opaque;
	struct kept *kept = p->kept;

	pthread_mutex_lock(&kept->lock);
	kept->pid = pid;
	kept->state = KEPT_RUNNING;
	kept_wake_readers(kept);
	pthread_mutex_unlock(&kept->lock);
}

static void on_attached(void *opaque, const struct shim_attached *attached)
{
	struct pull *p = opaque;

	pthread_mutex_lock(&p->kept->lock);
	exec_log_skip(&p->kept->log, attached->offset);
	pthread_mutex_unlock(&p->kept->lock);
	p->acked = attached->offset;
	p->tries = 0;
}

static void on_exited(void *opaque, const struct shim_exit *end)
{
	struct pull *p = opaque;

	flush_batch(p);
	p->over = true;
	p->end = (struct kept_end){
		.kind = end->kind == SHIM_EXIT_CODE ? KEPT_EXITED : KEPT_SIGNALLED,
		.value = end->value,
		.flags = end->flags,
	};
}

static void on_failed(void *opaque, const struct shim_error *error, const char *text)
{
	struct pull *p = opaque;

	/* No answer to SHIM_ATTACH can be a failure of the command, unless it says how it failed.
	 */
	if (!p->fresh && error->stage == SHIM_STAGE_REQUEST) {
		if (error->error == ENOENT && (p->listed || ++p->tries >= UNLISTED_TRIES))
			end_lost(p, "the guest does not know it");
		return;
	}
	p->over = true;
	p->end = (struct kept_end){
		.kind = KEPT_FAILED, .stage = error->stage, .error = (int)error->error};
	snprintf(p->end.text, sizeof(p->end.text), "%.*s", (int)sizeof(p->end.text) - 1, text);
}

static void on_room(void *opaque)
{
	(void)opaque;
}

static const struct exec_guest_ops ops = {
	.output = on_output,
	.started = on_started,
	.attached = on_attached,
	.exited = on_exited,
	.failed = on_failed,
	.room = on_room,
};

/* --- what others ask for --- */

/* kept->lock is held. */
static int send_stdin(struct pull *p)
{
	struct kept_stdin *in = &p->kept->in;
	size_t len = MIN(exec_guest_stdin_room(&p->g), in->len);
	int ret = 0;

	if (len) {
		ret = exec_guest_put(&p->g, SHIM_STDIN, in->buf + in->start, len);
		if (ret)
			return ret;
		in->start += len;
		in->len -= len;
		metric_add(execs_thawd(p->kept->execs), METRIC_BYTES_EXEC_IN, len);
		kept_wake_readers(p->kept);
	}
	if (in->len)
		return 0;
	free(in->buf);
	in->buf = NULL;
	in->start = 0;
	if (in->eof_due)
		ret = exec_guest_put(&p->g, SHIM_STDIN_EOF, NULL, 0);
	in->eof_due = false;
	return ret;
}

/* Was there something else to be sent first, and now there is room? */
static bool stdin_waits(struct pull *p)
{
	bool waits;

	pthread_mutex_lock(&p->kept->lock);
	waits = p->kept->in.len && exec_guest_stdin_room(&p->g);
	pthread_mutex_unlock(&p->kept->lock);
	return waits;
}

/* kept->lock is held. */
static int send_requests(struct pull *p)
{
	struct kept *kept = p->kept;
	int ret = 0;
	u32 number;

	if (p->g.state == EXEC_GUEST_ATTACHING)
		return 0;
	if (kept->kill_due)
		ret = exec_guest_put(&p->g, SHIM_KILL, NULL, 0);
	kept->kill_due = false;
	while (kept->signals && !ret) {
		number = (u32)__builtin_ctzll(kept->signals) + 1;
		kept->signals &= kept->signals - 1;
		ret = exec_guest_put(&p->g, SHIM_SIGNAL, &number, sizeof(number));
	}
	if (kept->resize_due && !ret)
		ret = exec_guest_put(&p->g, SHIM_RESIZE, &kept->size, sizeof(kept->size));
	kept->resize_due = false;
	return ret ? ret : send_stdin(p);
}

/* May more be read from the guest, or is a reader behind? kept->lock is held. */
static bool may_pull(struct kept *kept, u64 now_ns)
{
	const struct exec_log *log = &kept->log;
	u64 behind = UINT64_MAX;

	for (const struct kept_reader *reader = kept->readers; reader; reader = reader->next)
		if (reader->holds)
			behind = MIN(behind, reader->cursor);
	if (behind != UINT64_MAX && log->end - MIN(behind, log->end) >= KEPT_WINDOW_BYTES)
		return false;
	if (kept->hold_until_ns > now_ns)
		behind = 0;
	/* The next turn of the log gives up what is before log->cur.base. */
	return exec_log_room(log) || behind >= log->cur.base;
}

/* --- the loop --- */

/* A guest that is stuck. Should it wake up, it finds both requests. */
static void check_start(struct pull *p)
{
	enum kept_state state;

	p->start_by_ns = 0;
	pthread_mutex_lock(&p->kept->lock);
	state = p->kept->state;
	pthread_mutex_unlock(&p->kept->lock);
	if (state != KEPT_STARTING)
		return;
	if (p->g.fd >= 0 && !exec_guest_put(&p->g, SHIM_KILL, NULL, 0))
		(void)!exec_guest_send(&p->g);
	end_lost(p, "the guest does not answer");
}

static int check_deadlines(struct pull *p, u64 now_ns)
{
	if (p->start_by_ns && now_ns >= p->start_by_ns)
		check_start(p);
	if (p->deadline_ns && now_ns >= p->deadline_ns) {
		p->deadline_ns = 0;
		p->lost_ns = now_ns + KILL_WAIT_MS * MS_NS;
		p->timed_out = true;
		pthread_mutex_lock(&p->kept->lock);
		p->kept->kill_due = true;
		p->kept->hold_until_ns = 0;
		pthread_mutex_unlock(&p->kept->lock);
	}
	if (p->lost_ns && now_ns >= p->lost_ns)
		end_lost(p, "the guest did not end it when its time was over");
	return p->over;
}

static u64 soonest(u64 a, u64 b)
{
	if (!a || !b)
		return a ? a : b;
	return MIN(a, b);
}

/* Wait for @fd (-1: none), a request, or until @until_ns. Return: what happened on @fd. */
static short wait_for(struct pull *p, int fd, short events, u64 until_ns)
{
	struct pollfd fds[2] = {{.fd = fd, .events = events},
				{.fd = p->kept->wake_fd, .events = POLLIN}};
	u64 now_ns = clock_now_ns();
	int timeout_ms = -1;
	eventfd_t count;

	if (until_ns)
		timeout_ms = until_ns <= now_ns
				     ? 0
				     : (int)MIN((until_ns - now_ns) / MS_NS + 1, (u64)INT32_MAX);
	if (poll(fds, 2, timeout_ms) <= 0)
		return 0;
	if (fds[1].revents)
		eventfd_read(p->kept->wake_fd, &count);
	return fds[0].revents;
}

static bool must_leave(struct pull *p)
{
	bool gone;

	pthread_mutex_lock(&p->kept->lock);
	gone = p->kept->gone;
	pthread_mutex_unlock(&p->kept->lock);
	if (gone && !p->over)
		end_lost(p, "its machine has gone");
	return p->over || execs_stopping(p->kept->execs);
}

static int acknowledge(struct pull *p)
{
	u64 offset = p->g.offset;
	int ret;

	flush_batch(p);
	if (offset - p->acked < ACK_BYTES || p->over)
		return 0;
	ret = exec_guest_put(&p->g, SHIM_ACK, &offset, sizeof(offset));
	p->acked = offset;
	return ret;
}

/* One round over a stream. Return: 0, or -errno: it is of no more use. */
static int stream_step(struct pull *p)
{
	struct kept *kept = p->kept;
	u64 now_ns = clock_now_ns(), until_ns;
	short events = 0, got;
	int ret;

	if (check_deadlines(p, now_ns))
		return 0;
	pthread_mutex_lock(&kept->lock);
	ret = send_requests(p);
	kept->blocked = !may_pull(kept, now_ns);
	until_ns = soonest(soonest(p->deadline_ns, p->lost_ns), p->start_by_ns);
	if (kept->blocked && kept->hold_until_ns > now_ns)
		until_ns = soonest(until_ns, kept->hold_until_ns);
	if (!kept->blocked)
		events |= POLLIN;
	pthread_mutex_unlock(&kept->lock);
	if (ret)
		return ret;
	/* What can't be sent may be so because the last frame has come already. */
	if (exec_guest_send(&p->g))
		p->g.tx_len = 0;
	if (p->g.tx_len)
		events |= POLLOUT;
	else if (stdin_waits(p))
		return 0;
	/* Without events a hang-up would be reported again and again. */
	got = wait_for(p, events ? p->g.fd : -1, events, until_ns);
	if (!(events & POLLIN) || !(got & (POLLIN | POLLHUP | POLLERR)))
		return 0;
	ret = exec_guest_receive(&p->g);
	if (p->over)
		return 0;
	return acknowledge(p) ?: ret;
}

static int stream_begin(struct pull *p)
{
	struct kept *kept = p->kept;
	int fd = p->stream, ret;
	u64 offset;

	p->stream = -1;
	if (fd < 0)
		fd = kept_stream(kept);
	if (fd < 0)
		return fd;
	ret = exec_guest_init(&p->g, fd, &ops, p);
	if (ret)
		return ret;
	p->fresh = p->payload;
	if (p->fresh) {
		ret = exec_guest_exec(&p->g, p->payload, p->payload_bytes);
		free(p->payload);
		p->payload = NULL;
		return ret;
	}
	pthread_mutex_lock(&kept->lock);
	offset = kept->log.end;
	pthread_mutex_unlock(&kept->lock);
	return exec_guest_attach(&p->g, kept->raw_id, offset);
}

static void pull(struct pull *p)
{
	u64 wait_ms = 20;
	int ret;

	while (!must_leave(p)) {
		ret = stream_begin(p);
		while (!ret && !must_leave(p)) {
			ret = stream_step(p);
			if (p->g.state == EXEC_GUEST_RUNNING)
				wait_ms = 20;
		}
		flush_batch(p);
		if (ret == -EPROTO) {
			log_guest("sandbox %s: exec %s: the guest sent something malformed",
				  p->kept->box, p->kept->id);
			end_lost(p, "the guest sent something malformed");
		} else if (ret == -ENODEV) {
			end_lost(p, "its machine has gone");
		}
		exec_guest_destroy(&p->g);
		if (must_leave(p))
			break;
		(void)wait_for(p, -1, 0,
			       soonest(clock_now_ns() + wait_ms * MS_NS,
				       soonest(p->lost_ns, p->start_by_ns)));
		(void)check_deadlines(p, clock_now_ns());
		wait_ms = MIN(wait_ms * 2, 2000ull);
	}
}

static void *pull_main(void *opaque)
{
	struct pull *p = opaque;
	struct kept *kept = p->kept;
	struct execs *execs = kept->execs;

	pull(p);
	if (p->over) {
		if (p->timed_out)
			p->end.flags |= SHIM_EXIT_TIMED_OUT;
		p->end.time_ns = exec_now_ns();
		kept_ended(kept, &p->end);
	}
	fd_close(&p->stream);
	free(p->payload);
	free(p->batch);
	free(p);
	kept_put(kept);
	execs_puller_count(execs, -1);
	return NULL;
}

int kept_pull_start(struct kept *kept, const u8 *payload, size_t payload_bytes, int stream,
		    bool listed)
{
	struct pull *p = calloc(1, sizeof(*p));
	pthread_attr_t attr;
	pthread_t thread;
	int ret = -ENOMEM;

	if (!p) {
		fd_close(&stream);
		return ret;
	}
	*p = (struct pull){.kept = kept, .stream = stream, .listed = listed, .g.fd = -1};
	if (payload) {
		p->payload = malloc(payload_bytes);
		if (!p->payload)
			goto err;
		memcpy(p->payload, payload, payload_bytes);
		p->payload_bytes = payload_bytes;
	}
	p->start_by_ns = clock_now_ns() + execs_thawd(kept->execs)->conf.guest_timeout_ms * MS_NS;
	if (kept->timeout_ms)
		p->deadline_ns =
			clock_now_ns() + ((u64)kept->timeout_ms + DEADLINE_LATE_MS) * MS_NS;
	kept->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (kept->wake_fd < 0) {
		ret = -errno;
		goto err;
	}
	kept_get(kept);
	execs_puller_count(kept->execs, 1);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	ret = -pthread_create(&thread, &attr, pull_main, p);
	pthread_attr_destroy(&attr);
	if (!ret)
		return 0;
	execs_puller_count(kept->execs, -1);
	kept_put(kept);
err:
	fd_close(&p->stream);
	free(p->payload);
	free(p);
	return ret;
}
