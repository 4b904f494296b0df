// SPDX-License-Identifier: Apache-2.0
// The state of a stopped machine, collected from KVM and the devices.
#include <errno.h>
#include <linux/kvm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <x86intrin.h>

#include "vmm/kvm/vm.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"

/*
 * vCPUs are stopped with their last exit completed, devices have nothing in flight (vmm/kvm/vm.h):
 * so nothing here changes while it is read, and the order does not matter but for the clock, which
 * runs on. It is read first, as near to the moment of the stop as can be; the TSC values of the
 * vCPUs are read microseconds later. A clone's kvmclock is then behind its TSC by so much, which
 * the guest can't tell from an interrupt.
 */

/* All of it on the heap: the vCPUs alone have 140 KiB. */
struct collected {
	struct snap_view parts;
	struct snap_machine machine;
	struct snap_ioapic ioapic;
	struct snap_vcpu vcpus[VM_VCPUS_MAX];
	struct snap_virtio devs[LAYOUT_VIRTIO_SLOTS];
};

static int collect_clock(struct vm *vm, struct snap_machine *machine)
{
	struct kvm_clock_data clock = {0};
	struct timespec now;
	int khz, ret;

	if (ioctl(vm->vm_fd, KVM_GET_CLOCK, &clock) < 0) {
		ret = -errno;
		log_err("KVM_GET_CLOCK: %s", strerror(-ret));
		return ret;
	}
	khz = ioctl(vm->vcpus[0].fd, KVM_GET_TSC_KHZ, 0);
	if (khz <= 0) {
		ret = khz ? -errno : -ENOTSUP;
		log_err("KVM_GET_TSC_KHZ: %s", khz ? strerror(-ret) : "unknown frequency");
		return ret;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	machine->tsc_khz = (u64)khz;
	machine->host_tsc = clock.flags & KVM_CLOCK_HOST_TSC ? clock.host_tsc : __rdtsc();
	machine->realtime_ns = (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
	machine->clock.clock = clock.clock;
	machine->clock.flags = clock.flags;
	machine->clock.realtime = clock.realtime;
	machine->clock.host_tsc = clock.host_tsc;
	return 0;
}

static void collect_machine(struct vm *vm, struct snap_machine *machine)
{
	machine->ram_bytes = vm->cfg.ram_bytes;
	machine->nvcpus = vm->cfg.nvcpus;
	machine->checkpoint_vcpu = vm->thawdev.checkpoint_vcpu;
	machine->pmem_bytes = vm->devs[LAYOUT_VIRTIO_PMEM] ? vm->cfg.pmem_bytes : 0;
	machine->disk_bytes = vm->devs[LAYOUT_VIRTIO_BLK] ? vm->cfg.disk_bytes : 0;
	machine->generation = vm->generation;
	machine->serial_lcr = vm->serial.lcr;
	if (vm->devs[LAYOUT_VIRTIO_VSOCK])
		machine->vsock_connections = vsock_connections(vm->devs[LAYOUT_VIRTIO_VSOCK]);
}

static int collect(struct vm *vm, struct collected *all)
{
	struct snap_view *parts = &all->parts;
	int ret;

	ret = collect_clock(vm, &all->machine);
	if (ret)
		return ret;
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++) {
		ret = vcpu_save(&vm->vcpus[i], &all->vcpus[i]);
		if (ret)
			return ret;
		parts->vcpus[parts->nvcpus++] = &all->vcpus[i];
	}
	collect_machine(vm, &all->machine);
	ioapic_save(&vm->ioapic, &all->ioapic);
	for (unsigned int slot = 0; slot < LAYOUT_VIRTIO_SLOTS; slot++) {
		if (!vm->devs[slot])
			continue;
		virtio_save(vm->devs[slot], &all->devs[slot]);
		parts->devs[parts->ndevs++] = &all->devs[slot];
	}
	parts->machine = &all->machine;
	parts->cpuid = &vm->cpuid;
	parts->ioapic = &all->ioapic;
	return 0;
}

int snap_write(struct snap_writer *writer, struct vm *vm)
{
	struct collected *all = calloc(1, sizeof(*all));
	int ret;

	if (!all)
		return -ENOMEM;
	ret = collect(vm, all);
	if (!ret)
		ret = snap_writer_store(writer, &all->parts, &vm->gmem,
					vm->devs[LAYOUT_VIRTIO_BLK]);
	free(all);
	return ret;
}
