// SPDX-License-Identifier: Apache-2.0
// The machine: creation and end of the VM, its interrupt controller, buses and devices.
//
// Order of the KVM calls: every memory slot first, then the split irqchip, vCPUs, ioeventfds. A
// slot that is added after something sits on an I/O bus waits for an SRCU grace period of that bus:
// 4-8 ms instead of 0.1.
#include "vmm/kvm/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "vmm/kvm/cpuid.h"
#include "vmm/kvm/vm_internal.h"
#include "vmm/snapshot/pager.h"
#include "vmm/util/kvmdev.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define VIRTIO_MMIO_QUEUE_NOTIFY 0x50 /* virtio 1.2 §4.2.2 */
#define VM_SLEEP_S5		 0x34 /* SLP_EN, SLP_TYP = 5 as \_S5 says */

void vm_init(struct vm *vm, const struct vm_config *cfg)
{
	*vm = (struct vm){
		.cfg = *cfg,
		.kvm_fd = -1,
		.vm_fd = -1,
		.ev.epoll_fd = -1,
		.dev_lock = PTHREAD_MUTEX_INITIALIZER,
		.pause.all_parked = PTHREAD_COND_INITIALIZER,
		.pause.go = PTHREAD_COND_INITIALIZER,
		.ctl_handler.fd = -1,
		.listen_handler.fd = -1,
		.signal_handler.fd = -1,
		.wake_handler.fd = -1,
		.pager_handler.fd = -1,
		.page_reads_handler.fd = -1,
	};
	for (unsigned int i = 0; i < VM_VCPUS_MAX; i++)
		vm->vcpus[i].fd = -1;
}

static int vm_send_msi(void *opaque, u64 address, u32 data)
{
	struct vm *vm = opaque;
	struct kvm_msi msi = {
		.address_lo = (u32)address, .address_hi = (u32)(address >> 32), .data = data};

	return ioctl(vm->vm_fd, KVM_SIGNAL_MSI, &msi) < 0 ? -errno : 0;
}

int vm_create(struct vm *vm)
{
	u64 identity_map_gpa = LAYOUT_IDENTITY_MAP_GPA;
	const char *what = "/dev/kvm";
	int ret;

	ret = ev_init(&vm->ev);
	if (ret) {
		log_err("event loop: %s", strerror(-ret));
		return ret;
	}
	vm->kvm_fd = kvm_open();
	if (vm->kvm_fd < 0) {
		errno = -vm->kvm_fd;
		vm->kvm_fd = -1;
		goto fail;
	}
	vm->clocks.first_ioctl_ns = clock_now_ns();
	ret = ioctl(vm->kvm_fd, KVM_GET_API_VERSION, 0);
	if (ret != KVM_API_VERSION) {
		log_err("/dev/kvm: API version %d, %d is needed", ret, KVM_API_VERSION);
		return -ENOTSUP;
	}
	what = "KVM_CREATE_VM";
	/* It makes a kernel thread and waits for it, which a signal ends, and so does the work of
	 * an io_uring that has read memory just now. */
	do {
		vm->vm_fd = ioctl(vm->kvm_fd, KVM_CREATE_VM, 0);
	} while (vm->vm_fd < 0 && errno == EINTR);
	if (vm->vm_fd < 0)
		goto fail;
	/* Three pages that Intel's VMX uses for real-mode guests; without effect on AMD. */
	what = "KVM_SET_TSS_ADDR";
	if (ioctl(vm->vm_fd, KVM_SET_TSS_ADDR, LAYOUT_TSS_GPA) < 0)
		goto fail;
	what = "KVM_SET_IDENTITY_MAP_ADDR";
	if (ioctl(vm->vm_fd, KVM_SET_IDENTITY_MAP_ADDR, &identity_map_gpa) < 0)
		goto fail;
	return vm_mem_add_slots(vm);
fail:
	ret = -errno;
	log_err("%s: %s", what, strerror(-ret));
	return ret;
}

int vm_create_vcpus(struct vm *vm)
{
	struct kvm_enable_cap split = {.cap = KVM_CAP_SPLIT_IRQCHIP, .args = {LAYOUT_IOAPIC_PINS}};
	int ret;

	if (ioctl(vm->vm_fd, KVM_ENABLE_CAP, &split) < 0) {
		ret = -errno;
		log_err("KVM_CAP_SPLIT_IRQCHIP: %s", strerror(-ret));
		return ret;
	}
	if (!vm->cpuid.nent) {
		ret = cpuid_supported(vm->kvm_fd, vm->cfg.nvcpus, &vm->cpuid);
		if (ret)
			return ret;
	}
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++) {
		ret = vcpu_create(&vm->vcpus[i], vm, i);
		if (ret)
			return ret;
	}
	ioapic_init(&vm->ioapic, vm_send_msi, vm);
	thawdev_init(&vm->thawdev, vm);
	serial_init(&vm->serial, vm->cfg.serial ? vm->cfg.console_fd : -1);
	return 0;
}

static void vm_interrupt(struct virtio_host *host, unsigned int slot)
{
	struct vm *vm = container_of(host, struct vm, virtio_host);

	ioapic_edge(&vm->ioapic, LAYOUT_VIRTIO_GSI + slot);
}

static struct vm_kick *vm_find_kick(struct vm *vm, unsigned int slot, unsigned int queue)
{
	for (unsigned int i = 0; i < vm->nkicks; i++) {
		if (vm->kicks[i].slot == slot && vm->kicks[i].queue == queue)
			return &vm->kicks[i];
	}
	return NULL;
}

/** A device that has done its share of a queue asks to be kicked again by the loop, after everyone
 * else. */
static void vm_defer(struct virtio_host *host, unsigned int slot, unsigned int queue)
{
	struct vm *vm = container_of(host, struct vm, virtio_host);
	struct vm_kick *kick = vm_find_kick(vm, slot, queue);

	BUG_ON(!kick);
	BUG_ON(eventfd_write(kick->handler.fd, 1) && errno != EAGAIN);
}

static void vm_on_kick(struct ev_handler *handler, u32 events)
{
	struct vm_kick *kick = container_of(handler, struct vm_kick, handler);
	eventfd_t count;

	(void)events;
	if (eventfd_read(handler->fd, &count) == 0)
		virtio_kick(kick->vm->devs[kick->slot], kick->queue);
	vm_listen_again(kick->vm);
}

static void vm_virtio_access(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write)
{
	virtio_mmio_access(opaque, offset, data, len_bytes, is_write);
}

/** SLEEP_CONTROL_REG. */
static void vm_sleep_access(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write)
{
	(void)offset;
	if (!is_write)
		memset(data, 0, len_bytes);
	else if (len_bytes == 1 && *(u8 *)data == VM_SLEEP_S5)
		vm_request_stop(opaque, VM_STOP_POWEROFF, 0, "the guest powered off");
}

static void vm_reset_access(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write)
{
	(void)offset;
	if (!is_write)
		memset(data, 0, len_bytes);
	else if (len_bytes == 1 && *(u8 *)data == 1)
		vm_request_stop(opaque, VM_STOP_RESET, 0, "the guest asked for a reset");
}

static int vm_create_virtio(struct vm *vm)
{
	struct virtio_host *host = &vm->virtio_host;
	struct virtio_dev **devs = vm->devs;
	int ret;

	*host = (struct virtio_host){
		.gmem = &vm->gmem, .ev = &vm->ev, .interrupt = vm_interrupt, .defer = vm_defer};
	vm->vsock_owner.guest_connect = vm_guest_connect;
	ret = console_create(host, LAYOUT_VIRTIO_CONSOLE, vm->cfg.console_fd,
			     &devs[LAYOUT_VIRTIO_CONSOLE]);
	if (!ret)
		ret = rng_create(host, LAYOUT_VIRTIO_RNG, &devs[LAYOUT_VIRTIO_RNG]);
	if (!ret && vm->cfg.pmem_fd >= 0)
		ret = pmem_create(host, LAYOUT_VIRTIO_PMEM, layout_pmem_gpa(vm->cfg.ram_bytes),
				  vm->cfg.pmem_bytes, &devs[LAYOUT_VIRTIO_PMEM]);
	if (!ret && vm->cfg.disk_delta_fd >= 0)
		ret = blk_create(host, LAYOUT_VIRTIO_BLK, vm->cfg.disk_base_fd,
				 vm->cfg.disk_delta_fd, vm->cfg.disk_bytes,
				 &devs[LAYOUT_VIRTIO_BLK]);
	if (!ret)
		ret = vsock_create(host, LAYOUT_VIRTIO_VSOCK, &vm->vsock_owner,
				   &devs[LAYOUT_VIRTIO_VSOCK]);
	return ret;
}

/** One ioeventfd: a write of @kick's queue index to its device's QueueNotify becomes an event of
 * the loop, with no exit to user space. */
static int vm_add_kick(struct vm *vm, struct vm_kick *kick)
{
	struct kvm_ioeventfd ioeventfd = {
		.datamatch = kick->queue,
		.addr = layout_virtio_gpa(kick->slot) + VIRTIO_MMIO_QUEUE_NOTIFY,
		.len = 4,
		.flags = KVM_IOEVENTFD_FLAG_DATAMATCH,
	};
	int ret;

	kick->handler.fn = vm_on_kick;
	kick->handler.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ioeventfd.fd = kick->handler.fd;
	if (kick->handler.fd < 0 || ioctl(vm->vm_fd, KVM_IOEVENTFD, &ioeventfd) < 0)
		ret = -errno;
	else
		ret = ev_add(&vm->ev, &kick->handler, EPOLLIN);
	if (ret)
		log_err("KVM_IOEVENTFD of slot %u, queue %u: %s", kick->slot, kick->queue,
			strerror(-ret));
	return ret;
}

static int vm_add_kicks(struct vm *vm)
{
	int ret = 0;

	vm->kicks = calloc(LAYOUT_VIRTIO_SLOTS * VIRTIO_QUEUES_MAX, sizeof(*vm->kicks));
	if (!vm->kicks)
		return -ENOMEM;
	for (unsigned int slot = 0; slot < LAYOUT_VIRTIO_SLOTS; slot++) {
		const struct virtio_dev *dev = vm->devs[slot];

		for (unsigned int queue = 0; dev && queue < dev->ops->nqueues && !ret; queue++) {
			struct vm_kick *kick = &vm->kicks[vm->nkicks++];

			*kick = (struct vm_kick){.vm = vm, .slot = slot, .queue = queue};
			ret = vm_add_kick(vm, kick);
		}
	}
	return ret;
}

int vm_create_devices(struct vm *vm)
{
	int ret;

	ret = vm_create_virtio(vm);
	if (ret)
		return ret;
	ret = bus_add(&vm->mmio, THAW_GPA, PAGE_SIZE_BYTES, thawdev_access, &vm->thawdev);
	ret = ret
		      ?: bus_add(&vm->mmio, LAYOUT_IOAPIC_GPA, PAGE_SIZE_BYTES, ioapic_access,
				 &vm->ioapic);
	ret = ret ?: bus_add(&vm->pio, LAYOUT_SLEEP_PORT, 1, vm_sleep_access, vm);
	ret = ret ?: bus_add(&vm->pio, LAYOUT_RESET_PORT, 1, vm_reset_access, vm);
	if (!ret && vm->cfg.serial)
		ret = bus_add(&vm->pio, LAYOUT_SERIAL_PORT, 8, serial_access, &vm->serial);
	for (unsigned int slot = 0; slot < LAYOUT_VIRTIO_SLOTS && !ret; slot++) {
		if (vm->devs[slot])
			ret = bus_add(&vm->mmio, layout_virtio_gpa(slot), LAYOUT_VIRTIO_STRIDE,
				      vm_virtio_access, vm->devs[slot]);
	}
	BUG_ON(ret); /* the layout is ours: its ranges are disjoint and few */
	return vm_add_kicks(vm);
}

int vm_quiesce(struct vm *vm)
{
	for (unsigned int slot = 0; slot < LAYOUT_VIRTIO_SLOTS; slot++) {
		struct virtio_dev *dev = vm->devs[slot];
		int ret = dev && dev->ops->quiesce ? dev->ops->quiesce(dev) : 0;

		if (ret) {
			log_err("%s: requests in flight do not end: %s", dev->ops->name,
				strerror(-ret));
			return ret;
		}
	}
	return 0;
}

void vm_destroy(struct vm *vm)
{
	vm_ctl_detach(vm);
	for (unsigned int slot = 0; slot < LAYOUT_VIRTIO_SLOTS; slot++) {
		virtio_destroy(vm->devs[slot]);
		vm->devs[slot] = NULL;
	}
	for (unsigned int i = 0; i < vm->nkicks; i++)
		fd_close(&vm->kicks[i].handler.fd);
	free(vm->kicks);
	vm->kicks = NULL;
	vm->nkicks = 0;
	for (unsigned int i = 0; i < VM_VCPUS_MAX; i++)
		vcpu_destroy(&vm->vcpus[i]);
	fd_close(&vm->vm_fd);
	fd_close(&vm->kvm_fd);
	fd_close(&vm->signal_handler.fd);
	fd_close(&vm->wake_handler.fd);
	fd_close(&vm->page_reads_handler.fd);
	if (vm->ev.epoll_fd >= 0)
		ev_destroy(&vm->ev);
	vm_mem_unmap(vm);
	pager_free(vm->pager);
	vm->pager = NULL;
}
