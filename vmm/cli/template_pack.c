// SPDX-License-Identifier: Apache-2.0
// `thaw template export` and `thaw template import`: templates as packs.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/lineage.h"
#include "vmm/cli/optparse.h"
#include "vmm/cli/progress.h"
#include "vmm/cli/sandbox.h"
#include "vmm/cli/state.h"
#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/pack.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * A file appears under its name when it is whole and on the disk: until then it has none, so that
 * nothing is left of an export that is killed. Standard output and other files that are not regular
 * get the bytes as they come.
 */

#define BAR_CHARS	 20
#define PROGRESS_STEP_NS 100000000ull

struct pack_cmd {
	bool replace, no_root;
	u32 threads;
	/* not options */
	const char *name; /* of the template; import: NULL for the pack's own */
	const char *file; /* "-": a standard stream */
	struct state state;
	struct progress progress;
	u64 shown_ns;
	int lock_fd;
	char locked[STATE_NAME_MAX + 1]; /* import: whose build lock is held */
};

static int parse_threads(void *dest, const char *value, const char **why)
{
	u64 threads;

	*why = "expected 1 to 64";
	if (parse_u64(value, 1, 64, &threads))
		return -EINVAL;
	*(u32 *)dest = (u32)threads;
	return 0;
}

static const struct optparse_spec export_specs[] = {
	{"no-root", 0, NULL, optparse_flag, offsetof(struct pack_cmd, no_root),
	 "leave the root image out: the importing machine must have it", NULL},
	{"replace", 0, NULL, optparse_flag, offsetof(struct pack_cmd, replace),
	 "replace FILE if it exists", NULL},
	{"threads", 0, "N", parse_threads, offsetof(struct pack_cmd, threads),
	 "compress on N CPUs (default: all)", NULL},
};

static const struct optparse_spec import_specs[] = {
	{"replace", 0, NULL, optparse_flag, offsetof(struct pack_cmd, replace),
	 "replace the template if there is one of that name", NULL},
	{"threads", 0, "N", parse_threads, offsetof(struct pack_cmd, threads),
	 "decompress on N CPUs (default: all)", NULL},
};

const struct optparse_command template_export_command = {
	.usage = "thaw template export NAME FILE|- [OPTION]...",
	.summary = "Write template NAME as one compressed file, or to standard output.",
	.specs = export_specs,
	.nspecs = ARRAY_SIZE(export_specs),
	.positional_min = 2,
	.positional_max = 2,
	.positional_name = "NAME and FILE",
};

const struct optparse_command template_import_command = {
	.usage = "thaw template import [NAME] FILE|- [OPTION]...",
	.summary = "Make a template of an exported one, from a file or from standard input.\n"
		   "All of it is checked before the template appears.",
	.specs = import_specs,
	.nspecs = ARRAY_SIZE(import_specs),
	.positional_min = 1,
	.positional_max = 2,
	.positional_name = "FILE",
};

static bool is_dash(const char *file)
{
	return !strcmp(file, "-");
}

static void show(void *opaque, u64 done_bytes, u64 total_bytes)
{
	struct pack_cmd *cmd = opaque;
	const u64 now_ns = clock_now_ns();
	char bar[BAR_CHARS + 1] = "";
	u64 filled;

	if (now_ns - cmd->shown_ns < PROGRESS_STEP_NS || !total_bytes)
		return;
	cmd->shown_ns = now_ns;
	filled = MIN(done_bytes, total_bytes) * BAR_CHARS / total_bytes;
	memset(bar, '.', BAR_CHARS);
	memset(bar, '#', filled);
	progress_note(&cmd->progress, "%s: [%s] %llu of %llu MiB", cmd->file, bar,
		      (unsigned long long)(done_bytes / MIB),
		      (unsigned long long)(total_bytes / MIB));
}

static void show_done(struct pack_cmd *cmd, const char *what, const struct pack_stats *stats)
{
	progress_done(&cmd->progress,
		      "%s: %llu MiB of data, %llu MiB packed, %u frames, %u threads%s", what,
		      (unsigned long long)((stats->raw_bytes + MIB - 1) / MIB),
		      (unsigned long long)((stats->pack_bytes + MIB - 1) / MIB), stats->nframes,
		      stats->threads, stats->plain_io ? ", without io_uring" : "");
}

/** take_args() - options and names. Return: -1 to go on, else the exit status. */
static int take_args(struct pack_cmd *cmd, const struct optparse_command *command, int argc,
		     char **argv)
{
	struct optparse_result result;
	const char *why;
	int status = cli_parse(command, cmd, argc, argv, &result, CLI_USAGE);

	if (status >= 0)
		return status;
	cmd->file = result.positional[result.npositional - 1];
	if (result.npositional > 1 && optparse_name(&cmd->name, result.positional[0], &why)) {
		log_err("'%.60s' is not a template's name: %s", result.positional[0], why);
		return CLI_USAGE;
	}
	return state_init(&cmd->state) ? CLI_FAILED : -1;
}

static int file_error(const char *file, int ret)
{
	log_err("%s: %s", file, ret == -EEXIST ? "already exists (--replace)" : strerror(-ret));
	return ret;
}

/** open_output() - Return: a file descriptor or -errno (logged). @stream: written as it comes. */
static int open_output(const struct pack_cmd *cmd, bool *stream)
{
	char folder[PATH_MAX];
	struct stat st;
	int fd;

	*stream = true;
	if (is_dash(cmd->file)) {
		if (isatty(STDOUT_FILENO)) {
			log_err("a pack is no text: name a file, or redirect standard output");
			return -EINVAL;
		}
		fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
		return fd < 0 ? file_error("standard output", -errno) : fd;
	}
	if (stat(cmd->file, &st) == 0 && !S_ISREG(st.st_mode)) {
		fd = open(cmd->file, O_WRONLY | O_CLOEXEC);
		return fd < 0 ? file_error(cmd->file, -errno) : fd;
	}
	*stream = false;
	if (!cmd->replace && access(cmd->file, F_OK) == 0)
		return file_error(cmd->file, -EEXIST);
	if (snprintf(folder, sizeof(folder), "%s", cmd->file) >= (int)sizeof(folder))
		return file_error(cmd->file, -ENAMETOOLONG);
	/* A template's memory holds whatever its warm-up had in memory: for the owner only. */
	fd = open(dirname(folder), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
		log_err("%s: this file system has no unnamed files; export to '-' and redirect it",
			cmd->file);
		return -EOPNOTSUPP;
	}
	return fd < 0 ? file_error(cmd->file, -errno) : fd;
}

/** remove_beside() - names that exports to the same file gave and were killed before they could
 * take them away: nobody holds these files locked. */
static void remove_beside(const char *file)
{
	char folder[PATH_MAX], name[PATH_MAX], prefix[NAME_MAX + sizeof(".tmp-")];
	struct dirent *entry;
	DIR *dir;

	snprintf(folder, sizeof(folder), "%s", file);
	snprintf(name, sizeof(name), "%s", file);
	snprintf(prefix, sizeof(prefix), "%.*s.tmp-", NAME_MAX, basename(name));
	dir = opendir(dirname(folder));
	while (dir && (entry = readdir(dir))) {
		int fd;

		if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
			continue;
		fd = openat(dirfd(dir), entry->d_name,
			    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
			unlinkat(dirfd(dir), entry->d_name, 0);
		fd_close(&fd);
	}
	if (dir)
		closedir(dir);
}

/** name_output() - the unnamed file gets its name, once it is on the disk. */
static int name_output(const struct pack_cmd *cmd, int fd)
{
	char proc_path[64], beside[PATH_MAX];

	if (fsync(fd) < 0)
		return file_error(cmd->file, -errno);
	snprintf(proc_path, sizeof(proc_path), "/proc/self/fd/%d", fd);
	if (linkat(AT_FDCWD, proc_path, AT_FDCWD, cmd->file, AT_SYMLINK_FOLLOW) == 0)
		return 0;
	if (errno != EEXIST || !cmd->replace)
		return file_error(cmd->file, -errno);
	/* Only rename(2) replaces, and it needs a name; the lock says that somebody needs it. */
	remove_beside(cmd->file);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return file_error(cmd->file, -errno);
	if (snprintf(beside, sizeof(beside), "%s.tmp-%d", cmd->file, (int)getpid()) >=
	    (int)sizeof(beside))
		return file_error(cmd->file, -ENAMETOOLONG);
	if (linkat(AT_FDCWD, proc_path, AT_FDCWD, beside, AT_SYMLINK_FOLLOW) < 0)
		return file_error(beside, -errno);
	if (rename(beside, cmd->file) < 0) {
		int ret = file_error(cmd->file, -errno);

		(void)unlink(beside);
		return ret;
	}
	return 0;
}

static int export_snap(struct pack_cmd *cmd, const struct snap *snap)
{
	struct pack_write_opts opts = {.root = !cmd->no_root,
				       .threads = cmd->threads,
				       .to = is_dash(cmd->file) ? "standard output" : cmd->file,
				       .progress = show,
				       .opaque = cmd};
	struct pack_stats stats;
	int ret;

	opts.fd = open_output(cmd, &opts.stream);
	if (opts.fd < 0)
		return opts.fd;
	progress_phase(&cmd->progress, "export %s", cmd->name);
	ret = pack_write(snap, &opts, &stats);
	progress_break(&cmd->progress);
	if (!ret && !opts.stream)
		ret = name_output(cmd, opts.fd);
	if (close(opts.fd) < 0 && !ret)
		ret = file_error(opts.to, -errno);
	if (!ret)
		show_done(cmd, cmd->name, &stats);
	return ret;
}

int template_export_main(struct cli *cli, int argc, char **argv)
{
	struct pack_cmd cmd = {.lock_fd = -1};
	char folder[PATH_MAX];
	struct snap snap;
	int status, ret;

	status = take_args(&cmd, &template_export_command, argc, argv);
	if (status >= 0)
		return status;
	cmd.lock_fd = state_lock_template(&cmd.state, cmd.name, false);
	if (cmd.lock_fd < 0) {
		log_err("template '%s': %s", cmd.name,
			cmd.lock_fd == -ENOENT ? "there is none" : strerror(-cmd.lock_fd));
		return CLI_FAILED;
	}
	state_path(&cmd.state, "templates", cmd.name, "", folder);
	/* A reader that goes away is an error like a full disk. */
	(void)signal(SIGPIPE, SIG_IGN);
	progress_init(&cmd.progress, cli->start_ns);
	ret = snap_load(&snap, folder);
	if (!ret)
		ret = export_snap(&cmd, &snap);
	snap_close(&snap);
	fd_close(&cmd.lock_fd);
	return ret ? CLI_FAILED : CLI_OK;
}

/** place() - the pack's manifest is known: which template is it to be? */
static int place(void *opaque, const struct snap_manifest *manifest, char path[PATH_MAX],
		 const char **name)
{
	struct pack_cmd *cmd = opaque;
	const char *wanted = cmd->name ? cmd->name : manifest->name;

	/* A manifest's name keeps to the same rule; it was checked. */
	BUG_ON(!state_name_ok(wanted));
	if (sandbox_is_snap(wanted)) {
		log_err("template '%s': names like this are those of sandboxes' snapshots; give "
			"another one: 'thaw template import NAME %s'",
			wanted, cmd->file);
		return -EINVAL;
	}
	memcpy(cmd->locked, wanted, strlen(wanted) + 1);
	cmd->lock_fd = state_lock_build(&cmd->state, cmd->locked);
	if (cmd->lock_fd == -EBUSY)
		log_err("template '%s' is being made by another process", cmd->locked);
	if (cmd->lock_fd < 0)
		return cmd->lock_fd;
	state_path(&cmd->state, "templates", cmd->locked, "", path);
	*name = cmd->locked;
	if (cmd->replace && access(path, F_OK) == 0)
		return lineage_refuse(&cmd->state, cmd->locked, "replaced");
	if (access(path, F_OK) == 0) {
		log_err("template '%s' exists: remove it first, or say --replace, or another name",
			cmd->locked);
		return -EEXIST;
	}
	return 0;
}

/** still_wanted() - a pack may be long in coming, and what it replaces may have got diffs
 * meanwhile. */
static bool still_wanted(void *opaque)
{
	const struct pack_cmd *cmd = opaque;

	return !cmd->replace || !lineage_refuse(&cmd->state, cmd->locked, "replaced");
}

static int open_input(const struct pack_cmd *cmd, bool *stream)
{
	struct stat st;
	int fd;

	*stream = true;
	if (is_dash(cmd->file)) {
		fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
		return fd < 0 ? file_error("standard input", -errno) : fd;
	}
	fd = open(cmd->file, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return file_error(cmd->file, -errno);
	*stream = fstat(fd, &st) < 0 || !S_ISREG(st.st_mode);
	return fd;
}

int template_import_main(struct cli *cli, int argc, char **argv)
{
	struct pack_cmd cmd = {.lock_fd = -1};
	char images[PATH_MAX];
	struct pack_read_opts opts = {
		.place = place, .wanted = still_wanted, .progress = show, .images = images};
	struct pack_stats stats;
	int status, ret;

	status = take_args(&cmd, &template_import_command, argc, argv);
	if (status >= 0)
		return status;
	if (state_make(&cmd.state))
		return CLI_FAILED;
	state_path(&cmd.state, "images", NULL, NULL, images);
	progress_init(&cmd.progress, cli->start_ns);
	opts.fd = open_input(&cmd, &opts.stream);
	if (opts.fd < 0)
		return CLI_FAILED;
	opts.from = is_dash(cmd.file) ? "standard input" : cmd.file;
	opts.replace = cmd.replace;
	opts.threads = cmd.threads;
	opts.opaque = &cmd;
	progress_phase(&cmd.progress, "import %s", opts.from);
	ret = pack_read(&opts, &stats);
	fd_close(&opts.fd);
	if (cmd.lock_fd >= 0)
		state_unlock_build(&cmd.state, cmd.locked, &cmd.lock_fd);
	progress_break(&cmd.progress);
	if (!ret)
		show_done(&cmd, cmd.locked, &stats);
	return ret ? CLI_FAILED : CLI_OK;
}

static const struct optparse_spec pack_specs[] = {
	{"threads", 0, "N", parse_threads, offsetof(struct pack_cmd, threads),
	 "compress on N CPUs (default: all)", NULL},
};

const struct optparse_command template_pack_command = {
	.usage = "thaw template pack NAME [OPTION]...",
	.summary =
		"Keep the memory of template NAME compressed as well, for 'thaw run --strategy pack'.",
	.specs = pack_specs,
	.nspecs = ARRAY_SIZE(pack_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
};

/** add_pack() - memory.pack into @snap's folder, whole or not at all. */
static int add_pack(struct pack_cmd *cmd, const struct snap *snap)
{
	struct pack_write_opts opts = {.memory_only = true,
				       .threads = cmd->threads,
				       .to = SNAP_FILE_PACK,
				       .progress = show,
				       .opaque = cmd};
	struct pack_stats stats;
	char proc_path[64];
	int ret;

	opts.fd = openat(snap->dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0400);
	if (opts.fd < 0)
		return file_error(snap->path, -errno);
	progress_phase(&cmd->progress, "pack %s", cmd->name);
	ret = pack_write(snap, &opts, &stats);
	progress_break(&cmd->progress);
	snprintf(proc_path, sizeof(proc_path), "/proc/self/fd/%d", opts.fd);
	/* An older one is of the same memory; what is lost when this ends in between is only
	 * advice. */
	if (!ret &&
	    (fsync(opts.fd) < 0 ||
	     (unlinkat(snap->dirfd, SNAP_FILE_PACK, 0) < 0 && errno != ENOENT) ||
	     linkat(AT_FDCWD, proc_path, snap->dirfd, SNAP_FILE_PACK, AT_SYMLINK_FOLLOW) < 0 ||
	     fsync(snap->dirfd) < 0))
		ret = file_error(snap->path, -errno);
	fd_close(&opts.fd);
	if (!ret)
		show_done(cmd, cmd->name, &stats);
	return ret;
}

int template_pack_main(struct cli *cli, int argc, char **argv)
{
	struct pack_cmd cmd = {.lock_fd = -1};
	char folder[PATH_MAX];
	struct snap snap;
	const char *why;
	int status, ret;

	status = take_args(&cmd, &template_pack_command, argc, argv);
	if (status >= 0)
		return status;
	if (optparse_name(&cmd.name, cmd.file, &why)) {
		log_err("'%.60s' is not a template's name: %s", cmd.file, why);
		return CLI_USAGE;
	}
	state_path(&cmd.state, "templates", cmd.name, "", folder);
	if (access(folder, F_OK) < 0) {
		log_err("template '%s': there is none", cmd.name);
		return CLI_FAILED;
	}
	/* No build of the name, and no other pack, meanwhile. */
	cmd.lock_fd = state_lock_build(&cmd.state, cmd.name);
	if (cmd.lock_fd == -EBUSY)
		log_err("template '%s' is being made by another process", cmd.name);
	if (cmd.lock_fd < 0)
		return CLI_FAILED;
	progress_init(&cmd.progress, cli->start_ns);
	ret = snap_load(&snap, folder);
	/* A published folder is read-only, for its owner too. */
	if (!ret && fchmod(snap.dirfd, 0700) < 0)
		ret = file_error(folder, -errno);
	if (!ret) {
		ret = add_pack(&cmd, &snap);
		if (fchmod(snap.dirfd, 0500) < 0 && !ret)
			ret = file_error(folder, -errno);
	}
	snap_close(&snap);
	state_unlock_build(&cmd.state, cmd.name, &cmd.lock_fd);
	return ret ? CLI_FAILED : CLI_OK;
}
