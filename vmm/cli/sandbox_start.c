// SPDX-License-Identifier: Apache-2.0
// Sandboxes that stay: their machines, started, controlled, snapshotted.
//
// The machine is started as the child of this process, which is its first owner. It listens for
// others from the beginning, so that it goes on when this process has ended. Until the guest runs
// it is ended with everything else that failed: a sandbox that is told of is one that runs.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vmm/cli/exec.h"
#include "vmm/cli/sandbox.h"
#include "vmm/cli/sandbox_jail.h"
#include "vmm/snapshot/mem.h"
#include "vmm/util/log.h"
#include "vmm/util/usock.h"
#include "vmm/util/util.h"

#define START_NS      120000000000ull
#define OWN_NS	      5000000000ull
#define CONNECT_NS    60000000000ull
#define CHECKPOINT_NS 300000000000ull
#define LAST_WORDS_MS 5000

struct start_words {
	const char *argv[48];
	char deadline[24];
	char folder[PATH_MAX], scratch[PATH_MAX], ctl[PATH_MAX], vsock[PATH_MAX];
};

static void make_words(const struct state *state, const struct sandbox *sb,
		       const struct sandbox_opts *opts, const struct sandbox_cell *cell,
		       struct start_words *words)
{
	const char *const *more = opts->words;
	size_t n = 0;

	state_path(state, "templates", sb->snapshot, "", words->folder);
	state_path(state, "scratch", NULL, NULL, words->scratch);
	sandbox_path(state, sb->id, "ctl", words->ctl);
	sandbox_path(state, sb->id, "vsock", words->vsock);
	words->argv[n++] = "thaw-vmm";
	words->argv[n++] = "restore";
	words->argv[n++] = words->folder;
	words->argv[n++] = "--strategy";
	words->argv[n++] = snap_mem_find(opts->strategy)->name;
	words->argv[n++] = "--disk-dir";
	words->argv[n++] = words->scratch;
	words->argv[n++] = "--ctl-fd";
	words->argv[n++] = VMMPROC_CTL_TEXT;
	words->argv[n++] = "--ctl-listen";
	words->argv[n++] = words->ctl;
	words->argv[n++] = "--vsock";
	words->argv[n++] = words->vsock;
	if (opts->wait) {
		words->argv[n++] = "--wait";
	} else {
		words->argv[n++] = "--hostname";
		words->argv[n++] = sb->hostname;
	}
	if (opts->hard_timeout_ms) {
		snprintf(words->deadline, sizeof(words->deadline), "%llu",
			 (unsigned long long)opts->hard_timeout_ms);
		words->argv[n++] = "--hard-timeout";
		words->argv[n++] = words->deadline;
	}
	if (cell)
		n += sandbox_cell_words(cell, words->argv + n);
	if (opts->console_path) {
		words->argv[n++] = "--console";
		words->argv[n++] = opts->console_path;
	}
	while (more && *more) {
		BUG_ON(n + 1 >= ARRAY_SIZE(words->argv));
		words->argv[n++] = *more++;
	}
	words->argv[n] = NULL;
}

/** @cell: NULL: no jail. */
static int start_machine(const struct state *state, struct sandbox *sb,
			 const struct sandbox_opts *opts, const struct sandbox_cell *cell,
			 struct vmmproc *vmm)
{
	struct vmmproc_opts vmm_opts = {.output_fd = -1, .log_fd = -1, .file_fd = -1};
	struct start_words words;
	char path[PATH_MAX];
	int ret;

	ret = state_make_scratch(state);
	if (ret)
		return ret;
	make_words(state, sb, opts, cell, &words);
	/* The longer one of the two. */
	if (strlen(words.vsock) > USOCK_PATH_MAX) {
		log_err("%s: too long for a socket, which has at most %d bytes: THAW_STATE has to be shorter",
			words.vsock, USOCK_PATH_MAX);
		return -ENAMETOOLONG;
	}
	/* Of a machine that was killed; listeners leave what is there alone. */
	(void)unlink(words.ctl);
	(void)unlink(words.vsock);
	sandbox_path(state, sb->id, "log", path);
	vmm_opts.log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (vmm_opts.log_fd < 0) {
		ret = -errno;
		log_err("%s: %s", path, strerror(-ret));
		return ret;
	}
	vmm_opts.argv = words.argv;
	vmm_opts.jail = cell ? &cell->jail : NULL;
	ret = vmmproc_start(vmm, &vmm_opts);
	fd_close(&vmm_opts.log_fd);
	if (!ret)
		ret = sandbox_save_pid(state, sb, vmm->pid);
	/* It has ended already; sandbox_wait_resumed() knows to say why. */
	return ret == -ESRCH ? 0 : ret;
}

int sandbox_start(const struct state *state, struct sandbox *sb, const struct sandbox_opts *opts,
		  struct vmmproc *vmm)
{
	struct sandbox_jail usual = {.limits = {0}};
	struct sandbox_cell cell;
	int ret;

	if (!opts->jail && sb->jail == SANDBOX_JAIL_NONE)
		return start_machine(state, sb, opts, NULL, vmm);
	jail_config_default(&usual.config);
	usual.config.require_cgroup = sb->jail != SANDBOX_JAIL_NO_CGROUP;
	ret = sandbox_cell_make(state, sb, opts->jail ? opts->jail : &usual, &cell);
	if (!ret)
		ret = start_machine(state, sb, opts, &cell, vmm);
	/* The machine has its uid from now on. */
	sandbox_cell_close(&cell);
	return ret;
}

void sandbox_last_words(const struct state *state, const struct sandbox *sb, char *out,
			size_t len_bytes)
{
	char path[PATH_MAX], buf[1024], *line;
	off_t end;
	ssize_t n;
	int fd;

	sandbox_path(state, sb->id, "log", path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
	n = fd < 0 ? -1
		   : pread(fd, buf, sizeof(buf) - 1,
			   end > (off_t)sizeof(buf) ? end - (off_t)sizeof(buf) + 1 : 0);
	fd_close(&fd);
	while (n > 0 && buf[n - 1] == '\n')
		n--;
	if (n <= 0)
		return;
	buf[n] = '\0';
	line = strrchr(buf, '\n');
	snprintf(out, len_bytes, "%s", line ? line + 1 : buf);
	/* It goes to terminals, and a guest may have had a hand in it. */
	for (char *c = out; *c; c++) {
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	}
}

int sandbox_wait_resumed(const struct state *state, const struct sandbox *sb, struct vmmproc *vmm,
			 char *why, size_t why_bytes)
{
	int ret;

	ret = vmmproc_wait(vmm, &vmm->resumed, clock_now_ns() + START_NS, -1, NULL, NULL);
	if (!ret)
		return 0;
	if (ret == -ETIMEDOUT) {
		snprintf(why, why_bytes, "the guest did not come back from its checkpoint call");
		return ret;
	}
	if (!vmm->exit_seen)
		vmmproc_reap(vmm);
	vmmproc_why(vmm, why, why_bytes);
	sandbox_last_words(state, sb, why, why_bytes);
	return ret;
}

int sandbox_own(const struct state *state, const struct sandbox *sb, struct vmmproc *vmm)
{
	char path[PATH_MAX];
	int ret;

	sandbox_path(state, sb->id, "ctl", path);
	ret = vmmproc_own(vmm, path, clock_now_ns() + OWN_NS);
	if (ret == -EBUSY)
		log_err("sandbox %s: another process controls it", sb->id);
	else if (ret)
		log_err("%s: %s", path, strerror(-ret));
	return ret;
}

/** read_line() - byte by byte: what follows is the shim's. Return: 0, -EPIPE, -ETIMEDOUT,
 * -ECANCELED or -errno. */
static int read_line(int fd, char *line, size_t max, u64 deadline_ns, int stop_fd)
{
	struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLRDHUP}};
	size_t used = 0;

	while (used + 1 < max) {
		u64 now_ns = clock_now_ns();
		ssize_t n = recv(fd, line + used, 1, MSG_DONTWAIT);

		if (n == 0)
			return -EPIPE;
		if (n == 1 && line[used++] == '\n') {
			line[used] = '\0';
			return 0;
		}
		if (n == 1)
			continue;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		if (poll(fds, ARRAY_SIZE(fds), (int)((deadline_ns - now_ns) / 1000000 + 1)) < 0 &&
		    errno != EINTR)
			return -errno;
		if (fds[1].revents)
			return -ECANCELED;
	}
	return -EPROTO;
}

int sandbox_stream(const struct state *state, const struct sandbox *sb)
{
	return sandbox_stream_until(state, sb, clock_now_ns() + CONNECT_NS, -1);
}

int sandbox_stream_until(const struct state *state, const struct sandbox *sb, u64 deadline_ns,
			 int stop_fd)
{
	char path[PATH_MAX], line[40];
	int fd, n, ret;

	sandbox_path(state, sb->id, "vsock", path);
	fd = usock_connect(path, SOCK_STREAM);
	if (fd < 0) {
		log_err("%s: %s", path, strerror(-fd));
		return fd;
	}
	n = snprintf(line, sizeof(line), "CONNECT %u\n", SHIM_PORT);
	ret = send(fd, line, (size_t)n, MSG_NOSIGNAL) == n ? 0 : -EPIPE;
	if (!ret)
		ret = read_line(fd, line, sizeof(line), deadline_ns, stop_fd);
	if (!ret && strncmp(line, "OK ", 3) != 0)
		ret = -EPROTO;
	if (!ret)
		return fd;
	log_err("sandbox %s: the guest takes no stream: %s", sb->id, strerror(-ret));
	fd_close(&fd);
	return ret;
}

static void channel_ended(const struct state *state, const struct sandbox *sb, struct vmmproc *vmm,
			  char *why, size_t why_bytes)
{
	struct pollfd pfd = {.fd = vmm->pid_fd, .events = POLLIN};
	char words[200] = "no word in its log";

	/* Its process follows its channel, and only then is the sandbox seen to have ended. */
	if (vmm->exit_seen) {
		vmmproc_why(vmm, why, why_bytes);
		return;
	}
	/* Now: the log goes with the sandbox. */
	sandbox_last_words(state, sb, words, sizeof(words));
	snprintf(why, why_bytes, "%s: %s",
		 poll(&pfd, 1, LAST_WORDS_MS) == 1 ? "its thaw-vmm has ended"
						   : "its thaw-vmm has closed the channel",
		 words);
}

/** Say why the snapshot is not there. Return: @ret. */
static int snapshot_failed(const struct state *state, const struct sandbox *sb, struct vmmproc *vmm,
			   int ret)
{
	char why[320] = "";

	if (ret == -ETIMEDOUT)
		snprintf(why, sizeof(why), "the guest does not make its checkpoint call");
	else if (ret == -EPIPE)
		channel_ended(state, sb, vmm, why, sizeof(why));
	else
		snprintf(why, sizeof(why), "%s", vmm->text[0] ? vmm->text : strerror(-ret));
	if (ret == -EPIPE)
		log_err("sandbox %s: snapshot: %s", sb->id, why);
	else
		log_err("sandbox %s: snapshot: %s; more may stand in %s/run/%s/log", sb->id, why,
			state->root, sb->id);
	return ret;
}

/** Have it written, into @stage or, without one, beside its parent. Return: 0 or -errno (logged).
 */
static int write_snapshot(const struct state *state, const struct sandbox *sb, struct vmmproc *vmm,
			  bool ends, const char *name, const struct sandbox_stage *stage,
			  u64 deadline_ns)
{
	const u32 flags = (ends ? CTL_SNAPSHOT_EXIT : 0) | (stage->uid ? CTL_SNAPSHOT_INTO : 0);
	int fd = sandbox_stage_fd(stage), ret;

	if (fd < 0)
		return fd;
	ret = vmmproc_snapshot(vmm, fd, name, flags, stage->base_inode, deadline_ns);
	fd_close(&fd);
	if (ret)
		return snapshot_failed(state, sb, vmm, ret);
	fd = vmmproc_connect(vmm, SHIM_PORT);
	ret = fd < 0 ? fd : exec_checkpoint_live(fd, deadline_ns);
	/* The shim makes the call when this stream has ended. */
	fd_close(&fd);
	if (ret == -EPROTO)
		log_err("sandbox %s: its template was built by an older thaw, whose guest can't be forked or paused: build the template again",
			sb->id);
	if (!ret)
		ret = vmmproc_wait(vmm, &vmm->snapshot_seen, deadline_ns, -1, NULL, NULL);
	if (!ret)
		ret = vmm->snapshot_error;
	return ret ? snapshot_failed(state, sb, vmm, ret) : 0;
}

int sandbox_snapshot(const struct state *state, const struct sandbox *sb, struct vmmproc *vmm,
		     bool ends, const char name[STATE_NAME_MAX + 1])
{
	const u64 deadline_ns = clock_now_ns() + CHECKPOINT_NS;
	struct sandbox_stage stage;
	int ret;

	ret = sandbox_stage_make(state, sb, vmm->pid, name, &stage);
	if (!ret)
		ret = write_snapshot(state, sb, vmm, ends, name, &stage, deadline_ns);
	if (!ret && stage.uid)
		ret = sandbox_stage_publish(state, &stage, ends);
	sandbox_stage_drop(&stage);
	return ret;
}
