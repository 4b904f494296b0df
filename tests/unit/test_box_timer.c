// SPDX-License-Identifier: Apache-2.0
// When a box has to stop, by a clock that the test turns; and how much may run.
#include <errno.h>

#include "test.h"
#include "vmm/daemon/quota.h"
#include "vmm/daemon/timer.h"

#define SECOND ((u64)1000)
#define MINUTE (60 * SECOND)

/** Turn the clock by whole seconds from @from_ms on until something is due. Return: when. */
static u64 run_until_due(const struct timer_times *times, u64 from_ms, u64 end_ms,
			 enum timer_what *what)
{
	u64 now_ms, due_ms;

	for (now_ms = from_ms; now_ms <= end_ms; now_ms += SECOND) {
		*what = timer_check(times, now_ms, &due_ms);
		if (*what != TIMER_NOTHING)
			return now_ms;
		/* And whoever sleeps until then misses nothing. */
		CHECK(due_ms > now_ms);
	}
	return 0;
}

static void test_idle_to_the_second(void)
{
	struct timer_times times = {.activity_ms = 100 * SECOND, .inactivity_ms = 10 * MINUTE};
	enum timer_what what;
	u64 due_ms;

	CHECK_EQ(run_until_due(&times, 100 * SECOND, 10000 * SECOND, &what), 700 * SECOND);
	CHECK_EQ(what, TIMER_IDLE);
	CHECK_EQ(timer_check(&times, 700 * SECOND - 1, &due_ms), TIMER_NOTHING);
	CHECK_EQ(due_ms, 700 * SECOND);
	/* A touch in the last second: the whole time-out again. */
	times.activity_ms = 699 * SECOND;
	CHECK_EQ(run_until_due(&times, 700 * SECOND, 10000 * SECOND, &what), 1299 * SECOND);
}

static void test_used_is_not_idle(void)
{
	struct timer_times times = {.activity_ms = 1, .inactivity_ms = SECOND, .uses = 1};
	enum timer_what what;
	u64 due_ms;

	CHECK_EQ(run_until_due(&times, 1, 1000 * MINUTE, &what), 0);
	CHECK_EQ(timer_check(&times, 1000 * MINUTE, &due_ms), TIMER_NOTHING);
	CHECK_EQ(due_ms, TIMER_NEVER);
	times.uses = 0;
	CHECK_EQ(timer_check(&times, 1000 * MINUTE, &due_ms), TIMER_IDLE);
	times.keep_alive = true;
	CHECK_EQ(timer_check(&times, 1000 * MINUTE, &due_ms), TIMER_NOTHING);
	times = (struct timer_times){.activity_ms = 1};
	CHECK_EQ(timer_check(&times, UINT64_MAX - 1, &due_ms), TIMER_NOTHING);
}

static void test_hard_to_the_second(void)
{
	struct timer_times times = {.activity_ms = 0,
				    .inactivity_ms = 10 * MINUTE,
				    .hard_due_ms = 3600 * SECOND,
				    .uses = 3,
				    .keep_alive = true};
	enum timer_what what;
	u64 due_ms;

	/* Neither use nor keep_alive extends it. */
	CHECK_EQ(run_until_due(&times, 0, 10000 * SECOND, &what), 3600 * SECOND);
	CHECK_EQ(what, TIMER_HARD);
	CHECK_EQ(timer_check(&times, 3600 * SECOND - 1, &due_ms), TIMER_NOTHING);
	/* The earlier one counts; of two at once the hard one. */
	times.uses = 0;
	times.keep_alive = false;
	CHECK_EQ(run_until_due(&times, 0, 10000 * SECOND, &what), 600 * SECOND);
	CHECK_EQ(what, TIMER_IDLE);
	times.activity_ms = 3000 * SECOND;
	CHECK_EQ(run_until_due(&times, 3000 * SECOND, 10000 * SECOND, &what), 3600 * SECOND);
	CHECK_EQ(what, TIMER_HARD);
}

static void test_overflow(void)
{
	struct timer_times times = {.activity_ms = UINT64_MAX - 5, .inactivity_ms = 100};
	u64 due_ms;

	CHECK_EQ(timer_check(&times, UINT64_MAX - 1, &due_ms), TIMER_NOTHING);
	CHECK_EQ(due_ms, TIMER_NEVER);
}

static void test_quota(void)
{
	struct quota quota;
	char why[200];

	quota_init(&quota, 2, 3, 1024, 100, 100);
	CHECK_EQ(quota_take(&quota, 2, 100, why, sizeof(why)), 0);
	CHECK_EQ(quota_take(&quota, 2, 100, why, sizeof(why)), -EDQUOT);
	CHECK(strstr(why, "max_vcpus") && strstr(why, "2 of 3"));
	CHECK_EQ(quota_take(&quota, 1, 925, why, sizeof(why)), -EDQUOT);
	CHECK(strstr(why, "max_memory"));
	/* A refusal takes nothing. */
	CHECK_EQ(quota_take(&quota, 1, 924, why, sizeof(why)), 0);
	quota_force(&quota, 8, 4096);
	CHECK_EQ(quota_take(&quota, 0, 0, why, sizeof(why)), -EDQUOT);
	quota_give(&quota, 8, 4096);
	quota_give(&quota, 1, 924);
	quota_give(&quota, 2, 100);
	/* Sandboxes count whether they run or not. */
	CHECK_EQ(quota_add(&quota, why, sizeof(why)), 0);
	CHECK_EQ(quota_add(&quota, why, sizeof(why)), 0);
	CHECK_EQ(quota_add(&quota, why, sizeof(why)), -EDQUOT);
	CHECK(strstr(why, "max_sandboxes") && strstr(why, "2 of 2"));
	quota_add_force(&quota);
	quota_drop(&quota);
	CHECK_EQ(quota_add(&quota, why, sizeof(why)), -EDQUOT);
	quota_drop(&quota);
	quota_drop(&quota);
	for (int i = 0; i < BOX_QUOTAS; i++)
		CHECK_EQ(quota.of[i].used, 0);
	quota_init(&quota, 0, 0, 0, 400, 50);
	CHECK(quota.of[BOX_QUOTA_VCPUS].max >= 4 && quota.of[BOX_QUOTA_MEMORY].max > MIB);
	CHECK_EQ(quota.of[BOX_QUOTA_SANDBOXES].max, 0);
	quota.of[BOX_QUOTA_SANDBOXES].used = UINT64_MAX - 1;
	CHECK_EQ(quota_add(&quota, why, sizeof(why)), 0);
}

static void test_pressure(void)
{
	u64 value;

	CHECK_EQ(
		psi_some_avg10("some avg10=12.34 avg60=0.00 avg300=0.00 total=1\nfull ...", &value),
		0);
	CHECK_EQ(value, 1234);
	CHECK_EQ(psi_some_avg10("full avg10=1.00", &value), -EINVAL);
	CHECK_EQ(psi_some_avg10("", &value), -EINVAL);
	CHECK_EQ(psi_some_avg10("some avg10=101.00", &value), -EINVAL);
}

TEST_MAIN({"idle, to the second", test_idle_to_the_second},
	  {"used is not idle", test_used_is_not_idle},
	  {"hard, to the second", test_hard_to_the_second}, {"overflow", test_overflow},
	  {"quota", test_quota}, {"pressure", test_pressure})
