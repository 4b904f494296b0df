// SPDX-License-Identifier: Apache-2.0
// Errors, names and attributes of files as JSON.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "vmm/daemon/exec_text.h"
#include "vmm/daemon/files.h"
#include "vmm/daemon/notes.h"

/* Linux's, as x86-64 numbers them. */
#define ERRNO(name) [name] = #name
static const char *const errno_names[] = {
	ERRNO(EPERM),	    ERRNO(ENOENT),	 ERRNO(ESRCH),	     ERRNO(EINTR),
	ERRNO(EIO),	    ERRNO(ENXIO),	 ERRNO(E2BIG),	     ERRNO(ENOEXEC),
	ERRNO(EBADF),	    ERRNO(ECHILD),	 ERRNO(EAGAIN),	     ERRNO(ENOMEM),
	ERRNO(EACCES),	    ERRNO(EFAULT),	 ERRNO(ENOTBLK),     ERRNO(EBUSY),
	ERRNO(EEXIST),	    ERRNO(EXDEV),	 ERRNO(ENODEV),	     ERRNO(ENOTDIR),
	ERRNO(EISDIR),	    ERRNO(EINVAL),	 ERRNO(ENFILE),	     ERRNO(EMFILE),
	ERRNO(ENOTTY),	    ERRNO(ETXTBSY),	 ERRNO(EFBIG),	     ERRNO(ENOSPC),
	ERRNO(ESPIPE),	    ERRNO(EROFS),	 ERRNO(EMLINK),	     ERRNO(EPIPE),
	ERRNO(EDOM),	    ERRNO(ERANGE),	 ERRNO(EDEADLK),     ERRNO(ENAMETOOLONG),
	ERRNO(ENOLCK),	    ERRNO(ENOSYS),	 ERRNO(ENOTEMPTY),   ERRNO(ELOOP),
	ERRNO(ENODATA),	    ERRNO(ETIME),	 ERRNO(ENOLINK),     ERRNO(EPROTO),
	ERRNO(EBADMSG),	    ERRNO(EOVERFLOW),	 ERRNO(EILSEQ),	     ERRNO(EUSERS),
	ERRNO(EOPNOTSUPP),  ERRNO(ENOBUFS),	 ERRNO(ETIMEDOUT),   ERRNO(ECONNREFUSED),
	ERRNO(EHOSTDOWN),   ERRNO(EALREADY),	 ERRNO(EINPROGRESS), ERRNO(ESTALE),
	ERRNO(EUCLEAN),	    ERRNO(EREMOTEIO),	 ERRNO(EDQUOT),	     ERRNO(ENOMEDIUM),
	ERRNO(EMEDIUMTYPE), ERRNO(ECANCELED),	 ERRNO(ENOKEY),	     ERRNO(EKEYEXPIRED),
	ERRNO(EKEYREVOKED), ERRNO(EKEYREJECTED), ERRNO(EOWNERDEAD),  ERRNO(ENOTRECOVERABLE),
	ERRNO(EHWPOISON),
};

const char *files_errno_name(u32 error)
{
	if (error >= ARRAY_SIZE(errno_names) || !errno_names[error])
		return "EUNKNOWN";
	return errno_names[error];
}

unsigned int files_errno_status(u32 error)
{
	switch (error) {
	case ENOENT:
		return 404;
	case EACCES:
	case EPERM:
	case EROFS:
		return 403;
	case EEXIST:
	case ENOTEMPTY:
	case EISDIR:
	case ENOTDIR:
	case EBUSY:
	case EXDEV:
	case ETXTBSY:
		return 409;
	case ENOSPC:
	case EDQUOT:
		return 507;
	case EFBIG:
		return 413;
	case EINVAL:
	case ENAMETOOLONG:
	case ELOOP:
	case EILSEQ:
		return 400;
	default:
		return 500;
	}
}

void files_put_name(json_t *object, const char *field, const char *bytes, size_t len_bytes)
{
	/* jansson takes valid UTF-8 alone. */
	json_t *text = json_stringn(bytes ? bytes : "", len_bytes);
	char name[64], *encoded;

	if (text) {
		json_object_set_new(object, field, text);
		return;
	}
	snprintf(name, sizeof(name), "%s_b64", field);
	encoded = exec_base64(bytes, len_bytes);
	json_object_set_new(object, name, json_string(encoded ? encoded : ""));
	free(encoded);
}

/* RFC 3339 has four digits for a year; what is outside is as near as can be. */
static json_t *time_json(s64 seconds, u32 ns)
{
	static const s64 first = -62167219200, last = 253402300799; /* years 0 and 9999 */
	time_t at = (time_t)MIN(MAX(seconds, first), last);
	char text[64];
	struct tm tm;

	gmtime_r(&at, &tm);
	snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%09uZ", tm.tm_year + 1900,
		 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, ns);
	return json_string(text);
}

static const char *type_name(u32 mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return "file";
	case S_IFDIR:
		return "directory";
	case S_IFLNK:
		return "symlink";
	case S_IFBLK:
		return "block";
	case S_IFCHR:
		return "char";
	case S_IFIFO:
		return "fifo";
	default:
		return "socket";
	}
}

json_t *files_stat_json(const struct files_stat *st, const struct files_str *target)
{
	json_t *out = json_pack("{s:s,s:I,s:i,s:I,s:I}", "type", type_name(st->mode), "size_bytes",
				(json_int_t)MIN(st->size_bytes, (u64)INT64_MAX), "mode",
				(int)(st->mode & 07777), "uid", (json_int_t)st->uid, "gid",
				(json_int_t)st->gid);

	if (!out)
		return NULL;
	json_object_set_new(out, "atime", time_json(st->atime_s, st->atime_ns));
	json_object_set_new(out, "mtime", time_json(st->mtime_s, st->mtime_ns));
	json_object_set_new(out, "ctime", time_json(st->ctime_s, st->ctime_ns));
	if (target && S_ISLNK(st->mode))
		files_put_name(out, "target", target->bytes, target->len_bytes);
	return out;
}

/* The path that an error is about, as the client knows it. */
static struct files_str client_path(const struct files_request *req, const struct files_str *path)
{
	const char *given = req->given ? req->given : "";

	if (!path->len_bytes || (req->path && path->len_bytes == strlen(req->path) &&
				 !memcmp(path->bytes, req->path, path->len_bytes)))
		return (struct files_str){.bytes = given, .len_bytes = strlen(given)};
	return *path;
}

static json_t *details(const struct files_request *req, const struct files_message *m)
{
	json_t *out = json_pack("{s:s,s:s}", "errno", files_errno_name(m->error.error), "operation",
				req->operation);
	struct files_str path = client_path(req, &m->path);

	files_put_name(out, "path", path.bytes, path.len_bytes);
	if (req->given_to)
		files_put_name(out, "destination", req->given_to, strlen(req->given_to));
	return out;
}

/* Bytes of the guest's choice, for a message: a name may hold anything. */
static void printable(const char *bytes, size_t len_bytes, char *out, size_t room)
{
	size_t n = bytes ? MIN(len_bytes, room - 1) : 0;
	json_t *ok = NULL;

	/* Cut between two characters. */
	while (n && n < len_bytes && ((u8)bytes[n] & 0xc0) == 0x80)
		n--;
	ok = json_stringn(bytes ? bytes : "", n);
	for (size_t i = 0; i < n; i++) {
		u8 c = (u8)bytes[i];

		out[i] = (char)(c < ' ' || c == 0x7f || (!ok && c > 0x7f) ? '?' : c);
	}
	out[n] = '\0';
	json_decref(ok);
}

static void message(const struct files_request *req, const struct files_message *m, char *out,
		    size_t room)
{
	char path[256], to[256], text[256];
	struct files_str about = client_path(req, &m->path);

	printable(about.bytes, about.len_bytes, path, sizeof(path));
	printable(m->text.bytes, m->text.len_bytes, text, sizeof(text));
	if (req->given_to) {
		printable(req->given_to, strlen(req->given_to), to, sizeof(to));
		snprintf(out, room, "%s '%s' to '%s': %s", req->operation, path, to, text);
	} else {
		snprintf(out, room, "%s '%s': %s", req->operation, path, text);
	}
}

void files_fail_reply(const struct files_request *req, const struct files_message *m)
{
	char text[1024];

	message(req, m, text, sizeof(text));
	http_reply_error(req->http, files_errno_status(m->error.error), "file_error",
			 details(req, m), "%s", text);
}

void files_fail_local(const struct files_request *req, u32 error, const char *text)
{
	struct files_message m = {.type = FILES_ERROR, .error.error = error};

	m.text = (struct files_str){.bytes = text, .len_bytes = strlen(text)};
	files_fail_reply(req, &m);
}

json_t *files_fail_json(const struct files_request *req, const struct files_message *m)
{
	char text[1024];

	message(req, m, text, sizeof(text));
	return json_pack("{s:{s:s,s:s,s:o}}", "error", "code", "file_error", "message", text,
			 "details", details(req, m));
}

void files_audit(const struct files_request *req, const char *result)
{
	json_t *about = json_object();
	char action[32];

	files_put_name(about, "path", req->given ? req->given : "",
		       req->given ? strlen(req->given) : 0);
	if (req->given_to)
		files_put_name(about, "destination", req->given_to, strlen(req->given_to));
	json_object_set_new(about, "user", json_sprintf("%u:%u", req->uid, req->gid));
	snprintf(action, sizeof(action), "files.%s", req->operation);
	audit_write(req->thawd, req->http, action, http_param(req->http, "name"), result, about);
}
