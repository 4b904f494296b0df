// SPDX-License-Identifier: Apache-2.0
// Restore strategy "uffd": anonymous memory, filled page by page by a process of its own when the
// guest touches it.
#include <string.h>

#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/pager.h"
#include "vmm/util/log.h"

/*
 * What userfaultfd buys is that pages may come from anywhere: a store that no file system knows.
 * What it costs is a switch to another process and back for each fault, and a private copy of each
 * page, read or written: nothing is shared between clones. docs/restore.md has figures.
 *
 * No event but the fault itself is registered. UFFD_EVENT_FORK, REMAP and UNMAP are about what a
 * VMM does not do with guest memory while it runs. UFFD_EVENT_REMOVE is about pages that are thrown
 * away (MADV_DONTNEED, a balloon): nothing here throws guest memory away, and a page that were
 * would come back with the file's content. So the two hazards of such events can't occur: every
 * UFFDIO_COPY failing with EAGAIN while a message of theirs is unread, and a fault message
 * overtaking the message of a removal. Whoever adds a balloon has to register REMOVE, keep the
 * removed ranges, and answer faults in them by UFFDIO_ZEROPAGE.
 *
 * The servers are forked before the memory is mapped, so that they have no part of it. The pages of
 * a diff (diff.h) are mapped over it afterwards; the kernel brings those.
 */

static int uffd_map(struct snap_mem *mem)
{
	const struct snap_mem_range *last = &mem->ranges[mem->nranges - 1];
	struct pager_config cfg = {.file_fd = mem->fd,
				   .file_bytes = last->gpa + last->len_bytes,
				   .window_bytes = mem->fault_window_bytes};
	struct pager_range ranges[PAGER_RANGES];
	u64 start, end;
	int ret;

	if (!cfg.window_bytes)
		cfg.window_bytes = PAGER_WINDOW_DEFAULT_BYTES;
	/* A file that can't be asked for its holes is not one of ours; better now than at the first
	 * fault. */
	ret = snap_extent_next(mem->fd, cfg.file_bytes, 0, &start, &end);
	if (ret < 0) {
		log_err("memory file: %s", strerror(-ret));
		return ret;
	}
	ret = pager_start(&cfg, &mem->pager);
	if (ret)
		return ret;
	ret = snap_mem_map(mem, -1);
	if (ret)
		goto err;
	for (unsigned int i = 0; i < mem->nranges; i++)
		ranges[i] = (struct pager_range){.hva = (uintptr_t)mem->ranges[i].hva,
						 .offset_bytes = mem->ranges[i].gpa,
						 .len_bytes = mem->ranges[i].len_bytes};
	ret = pager_attach(mem->pager, ranges, mem->nranges);
	if (!ret) {
		mem->plain_io = pager_is_plain(mem->pager);
		return 0;
	}
err:
	snap_mem_unmap(mem);
	return ret;
}

const struct snap_mem_ops snap_mem_uffd = {
	.name = "uffd",
	.summary = "userfaultfd: a process of its own brings pages when they are touched",
	.map = uffd_map,
	.takes_fault_window = true,
};
