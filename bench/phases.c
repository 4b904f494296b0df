// SPDX-License-Identifier: Apache-2.0
// The phases of a VM's set-up, timed one by one through the same functions that thaw-vmm calls.
#include "bench/phases.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm/cli/kvmkind.h"
#include "vmm/kvm/cpuid.h"
#include "vmm/kvm/vm.h"
#include "vmm/util/util.h"

int phases_once(unsigned int nvcpus, unsigned int ram_mib, struct phases_times *times)
{
	struct vm_config cfg = {
		.ram_bytes = ram_mib * MIB,
		.nvcpus = nvcpus,
		.pmem_fd = -1,
		.disk_base_fd = -1,
		.disk_delta_fd = -1,
		.console_fd = -1,
		.ctl_fd = -1,
		.vsock_listen_fd = -1,
	};
	static struct vm vm;
	u64 t0, t1, t2, t3, t4;
	int ret;

	t0 = clock_now_ns();
	vm_init(&vm, &cfg);
	ret = vm_ram_map_anon(&vm);
	if (!ret)
		ret = vm_create(&vm);
	t1 = clock_now_ns();
	if (!ret)
		ret = vm_create_vcpus(&vm);
	t2 = clock_now_ns();
	if (!ret)
		ret = vm_create_devices(&vm);
	t3 = clock_now_ns();
	vm_destroy(&vm);
	t4 = clock_now_ns();
	*times = (struct phases_times){t1 - t0, t2 - t1, t3 - t2, t4 - t3};
	return ret;
}

int phases_wrong_order(unsigned int ram_mib, uint64_t *setup_ns)
{
	struct kvm_userspace_memory_region region = {.memory_size = ram_mib * MIB};
	struct kvm_enable_cap split = {.cap = KVM_CAP_SPLIT_IRQCHIP, .args = {24}};
	int kvm, vm = -1, ret = 0;
	void *ram;
	u64 start;

	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0)
		return -errno;
	ram = mmap(NULL, region.memory_size, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ram == MAP_FAILED) {
		ret = -errno;
		goto out_kvm;
	}
	region.userspace_addr = (uintptr_t)ram;
	start = clock_now_ns();
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0 || ioctl(vm, KVM_ENABLE_CAP, &split) < 0 || ioctl(vm, KVM_CREATE_VCPU, 0) < 0 ||
	    ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region) < 0)
		ret = -errno;
	*setup_ns = clock_now_ns() - start;
	fd_close(&vm);
	munmap(ram, region.memory_size);
out_kvm:
	fd_close(&kvm);
	return ret;
}

int phases_cpuid(void)
{
	static struct snap_cpuid cpuid;
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	int ret;

	if (kvm < 0)
		return -errno;
	ret = cpuid_supported(kvm, 1, &cpuid);
	fd_close(&kvm);
	return ret;
}

/** The start of /proc/cpuinfo, which has no size and comes in pieces: the first processor is in it.
 */
static int read_cpuinfo(char *buf, size_t buf_bytes)
{
	int fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t n = 1;

	if (fd < 0)
		return -errno;
	while (n > 0 && used + 1 < buf_bytes) {
		n = read(fd, buf + used, buf_bytes - 1 - used);
		used += n > 0 ? (size_t)n : 0;
	}
	close(fd);
	buf[used] = '\0';
	return n < 0 ? -EIO : 0;
}

const char *phases_kvm_kind(void)
{
	char cpuinfo[16384];

	if (read_cpuinfo(cpuinfo, sizeof(cpuinfo)))
		return "unknown";
	if (!cpuinfo_has_flag(cpuinfo, "vmx") && !cpuinfo_has_flag(cpuinfo, "svm"))
		return "pvm";
	return kvm_cpu_emulated() ? "emulated" : "hardware";
}
