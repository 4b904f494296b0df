// SPDX-License-Identifier: Apache-2.0
// Sandboxes that stay: their folders.
#include "vmm/cli/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vmm/cli/json_out.h"
#include "vmm/cli/sandbox_jail.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define META_MAX_BYTES (16 * KIB)
#define ID_TRIES       16

static const char *const state_names[] = {
	[SANDBOX_RUNNING] = "running",	 [SANDBOX_PAUSING] = "pausing", [SANDBOX_PAUSED] = "paused",
	[SANDBOX_RESUMING] = "resuming", [SANDBOX_DEAD] = "dead",
};

static const char *const jail_names[] = {"", "full", "no-cgroup"};

bool sandbox_jail_parse(const char *text, enum sandbox_jail_kind *out)
{
	for (size_t i = 1; i < ARRAY_SIZE(jail_names); i++) {
		if (!strcmp(text, jail_names[i])) {
			*out = (enum sandbox_jail_kind)i;
			return true;
		}
	}
	return false;
}

const char *sandbox_state_name(enum sandbox_state state)
{
	return state_names[state];
}

static bool is_hex(const char *text, size_t max_len)
{
	size_t len = strspn(text, "0123456789abcdef");

	return len && len <= max_len && !text[len];
}

static bool is_id(const char *text)
{
	return is_hex(text, SANDBOX_ID_CHARS) && strlen(text) == SANDBOX_ID_CHARS;
}

bool sandbox_is_snap(const char *name)
{
	return !strncmp(name, SANDBOX_SNAP_PREFIX, sizeof(SANDBOX_SNAP_PREFIX) - 1) &&
	       is_id(name + sizeof(SANDBOX_SNAP_PREFIX) - 1);
}

void sandbox_path(const struct state *state, const char *id, const char *file, char out[PATH_MAX])
{
	int len = snprintf(out, PATH_MAX, "%s/run/%s/%s", state->root, id, file);

	BUG_ON(len < 0 || len >= PATH_MAX);
}

int sandbox_random_hex(char out[SANDBOX_ID_CHARS + 1])
{
	u8 bytes[SANDBOX_ID_CHARS / 2];

	if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
		log_err("getrandom: %s", strerror(errno));
		return -EIO;
	}
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
	return 0;
}

int sandbox_snap_name(char name[STATE_NAME_MAX + 1])
{
	char hex[SANDBOX_ID_CHARS + 1];
	int ret = sandbox_random_hex(hex);

	if (!ret)
		snprintf(name, STATE_NAME_MAX + 1, "%s%s", SANDBOX_SNAP_PREFIX, hex);
	return ret;
}

int sandbox_lock_all(const struct state *state, bool exclusive)
{
	char path[PATH_MAX];
	int fd, ret = 0;

	state_path(state, "run", NULL, NULL, path);
	if (mkdir(path, 0700) < 0 && errno != EEXIST) {
		ret = -errno;
		log_err("%s: can't create: %s%s", path, strerror(-ret),
			ret == -ENOENT ? ": build a template first ('thaw template build')" : "");
		return ret;
	}
	state_path(state, "run", ".lock", "", path);
	fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || flock(fd, exclusive ? LOCK_EX | LOCK_NB : LOCK_SH) < 0) {
		ret = -errno;
		fd_close(&fd);
		if (exclusive && ret == -EWOULDBLOCK)
			return -EBUSY;
		log_err("%s: %s", path, strerror(-ret));
		return ret;
	}
	return fd;
}

/** Return: an fd that holds the lock, -EBUSY, or -errno. */
static int lock_folder(const struct state *state, const char *id)
{
	char path[PATH_MAX];
	int fd, ret;

	sandbox_path(state, id, "", path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	ret = errno == EWOULDBLOCK ? -EBUSY : -errno;
	fd_close(&fd);
	return ret;
}

int sandbox_new(const struct state *state, struct sandbox *sb)
{
	char path[PATH_MAX];
	time_t now = time(NULL);
	struct tm tm;
	int ret = -EEXIST;

	sb->lock_fd = -1;
	for (int i = 0; i < ID_TRIES && ret == -EEXIST; i++) {
		ret = sandbox_random_hex(sb->id);
		if (ret)
			return ret;
		sandbox_path(state, sb->id, "", path);
		ret = mkdir(path, 0700) < 0 ? -errno : 0;
	}
	if (!ret) {
		sb->lock_fd = lock_folder(state, sb->id);
		ret = MIN(sb->lock_fd, 0);
	}
	if (ret)
		log_err("%s: can't create: %s", path, strerror(-ret));
	strftime(sb->created, sizeof(sb->created), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	return ret;
}

int sandbox_save(const struct state *state, const struct sandbox *sb)
{
	char path[PATH_MAX];
	json_t *meta;
	int ret;

	meta = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "id", sb->id,
			 "state", state_names[sb->state], "template", sb->template_name, "snapshot",
			 sb->snapshot, "next", sb->next, "parent", sb->parent, "hostname",
			 sb->hostname, "created", sb->created, "owner", sb->thawd ? "thawd" : "",
			 "jail", jail_names[sb->jail]);
	sandbox_path(state, sb->id, "meta.json", path);
	if (!meta) {
		log_err("%s: out of memory", path);
		return -ENOMEM;
	}
	ret = json_write_file(path, meta);
	json_decref(meta);
	return ret;
}

/** read_text() - a small file of /proc, whose size is not known before. Return: 0 or -errno. */
static int read_text(const char *path, char *buf, size_t max)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, max - 1);
	int ret = n < 0 ? -errno : 0;

	fd_close(&fd);
	buf[MAX(n, (ssize_t)0)] = '\0';
	return ret;
}

/** @start: field 22 of /proc/PID/stat, in ticks after boot. Return: 0, -ESRCH (gone, or a zombie),
 * or -errno. */
static int process_start(pid_t pid, unsigned long long *start)
{
	char path[64], text[1024], *at, status;
	int ret;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	ret = read_text(path, text, sizeof(text));
	if (ret)
		return ret == -ENOENT ? -ESRCH : ret;
	/* Behind the name, which may hold anything. */
	at = strrchr(text, ')');
	ret = at && sscanf(at + 1,
			   " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
			   "%*d %*d %llu",
			   &status, start) == 2
		      ? 0
		      : -EINVAL;
	if (!ret && (status == 'Z' || status == 'X'))
		ret = -ESRCH;
	return ret;
}

/** Return: 0 or -errno. */
static int boot_id(char out[64])
{
	int ret = read_text("/proc/sys/kernel/random/boot_id", out, 64);

	out[strcspn(out, "\n ")] = '\0';
	return ret;
}

int sandbox_save_pid(const struct state *state, struct sandbox *sb, pid_t pid)
{
	char path[PATH_MAX], temp[PATH_MAX], boot[64], text[128];
	unsigned long long start;
	int fd = -1, ret;

	sandbox_path(state, sb->id, "pid", path);
	sandbox_path(state, sb->id, "pid.tmp", temp);
	ret = process_start(pid, &start);
	if (!ret)
		ret = boot_id(boot);
	if (!ret) {
		snprintf(text, sizeof(text), "%d %llu %s\n", (int)pid, start, boot);
		fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
		ret = fd < 0 ? -errno : fd_write_full(fd, text, strlen(text));
	}
	fd_close(&fd);
	if (!ret && rename(temp, path) < 0)
		ret = -errno;
	if (ret && ret != -ESRCH)
		log_err("%s: %s", path, strerror(-ret));
	if (!ret)
		sb->pid = pid;
	return ret;
}

int sandbox_pidfd(const struct state *state, const char *id, pid_t *pid)
{
	char path[PATH_MAX], boot[64], wanted_boot[64], *text;
	unsigned long long start, wanted;
	int number, fd, ret;

	sandbox_path(state, id, "pid", path);
	ret = file_read_all(AT_FDCWD, path, 256, &text, NULL);
	if (ret)
		return ret == -ENOENT ? -ESRCH : ret;
	ret = sscanf(text, "%d %llu %63s", &number, &wanted, wanted_boot) == 3 && number > 0
		      ? boot_id(boot)
		      : -ESRCH;
	free(text);
	if (ret || strcmp(boot, wanted_boot) != 0)
		return ret ? ret : -ESRCH;
	/* First the handle, then the look: what it stands for can't be another process any more. */
	fd = (int)syscall(SYS_pidfd_open, number, 0);
	if (fd < 0)
		return -errno;
	ret = process_start(number, &start);
	if (ret || start != wanted) {
		fd_close(&fd);
		return ret ? ret : -ESRCH;
	}
	*pid = number;
	return fd;
}

static void take(char *out, size_t len_bytes, const json_t *meta, const char *key)
{
	const char *text = json_string_value(json_object_get(meta, key));

	snprintf(out, len_bytes, "%s", text ? text : "");
}

/** What a file says may have been written by half, or by another version: it is checked. */
static int parse_meta(const json_t *meta, struct sandbox *sb)
{
	char text[16], owner[16], jail[16];

	take(text, sizeof(text), meta, "state");
	take(sb->template_name, sizeof(sb->template_name), meta, "template");
	take(sb->snapshot, sizeof(sb->snapshot), meta, "snapshot");
	take(sb->next, sizeof(sb->next), meta, "next");
	take(sb->parent, sizeof(sb->parent), meta, "parent");
	take(sb->hostname, sizeof(sb->hostname), meta, "hostname");
	take(sb->created, sizeof(sb->created), meta, "created");
	take(owner, sizeof(owner), meta, "owner");
	sb->thawd = !strcmp(owner, "thawd");
	take(jail, sizeof(jail), meta, "jail");
	(void)!sandbox_jail_parse(jail, &sb->jail);
	if (!state_name_ok(sb->template_name) || !state_name_ok(sb->snapshot) ||
	    (sb->next[0] && !sandbox_is_snap(sb->next)) || (sb->parent[0] && !is_id(sb->parent)))
		return -EINVAL;
	for (size_t i = 0; i < SANDBOX_DEAD; i++) {
		if (!strcmp(text, state_names[i])) {
			sb->state = (enum sandbox_state)i;
			return 0;
		}
	}
	return -EINVAL;
}

int sandbox_load(const struct state *state, const char *id, struct sandbox *sb)
{
	char path[PATH_MAX], *text;
	json_t *meta;
	int fd, ret;

	*sb = (struct sandbox){.lock_fd = -1};
	snprintf(sb->id, sizeof(sb->id), "%s", id);
	sandbox_path(state, id, "meta.json", path);
	ret = file_read_all(AT_FDCWD, path, META_MAX_BYTES, &text, NULL);
	if (ret)
		return ret;
	meta = json_loads(text, 0, NULL);
	free(text);
	ret = meta ? parse_meta(meta, sb) : -EINVAL;
	json_decref(meta);
	if (ret)
		return ret;
	fd = sandbox_pidfd(state, id, &sb->pid);
	/* Dead is removed: who could not look must not say so. */
	if (fd < 0 && fd != -ESRCH)
		return fd;
	if (fd < 0 && sb->state == SANDBOX_RUNNING)
		sb->state = SANDBOX_DEAD;
	fd_close(&fd);
	return 0;
}

static int compare_ids(const void *a, const void *b)
{
	return strcmp(a, b);
}

int sandbox_list(const struct state *state, struct sandbox_ids *ids)
{
	char path[PATH_MAX];
	struct dirent *entry;
	int ret = 0;
	DIR *dir;

	*ids = (struct sandbox_ids){0};
	state_path(state, "run", NULL, NULL, path);
	dir = opendir(path);
	if (!dir) {
		ret = errno == ENOENT ? 0 : -errno;
		if (ret)
			log_err("%s: %s", path, strerror(-ret));
		return ret;
	}
	while (!ret && (entry = readdir(dir))) {
		void *grown;

		if (!is_id(entry->d_name))
			continue;
		grown = reallocarray(ids->ids, ids->count + 1, sizeof(*ids->ids));
		ret = grown ? 0 : -ENOMEM;
		if (ret)
			break;
		ids->ids = grown;
		memcpy(ids->ids[ids->count++], entry->d_name, SANDBOX_ID_CHARS + 1);
	}
	closedir(dir);
	if (ids->count)
		qsort(ids->ids, ids->count, sizeof(*ids->ids), compare_ids);
	return ret;
}

/** Return: 0 with @id, or -errno (logged). */
static int find_id(const struct state *state, const char *prefix, char id[SANDBOX_ID_CHARS + 1])
{
	struct sandbox_ids ids;
	struct sandbox sb;
	size_t found = 0, len = strlen(prefix);
	int ret;

	if (!is_hex(prefix, SANDBOX_ID_CHARS)) {
		log_err("'%.60s' is not a sandbox's id: expected up to %d of 0-9 and a-f", prefix,
			SANDBOX_ID_CHARS);
		return -EINVAL;
	}
	ret = sandbox_list(state, &ids);
	for (size_t i = 0; !ret && i < ids.count; i++) {
		if (strncmp(ids.ids[i], prefix, len) != 0 ||
		    (!sandbox_load(state, ids.ids[i], &sb) && sb.thawd))
			continue;
		memcpy(id, ids.ids[i], SANDBOX_ID_CHARS + 1);
		found++;
	}
	free(ids.ids);
	if (ret || found == 1)
		return ret;
	if (found)
		log_err("'%s' is the start of %zu sandboxes' ids: give more of it", prefix, found);
	else
		log_err("no sandbox '%s': 'thaw ps' lists them", prefix);
	return found ? -EEXIST : -ENOENT;
}

int sandbox_find(const struct state *state, const char *prefix, struct sandbox *sb)
{
	char id[SANDBOX_ID_CHARS + 1];
	int ret = find_id(state, prefix, id);

	*sb = (struct sandbox){.lock_fd = -1};
	if (ret)
		return ret;
	ret = sandbox_load(state, id, sb);
	if (ret)
		log_err("sandbox %s: %s", id,
			ret == -ENOENT ? "is being made or removed" : strerror(-ret));
	return ret;
}

int sandbox_find_locked(const struct state *state, const char *prefix, struct sandbox *sb)
{
	char id[SANDBOX_ID_CHARS + 1];
	int ret = find_id(state, prefix, id), fd;

	*sb = (struct sandbox){.lock_fd = -1};
	if (ret)
		return ret;
	fd = lock_folder(state, id);
	ret = fd < 0 ? fd : sandbox_load(state, id, sb);
	if (!ret) {
		sb->lock_fd = fd;
		return 0;
	}
	fd_close(&fd);
	if (ret == -EBUSY)
		log_err("sandbox %s: another command is at work on it", id);
	else
		log_err("sandbox %s: %s", id, strerror(-ret));
	return ret;
}

void sandbox_unlock(struct sandbox *sb)
{
	fd_close(&sb->lock_fd);
}

int sandbox_want_running(const struct state *state, const struct sandbox *sb, const char *verb)
{
	char words[200] = "no word in its log";

	if (sb->pid && sb->state != SANDBOX_PAUSING)
		return 0;
	/* Not where the log is: it may be gone by the time that somebody looks. */
	if (sb->state == SANDBOX_DEAD) {
		sandbox_last_words(state, sb, words, sizeof(words));
		log_err("%s: sandbox %s has ended: %s", verb, sb->id, words);
	} else {
		log_err("%s: sandbox %s is %s: %s", verb, sb->id, state_names[sb->state],
			sb->pid ? "if no command does that any more, 'thaw ps' puts it right"
				: "'thaw resume' brings it back");
	}
	return -EINVAL;
}

int sandbox_remove(const struct state *state, struct sandbox *sb)
{
	char path[PATH_MAX];
	int fd, ret;

	sandbox_cell_remove(state, sb->id);
	state_path(state, "run", NULL, NULL, path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ret = fd < 0 ? -errno : state_remove_flat(fd, sb->id, false);
	fd_close(&fd);
	if (ret)
		log_err("%s/%s: can't remove: %s", path, sb->id, strerror(-ret));
	sandbox_unlock(sb);
	return ret;
}
