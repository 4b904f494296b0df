/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine: one VM a process.
 *
 * Life: vm_create() makes the VM and its memory slots; vm_create_vcpus() the irqchip and vCPUs
 * (always after the memory slots: the other order costs milliseconds, anchors/restore.md §3.3);
 * devices; then vm_boot_setup() or snapshot restore fills registers; vm_run() runs the event loop
 * and one thread a vCPU until the VM ends.
 *
 * Locks: dev_lock guards devices, ioapic and thawdev. The event loop holds it in callbacks, vCPU
 * threads while they serve a register access.
 */
#ifndef THAW_KVM_VM_H
#define THAW_KVM_VM_H

#include <pthread.h>

#include "vmm/kvm/bus.h"
#include "vmm/kvm/gmem.h"
#include "vmm/kvm/ioapic.h"
#include "vmm/kvm/layout.h"
#include "vmm/kvm/serial.h"
#include "vmm/kvm/thawdev.h"
#include "vmm/kvm/vcpu.h"
#include "vmm/snapshot/format.h"
#include "vmm/util/ctl.h"
#include "vmm/util/ev.h"
#include "vmm/virtio/devices.h"

struct pager;

struct vm_config {
	u64 ram_bytes;
	unsigned int nvcpus;
	int pmem_fd;	   /* read-only root image, or -1; not owned */
	u64 pmem_bytes;	   /* mapped size, multiple of 2 MiB, >= the file's size */
	int disk_base_fd;  /* or -1; not owned */
	int disk_delta_fd; /* -1: no disk; not owned */
	u64 disk_bytes;
	int console_fd;		/* -1: dropped; not owned */
	bool serial;		/* transmit-only 8250 to console_fd, for boots that die early */
	int ctl_fd;		/* -1: none; not owned, but closed when an owner leaves */
	int ctl_listen_fd;	/* 0: the VM ends with its owner. Else a SOCK_SEQPACKET listener:
				   it goes on, and the next owner comes there; not owned */
	int vsock_listen_fd;	/* -1: none. Firecracker-like: a client connects, sends "CONNECT
				   port\n", gets "OK port\n" */
	const char *vsock_path; /* guest-initiated streams connect to "<path>_<port>"; NULL: refused
				   unless ctl_fd is there */
	/* What to do at a checkpoint: NULL = refuse. Called on the event loop with every vCPU
	 * stopped; 0 or -errno. */
	int (*checkpoint)(struct vm *vm, void *opaque);
	void *checkpoint_opaque;
	bool checkpoint_exit; /* end the VM after a successful checkpoint */
	/* CTL_SNAPSHOT_REQ: have @checkpoint write @msg->text in @folder_fd (owned), and set
	 * checkpoint_exit. 0 or -errno. NULL: refused. snapshot_cancel(): its owner is gone. Both
	 * get checkpoint_opaque. */
	int (*snapshot_request)(struct vm *vm, void *opaque, const struct ctl_msg *msg,
				int folder_fd);
	void (*snapshot_cancel)(struct vm *vm, void *opaque);
	/* NULL: run at once. Otherwise vm_run() tells CTL_WAITING and waits for CTL_START, and this
	 * is called on the event loop right before the vCPUs run, under the system call filter.
	 * @request_fd: -1 or the file that came along; not owned. 0 or -errno (logged): the VM
	 * ends. */
	int (*start)(struct vm *vm, void *opaque, const char *hostname, int request_fd);
	void *start_opaque;
	u64 deadline_ms;     /* the VM ends when it has run for so long; 0: never. One that waits
				gets its own with CTL_START */
	bool owner_by_path;  /* users can't be told from each other (user namespace): who may open
				the listener's path is an owner */
	bool sandbox;	     /* vm_run() applies the system call filters before the guest runs */
	u32 sandbox_options; /* enum seccomp_options */
};

enum vm_stop {
	VM_RUNNING = 0,
	VM_STOP_POWEROFF,
	VM_STOP_RESET,
	VM_STOP_REQUESTED,
	VM_STOP_SNAPSHOT,
	VM_STOP_ERROR,
	VM_STOP_DEADLINE,
};

#define VM_DEADLINE_MAX_MS (10ull * 365 * 86400 * 1000)

/**
 * Rendezvous of the vCPU threads, guarded by dev_lock; @requested and @exit are also read without
 * it, by vCPU threads on their way into KVM_RUN. A thread that sees @requested completes its last
 * exit, counts itself in @parked and waits for @go.
 */
struct vm_pause {
	bool requested;
	bool exit; /* threads end instead of waiting */
	unsigned int parked;
	u64 begin_ns; /* when the guest asked for a checkpoint */
	pthread_cond_t all_parked, go;
};

/** The ioeventfd of one queue. */
struct vm_kick {
	struct ev_handler handler;
	struct vm *vm;
	unsigned int slot, queue;
};

struct vm {
	struct vm_config cfg;
	int kvm_fd, vm_fd;
	struct gmem gmem;
	void *low_hva, *high_hva; /* RAM mappings; high is NULL when there is none */
	void *mailbox_hva;	  /* THAW_NODE_BYTES - 4 KiB, from THAW_CONTROL_GPA */
	void *pmem_hva;
	struct bus mmio, pio;
	struct ioapic ioapic;
	struct thawdev thawdev;
	struct serial serial;
	struct snap_cpuid cpuid;
	struct vcpu vcpus[VM_VCPUS_MAX];
	unsigned int access_vcpu; /* whose register access is being served; under dev_lock */
	u64 tsc_offset;		  /* one for all vCPUs; set by vcpu_load() of vCPU 0 */

	struct virtio_host virtio_host;
	struct vsock_owner vsock_owner;
	struct virtio_dev *devs[LAYOUT_VIRTIO_SLOTS]; /* NULL: absent */
	struct vm_kick *kicks;			      /* ioeventfd handlers, one a queue */
	unsigned int nkicks;

	struct ev ev;
	pthread_mutex_t dev_lock;
	struct vm_pause pause;
	struct ev_handler ctl_handler, owner_handler, listen_handler, signal_handler, wake_handler,
		deadline_handler;
	struct pager *pager; /* brings missing pages of RAM (snapshot/pager.h), or NULL; owned */
	struct ev_handler pager_handler;
	/* RAM's mapping is advised MADV_RANDOM, for this long after vm_run() began; 0: it is not.
	 * See vm_mem.c. */
	u64 page_reads_ns;
	struct ev_handler page_reads_handler;
	struct vm_greeter
		*greeters;  /* clients of the vsock listener that did not send their line yet */
	bool waiting;	    /* for CTL_START */
	bool listen_paused; /* the listener is not watched: no file was left for a client */
	enum vm_stop stop;
	int stop_error;
	char stop_text[160];
	struct ctl_clocks clocks;
	u32 pause_us; /* of the last checkpoint */
	u64 generation;
	char start_note[80]; /* told in CTL_RUNNING: what was not done as asked ("copy+pread"), or
				"" */
};

/** vm_ram_map_anon() - fresh anonymous RAM for a boot: sets low_hva, high_hva. Return: 0 or -errno
 * (logged). */
int __must_check vm_ram_map_anon(struct vm *vm);

/**
 * vm_create() - open /dev/kvm, create the VM, register every memory slot (RAM must be mapped:
 * vm_ram_map_anon() or a restore strategy), mailbox and pmem included. @cfg is copied. Return: 0 or
 * -errno (logged); vm_destroy() is due in both cases.
 */
int __must_check vm_create(struct vm *vm);

/** vm_init() - an empty vm around @cfg; always succeeds, everything vm_destroy() needs is set. */
void vm_init(struct vm *vm, const struct vm_config *cfg);

/** vm_create_vcpus() - split irqchip, vCPUs with @vm->cpuid (filled from KVM_GET_SUPPORTED_CPUID
 * when nent is 0, adjusted by cpuid.c). */
int __must_check vm_create_vcpus(struct vm *vm);

/** vm_create_devices() - the virtio devices of cfg, buses, ioeventfds. */
int __must_check vm_create_devices(struct vm *vm);

/** vm_run() - start the vCPU threads and serve until the VM ends. Return: 0 (vm->stop says why) or
 * -errno. */
int __must_check vm_run(struct vm *vm);

/** vm_request_stop() - under dev_lock, any thread: end the VM; the first reason given stays. */
void vm_request_stop(struct vm *vm, enum vm_stop stop, int error, const char *text);

/** vm_wake() - under dev_lock, any thread: have the event loop look at thawdev.checkpoint_pending
 * and vm->stop. */
void vm_wake(struct vm *vm);

/** vm_notify() - send a control message with the VM's clocks and generation; no-op without a
 * channel. A peer that does not read loses it (logged). */
void vm_notify(struct vm *vm, enum ctl_type type, int error, const char *text);

/** vm_quiesce() - at a checkpoint, vCPUs stopped: no device request in flight any more. Return: 0
 * or -errno. */
int __must_check vm_quiesce(struct vm *vm);

/** vm_destroy() - free all; the process usually exits instead. */
void vm_destroy(struct vm *vm);

#endif
