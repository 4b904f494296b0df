// SPDX-License-Identifier: Apache-2.0
// A diff made whole: its content, put together from the chain, in a snapshot that needs no parent.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * The ordinary writer does it: guest memory is a mapping of the chain instead of a VM's, the disk a
 * file, the state that of the diff. State and manifest get new digests, so the hot set, which names
 * the state file's, is bound to the new one. Clones that run from the diff go on: they hold its
 * files open.
 */

int snap_writer_hot_store(const struct snap_writer *writer,
			  const u8 state_digest[SNAP_DIGEST_BYTES])
{
	const struct snap_hot *hot = writer->opts.hot;
	size_t len_bytes;
	void *buf;
	int fd, ret;

	if (!hot || !hot->buf)
		return 0;
	ret = snap_hot_build(hot->runs, hot->nruns, hot->info, state_digest, &buf, &len_bytes);
	if (ret)
		goto out;
	fd = openat(writer->temp_fd, SNAP_FILE_HOT,
		    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	ret = fd < 0 ? -errno : fd_write_full(fd, buf, len_bytes);
	if (!ret && (fchmod(fd, 0400) < 0 || (!writer->opts.no_sync && fsync(fd) < 0)))
		ret = -errno;
	fd_close(&fd);
	free(buf);
out:
	if (ret)
		log_err("%s/%s: %s", writer->opts.path, SNAP_FILE_HOT, strerror(-ret));
	return ret;
}

static int flatten(const struct snap *snap, struct snap_writer *writer, struct snap_mem *content)
{
	struct gmem gmem = {0};

	for (unsigned int i = 0; i < content->nranges; i++) {
		const struct snap_mem_range *range = &content->ranges[i];
		int ret = gmem_add(&gmem, range->gpa, range->len_bytes, range->hva);

		if (ret)
			return ret;
	}
	return snap_writer_store(writer, &snap->view, &gmem, NULL);
}

int snap_flatten(const struct snap *snap, bool (*wanted)(void *opaque), void *opaque)
{
	const struct snap_write_opts opts = {
		.path = snap->path,
		.replace = true,
		.name = snap->manifest.name,
		.kernel = snap->manifest.kernel,
		.parent = snap->manifest.parent,
		.base = snap,
		.wanted = wanted,
		.opaque = opaque,
	};
	struct snap_writer *writer = NULL;
	struct snap_mem content;
	struct snap_hot hot;
	int ret;

	ret = snap_hot_open(snap, &hot);
	if (ret)
		return ret;
	ret = snap_content_map(snap, &content);
	if (ret)
		goto out_hot;
	ret = snap_write_prepare(&opts, &writer);
	if (ret)
		goto out_unmap;
	writer->disk_source_fd = snap->disk_fd;
	writer->opts.hot = &hot;
	ret = flatten(snap, writer, &content);
	snap_write_abort(writer);
out_unmap:
	snap_mem_unmap(&content);
out_hot:
	snap_hot_close(&hot);
	return ret;
}
