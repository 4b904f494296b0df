// SPDX-License-Identifier: Apache-2.0
// `thaw template build`, the last step: record the hot set of the new template.
//
// A clone is started, runs the first commands of a sandbox's life, and tells which pages it touched
// (thaw-vmm --hot-fd). The file goes into the template's folder by a rename, after the snapshot was
// published: it is advice and bound to the state file by digest, so that a restore in between only
// misses it. A host that can't record (Linux before 6.7) still has a good template; that is a
// warning.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/cli/exec.h"
#include "vmm/cli/template_build.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define HOT_FILE     "hot"
#define HOT_TMP_FILE ".hot.tmp"

/* What is on the path of every first command: an exec by itself, and one through a shell. */
static const char *const hot_commands[][4] = {
	{"/bin/true", NULL},
	{"/bin/sh", "-c", ":", NULL},
};

static int hot_exec(struct vmmproc *vmm, const char *const *argv, u64 deadline_ns)
{
	static const char *const env[] = {"HOME=/root", "LANG=C.UTF-8", NULL};
	struct exec_request request = {.argv = (char *const *)argv, .env = (char *const *)env};
	struct exec_io io = {.stdin_fd = -1,
			     .stdout_fd = STDERR_FILENO,
			     .stderr_fd = STDERR_FILENO,
			     .signal_fd = -1,
			     .watch_fd = -1,
			     .deadline_ns = deadline_ns};
	struct exec_result result = {.kind = EXEC_LOST};
	int fd = vmmproc_connect(vmm, SHIM_PORT), ret;

	if (fd < 0)
		return fd;
	ret = exec_run(fd, &request, &io, &result);
	fd_close(&fd);
	if (ret)
		return ret;
	return result.kind == EXEC_EXITED && result.value == 0 ? 0 : -EIO;
}

/** Run a clone that records into @file_fd. */
static int hot_record(struct build *build, int file_fd)
{
	struct vmmproc vmm = {.ctl_fd = -1, .log_fd = -1, .accept_fd = -1};
	struct ctl_msg stop = {.version = CTL_VERSION, .type = CTL_STOP};
	char scratch[PATH_MAX];
	const char *const argv[] = {"thaw-vmm", "restore",  build->folder,     "--strategy",
				    "mmap",	"--hot-fd", VMMPROC_FILE_TEXT, "--disk-dir",
				    scratch,	"--ctl-fd", VMMPROC_CTL_TEXT,  NULL};
	struct vmmproc_opts opts = {
		.argv = argv, .output_fd = -1, .log_fd = build->log_fd, .file_fd = file_fd};
	int ret;

	state_path(&build->state, "scratch", NULL, NULL, scratch);
	ret = vmmproc_start(&vmm, &opts);
	for (size_t i = 0; i < ARRAY_SIZE(hot_commands) && !ret; i++)
		ret = hot_exec(&vmm, hot_commands[i], build->deadline_ns);
	if (!ret)
		ret = ctl_send(vmm.ctl_fd, &stop, -1);
	if (!ret)
		ret = vmmproc_wait(&vmm, &vmm.exit_seen, build->deadline_ns, -1, progress_tick,
				   &build->progress);
	if (!ret) {
		/* The file is written after CTL_EXIT: its end is the process's. */
		vmmproc_reap(&vmm);
		ret = WIFEXITED(vmm.wait_status) && WEXITSTATUS(vmm.wait_status) == 0 ? 0 : -EIO;
	}
	vmmproc_end(&vmm);
	return ret;
}

static int hot_publish(int dirfd, int fd)
{
	if (fchmod(fd, 0400) < 0 || fsync(fd) < 0 ||
	    renameat(dirfd, HOT_TMP_FILE, dirfd, HOT_FILE) < 0 || fsync(dirfd) < 0)
		return -errno;
	return 0;
}

void build_hot(struct build *build)
{
	int dirfd, fd = -1, ret = 0;

	progress_phase(&build->progress, "hot set");
	dirfd = open(build->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	/* A published folder is read-only, for its owner too. */
	if (dirfd < 0 || fchmod(dirfd, 0700) < 0)
		ret = -errno;
	if (!ret) {
		fd = openat(dirfd, HOT_TMP_FILE,
			    O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
		ret = fd < 0 ? -errno : hot_record(build, fd);
	}
	if (!ret)
		ret = hot_publish(dirfd, fd);
	if (ret && fd >= 0)
		unlinkat(dirfd, HOT_TMP_FILE, 0);
	if (dirfd >= 0 && fchmod(dirfd, 0500) < 0 && !ret)
		ret = -errno;
	fd_close(&fd);
	fd_close(&dirfd);
	if (ret) {
		progress_break(&build->progress);
		log_warn("no hot set was recorded (%s); see %s. The template works, and its first "
			 "commands are slower",
			 strerror(-ret), build->log_path);
	}
}
