/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a sandbox: what the endpoints below /v1/sandboxes/{name}/files share.
 *
 * A request is one run of thaw-files in the guest (guest/files/proto.h), an exec of its own that is
 * killed when its stream is closed. Nothing is buffered beyond one frame each way, so the slowest
 * of client, thawd and guest sets the pace of all.
 */
#ifndef THAW_DAEMON_FILES_H
#define THAW_DAEMON_FILES_H

#include <jansson.h>

#include "guest/files/frame.h"
#include "guest/shim/proto.h"
#include "vmm/daemon/box.h"
#include "vmm/daemon/http.h"
#include "vmm/util/types.h"

#define FILES_ARGS_MAX	5
#define FILES_WHY_BYTES 256
/* A path that is longer can't be opened; it is not even sent. */
#define FILES_PATH_MAX_BYTES 32768u

/** Who asks for what: filled from a request. */
struct files_request {
	struct thawd *thawd;
	struct http_req *http;
	const char *operation; /* for errors and the audit log: "read" */
	json_t *body;	       /* of a POST; owned */
	u32 uid, gid;
	char *given, *path;	  /* as given, and absolute; owned */
	char *given_to, *path_to; /* rename; owned */
};

/**
 * files_request_query() - path, cwd and user of the query string.
 * files_request_body() - the POST's body, its cwd and user; @fields: all it may have.
 * files_request_path() - a path of the body ("path", or its bytes by "path_b64") into @given and,
 *	absolute, @path, which the caller frees.
 * Return: 0, or -errno: answered with 400 or a file error. files_request_free() in any case.
 */
int __must_check files_request_query(struct thawd *thawd, struct http_req *http,
				     const char *operation, struct files_request *out);
int __must_check files_request_body(struct thawd *thawd, struct http_req *http,
				    const char *operation, const char *const *fields,
				    struct files_request *out);
int __must_check files_request_path(struct files_request *req, const char *field, char **given,
				    char **path);
void files_request_free(struct files_request *req);

/** files_mode_text() - permission bits as thaw-files takes them. @text: octal digits; @value: or a
 * field of a body. Return: 0, or -EINVAL: answered. */
int __must_check files_mode_text(struct http_req *http, const char *text, char out[8]);
int __must_check files_mode_json(struct http_req *http, const json_t *value, char out[8]);

/* One run of thaw-files. */

enum files_item_kind {
	FILES_ITEM_DATA,    /* data: bytes of stdout */
	FILES_ITEM_MESSAGE, /* message: a frame */
	FILES_ITEM_ROOM,    /* files_run_room() has grown */
	FILES_ITEM_END,	    /* it has ended well behind its last frame, which was DONE or ERROR */
};

struct files_item {
	enum files_item_kind kind;
	const u8 *data; /* valid until the next call */
	size_t len_bytes;
	struct files_message message; /* strings: as data */
};

struct files_run;

/**
 * files_run_start() - run thaw-files with @args (operation first, NULL-terminated) in the request's
 * box, which is in use until files_run_end().
 * Return: it, or NULL: answered.
 */
struct files_run *files_run_start(const struct files_request *req, const char *const *args,
				  bool with_stdin);
/** files_run_end() - what still runs is killed. Safe with NULL. */
void files_run_end(struct files_run *run);

/**
 * files_run_next() - the next thing it says. The first is a message, whichever pipe is faster.
 * @wait_ms: -1: wait for it; else at most so long.
 * Return: 0; -EAGAIN: nothing in that time; -EPIPE: the client left, or thawd ends and nothing
 * comes; -EIO: the guest: gone, out of line, or it could not start it (files_run_why()).
 */
int __must_check files_run_next(struct files_run *run, int wait_ms, struct files_item *out);
/** files_run_write() - bytes for its stdin, as it takes them; 0 bytes: its end. Return: 0; -EPIPE:
 * as above; -EIO: it takes no more; files_run_next() says why. */
int __must_check files_run_write(struct files_run *run, const void *data, size_t len_bytes);
/** files_run_fd() - readable when files_run_next() has more to say, once that said -EAGAIN. */
int files_run_fd(const struct files_run *run);
/** files_run_room() - bytes that files_run_write() can take without waiting for credit, after which
 * files_run_next() must be called. */
size_t files_run_room(const struct files_run *run);
/** files_run_reply() - answer for what @err (of the two above) means. */
void files_run_reply(const struct files_request *req, const struct files_run *run, int err);
/** files_run_code() - the error code that goes into the audit log for @err. */
const char *files_run_code(int err);

/* files_text.c: errors and names as JSON. */

/** files_errno_name() - "ENOENT"; "UNKNOWN" for numbers that Linux does not have. */
const char *files_errno_name(u32 error);
/** files_errno_status() - HTTP status of a file_error. */
unsigned int files_errno_status(u32 error);
/** files_put_name() - @name into @object as @field, or base64 as @field_b64 when it is not UTF-8.
 */
void files_put_name(json_t *object, const char *field, const char *bytes, size_t len_bytes);
/** files_stat_json() - attributes; the target of a link when it has one. */
json_t *files_stat_json(const struct files_stat *st, const struct files_str *target);
/** files_fail_reply() - 4xx, 5xx `file_error`. @path: NULL: the request's. */
void files_fail_reply(const struct files_request *req, const struct files_message *error);
void files_fail_local(const struct files_request *req, u32 error, const char *text);
/** files_fail_json() - the same as an object, for a stream that has begun. */
json_t *files_fail_json(const struct files_request *req, const struct files_message *error);
/** files_audit() - a change, or the attempt. @result: "ok", or an error's name or code. */
void files_audit(const struct files_request *req, const char *result);

/**
 * files_simple() - run @args, which say one thing: OPENED or ENTRY into *@out (its strings are the
 * caller's to free with files_simple_free()), or nothing.
 * Return: 0, or -errno: answered.
 */
struct files_answer {
	bool has_entry;
	struct files_stat stat;
	char *target;
	size_t target_bytes;
	u64 count;
};
int __must_check files_simple(const struct files_request *req, const char *const *args,
			      struct files_answer *out);

/* Endpoints with files of their own. */
void files_serve_read(struct thawd *thawd, struct http_req *http);
void files_serve_write(struct thawd *thawd, struct http_req *http);
void files_serve_list(struct thawd *thawd, struct http_req *http);
void files_serve_tar_out(struct thawd *thawd, struct http_req *http);
void files_serve_tar_in(struct thawd *thawd, struct http_req *http);
void files_serve_watch(struct thawd *thawd, struct http_req *http);

#endif
