// SPDX-License-Identifier: Apache-2.0
// Hot pages into this process's page tables, and into the guest's.
#include <errno.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "vmm/kvm/vm.h"
#include "vmm/snapshot/warm.h"
#include "vmm/util/log.h"
#include "vmm/util/newer.h"

/* Runs that lie this close are mapped by one call: a few pages more cost less than a call. */
#define HOT_GAP_PAGES 4

/** What the populating threads share. A thread takes the next run; runs are short. */
struct populate_job {
	const struct snap_hot *hot;
	const struct vm *vm;
	bool read, write;
	atomic_uint next;
	atomic_int error; /* of the first that failed; ends all */
};

static void *hot_hva(const struct vm *vm, const struct snap_hot_run *run)
{
	u64 pmem_gpa = layout_pmem_gpa(vm->cfg.ram_bytes);

	if (run->gpa >= pmem_gpa)
		return (char *)vm->pmem_hva + (run->gpa - pmem_gpa);
	return gmem_ptr(&vm->gmem, run->gpa, run->npages * PAGE_SIZE_BYTES);
}

static void *populate_thread(void *opaque)
{
	struct populate_job *job = opaque;
	unsigned int i;

	while ((i = atomic_fetch_add(&job->next, 1)) < job->hot->nruns &&
	       !atomic_load(&job->error)) {
		const struct snap_hot_run *run = &job->hot->runs[i];
		bool write = run->kind == SNAP_HOT_WRITE;
		void *hva;

		if (!(write ? job->write : job->read))
			continue;
		hva = hot_hva(job->vm, run);
		BUG_ON(!hva);
		if (madvise(hva, run->npages * PAGE_SIZE_BYTES,
			    write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) < 0)
			atomic_store(&job->error, -errno);
	}
	return NULL;
}

int warm_populate(const struct snap_hot *hot, const struct vm *vm, bool read, bool write,
		  unsigned int nthreads)
{
	struct populate_job job = {.hot = hot, .vm = vm, .read = read, .write = write};
	pthread_t threads[SNAP_THREADS_MAX];
	unsigned int started = 0;
	int ret = 0;

	BUG_ON(nthreads > SNAP_THREADS_MAX);
	/* This thread is one of them. */
	while (started + 1 < nthreads && !ret) {
		ret = -pthread_create(&threads[started], NULL, populate_thread, &job);
		started += !ret;
	}
	if (!ret)
		populate_thread(&job);
	else
		atomic_store(&job.error, ret);
	while (started-- > 0)
		BUG_ON(pthread_join(threads[started], NULL));
	return atomic_load(&job.error);
}

/** [@gpa, @end) into the guest's page tables. Return: 0 or -errno. */
static int prefault_range(int vcpu_fd, u64 gpa, u64 end_gpa)
{
	struct kvm_pre_fault_memory range = {.gpa = gpa, .size = end_gpa - gpa};

	/* The kernel moves gpa and size on; a signal may stop it in between. */
	while (range.size) {
		if (ioctl(vcpu_fd, KVM_PRE_FAULT_MEMORY, &range) < 0 && errno != EINTR &&
		    errno != EAGAIN)
			return -errno;
	}
	return 0;
}

int warm_prefault(const struct snap_hot *hot, struct vm *vm, bool join)
{
	const u64 gap_bytes = join ? HOT_GAP_PAGES * PAGE_SIZE_BYTES : 0;
	u64 gpa = 0, end_gpa = 0;
	int ret = 0;

	if (ioctl(vm->vm_fd, KVM_CHECK_EXTENSION, KVM_CAP_PRE_FAULT_MEMORY) <= 0)
		return -EOPNOTSUPP;
	for (u32 i = 0; i < hot->nruns && !ret; i++) {
		const struct snap_hot_run *run = &hot->runs[i];

		if (run->gpa - end_gpa > gap_bytes) {
			ret = prefault_range(vm->vcpus[0].fd, gpa, end_gpa);
			gpa = run->gpa;
		}
		end_gpa = run->gpa + run->npages * PAGE_SIZE_BYTES;
	}
	ret = ret ? ret : prefault_range(vm->vcpus[0].fd, gpa, end_gpa);
	/* Where guest pages are shadowed, or the hypervisor is nested, the call is there but not
	 * for this VM: EOPNOTSUPP too. */
	return ret;
}
