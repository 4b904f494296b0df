// SPDX-License-Identifier: Apache-2.0
// Files of a sandbox: the routes, and the operations that are one question and one answer.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "vmm/daemon/files.h"

/* What ended a run before its last frame; @code: for the audit log. */
static int take_message(struct files_answer *out, const struct files_message *m)
{
	if (m->type == FILES_ENTRY && !out->has_entry) {
		out->has_entry = true;
		out->stat = m->entry.stat;
		out->target = malloc(m->to.len_bytes + 1);
		if (!out->target)
			return -ENOMEM;
		memcpy(out->target, m->to.bytes, m->to.len_bytes);
		out->target_bytes = m->to.len_bytes;
	} else if (m->type == FILES_DONE) {
		out->count = m->done.count;
	}
	return 0;
}

int files_simple(const struct files_request *req, const char *const *args, struct files_answer *out)
{
	struct files_run *run = files_run_start(req, args, false);
	struct files_item item;
	int err = 0;

	*out = (struct files_answer){0};
	if (!run)
		return -EIO;
	while (!err) {
		err = files_run_next(run, -1, &item);
		if (err || item.kind == FILES_ITEM_END)
			break;
		if (item.kind != FILES_ITEM_MESSAGE)
			continue;
		if (item.message.type == FILES_ERROR) {
			files_audit(req, files_errno_name(item.message.error.error));
			files_fail_reply(req, &item.message);
			files_run_end(run);
			return -EIO;
		}
		if (take_message(out, &item.message)) {
			http_reply_error(req->http, 500, "internal", NULL, "out of memory");
			files_run_end(run);
			return -ENOMEM;
		}
	}
	if (err) {
		files_audit(req, files_run_code(err));
		files_run_reply(req, run, err);
	}
	files_run_end(run);
	return err;
}

/* A change: 204, or the error. */
static void change(const struct files_request *req, const char *const *args)
{
	struct files_answer answer;

	if (!files_simple(req, args, &answer)) {
		files_audit(req, "ok");
		http_reply_empty(req->http, 204);
	}
	free(answer.target);
}

static void serve_stat(struct thawd *thawd, struct http_req *http)
{
	struct files_answer answer = {0};
	struct files_request req;
	struct files_str target;
	u64 follow = 1;

	if (files_request_query(thawd, http, "stat", &req) ||
	    http_query_u64(http, "follow", 0, 1, 1, &follow))
		goto out;
	req.operation = follow ? "stat" : "lstat";
	if (files_simple(&req, (const char *[]){req.operation, req.path, NULL}, &answer))
		goto out;
	target = (struct files_str){.bytes = answer.target, .len_bytes = answer.target_bytes};
	if (answer.has_entry)
		http_reply_json(http, 200, files_stat_json(&answer.stat, &target));
	else
		http_reply_error(http, 502, "guest_lost", NULL,
				 "sandbox %s, stat: an answer of another kind",
				 http_param(http, "name"));
out:
	free(answer.target);
	files_request_free(&req);
}

/* A boolean of the body. Return: 0, 1; -EINVAL: answered. */
static int flag(const struct files_request *req, const char *field, bool otherwise)
{
	const json_t *value = json_object_get(req->body, field);

	if (!value)
		return otherwise;
	if (json_is_boolean(value))
		return json_is_true(value);
	http_reply_error(req->http, 400, "invalid_request", NULL, "%s must be true or false",
			 field);
	return -EINVAL;
}

static void serve_mkdir(struct thawd *thawd, struct http_req *http)
{
	static const char *const fields[] = {"path", "path_b64", "recursive", "mode",
					     "cwd",  "user",	 NULL};
	struct files_request req;
	char mode[8] = "755";
	const json_t *value;
	int recursive;

	if (files_request_body(thawd, http, "mkdir", fields, &req) ||
	    files_request_path(&req, "path", &req.given, &req.path))
		goto out;
	recursive = flag(&req, "recursive", false);
	value = json_object_get(req.body, "mode");
	if (recursive < 0 || (value && files_mode_json(http, value, mode)))
		goto out;
	change(&req, (const char *[]){"mkdir", req.path, mode, recursive ? "r" : "-", NULL});
out:
	files_request_free(&req);
}

static void serve_rename(struct thawd *thawd, struct http_req *http)
{
	static const char *const fields[] = {"from", "from_b64", "to", "to_b64",
					     "cwd",  "user",	 NULL};
	struct files_request req;

	if (!files_request_body(thawd, http, "rename", fields, &req) &&
	    !files_request_path(&req, "from", &req.given, &req.path) &&
	    !files_request_path(&req, "to", &req.given_to, &req.path_to))
		change(&req, (const char *[]){"rename", req.path, req.path_to, NULL});
	files_request_free(&req);
}

static void serve_remove(struct thawd *thawd, struct http_req *http)
{
	static const char *const fields[] = {"path", "path_b64", "recursive", "force",
					     "cwd",  "user",	 NULL};
	static const char *const flags[] = {"-", "r", "f", "rf"};
	struct files_request req;
	int recursive, force;

	if (files_request_body(thawd, http, "remove", fields, &req) ||
	    files_request_path(&req, "path", &req.given, &req.path))
		goto out;
	recursive = flag(&req, "recursive", false);
	force = recursive < 0 ? -1 : flag(&req, "force", false);
	if (force >= 0)
		change(&req,
		       (const char *[]){"remove", req.path, flags[recursive + 2 * force], NULL});
out:
	files_request_free(&req);
}

static void serve_symlink(struct thawd *thawd, struct http_req *http)
{
	static const char *const fields[] = {"target", "target_b64", "path", "path_b64",
					     "cwd",    "user",	     NULL};
	struct files_request req;
	char *target = NULL, *ignored = NULL;

	/* A target is not below cwd: it stays as it is. */
	if (!files_request_body(thawd, http, "symlink", fields, &req) &&
	    !files_request_path(&req, "path", &req.given, &req.path) &&
	    !files_request_path(&req, "target", &target, &ignored))
		change(&req, (const char *[]){"symlink", target, req.path, NULL});
	free(target);
	free(ignored);
	files_request_free(&req);
}

static void serve_chmod(struct thawd *thawd, struct http_req *http)
{
	static const char *const fields[] = {"path", "path_b64", "mode", "cwd", "user", NULL};
	struct files_request req;
	char mode[8];

	if (!files_request_body(thawd, http, "chmod", fields, &req) &&
	    !files_request_path(&req, "path", &req.given, &req.path) &&
	    !files_mode_json(http, json_object_get(req.body, "mode"), mode))
		change(&req, (const char *[]){"chmod", req.path, mode, NULL});
	files_request_free(&req);
}

/* An id of the body, "-" when it is not given. Return: 0, or -EINVAL: answered. */
static int id_field(const struct files_request *req, const char *field, char out[16])
{
	const json_t *value = json_object_get(req->body, field);
	json_int_t id = json_integer_value(value);

	snprintf(out, 16, "-");
	if (!value)
		return 0;
	if (!json_is_integer(value) || id < 0 || id >= (json_int_t)UINT32_MAX) {
		http_reply_error(req->http, 400, "invalid_request", NULL,
				 "%s must be a number from 0 to 4294967294", field);
		return -EINVAL;
	}
	snprintf(out, 16, "%u", (u32)id);
	return 0;
}

static void serve_chown(struct thawd *thawd, struct http_req *http)
{
	static const char *const fields[] = {"path",   "path_b64", "uid",  "gid",
					     "follow", "cwd",	   "user", NULL};
	struct files_request req;
	char uid[16], gid[16];
	int follow;

	if (files_request_body(thawd, http, "chown", fields, &req) ||
	    files_request_path(&req, "path", &req.given, &req.path) || id_field(&req, "uid", uid) ||
	    id_field(&req, "gid", gid))
		goto out;
	follow = flag(&req, "follow", true);
	if (follow >= 0)
		change(&req,
		       (const char *[]){"chown", req.path, uid, gid, follow ? "-" : "n", NULL});
out:
	files_request_free(&req);
}

static const char *const plain_query[] = {"path", "cwd", "user", NULL};
static const char *const write_query[] = {"path", "cwd", "user", "mode", "append", NULL};
static const char *const stat_query[] = {"path", "cwd", "user", "follow", NULL};
static const char *const list_query[] = {"path", "cwd", "user", "depth", NULL};
static const char *const tar_query[] = {"path", "cwd", "user", "privileged", NULL};
static const char *const watch_query[] = {"path", "cwd", "user", "recursive", NULL};

#define FILES "/v1/sandboxes/{name}/files"

const struct http_route api_file_routes[] = {
	{HTTP_GET, FILES, plain_query, 0, files_serve_read},
	{HTTP_PUT, FILES, write_query, 0, files_serve_write},
	{HTTP_GET, FILES "/stat", stat_query, 0, serve_stat},
	{HTTP_GET, FILES "/list", list_query, 0, files_serve_list},
	{HTTP_POST, FILES "/mkdir", NULL, 0, serve_mkdir},
	{HTTP_POST, FILES "/rename", NULL, 0, serve_rename},
	{HTTP_POST, FILES "/remove", NULL, 0, serve_remove},
	{HTTP_POST, FILES "/symlink", NULL, 0, serve_symlink},
	{HTTP_POST, FILES "/chmod", NULL, 0, serve_chmod},
	{HTTP_POST, FILES "/chown", NULL, 0, serve_chown},
	{HTTP_GET, FILES "/tar", plain_query, 0, files_serve_tar_out},
	{HTTP_PUT, FILES "/tar", tar_query, 0, files_serve_tar_in},
	{HTTP_GET, FILES "/watch", watch_query, 0, files_serve_watch},
	{0, NULL, NULL, 0, NULL},
};
