// SPDX-License-Identifier: Apache-2.0
/*
 * Watching files, by inotify.
 *
 * A folder's watch is set before the folder is looked through, and everything that is found in one
 * that came later is told as created. So nothing that happens in a new folder is missed; what was
 * made between the two is told twice. FILES_OPENED says that all is watched.
 *
 * A move is two events that the kernel queues one behind the other. When the second follows, it is
 * told as a move; else the first is a deletion and the second, should it come, a creation: watches
 * are then set anew.
 *
 * What happens while the reader does not read waits in the kernel's queue, which is bounded. When
 * it runs over, all watches are made anew from what is there now, and then FILES_OVERFLOW is told:
 * who lists the files after that and goes on reading has missed nothing.
 *
 * No fd of the watched folder is kept: the kernel would not tell that the folder is removed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "guest/files/files.h"
#include "guest/files/watch_tree.h"

#define WATCHED                                                                        \
	(IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | \
	 IN_DELETE_SELF | IN_MOVE_SELF | IN_EXCL_UNLINK)
#define FOR_FOLDERS (WATCHED | IN_ONLYDIR)

/* The second half of a move is there at once, unless the queue was full just between. */
#define PAIR_WAIT_MS 10

struct watch {
	struct watch_tree tree;
	const char *path; /* absolute */
	bool recursive, ended;
	/* The first half of a move. */
	bool pending, pending_folder;
	u32 pending_cookie;
	int pending_wd;
	char pending_name[NAME_MAX + 1];
	char from[FILES_NAME_MAX_BYTES + 1], to[FILES_NAME_MAX_BYTES + 1];
};

static void tell(struct watch *w, enum files_event_kind kind, bool folder,
		 const struct watch_node *node, const char *name)
{
	struct files_message msg = {.type = FILES_EVENT};

	msg.event.kind = kind;
	msg.event.folder = folder;
	msg.path.len_bytes = watch_tree_path(node, name, w->from);
	msg.path.bytes = w->from;
	out_message(&msg);
}

static bool has_gone(int error)
{
	return error == ENOENT || error == ENOTDIR || error == ELOOP;
}

static int add_folder(struct watch *w, struct watch_node *parent, int parent_fd, const char *name,
		      bool report);

static int add_entry(struct watch *w, struct watch_node *node, int fd, const struct dirent *entry,
		     bool report)
{
	bool folder = entry->d_type == DT_DIR;
	struct stat st;

	if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
		return 0;
	if (entry->d_type == DT_UNKNOWN)
		folder = !fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
			 S_ISDIR(st.st_mode);
	if (report)
		tell(w, FILES_CREATED, folder, node, entry->d_name);
	return folder ? add_folder(w, node, fd, entry->d_name, report) : 0;
}

/* Takes @fd. */
static int scan(struct watch *w, struct watch_node *node, int fd, bool report)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;
	int err = 0;

	if (!dir) {
		err = -errno;
		close(fd);
		return err;
	}
	while (!err) {
		errno = 0;
		entry = readdir(dir);
		if (!entry) {
			err = has_gone(errno) ? 0 : -errno;
			break;
		}
		err = add_entry(w, node, fd, entry, report);
	}
	closedir(dir);
	return err;
}

/* By what is open, not by a path that may have become another's. */
static int set_watch(struct watch *w, int fd)
{
	int wd;

	if (fchdir(fd))
		return -errno;
	wd = inotify_add_watch(w->tree.inotify, ".", FOR_FOLDERS);
	return wd < 0 ? -errno : wd;
}

static int add_folder(struct watch *w, struct watch_node *parent, int parent_fd, const char *name,
		      bool report)
{
	struct watch_node *node;
	int fd, wd;

	fd = openat(parent_fd, name,
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC | (parent ? O_NOFOLLOW : 0));
	wd = fd < 0 ? -errno : set_watch(w, fd);
	if (wd < 0) {
		if (fd >= 0)
			close(fd);
		if (parent && has_gone(-wd))
			return 0;
		if (!parent || wd != -EACCES)
			return wd;
		watch_tree_path(parent, name, w->from);
		out_note(EACCES, w->from, "this folder can't be watched");
		return 0;
	}
	node = watch_tree_put(&w->tree, wd, parent, name);
	if (!node || !w->recursive) {
		close(fd);
		return node ? 0 : -ENOMEM;
	}
	return scan(w, node, fd, report);
}

static int open_node(const struct watch *w, const struct watch_node *node)
{
	int fd, below;

	if (!node->parent)
		return open(w->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	fd = open_node(w, node->parent);
	if (fd < 0)
		return fd;
	below = openat(fd, node->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	close(fd);
	return below;
}

/* A folder came to be in @parent, made or moved there. */
static int add_new(struct watch *w, struct watch_node *parent, const char *name)
{
	int fd, err;

	if (!w->recursive)
		return 0;
	fd = open_node(w, parent);
	if (fd < 0)
		return has_gone(errno) || errno == EACCES ? 0 : -errno;
	err = add_folder(w, parent, fd, name, true);
	close(fd);
	/* Keeps no folder busy. */
	if (chdir("/"))
		err = err ? err : -errno;
	return err;
}

static int start(struct watch *w)
{
	struct stat st;
	int err, wd;

	memset(&w->tree, 0, sizeof(w->tree));
	w->tree.inotify = inotify_init1(IN_CLOEXEC);
	if (w->tree.inotify < 0)
		return -errno;
	if (stat(w->path, &st))
		return -errno;
	if (S_ISDIR(st.st_mode)) {
		err = add_folder(w, NULL, AT_FDCWD, w->path, false);
		if (!err && chdir("/"))
			err = -errno;
		return err;
	}
	wd = inotify_add_watch(w->tree.inotify, w->path, WATCHED);
	if (wd < 0)
		return -errno;
	return watch_tree_put(&w->tree, wd, NULL, "") ? 0 : -ENOMEM;
}

static void end(struct watch *w)
{
	if (!w->ended)
		tell(w, FILES_DELETED, true, NULL, NULL);
	w->ended = true;
}

static int restart(struct watch *w)
{
	struct files_message msg = {.type = FILES_EVENT, .event.kind = FILES_OVERFLOW};
	int err;

	w->pending = false;
	if (w->tree.top)
		watch_tree_drop(&w->tree, w->tree.top, false);
	close(w->tree.inotify);
	err = start(w);
	if (err && !has_gone(-err))
		return err;
	out_message(&msg);
	if (err)
		end(w);
	return 0;
}

/* Its other half did not come: it left what is watched. */
static void settle(struct watch *w)
{
	struct watch_node *node, *child;

	if (!w->pending)
		return;
	w->pending = false;
	node = watch_tree_find(&w->tree, w->pending_wd);
	if (!node)
		return;
	tell(w, FILES_DELETED, w->pending_folder, node, w->pending_name);
	child = w->pending_folder ? watch_tree_child(node, w->pending_name) : NULL;
	if (child)
		watch_tree_drop(&w->tree, child, true);
}

static int moved(struct watch *w, struct watch_node *to, const char *name, bool folder)
{
	struct watch_node *from = watch_tree_find(&w->tree, w->pending_wd), *child, *old;
	struct files_message msg = {.type = FILES_EVENT};

	w->pending = false;
	if (!from)
		return 0;
	msg.event.kind = FILES_MOVED;
	msg.event.folder = folder;
	msg.path.len_bytes = watch_tree_path(from, w->pending_name, w->from);
	msg.path.bytes = w->from;
	msg.to.len_bytes = watch_tree_path(to, name, w->to);
	msg.to.bytes = w->to;
	out_message(&msg);
	child = folder ? watch_tree_child(from, w->pending_name) : NULL;
	/* It was not watched: only made a moment ago. */
	if (folder && !child)
		return add_new(w, to, name);
	/* An empty folder that was replaced. */
	old = folder ? watch_tree_child(to, name) : NULL;
	if (old && old != child)
		watch_tree_drop(&w->tree, old, true);
	if (child && !watch_tree_put(&w->tree, child->wd, to, name))
		return -ENOMEM;
	return 0;
}

/* Of the folder itself, not of something in it. */
static void of_itself(struct watch *w, struct watch_node *node, u32 mask)
{
	if (node->parent) {
		/* The folder above tells the rest. */
		if (mask & IN_IGNORED)
			watch_tree_drop(&w->tree, node, false);
		return;
	}
	if (mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED))
		end(w);
	else if (mask & IN_MODIFY)
		tell(w, FILES_MODIFIED, false, NULL, NULL);
	else if (mask & IN_ATTRIB)
		tell(w, FILES_ATTRIB, mask & IN_ISDIR, NULL, NULL);
}

static int of_entry(struct watch *w, struct watch_node *node, const struct inotify_event *event)
{
	bool folder = event->mask & IN_ISDIR;

	if (event->mask & IN_MOVED_TO && w->pending && w->pending_cookie == event->cookie)
		return moved(w, node, event->name, folder);
	settle(w);
	if (event->mask & IN_MOVED_FROM) {
		w->pending = true;
		w->pending_folder = folder;
		w->pending_cookie = event->cookie;
		w->pending_wd = event->wd;
		snprintf(w->pending_name, sizeof(w->pending_name), "%s", event->name);
	} else if (event->mask & (IN_CREATE | IN_MOVED_TO)) {
		tell(w, FILES_CREATED, folder, node, event->name);
		return folder ? add_new(w, node, event->name) : 0;
	} else if (event->mask & IN_DELETE) {
		tell(w, FILES_DELETED, folder, node, event->name);
	} else if (event->mask & IN_MODIFY) {
		tell(w, FILES_MODIFIED, folder, node, event->name);
	} else if (event->mask & IN_ATTRIB) {
		tell(w, FILES_ATTRIB, folder, node, event->name);
	}
	return 0;
}

static int handle(struct watch *w, const struct inotify_event *event)
{
	struct watch_node *node;

	if (event->mask & IN_Q_OVERFLOW)
		return restart(w);
	node = watch_tree_find(&w->tree, event->wd);
	if (!node)
		return 0;
	if (event->len)
		return of_entry(w, node, event);
	/* A folder that moves tells so between the two halves: no reason to settle. */
	of_itself(w, node, event->mask);
	return 0;
}

/* One batch of events. Return: 0 or -errno. */
static int batch(struct watch *w)
{
	static char buf[65536] __attribute__((aligned(__alignof__(struct inotify_event))));
	struct pollfd ready = {.fd = w->tree.inotify, .events = POLLIN};
	int inotify = w->tree.inotify, n, err = 0;
	ssize_t len;

	n = poll(&ready, 1, w->pending ? PAIR_WAIT_MS : -1);
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	if (!n) {
		settle(w);
		return 0;
	}
	len = read(inotify, buf, sizeof(buf));
	if (len < 0)
		return errno == EINTR ? 0 : -errno;
	for (ssize_t at = 0; at < len && !err && !w->ended;) {
		const struct inotify_event *event = (const void *)(buf + at);

		at += (ssize_t)(sizeof(*event) + event->len);
		err = handle(w, event);
		/* After an overflow: what else is in here is of watches that are no more. */
		if (event->mask & IN_Q_OVERFLOW)
			break;
	}
	return err;
}

/* It is looked up again later, from wherever this process is then. */
static char *absolute(const char *path)
{
	char cwd[PATH_MAX], *out = NULL;

	if (path[0] == '/' || !path[0])
		return strdup(path);
	if (!getcwd(cwd, sizeof(cwd)) || asprintf(&out, "%s/%s", cwd, path) < 0)
		return NULL;
	return out;
}

int op_watch(char **args)
{
	static struct watch w;
	struct stat st;
	int err;

	w.recursive = arg_flags(args[1], "r");
	w.path = absolute(args[0]);
	if (!w.path)
		return out_fail(errno, args[0], NULL, NULL);
	err = stat(w.path, &st) ? -errno : start(&w);
	if (!err)
		out_opened(&st, 0, -1);
	while (!err && !w.ended) {
		err = batch(&w);
		out_flush();
	}
	if (err == -ENOSPC)
		return out_fail(
			ENOSPC, args[0], NULL,
			"too many folders: raise fs.inotify.max_user_watches in the sandbox");
	if (err == -EMFILE)
		return out_fail(EMFILE, args[0], NULL,
				"too many watches or open files for this user in the sandbox");
	if (err)
		return out_fail(-err, args[0], NULL, NULL);
	return out_done(0, 0);
}
