// SPDX-License-Identifier: GPL-2.0-only
/*
 * The checkpoint itself: the doorbell and a clone's fix-ups, with the whole machine held.
 *
 * Theory of operation
 * ===================
 *
 * THAW_CHECKPOINT is fork(2) for a machine. Like fork, it must not let the child see the world with
 * the parent's identity: from the snapshot's instruction on, no user instruction may run on any CPU
 * of a clone before the kernel's random generator has been reseeded and the real-time clock
 * stepped. The call therefore owns the whole machine while it happens.
 *
 * stop_machine() is how it comes to own it. Every CPU ends up in its stopper thread, which nothing
 * preempts (neither SCHED_FIFO nor SCHED_DEADLINE), with interrupts off. Threads of our own would
 * have to win against user tasks of the highest priority, and would deadlock with another
 * stop_machine() that collects the same CPUs in another order. One CPU, the caller's, leads:
 *
 *   phase   leader                                      other CPUs
 *   DARK    doorbell; the VMM snapshots here            spin, interrupts off
 *           a clone: reseed
 *   CLOCK   step the clock, publish the generation      spin, interrupts on
 *   DONE    return                                      return
 *
 * DARK needs nothing of the other CPUs, so it keeps interrupts off everywhere: not even the
 * kernel's own interrupt and softirq work can draw a random number that a sibling draws too.
 * Stepping the clock is another matter: do_settimeofday64() sends IPIs to CPUs with a timer on that
 * clock and waits for them, so interrupts must be on, on all CPUs, from then. They are switched on
 * inside the stop_machine() callback. This is sound: a CPU is in the callback only after all have
 * agreed to run it, preemption stays off, and each CPU switches them off again before it returns.
 *
 * Nothing here may sleep: another task would run. What the calls could sleep on, and why they do
 * not:
 *
 *   CPU hotplug (its reader side, in do_settimeofday64)
 *           cpu_hotplug_disable() has kept every writer away since before.
 *   memory reclaim (for a CPU mask, same place)
 *           PF_MEMALLOC opens the reserves instead, and the callee copes with a failure.
 *   the rwsem of the vmfork notifiers
 *           A writer holds it only while a notifier comes or goes.
 *   a notifier
 *           Of the stock kernel's only WireGuard's sleeps, when its locks are contended; a template
 *           with its tunnels in flux is not supported.
 *
 * The reseed. add_vmfork_randomness() is what the kernel has for this: it mixes the bytes in,
 * reseeds at once, which invalidates every CPU's generator, every batch of random integers and the
 * vDSO's state, and tells the notifiers. It is not exported, so its address comes from a kprobe
 * that is never armed. The way by the VM generation device is a work item, thus too late
 * (docs/design-changes.md).
 *
 * Which side is this? The VMM gives each clone another generation in the control page. The page,
 * not the status register, decides.
 *
 * A clone whose identity can't be made whole must not run: that is a panic, which ends its VM.
 */

#define pr_fmt(fmt) "thaw: " fmt

#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/errno.h>
#include <linux/io.h>
#include <linux/irqflags.h>
#include <linux/kprobes.h>
#include <linux/nmi.h>
#include <linux/panic.h>
#include <linux/sched/mm.h>
#include <linux/stop_machine.h>
#include <linux/string.h>
#include <linux/timekeeping.h>

#include <asm/cpufeature.h>

#include "hold.h"

enum thaw_phase {
	THAW_PHASE_DARK,
	THAW_PHASE_CLOCK,
	THAW_PHASE_DONE,
};

/* One checkpoint; on the caller's stack, which stop_machine() keeps alive. */
struct thaw_hold {
	struct thaw *thaw;
	unsigned int leader;
	enum thaw_phase phase;
	int result; /* of the ioctl */
	struct timespec64 wall;
};

static void (*thaw_reseed)(const void *unique_vm_id, size_t len_bytes);

/* The kprobe is registered disabled: it finds the symbol and never patches the kernel's text. */
int __init thaw_hold_init(void)
{
	struct kprobe probe = {
		.symbol_name = "add_vmfork_randomness",
		.flags = KPROBE_FLAG_DISABLED,
	};
	int ret;

	/* The address is past the function's ENDBR, which the kernel has erased in any case. */
	if (boot_cpu_has(X86_FEATURE_IBT)) {
		pr_err("indirect branch tracking is on; the VMM must hide it, or boot with ibt=off\n");
		return -EOPNOTSUPP;
	}
	ret = register_kprobe(&probe);
	if (ret) {
		pr_err("this kernel has no add_vmfork_randomness() that can be found: %d\n", ret);
		return ret;
	}
	thaw_reseed = (void *)probe.addr;
	unregister_kprobe(&probe);
	return 0;
}

void thaw_take_identity(struct thaw *thaw)
{
	memcpy(thaw->vm_id, thaw->control->vm_id, sizeof(thaw->vm_id));
	memcpy(thaw->hostname, thaw->control->hostname, sizeof(thaw->hostname));
	thaw->hostname[sizeof(thaw->hostname) - 1] = '\0';
}

/*
 * Everything is checked before the page is believed: a clone may be run by another VMM than the
 * template was, and one that speaks another version of the contract would have this machine run
 * with a wrong identity.
 */
static void thaw_become_clone(struct thaw_hold *hold, u64 generation)
{
	struct thaw *thaw = hold->thaw;
	struct thaw_control *control = thaw->control;
	ktime_t arrived = ktime_get();
	unsigned int noreclaim;
	int ret;

	if (READ_ONCE(control->magic) != THAW_MAGIC ||
	    READ_ONCE(control->version) != THAW_ABI_VERSION)
		panic("thaw: control page has magic %#x version %u, expected version %u",
		      control->magic, control->version, THAW_ABI_VERSION);

	/* First of all, and still dark: nothing in the kernel draws from the old state. */
	thaw_reseed(control->seed, sizeof(control->seed));
	memzero_explicit(control->seed, sizeof(control->seed));

	hold->wall.tv_sec = READ_ONCE(control->wall_sec);
	hold->wall.tv_nsec = READ_ONCE(control->wall_nsec);
	thaw_take_identity(thaw);

	/* Release: the others must see no phase before the reseed is complete. */
	smp_store_release(&hold->phase, THAW_PHASE_CLOCK);
	local_irq_enable();
	noreclaim = memalloc_noreclaim_save();
	/* The VMM read its clock before this CPU ran, and a reseed in cold memory takes time. */
	if (timespec64_valid_strict(&hold->wall))
		hold->wall = timespec64_add(hold->wall,
					    ktime_to_timespec64(ktime_sub(ktime_get(), arrived)));
	ret = do_settimeofday64(&hold->wall);
	memalloc_noreclaim_restore(noreclaim);
	local_irq_disable();
	if (ret)
		panic("thaw: can't step the clock to %lld.%09ld: %d", hold->wall.tv_sec,
		      hold->wall.tv_nsec, ret);

	/* Last: whoever sees this generation sees its entropy and time, too. */
	smp_store_release(&thaw->generation, generation);
	hold->result = 0;
}

int thaw_status_to_errno(u32 status)
{
	if (!status)
		return 0;
	return status <= MAX_ERRNO ? -(int)status : -EIO;
}

static void thaw_hold_lead(struct thaw_hold *hold)
{
	struct thaw *thaw = hold->thaw;
	u64 generation;
	u32 status;

	/* The write is a VM exit; whoever comes back from it is the origin or a clone. */
	writel(THAW_CMD_CHECKPOINT, thaw->registers + THAW_REG_COMMAND);
	status = readl(thaw->registers + THAW_REG_STATUS);
	/* The page was written while this CPU stood in the exit: no load of it may be older. */
	mb();
	generation = READ_ONCE(thaw->control->generation);
	if (generation != thaw->generation)
		thaw_become_clone(hold, generation);
	else
		hold->result = status ? thaw_status_to_errno(status) : 1;
	smp_store_release(&hold->phase, THAW_PHASE_DONE);
}

static void thaw_hold_follow(struct thaw_hold *hold)
{
	while (smp_load_acquire(&hold->phase) == THAW_PHASE_DARK)
		cpu_relax();
	/* The leader may wait for this CPU's answer to an IPI. */
	local_irq_enable();
	while (smp_load_acquire(&hold->phase) != THAW_PHASE_DONE)
		cpu_relax();
	local_irq_disable();
}

/* Runs on every CPU at once; see stop_machine(). */
static int thaw_hold_fn(void *opaque)
{
	struct thaw_hold *hold = opaque;

	if (smp_processor_id() == hold->leader)
		thaw_hold_lead(hold);
	else
		thaw_hold_follow(hold);
	/* An origin may have stood still for seconds while its memory was written. */
	touch_nmi_watchdog();
	return 0;
}

int thaw_hold_checkpoint(struct thaw *thaw, struct timespec64 *wall)
{
	struct thaw_hold hold = {.thaw = thaw, .phase = THAW_PHASE_DARK};
	int ret;

	/* Also waits for a CPU that is coming or going, so that the set of CPUs is settled. */
	cpu_hotplug_disable();
	hold.leader = raw_smp_processor_id();
	ret = stop_machine(thaw_hold_fn, &hold, cpu_online_mask);
	cpu_hotplug_enable();
	*wall = hold.wall;
	return ret ? ret : hold.result;
}
