// SPDX-License-Identifier: Apache-2.0
// thaw-vmm in a jail: what it opens as root, and the way in.
//
// By paths that root's own process gave on the command line: no path that a snapshot names is ever
// opened, and nothing is read here. What is kept only because the snapshot may turn out to need it
// is closed again once the VM stands.
#include "vmm/jailed.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "vmm/jail/jail.h"
#include "vmm/snapshot/handed.h"
#include "vmm/snapshot/pager.h"
#include "vmm/util/kvmdev.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define JAILED_THREADS 256 /* of this uid; the cgroup's limit is the closer one */

static int open_scratch(const char *dir, int *fd)
{
	if (!dir)
		return 0;
	*fd = open(dir, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
	if (*fd >= 0)
		return 0;
	log_err("scratch disk in %s: %s", dir, strerror(errno));
	return -errno;
}

int jailed_enter(const struct opts *opts, int *disk_fd, int *pagemap_fd)
{
	const char *strategy = opts->strategy ? opts->strategy : "";
	struct snap_handed_opts handed = {
		.folder = opts->folder,
		.parents = opts->parents,
		.root_image = opts->root_image,
		.direct = !strcmp(strategy, "uring"),
	};
	struct jail_entry entry = {
		.uid = opts->jail_uid,
		.file_max_bytes = opts->file_max_bytes,
		.threads_max = JAILED_THREADS,
	};
	int ret;

	ret = kvm_keep();
	ret = ret ?: snap_handed_open(&handed);
	ret = ret ?: open_scratch(opts->disk_dir, disk_fd);
	if (!strcmp(strategy, "uffd"))
		ret = ret ?: pager_keep_uffd();
	if (opts->huge == SNAP_HUGE_PAGES_THP)
		snap_opts_look_thp();
	ret = ret ?: jail_enter(&entry);
	*pagemap_fd = entry.pagemap_fd;
	return ret;
}

void jailed_settle(void)
{
	snap_handed_close();
	kvm_forget();
}
