// SPDX-License-Identifier: Apache-2.0
// The table of recorders, and the one that needs nothing: thaw-vmm tells by its own page tables.
#include "vmm/cli/hot_recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/kvm/layout.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/* In the order of help and documentation; the first is the default. */
static const struct hot_recorder_ops *const recorders[] = {
	&hot_recorder_pagemap,
	&hot_recorder_bpf,
	NULL,
};

const struct hot_recorder_ops *hot_recorder_find(const char *name)
{
	if (!name)
		return recorders[0];
	for (size_t i = 0; recorders[i]; i++) {
		if (!strcmp(recorders[i]->name, name))
			return recorders[i];
	}
	return NULL;
}

const struct hot_recorder_ops *const *hot_recorder_list(void)
{
	return recorders;
}

const char *hot_recorder_name(u32 id)
{
	for (size_t i = 0; recorders[i]; i++) {
		if (recorders[i]->id == id)
			return recorders[i]->name;
	}
	return "unknown";
}

static int pagemap_probe(const char **why)
{
	*why = "needs userfaultfd with asynchronous write protection (Linux 6.7)";
	return snap_hot_record_probe();
}

static int pagemap_open(struct hot_recorder *recorder)
{
	(void)recorder;
	return 0;
}

static int pagemap_before(struct hot_recorder *recorder, int *hot_fd)
{
	int ret;

	recorder->file_fd = memfd_create("thaw-hot", MFD_CLOEXEC);
	if (recorder->file_fd < 0) {
		ret = -errno;
		log_err("recording the hot set: %s", strerror(-ret));
		return ret;
	}
	*hot_fd = recorder->file_fd;
	return 0;
}

static int pagemap_started(struct hot_recorder *recorder, pid_t pid)
{
	(void)recorder;
	(void)pid;
	return 0;
}

/** The file comes from a process that has run a guest: checked like one from anywhere. */
static int pagemap_take(const struct hot_recorder *recorder, struct snap_hot_set *out)
{
	const char *why = "can't be read";
	struct snap_hot hot;
	struct stat st;
	void *buf;
	int ret;

	if (fstat(recorder->file_fd, &st) < 0)
		return -errno;
	if ((u64)st.st_size > snap_hot_max_bytes())
		return -EFBIG;
	buf = malloc((size_t)st.st_size + 1);
	if (!buf)
		return -ENOMEM;
	ret = fd_pread_full(recorder->file_fd, buf, (size_t)st.st_size, 0);
	if (!ret)
		ret = snap_hot_parse(buf, (size_t)st.st_size, recorder->ram_bytes,
				     recorder->pmem_bytes, recorder->state_digest, &hot, &why);
	if (ret)
		log_err("recording the hot set: what thaw-vmm wrote: %s", why);
	for (u32 i = 0; !ret && i < hot.nruns; i++)
		ret = snap_hot_set_add(out, hot.runs[i].gpa, hot.runs[i].npages, hot.runs[i].kind);
	free(buf);
	return ret;
}

static int pagemap_after(struct hot_recorder *recorder, struct snap_hot_set *out)
{
	int ret = pagemap_take(recorder, out);

	fd_close(&recorder->file_fd);
	return ret;
}

static void pagemap_close(struct hot_recorder *recorder)
{
	fd_close(&recorder->file_fd);
}

const struct hot_recorder_ops hot_recorder_pagemap = {
	.name = "pagemap",
	.id = SNAP_HOT_PAGEMAP,
	.summary = "page tables of thaw-vmm; needs no privileges",
	.probe = pagemap_probe,
	.open = pagemap_open,
	.before = pagemap_before,
	.started = pagemap_started,
	.after = pagemap_after,
	.close = pagemap_close,
};
