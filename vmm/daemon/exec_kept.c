// SPDX-License-Identifier: Apache-2.0
// The table of execs: who is there, in which box, and for how long.
#include "vmm/daemon/exec_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

struct execs *execs_new(struct thawd *thawd, const struct exec_settings *settings)
{
	struct execs *execs = calloc(1, sizeof(*execs));

	if (!execs)
		return NULL;
	execs->thawd = thawd;
	execs->settings = *settings;
	pthread_mutex_init(&execs->lock, NULL);
	pthread_cond_init(&execs->idle, NULL);
	return execs;
}

static void wake_puller(struct kept *kept)
{
	pthread_mutex_lock(&kept->lock);
	if (kept->wake_fd >= 0)
		eventfd_write(kept->wake_fd, 1);
	pthread_mutex_unlock(&kept->lock);
}

struct exec_box *execs_box_find(struct execs *execs, const char *name)
{
	struct exec_box *box = execs->boxes;

	while (box && strcmp(box->name, name))
		box = box->next;
	return box;
}

static void kept_free(struct kept *kept)
{
	exec_log_close(&kept->log);
	json_decref(kept->argv);
	free(kept->meta_path);
	free(kept->log_path);
	free(kept->in.buf);
	fd_close(&kept->wake_fd);
	pthread_mutex_destroy(&kept->lock);
	free(kept);
}

void kept_get(struct kept *kept)
{
	pthread_mutex_lock(&kept->execs->lock);
	kept->refs++;
	pthread_mutex_unlock(&kept->execs->lock);
}

void kept_put(struct kept *kept)
{
	struct execs *execs;
	bool last;

	if (!kept)
		return;
	execs = kept->execs;
	pthread_mutex_lock(&execs->lock);
	last = !--kept->refs;
	pthread_mutex_unlock(&execs->lock);
	if (last)
		kept_free(kept);
}

/* Out of its box's list, with execs->lock held. Return: was it in there? The list's reference is
 * the caller's then. */
static bool unlink_locked(struct kept *kept)
{
	struct exec_box *box = execs_box_find(kept->execs, kept->box);
	struct kept **at;

	for (at = box ? &box->first : NULL; at && *at; at = &(*at)->next) {
		if (*at != kept)
			continue;
		*at = kept->next;
		if (!*at)
			box->last = at;
		kept->next = NULL;
		return true;
	}
	return false;
}

void kept_drop(struct kept *kept)
{
	bool was_there;

	pthread_mutex_lock(&kept->execs->lock);
	was_there = unlink_locked(kept);
	pthread_mutex_unlock(&kept->execs->lock);
	if (was_there)
		kept_put(kept);
}

void kept_remove(struct kept *kept)
{
	kept_get(kept);
	kept_drop(kept);
	pthread_mutex_lock(&kept->lock);
	/* Readers that are there have the files open. The analyzer counts no references: the one
	 * above and the caller's keep it. */
	unlink(kept->meta_path); /* NOLINT(clang-analyzer-unix.Malloc) */
	if (kept->readers) {
		char old[PATH_MAX];

		snprintf(old, sizeof(old), "%s.old", kept->log_path);
		unlink(kept->log_path);
		unlink(old);
	} else {
		exec_log_remove(&kept->log);
		kept->log_open = false;
	}
	pthread_mutex_unlock(&kept->lock);
	kept_put(kept);
}

int kept_id_parse(const char *id, u8 raw[SHIM_ID_BYTES])
{
	for (int i = 0; i < KEPT_ID_CHARS; i++) {
		char c = id[i];
		int digit;

		if (c >= '0' && c <= '9')
			digit = c - '0';
		else if (c >= 'a' && c <= 'f')
			digit = c - 'a' + 10;
		else
			return -EINVAL;
		raw[i / 2] = (u8)(i % 2 ? raw[i / 2] | digit : digit << 4);
	}
	return id[KEPT_ID_CHARS] ? -EINVAL : 0;
}

int kept_id_new(u32 bits, u8 raw[SHIM_ID_BYTES], char id[KEPT_ID_CHARS + 1])
{
	if (getrandom(raw, SHIM_ID_BYTES, 0) != SHIM_ID_BYTES)
		return -errno;
	raw[SHIM_ID_BYTES - 1] = (u8)((raw[SHIM_ID_BYTES - 1] & ~3u) | bits);
	for (u32 i = 0; i < SHIM_ID_BYTES; i++)
		snprintf(id + 2 * i, 3, "%02x", raw[i]);
	return 0;
}

static char *run_path(const struct box_use *use, const char *id, const char *suffix)
{
	char file[64], path[PATH_MAX];

	snprintf(file, sizeof(file), "exec-%s.%s", id, suffix);
	box_run_path(use, file, path);
	return strdup(path);
}

struct kept *kept_new(struct execs *execs, const struct box_use *use, const char *id)
{
	struct kept *kept = calloc(1, sizeof(*kept));

	if (!kept)
		return NULL;
	kept->execs = execs;
	kept->refs = 1;
	kept->wake_fd = -1;
	kept->incarnation = use->incarnation;
	snprintf(kept->id, sizeof(kept->id), "%s", id);
	snprintf(kept->box, sizeof(kept->box), "%s", box_name(use->box));
	pthread_mutex_init(&kept->lock, NULL);
	kept->meta_path = run_path(use, id, "json");
	kept->log_path = run_path(use, id, "log");
	kept->argv = json_array();
	exec_log_init(&kept->log, kept->log_path, execs->settings.log_bytes, 0);
	kept->log_open = true;
	if (!kept->meta_path || !kept->log_path || !kept->argv ||
	    kept_id_parse(kept->id, kept->raw_id)) {
		kept_free(kept);
		return NULL;
	}
	kept->entrypoint = kept->raw_id[SHIM_ID_BYTES - 1] & KEPT_ID_ENTRYPOINT;
	kept->detached = kept->raw_id[SHIM_ID_BYTES - 1] & KEPT_ID_DETACHED;
	return kept;
}

static enum kept_state state_of(struct kept *kept)
{
	enum kept_state state;

	pthread_mutex_lock(&kept->lock);
	state = kept->state;
	pthread_mutex_unlock(&kept->lock);
	return state;
}

static int add_locked(struct exec_box *box, struct kept *kept, u32 limit)
{
	u32 running = 0;

	if (!box || !box->running || box->incarnation != kept->incarnation)
		return -ENODEV;
	for (struct kept *at = box->first; at; at = at->next) {
		if (!strcmp(at->id, kept->id))
			return -EEXIST;
		running += state_of(at) != KEPT_ENDED;
	}
	if (limit && running >= limit)
		return -EAGAIN;
	kept->refs++;
	*box->last = kept;
	box->last = &kept->next;
	return 0;
}

int kept_add(struct kept *kept, u32 limit)
{
	struct execs *execs = kept->execs;
	int ret;

	pthread_mutex_lock(&execs->lock);
	ret = execs->stopping ? -ENODEV : add_locked(execs_box_find(execs, kept->box), kept, limit);
	pthread_mutex_unlock(&execs->lock);
	return ret;
}

/* The ended one that goes first: of the foreground before detached ones, old before new. Sums up
 * the ended ones on the way. execs->lock is held; the reference is the caller's. */
static struct kept *trim_one(struct exec_box *box, u64 disk_max)
{
	struct kept *victim = NULL;
	u64 disk = 0;
	u32 ended = 0;

	for (struct kept *at = box->first; at; at = at->next) {
		pthread_mutex_lock(&at->lock);
		if (at->state == KEPT_ENDED) {
			ended++;
			disk += exec_log_disk(&at->log);
			if (!at->readers && (!victim || (victim->detached && !at->detached)))
				victim = at;
		}
		pthread_mutex_unlock(&at->lock);
	}
	if (!victim || (ended <= KEPT_ENDED_MAX && disk <= disk_max))
		return NULL;
	victim->refs++;
	return victim;
}

void kept_trim(struct kept *kept)
{
	struct execs *execs = kept->execs;
	struct exec_box *box;
	struct kept *victim;

	do {
		pthread_mutex_lock(&execs->lock);
		box = execs_box_find(execs, kept->box);
		victim = box ? trim_one(box, 4 * execs->settings.log_bytes) : NULL;
		pthread_mutex_unlock(&execs->lock);
		if (victim) {
			kept_remove(victim);
			kept_put(victim); /* NOLINT(clang-analyzer-unix.Malloc): the same */
		}
	} while (victim);
}

struct kept *kept_find(struct execs *execs, const char *name, const char *id)
{
	struct exec_box *box;
	struct kept *at = NULL;

	pthread_mutex_lock(&execs->lock);
	box = execs_box_find(execs, name);
	for (at = box ? box->first : NULL; at && strcmp(at->id, id);)
		at = at->next;
	if (at)
		at->refs++;
	pthread_mutex_unlock(&execs->lock);
	return at;
}

ssize_t kept_list(struct execs *execs, const char *name, struct kept ***out)
{
	struct exec_box *box;
	ssize_t n = 0, max = 0;

	*out = NULL;
	pthread_mutex_lock(&execs->lock);
	box = execs_box_find(execs, name);
	if (box) {
		for (struct kept *at = box->first; at; at = at->next)
			max++;
		*out = calloc((size_t)max + 1, sizeof(struct kept *));
		if (!*out)
			n = -ENOMEM;
		for (struct kept *at = box->first; at && n >= 0; at = at->next) {
			at->refs++;
			(*out)[n++] = at;
		}
	}
	pthread_mutex_unlock(&execs->lock);
	return n;
}

struct kept *execs_box_take(struct exec_box *box)
{
	struct kept *all = box->first;

	box->first = NULL;
	box->last = &box->first;
	return all;
}

void execs_puller_count(struct execs *execs, int change)
{
	pthread_mutex_lock(&execs->lock);
	execs->pullers += (unsigned int)change;
	if (!execs->pullers)
		pthread_cond_broadcast(&execs->idle);
	pthread_mutex_unlock(&execs->lock);
}

void execs_free(struct execs *execs)
{
	struct exec_box *box;
	struct kept *at;

	if (!execs)
		return;
	pthread_mutex_lock(&execs->lock);
	execs->stopping = true;
	for (box = execs->boxes; box; box = box->next)
		for (at = box->first; at; at = at->next)
			wake_puller(at);
	while (execs->pullers)
		pthread_cond_wait(&execs->idle, &execs->lock);
	while (execs->boxes) {
		box = execs->boxes;
		execs->boxes = box->next;
		for (at = execs_box_take(box); at;) {
			struct kept *next = at->next;

			if (!--at->refs)
				kept_free(at);
			at = next;
		}
		free(box->folder);
		free(box);
	}
	pthread_mutex_unlock(&execs->lock);
	pthread_mutex_destroy(&execs->lock);
	pthread_cond_destroy(&execs->idle);
	free(execs);
}

struct thawd *execs_thawd(const struct execs *execs)
{
	return execs->thawd;
}

const struct exec_settings *execs_settings(const struct execs *execs)
{
	return &execs->settings;
}

bool execs_stopping(const struct execs *execs)
{
	return __atomic_load_n(&execs->stopping, __ATOMIC_RELAXED);
}
