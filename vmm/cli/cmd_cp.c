// SPDX-License-Identifier: Apache-2.0
// `thaw cp`: files into and out of a sandbox, by the rules of docker cp.
//
// Folders travel as a tar stream that tar(1) makes or takes here (cp_tar.c), links and single files
// too on the way in; a file on the way out is read as it is. Where things go is settled first, by a
// stat on both sides:
//
//   DEST is a folder, or ends in '/'   into it, under SRC's last name
//   SRC ends in "/."                   what is in it, into DEST
//   DEST is not there                  it gets that name; its parent must be there
//   SRC is a folder, DEST a file       an error
//
// So nothing but what was named is ever written, whatever a guest's archive says.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/cp_path.h"
#include "vmm/cli/cp_tar.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define CHUNK_BYTES 65536

struct cp_opts {
	bool archive, follow, json;
};

#define FIELD(field) offsetof(struct cp_opts, field)

static const struct optparse_spec cp_specs[] = {
	{"archive", 'a', NULL, optparse_flag, FIELD(archive),
	 "keep owners and all of the mode; else what comes is root's\nin the sandbox, and yours here",
	 NULL},
	{"follow-link", 'L', NULL, optparse_flag, FIELD(follow),
	 "copy what SRC is linked to, not the link", NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "what was done as JSON", NULL},
};

const struct optparse_command cp_command = {
	.usage = "thaw cp [OPTION]... NAME:SRC DEST|-\n       thaw cp [OPTION]... SRC|- NAME:DEST",
	.summary = "Copy files and folders into and out of a running sandbox.",
	.details =
		"'-' is a tar archive, on stdin for the folder NAME:DEST or on stdout. Paths in the "
		"sandbox begin at /.\nA DEST that is a folder gets SRC under its name; SRC ending in "
		"'/.' means what is in it.",
	.specs = cp_specs,
	.nspecs = ARRAY_SIZE(cp_specs),
	.positional_min = 2,
	.positional_max = 2,
	.positional_name = "SRC or DEST",
	.completes = "copy",
};

struct cp {
	struct cp_opts opts;
	struct client client;
	char box[CLIENT_NAME_BYTES];
	u64 bytes;
};

/** What is at @path in the sandbox. @out: NULL: nothing. Return: 0 or -errno (logged). */
static int guest_stat(struct cp *cp, const char *path, bool follow, json_t **out)
{
	struct client_target target;
	int ret;

	client_target_box(&target, cp->box, "files/stat");
	client_target_query(&target, "path", path);
	client_target_query(&target, "follow", follow ? "1" : "0");
	cp->client.quiet = true;
	ret = client_call(&cp->client, "GET", &target, NULL, out);
	cp->client.quiet = false;
	if (ret != -EREMOTEIO || cp->client.status == 404) {
		/* No such sandbox was ruled out before. */
		*out = ret ? NULL : *out;
		return ret == -EREMOTEIO ? 0 : ret;
	}
	return client_call(&cp->client, "GET", &target, NULL, out);
}

static bool is_type(const json_t *stat, const char *type)
{
	return stat && !strcmp(client_string(stat, "type"), type);
}

/** Send what comes from @fd as the body of a request whose head is sent. */
static int send_from(struct cp *cp, int fd)
{
	static u8 chunk[CHUNK_BYTES];
	ssize_t n;
	int ret;

	do {
		n = read(fd, chunk, sizeof(chunk));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			log_err("cp: reading: %s", strerror(errno));
			return -errno;
		}
		ret = n ? httpc_send_body(&cp->client.http, chunk, (size_t)n)
			: httpc_send_end(&cp->client.http);
		if (ret)
			return ret;
		cp->bytes += (u64)MAX(n, (ssize_t)0);
	} while (n);
	return 0;
}

/** A tar stream from @fd into the sandbox's folder @path. */
static int put_tar(struct cp *cp, const char *path, int fd)
{
	static const struct httpc_header headers[] = {{"Content-Type", "application/x-tar"},
						      {NULL, NULL}};
	struct httpc_response response;
	struct client_target target;
	char text[1024];
	ssize_t n;
	int ret;

	client_target_box(&target, cp->box, "files/tar");
	client_target_query(&target, "path", path);
	if (cp->opts.archive)
		client_target_query(&target, "privileged", "1");
	ret = client_begin(&cp->client, "PUT", &target, headers, -1);
	if (ret)
		return ret;
	ret = send_from(cp, fd);
	if (ret && ret != -EPIPE)
		return ret;
	/* Closed early: the answer says why. */
	ret = client_answer(&cp->client, false, &response);
	if (ret)
		return ret;
	httpc_response_free(&response);
	do {
		n = httpc_read(&cp->client.http, text, sizeof(text));
	} while (n > 0);
	return (int)n;
}

static int guest_mkdir(struct cp *cp, const char *path)
{
	int ret;

	cp->client.quiet = true;
	ret = verb_post(&cp->client, cp->box, "files/mkdir", json_pack("{s:s}", "path", path),
			NULL);
	cp->client.quiet = false;
	/* It is there: what is not a folder is told by what comes next. */
	if (ret == -EREMOTEIO && cp->client.status == 409)
		return 0;
	if (ret == -EREMOTEIO)
		ret = verb_post(&cp->client, cp->box, "files/mkdir",
				json_pack("{s:s}", "path", path), NULL);
	return ret;
}

/** @folder: made of @path by tar, or a single entry if @name is what it is to be called. */
static int send_tar(struct cp *cp, const char *source, const char *name, const char *guest_folder)
{
	struct cp_tar tar;
	int ret;

	ret = cp_tar_make(&tar, source, name, cp->opts.archive, cp->opts.follow);
	if (ret)
		return ret;
	ret = put_tar(cp, guest_folder, tar.fd);
	return cp_tar_end(&tar, ret);
}

static int copy_folder_in(struct cp *cp, const char *source, const char *dest, const json_t *there)
{
	char path[PATH_MAX], name[NAME_MAX + 1];
	int ret;

	cp_last_name(source, name);
	if (there && !is_type(there, "directory")) {
		log_err("cp: %s: is a folder, and %s:%s is none", source, cp->box, dest);
		return -ENOTDIR;
	}
	snprintf(path, sizeof(path), "%s", dest);
	if (there && name[0])
		ret = cp_join(dest, name, path);
	else
		ret = 0;
	if (!ret && (!there || name[0]))
		ret = guest_mkdir(cp, path);
	return ret ? ret : send_tar(cp, source, NULL, path);
}

static int copy_file_in(struct cp *cp, const char *source, const char *dest, const json_t *there)
{
	char parent[PATH_MAX], name[NAME_MAX + 1];
	char *slash;

	if (!there && cp_ends_in_slash(dest)) {
		log_err("cp: %s:%s: there is no such folder", cp->box, dest);
		return -ENOENT;
	}
	snprintf(parent, sizeof(parent), "%s", dest);
	if (is_type(there, "directory")) {
		cp_last_name(source, name);
	} else {
		cp_last_name(dest, name);
		slash = strrchr(parent, '/');
		slash[slash == parent ? 1 : 0] = '\0';
	}
	return send_tar(cp, source, name, parent);
}

static int copy_in(struct cp *cp, const char *source, const char *path)
{
	char dest[PATH_MAX];
	json_t *there = NULL;
	struct stat st;
	int ret;

	cp_guest_path(path, dest);
	if (!strcmp(source, "-"))
		return put_tar(cp, dest, STDIN_FILENO);
	if (cp->opts.follow || cp_ends_in_slash(source) ? stat(source, &st) : lstat(source, &st)) {
		log_err("cp: %s: %s", source, strerror(errno));
		return -errno;
	}
	ret = guest_stat(cp, dest, true, &there);
	if (!ret && S_ISDIR(st.st_mode))
		ret = copy_folder_in(cp, source, dest, there);
	else if (!ret)
		ret = copy_file_in(cp, source, dest, there);
	json_decref(there);
	return ret;
}

/** Begin to read @what ("files", "files/tar") of @path. */
static int begin_read(struct cp *cp, const char *what, const char *path)
{
	struct httpc_response response;
	struct client_target target;
	int ret;

	client_target_box(&target, cp->box, what);
	client_target_query(&target, "path", path);
	ret = client_begin(&cp->client, "GET", &target, NULL, 0);
	if (!ret)
		ret = client_answer(&cp->client, false, &response);
	if (!ret)
		httpc_response_free(&response);
	return ret;
}

/** The body to @fd. */
static int read_to(struct cp *cp, int fd)
{
	static u8 chunk[CHUNK_BYTES];
	ssize_t n;
	int ret;

	while ((n = httpc_read(&cp->client.http, chunk, sizeof(chunk))) > 0) {
		ret = fd_write_full(fd, chunk, (size_t)n);
		if (ret == -EPIPE)
			return ret;
		if (ret) {
			log_err("cp: writing: %s", strerror(-ret));
			return ret;
		}
		cp->bytes += (u64)n;
	}
	if (n < 0)
		log_err("cp: the sandbox's file broke off: %s", strerror((int)-n));
	return (int)n;
}

static int keep_owner(const struct cp *cp, int fd, const json_t *st)
{
	const mode_t mode = (mode_t)json_integer_value(json_object_get(st, "mode"));
	struct timespec times[2] = {
		{.tv_sec = verb_time(client_string(st, "atime"))},
		{.tv_sec = verb_time(client_string(st, "mtime"))},
	};
	int ret = 0;

	if (cp->opts.archive)
		ret = fchown(fd, (uid_t)json_integer_value(json_object_get(st, "uid")),
			     (gid_t)json_integer_value(json_object_get(st, "gid")));
	if (!ret)
		ret = fchmod(fd, cp->opts.archive ? mode & 07777 : mode & 0777);
	if (!ret)
		ret = futimens(fd, times);
	if (ret)
		log_err("cp: owner, mode or time: %s", strerror(errno));
	return ret ? -errno : 0;
}

/** Beside @dest first, so that nothing half stands there. */
static int copy_file_out(struct cp *cp, const char *source, const char *dest, const json_t *st)
{
	char tmp[PATH_MAX];
	int fd, ret;

	if (snprintf(tmp, sizeof(tmp), "%s.thaw-cp-%d", dest, (int)getpid()) >= PATH_MAX)
		return -ENAMETOOLONG;
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0) {
		log_err("cp: %s: %s", dest, strerror(errno));
		return -errno;
	}
	ret = begin_read(cp, "files", source);
	if (!ret)
		ret = read_to(cp, fd);
	if (!ret)
		ret = keep_owner(cp, fd, st);
	fd_close(&fd);
	if (!ret && rename(tmp, dest)) {
		ret = -errno;
		log_err("cp: %s: %s", dest, strerror(errno));
	}
	if (ret)
		unlink(tmp);
	return ret;
}

static int copy_link_out(const char *dest, const json_t *st)
{
	if (symlink(client_string(st, "target"), dest) == 0)
		return 0;
	log_err("cp: %s: %s", dest, strerror(errno));
	return -errno;
}

/** @named: whoever asked has named @dest itself. */
static int copy_folder_out(struct cp *cp, const char *source, const char *dest, bool named)
{
	struct cp_tar tar;
	struct stat st;
	int ret;

	if (mkdir(dest, 0777) && errno != EEXIST) {
		log_err("cp: %s: %s", dest, strerror(errno));
		return -errno;
	}
	/* It may be the sandbox's, copied before, and lead to anywhere. */
	if (!named && (lstat(dest, &st) || !S_ISDIR(st.st_mode))) {
		log_err("cp: %s: is a link, or no folder: remove it, or name where it leads", dest);
		return -ENOTDIR;
	}
	ret = begin_read(cp, "files/tar", source);
	if (!ret)
		ret = cp_tar_take(&tar, dest, cp->opts.archive);
	if (ret)
		return ret;
	ret = read_to(cp, tar.fd);
	return cp_tar_end(&tar, ret);
}

/** Where it goes to: DEST itself, or DEST/NAME. */
static int place_out(const char *source, const char *dest, bool is_folder, char out[PATH_MAX])
{
	char name[NAME_MAX + 1];
	struct stat st;

	cp_last_name(source, name);
	if (stat(dest, &st)) {
		if (errno != ENOENT || (cp_ends_in_slash(dest) && !is_folder)) {
			log_err("cp: %s: %s", dest, strerror(errno));
			return -errno;
		}
		return snprintf(out, PATH_MAX, "%s", dest) < PATH_MAX ? 0 : -ENAMETOOLONG;
	}
	if (is_folder && !S_ISDIR(st.st_mode)) {
		log_err("cp: %s: is no folder, and %s is one", dest, source);
		return -ENOTDIR;
	}
	if (S_ISDIR(st.st_mode) && name[0] && strcmp(name, "..") != 0)
		return cp_join(dest, name, out);
	return snprintf(out, PATH_MAX, "%s", dest) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

static int copy_out(struct cp *cp, const char *path, const char *dest)
{
	char source[PATH_MAX], place[PATH_MAX];
	json_t *st = NULL;
	int ret;

	cp_guest_path(path, source);
	if (!strcmp(dest, "-")) {
		ret = begin_read(cp, "files/tar", source);
		return ret ? ret : read_to(cp, STDOUT_FILENO);
	}
	ret = guest_stat(cp, source, cp->opts.follow || cp_ends_in_slash(source), &st);
	if (!ret && !st) {
		log_err("cp: %s:%s: No such file or directory", cp->box, source);
		ret = -ENOENT;
	}
	if (!ret)
		ret = place_out(source, dest, is_type(st, "directory"), place);
	if (ret)
		goto out;
	if (is_type(st, "directory"))
		ret = copy_folder_out(cp, source, place, !strcmp(place, dest));
	else if (is_type(st, "symlink"))
		ret = copy_link_out(place, st);
	else if (is_type(st, "file"))
		ret = copy_file_out(cp, source, place, st);
	else
		log_err("cp: %s:%s: is a %s, which can't be copied", cp->box, source,
			client_string(st, "type"));
	ret = ret || is_type(st, "directory") || is_type(st, "symlink") || is_type(st, "file")
		      ? ret
		      : -EINVAL;
out:
	json_decref(st);
	return ret;
}

static int print_done(const struct cp *cp)
{
	json_t *object;
	int ret;

	if (!cp->opts.json)
		return 0;
	object = json_pack("{s:s, s:I}", "sandbox", cp->box, "bytes", (json_int_t)cp->bytes);
	ret = object ? json_print(object) : -ENOMEM;
	json_decref(object);
	return ret;
}

int cp_main(struct cli *cli, int argc, char **argv)
{
	static struct cp cp;
	struct optparse_result result;
	char *from, *to;
	int status, ret;

	(void)cli;
	status = cli_parse(&cp_command, &cp.opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	from = cp_find_colon(result.positional[0]);
	to = cp_find_colon(result.positional[1]);
	if (!from == !to || (cp.opts.json && from && !strcmp(result.positional[1], "-"))) {
		log_err("cp: one of SRC and DEST is NAME:PATH, of a sandbox, and the other is "
			"here%s",
			!from == !to ? "" : "; with '-' stdout is the archive's");
		return CLI_USAGE;
	}
	if (client_want(&cp.client, "cp"))
		return CLI_FAILED;
	*(from ? from : to) = '\0';
	ret = client_find_name(&cp.client, result.positional[from ? 0 : 1], cp.box);
	if (!ret)
		ret = from ? copy_out(&cp, from + 1, result.positional[1])
			   : copy_in(&cp, result.positional[0], to + 1);
	if (!ret)
		ret = print_done(&cp);
	client_close(&cp.client);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}
