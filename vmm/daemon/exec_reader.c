// SPDX-License-Identifier: Apache-2.0
// Handlers at an exec: readers of its output, and requests to its puller.
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "vmm/daemon/exec_table.h"
#include "vmm/daemon/http.h"
#include "vmm/util/util.h"

static void poke(struct kept *kept)
{
	if (kept->wake_fd >= 0)
		eventfd_write(kept->wake_fd, 1);
}

void kept_wake_readers(struct kept *kept)
{
	for (struct kept_reader *reader = kept->readers; reader; reader = reader->next)
		eventfd_write(reader->fd, 1);
}

int kept_log_reopen(struct kept *kept)
{
	u64 end = kept->log.end, out = kept->log.count[EXEC_STDOUT],
	    err = kept->log.count[EXEC_STDERR];
	int ret = exec_log_open(&kept->log, kept->log_path, kept->log.cap_bytes);

	kept->log_open = !ret;
	exec_log_skip(&kept->log, end);
	/* The counts of a log whose end is known are known better than its files have them. */
	if (kept->state == KEPT_ENDED) {
		kept->log.count[EXEC_STDOUT] = out;
		kept->log.count[EXEC_STDERR] = err;
	}
	return ret;
}

void kept_log_rest(struct kept *kept)
{
	if (kept->readers || !kept->log_open)
		return;
	kept->oldest = exec_log_oldest(&kept->log);
	exec_log_close(&kept->log);
	kept->log_open = false;
}

int kept_reader_open(struct kept_reader *reader, struct kept *kept, u64 cursor, bool holds)
{
	int ret = 0;

	*reader = (struct kept_reader){.cursor = cursor, .holds = holds};
	reader->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (reader->fd < 0)
		return -errno;
	pthread_mutex_lock(&kept->lock);
	if (!kept->log_open)
		ret = kept_log_reopen(kept);
	if (!ret) {
		reader->cursor = MIN(cursor, kept->log.end);
		reader->next = kept->readers;
		kept->readers = reader;
	}
	pthread_mutex_unlock(&kept->lock);
	if (ret) {
		fd_close(&reader->fd);
		return ret;
	}
	kept_get(kept);
	reader->kept = kept;
	return 0;
}

void kept_reader_close(struct kept_reader *reader)
{
	struct kept *kept = reader->kept;
	struct kept_reader **at;

	if (!kept)
		return;
	pthread_mutex_lock(&kept->lock);
	for (at = &kept->readers; *at != reader;)
		at = &(*at)->next;
	*at = reader->next;
	if (kept->owner == reader)
		kept->owner = NULL;
	/* An ended exec costs no file descriptors while nobody reads it. */
	if (kept->state == KEPT_ENDED)
		kept_log_rest(kept);
	if (reader->holds)
		poke(kept);
	pthread_mutex_unlock(&kept->lock);
	fd_close(&reader->fd);
	reader->kept = NULL;
	kept_put(kept);
}

void kept_reader_own(struct kept_reader *reader)
{
	struct kept *kept = reader->kept;

	pthread_mutex_lock(&kept->lock);
	if (kept->owner && kept->owner != reader) {
		kept->owner->taken = true;
		kept->owner->holds = false;
		eventfd_write(kept->owner->fd, 1);
	}
	kept->owner = reader;
	kept->hold_until_ns = 0;
	poke(kept);
	pthread_mutex_unlock(&kept->lock);
}

ssize_t kept_read(struct kept_reader *reader, void *buf, size_t max_bytes,
		  struct exec_log_chunk *chunk)
{
	struct kept *kept = reader->kept;
	ssize_t n;

	pthread_mutex_lock(&kept->lock);
	n = exec_log_read(&kept->log, reader->cursor, &reader->hint, buf, max_bytes, chunk);
	if (n > 0) {
		reader->cursor = chunk->cursor + chunk->len_bytes;
		if (reader->holds && kept->blocked)
			poke(kept);
	}
	pthread_mutex_unlock(&kept->lock);
	return n;
}

void kept_view(struct kept *kept, const struct kept_reader *reader, struct kept_view *view)
{
	pthread_mutex_lock(&kept->lock);
	*view = (struct kept_view){
		.state = kept->state,
		.pid = kept->pid,
		.end = kept->end,
		.oldest = kept->log_open ? exec_log_oldest(&kept->log) : kept->oldest,
		.output_end = kept->log.end,
		.out_bytes = kept->log.count[EXEC_STDOUT],
		.err_bytes = kept->log.count[EXEC_STDERR],
		.taken = reader && reader->taken,
	};
	view->drained = view->state == KEPT_ENDED && reader && reader->cursor >= kept->log.end;
	pthread_mutex_unlock(&kept->lock);
}

unsigned int kept_wait(struct kept_reader *reader, struct http_req *req, int sock, short events,
		       int timeout_ms)
{
	struct pollfd fds[3] = {
		{.fd = reader->fd, .events = POLLIN},
		{.fd = sock >= 0 ? sock : http_client_fd(req),
		 .events = sock >= 0 ? events : POLLRDHUP},
		{.fd = http_stop_fd(req), .events = POLLIN},
	};
	unsigned int woken = 0;
	eventfd_t count;
	int n;

	/* A hang-up is reported whether it is asked for or not. */
	if (sock >= 0 && !events)
		fds[1].fd = -1;
	n = poll(fds, 3, timeout_ms);
	if (n < 0)
		return KEPT_WOKEN_EXEC;
	if (fds[0].revents) {
		eventfd_read(reader->fd, &count);
		woken |= KEPT_WOKEN_EXEC;
	}
	if (fds[2].revents || http_stopping(req))
		woken |= KEPT_WOKEN_STOP;
	else if (fds[1].revents && sock >= 0)
		woken |= KEPT_WOKEN_SOCK;
	if (fds[1].revents & (POLLHUP | POLLERR | POLLRDHUP))
		woken |= KEPT_WOKEN_LEFT;
	return woken;
}

int kept_signal(struct kept *kept, u32 number)
{
	int ret = 0;

	pthread_mutex_lock(&kept->lock);
	if (kept->state == KEPT_ENDED)
		ret = -ESRCH;
	else
		kept->signals |= 1ull << (number - 1);
	poke(kept);
	pthread_mutex_unlock(&kept->lock);
	return ret;
}

void kept_kill(struct kept *kept)
{
	pthread_mutex_lock(&kept->lock);
	kept->kill_due = kept->state != KEPT_ENDED;
	/* Nobody is there to wait for. */
	kept->hold_until_ns = 0;
	poke(kept);
	pthread_mutex_unlock(&kept->lock);
}

int kept_resize(struct kept *kept, u16 cols, u16 rows)
{
	int ret = 0;

	pthread_mutex_lock(&kept->lock);
	if (kept->state == KEPT_ENDED) {
		ret = -ESRCH;
	} else {
		kept->size = (struct shim_size){.cols = cols, .rows = rows};
		kept->resize_due = true;
		poke(kept);
	}
	pthread_mutex_unlock(&kept->lock);
	return ret;
}

ssize_t kept_stdin_push(struct kept *kept, const void *data, size_t len_bytes)
{
	struct kept_stdin *in = &kept->in;
	ssize_t n;

	pthread_mutex_lock(&kept->lock);
	if (kept->state == KEPT_ENDED) {
		n = -ESRCH;
	} else if (!in->open) {
		n = -EPIPE;
	} else {
		if (!in->buf)
			in->buf = malloc(KEPT_STDIN_MAX);
		n = in->buf ? (ssize_t)MIN(len_bytes, KEPT_STDIN_MAX - in->len) : -ENOMEM;
	}
	if (n > 0) {
		if (in->start + in->len + (size_t)n > KEPT_STDIN_MAX) {
			memmove(in->buf, in->buf + in->start, in->len);
			in->start = 0;
		}
		memcpy(in->buf + in->start + in->len, data, (size_t)n);
		in->len += (size_t)n;
		poke(kept);
	}
	pthread_mutex_unlock(&kept->lock);
	return n;
}

int kept_stdin_close(struct kept *kept)
{
	int ret = 0;

	pthread_mutex_lock(&kept->lock);
	if (kept->state == KEPT_ENDED) {
		ret = -ESRCH;
	} else if (!kept->in.open) {
		ret = -EPIPE;
	} else {
		kept->in.open = false;
		kept->in.eof_due = true;
		poke(kept);
	}
	pthread_mutex_unlock(&kept->lock);
	return ret;
}
