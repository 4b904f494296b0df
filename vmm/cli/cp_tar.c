// SPDX-License-Identifier: Apache-2.0
// tar(1) at the other end of a pipe.
#include "vmm/cli/cp_tar.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

/* Rights on files that came after the kernel headers this may be built with. */
#define LANDLOCK_REFER	  ((u64)1 << 13)
#define LANDLOCK_TRUNCATE ((u64)1 << 14)
/* What tar needs outside of the folder: to read its libraries and tables. */
#define LANDLOCK_READS \
	(LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)

static int add_rule(int ruleset, const char *path, u64 access)
{
	struct landlock_path_beneath_attr rule = {.allowed_access = access};
	int ret;

	rule.parent_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (rule.parent_fd < 0)
		return -errno;
	ret = (int)syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
	close(rule.parent_fd);
	return ret;
}

/** Write nowhere but in @dest, from here on. Without Landlock tar's own checks stand alone. */
static int confine(const char *dest)
{
	struct landlock_ruleset_attr rules = {0};
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
	u64 writes;
	int ruleset;

	/* Before version 2 nothing could be linked from folder to folder. */
	if (abi < 2)
		return 0;
	writes = (LANDLOCK_REFER - 1) | LANDLOCK_REFER | (abi >= 3 ? LANDLOCK_TRUNCATE : 0);
	rules.handled_access_fs = writes;
	ruleset = (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof(rules), 0);
	if (ruleset < 0)
		return -errno;
	writes &= ~(u64)(LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK);
	if (add_rule(ruleset, "/", LANDLOCK_READS) || add_rule(ruleset, dest, writes) ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_landlock_restrict_self, ruleset, 0))
		return -EPERM;
	return close(ruleset);
}

/** Does not return. @dest: NULL: it reads. */
static void become_tar(char *const *argv, const char *dest)
{
	/* Whoever may make devices, an archive of a guest may not. */
	if (dest && prctl(PR_CAPBSET_READ, CAP_MKNOD, 0, 0, 0) == 1 && geteuid() == 0 &&
	    prctl(PR_CAPBSET_DROP, CAP_MKNOD, 0, 0, 0))
		_exit(126);
	if (dest && confine(dest))
		_exit(126);
	execvp("tar", argv);
	log_err("tar: %s: thaw cp needs it for folders", strerror(errno));
	_exit(127);
}

/** @dest: NULL: @argv writes an archive to its stdout, else it reads one from its stdin. */
static int start(struct cp_tar *tar, char *const *argv, const char *dest)
{
	int fds[2], ret;

	/* A tar that has ended early is told by its exit status. */
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR || pipe2(fds, O_CLOEXEC) < 0) {
		ret = -errno;
		log_err("cp: pipe: %s", strerror(-ret));
		return ret;
	}
	tar->pid = fork();
	if (tar->pid < 0) {
		ret = -errno;
		log_err("cp: fork: %s", strerror(-ret));
		close(fds[0]);
		close(fds[1]);
		return ret;
	}
	if (tar->pid == 0) {
		if (signal(SIGPIPE, SIG_DFL) == SIG_ERR ||
		    dup2(fds[dest ? 0 : 1], dest ? STDIN_FILENO : STDOUT_FILENO) < 0)
			_exit(126);
		become_tar(argv, dest);
	}
	tar->fd = fds[dest ? 1 : 0];
	close(fds[dest ? 0 : 1]);
	return 0;
}

/** A replacement for tar's --transform that is @name as it is. Return: 0 or -ENAMETOOLONG. */
static int transform_to(const char *name, char *out, size_t out_bytes)
{
	size_t used = (size_t)snprintf(out, out_bytes, "--transform=s\001^.*$\001");

	for (; *name; name++) {
		if (used + 6 > out_bytes)
			return -ENAMETOOLONG;
		if (*name == '\\' || *name == '&')
			out[used++] = '\\';
		out[used++] = *name;
	}
	/* Flags: names of files alone, not what links lead to. */
	snprintf(out + used, out_bytes - used, "\001SH");
	return 0;
}

int cp_tar_make(struct cp_tar *tar, const char *source, const char *name, bool archive, bool follow)
{
	char transform[2 * NAME_MAX + 64], parent[PATH_MAX], *slash;
	const char *last = source;
	char *argv[16];
	size_t n = 0;

	if (name && transform_to(name, transform, sizeof(transform)))
		return -ENAMETOOLONG;
	snprintf(parent, sizeof(parent), "%s", source);
	slash = strrchr(parent, '/');
	if (name && slash) {
		last = source + (slash - parent) + 1;
		slash[slash == parent ? 1 : 0] = '\0';
	} else if (name) {
		snprintf(parent, sizeof(parent), ".");
	}
	argv[n++] = "tar";
	argv[n++] = "--create";
	argv[n++] = "--format=pax";
	argv[n++] = "--numeric-owner";
	argv[n++] = "--sparse";
	if (!archive) {
		argv[n++] = "--owner=0";
		argv[n++] = "--group=0";
	}
	if (follow && name)
		argv[n++] = "--dereference";
	if (name)
		argv[n++] = transform;
	argv[n++] = "--directory";
	argv[n++] = parent;
	argv[n++] = "--";
	argv[n++] = name ? (char *)(uintptr_t)last : ".";
	argv[n] = NULL;
	return start(tar, argv, NULL);
}

int cp_tar_take(struct cp_tar *tar, const char *dest, bool archive)
{
	char *argv[] = {"tar",
			"--extract",
			"--strip-components=1",
			"--numeric-owner",
			"--warning=no-unknown-keyword",
			"--delay-directory-restore",
			archive ? "--same-owner" : "--no-same-owner",
			archive ? "--same-permissions" : "--no-same-permissions",
			"--directory",
			(char *)(uintptr_t)dest,
			"--file=-",
			NULL};

	return start(tar, argv, dest);
}

int cp_tar_end(struct cp_tar *tar, int ret)
{
	int status = 0;

	fd_close(&tar->fd);
	while (waitpid(tar->pid, &status, 0) < 0 && errno == EINTR)
		;
	/* A transfer that failed has said why; tar's pipe broke then. */
	if (ret && ret != -EPIPE)
		return ret;
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return ret;
	if (WIFSIGNALED(status))
		log_err("cp: tar was ended by signal %d", WTERMSIG(status));
	else if (WEXITSTATUS(status) == 126)
		log_err("cp: tar can't be confined to the destination");
	else
		log_err("cp: tar failed: it has said why");
	return -EIO;
}
