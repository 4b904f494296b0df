// SPDX-License-Identifier: Apache-2.0
// `thaw run`: restore a sandbox, run one command in it, leave nothing behind.
//
// Theory of operation
//
// Time matters here, so there is as little as can be between the start and thaw-vmm's: the request
// is written to an unnamed file that thaw-vmm takes over into the clone's mailbox, so the shim has
// it the moment its checkpoint call returns. The command is started before any connection exists;
// the shim calls the host for the stream meanwhile, and the stream comes here by CTL_ACCEPT. A
// request that is too long for the mailbox goes the other way: this process makes the stream and
// writes the request into it. From then on one poll(2) loop (exec.c) moves bytes.
//
// Where thawd listens, all of this is its work (run_thawd.c), unless an option was given that only
// a machine of one's own can have.
//
// Where a pool of the template runs (thaw pool), a machine of it is taken over instead of made: one
// message to the pool, one to the machine.
//
// Nothing outlives this process, however it ends: the control channel closes with it and thaw-vmm
// ends on that; its scratch disk has no name; its memory is private. In the usual case thaw-vmm is
// killed and waited for, so that it is gone when `thaw run` returns. That comes after clock c5 was
// stopped: the result does not wait for it. A pool's machine is killed and left to its zygote,
// which reaps it: its end takes longer than all that a pooled run does.
//
// stdout belongs to the command. Messages go to stderr, and only when something is wrong: what
// thaw-vmm says is collected and shown only when the run fails.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "guest/module/thaw_uapi.h"
#include "vmm/cli/client.h"
#include "vmm/cli/commands.h"
#include "vmm/cli/exec_api.h"
#include "vmm/cli/exec_cmd.h"
#include "vmm/cli/exec_status.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/kvmkind.h"
#include "vmm/cli/run_detached.h"
#include "vmm/cli/run_opts.h"
#include "vmm/cli/run_pool.h"
#include "vmm/cli/state.h"
#include "vmm/cli/tty.h"
#include "vmm/cli/vmmproc.h"
#include "vmm/snapshot/mem.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** How long a VMM that has dropped the command's stream gets to say why. */
#define RUN_LAST_WORDS_NS 1000000000ull

struct run {
	struct cli *cli;
	struct run_opts opts;
	struct state state;
	struct vmmproc vmm;
	struct run_pool pool;
	const char *strategy;
	u64 deadline_ns; /* 0: none */
	int lock_fd, stream_fd, signal_fd;
	struct shim_exec_ext ext;
	int request_fd; /* the request, for thaw-vmm to read; -1: too long for the mailbox */
	struct exec_result result;
	struct proc_counters counters;
};

static int lock_template(struct run *run)
{
	run->lock_fd = state_lock_template(&run->state, run->opts.template_name, false);
	if (run->lock_fd >= 0)
		return 0;
	if (run->lock_fd == -ENOENT)
		log_err("no template '%s' in %s/templates: 'thaw template ls' lists them, "
			"'thaw template build' makes one",
			run->opts.template_name, run->state.root);
	else if (run->lock_fd == -EBUSY)
		log_err("template '%s' is being removed", run->opts.template_name);
	else
		log_err("%s/templates/%s: %s", run->state.root, run->opts.template_name,
			strerror(-run->lock_fd));
	return run->lock_fd;
}

static int start_vmm(struct run *run)
{
	struct vmmproc_opts vmm_opts = {.output_fd = -1, .log_fd = -1, .file_fd = run->request_fd};
	char folder[PATH_MAX], scratch[PATH_MAX];
	const char *argv[32];
	size_t n = 0;
	int ret;

	ret = state_make_scratch(&run->state);
	if (ret)
		return ret;
	state_path(&run->state, "templates", run->opts.template_name, "", folder);
	state_path(&run->state, "scratch", NULL, NULL, scratch);
	argv[n++] = "thaw-vmm";
	argv[n++] = "restore";
	argv[n++] = folder;
	argv[n++] = "--strategy";
	argv[n++] = run->strategy;
	argv[n++] = "--disk-dir";
	argv[n++] = scratch;
	argv[n++] = "--ctl-fd";
	argv[n++] = VMMPROC_CTL_TEXT;
	n += run_restore_words(&run->opts, argv + n);
	if (run->opts.hostname) {
		argv[n++] = "--hostname";
		argv[n++] = run->opts.hostname;
	}
	if (run->opts.console_path) {
		argv[n++] = "--console";
		argv[n++] = run->opts.console_path;
	}
	if (run->request_fd >= 0) {
		argv[n++] = "--request-fd";
		argv[n++] = VMMPROC_FILE_TEXT;
	}
	argv[n] = NULL;
	vmm_opts.argv = argv;
	return vmmproc_start(&run->vmm, &vmm_opts);
}

static int watch_vmm(void *opaque)
{
	struct run *run = opaque;
	int ret = vmmproc_receive(&run->vmm);

	/* It has ended: what the command said before may still be in the stream, whose end tells
	 * the rest. */
	return ret == -EPIPE ? 1 : ret;
}

static void fill_request(struct run *run, struct exec_request *request, struct exec_io *io)
{
	exec_prepare(&run->opts, run->cli->start_ns, false, request, &run->ext, io);
}

/**
 * Into a file that thaw-vmm reads and puts into the clone's mailbox: the shim has the request when
 * its checkpoint call returns. One that is too long for that goes by the stream.
 */
static int prepare_request(struct run *run)
{
	struct exec_request request;
	struct exec_io io;
	size_t len_bytes;
	u8 *payload;
	int ret;

	fill_request(run, &request, &io);
	ret = exec_payload_build(&request, &payload, &len_bytes);
	if (ret == -E2BIG)
		log_err("the command and its environment are too long: at most %u KiB and %u words",
			SHIM_EXEC_MAX_BYTES / 1024, SHIM_ARGS_MAX);
	else if (ret)
		log_err("request: %s", strerror(-ret));
	if (ret)
		return ret;
	if (len_bytes < THAW_REQUEST_BYTES) {
		run->request_fd = memfd_create("thaw-request", MFD_CLOEXEC);
		ret = run->request_fd < 0 ? -errno
					  : fd_pwrite_full(run->request_fd, payload, len_bytes, 0);
		if (ret)
			log_err("request: %s", strerror(-ret));
	}
	free(payload);
	return ret;
}

/**
 * A signal that comes before there is a stream to forward it by ends the run: a guest that does not
 * come up must not keep a Ctrl-C from working.
 */
static int take_early_signal(struct run *run)
{
	struct signalfd_siginfo info;

	if (read(run->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info)) {
		log_err("signals: %s", strerror(errno));
		return -EIO;
	}
	run->result.kind = EXEC_SIGNALLED;
	run->result.value = info.ssi_signo;
	return 1;
}

/** Return: 0 with stream_fd, 1 when there is none and @run->result says why, or -errno (logged). */
static int open_stream(struct run *run)
{
	int ret;

	if (run->request_fd >= 0) {
		ret = vmmproc_wait(&run->vmm, &run->vmm.accepted, run->deadline_ns, run->signal_fd,
				   NULL, NULL);
		if (!ret)
			run->stream_fd = vmmproc_take_stream(&run->vmm);
	} else {
		run->stream_fd = vmmproc_connect(&run->vmm, SHIM_PORT);
		ret = run->stream_fd < 0 ? run->stream_fd : 0;
	}
	if (ret == -EINTR)
		return take_early_signal(run);
	if (ret != -EPIPE && ret != -ETIMEDOUT)
		return ret;
	run->result.kind = ret == -EPIPE ? EXEC_LOST : EXEC_TIMEOUT;
	return 1;
}

static int run_command_in_guest(struct run *run)
{
	struct exec_request request;
	struct exec_io io;
	int ret;

	fill_request(run, &request, &io);
	run->signal_fd = exec_open_signals(io.tty);
	if (run->signal_fd < 0)
		return run->signal_fd;
	ret = open_stream(run);
	if (ret)
		return MIN(ret, 0);
	io.signal_fd = run->signal_fd;
	io.watch_fd = run->vmm.ctl_fd;
	io.watch = watch_vmm;
	io.opaque = run;
	ret = exec_begin_tty(&io);
	if (!ret)
		ret = exec_run(run->stream_fd, run->request_fd >= 0 ? NULL : &request, &io,
			       &run->result);
	tty_restore();
	if (ret)
		log_err("run: %s", strerror(-ret));
	return ret;
}

/** The sandbox went away under the command: why? */
static void explain_lost(struct run *run)
{
	char why[320];
	int ret;

	ret = vmmproc_wait(&run->vmm, &run->vmm.exit_seen, clock_now_ns() + RUN_LAST_WORDS_NS, -1,
			   NULL, NULL);
	if (ret == -ETIMEDOUT) {
		log_err("the guest closed the command's stream%s%s",
			run->result.text[0] ? ": " : "", run->result.text);
		return;
	}
	if (ret && ret != -EPIPE)
		return;
	/* Gone without a last word: its exit status must tell, and a kill would change it. */
	if (!run->vmm.exit_seen)
		vmmproc_reap(&run->vmm);
	vmmproc_show_log(&run->vmm);
	vmmproc_why(&run->vmm, why, sizeof(why));
	log_err("%s: the sandbox ended before the command did: %s", run->opts.template_name, why);
}

/** @signal: set when the command was ended by one. Return: exit status. */
static int conclude(struct run *run, int *signal_number)
{
	struct exec_request request;
	struct exec_io io;

	if (run->result.kind == EXEC_LOST)
		explain_lost(run);
	else if (run->result.kind == EXEC_TIMEOUT)
		log_err("time-out: the sandbox was killed");
	fill_request(run, &request, &io);
	return exec_exit_status(&request, &run->result, signal_number);
}

static int write_json(const struct run *run, int status, int signal_number)
{
	struct run_result result = {
		.template_name = run->opts.template_name,
		.strategy = run->vmm.restore_note[0] ? run->vmm.restore_note : run->strategy,
		.pool = run->pool.outcome,
		.kvm = kvm_cpu_emulated() ? "emulated" : "hardware",
		.clocks = run->vmm.clocks,
		.client_start_ns = run->cli->start_ns,
		.exit_ns = run->result.exit_ns,
		.faults_minor = run->counters.faults_minor,
		.faults_major = run->counters.faults_major,
		.bytes_read = run->counters.bytes_read,
		.code = status,
		.signal = signal_number,
	};
	json_t *object = run_result_json(&result);
	int ret;

	if (!object) {
		log_err("%s: JSON: out of memory", run->opts.json_path);
		return -ENOMEM;
	}
	ret = json_write_file(run->opts.json_path, object);
	json_decref(object);
	return ret;
}

/** What a machine of a pool has used before it was claimed is no part of this run. */
static s64 since_claim(s64 now, s64 before)
{
	return now < 0 || before < 0 ? -1 : now - before;
}

static void read_counters(struct run *run)
{
	const struct proc_counters *before = &run->pool.counters;
	struct proc_counters *now = &run->counters;

	proc_counters_read(run->vmm.pid, now);
	if (!run->vmm.adopted)
		return;
	now->faults_minor = since_claim(now->faults_minor, before->faults_minor);
	now->faults_major = since_claim(now->faults_major, before->faults_major);
	now->bytes_read = since_claim(now->bytes_read, before->bytes_read);
}

static int run_start(struct run *run)
{
	int ret;

	ret = state_init(&run->state);
	if (!ret)
		ret = prepare_request(run);
	if (ret)
		return ret;
	/* A machine of the pool holds the template's lock itself. */
	if (run_pool_start(&run->state, &run->opts, run->request_fd, &run->vmm, &run->pool)) {
		run->strategy = run->pool.strategy;
		return run_command_in_guest(run);
	}
	ret = lock_template(run);
	if (!ret)
		ret = start_vmm(run);
	return ret ? ret : run_command_in_guest(run);
}

static void print_strategies(void)
{
	const struct snap_mem_ops *const *ops = snap_mem_list();

	printf("\nStrategies (default %s):\n", snap_mem_find(NULL)->name);
	for (; *ops; ops++)
		printf("  %-10s%s\n", (*ops)->name, (*ops)->summary);
}

static int parse_options(struct run *run, int argc, char **argv)
{
	struct optparse_result result;
	int ret = run_opts_parse(&run->opts, argc, argv, &result);

	if (ret) {
		log_err("%s", ret == -EINVAL ? result.error : strerror(-ret));
		return CLI_RUN_FAILED;
	}
	if (!result.help)
		return -1;
	optparse_help(&run_command, stdout);
	print_strategies();
	return cli_flush() ? CLI_RUN_FAILED : CLI_OK;
}

/** Return: exit status, or -1: it is to be done here. */
static int try_thawd(struct run *run)
{
	const char *spec = spec_first_given(&run->opts.spec);
	struct client client;
	int ret, status;

	if (run_local_option(&run->opts))
		return -1;
	ret = client_open(&client);
	if (!ret) {
		status = run_by_thawd(&client, &run->opts, run->cli->start_ns);
		client_close(&client);
		return status;
	}
	if (ret == -ENOENT && !spec && !(run->opts.detach && run->opts.remove))
		return -1;
	if (ret == -ENOENT)
		log_err("option %s needs thawd, and none listens at %s: 'systemctl start thawd', or "
			"run 'thawd' as root",
			spec ? spec : "--rm", CLIENT_SOCKET);
	return CLI_RUN_FAILED;
}

int run_main(struct cli *cli, int argc, char **argv)
{
	struct run run = {.cli = cli,
			  .lock_fd = -1,
			  .stream_fd = -1,
			  .signal_fd = -1,
			  .request_fd = -1,
			  .vmm = {.ctl_fd = -1, .log_fd = -1, .accept_fd = -1},
			  .pool = {.outcome = "none"},
			  .counters = {-1, -1, -1}};
	int signal_number = 0, status;

	status = parse_options(&run, argc, argv);
	if (status >= 0)
		goto out;
	status = try_thawd(&run);
	if (status >= 0)
		goto out;
	if (run.opts.detach) {
		status = run_detached(&run.opts);
		goto out;
	}
	run.strategy = snap_mem_find(run.opts.strategy)->name;
	if (run.opts.timeout_ns)
		run.deadline_ns = cli->start_ns + run.opts.timeout_ns;
	if (run_start(&run)) {
		status = CLI_RUN_FAILED;
		goto out;
	}
	/* Before the process is gone, and before anything else costs time. */
	if (run.opts.json_path && run.vmm.pid)
		read_counters(&run);
	/* Messages that came with the last frame: the clocks are in them. */
	if (vmmproc_receive(&run.vmm))
		log_debug("thaw-vmm ended by itself");
	status = conclude(&run, &signal_number);
	vmmproc_end(&run.vmm);
	if (run.opts.json_path && write_json(&run, status, signal_number) && status == CLI_OK)
		status = CLI_RUN_FAILED;
out:
	vmmproc_end(&run.vmm);
	fd_close(&run.stream_fd);
	fd_close(&run.signal_fd);
	fd_close(&run.lock_fd);
	fd_close(&run.request_fd);
	run_opts_free(&run.opts);
	return status;
}
