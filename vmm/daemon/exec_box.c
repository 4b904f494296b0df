// SPDX-License-Identifier: Apache-2.0
// Execs when a box's machine comes and goes: what runs there is found again.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "vmm/daemon/exec_end.h"
#include "vmm/daemon/exec_guest.h"
#include "vmm/daemon/exec_spec.h"
#include "vmm/daemon/exec_table.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define SECOND_NS     1000000000ull
#define LIST_NS	      (5 * SECOND_NS)
#define ENTRYPOINT_NS (30 * SECOND_NS)
#define HOLD_NS	      (60 * SECOND_NS) /* for the clients of an earlier thawd to come back */
#define META_MAX      (4 * MIB)
#define FOUND_MAX     1024

struct found_exec {
	struct kept *kept;
	bool listed, ended_there;
};

struct found {
	struct execs *execs;
	const struct box_use *use;
	struct found_exec all[FOUND_MAX];
	size_t n;
};

static struct found_exec *found_add(struct found *found, const char *id)
{
	struct kept *kept;

	for (size_t i = 0; i < found->n; i++)
		if (!strcmp(found->all[i].kept->id, id))
			return &found->all[i];
	if (found->n == FOUND_MAX)
		return NULL;
	kept = kept_new(found->execs, found->use, id);
	if (!kept)
		return NULL;
	found->all[found->n] = (struct found_exec){.kept = kept};
	return &found->all[found->n++];
}

static void load_log(struct kept *kept)
{
	int ret;

	pthread_mutex_lock(&kept->lock);
	ret = kept_log_reopen(kept);
	if (ret) {
		/* Logged. What the guest still has is better than nothing. */
		exec_log_init(&kept->log, kept->log_path, kept->log.cap_bytes, kept->log.end);
		kept->log_open = true;
	}
	if (kept->state == KEPT_ENDED)
		kept_log_rest(kept);
	pthread_mutex_unlock(&kept->lock);
}

static void load_meta(struct found *found, const char *file)
{
	char id[KEPT_ID_CHARS + 1] = "";
	u8 raw[SHIM_ID_BYTES];
	struct found_exec *exec;
	char *text = NULL;
	json_t *meta;
	size_t len;

	if (strlen(file) != strlen("exec-.json") + KEPT_ID_CHARS || strncmp(file, "exec-", 5) ||
	    strcmp(file + 5 + KEPT_ID_CHARS, ".json"))
		return;
	memcpy(id, file + 5, KEPT_ID_CHARS);
	if (kept_id_parse(id, raw))
		return;
	exec = found_add(found, id);
	if (!exec)
		return;
	/* A file that a full disk cut short still tells that there is such an exec. */
	if (!file_read_all(AT_FDCWD, exec->kept->meta_path, META_MAX, &text, &len)) {
		meta = json_loads(text, 0, NULL);
		kept_meta_take(exec->kept, meta);
		json_decref(meta);
	}
	free(text);
	load_log(exec->kept);
}

static void load_folder(struct found *found)
{
	struct dirent *entry;
	char path[PATH_MAX];
	DIR *dir;

	box_run_path(found->use, "", path);
	dir = opendir(path);
	if (!dir)
		return;
	while ((entry = readdir(dir)))
		load_meta(found, entry->d_name);
	closedir(dir);
}

static void take_entry(void *opaque, const struct shim_entry *entry)
{
	struct found *found = opaque;
	char id[KEPT_ID_CHARS + 1];
	struct found_exec *exec;
	struct kept *kept;
	size_t had = found->n;
	json_t *meta;

	for (u32 i = 0; i < SHIM_ID_BYTES; i++)
		snprintf(id + 2 * i, 3, "%02x", entry->id[i]);
	exec = found_add(found, id);
	if (!exec)
		return;
	kept = exec->kept;
	exec->listed = true;
	exec->ended_there = entry->state == SHIM_STATE_ENDED;
	if (found->n == had)
		return;
	/* In a clone, or a machine that was resumed in another folder. */
	meta = kept_known(found->execs, kept);
	if (meta) {
		json_object_del(meta, "end");
		kept_meta_take(kept, meta);
		json_decref(meta);
	}
	if (!kept->started_ns)
		kept->started_ns = entry->started_ns;
	kept->pty = entry->ext_flags & SHIM_EXT_PTY;
	kept->combined = entry->ext_flags & SHIM_EXT_COMBINED;
}

static int ask_guest(struct thawd *thawd, struct found *found)
{
	const u64 deadline_ns = clock_now_ns() + LIST_NS;
	int fd = box_stream(thawd, found->use, deadline_ns, -1), ret;

	if (fd < 0)
		return fd;
	ret = exec_guest_call(fd, SHIM_LIST, NULL, 0, deadline_ns, -1, take_entry, found);
	fd_close(&fd);
	return ret;
}

static int by_start(const void *a, const void *b)
{
	const struct found_exec *x = a, *y = b;

	if (x->kept->started_ns != y->kept->started_ns)
		return x->kept->started_ns < y->kept->started_ns ? -1 : 1;
	return strcmp(x->kept->id, y->kept->id);
}

/* It runs, or ended while nobody looked: pull. */
static void resume(struct found_exec *exec)
{
	struct kept *kept = exec->kept;
	int ret;

	pthread_mutex_lock(&kept->lock);
	kept->in.open = kept->with_stdin || kept->pty;
	if (!kept->detached && !kept->pty) {
		kept->orphan = true;
		kept->hold_until_ns = clock_now_ns() + HOLD_NS;
	}
	pthread_mutex_unlock(&kept->lock);
	ret = kept_pull_start(kept, NULL, 0, -1, exec->listed);
	if (ret)
		log_err("sandbox %s: exec %s: a thread: %s", kept->box, kept->id, strerror(-ret));
}

static void adopt(struct found *found)
{
	qsort(found->all, found->n, sizeof(found->all[0]), by_start);
	for (size_t i = 0; i < found->n; i++) {
		struct found_exec *exec = &found->all[i];
		struct kept *kept = exec->kept;

		if (!kept_add(kept, 0)) {
			if (kept->state != KEPT_ENDED)
				resume(exec);
			else if (exec->ended_there)
				kept_forget(kept);
		}
		kept_put(kept);
	}
}

/* Until it runs, or is known not to. */
static int entrypoint_wait(struct kept *kept, char *why, size_t why_bytes)
{
	u64 until_ns = clock_now_ns() + ENTRYPOINT_NS, now_ns;
	struct kept_reader reader;
	struct kept_view view;
	int ret = kept_reader_open(&reader, kept, 0, false);

	while (!ret) {
		struct pollfd fd = {.fd = reader.fd, .events = POLLIN};
		eventfd_t count;

		kept_view(kept, &reader, &view);
		now_ns = clock_now_ns();
		if (view.state == KEPT_ENDED && view.end.kind == KEPT_FAILED) {
			snprintf(why, why_bytes, "entrypoint: %s", view.end.text);
			ret = view.end.error ? -view.end.error : -EIO;
		} else if (view.state != KEPT_STARTING) {
			break;
		} else if (now_ns >= until_ns) {
			snprintf(why, why_bytes, "entrypoint: the guest does not answer");
			ret = -ETIMEDOUT;
		} else if (poll(&fd, 1, (int)((until_ns - now_ns) / 1000000 + 1)) > 0) {
			eventfd_read(reader.fd, &count);
		}
	}
	kept_reader_close(&reader);
	return ret;
}

static int entrypoint_start(struct thawd *thawd, const struct box_use *use,
			    const json_t *entrypoint, const json_t *env, char *why,
			    size_t why_bytes)
{
	struct exec_spec_error error = {.text = ""};
	struct box_limits limits = {0};
	struct exec_spec spec = {0};
	struct kept *kept = NULL;
	json_t *json;
	int ret;

	box_limits(use, &limits);
	json = json_pack("{s:O}", "argv", entrypoint);
	if (json && json_is_object(env))
		json_object_set(json, "env", (json_t *)(uintptr_t)env);
	ret = exec_spec_json(&spec, json, EXEC_FORM_ENTRYPOINT,
			     &(struct exec_spec_limits){limits.pids_max, limits.nofile}, &error);
	if (ret) {
		snprintf(why, why_bytes, "entrypoint: %s", error.text);
		goto out;
	}
	ret = kept_start(thawd, use, &spec, -1, &kept);
	if (ret)
		snprintf(why, why_bytes, "entrypoint: %s", strerror(-ret));
	else
		ret = entrypoint_wait(kept, why, why_bytes);
	kept_put(kept);
out:
	exec_spec_destroy(&spec);
	json_decref(json);
	return ret;
}

/* A machine that was paused goes on in a folder of its own: its execs' files come along. */
static void move_files(const char *from, const struct box_use *use)
{
	struct dirent *entry;
	char old[PATH_MAX], path[PATH_MAX];
	DIR *dir = opendir(from);

	if (!dir)
		return;
	while ((entry = readdir(dir))) {
		if (strncmp(entry->d_name, "exec-", 5))
			continue;
		snprintf(old, sizeof(old), "%.*s/%.200s", PATH_MAX - 256, from, entry->d_name);
		box_run_path(use, entry->d_name, path);
		if (strcmp(old, path) && rename(old, path) < 0)
			log_warn("%s: %s; the exec is found without its log", old, strerror(errno));
	}
	closedir(dir);
}

int exec_box_started(struct thawd *thawd, const struct box_use *use, const json_t *entrypoint,
		     const json_t *env, char *why, size_t why_bytes)
{
	struct execs *execs = thawd_execs(thawd);
	struct found *found = calloc(1, sizeof(*found));
	char *paused_folder = NULL;
	int ret = found ? execs_box_begin(execs, use, &paused_folder, false) : -ENOMEM;

	if (ret) {
		snprintf(why, why_bytes, "%s", strerror(-ret));
		free(found);
		return ret;
	}
	found->execs = execs;
	found->use = use;
	if (paused_folder)
		move_files(paused_folder, use);
	free(paused_folder);
	load_folder(found);
	ret = ask_guest(thawd, found);
	if (ret)
		log_warn("sandbox %s: its execs can't be listed: %s", box_name(use->box),
			 strerror(-ret));
	adopt(found);
	free(found);
	return entrypoint ? entrypoint_start(thawd, use, entrypoint, env, why, why_bytes) : 0;
}

void exec_box_left(struct thawd *thawd, const struct box_use *use)
{
	struct execs *execs = thawd_execs(thawd);
	struct found *found = calloc(1, sizeof(*found));
	char *paused_folder = NULL;

	if (!found || execs_box_begin(execs, use, &paused_folder, true))
		goto out;
	found->execs = execs;
	found->use = use;
	load_folder(found);
	qsort(found->all, found->n, sizeof(found->all[0]), by_start);
	for (size_t i = 0; i < found->n; i++) {
		struct kept *kept = found->all[i].kept;

		if (kept->state != KEPT_ENDED) {
			kept->state = KEPT_ENDED;
			kept->end = (struct kept_end){.kind = KEPT_LOST,
						      .text = "its machine has gone"};
			kept_log_rest(kept);
		}
		if (kept_add(kept, 0))
			log_warn("sandbox %s: exec %s is not shown", kept->box, kept->id);
		kept_put(kept);
	}
	execs_box_end(execs, box_name(use->box), use->incarnation, false);
out:
	free(paused_folder);
	free(found);
}

void exec_box_stopped(struct thawd *thawd, const char *name, u64 incarnation)
{
	execs_box_end(thawd_execs(thawd), name, incarnation, false);
}

void exec_box_paused(struct thawd *thawd, const char *name, u64 incarnation)
{
	execs_box_end(thawd_execs(thawd), name, incarnation, true);
}

void exec_box_deleted(struct thawd *thawd, const char *name)
{
	execs_box_forget(thawd_execs(thawd), name);
}

int exec_box_signal_entrypoint(struct thawd *thawd, const struct box_use *use, u32 signal)
{
	struct kept *kept = kept_find_entrypoint(thawd_execs(thawd), box_name(use->box));
	int ret = -ESRCH;

	if (kept && signal >= 1 && signal <= 64)
		ret = kept_signal(kept, signal);
	kept_put(kept);
	return ret;
}

bool exec_box_entrypoint(struct thawd *thawd, const char *name, char out[33])
{
	struct kept *kept = kept_find_entrypoint(thawd_execs(thawd), name);

	if (!kept)
		return false;
	memcpy(out, kept->id, KEPT_ID_CHARS + 1);
	kept_put(kept);
	return true;
}
