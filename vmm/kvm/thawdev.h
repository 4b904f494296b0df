/* SPDX-License-Identifier: Apache-2.0 */
/* The THAW0001 node, host side: doorbell registers and the mailbox. guest/module/thaw_uapi.h is the
 * contract. */
#ifndef THAW_KVM_THAWDEV_H
#define THAW_KVM_THAWDEV_H

#include "guest/module/thaw_uapi.h"
#include "vmm/util/types.h"

struct vm;

struct thawdev {
	struct vm *vm;
	u32 status;		 /* THAW_REG_STATUS */
	bool checkpoint_pending; /* set by the vCPU, taken by the event loop */
	unsigned int checkpoint_vcpu;
	bool ready; /* THAW_CMD_READY was told to the owner */
};

/** What a start hands to the guest; generation, clock and seed are made by thawdev_fill(). */
struct thawdev_start {
	const char *hostname;  /* NULL: "thaw"; cut at 63 bytes */
	const void *request;   /* first request (a SHIM_EXEC payload), or NULL */
	u32 request_len_bytes; /* <= THAW_REQUEST_BYTES */
	u8 vm_id[16];	       /* all zero: a random one is made */
};

/** thawdev_init() - registers. The mailbox memory is vm->mailbox_hva. */
void thawdev_init(struct thawdev *dev, struct vm *vm);

/**
 * thawdev_fill() - write the control page, VM generation ID and request right before the vCPUs run.
 * @generation: 1 for a boot; for a restore a random number >= 2 is drawn when @generation is 0.
 *
 * Return: 0 or -errno (no entropy, request too long).
 */
int __must_check thawdev_fill(struct thawdev *dev, u64 generation,
			      const struct thawdev_start *start);

/** thawdev_access() - bus_fn for the register page; @opaque is the thawdev. Called with dev_lock
 * held. */
void thawdev_access(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write);

#endif
