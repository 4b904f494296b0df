// SPDX-License-Identifier: Apache-2.0
// Recording a template's hot set: the last step of `thaw template build`, and `thaw template
// record`.
//
// Theory of operation
//
// A fresh clone for each command and each repetition: it gets the command as its first request, the
// way `thaw run` gives it, runs it, is stopped, and a recorder (hot_recorder.h) tells which pages
// it touched. What becomes of all these sets is hot_plan.c's.
//
// The request goes through a pipe. thaw-vmm reads it to the end before it does anything else, so
// that the clone stands still until the recorder knows its process.
//
// The file goes into the template's folder by a rename, after the snapshot was published: it is
// advice and bound to the state file by digest, so that a restore in between only misses it. A host
// that can't record still has a good template; that is a warning, unless the recorder was asked for
// by name, or nothing else was asked for.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/cli/exec.h"
#include "vmm/cli/hot_plan.h"
#include "vmm/cli/hot_recorder.h"
#include "vmm/cli/template_build.h"
#include "vmm/kvm/layout.h"
#include "vmm/snapshot/snapshot.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define HOT_TMP_FILE ".hot.tmp"

/** The recording of one template. */
struct hot_job {
	struct build *build;
	struct snap snap;
	struct hot_recorder recorder;
	struct hot_plan plan;
	struct hot_record record;
	u64 exec_ns; /* of all clones */
};

/** One command in one clone. */
struct hot_clone {
	struct vmmproc vmm;
	int pipe[2];
	const struct hot_command *command;
};

static int clone_start(struct hot_job *job, struct hot_clone *clone)
{
	struct build *build = job->build;
	char scratch[PATH_MAX];
	const char *argv[16] = {"thaw-vmm", "restore",	    build->folder,     "--strategy",
				"mmap",	    "--request-fd", VMMPROC_FILE_TEXT, "--disk-dir",
				scratch,    "--ctl-fd",	    VMMPROC_CTL_TEXT};
	struct vmmproc_opts opts = {.argv = argv, .output_fd = -1, .log_fd = build->log_fd};
	size_t nargs = 11;
	int hot_fd, ret;

	state_path(&build->state, "scratch", NULL, NULL, scratch);
	ret = job->recorder.ops->before(&job->recorder, &hot_fd);
	if (ret)
		return ret;
	if (hot_fd >= 0) {
		opts.hot_fd = hot_fd;
		argv[nargs++] = "--hot-fd";
		argv[nargs++] = VMMPROC_HOT_TEXT;
	}
	if (pipe2(clone->pipe, O_CLOEXEC) < 0)
		return -errno;
	opts.file_fd = clone->pipe[0];
	ret = vmmproc_start(&clone->vmm, &opts);
	fd_close(&clone->pipe[0]);
	return ret;
}

/** Give the clone its request; from here on it runs. */
static int clone_request(struct hot_clone *clone)
{
	static const char *const env[] = {"HOME=/root", "LANG=C.UTF-8", NULL};
	struct exec_request request = {.argv = (char *const *)clone->command->argv,
				       .env = (char *const *)env};
	size_t len_bytes;
	u8 *payload;
	int ret;

	ret = exec_payload_build(&request, &payload, &len_bytes);
	if (ret)
		return ret;
	ret = fd_write_full(clone->pipe[1], payload, len_bytes);
	fd_close(&clone->pipe[1]);
	free(payload);
	return ret;
}

/** Return: 0, 1 when the guest does not have this command, or -errno. */
static int clone_result(const struct hot_clone *clone, const struct exec_result *result)
{
	/* A warm-up may fail the second time: what it touched counts all the same. */
	if (result->kind == EXEC_EXITED || result->kind == EXEC_SIGNALLED)
		return 0;
	if (result->kind == EXEC_SPAWN_ERROR && clone->command->optional &&
	    result->stage == SHIM_STAGE_EXEC && result->error == ENOENT)
		return 1;
	log_err("recording the hot set: %s: %s", clone->command->argv[0],
		result->kind == EXEC_TIMEOUT ? "time-out" : "did not run in the clone");
	return -EIO;
}

static int clone_run(struct hot_job *job, struct hot_clone *clone)
{
	struct build *build = job->build;
	struct exec_io io = {.stdin_fd = -1,
			     .stdout_fd = build->log_fd,
			     .stderr_fd = build->log_fd,
			     .signal_fd = -1,
			     .watch_fd = -1,
			     .deadline_ns = build->deadline_ns};
	struct exec_result result = {.kind = EXEC_LOST};
	u64 start_ns = clock_now_ns();
	int fd, ret;

	ret = clone_request(clone);
	if (!ret)
		ret = vmmproc_wait(&clone->vmm, &clone->vmm.accepted, build->deadline_ns, -1,
				   progress_tick, &build->progress);
	if (ret)
		return ret;
	fd = vmmproc_take_stream(&clone->vmm);
	ret = exec_run(fd, NULL, &io, &result);
	fd_close(&fd);
	if (!ret)
		ret = clone_result(clone, &result);
	if (!ret)
		job->exec_ns += result.exit_ns - start_ns;
	return ret;
}

static int clone_stop(struct hot_job *job, struct hot_clone *clone)
{
	struct ctl_msg stop = {.version = CTL_VERSION, .type = CTL_STOP};
	int ret;

	ret = ctl_send(clone->vmm.ctl_fd, &stop, -1);
	if (!ret)
		ret = vmmproc_wait(&clone->vmm, &clone->vmm.exit_seen, job->build->deadline_ns, -1,
				   progress_tick, &job->build->progress);
	if (ret)
		return ret;
	/* What it writes comes after CTL_EXIT: its end is the process's. */
	vmmproc_reap(&clone->vmm);
	return WIFEXITED(clone->vmm.wait_status) && WEXITSTATUS(clone->vmm.wait_status) == 0 ? 0
											     : -EIO;
}

/** One command in a clone of its own. @set: gets what it touched. Return: 0, 1 when the guest does
 * not have the command, or -errno. */
static int record_one(struct hot_job *job, const struct hot_command *command,
		      struct snap_hot_set *set)
{
	struct hot_clone clone = {.vmm = {.ctl_fd = -1, .log_fd = -1, .accept_fd = -1},
				  .pipe = {-1, -1},
				  .command = command};
	int ret;

	ret = clone_start(job, &clone);
	if (!ret)
		ret = job->recorder.ops->started(&job->recorder, clone.vmm.pid);
	if (!ret)
		ret = clone_run(job, &clone);
	if (!ret)
		ret = clone_stop(job, &clone);
	fd_close(&clone.pipe[0]);
	fd_close(&clone.pipe[1]);
	vmmproc_end(&clone.vmm);
	if (!ret)
		ret = job->recorder.ops->after(&job->recorder, set);
	else
		fd_close(&job->recorder.file_fd);
	return ret;
}

static int record_all(struct hot_job *job)
{
	u32 runs = job->build->opts.hot_runs;
	struct hot_record *record = &job->record;
	bool missing[HOT_COMMANDS_MAX] = {false};
	int ret;

	record->sets = calloc((size_t)job->plan.ncommands * runs, sizeof(*record->sets));
	record->command = calloc((size_t)job->plan.ncommands * runs, sizeof(*record->command));
	if (!record->sets || !record->command)
		return -ENOMEM;
	for (u32 run = 0; run < runs; run++) {
		for (u32 i = 0; i < job->plan.ncommands; i++) {
			struct snap_hot_set *set = &record->sets[record->nclones];

			if (missing[i])
				continue;
			set->pmem_gpa = layout_pmem_gpa(job->recorder.ram_bytes);
			ret = record_one(job, &job->plan.commands[i], set);
			if (ret < 0) {
				snap_hot_set_free(set);
				return ret;
			}
			missing[i] = ret;
			if (!ret)
				record->command[record->nclones++] = i;
		}
	}
	return record->nclones ? 0 : -ENOENT;
}

/** write_file() - the file "hot" of the folder @dirfd, by a name that sweep.c knows as unfinished.
 */
static int write_file(int dirfd, const void *buf, size_t len_bytes)
{
	int fd = openat(dirfd, HOT_TMP_FILE, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
			0600);
	int ret = fd < 0 ? -errno : fd_write_full(fd, buf, len_bytes);

	if (!ret && (fchmod(fd, 0400) < 0 || fsync(fd) < 0 ||
		     renameat(dirfd, HOT_TMP_FILE, dirfd, SNAP_FILE_HOT) < 0 || fsync(dirfd) < 0))
		ret = -errno;
	if (ret && fd >= 0)
		unlinkat(dirfd, HOT_TMP_FILE, 0);
	fd_close(&fd);
	return ret;
}

static int publish(const struct hot_job *job, struct snap_hot_info *info)
{
	struct snap_hot_set set = {.pmem_gpa = layout_pmem_gpa(job->recorder.ram_bytes)};
	size_t len_bytes;
	void *buf = NULL;
	int ret;

	ret = hot_conclude(&job->record, info, &set);
	if (!ret)
		ret = snap_hot_build(set.runs, set.nruns, info, job->snap.view.header->digest, &buf,
				     &len_bytes);
	/* A published folder is read-only, for its owner too; open only as long as it must be. */
	if (!ret && fchmod(job->snap.dirfd, 0700) < 0)
		ret = -errno;
	if (!ret) {
		ret = write_file(job->snap.dirfd, buf, len_bytes);
		if (fchmod(job->snap.dirfd, 0500) < 0 && !ret)
			ret = -errno;
	}
	free(buf);
	snap_hot_set_free(&set);
	return ret;
}

static int job_run(struct hot_job *job)
{
	struct build *build = job->build;
	struct hot_recorder *recorder = &job->recorder;
	struct snap_hot_info info = {.recorder = recorder->ops->id,
				     .rule = (u32)hot_rule_find(build->opts.hot_rule)};
	u64 start_ns = clock_now_ns();
	int ret;

	recorder->ram_bytes = job->snap.view.machine->ram_bytes;
	recorder->pmem_bytes = job->snap.view.machine->pmem_bytes;
	recorder->state_digest = job->snap.view.header->digest;
	ret = recorder->ops->open(recorder);
	if (!ret)
		ret = record_all(job);
	recorder->ops->close(recorder);
	if (ret)
		return ret;
	info.record_ns = clock_now_ns() - start_ns;
	info.exec_ns = job->exec_ns / job->record.nclones;
	return publish(job, &info);
}

static int job_do(struct build *build)
{
	struct hot_job job = {
		.build = build,
		.recorder = {.ops = hot_recorder_find(build->opts.recorder), .file_fd = -1}};
	int ret;

	hot_plan_make(&job.plan, &build->recipe.warm, &build->opts.warm);
	progress_phase(&build->progress, "hot set: %u commands, %u times, recorder %s",
		       job.plan.ncommands, build->opts.hot_runs, job.recorder.ops->name);
	ret = snap_load(&job.snap, build->folder);
	if (!ret)
		ret = job_run(&job);
	snap_close(&job.snap);
	for (u32 i = 0; i < job.record.nclones; i++)
		snap_hot_set_free(&job.record.sets[i]);
	free(job.record.sets);
	free(job.record.command);
	return ret;
}

int build_hot_check(const struct build *build)
{
	const struct hot_recorder_ops *ops = hot_recorder_find(build->opts.recorder);
	const char *why;
	int ret;

	if (!build->opts.recorder)
		return 0;
	ret = ops->probe(&why);
	if (ret)
		log_err("--recorder %s: %s: %s", ops->name, why, strerror(-ret));
	return ret;
}

int build_hot(struct build *build)
{
	char path[PATH_MAX];
	bool had_one;
	int ret;

	state_path(&build->state, "templates", build->name, "/" SNAP_FILE_HOT, path);
	ret = job_do(build);
	if (!ret)
		return 0;
	had_one = access(path, F_OK) == 0;
	progress_break(&build->progress);
	log_write(build->hot_required ? LOG_ERROR : LOG_WARN,
		  "no hot set was recorded (%s); see %s. The template works%s", strerror(-ret),
		  build->log_path, had_one ? " as before" : ", and its first commands are slower");
	return build->hot_required ? ret : 0;
}
