/* SPDX-License-Identifier: Apache-2.0 */
/* When a running box has to stop by itself. The clock is the caller's: milliseconds of one that
 * only goes forward. */
#ifndef THAW_DAEMON_TIMER_H
#define THAW_DAEMON_TIMER_H

#include "vmm/util/types.h"

#define TIMER_NEVER UINT64_MAX

enum timer_what {
	TIMER_NOTHING,
	TIMER_IDLE, /* nobody used it for its inactivity time-out */
	TIMER_HARD, /* its hard time-out, which nothing extends */
};

struct timer_times {
	u64 activity_ms;   /* when it was used last */
	u64 inactivity_ms; /* how long it may be unused; 0: for ever */
	u64 hard_due_ms;   /* 0: no hard time-out */
	u32 uses;	   /* requests and streams that are open on it: it is in use now */
	bool keep_alive;   /* never idle */
};

/** timer_check() - what is due at @now_ms. @due_ms: when the next one is or was; TIMER_NEVER:
 * nothing, as things are. */
enum timer_what timer_check(const struct timer_times *times, u64 now_ms, u64 *due_ms);

#endif
