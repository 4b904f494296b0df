// SPDX-License-Identifier: Apache-2.0
// Frames on all CPUs, in order at both ends.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/pack_io.h"
#include "vmm/util/log.h"

/*
 * The slots are a ring: @head is the next one to be filled, @tail the one started first and not yet
 * dropped. The caller is the only one who moves either. Started slots also wait in a list, where
 * threads take them; which of them is done first does not matter, since the caller waits for the
 * one at @tail. A slot is the caller's, then a thread's, then the caller's again, and `lock` stands
 * between them.
 *
 * Twice as many slots as threads, and two: so that a thread finds work while the caller still
 * writes or reads another's.
 */

struct pack_pool {
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	bool unpack, stop;
	struct pack_slot *todo, **todo_tail;
	pthread_t threads[PACK_THREADS_MAX];
	struct pack_codec *codecs[PACK_THREADS_MAX];
	unsigned int nthreads, ncodecs, nslots;
	u64 head, tail;
	struct pack_slot slots[2 * PACK_THREADS_MAX + 2];
	unsigned int taken_codecs;
};

static struct pack_slot *take(struct pack_pool *pool)
{
	struct pack_slot *slot;

	while (!pool->todo && !pool->stop)
		pthread_cond_wait(&pool->work, &pool->lock);
	slot = pool->todo;
	if (slot) {
		pool->todo = slot->next;
		if (!pool->todo)
			pool->todo_tail = &pool->todo;
	}
	return slot;
}

static void *worker(void *arg)
{
	struct pack_pool *pool = arg;
	struct pack_codec *codec;
	struct pack_slot *slot;

	pthread_mutex_lock(&pool->lock);
	codec = pool->codecs[pool->taken_codecs++];
	while ((slot = take(pool))) {
		int result;

		pthread_mutex_unlock(&pool->lock);
		result = pool->unpack ? pack_frame_unpack(codec, slot->frame, slot->raw)
				      : pack_frame_pack(codec, slot->frame, slot->raw);
		pthread_mutex_lock(&pool->lock);
		slot->result = result;
		slot->done = true;
		pthread_cond_signal(&pool->done);
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

static int start_threads(struct pack_pool *pool, unsigned int threads)
{
	sigset_t all, old;
	int ret = 0;

	/* Signals are the caller's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (!ret && pool->nthreads < threads) {
		ret = -pthread_create(&pool->threads[pool->nthreads], NULL, worker, pool);
		if (!ret)
			pool->nthreads++;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	/* Fewer threads do the same work. */
	return pool->nthreads ? 0 : ret;
}

static int make_buffers(struct pack_pool *pool, unsigned int threads)
{
	for (; pool->ncodecs < threads; pool->ncodecs++) {
		pool->codecs[pool->ncodecs] = pack_codec_new();
		if (!pool->codecs[pool->ncodecs])
			return -ENOMEM;
	}
	for (unsigned int i = 0; i < 2 * threads + 2; i++) {
		struct pack_slot *slot = &pool->slots[pool->nslots++];

		slot->frame = aligned_alloc(PAGE_SIZE_BYTES,
					    ALIGN_UP(PACK_FRAME_MAX_BYTES, PAGE_SIZE_BYTES));
		slot->raw = aligned_alloc(PAGE_SIZE_BYTES, PACK_FRAME_BYTES);
		if (!slot->frame || !slot->raw)
			return -ENOMEM;
	}
	return 0;
}

struct pack_pool *pack_pool_new(unsigned int threads, bool unpack)
{
	struct pack_pool *pool = calloc(1, sizeof(*pool));
	int ret = -ENOMEM;

	if (!pool)
		goto out;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->work, NULL);
	pthread_cond_init(&pool->done, NULL);
	pool->todo_tail = &pool->todo;
	pool->unpack = unpack;
	threads = MIN(threads ? threads : pack_count_cpus(), PACK_THREADS_MAX);
	ret = make_buffers(pool, threads);
	if (!ret)
		ret = start_threads(pool, threads);
	if (ret)
		pack_pool_free(pool);
out:
	if (ret)
		log_err("threads for compression: %s", strerror(-ret));
	return ret ? NULL : pool;
}

void pack_pool_free(struct pack_pool *pool)
{
	if (!pool)
		return;
	pthread_mutex_lock(&pool->lock);
	pool->stop = true;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	for (unsigned int i = 0; i < pool->nthreads; i++)
		pthread_join(pool->threads[i], NULL);
	for (unsigned int i = 0; i < pool->ncodecs; i++)
		pack_codec_free(pool->codecs[i]);
	for (unsigned int i = 0; i < pool->nslots; i++) {
		free(pool->slots[i].frame);
		free(pool->slots[i].raw);
	}
	pthread_cond_destroy(&pool->done);
	pthread_cond_destroy(&pool->work);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

unsigned int pack_pool_threads(const struct pack_pool *pool)
{
	return pool->nthreads;
}

struct pack_slot *pack_pool_slot(struct pack_pool *pool)
{
	return pool->head - pool->tail < pool->nslots ? &pool->slots[pool->head % pool->nslots]
						      : NULL;
}

void pack_pool_start(struct pack_pool *pool)
{
	struct pack_slot *slot = pack_pool_slot(pool);

	BUG_ON(!slot);
	slot->next = NULL;
	slot->done = false;
	pthread_mutex_lock(&pool->lock);
	*pool->todo_tail = slot;
	pool->todo_tail = &slot->next;
	pthread_cond_signal(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	pool->head++;
}

struct pack_slot *pack_pool_oldest(struct pack_pool *pool)
{
	struct pack_slot *slot = &pool->slots[pool->tail % pool->nslots];

	if (pool->head == pool->tail)
		return NULL;
	pthread_mutex_lock(&pool->lock);
	while (!slot->done)
		pthread_cond_wait(&pool->done, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
	return slot;
}

void pack_pool_drop(struct pack_pool *pool)
{
	BUG_ON(pool->head == pool->tail);
	pool->tail++;
}
