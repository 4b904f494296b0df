// SPDX-License-Identifier: Apache-2.0
// When a running box has to stop by itself.
#include "vmm/daemon/timer.h"

#include "vmm/util/util.h"

enum timer_what timer_check(const struct timer_times *times, u64 now_ms, u64 *due_ms)
{
	u64 hard_ms = times->hard_due_ms ? times->hard_due_ms : TIMER_NEVER;
	u64 idle_ms = TIMER_NEVER;

	if (!times->uses && !times->keep_alive && times->inactivity_ms &&
	    !u64_add_ok(times->activity_ms, times->inactivity_ms, &idle_ms))
		idle_ms = TIMER_NEVER;
	*due_ms = MIN(hard_ms, idle_ms);
	if (*due_ms == TIMER_NEVER || now_ms < *due_ms)
		return TIMER_NOTHING;
	return hard_ms <= idle_ms ? TIMER_HARD : TIMER_IDLE;
}
