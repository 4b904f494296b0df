// SPDX-License-Identifier: Apache-2.0
// A cgroup (v2) for each jail: CGROUP_ROOT/NAME.
//
// Everybody who makes machines shares the root; each machine has one folder there and no process is
// ever moved: it is born in it (CLONE_INTO_CGROUP), because a move takes a lock that all forks of
// the host wait for. Which controllers a folder has is its parent's to say, so they are turned on
// from the top down to the root, where they are not yet.
//
// A kernel that is too old for cgroup.kill (5.14) has its processes killed one by one; they are in
// a pid namespace whose first process takes the others with it.
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "vmm/cli/state.h"
#include "vmm/jail/internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define EMPTY_WAIT_MS 5000
#define EMPTY_STEP_MS 100

static const char *const controllers[] = {"memory", "pids", "cpu", "io"};

/** write_at() - @text into file @name of @dir_fd. Return: 0 or -errno. */
static int write_at(int dir_fd, const char *name, const char *text)
{
	int fd = openat(dir_fd, name, O_WRONLY | O_CLOEXEC), ret;

	if (fd < 0)
		return -errno;
	ret = write(fd, text, strlen(text)) < 0 ? -errno : 0;
	fd_close(&fd);
	return ret;
}

/** read_at() - a small file of @dir_fd. Return: 0 or -errno, then @buf is "". */
static int read_at(int dir_fd, const char *name, char *buf, size_t max)
{
	int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC), ret;
	ssize_t n = fd < 0 ? -1 : read(fd, buf, max - 1);

	ret = n < 0 ? -errno : 0;
	fd_close(&fd);
	buf[MAX(n, (ssize_t)0)] = '\0';
	return ret;
}

/** Is @word one of those in @text, which has spaces between them? */
static bool has_word(const char *text, const char *word)
{
	const size_t len = strlen(word);

	for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
		if ((at == text || at[-1] == ' ') && strchr(" \n", at[len]))
			return true;
	}
	return false;
}

static bool is_cgroup2(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
}

static bool has_all(int dir_fd)
{
	char text[256];

	if (read_at(dir_fd, "cgroup.subtree_control", text, sizeof(text)))
		return false;
	for (size_t i = 0; i < ARRAY_SIZE(controllers); i++) {
		if (!has_word(text, controllers[i]))
			return false;
	}
	return true;
}

static void turn_on(int dir_fd)
{
	for (size_t i = 0; i < ARRAY_SIZE(controllers); i++) {
		char word[16];

		/* One by one: one that the host lacks must not keep the others off. */
		snprintf(word, sizeof(word), "+%s", controllers[i]);
		(void)!write_at(dir_fd, "cgroup.subtree_control", word);
	}
}

/** open_made() - the folder @path, made if it is missing, with controllers on for what is below.
 * Return: an fd, -EMEDIUMTYPE: not on cgroup2, or -errno. */
static int open_made(const char *path)
{
	int fd;

	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return errno == ENOENT || errno == EROFS || errno == EPERM ? -EMEDIUMTYPE : -errno;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (!is_cgroup2(fd)) {
		fd_close(&fd);
		return -EMEDIUMTYPE;
	}
	if (!has_all(fd))
		turn_on(fd);
	return fd;
}

/** From the top of the file system down: each folder has what its parent gives it. Return: as
 * open_made(). */
static int open_root(const char *root)
{
	char path[PATH_MAX];
	int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0 && is_cgroup2(fd) && has_all(fd))
		return fd;
	fd_close(&fd);
	if (root[0] != '/' || strlen(root) >= sizeof(path))
		return -EINVAL;
	for (size_t len = 1; root[len - 1]; len++) {
		bool below = fd >= 0 && is_cgroup2(fd); /* only there is anything made */

		if (root[len] && root[len] != '/')
			continue;
		memcpy(path, root, len);
		path[len] = '\0';
		fd_close(&fd);
		fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (below || (fd >= 0 && is_cgroup2(fd))) {
			fd_close(&fd);
			fd = open_made(path);
		}
		if (fd < 0)
			return fd == -1 ? -EMEDIUMTYPE : fd;
	}
	if (is_cgroup2(fd))
		return fd;
	fd_close(&fd);
	return -EMEDIUMTYPE;
}

/** The disk that @state is on, as io.max wants it. Return: false where there is none to name. */
static bool find_disk(const struct state *state, unsigned int *major_out, unsigned int *minor_out)
{
	char link[64], target[PATH_MAX], *slash;
	struct stat st;
	ssize_t len;

	if (stat(state->root, &st) < 0 || !major(st.st_dev))
		return false;
	*major_out = major(st.st_dev);
	*minor_out = minor(st.st_dev);
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u/partition", *major_out, *minor_out);
	if (access(link, F_OK) < 0)
		return true;
	/* Of a partition: the folder above is the disk. */
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", *major_out, *minor_out);
	len = readlink(link, target, sizeof(target) - 1);
	target[MAX(len, (ssize_t)0)] = '\0';
	slash = strrchr(target, '/');
	if (!slash)
		return false;
	*slash = '\0';
	slash = strrchr(target, '/');
	snprintf(link, sizeof(link), "/sys/block/%.32s/dev", slash ? slash + 1 : target);
	return read_at(AT_FDCWD, link, target, sizeof(target)) == 0 &&
	       sscanf(target, "%u:%u", major_out, minor_out) == 2;
}

struct limit {
	const char *file;
	char text[96];
	bool wanted; /* a host that has no such file can't have this machine */
};

static unsigned int make_limits(const struct state *state, const struct jail_limits *limits,
				struct limit out[6])
{
	unsigned int major_dev, minor_dev, n = 0;
	struct limit *limit;

	limit = &out[n++];
	*limit = (struct limit){.file = "memory.max", .wanted = limits->memory_max_bytes};
	snprintf(limit->text, sizeof(limit->text), limit->wanted ? "%llu" : "max",
		 (unsigned long long)limits->memory_max_bytes);
	/* Where swap is not accounted for there is no such file. */
	if (limits->memory_max_bytes)
		out[n++] = (struct limit){.file = "memory.swap.max", .text = "0"};
	limit = &out[n++];
	*limit = (struct limit){.file = "cpu.max", .wanted = limits->cpu_max_milli};
	snprintf(limit->text, sizeof(limit->text), limit->wanted ? "%llu 100000" : "max 100000",
		 limits->cpu_max_milli * 100ull);
	limit = &out[n++];
	*limit = (struct limit){.file = "cpu.weight", .wanted = limits->cpu_weight};
	snprintf(limit->text, sizeof(limit->text), "%u",
		 limits->cpu_weight ? limits->cpu_weight : 100);
	limit = &out[n++];
	*limit = (struct limit){.file = "pids.max", .wanted = limits->pids_max};
	snprintf(limit->text, sizeof(limit->text), limit->wanted ? "%u" : "max", limits->pids_max);
	if (limits->io_max_bytes_s && find_disk(state, &major_dev, &minor_dev)) {
		limit = &out[n++];
		*limit = (struct limit){.file = "io.max", .wanted = true};
		snprintf(limit->text, sizeof(limit->text), "%u:%u rbps=%llu wbps=%llu", major_dev,
			 minor_dev, (unsigned long long)limits->io_max_bytes_s,
			 (unsigned long long)limits->io_max_bytes_s);
	}
	return n;
}

static int set_limits(const struct state *state, const char *path, int dir_fd,
		      const struct jail_limits *limits)
{
	struct limit list[6];
	unsigned int n = make_limits(state, limits, list);

	/* The whole machine or nothing of it: a VMM without its page fault server is no use. */
	(void)!write_at(dir_fd, "memory.oom.group", "1");
	for (unsigned int i = 0; i < n; i++) {
		int ret = write_at(dir_fd, list[i].file, list[i].text);

		if (!ret || (ret == -ENOENT && !list[i].wanted))
			continue;
		log_err("%s/%s: %s%s", path, list[i].file, strerror(-ret),
			ret == -ENOENT
				? ": the controller is not on there; 'thaw doctor' tells what to do"
				: "");
		return ret;
	}
	return 0;
}

static bool name_ok(const char *name)
{
	return *name && *name != '.' && !strchr(name, '/') && strlen(name) <= NAME_MAX;
}

static int cgroup_path(const struct jail_config *config, const char *name, char out[PATH_MAX])
{
	int n = snprintf(out, PATH_MAX, "%s/%s", config->cgroup_root, name);

	return n < PATH_MAX && name_ok(name) ? 0 : -EINVAL;
}

/** Without cgroup v2. Return: 0 where that is fine, or -errno (logged). */
static int no_cgroup(const struct jail_config *config, int error)
{
	if (!config->require_cgroup) {
		log_debug("jail: %s: no cgroup: %s", config->cgroup_root, strerror(-error));
		return 0;
	}
	log_err("jail: %s: %s; without a cgroup nothing keeps a guest from taking all memory: "
		"'thaw doctor' tells what to do, or don't ask for one",
		config->cgroup_root,
		error == -EMEDIUMTYPE ? "is not on cgroup v2, or nothing can be made there"
				      : strerror(-error));
	return error;
}

int jail_cgroup_make(const struct state *state, const struct jail_config *config, const char *name,
		     const struct jail_limits *limits, struct jail *jail)
{
	int root_fd, ret;

	jail->cgroup_fd = -1;
	jail->cgroup_path[0] = '\0';
	if (cgroup_path(config, name, jail->cgroup_path)) {
		log_err("jail: '%s' in %s: no name for a cgroup", name, config->cgroup_root);
		return -EINVAL;
	}
	root_fd = open_root(config->cgroup_root);
	if (root_fd < 0) {
		jail->cgroup_path[0] = '\0';
		return no_cgroup(config, root_fd);
	}
	ret = mkdirat(root_fd, name, 0755) < 0 ? -errno : 0;
	if (ret == -EEXIST) {
		ret = jail_remove_path(jail->cgroup_path);
		if (!ret)
			ret = mkdirat(root_fd, name, 0755) < 0 ? -errno : 0;
	}
	if (!ret) {
		jail->cgroup_fd = openat(root_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		ret = jail->cgroup_fd < 0 ? -errno : 0;
	}
	fd_close(&root_fd);
	if (ret) {
		log_err("%s: %s", jail->cgroup_path, strerror(-ret));
		return ret;
	}
	/* Without controllers it still has the machine in one place, to be killed. */
	ret = config->require_cgroup ? set_limits(state, jail->cgroup_path, jail->cgroup_fd, limits)
				     : 0;
	if (ret)
		(void)!jail_remove_path(jail->cgroup_path);
	return ret;
}

static void kill_one_by_one(int dir_fd)
{
	char text[4096], *save = NULL;

	if (read_at(dir_fd, "cgroup.procs", text, sizeof(text)))
		return;
	for (char *word = strtok_r(text, "\n", &save); word; word = strtok_r(NULL, "\n", &save)) {
		long pid = strtol(word, NULL, 10);

		if (pid > 1)
			(void)kill((pid_t)pid, SIGKILL);
	}
}

/** Kill what is in @dir_fd, and wait until nothing is. Return: 0, -EBUSY, or -errno. */
static int make_empty(int dir_fd)
{
	int fd = openat(dir_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	for (int waited_ms = 0; waited_ms < EMPTY_WAIT_MS; waited_ms += EMPTY_STEP_MS) {
		struct pollfd pfd = {.fd = fd, .events = POLLPRI};
		char text[128] = "";
		ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

		if (n < 0 || strstr(text, "populated 0")) {
			fd_close(&fd);
			return n < 0 ? -EIO : 0;
		}
		if (write_at(dir_fd, "cgroup.kill", "1") == -ENOENT)
			kill_one_by_one(dir_fd);
		/* The file tells of changes since it was read last. */
		(void)!poll(&pfd, 1, EMPTY_STEP_MS);
	}
	fd_close(&fd);
	return -EBUSY;
}

int jail_remove_path(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), ret;

	if (fd < 0 && errno == ENOENT)
		return 0;
	ret = fd < 0 ? -errno : is_cgroup2(fd) ? make_empty(fd) : -EMEDIUMTYPE;
	fd_close(&fd);
	/* A thread of the kernel's may be there a moment longer than the VM that it worked for. */
	for (int tries = 0; !ret && rmdir(path) < 0; tries++) {
		ret = errno == ENOENT ? 0 : -errno;
		if (ret != -EBUSY || tries == EMPTY_WAIT_MS / EMPTY_STEP_MS)
			break;
		(void)!poll(NULL, 0, EMPTY_STEP_MS);
		ret = 0;
	}
	if (ret)
		log_err("%s: can't remove: %s", path, strerror(-ret));
	return ret;
}

int jail_remove(const struct jail_config *config, const char *name)
{
	char path[PATH_MAX];
	int ret = cgroup_path(config, name, path);

	return ret ? ret : jail_remove_path(path);
}

int jail_set_limits(const struct state *state, const struct jail_config *config, const char *name,
		    const struct jail_limits *limits)
{
	char path[PATH_MAX];
	int fd, ret = cgroup_path(config, name, path);

	if (ret)
		return ret;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) {
		ret = -errno;
		if (ret == -ENOENT && !config->require_cgroup)
			return 0;
		log_err("%s: %s", path, strerror(-ret));
		return ret;
	}
	ret = config->require_cgroup ? set_limits(state, path, fd, limits) : 0;
	fd_close(&fd);
	return ret;
}

/** The number behind @key in @file of cgroup @name; @key "": the first one. */
static u64 read_number(const struct jail_config *config, const char *name, const char *file,
		       const char *key)
{
	char path[PATH_MAX], text[512], *at;
	int n = snprintf(path, sizeof(path), "%s/%s/%s", config->cgroup_root, name, file);

	if (n >= (int)sizeof(path) || !name_ok(name) || read_at(AT_FDCWD, path, text, sizeof(text)))
		return 0;
	at = strstr(text, key);
	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

u64 jail_memory_bytes(const struct jail_config *config, const char *name)
{
	return read_number(config, name, "memory.current", "");
}

u64 jail_oom_kills(const struct jail_config *config, const char *name)
{
	return read_number(config, name, "memory.events", "oom_kill ");
}
