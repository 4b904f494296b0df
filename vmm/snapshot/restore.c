// SPDX-License-Identifier: Apache-2.0
// From an open snapshot to a machine whose vCPUs can run.
#include <errno.h>
#include <linux/kvm.h>
#include <string.h>
#include <sys/ioctl.h>

#include "vmm/kvm/vm.h"
#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/warm.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * The order of a restore. Each step says what breaks if it comes elsewhere.
 *
 *  1. Memory is mapped by the strategy, since the memory slots need addresses.
 *  2. VM and memory slots. Before the irqchip and the ioeventfds: with those in place every new
 * slot waits for readers of the VM's device tables (4-8 ms measured, instead of 0.3-0.5).
 *  3. Irqchip, then vCPUs with the snapshot's CPUID: a vCPU gets its local APIC at creation only if
 * the irqchip is there, and CPUID decides which MSRs and XSAVE components may be set at all.
 *  4. TSC frequency: before any TSC value, because KVM scales a value that is set by the frequency
 * of that moment.
 *  5. Devices are made (with their ioeventfds), then device and IOAPIC state is loaded. No
 * interrupt is sent yet: see 8.
 *  6. The clock. KVM_SET_CLOCK with flags 0 makes the guest's kvmclock go on from the saved value,
 * as if no time had passed. With KVM_CLOCK_REALTIME it would jump by the snapshot's age: every
 * timer of the guest would be due at once, watchdogs would bark, and CLOCK_MONOTONIC of a clone
 * made a week later would be a week ahead of its own TSC, which vcpu_load() makes go on from the
 * saved value too. Two clock sources that disagree are the classic restore hang. The wall clock is
 * another matter: thaw.ko steps it from the mailbox before the checkpoint call returns. Before the
 * vCPUs, because the MSRs that hold the addresses of the clock pages make KVM fill those pages from
 * the clock.
 *  7. vCPU state, vCPU 0 first: it fixes the TSC offset of all. The order within a vCPU is argued
 * in vmm/kvm/vcpu_state.c.
 *  8. Devices are resumed: they look at their queues and may raise interrupts. An MSI that came
 * before KVM_SET_LAPIC would be overwritten by it, and the guest would wait for it for ever.
 */

/* Linux itself accepts a refined TSC calibration within 1 % of the first one, so two boots of the
 * same machine can differ by nearly that; real differences between machines of one CPU model come
 * in steps of 100 MHz, which is more. */
#define TSC_TOLERANCE_PERMILLE 10

/** open_pack() - @root's memory as a pack. Return: 0 or -errno (logged). */
static int open_pack(const struct snap *root, int *fd)
{
	int ret = snap_pack_open(root, fd);

	if (ret || *fd >= 0)
		return ret;
	log_err("%s: has no %s, which strategy pack needs: thaw template pack makes it", root->path,
		SNAP_FILE_PACK);
	return -ENOENT;
}

static int map_memory(struct snap *snap, struct vm *vm, const struct snap_mem_ops *ops,
		      struct snap_restore_opts *opts, struct snap_warm *warm)
{
	const u64 ram_bytes = snap->view.machine->ram_bytes;
	char id[SNAP_DIGEST_HEX];
	struct snap_mem mem = {.fd = snap_root(snap)->memory_fd,
			       .huge = opts->huge == SNAP_HUGE_PAGES_THP,
			       .memory_fd = opts->memory_fd,
			       .pack_fd = -1,
			       .id = id};
	int ret;

	if (opts->fault_window_bytes && !ops->takes_fault_window) {
		log_err("%s: strategy %s has no fault window", snap->path, ops->name);
		return -EINVAL;
	}
	mem.fault_window_bytes = opts->fault_window_bytes;
	snap_digest_hex(snap_root(snap)->view.header->digest, id);
	snap_mem_ranges(&mem, ram_bytes);
	ret = ops->takes_pack ? open_pack(snap_root(snap), &mem.pack_fd) : 0;
	if (ret)
		return ret;
	ret = ops->map(&mem);
	fd_close(&mem.pack_fd);
	if (!ret) {
		ret = snap_diff_overlay(snap, &mem, ops->eager);
		if (ret)
			snap_mem_unmap(&mem);
	}
	opts->bytes_read = mem.bytes_read;
	if (mem.plain_io)
		snap_opts_note(opts, "pread");
	if (mem.note)
		snap_opts_note(opts, mem.note);
	if (ret) {
		log_err("%s/%s: strategy %s failed: %s", snap->path, SNAP_FILE_MEMORY, ops->name,
			strerror(-ret));
		return ret;
	}
	vm->pager = mem.pager;
	if (opts->recorder) {
		ret = snap_hot_record_start(opts->recorder, &mem);
		if (ret)
			return ret;
	}
	vm->low_hva = mem.ranges[0].hva;
	vm->high_hva = mem.nranges > 1 ? mem.ranges[1].hva : NULL;
	return snap_warm_begin(warm, snap, &mem, ops, opts);
}

/** check_shape() - vm_init() was given the snapshot's shape. */
static int check_shape(const struct snap *snap, const struct vm *vm)
{
	const struct snap_machine *machine = snap->view.machine;
	const struct vm_config *cfg = &vm->cfg;
	const u64 disk_bytes = cfg->disk_delta_fd >= 0 ? cfg->disk_bytes : 0;

	if (cfg->ram_bytes == machine->ram_bytes && cfg->nvcpus == machine->nvcpus &&
	    cfg->pmem_bytes == machine->pmem_bytes && disk_bytes == machine->disk_bytes)
		return 0;
	log_err("%s/%s: the machine to restore into has another shape (memory, vCPUs, root image or disk)",
		snap->path, SNAP_FILE_STATE);
	return -EINVAL;
}

/** set_tsc_khz() - the guest has counted on this frequency since its boot. */
static int set_tsc_khz(const struct snap *snap, struct vm *vm)
{
	const u64 want_khz = snap->view.machine->tsc_khz;
	int have_khz = ioctl(vm->vcpus[0].fd, KVM_GET_TSC_KHZ, 0);
	u64 apart_khz;

	if (have_khz <= 0) {
		log_err("KVM_GET_TSC_KHZ: %s", have_khz ? strerror(errno) : "unknown frequency");
		return have_khz ? -errno : -ENOTSUP;
	}
	apart_khz = want_khz > (u64)have_khz ? want_khz - (u64)have_khz : (u64)have_khz - want_khz;
	if (apart_khz * 1000 <= want_khz * TSC_TOLERANCE_PERMILLE)
		return 0;
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++) {
		if (!ioctl(vm->vcpus[i].fd, KVM_SET_TSC_KHZ, want_khz))
			continue;
		log_err("%s/%s: the TSC runs at %d kHz here, at %llu kHz in the snapshot, and KVM can't scale it: %s",
			snap->path, SNAP_FILE_STATE, have_khz, (unsigned long long)want_khz,
			strerror(errno));
		return -ENOTSUP;
	}
	return 0;
}

static int load_devices(const struct snap *snap, struct vm *vm)
{
	const struct snap_view *view = &snap->view;
	unsigned int next = 0;
	int ret;

	for (unsigned int slot = 0; slot < LAYOUT_VIRTIO_SLOTS; slot++) {
		bool saved = next < view->ndevs && view->devs[next]->slot == slot;

		if (saved != (vm->devs[slot] != NULL)) {
			log_err("%s/%s: slot %u: the snapshot %s a device, this machine %s",
				snap->path, SNAP_FILE_STATE, slot, saved ? "has" : "has not",
				saved ? "has not" : "has");
			return -EINVAL;
		}
		if (!saved)
			continue;
		ret = virtio_load(vm->devs[slot], view->devs[next++]);
		if (ret) {
			log_err("%s/%s: state of device %u is malformed", snap->path,
				SNAP_FILE_STATE, slot);
			return ret;
		}
	}
	ret = ioapic_load(&vm->ioapic, view->ioapic);
	if (ret)
		log_err("%s/%s: state of the IOAPIC is malformed", snap->path, SNAP_FILE_STATE);
	return ret;
}

static int set_clock(const struct snap *snap, struct vm *vm)
{
	struct kvm_clock_data clock = {.clock = snap->view.machine->clock.clock};
	int ret;

	if (!ioctl(vm->vm_fd, KVM_SET_CLOCK, &clock))
		return 0;
	ret = -errno;
	log_err("KVM_SET_CLOCK: %s", strerror(-ret));
	return ret;
}

static int resume_devices(const struct snap *snap, struct vm *vm)
{
	int ret;

	/* The host ends of the streams are gone with the VM that was snapshotted; the guest is told
	 * before it sees any new packet. */
	if (snap->view.machine->vsock_connections)
		vsock_transport_reset(vm->devs[LAYOUT_VIRTIO_VSOCK]);
	for (unsigned int slot = 0; slot < LAYOUT_VIRTIO_SLOTS; slot++) {
		if (!vm->devs[slot])
			continue;
		ret = virtio_resume(vm->devs[slot]);
		if (ret) {
			log_err("%s/%s: device %u can't go on: %s", snap->path, SNAP_FILE_STATE,
				slot, strerror(-ret));
			return ret;
		}
	}
	return 0;
}

/** restore_steps() - all of it; @warm is ended by the caller. */
static int restore_steps(struct snap *snap, struct vm *vm, const struct snap_mem_ops *ops,
			 struct snap_restore_opts *opts, struct snap_warm *warm)
{
	int ret;

	ret = map_memory(snap, vm, ops, opts, warm);
	if (ret)
		return ret;
	vm->clocks.first_ioctl_ns = clock_now_ns();
	ret = vm_create(vm);
	if (ret)
		return ret;
	if (opts->recorder) {
		ret = snap_hot_record_pmem(opts->recorder, vm);
		if (ret)
			return ret;
	}
	vm->cpuid = *snap->view.cpuid;
	ret = vm_create_vcpus(vm);
	if (ret)
		return ret;
	ret = set_tsc_khz(snap, vm);
	if (ret)
		return ret;
	ret = vm_create_devices(vm);
	if (ret)
		return ret;
	vm->serial.lcr = (u8)snap->view.machine->serial_lcr;
	ret = load_devices(snap, vm);
	if (ret)
		return ret;
	ret = set_clock(snap, vm);
	if (ret)
		return ret;
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++) {
		ret = vcpu_load(&vm->vcpus[i], snap->view.vcpus[i]);
		if (ret) {
			log_err("%s/%s: state of vCPU %u was refused", snap->path, SNAP_FILE_STATE,
				i);
			return ret;
		}
	}
	vm->clocks.state_set_ns = clock_now_ns();
	ret = snap_warm_finish(warm, vm);
	return ret ? ret : resume_devices(snap, vm);
}

int snap_restore(struct snap *snap, struct vm *vm, struct snap_restore_opts *opts)
{
	const struct snap_mem_ops *ops = snap_mem_find(opts->strategy);
	struct snap_warm warm = {0};
	int ret;

	opts->note[0] = '\0';
	if (!ops) {
		log_err("%s: no restore strategy \"%s\"", snap->path, opts->strategy);
		return -EINVAL;
	}
	ret = check_shape(snap, vm);
	if (!ret)
		ret = snap_opts_check(opts, ops);
	if (!ret)
		ret = restore_steps(snap, vm, ops, opts, &warm);
	snap_warm_end(&warm);
	return ret;
}

int snap_restore_time(const struct snap *snap, struct vm *vm)
{
	int ret;

	ret = set_clock(snap, vm);
	for (unsigned int i = 0; i < vm->cfg.nvcpus && !ret; i++)
		ret = vcpu_load_time(&vm->vcpus[i], snap->view.vcpus[i]);
	return ret;
}
