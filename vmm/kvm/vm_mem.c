// SPDX-License-Identifier: Apache-2.0
// Host mappings behind the guest's memory, and their KVM memory slots.
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include "vmm/kvm/vm.h"
#include "vmm/kvm/vm_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/**
 * An anonymous mapping whose address is a multiple of 2 MiB: KVM maps huge pages only where guest
 * and host address agree in their low 21 bits. Untouched, it costs nothing.
 */
static void *vm_map_aligned(u64 len_bytes, int prot)
{
	u64 span_bytes = len_bytes + HUGE_SIZE_BYTES, head_bytes, tail_bytes;
	char *base =
		mmap(NULL, span_bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED)
		return NULL;
	head_bytes = ALIGN_UP((uintptr_t)base, (uintptr_t)HUGE_SIZE_BYTES) - (uintptr_t)base;
	tail_bytes = span_bytes - head_bytes - len_bytes;
	if (head_bytes)
		munmap(base, head_bytes);
	if (tail_bytes)
		munmap(base + head_bytes + len_bytes, tail_bytes);
	return base + head_bytes;
}

int vm_ram_map_anon(struct vm *vm)
{
	u64 low_bytes = layout_low_ram_bytes(vm->cfg.ram_bytes);
	u64 high_bytes = layout_high_ram_bytes(vm->cfg.ram_bytes);
	int ret;

	vm->low_hva = vm_map_aligned(low_bytes, PROT_READ | PROT_WRITE);
	if (vm->low_hva && high_bytes)
		vm->high_hva = vm_map_aligned(high_bytes, PROT_READ | PROT_WRITE);
	if (!vm->low_hva || (high_bytes && !vm->high_hva)) {
		ret = -errno;
		log_err("guest memory of %llu MiB: %s",
			(unsigned long long)(vm->cfg.ram_bytes / MIB), strerror(-ret));
		return ret;
	}
	/*
	 * A cold boot goes through most of this memory once, and huge pages spare it up to 511 of
	 * 512 faults. Clones do not come here: their memory is what the restore strategy maps.
	 * Failure (no THP in this kernel) is no loss but time.
	 */
	(void)madvise(vm->low_hva, low_bytes, MADV_HUGEPAGE);
	if (high_bytes)
		(void)madvise(vm->high_hva, high_bytes, MADV_HUGEPAGE);
	return 0;
}

/**
 * The root image. A private mapping that nobody can write shares the page cache with every other
 * VM just as a shared one does, and can be registered for the recording of the hot set. The slot's
 * size is a multiple of 2 MiB, the file's need not be; a guest access past the end of a file
 * mapping would be a SIGBUS of ours, so that the rest is anonymous zeros.
 */
static int vm_map_pmem(struct vm *vm)
{
	u64 pmem_bytes = vm->cfg.pmem_bytes, file_bytes;
	struct stat st;
	int ret;

	if (fstat(vm->cfg.pmem_fd, &st) < 0) {
		ret = -errno;
		goto fail;
	}
	file_bytes = ALIGN_UP((u64)st.st_size, PAGE_SIZE_BYTES);
	if (!S_ISREG(st.st_mode) || !st.st_size || file_bytes > pmem_bytes ||
	    pmem_bytes % HUGE_SIZE_BYTES) {
		ret = -EINVAL;
		goto fail;
	}
	vm->pmem_hva = vm_map_aligned(pmem_bytes, PROT_READ);
	if (!vm->pmem_hva || mmap(vm->pmem_hva, file_bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED,
				  vm->cfg.pmem_fd, 0) == MAP_FAILED) {
		ret = -errno;
		goto fail;
	}
	return 0;
fail:
	log_err("root image: cannot map: %s", strerror(-ret));
	return ret;
}

static int vm_add_slot(struct vm *vm, enum layout_memslot slot, u64 gpa, u64 len_bytes, void *hva,
		       u32 flags)
{
	struct kvm_userspace_memory_region region = {
		.slot = slot,
		.flags = flags,
		.guest_phys_addr = gpa,
		.memory_size = len_bytes,
		.userspace_addr = (uintptr_t)hva,
	};
	int ret;

	if (ioctl(vm->vm_fd, KVM_SET_USER_MEMORY_REGION, &region) < 0) {
		ret = -errno;
		log_err("KVM_SET_USER_MEMORY_REGION of %llu bytes at %#llx: %s",
			(unsigned long long)len_bytes, (unsigned long long)gpa, strerror(-ret));
		return ret;
	}
	return 0;
}

static int vm_add_ram(struct vm *vm, enum layout_memslot slot, u64 gpa, u64 len_bytes, void *hva)
{
	int ret;

	if (!len_bytes)
		return 0;
	BUG_ON(!hva);
	/* What a guest holds has no place in a core dump of ours. */
	(void)madvise(hva, len_bytes, MADV_DONTDUMP);
	ret = gmem_add(&vm->gmem, gpa, len_bytes, hva);
	BUG_ON(ret);
	return vm_add_slot(vm, slot, gpa, len_bytes, hva, 0);
}

int vm_mem_add_slots(struct vm *vm)
{
	u64 low_bytes = layout_low_ram_bytes(vm->cfg.ram_bytes);
	u64 high_bytes = layout_high_ram_bytes(vm->cfg.ram_bytes);
	int ret;

	ret = vm_add_ram(vm, LAYOUT_SLOT_LOW_RAM, 0, low_bytes, vm->low_hva);
	if (!ret)
		ret = vm_add_ram(vm, LAYOUT_SLOT_HIGH_RAM, LAYOUT_HIGH_RAM_GPA, high_bytes,
				 vm->high_hva);
	if (ret)
		return ret;

	vm->mailbox_hva = mmap(NULL, VM_MAILBOX_BYTES, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (vm->mailbox_hva == MAP_FAILED) {
		ret = -errno;
		vm->mailbox_hva = NULL;
		log_err("mailbox: %s", strerror(-ret));
		return ret;
	}
	(void)madvise(vm->mailbox_hva, VM_MAILBOX_BYTES, MADV_DONTDUMP);
	ret = vm_add_slot(vm, LAYOUT_SLOT_MAILBOX, THAW_CONTROL_GPA, VM_MAILBOX_BYTES,
			  vm->mailbox_hva, 0);
	if (ret || vm->cfg.pmem_fd < 0)
		return ret;

	ret = vm_map_pmem(vm);
	if (ret)
		return ret;
	return vm_add_slot(vm, LAYOUT_SLOT_PMEM, layout_pmem_gpa(vm->cfg.ram_bytes),
			   vm->cfg.pmem_bytes, vm->pmem_hva, KVM_MEM_READONLY);
}

/*
 * Reads by page. A clone whose hot set had to be read from the disk is started with read-around
 * off: most of what it still needs are single pages, and the disk is what it waits for. A command
 * that was not recorded may need thousands of pages that nobody fetched, and there read-around is
 * what makes it fast. Nobody can tell the two apart beforehand. So it is off for as long after the
 * start as the fetch took: whatever the guest turns out to need, what was lost by waiting for
 * single pages is no more than that time.
 */
static void vm_on_page_reads_end(struct ev_handler *handler, u32 events)
{
	struct vm *vm = container_of(handler, struct vm, page_reads_handler);

	(void)events;
	ev_del(&vm->ev, handler);
	fd_close(&handler->fd);
	(void)madvise(vm->low_hva, layout_low_ram_bytes(vm->cfg.ram_bytes), MADV_NORMAL);
	if (vm->high_hva)
		(void)madvise(vm->high_hva, layout_high_ram_bytes(vm->cfg.ram_bytes), MADV_NORMAL);
}

int vm_mem_end_page_reads(struct vm *vm)
{
	const struct itimerspec when = {
		.it_value = {.tv_sec = (time_t)(vm->page_reads_ns / 1000000000),
			     .tv_nsec = (long)(vm->page_reads_ns % 1000000000)}};
	struct ev_handler *handler = &vm->page_reads_handler;

	if (!vm->page_reads_ns)
		return 0;
	handler->fn = vm_on_page_reads_end;
	handler->fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (handler->fd < 0 || timerfd_settime(handler->fd, 0, &when, NULL) < 0)
		return -errno;
	return ev_add(&vm->ev, handler, EPOLLIN);
}

void vm_mem_unmap(struct vm *vm)
{
	if (vm->low_hva)
		munmap(vm->low_hva, layout_low_ram_bytes(vm->cfg.ram_bytes));
	if (vm->high_hva)
		munmap(vm->high_hva, layout_high_ram_bytes(vm->cfg.ram_bytes));
	if (vm->mailbox_hva)
		munmap(vm->mailbox_hva, VM_MAILBOX_BYTES);
	if (vm->pmem_hva)
		munmap(vm->pmem_hva, vm->cfg.pmem_bytes);
	vm->low_hva = NULL;
	vm->high_hva = NULL;
	vm->mailbox_hva = NULL;
	vm->pmem_hva = NULL;
}
