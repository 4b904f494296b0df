// SPDX-License-Identifier: Apache-2.0
// Snapshots that an owner asks for while the VM runs.
//
// The process is confined by then: the folder comes as a descriptor, pages are looked up through a
// descriptor of /proc/self/pagemap that was opened at the start, and no ring can be made any more,
// so that files are written by plain system calls. A snapshot is a diff, unless the chain of its
// parents is as long as it may be, or its parent's name is another one's by now; then it is whole,
// which its manifest tells.
//
// One that the VM ends with (pause) has to outlive the machine and is synced. One that clones are
// made of at once (fork) goes with them: there nothing is synced, while the guest stands still.
#include "vmm/snapreq.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/kvm/vm.h"
#include "vmm/snapshot/diff.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

int snapreq_init(struct snapreq *req, const struct snap *base, int pagemap_fd)
{
	req->base = base;
	req->pagemap_fd =
		pagemap_fd >= 0 ? pagemap_fd : open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (req->pagemap_fd < 0)
		log_warn("/proc/self/pagemap: %s; a snapshot will look at every page of memory",
			 strerror(errno));
	return snap_hot_open(base, &req->hot);
}

/** Writing takes the event loop's time, so the end of the owner goes unseen meanwhile. */
static bool owner_lives(void *opaque)
{
	const struct vm *vm = opaque;
	struct pollfd pfd = {.fd = vm->cfg.ctl_fd, .events = POLLRDHUP};

	return pfd.fd >= 0 && poll(&pfd, 1, 0) == 0;
}

/** A diff has to stand beside the very folder that this machine runs from; that may have been
 * replaced or taken away since. Or it is about to be: a build of that name (.NAME.build) has looked
 * for diffs of the old one already, and a sandbox that was paused meanwhile could not come back. */
static bool diff_possible(const struct snap *base, const struct ctl_msg *msg, int folder_fd)
{
	struct stat found, own;
	char build[NAME_MAX + 1];

	/* Only the owner sees the places, and has looked. */
	if (msg->port & CTL_SNAPSHOT_INTO)
		return msg->generation && snap_depth(base) < SNAP_CHAIN_MAX &&
		       fstat(base->dirfd, &own) == 0 && own.st_ino == msg->generation;
	if (snprintf(build, sizeof(build), ".%s.build", base->manifest.name) >=
		    (int)sizeof(build) ||
	    fstatat(folder_fd, build, &found, AT_SYMLINK_NOFOLLOW) == 0)
		return false;
	return snap_depth(base) < SNAP_CHAIN_MAX &&
	       fstatat(folder_fd, base->manifest.name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
	       fstat(base->dirfd, &own) == 0 && found.st_dev == own.st_dev &&
	       found.st_ino == own.st_ino;
}

static int snapreq_begin(struct vm *vm, void *opaque, const struct ctl_msg *msg, int folder_fd)
{
	struct snapreq *req = opaque;
	const bool ends = msg->port & CTL_SNAPSHOT_EXIT;
	struct snap_write_opts opts = {
		.path = msg->text,
		.name = msg->text,
		.kernel = req->base->manifest.kernel,
		.parent = req->base->manifest.name,
		.base = req->base,
		.diff = diff_possible(req->base, msg, folder_fd),
		.hot = &req->hot,
		.folder_fd = folder_fd,
		.into = msg->port & CTL_SNAPSHOT_INTO,
		.pagemap_fd = req->pagemap_fd,
		.no_sync = !ends,
		.wanted = owner_lives,
		.opaque = vm,
	};

	if (req->into_only && !(msg->port & CTL_SNAPSHOT_INTO)) {
		fd_close(&folder_fd);
		return -EOPNOTSUPP;
	}
	if (req->writer || msg->port & ~(u32)(CTL_SNAPSHOT_EXIT | CTL_SNAPSHOT_INTO)) {
		fd_close(&folder_fd);
		return req->writer ? -EBUSY : -EINVAL;
	}
	vm->cfg.checkpoint_exit = ends;
	return snap_write_prepare(&opts, &req->writer);
}

static void snapreq_cancel(struct vm *vm, void *opaque)
{
	(void)vm;
	snapreq_end(opaque);
}

static int snapreq_write(struct vm *vm, void *opaque)
{
	struct snapreq *req = opaque;
	int ret;

	if (!req->writer)
		return -EOPNOTSUPP;
	ret = snap_write(req->writer, vm);
	snapreq_end(req);
	return ret;
}

void snapreq_config(struct snapreq *req, struct vm_config *cfg)
{
	cfg->checkpoint = snapreq_write;
	cfg->checkpoint_opaque = req;
	cfg->snapshot_request = snapreq_begin;
	cfg->snapshot_cancel = snapreq_cancel;
}

void snapreq_end(struct snapreq *req)
{
	snap_write_abort(req->writer);
	req->writer = NULL;
}
