// SPDX-License-Identifier: Apache-2.0
// One cgroup an exec: born in it, killed with it.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/shim/shim.h"

#define NAME_BYTES     32
#define TREE_DEPTH_MAX 32

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
	return 0;
}

int cgroup_setup(struct shim *shim, const char *path)
{
	static const char *const controllers[] = {"+cpu", "+memory", "+pids", "+io"};

	shim->cgroup_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (shim->cgroup_fd < 0)
		return -errno;
	/* One at a time: a kernel may lack some, and limits are a matter of later. */
	for (size_t i = 0; i < ARRAY_SIZE(controllers); i++)
		(void)cgroup_write(shim->cgroup_fd, "cgroup.subtree_control", controllers[i]);
	return cgroup_make(shim, &shim->spare);
}

int cgroup_take(struct shim *shim, struct cgroup *cg)
{
	if (!shim->spare.id)
		return cgroup_make(shim, cg);
	*cg = shim->spare;
	shim->spare = (struct cgroup){.dir_fd = -1};
	return 0;
}

void cgroup_make_spare(struct shim *shim)
{
	int ret;

	if (shim->cgroup_fd < 0 || shim->spare.id)
		return;
	ret = cgroup_make(shim, &shim->spare);
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
		if (shim->cgroup_fd < 0 && c->pid && c->phase == CONN_DEAD)
			kill(-c->pid, SIGKILL);
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
