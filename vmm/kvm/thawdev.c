// SPDX-License-Identifier: Apache-2.0
// The THAW0001 node, host side.
//
// The mailbox is ordinary guest memory that the snapshot leaves out: every start begins with zeros
// and what thawdev_fill() puts in. The generation ID at THAW_VMGENID_OFFSET changes with each
// start, but its interrupt (GED, GSI 9) is not raised: a snapshot is always taken inside the
// checkpoint call, and thaw.ko, which sees the new generation before that call returns, has the
// kernel reseed right there. An interrupt would do the same a second time, later, in a work queue.
#include "vmm/kvm/thawdev.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "vmm/kvm/vm.h"
#include "vmm/kvm/vm_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

void thawdev_init(struct thawdev *dev, struct vm *vm)
{
	*dev = (struct thawdev){.vm = vm};
}

int thawdev_fill(struct thawdev *dev, u64 generation, const struct thawdev_start *start)
{
	static const u8 zero_id[sizeof(start->vm_id)];
	u8 *mailbox = dev->vm->mailbox_hva;
	struct thaw_control *control = (struct thaw_control *)mailbox;
	struct {
		u64 generation;
		u8 seed[sizeof(control->seed)];
		u8 vm_id[sizeof(control->vm_id)];
		u8 vmgenid[16];
	} random;
	struct timespec now;

	if (start->request_len_bytes > THAW_REQUEST_BYTES) {
		log_err("first request: %u bytes, the mailbox takes %u", start->request_len_bytes,
			THAW_REQUEST_BYTES);
		return -E2BIG;
	}
	if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
		log_err("getrandom: %s", strerror(errno));
		return -EIO;
	}
	memset(control, 0, sizeof(*control));
	control->magic = THAW_MAGIC;
	control->version = THAW_ABI_VERSION;
	control->generation = generation ? generation : MAX(random.generation, (u64)2);
	dev->vm->generation = control->generation;
	memcpy(control->seed, random.seed, sizeof(control->seed));
	memcpy(control->vm_id,
	       memcmp(start->vm_id, zero_id, sizeof(zero_id)) ? start->vm_id : random.vm_id,
	       sizeof(control->vm_id));
	strncpy(control->hostname, start->hostname ? start->hostname : "thaw",
		sizeof(control->hostname) - 1);
	memcpy(mailbox + THAW_VMGENID_OFFSET, random.vmgenid, sizeof(random.vmgenid));
	if (start->request_len_bytes)
		memcpy(mailbox + (THAW_REQUEST_GPA - THAW_CONTROL_GPA), start->request,
		       start->request_len_bytes);
	control->request_len_bytes = start->request_len_bytes;
	explicit_bzero(&random, sizeof(random));

	/* Last: it is stale from here on. */
	clock_gettime(CLOCK_REALTIME, &now);
	control->wall_sec = (u64)now.tv_sec;
	control->wall_nsec = (u32)now.tv_nsec;
	return 0;
}

static void thawdev_checkpoint(struct thawdev *dev)
{
	struct vm *vm = dev->vm;

	if (!vm->cfg.checkpoint) {
		dev->status = EOPNOTSUPP;
	} else if (dev->checkpoint_pending) {
		dev->status = EBUSY;
	} else {
		dev->status = 0;
		dev->checkpoint_pending = true;
		dev->checkpoint_vcpu = vm->access_vcpu;
		/* Before this vCPU can re-enter the guest, so that it stops right behind its write.
		 */
		vm->pause.begin_ns = clock_now_ns();
		vm_pause_begin(vm);
		vm_wake(vm);
	}
}

static void thawdev_command(struct thawdev *dev, u32 command)
{
	struct vm *vm = dev->vm;

	switch (command) {
	case THAW_CMD_CHECKPOINT:
		thawdev_checkpoint(dev);
		break;
	case THAW_CMD_RESUMED:
		dev->status = 0;
		/* Each of these two is told once: a guest must not be able to flood its owner. */
		if (!vm->clocks.resumed_ns) {
			vm->clocks.resumed_ns = clock_now_ns();
			vm_notify(vm, CTL_RESUMED, 0, "");
		}
		break;
	case THAW_CMD_READY:
		dev->status = 0;
		if (!dev->ready)
			vm_notify(vm, CTL_READY, 0, "");
		dev->ready = true;
		break;
	default:
		dev->status = EINVAL;
		log_guest("thaw node: unknown command %u", command);
		break;
	}
}

void thawdev_access(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write)
{
	struct thawdev *dev = opaque;
	u32 value = ~0u;

	if (len_bytes != 4 || offset % 4) {
		if (!is_write)
			memset(data, 0xff, len_bytes);
		return;
	}
	if (is_write) {
		memcpy(&value, data, 4);
		if (offset == THAW_REG_COMMAND)
			thawdev_command(dev, value);
		return;
	}
	switch (offset) {
	case THAW_REG_MAGIC:
		value = THAW_MAGIC;
		break;
	case THAW_REG_VERSION:
		value = THAW_ABI_VERSION;
		break;
	case THAW_REG_STATUS:
		value = dev->status;
		break;
	default:
		break;
	}
	memcpy(data, &value, 4);
}
