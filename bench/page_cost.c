// SPDX-License-Identifier: Apache-2.0
// Costs a page: each way on fresh mappings of one file whose pages are in the page cache.
#include "bench/page_cost.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vmm/util/newer.h"
#include "vmm/util/util.h"

#define LEN_BYTES (PAGE_COST_PAGES * PAGE_SIZE_BYTES)
#define AROUND	  16 /* pages that one read fault maps */

#define UFFD_FEATURE_WP_ASYNC_BIT (1ull << 15) /* Linux 6.7; older headers do not have it */

static const char *const names[PAGE_COSTS] = {
	[PAGE_READ_FAULT] = "read-fault-around",  [PAGE_READ_FAULT_ONE] = "read-fault",
	[PAGE_WRITE_FAULT] = "write-fault",	  [PAGE_ANON_FAULT] = "anonymous-fault",
	[PAGE_POPULATE_READ] = "populate-read",	  [PAGE_POPULATE_WRITE] = "populate-write",
	[PAGE_UFFD_COPY] = "uffdio-copy",	  [PAGE_UFFD_COPY_16] = "uffdio-copy-16",
	[PAGE_PRE_FAULT] = "pre-fault-populated", [PAGE_PRE_FAULT_COLD] = "pre-fault",
};

const char *page_cost_name(enum page_cost way)
{
	return names[way];
}

/** Into the page cache page by page, so that none is part of a larger folio: the pages of a
 * snapshot come one by one or in short runs too, and a large folio is mapped by one fault. */
static int read_by_page(int fd)
{
	char page[PAGE_SIZE_BYTES];
	int ret = -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);

	ret = ret ? ret : -posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (u64 at = 0; at < LEN_BYTES && !ret; at += sizeof(page))
		ret = fd_pread_full(fd, page, sizeof(page), at);
	return ret;
}

/** A file with data whose pages are in the page cache; unnamed, one a process. */
static int file_once(void)
{
	static int fd = -1;
	const char *dir = getenv("THAW_BENCH_DIR");
	char *data;

	if (fd >= 0)
		return fd;
	fd = open(dir ? dir : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	data = malloc(LEN_BYTES);
	if (fd < 0 || !data) {
		free(data);
		return fd < 0 ? -errno : -ENOMEM;
	}
	memset(data, 0x5a, LEN_BYTES);
	if (fd_pwrite_full(fd, data, LEN_BYTES, 0) || fsync(fd) < 0 || read_by_page(fd))
		fd_close(&fd);
	free(data);
	return fd < 0 ? -EIO : fd;
}

static void touch(volatile u8 *hva, u64 step_pages, bool write)
{
	for (u64 page = 0; page < PAGE_COST_PAGES; page += step_pages) {
		if (write)
			hva[page * PAGE_SIZE_BYTES] = 1;
		else
			(void)hva[page * PAGE_SIZE_BYTES];
	}
}

static int uffd_copy(u8 *hva, u8 *from, u64 step_pages, u64 *ns)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.range = {(uintptr_t)hva, LEN_BYTES},
					.mode = UFFDIO_REGISTER_MODE_MISSING};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY), ret = 0;
	u64 start_ns;

	if (fd < 0)
		return errno == EPERM || errno == ENOSYS ? -EOPNOTSUPP : -errno;
	if (ioctl(fd, UFFDIO_API, &api) < 0 || ioctl(fd, UFFDIO_REGISTER, &range) < 0)
		ret = -errno;
	start_ns = clock_now_ns();
	for (u64 page = 0; page < PAGE_COST_PAGES && !ret; page += step_pages) {
		struct uffdio_copy copy = {.dst = (uintptr_t)hva + page * PAGE_SIZE_BYTES,
					   .src = (uintptr_t)from + page * PAGE_SIZE_BYTES,
					   .len = step_pages * PAGE_SIZE_BYTES};

		if (ioctl(fd, UFFDIO_COPY, &copy) < 0)
			ret = -errno;
	}
	*ns = clock_now_ns() - start_ns;
	close(fd);
	return ret;
}

/** Fault-around is off in a range whose writes userfaultfd protects (Linux 6.7, asynchronously): so
 * a read maps one page, as it does where the neighbours are not in the page cache. */
static int read_one_by_one(u8 *hva, u64 *ns)
{
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_WP_ASYNC_BIT};
	struct uffdio_register range = {.range = {(uintptr_t)hva, LEN_BYTES},
					.mode = UFFDIO_REGISTER_MODE_WP};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	u64 start_ns;

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) < 0 || ioctl(fd, UFFDIO_REGISTER, &range) < 0) {
		fd_close(&fd);
		return -EOPNOTSUPP;
	}
	start_ns = clock_now_ns();
	touch(hva, 1, false);
	*ns = clock_now_ns() - start_ns;
	close(fd);
	return 0;
}

/** A VM with one slot and one vCPU around @hva; its pages into the VM's page tables. */
static int pre_fault(u8 *hva, u64 *ns)
{
	struct kvm_userspace_memory_region slot = {.memory_size = LEN_BYTES,
						   .userspace_addr = (uintptr_t)hva};
	struct kvm_pre_fault_memory range = {.size = LEN_BYTES};
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), vm = -1, vcpu = -1, ret = 0;
	u64 start_ns;

	if (kvm < 0)
		return -errno;
	if (ioctl(kvm, KVM_CHECK_EXTENSION, KVM_CAP_PRE_FAULT_MEMORY) <= 0) {
		ret = -EOPNOTSUPP;
		goto out;
	}
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0 || ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot) < 0)
		ret = -errno;
	else
		vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
	if (!ret && vcpu < 0)
		ret = -errno;
	start_ns = clock_now_ns();
	while (!ret && range.size) {
		if (ioctl(vcpu, KVM_PRE_FAULT_MEMORY, &range) < 0 && errno != EINTR &&
		    errno != EAGAIN)
			ret = -errno;
	}
	*ns = clock_now_ns() - start_ns;
out:
	fd_close(&vcpu);
	fd_close(&vm);
	fd_close(&kvm);
	return ret;
}

static int measure(enum page_cost way, u8 *hva, u8 *anon, u64 *ns)
{
	u64 start_ns = clock_now_ns();
	int ret = 0;

	switch (way) {
	case PAGE_READ_FAULT:
		touch(hva, 1, false);
		break;
	case PAGE_READ_FAULT_ONE:
		return read_one_by_one(hva, ns);
	case PAGE_WRITE_FAULT:
		touch(hva, 1, true);
		break;
	case PAGE_ANON_FAULT:
		touch(anon, 1, true);
		break;
	case PAGE_POPULATE_READ:
	case PAGE_POPULATE_WRITE:
		ret = madvise(hva, LEN_BYTES,
			      way == PAGE_POPULATE_READ ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
		ret = ret < 0 ? (errno == EINVAL ? -EOPNOTSUPP : -errno) : 0;
		break;
	case PAGE_UFFD_COPY:
	case PAGE_UFFD_COPY_16:
		touch(hva, 1, false);
		return uffd_copy(anon, hva, way == PAGE_UFFD_COPY ? 1 : AROUND, ns);
	case PAGE_PRE_FAULT:
		touch(hva, 1, false);
		return pre_fault(hva, ns);
	case PAGE_PRE_FAULT_COLD:
		return pre_fault(hva, ns);
	case PAGE_COSTS:
	default:
		return -EINVAL;
	}
	*ns = clock_now_ns() - start_ns;
	return ret;
}

int page_cost_once(enum page_cost way, uint64_t *ns)
{
	int fd = file_once(), ret;
	u8 *hva, *anon;

	if (fd < 0)
		return fd;
	hva = mmap(NULL, LEN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
	if (hva == MAP_FAILED)
		return -errno;
	anon = mmap(NULL, LEN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (anon == MAP_FAILED) {
		ret = -errno;
		goto out;
	}
	/* Small pages, whatever the host's setting: a clone's are. */
	(void)madvise(anon, LEN_BYTES, MADV_NOHUGEPAGE);
	ret = measure(way, hva, anon, ns);
	munmap(anon, LEN_BYTES);
out:
	munmap(hva, LEN_BYTES);
	return ret;
}
