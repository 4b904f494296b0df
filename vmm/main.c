// SPDX-License-Identifier: Apache-2.0
// thaw-vmm: one virtual machine a process.
//
// Linear: parse, open every file, boot or restore, then vm_run(), which puts the system call
// filters on before the guest runs and comes back when the VM has ended. With --zygote-fd the
// process forks where the snapshot is open (vmm/zygote.c); each new one goes on from there.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/jailed.h"
#include "vmm/kvm/boot.h"
#include "vmm/kvm/vm.h"
#include "vmm/opts.h"
#include "vmm/request.h"
#include "vmm/seccomp.h"
#include "vmm/snapreq.h"
#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/snapshot.h"
#include "vmm/util/log.h"
#include "vmm/util/usock.h"
#include "vmm/util/util.h"
#include "vmm/zygote.h"

#define EXIT_USAGE    2
#define EXIT_RESET    3
#define EXIT_DEADLINE 4

/* vsock streams and devices; a process may have a far lower soft limit. */
#define VMM_FILES_MAX 8192

/** Everything that is open for as long as the VM lives. */
struct session {
	const struct opts *opts;
	u64 start_ns;
	int ctl_fd; /* -1: none; not owned */
	bool wait;  /* for CTL_START, once all else is done */
	int kernel_fd, initramfs_fd, root_fd, disk_base_fd, disk_delta_fd, console_fd, listen_fd,
		ctl_listen_fd;
	char *root_path; /* absolute, for the manifest; owned */
	char request[THAW_REQUEST_BYTES];
	u32 request_len_bytes;
	int pagemap_fd;	  /* of a jailed process; -1 */
	struct snap snap; /* restore only */
	struct snap_writer *writer;
	struct snapreq snapreq;		   /* with --ctl-listen */
	struct snap_hot_recorder recorder; /* with --hot-fd */
	bool written;
	struct vm vm;
};

static void session_init(struct session *session, const struct opts *opts, u64 start_ns)
{
	session->opts = opts;
	session->start_ns = start_ns;
	session->ctl_fd = opts->ctl_fd;
	session->wait = opts->wait;
	session->kernel_fd = -1;
	session->initramfs_fd = -1;
	session->root_fd = -1;
	session->disk_base_fd = -1;
	session->disk_delta_fd = -1;
	session->console_fd = -1;
	session->listen_fd = -1;
	session->pagemap_fd = -1;
}

static int session_open(const char *role, const char *path, int flags, int *fd)
{
	int ret;

	if (!path)
		return 0;
	*fd = open(path, flags | O_CLOEXEC | O_NOCTTY, 0600);
	if (*fd >= 0)
		return 0;
	ret = -errno;
	log_err("%s %s: %s", role, path, strerror(-ret));
	return ret;
}

static int session_open_console(struct session *session)
{
	const char *path = session->opts->console;

	if (path && !strcmp(path, "-")) {
		session->console_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
		return session->console_fd < 0 ? -errno : 0;
	}
	return session_open("console", path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND,
			    &session->console_fd);
}

static int session_open_listener(const char *option, const char *path, int type, int *fd)
{
	int ret;

	if (!path)
		return 0;
	ret = usock_listen(path, type, 64, 0600);
	if (ret < 0) {
		log_err("%s %s: %s", option, path, strerror(-ret));
		return ret;
	}
	*fd = ret;
	return 0;
}

/** An unnamed file: nothing to clean up, whatever happens. */
static int session_open_delta(struct session *session, u64 disk_bytes)
{
	const char *dir = session->opts->disk_dir;
	int ret;

	if (!disk_bytes) {
		fd_close(&session->disk_delta_fd);
		return 0;
	}
	if (!dir) {
		log_err("the snapshot has a scratch disk: --disk-dir is needed");
		return -EINVAL;
	}
	/* Of a jailed process it is open already. */
	if (session->disk_delta_fd < 0)
		session->disk_delta_fd = open(dir, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
	if (session->disk_delta_fd >= 0 &&
	    ftruncate(session->disk_delta_fd, (off_t)disk_bytes) == 0)
		return 0;
	ret = -errno;
	log_err("scratch disk in %s: %s", dir, strerror(-ret));
	return ret;
}

static int session_checkpoint(struct vm *vm, void *opaque)
{
	struct session *session = opaque;
	int ret;

	if (session->written)
		return -EOPNOTSUPP;
	ret = snap_write(session->writer, vm);
	session->written = !ret;
	return ret;
}

/** Identity and first request, right before the vCPUs run. */
static int session_fill(struct session *session, const char *hostname)
{
	struct thawdev_start start = {
		.hostname = hostname,
		.request = session->request,
		.request_len_bytes = session->request_len_bytes,
	};

	return thawdev_fill(&session->vm.thawdev, session->opts->command == OPTS_BOOT ? 1 : 0,
			    &start);
}

/** CTL_START: what a clone is made unique by is made now, not when the VM was. */
static int session_start(struct vm *vm, void *opaque, const char *hostname, int request_fd)
{
	struct session *session = opaque;
	int ret;

	ret = request_read(request_fd, true, session->request, &session->request_len_bytes);
	ret = ret ?: snap_restore_time(&session->snap, vm);
	return ret ?: session_fill(session, *hostname ? hostname : NULL);
}

/** The part of the machine's configuration that a boot and a restore share. */
static void session_config(struct session *session, struct vm_config *cfg)
{
	const struct opts *opts = session->opts;

	cfg->pmem_fd = session->root_fd;
	cfg->disk_base_fd = session->disk_base_fd;
	cfg->disk_delta_fd = session->disk_delta_fd;
	cfg->console_fd = session->console_fd;
	cfg->ctl_fd = session->ctl_fd;
	cfg->ctl_listen_fd = session->ctl_listen_fd;
	cfg->start = session->wait ? session_start : NULL;
	cfg->start_opaque = session;
	cfg->vsock_listen_fd = session->listen_fd;
	cfg->vsock_path = opts->jail_uid ? NULL : opts->vsock;
	cfg->deadline_ms = opts->hard_timeout_ms;
	cfg->owner_by_path = opts->jail_uid != 0;
	cfg->checkpoint = opts->snapshot ? session_checkpoint : NULL;
	cfg->checkpoint_opaque = session;
	if (opts->ctl_listen)
		snapreq_config(&session->snapreq, cfg);
	cfg->checkpoint_exit = !opts->keep_running;
	cfg->sandbox = true;
	cfg->sandbox_options =
		(opts->snapshot || opts->ctl_listen ? SECCOMP_SNAPSHOT : 0) |
		(opts->ctl_listen ? SECCOMP_OWNERS : 0) | (opts->vsock ? SECCOMP_VSOCK_PATH : 0) |
		(opts->jail_uid ? SECCOMP_JAIL : 0) | (session->wait ? SECCOMP_WAIT : 0);
#ifdef THAW_SANITIZER
	cfg->sandbox_options |= SECCOMP_SANITIZER;
#endif
}

static int session_boot(struct session *session)
{
	const struct opts *opts = session->opts;
	struct vm_config cfg = {
		.ram_bytes = opts->memory_bytes,
		.nvcpus = (unsigned int)opts->vcpus,
		.disk_bytes = opts->disk_bytes,
		.serial = opts->serial,
	};
	struct boot_files files = {.cmdline = opts->cmdline};
	struct vm *vm = &session->vm;
	struct stat st;
	int ret;

	ret = session_open("kernel", opts->kernel, O_RDONLY, &session->kernel_fd);
	ret = ret ?: session_open("initramfs", opts->initramfs, O_RDONLY, &session->initramfs_fd);
	ret = ret ?: session_open("root image", opts->root, O_RDONLY, &session->root_fd);
	ret = ret ?: session_open("disk base", opts->disk_base, O_RDONLY, &session->disk_base_fd);
	ret = ret ?: session_open_delta(session, opts->disk_bytes);
	if (ret)
		return ret;
	if (session->root_fd >= 0) {
		session->root_path = realpath(opts->root, NULL);
		if (!session->root_path || fstat(session->root_fd, &st) < 0) {
			log_err("root image %s: %s", opts->root, strerror(errno));
			return -EIO;
		}
		cfg.pmem_bytes = ALIGN_UP((u64)st.st_size, HUGE_SIZE_BYTES);
	}
	session_config(session, &cfg);
	vm_init(vm, &cfg);
	vm->clocks.start_ns = session->start_ns;
	ret = vm_ram_map_anon(vm);
	ret = ret ?: vm_create(vm);
	ret = ret ?: vm_create_vcpus(vm);
	ret = ret ?: vm_create_devices(vm);
	if (ret)
		return ret;
	files.kernel_fd = session->kernel_fd;
	files.initramfs_fd = session->initramfs_fd;
	ret = boot_setup(vm, &files);
	fd_close(&session->kernel_fd);
	fd_close(&session->initramfs_fd);
	return ret;
}

static int session_restore(struct session *session)
{
	const struct opts *opts = session->opts;
	struct snap_restore_opts restore = {
		.strategy = opts->strategy,
		.fault_window_bytes = opts->fault_window_bytes,
		.populate = opts->populate,
		.prefault = opts->prefault,
		.huge = opts->huge,
		.threads = (unsigned int)opts->threads,
		.memory_fd = opts->memory_fd,
		.recorder = opts->hot_fd >= 0 ? &session->recorder : NULL,
	};
	struct vm_config cfg = {0};
	int ret;

	/* Of a zygote's child it is open already. */
	ret = session->snap.path ? 0 : snap_open(&session->snap, opts->folder);
	if (ret)
		return ret;
	ret = session_open_delta(session, session->snap.view.machine->disk_bytes);
	if (ret)
		return ret;
	session_config(session, &cfg);
	snap_vm_config(&session->snap, &cfg);
	vm_init(&session->vm, &cfg);
	session->vm.clocks.start_ns = session->start_ns;
	ret = snap_restore(&session->snap, &session->vm, &restore);
	/* Named in the result: what was not done exactly as asked. */
	if (restore.note[0])
		snprintf(session->vm.start_note, sizeof(session->vm.start_note), "%s%s",
			 opts->strategy ? opts->strategy : snap_mem_find(NULL)->name, restore.note);
	return ret;
}

/** Writing takes the event loop's time, so the end of the owner goes unseen meanwhile. A build that
 * was killed must not publish. */
static bool session_owner_lives(void *opaque)
{
	const struct session *session = opaque;
	struct pollfd pfd = {.fd = session->opts->ctl_fd, .events = POLLRDHUP};

	return pfd.fd < 0 || poll(&pfd, 1, 0) == 0;
}

static int session_prepare_snapshot(struct session *session)
{
	const struct opts *opts = session->opts;
	bool is_restore = opts->command == OPTS_RESTORE;
	struct snap_write_opts write = {
		.path = opts->snapshot,
		.replace = opts->replace,
		.name = opts->name,
		.kernel = opts->guest_kernel,
		.parent = opts->parent,
		.diff = opts->diff,
		.root_image = session->root_path,
		.base = is_restore ? &session->snap : NULL,
		.wanted = session_owner_lives,
		.opaque = session,
	};

	session->snapreq.into_only = opts->jail_uid != 0;
	if (opts->ctl_listen)
		return snapreq_init(&session->snapreq, &session->snap, session->pagemap_fd);
	if (!opts->snapshot)
		return 0;
	if (!write.kernel)
		write.kernel = is_restore ? session->snap.manifest.kernel : "unknown";
	return snap_write_prepare(&write, &session->writer);
}

static int session_run(struct session *session)
{
	const struct opts *opts = session->opts;
	int ret;

	ret = session_open_console(session);
	ret = ret
		      ?: session_open_listener("--vsock", opts->vsock, SOCK_STREAM,
					       &session->listen_fd);
	ret = ret
		      ?: session_open_listener("--ctl-listen", opts->ctl_listen, SOCK_SEQPACKET,
					       &session->ctl_listen_fd);
	ret = ret
		      ?: request_read(opts->request_fd, false, session->request,
				      &session->request_len_bytes);
	if (opts->jail_uid)
		ret = ret ?: jailed_enter(opts, &session->disk_delta_fd, &session->pagemap_fd);
	if (ret)
		return ret;
	ret = opts->command == OPTS_BOOT ? session_boot(session) : session_restore(session);
	ret = ret ?: session_prepare_snapshot(session);
	if (!session->wait)
		ret = ret ?: session_fill(session, opts->hostname);
	if (ret)
		return ret;
	jailed_settle();
	ret = vm_run(&session->vm);
	if (!ret && session->vm.stop == VM_STOP_REQUESTED && opts->hot_fd >= 0)
		ret = snap_hot_record_write(&session->recorder, &session->vm,
					    session->snap.view.header->digest, opts->hot_fd);
	return ret;
}

/** Before vm_run() has the channel, an error has to be told from here. */
static void session_tell_error(const struct session *session, int error)
{
	struct ctl_msg msg = {
		.version = CTL_VERSION,
		.type = CTL_EXIT,
		.reason = CTL_EXIT_ERROR,
		.error = error,
		.clocks = session->vm.clocks,
	};

	if (session->ctl_fd < 0)
		return;
	snprintf(msg.text, sizeof(msg.text), "set-up failed: %s", strerror(-error));
	if (ctl_send(session->ctl_fd, &msg, -1))
		log_warn("control channel: the owner does not hear the end");
}

static int session_exit_status(struct session *session, int ret)
{
	if (ret) {
		if (session->vm.stop == VM_RUNNING)
			session_tell_error(session, ret);
		return EXIT_FAILURE;
	}
	switch (session->vm.stop) {
	case VM_STOP_POWEROFF:
	case VM_STOP_REQUESTED:
	case VM_STOP_SNAPSHOT:
		return EXIT_SUCCESS;
	case VM_STOP_RESET:
		return EXIT_RESET;
	case VM_STOP_DEADLINE:
		return EXIT_DEADLINE;
	case VM_RUNNING:
	case VM_STOP_ERROR:
	default:
		return EXIT_FAILURE;
	}
}

/** Only what would outlive the process; the rest goes with it, and faster. */
static void session_end(struct session *session)
{
	if (session->writer)
		snap_write_abort(session->writer);
	snapreq_end(&session->snapreq);
	/* No path leads anywhere any more; the owner clears up. */
	if (session->opts->jail_uid)
		return;
	if (session->ctl_listen_fd && unlink(session->opts->ctl_listen) < 0)
		log_warn("%s: %s", session->opts->ctl_listen, strerror(errno));
	if (session->listen_fd >= 0 && unlink(session->opts->vsock) < 0)
		log_warn("%s: %s", session->opts->vsock, strerror(errno));
}

/** Return: 1 in a new process that has a VM to make; 0 or -errno in the zygote, at its end. */
static int session_serve_zygote(struct session *session)
{
	int ret;

	ret = snap_open(&session->snap, session->opts->folder);
	ret = ret ?: zygote_serve(session->opts->zygote_fd, &session->ctl_fd);
	session->start_ns = clock_now_ns();
	session->wait = true;
	return ret;
}

static void process_prepare(void)
{
	struct rlimit files;

	heap_prepare();
	/* A reader of the console or of a stream that goes away is an error code, not a death. */
	signal(SIGPIPE, SIG_IGN);
	/* A file size limit that the scratch disk runs into is an I/O error of the guest. */
	signal(SIGXFSZ, SIG_IGN);
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < VMM_FILES_MAX) {
		files.rlim_cur = MIN(files.rlim_max, (rlim_t)VMM_FILES_MAX);
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
}

int main(int argc, char **argv)
{
	static struct session session; /* 60 KiB, mostly untouched */
	static struct opts opts;
	u64 start_ns = clock_now_ns();
	char why[256];
	int ret;

	log_init("thaw-vmm");
	if (opts_parse(&opts, argc, argv, why, sizeof(why))) {
		fprintf(stderr, "thaw-vmm: %s\n", why);
		return EXIT_USAGE;
	}
	if (opts.command == OPTS_HELP) {
		opts_help(stdout);
		return EXIT_SUCCESS;
	}
	if (opts.command == OPTS_VERSION) {
		printf("thaw-vmm %s\n", THAW_VERSION);
		return EXIT_SUCCESS;
	}
	process_prepare();
	session_init(&session, &opts, start_ns);
	if (opts.zygote_fd >= 0) {
		ret = session_serve_zygote(&session);
		if (ret <= 0)
			return ret ? EXIT_FAILURE : EXIT_SUCCESS;
	}
	ret = session_run(&session);
	ret = session_exit_status(&session, ret);
	session_end(&session);
	return ret;
}
