// SPDX-License-Identifier: Apache-2.0
// Machines that wait.
//
// One thread makes them, one after the other, since processors are few and a start under way is
// worth more. A template that can't be restored is tried again after a pause that grows.
#include "vmm/daemon/pools.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "vmm/snapshot/manifest.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define WAITING_NS 60000000000ull
#define LOOK_MS	   5000u
#define RETRY_MS   2000u
#define RETRY_MAX  60000u

struct waiting {
	struct sandbox sb;
	struct vmmproc vmm;
};

struct pool {
	struct pool *next;
	char name[STATE_NAME_MAX + 1];
	u32 size, ready, starting;
	u64 hits, misses, retry_ms, not_before_ms;
	struct waiting *waiting[POOLS_SIZE_MAX];
};

struct pools {
	struct boxes *boxes;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	bool threaded, stopping;
	struct pool *first;
};

static struct pool *find(struct pools *pools, const char *name)
{
	struct pool *pool = pools->first;

	while (pool && strcmp(pool->name, name) != 0)
		pool = pool->next;
	return pool;
}

/** End one that nobody took. */
static void drop(struct pools *pools, struct waiting *waiting)
{
	struct log_keep keep;

	vmmproc_end(&waiting->vmm);
	log_keep_begin(&keep, false);
	(void)!sandbox_remove(&pools->boxes->thawd->state, &waiting->sb);
	log_keep_end(&keep);
	free(waiting);
}

/** What its template says of it. Return: 0 or -errno (logged). */
static int read_size(const struct state *state, const char *name, u32 *vcpus, u64 *memory_bytes)
{
	struct snap_manifest manifest;
	char path[PATH_MAX];
	int fd = state_lock_template(state, name, false), ret;

	state_path(state, "templates", name, "", path);
	if (fd < 0) {
		log_err("pool of '%s': %s", name,
			fd == -ENOENT ? "no such template yet" : strerror(-fd));
		return fd;
	}
	ret = snap_manifest_read(fd, path, &manifest);
	fd_close(&fd);
	if (ret)
		return ret;
	*vcpus = manifest.vcpus;
	*memory_bytes = manifest.memory_bytes;
	snap_manifest_free(&manifest);
	return 0;
}

/** Return: 0 or -errno (logged). */
static int start_waiting(struct pools *pools, const char *name, struct waiting *waiting)
{
	struct thawd *thawd = pools->boxes->thawd;
	struct sandbox_opts opts = {.wait = true};
	struct sandbox_jail jail = {.limits = {0}};
	struct sandbox *sb = &waiting->sb;
	u32 vcpus = 0;
	u64 memory_bytes = 0;
	int ret;

	*sb = (struct sandbox){.lock_fd = -1, .thawd = true};
	waiting->vmm = (struct vmmproc){.ctl_fd = -1, .log_fd = -1, .accept_fd = -1};
	ret = read_size(&thawd->state, name, &vcpus, &memory_bytes);
	if (ret)
		return ret;
	opts.jail = box_jail(thawd, NULL, vcpus, memory_bytes, &jail);
	ret = sandbox_new(&thawd->state, sb);
	if (ret)
		return ret;
	snprintf(sb->template_name, sizeof(sb->template_name), "%s", name);
	snprintf(sb->snapshot, sizeof(sb->snapshot), "%s", name);
	snprintf(sb->hostname, sizeof(sb->hostname), "%s", sb->id);
	sb->jail = box_jail_kind(thawd);
	ret = sandbox_save(&thawd->state, sb);
	if (!ret)
		ret = sandbox_start(&thawd->state, sb, &opts, &waiting->vmm);
	if (!ret)
		ret = vmmproc_wait(&waiting->vmm, &waiting->vmm.waiting,
				   clock_now_ns() + WAITING_NS, -1, NULL, NULL);
	if (ret)
		log_err("pool of '%s': a machine does not get ready: %s", name, strerror(-ret));
	return ret;
}

static struct waiting *make(struct pools *pools, const char *name)
{
	struct waiting *waiting = calloc(1, sizeof(*waiting));
	int all_fd, ret;

	if (!waiting)
		return NULL;
	all_fd = sandbox_lock_all(&pools->boxes->thawd->state, false);
	waiting->sb.lock_fd = -1;
	ret = all_fd < 0 ? all_fd : start_waiting(pools, name, waiting);
	if (ret && waiting->sb.id[0]) {
		drop(pools, waiting);
		waiting = NULL;
	} else if (ret) {
		free(waiting);
		waiting = NULL;
	}
	fd_close(&all_fd);
	return waiting;
}

/** Those that have died meanwhile go. With the lock. */
static void look_at(struct pools *pools, struct pool *pool)
{
	for (u32 i = 0; i < pool->ready;) {
		struct waiting *waiting = pool->waiting[i];

		if (!vmmproc_receive(&waiting->vmm)) {
			i++;
			continue;
		}
		pool->waiting[i] = pool->waiting[--pool->ready];
		drop(pools, waiting);
	}
	while (pool->ready > pool->size)
		drop(pools, pool->waiting[--pool->ready]);
}

/** One that wants a machine now. With the lock. */
static struct pool *next_short(struct pools *pools, u64 now_ms)
{
	for (struct pool *pool = pools->first; pool; pool = pool->next) {
		look_at(pools, pool);
		if (pool->ready < pool->size && now_ms >= pool->not_before_ms)
			return pool;
	}
	return NULL;
}

/** Make one for @pool. With the lock, which is not held meanwhile. */
static void fill_one(struct pools *pools, struct pool *pool)
{
	char name[STATE_NAME_MAX + 1];
	struct waiting *waiting;

	memcpy(name, pool->name, sizeof(name));
	pool->starting++;
	pthread_mutex_unlock(&pools->lock);
	waiting = make(pools, name);
	pthread_mutex_lock(&pools->lock);
	pool->starting--;
	if (!waiting) {
		pool->retry_ms = MIN(MAX(pool->retry_ms * 2, (u64)RETRY_MS), (u64)RETRY_MAX);
		pool->not_before_ms = pools->boxes->now_ms() + pool->retry_ms;
		return;
	}
	pool->retry_ms = 0;
	if (pool->ready < pool->size)
		pool->waiting[pool->ready++] = waiting;
	else
		drop(pools, waiting);
}

static void *fill(void *opaque)
{
	struct pools *pools = opaque;
	struct timespec until;
	struct pool *pool;

	pthread_mutex_lock(&pools->lock);
	while (!pools->stopping) {
		pool = next_short(pools, pools->boxes->now_ms());
		if (pool) {
			fill_one(pools, pool);
			continue;
		}
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += LOOK_MS / 1000;
		if (pools->first)
			pthread_cond_timedwait(&pools->changed, &pools->lock, &until);
		else
			pthread_cond_wait(&pools->changed, &pools->lock);
	}
	pthread_mutex_unlock(&pools->lock);
	return NULL;
}

enum box_pool pools_take(struct boxes *boxes, const char *name, struct sandbox *sb,
			 struct vmmproc *vmm)
{
	struct pools *pools = boxes->pools;
	struct waiting *waiting = NULL;
	struct pool *pool;

	pthread_mutex_lock(&pools->lock);
	pool = find(pools, name);
	if (pool && !pool->size)
		pool = NULL;
	if (pool) {
		look_at(pools, pool);
		if (pool->ready)
			waiting = pool->waiting[--pool->ready];
		if (waiting)
			pool->hits++;
		else
			pool->misses++;
		pthread_cond_broadcast(&pools->changed);
	}
	pthread_mutex_unlock(&pools->lock);
	if (!waiting)
		return pool ? BOX_POOL_MISS : BOX_POOL_NONE;
	*sb = waiting->sb;
	*vmm = waiting->vmm;
	free(waiting);
	return BOX_POOL_HIT;
}

int pools_set(struct boxes *boxes, const char *name, u32 size)
{
	struct pools *pools = boxes->pools;
	struct pool *pool;
	int ret = 0;

	pthread_mutex_lock(&pools->lock);
	pool = find(pools, name);
	if (!pool && size) {
		pool = calloc(1, sizeof(*pool));
		ret = pool ? 0 : -ENOMEM;
		if (pool) {
			snprintf(pool->name, sizeof(pool->name), "%s", name);
			pool->next = pools->first;
			pools->first = pool;
		}
	}
	if (pool) {
		pool->size = size;
		pool->not_before_ms = 0;
		look_at(pools, pool);
		pthread_cond_broadcast(&pools->changed);
	}
	pthread_mutex_unlock(&pools->lock);
	return ret;
}

void pools_flush(struct boxes *boxes, const char *name)
{
	struct pools *pools = boxes->pools;
	struct pool *pool;

	pthread_mutex_lock(&pools->lock);
	pool = find(pools, name);
	while (pool && pool->ready)
		drop(pools, pool->waiting[--pool->ready]);
	pthread_cond_broadcast(&pools->changed);
	pthread_mutex_unlock(&pools->lock);
}

static json_t *pool_json(const struct pool *pool)
{
	return json_pack("{s:s, s:i, s:b, s:i, s:i, s:I, s:I}", "template", pool->name, "size",
			 (int)pool->size, "populate", 0, "ready", (int)pool->ready, "starting",
			 (int)pool->starting, "hits", (json_int_t)pool->hits, "misses",
			 (json_int_t)pool->misses);
}

json_t *pools_json(struct boxes *boxes, const char *name)
{
	struct pools *pools = boxes->pools;
	json_t *out = name ? NULL : json_array();

	pthread_mutex_lock(&pools->lock);
	for (struct pool *pool = pools->first; pool; pool = pool->next) {
		/* One of size 0 was removed; a machine may still be under way for it. */
		if (!pool->size)
			continue;
		if (!name)
			(void)!json_array_append_new(out, pool_json(pool));
		else if (!strcmp(pool->name, name))
			out = pool_json(pool);
	}
	pthread_mutex_unlock(&pools->lock);
	return out;
}

/** "debian=4 other=2". Return: 0 or -errno (logged). */
static int parse_setting(struct boxes *boxes, const char *text)
{
	char *copy = strdup(text), *rest = copy, *word;
	int ret = copy ? 0 : -ENOMEM;
	u64 size;

	while (!ret && (word = strsep(&rest, " \t,"))) {
		char *equals = strchr(word, '=');

		if (!*word)
			continue;
		if (equals)
			*equals = '\0';
		if (!equals || !state_name_ok(word) ||
		    parse_u64(equals + 1, 1, POOLS_SIZE_MAX, &size)) {
			log_err("setting pools: '%s': expected words TEMPLATE=N with N from 1 to %u",
				word, POOLS_SIZE_MAX);
			ret = -EINVAL;
		} else {
			ret = pools_set(boxes, word, (u32)size);
		}
	}
	free(copy);
	return ret;
}

int pools_start(struct boxes *boxes)
{
	struct pools *pools = calloc(1, sizeof(*pools));
	pthread_condattr_t cond_attr;
	pthread_attr_t attr;
	int ret;

	if (!pools)
		return -ENOMEM;
	pools->boxes = boxes;
	boxes->pools = pools;
	pthread_mutex_init(&pools->lock, NULL);
	pthread_condattr_init(&cond_attr);
	pthread_condattr_setclock(&cond_attr, CLOCK_MONOTONIC);
	pthread_cond_init(&pools->changed, &cond_attr);
	pthread_condattr_destroy(&cond_attr);
	ret = parse_setting(boxes, boxes->thawd->conf.pools);
	if (ret)
		return ret;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, BOX_STACK_BYTES);
	ret = -pthread_create(&pools->thread, &attr, fill, pools);
	pthread_attr_destroy(&attr);
	pools->threaded = !ret;
	if (ret)
		log_err("pools: %s", strerror(-ret));
	return ret;
}

void pools_stop(struct boxes *boxes)
{
	struct pools *pools = boxes->pools;

	if (!pools)
		return;
	pthread_mutex_lock(&pools->lock);
	pools->stopping = true;
	pthread_cond_broadcast(&pools->changed);
	pthread_mutex_unlock(&pools->lock);
	if (pools->threaded)
		pthread_join(pools->thread, NULL);
	while (pools->first) {
		struct pool *pool = pools->first;

		pools->first = pool->next;
		while (pool->ready)
			drop(pools, pool->waiting[--pool->ready]);
		free(pool);
	}
	pthread_cond_destroy(&pools->changed);
	pthread_mutex_destroy(&pools->lock);
	free(pools);
	boxes->pools = NULL;
}
