/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR Apache-2.0 */
/*
 * The contract between the VMM, thaw.ko and the shim: the THAW0001 node and /dev/thaw.
 *
 * The node is 64 KiB at THAW_GPA. Its first page is registers (each access is a VM exit, "the
 * doorbell"); the rest is ordinary memory that the VMM fills before a clone runs ("the mailbox"): a
 * control page and a request area.
 *
 * THAW_CHECKPOINT is fork(2) for a machine. The caller says "I am warm"; the VMM snapshots at that
 * very instruction; the call returns once in every clone. Before it returns, and before any user
 * instruction runs on any vCPU, the kernel's CRNG has been reseeded and the real-time clock
 * stepped.
 *
 * Fields are little-endian. A reader refuses another version.
 */
#ifndef THAW_UAPI_H
#define THAW_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define THAW_ABI_VERSION 1
#define THAW_MAGIC	 0x57414854u /* "THAW" */

#define THAW_GPA	   0xd0000000ull /* registers: 4 KiB */
#define THAW_CONTROL_GPA   0xd0001000ull /* struct thaw_control: 4 KiB */
#define THAW_REQUEST_GPA   0xd0002000ull /* first request: 56 KiB */
#define THAW_NODE_BYTES	   0x10000u
#define THAW_REQUEST_BYTES 0xe000u

/* Registers: 32 bits wide, aligned; anything else reads as ones and writes nothing. */
#define THAW_REG_MAGIC	 0x00 /* r: THAW_MAGIC */
#define THAW_REG_VERSION 0x04 /* r: THAW_ABI_VERSION */
#define THAW_REG_COMMAND 0x08 /* w: enum thaw_command; complete when the write is */
#define THAW_REG_STATUS	 0x0c /* r: 0, or the positive errno of the last command */

enum thaw_command {
	THAW_CMD_CHECKPOINT = 1, /* snapshot here; EOPNOTSUPP when this VM has nowhere to put one */
	THAW_CMD_RESUMED = 2,	 /* fix-ups of a clone are done: stops clock c3 */
	THAW_CMD_READY = 3,	 /* the shim listens: the host may connect */
};

/* Where the VM generation ID (16 bytes) stands in the control page; the ACPI VGEN device names it.
 */
#define THAW_VMGENID_OFFSET 0x800u

struct thaw_control {
	__u32 magic;	  /* THAW_MAGIC */
	__u32 version;	  /* THAW_ABI_VERSION */
	__u64 generation; /* 1 at cold boot; a random number >= 2, another one for every clone */
	__u64 wall_sec;	  /* host CLOCK_REALTIME right before the vCPU runs */
	__u32 wall_nsec;
	__u32 flags;	   /* 0 */
	__u8 seed[64];	   /* host entropy for this clone alone; the module wipes it once used */
	__u8 vm_id[16];	   /* identity of this clone, also its machine-id */
	char hostname[64]; /* NUL-terminated */
	__u32 request_len_bytes; /* 0: no first request; the module sets it to 0 once handed out */
	__u32 reserved;
};

/**
 * struct thaw_checkpoint - argument of THAW_CHECKPOINT
 * @size_bytes: in, sizeof(struct thaw_checkpoint); another size is -EINVAL
 * @flags: in, 0
 * @generation: out
 * @wall_sec, @wall_nsec: out, what the real-time clock was stepped to
 * @request_ptr, @request_capacity_bytes: in, where the first request goes; 0 = do not want it
 * @request_len_bytes: out; if it is larger than the capacity nothing is copied and the request is
 * lost
 * @vm_id, @hostname: out
 */
struct thaw_checkpoint {
	__u32 size_bytes;
	__u32 flags;
	__u64 generation;
	__u64 wall_sec;
	__u32 wall_nsec;
	__u32 request_len_bytes;
	__u64 request_ptr;
	__u32 request_capacity_bytes;
	__u32 reserved;
	__u8 vm_id[16];
	char hostname[64];
};

/*
 * Return: 0 in a clone; 1 in the VM that was snapshotted, if it goes on (its own generation,
 * nothing stepped); -EOPNOTSUPP when the VM has nowhere to put a snapshot; -EIO when the host could
 * not write it; -EBUSY when another call is under way; -EINVAL or -EFAULT for a bad argument;
 * -EINTR when a signal was pending (restarted like any interrupted call).
 */
#define THAW_CHECKPOINT _IOWR(0xb7, 0x01, struct thaw_checkpoint)

/* Tells the host that the shim listens. Return: 0 or -errno. */
#define THAW_READY _IO(0xb7, 0x02)

#endif
