/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop: epoll, one thread, callbacks.
 *
 * All devices run on this thread. vCPU threads touch device registers only under the lock given to
 * ev_run(), which the loop holds around every callback; so a device's state is never seen half
 * changed.
 */
#ifndef THAW_UTIL_EV_H
#define THAW_UTIL_EV_H

#include <pthread.h>
#include <sys/epoll.h>

#include "vmm/util/types.h"

struct ev_handler {
	/** Called with the epoll events; may delete or free any handler, its own included. */
	void (*fn)(struct ev_handler *handler, u32 events);
	int fd;
};

#define EV_BATCH 16

struct ev {
	int epoll_fd;
	bool stop;
	/* The batch being delivered: ev_del() blanks entries, so that a freed handler is never
	 * called. */
	struct epoll_event batch[EV_BATCH];
	int batch_len;
	/* Deletions so far: a vCPU thread can delete a handler under the lock after epoll_wait()
	 * reported it and before the loop has the lock; that batch is dropped and reported again.
	 */
	u64 deletions;
};

/** ev_init() - an empty loop. Return: 0 or -errno. ev_destroy() closes it; handlers' fds stay open.
 */
int __must_check ev_init(struct ev *ev);
void ev_destroy(struct ev *ev);

/** ev_add() - watch @handler->fd for @events (EPOLLIN ...; level-triggered only: a reported event
 * may be dropped and come again). @handler must live until ev_del(). Return: 0 or -errno. */
int __must_check ev_add(struct ev *ev, struct ev_handler *handler, u32 events);

/** ev_mod() - change the events. Return: 0 or -errno. */
int __must_check ev_mod(struct ev *ev, struct ev_handler *handler, u32 events);

/** ev_del() - forget @handler; safe from inside any callback of the same loop. Call before closing
 * its fd. */
void ev_del(struct ev *ev, struct ev_handler *handler);

/**
 * ev_run() - deliver events until ev_stop().
 * @lock: held around every callback, not while waiting.
 *
 * Return: 0 after ev_stop(), or -errno of epoll_wait.
 */
int __must_check ev_run(struct ev *ev, pthread_mutex_t *lock);

/** ev_stop() - end ev_run() after the current callback; only from inside a callback. */
void ev_stop(struct ev *ev);

#endif
