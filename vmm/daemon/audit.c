// SPDX-License-Identifier: Apache-2.0
// The audit log: one line of JSON for each thing that somebody had done.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/daemon/http.h"
#include "vmm/daemon/notes_internal.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

static int open_log(const char *path)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);

	if (fd < 0) {
		fd = -errno;
		log_err("audit_log %s: %s", path, strerror(-fd));
	}
	return fd;
}

int audit_init(struct notes *notes)
{
	const char *path = notes->thawd->conf.audit_log;

	pthread_mutex_init(&notes->audit_lock, NULL);
	if (!*path)
		return 0;
	notes->audit_fd = open_log(path);
	return notes->audit_fd < 0 ? notes->audit_fd : 0;
}

void audit_reopen(struct notes *notes)
{
	const char *path = notes->thawd->conf.audit_log;
	int fd = *path ? open_log(path) : -1;

	if (fd < 0) /* the old one goes on */
		return;
	pthread_mutex_lock(&notes->audit_lock);
	fd_close(&notes->audit_fd);
	notes->audit_fd = fd;
	notes->audit_failed = false;
	pthread_mutex_unlock(&notes->audit_lock);
}

void audit_free(struct notes *notes)
{
	fd_close(&notes->audit_fd);
	pthread_mutex_destroy(&notes->audit_lock);
}

/** write_line() - by one write, so that lines of two thawds or of a copy never mix. */
static void write_line(struct notes *notes, char *line, size_t len)
{
	line[len] = '\n'; /* in place of the NUL */
	pthread_mutex_lock(&notes->audit_lock);
	if (notes->audit_fd >= 0 && write(notes->audit_fd, line, len + 1) != (ssize_t)(len + 1) &&
	    !notes->audit_failed) {
		notes->audit_failed = true;
		log_err("audit_log %s: can't be written: %s; nothing more is said about it until "
			"SIGHUP",
			notes->thawd->conf.audit_log, strerror(errno));
	}
	pthread_mutex_unlock(&notes->audit_lock);
}

void audit_write(struct thawd *thawd, const struct http_req *req, const char *action,
		 const char *sandbox, const char *result, json_t *details)
{
	char now[32], *line;
	json_t *entry;

	if (!*thawd->conf.audit_log) {
		json_decref(details);
		return;
	}
	notes_time(now);
	if (!details)
		details = json_object();
	entry = json_pack("{s:s, s:s, s:s, s:s?, s:s, s:o}", "time", now, "who",
			  req ? http_who(req) : "thawd", "action", action, "sandbox", sandbox,
			  "result", result, "details", details);
	line = entry ? json_dumps(entry, JSON_COMPACT) : NULL;
	json_decref(entry);
	if (line)
		write_line(thawd->notes, line, strlen(line));
	else
		log_err("audit_log: an entry for '%s' can't be made", action);
	free(line);
}
