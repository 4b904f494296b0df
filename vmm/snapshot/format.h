/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte layout of the `state` file; snapshots/FORMAT.md is the authority and tells it in prose.
 *
 * One header, one section table, sections at fixed 64-byte alignment. Nothing is parsed on the way
 * in: after the checksum and the table are checked, each section is used in place as the C
 * structure of its version. Everything is hostile until checked. Little-endian, x86-64 only.
 */
#ifndef THAW_SNAPSHOT_FORMAT_H
#define THAW_SNAPSHOT_FORMAT_H

#include <linux/kvm.h>

#include "guest/module/thaw_uapi.h"
#include "vmm/util/types.h"

#define SNAP_MAGIC   0x4554415457414854ull /* "THAWTATE" as bytes T H A W T A T E */
#define SNAP_VERSION 1
/* manifest.json of a diff; its state file is of version 1. */
#define SNAP_VERSION_DIFF 2

#define SNAP_STATE_MAX_BYTES (1u << 20)
#define SNAP_SECTIONS_MAX    32

enum snap_section_id {
	SNAP_SECTION_MACHINE = 1, /* one struct snap_machine */
	SNAP_SECTION_VCPU = 2,	  /* struct snap_vcpu, one section a vCPU, in index order */
	SNAP_SECTION_IOAPIC = 3,  /* one struct snap_ioapic */
	SNAP_SECTION_VIRTIO = 4,  /* struct snap_virtio, one section a device, in slot order */
	SNAP_SECTION_CPUID = 5,	  /* struct snap_cpuid: one for all vCPUs */
};

struct snap_header {
	u64 magic;
	u32 version;
	u32 nsections;
	u64 total_bytes; /* of the file */
	u8 digest[16];	 /* XXH3-128, canonical form, of the whole file with these 16 bytes zero */
	u8 manifest_digest[16]; /* XXH3-128 of manifest.json's bytes */
	u64 reserved;
};

struct snap_section {
	u32 id;
	u32 version;	  /* of the structure; each is 1 today */
	u64 offset_bytes; /* multiple of 64, behind the table */
	u64 len_bytes;	  /* exactly the structure's size */
};

struct snap_machine {
	u64 ram_bytes;
	u32 nvcpus;
	u32 checkpoint_vcpu; /* which vCPU rang the doorbell */
	u64 pmem_bytes;	     /* mapped size (multiple of 2 MiB); 0 = no root image */
	u64 disk_bytes;	     /* size of the scratch disk; 0 = none */
	u64 generation;	     /* of the VM that was snapshotted */
	u64 tsc_khz;
	u64 host_tsc;	 /* host TSC at the moment the clock was read */
	u64 realtime_ns; /* host CLOCK_REALTIME at the snapshot */
	struct kvm_clock_data clock;
	u32 vsock_connections; /* streams open at the snapshot: a transport reset is due after a
				  restore if not 0 */
	u32 serial_lcr;
};

#define SNAP_MSRS_MAX	 192
#define SNAP_CPUID_MAX	 128
#define SNAP_XSAVE_BYTES 12288u /* AMX-sized guests are refused at build */

struct snap_cpuid {
	u32 nent;
	u32 reserved;
	struct kvm_cpuid_entry2 entries[SNAP_CPUID_MAX]; /* before the per-vCPU APIC id is put in */
};

struct snap_msr {
	u32 index;
	u32 reserved;
	u64 value;
};

struct snap_vcpu {
	struct kvm_regs regs;
	struct kvm_sregs sregs;
	struct kvm_mp_state mp_state;
	u32 pad0;
	struct kvm_vcpu_events events;
	struct kvm_debugregs debugregs;
	struct kvm_xcrs xcrs;
	struct kvm_lapic_state lapic;
	u32 nmsrs;
	u32 xsave_bytes; /* as KVM_CAP_XSAVE2 says; <= SNAP_XSAVE_BYTES */
	struct snap_msr msrs[SNAP_MSRS_MAX];
	u8 xsave[SNAP_XSAVE_BYTES];
};

struct snap_ioapic {
	u32 ioregsel;
	u32 id;
	u64 redir[24];
	u32 pending; /* edges that came while the pin was masked */
	u32 reserved;
};

#define SNAP_QUEUES_MAX	  3
#define VIRTIO_PRIV_BYTES 64

struct snap_virtq {
	u16 size;
	u16 ready;
	u16 next_avail;
	u16 next_used;
	u16 signalled_used;
	u16 reserved[3];
	u64 desc_gpa, avail_gpa, used_gpa;
};

struct snap_virtio {
	u32 slot;
	u32 id; /* virtio device type */
	u32 status;
	u32 isr;
	u32 features_sel, driver_features_sel, queue_sel;
	u32 config_generation;
	u64 driver_features;
	struct snap_virtq queues[SNAP_QUEUES_MAX];
	u8 priv[VIRTIO_PRIV_BYTES];
};

#endif
