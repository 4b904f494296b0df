// SPDX-License-Identifier: Apache-2.0
// One cgroup an exec: born in it, killed with it. All of them are below one that has limits.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/shim/shim.h"

#define NAME_BYTES     32
#define TREE_DEPTH_MAX 32

/* The parent of all execs' cgroups. The shim itself is in the root: by its side all of them
 * together have the weight of one process. */
#define ALL_NAME	"exec"
#define RESERVE_BYTES	(12 * MIB)
#define RESERVE_THREADS 128u

static void cgroup_name(char name[NAME_BYTES], u32 id)
{
	char digits[12];
	int n = 0;

	memcpy(name, "exec-", 5);
	do {
		digits[n++] = (char)('0' + id % 10);
		id /= 10;
	} while (id);
	name += 5;
	while (n)
		*name++ = digits[--n];
	*name = '\0';
}

/* Return: 0 or -errno. */
static int cgroup_write(int dir_fd, const char *file, const char *text)
{
	int fd = openat(dir_fd, file, O_WRONLY | O_CLOEXEC);
	int ret = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		ret = -errno;
	close(fd);
	return ret;
}

static int cgroup_write_number(int dir_fd, const char *file, u64 value)
{
	char text[24];
	char *at = text + sizeof(text);

	*--at = '\0';
	do {
		*--at = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	return cgroup_write(dir_fd, file, at);
}

int cgroup_limit_pids(const struct cgroup *cg, u32 pids_max)
{
	return cgroup_write_number(cg->dir_fd, "pids.max", pids_max);
}

bool cgroup_saw_oom(const struct cgroup *cg)
{
	int fd = openat(cg->dir_fd, "memory.events", O_RDONLY | O_CLOEXEC);
	const char *line;
	char text[512];
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	line = strstr(text, "oom_kill ");
	return line && line[9] != '0';
}

bool cgroup_has_spare(const struct shim *shim)
{
	return shim->cgroup_fd < 0 || shim->spare.id || shim->spare_failed;
}

static int cgroup_make(struct shim *shim, struct cgroup *cg)
{
	char name[NAME_BYTES];
	int ret;

	do {
		if (!++shim->last_cgroup)
			shim->last_cgroup = 1;
		cgroup_name(name, shim->last_cgroup);
		ret = mkdirat(shim->cgroup_fd, name, 0755) < 0 ? -errno : 0;
	} while (ret == -EEXIST);
	if (ret)
		return ret;
	cg->dir_fd = openat(shim->cgroup_fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (cg->dir_fd < 0) {
		ret = -errno;
		unlinkat(shim->cgroup_fd, name, AT_REMOVEDIR);
		return ret;
	}
	cg->id = shim->last_cgroup;
	cg->killed = false;
	if (shim->pids_default)
		(void)cgroup_write_number(cg->dir_fd, "pids.max", shim->pids_default);
	return 0;
}

/* One at a time: a kernel may lack some. */
static void cgroup_controllers(int dir_fd)
{
	static const char *const controllers[] = {"+cpu", "+memory", "+pids", "+io"};

	for (size_t i = 0; i < ARRAY_SIZE(controllers); i++)
		(void)cgroup_write(dir_fd, "cgroup.subtree_control", controllers[i]);
}

int cgroup_setup(struct shim *shim, const char *path)
{
	shim->cgroup_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (shim->cgroup_fd < 0)
		return -errno;
	cgroup_controllers(shim->cgroup_fd);
	return cgroup_make(shim, &shim->spare);
}

/* The number in @path behind the word @name, or at its start (NULL). 0: not there. */
static u64 file_number(const char *path, const char *name)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const char *at;
	char text[512];
	ssize_t n;

	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	at = name ? strstr(text, name) : text;
	return at ? strtoull(at + (name ? strlen(name) : 0), NULL, 10) : 0;
}

/*
 * What all commands together may take. Memory: what the kernel can give now, before the first of
 * them, less a reserve for the shim and for what the kernel does not charge to anybody. Processes:
 * less than the kernel can make. A single one gets most of that but not all, so that a fork bomb
 * leaves room for the command that looks into it.
 */
static void cgroup_limit_all(struct shim *shim, int dir_fd)
{
	const u64 total = file_number("/proc/meminfo", "MemTotal:") * KIB;
	const u64 available = file_number("/proc/meminfo", "MemAvailable:") * KIB;
	const u64 reserve = RESERVE_BYTES + total / 64;
	u64 threads = MIN(file_number("/proc/sys/kernel/threads-max", NULL),
			  file_number("/proc/sys/kernel/pid_max", NULL));
	int ret = 0;

	if (available > 2 * reserve)
		ret = cgroup_write_number(dir_fd, "memory.max",
					  ALIGN_DOWN(available - reserve, PAGE_SIZE_BYTES));
	if (!ret && threads > 2 * RESERVE_THREADS) {
		threads -= RESERVE_THREADS;
		shim->pids_default = threads - threads / 8;
		ret = cgroup_write_number(dir_fd, "pids.max", threads);
	}
	if (ret)
		shim_log(4, "commands run without a common limit: %s", strerror(-ret));
}

int cgroup_setup_guest(struct shim *shim, const char *root)
{
	int root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC), fd, ret = 0;
	char path[64];

	if (root_fd < 0)
		return -errno;
	cgroup_controllers(root_fd);
	if (mkdirat(root_fd, ALL_NAME, 0755) < 0 && errno != EEXIST)
		ret = -errno;
	fd = ret ? -1 : openat(root_fd, ALL_NAME, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (!ret && fd < 0)
		ret = -errno;
	close(root_fd);
	if (ret)
		return ret;
	cgroup_limit_all(shim, fd);
	close(fd);
	snprintf(path, sizeof(path), "%s/" ALL_NAME, root);
	return cgroup_setup(shim, path);
}

int cgroup_take(struct shim *shim, struct cgroup *cg)
{
	shim->spare_failed = false;
	if (!shim->spare.id)
		return cgroup_make(shim, cg);
	*cg = shim->spare;
	shim->spare = (struct cgroup){.dir_fd = -1};
	return 0;
}

void cgroup_make_spare(struct shim *shim)
{
	int ret;

	if (cgroup_has_spare(shim))
		return;
	ret = cgroup_make(shim, &shim->spare);
	shim->spare_failed = ret != 0;
	if (ret)
		shim_log(4, "cannot make a cgroup: %s", strerror(-ret));
}

void cgroup_kill(struct cgroup *cg)
{
	int ret = cgroup_write(cg->dir_fd, "cgroup.kill", "1");

	cg->killed = true;
	if (ret)
		shim_log(4, "cgroup.kill of exec-%u: %s", cg->id, strerror(-ret));
}

/* Removes the cgroups below an empty one: a command that is root may have made some. */
static void cgroup_remove_below(int dir_fd, int depth)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *entry;
	DIR *dir;
	int sub;

	if (fd < 0)
		return;
	dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return;
	}
	while ((entry = readdir(dir))) {
		if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
			continue;
		sub = openat(fd, entry->d_name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub < 0)
			continue;
		if (depth < TREE_DEPTH_MAX)
			cgroup_remove_below(sub, depth + 1);
		close(sub);
		(void)unlinkat(fd, entry->d_name, AT_REMOVEDIR);
	}
	closedir(dir);
}

static void cgroup_forget(struct conn *c)
{
	conn_close_slot(c, SLOT_CGROUP);
	if (c->cgroup.dir_fd >= 0)
		close(c->cgroup.dir_fd);
	c->cgroup = (struct cgroup){.dir_fd = -1};
}

/* Return: 1 populated, 0 empty, -errno. Reading also arms the next notification. */
static int cgroup_populated(struct conn *c)
{
	char text[256];
	ssize_t n = pread(c->fd[SLOT_CGROUP], text, sizeof(text) - 1, 0);

	if (n < 0)
		return -errno;
	text[n] = '\0';
	return strstr(text, "populated 0") == NULL;
}

/* Kill what is left and have the connection told when it is gone. Return: true when there is
 * nothing to wait for. */
static bool cgroup_wait_empty(struct shim *shim, struct conn *c)
{
	int ret;

	if (!c->cgroup.killed)
		cgroup_kill(&c->cgroup);
	if (c->fd[SLOT_CGROUP] < 0) {
		c->fd[SLOT_CGROUP] =
			openat(c->cgroup.dir_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
		if (c->fd[SLOT_CGROUP] < 0 || loop_watch(shim, c, SLOT_CGROUP, EPOLLPRI))
			return true;
	}
	ret = cgroup_populated(c);
	return ret <= 0;
}

bool cgroup_release(struct shim *shim, struct conn *c)
{
	char name[NAME_BYTES];

	if (!c->cgroup.id) {
		/* Tests without cgroups: what is left of the process group; its number is not
		 * reused while it has a member. */
		if (shim->cgroup_fd < 0 && c->pid && !c->cgroup.killed &&
		    (c->phase == CONN_DEAD || c->phase == CONN_ENDED)) {
			kill(-c->pid, SIGKILL);
			c->cgroup.killed = true;
		}
		return true;
	}
	cgroup_name(name, c->cgroup.id);
	if (!unlinkat(shim->cgroup_fd, name, AT_REMOVEDIR) || errno == ENOENT) {
		cgroup_forget(c);
		return true;
	}
	if (!cgroup_wait_empty(shim, c))
		return false;
	cgroup_remove_below(c->cgroup.dir_fd, 0);
	if (unlinkat(shim->cgroup_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		shim_log(4, "cannot remove the cgroup %s: %m", name);
	cgroup_forget(c);
	return true;
}
