// SPDX-License-Identifier: Apache-2.0
// The hot set made ready: what is wanted, what can be had, in which order.
//
// What it saves: a page that a clone touches first costs an exit, a fault in the host, and, when it
// was read before it is written, both again. One call for a run of pages costs a fraction of that.
// Write-hot pages are copied ahead (MADV_POPULATE_WRITE), so that the guest's write finds a private
// page; read-hot ones stay shared with the page cache. Then KVM_PRE_FAULT_MEMORY puts both into the
// guest's own page tables; without it the exits remain, but they find the host's page tables
// filled.
//
// A strategy has a habit (all of it, or nothing) and opts may ask for something else. What is asked
// for is done or the restore fails; of the habit, what can't be had is told in opts->note.
#include "vmm/snapshot/warm.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "vmm/kvm/vm.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/**
 * warm_read_by_page() - what a start needs besides its hot set is a few pages here and there, and a
 * page fault's read-around would bring thirty for each. So there is none, until the start is over
 * (vm->page_reads_ns). Where the kernel does not take the advice it reads more than is needed.
 */
static void warm_read_by_page(const struct snap_mem *mem)
{
	for (unsigned int i = 0; i < mem->nranges; i++)
		(void)madvise(mem->ranges[i].hva, mem->ranges[i].len_bytes, MADV_RANDOM);
}

int snap_warm_begin(struct snap_warm *warm, const struct snap *snap, const struct snap_mem *mem,
		    const struct snap_mem_ops *ops, struct snap_restore_opts *opts)
{
	const bool asked = opts->populate > SNAP_POPULATE_OFF || opts->prefault == SNAP_PREFAULT_ON;
	bool plain = false;
	int ret;

	*warm = (struct snap_warm){.opts = opts, .wanted = ops->hot || asked};
	warm->write = opts->populate == SNAP_POPULATE_DEFAULT
			      ? ops->hot
			      : opts->populate >= SNAP_POPULATE_WRITE;
	warm->read = opts->populate == SNAP_POPULATE_DEFAULT
			     ? ops->hot
			     : opts->populate == SNAP_POPULATE_READ ||
				       opts->populate == SNAP_POPULATE_BOTH;
	warm->prefault = opts->prefault == SNAP_PREFAULT_DEFAULT
				 ? ops->hot
				 : opts->prefault == SNAP_PREFAULT_ON;
	if (opts->threads && !warm->read && !warm->write) {
		log_err("threads: strategy %s populates nothing by itself; say what (populate)",
			ops->name);
		return -EINVAL;
	}
	if (!warm->wanted)
		return 0;
	ret = snap_hot_open(snap, &warm->hot);
	if (ret)
		return ret;
	if (!warm->hot.buf) {
		if (asked) {
			log_err("%s: has no hot set, which populating and pre-faulting need",
				snap->path);
			return -ENOENT;
		}
		snap_opts_note(opts, "no-hot-set");
		warm->wanted = false;
		return 0;
	}
	if (!ops->fetch)
		return 0;
	warm->fetch_ns = clock_now_ns();
	ret = warm_fetch_start(snap, &warm->hot, mem, &warm->fetch, &plain);
	if (warm->fetch)
		warm_read_by_page(mem);
	if (plain)
		snap_opts_note(opts, "pread");
	return ret;
}

/** What can't be had: an error if it was asked for. Return: 0 or @error (logged). */
static int warm_lack(struct snap_warm *warm, bool asked, const char *note, const char *what,
		     int error)
{
	if (!asked) {
		snap_opts_note(warm->opts, note);
		return 0;
	}
	log_err("%s", what);
	return error;
}

static int warm_do_prefault(struct snap_warm *warm, struct vm *vm)
{
	/* What was not in the page cache: its neighbours are not either, and each would be a read
	 * of its own from the disk. */
	int ret = warm_prefault(&warm->hot, vm, !warm->fetch);

	if (ret != -EOPNOTSUPP)
		return ret;
	warm->prefault = false;
	return warm_lack(warm, warm->opts->prefault == SNAP_PREFAULT_ON, "no-pre-fault",
			 "pre-faulting: this kernel can't map memory into this guest ahead "
			 "(KVM_PRE_FAULT_MEMORY, Linux 6.11)",
			 -EOPNOTSUPP);
}

static int warm_do_populate(struct snap_warm *warm, const struct vm *vm, bool read, bool write)
{
	int ret;

	if (!read && !write)
		return 0;
	ret = warm_populate(&warm->hot, vm, read, write, warm->opts->threads);
	if (ret != -EINVAL)
		return ret;
	warm->read = false;
	return warm_lack(warm, warm->opts->populate > SNAP_POPULATE_OFF, "no-populate",
			 "populating: this kernel has no MADV_POPULATE_WRITE (Linux 5.14)",
			 -EOPNOTSUPP);
}

int snap_warm_finish(struct snap_warm *warm, struct vm *vm)
{
	const bool parallel = warm->opts->threads > 1;
	u64 bytes_read = 0;
	int ret = 0;

	if (!warm->wanted)
		return 0;
	if (warm->fetch) {
		ret = warm_fetch_wait(warm->fetch, &bytes_read);
		warm->opts->bytes_read += bytes_read;
		vm->page_reads_ns = clock_now_ns() - warm->fetch_ns;
		if (ret)
			return ret;
	}
	/* Before the pre-fault, which maps what it finds: a page that is not copied yet would go
	 * into the guest's tables read-only. Read-hot pages it finds by itself, if slower than
	 * several threads would. */
	ret = warm_do_populate(warm, vm, warm->read && parallel, warm->write);
	if (!ret && warm->prefault)
		ret = warm_do_prefault(warm, vm);
	if (!ret && !warm->prefault && !parallel)
		ret = warm_do_populate(warm, vm, warm->read, false);
	if (ret)
		log_err("hot set: can't be made ready: %s", strerror(-ret));
	return ret;
}

void snap_warm_end(struct snap_warm *warm)
{
	warm_fetch_free(warm->fetch);
	snap_hot_close(&warm->hot);
	warm->fetch = NULL;
}
