// SPDX-License-Identifier: Apache-2.0
// The event loop.
#include "vmm/util/ev.h"

#include <errno.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

int ev_init(struct ev *ev)
{
	*ev = (struct ev){.epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
	return ev->epoll_fd < 0 ? -errno : 0;
}

void ev_destroy(struct ev *ev)
{
	fd_close(&ev->epoll_fd);
}

static int ev_ctl(struct ev *ev, int op, struct ev_handler *handler, u32 events)
{
	struct epoll_event event = {.events = events, .data.ptr = handler};

	return epoll_ctl(ev->epoll_fd, op, handler->fd, &event) < 0 ? -errno : 0;
}

int ev_add(struct ev *ev, struct ev_handler *handler, u32 events)
{
	return ev_ctl(ev, EPOLL_CTL_ADD, handler, events);
}

int ev_mod(struct ev *ev, struct ev_handler *handler, u32 events)
{
	return ev_ctl(ev, EPOLL_CTL_MOD, handler, events);
}

void ev_del(struct ev *ev, struct ev_handler *handler)
{
	int ret = ev_ctl(ev, EPOLL_CTL_DEL, handler, 0);

	BUG_ON(ret && ret != -ENOENT && ret != -EBADF);
	ev->deletions++;
	for (int i = 0; i < ev->batch_len; i++) {
		if (ev->batch[i].data.ptr == handler)
			ev->batch[i].data.ptr = NULL;
	}
}

int ev_run(struct ev *ev, pthread_mutex_t *lock)
{
	u64 deletions;

	pthread_mutex_lock(lock);
	ev->stop = false;
	deletions = ev->deletions;
	pthread_mutex_unlock(lock);
	while (!ev->stop) {
		int n = epoll_wait(ev->epoll_fd, ev->batch, EV_BATCH, -1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		pthread_mutex_lock(lock);
		/* A handler in the batch may be gone by now; what is still due is reported again.
		 */
		ev->batch_len = ev->deletions == deletions ? n : 0;
		for (int i = 0; i < ev->batch_len && !ev->stop; i++) {
			struct ev_handler *handler = ev->batch[i].data.ptr;

			if (handler)
				handler->fn(handler, ev->batch[i].events);
		}
		ev->batch_len = 0;
		deletions = ev->deletions;
		pthread_mutex_unlock(lock);
	}
	return 0;
}

void ev_stop(struct ev *ev)
{
	ev->stop = true;
}
