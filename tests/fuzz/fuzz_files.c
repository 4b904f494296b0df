// SPDX-License-Identifier: Apache-2.0
/*
 * Files from both sides: what a hostile guest says to thawd (an even first byte: frames of the shim
 * with frames of thaw-files in them), and what a hostile client sends to be unpacked in a guest (an
 * odd one: an archive).
 *
 * The archive meets the names' check and libarchive's alone: confine_to(), which would hold it in
 * any case, is not there. Beside the folder stands another one, in which nothing may change. So
 * that a find is a report and no damage, this process may not write outside of where it works.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/landlock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/files/files.h"
#include "guest/files/frame.h"
#include "vmm/daemon/files.h"
#include "vmm/daemon/notes.h"
#include "vmm/daemon/thawd.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

/* --- what thawd's side stands on -------------------------------------------------------------- */

static int guest_end = -1, client_fds[2] = {-1, -1};

int box_use(struct thawd *thawd, struct http_req *req, struct box_use *use)
{
	(void)thawd, (void)req, (void)use;
	return 0;
}

void box_use_end(struct thawd *thawd, struct box_use *use)
{
	(void)thawd, (void)use;
}

void box_limits(const struct box_use *use, struct box_limits *out)
{
	(void)use, (void)out;
}

int box_stream(struct thawd *thawd, const struct box_use *use, u64 deadline_ns, int stop_fd)
{
	int fds[2];

	(void)thawd, (void)use, (void)deadline_ns, (void)stop_fd;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds))
		return -errno;
	guest_end = fds[1];
	return fds[0];
}

int http_client_fd(const struct http_req *req)
{
	(void)req;
	return client_fds[0];
}

bool http_stopping(const struct http_req *req)
{
	(void)req;
	return false;
}

bool http_replied(const struct http_req *req)
{
	(void)req;
	return false;
}

const char *http_param(const struct http_req *req, const char *name)
{
	(void)req, (void)name;
	return "a";
}

void http_reply_error(struct http_req *req, unsigned int status, const char *code, json_t *details,
		      const char *fmt, ...)
{
	(void)req, (void)status, (void)code, (void)fmt;
	json_decref(details);
}

void http_reply_retry(struct http_req *req, unsigned int after_s, const char *fmt, ...)
{
	(void)req, (void)after_s, (void)fmt;
}

void audit_write(struct thawd *thawd, const struct http_req *req, const char *action,
		 const char *sandbox, const char *result, json_t *details)
{
	(void)thawd, (void)req, (void)action, (void)sandbox, (void)result;
	json_decref(details);
}

/* What is told of it is JSON, whatever it is. */
static void tell(json_t *json)
{
	char *text = json_dumps(json, JSON_COMPACT);

	if (!text)
		abort();
	free(text);
	json_decref(json);
}

static void check_message(const struct files_request *req, const struct files_message *m)
{
	u8 *again = malloc(FILES_FRAME_MAX_BYTES);
	size_t len = files_frame_put(again, m);
	struct files_message back;
	json_t *json = json_object();

	/* Written down again it says the same. */
	if (files_frame_get(again, len, &back) != (ssize_t)len || back.type != m->type ||
	    back.path.len_bytes != m->path.len_bytes || back.to.len_bytes != m->to.len_bytes)
		abort();
	free(again);
	if (m->type == FILES_ENTRY)
		tell(files_stat_json(&m->entry.stat, &m->to));
	if (m->type == FILES_ERROR)
		tell(files_fail_json(req, m));
	files_put_name(json, "path", m->path.bytes, m->path.len_bytes);
	tell(json);
}

static void from_guest(const u8 *data, size_t size)
{
	/* Its streams are sockets of this process: what it is told to wait for is there at once. */
	static struct thawd thawd = {.conf = {.guest_timeout_ms = 60000}};
	struct files_request req = {
		.thawd = &thawd, .operation = "read", .given = (char *)"/f", .path = (char *)"/f"};
	const char *const args[] = {"read", "/f", "0", "-", NULL};
	struct files_run *run = files_run_start(&req, args, true);
	size_t data_bytes = 0;
	struct files_item item;
	int err;

	if (!run)
		abort();
	if (size && send(guest_end, data, size, MSG_DONTWAIT) < 0)
		abort();
	shutdown(guest_end, SHUT_WR);
	for (;;) {
		err = files_run_next(run, -1, &item);
		if (err || item.kind == FILES_ITEM_END)
			break;
		if (item.kind == FILES_ITEM_MESSAGE)
			check_message(&req, &item.message);
		if (item.kind == FILES_ITEM_DATA)
			data_bytes += item.len_bytes;
		if (files_run_room(run) > SHIM_DATA_MAX_BYTES || data_bytes > size)
			abort();
	}
	if (err == -EAGAIN || err == -EPIPE)
		abort();
	files_run_reply(&req, run, err);
	files_run_end(run);
	close(guest_end);
}

/* --- what thaw-files' side stands on ---------------------------------------------------------- */

int confine_to(int fd)
{
	return fchdir(fd) ? -errno : 0;
}

void out_flush(void)
{
}

void out_opened(const struct stat *st, u64 offset_bytes, s64 length_bytes)
{
	(void)st, (void)offset_bytes, (void)length_bytes;
}

void out_note(int error, const char *path, const char *text)
{
	if (error < 0 || !path || !text)
		abort();
}

int out_done(u64 bytes, u64 count)
{
	(void)bytes, (void)count;
	return 0;
}

int out_fail(int error, const char *path, const char *to, const char *text)
{
	(void)to, (void)text;
	if (error <= 0 || !path)
		abort();
	return 1;
}

unsigned int arg_flags(const char *arg, const char *known)
{
	(void)known;
	return strcmp(arg, "-") != 0;
}

static char scratch[64] = "/dev/shm/fuzz-files.XXXXXX";

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st, (void)ftw;
	/* remove() would not try rmdir() where unlink() is not allowed. */
	if (kind == FTW_DP)
		rmdir(path);
	else
		unlink(path);
	return 0;
}

static void remove_scratch(void)
{
	if (!chdir("/"))
		nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void allow(int rules, const char *path, u64 rights)
{
	struct landlock_path_beneath_attr beneath = {.allowed_access = rights};

	beneath.parent_fd = open(path, O_PATH | O_CLOEXEC);
	if (beneath.parent_fd < 0)
		return;
	syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0);
	close(beneath.parent_fd);
}

/* Writing is for the scratch folder, and for what libFuzzer keeps. */
static void write_nowhere_else(void)
{
	struct landlock_ruleset_attr attr = {
		.handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
				     LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR |
				     LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SYM |
				     LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_CHAR |
				     LANDLOCK_ACCESS_FS_MAKE_BLOCK | (u64)1 << 13,
	};
	int rules = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);

	if (rules < 0)
		return;
	allow(rules, scratch, attr.handled_access_fs);
	allow(rules, "build/fuzz", attr.handled_access_fs);
	allow(rules, "tests/fuzz/corpus", attr.handled_access_fs);
	allow(rules, "/dev", LANDLOCK_ACCESS_FS_WRITE_FILE);
	allow(rules, "/dev/shm", LANDLOCK_ACCESS_FS_REMOVE_DIR); /* the scratch folder itself */
	if (!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		syscall(SYS_landlock_restrict_self, rules, 0);
	close(rules);
}

static int top = -1, outside = -1, target = -1;
static struct stat outside_was, secret_was;

static int open_folder(const char *name)
{
	if (mkdirat(top, name, 0700))
		abort();
	return openat(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void start(void)
{
	if (!mkdtemp(scratch) || pipe(client_fds))
		abort();
	write_nowhere_else();
	top = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	outside = open_folder("outside");
	close(openat(outside, "secret", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	fstat(outside, &outside_was);
	fstatat(outside, "secret", &secret_was, 0);
	atexit(remove_scratch);
}

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_mode == b->st_mode && a->st_uid == b->st_uid && a->st_size == b->st_size &&
	       a->st_nlink == b->st_nlink && a->st_ino == b->st_ino &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void from_client(const u8 *data, size_t size)
{
	int home = open(".", O_PATH | O_CLOEXEC), archive = memfd_create("archive", MFD_CLOEXEC);
	char path[80], *args[] = {path, (char *)"-", NULL};
	struct stat now;

	target = open_folder("target");
	if (symlinkat("../outside", target, "link") ||
	    symlinkat("../outside/secret", target, "file"))
		abort();
	if (write(archive, data, size) != (ssize_t)size || lseek(archive, 0, SEEK_SET))
		abort();
	dup2(archive, STDIN_FILENO);
	close(archive);
	snprintf(path, sizeof(path), "%s/target", scratch);
	op_tar_in(args);
	if (fchdir(home))
		abort();
	close(home);
	fstat(outside, &now);
	if (!same(&now, &outside_was))
		abort();
	fstatat(outside, "secret", &now, 0);
	if (!same(&now, &secret_was))
		abort();
	close(target);
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	if (top < 0)
		start();
	if (!size)
		return 0;
	if (data[0] & 1)
		from_client(data + 1, size - 1);
	else
		from_guest(data + 1, size - 1);
	return 0;
}
