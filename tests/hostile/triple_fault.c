// SPDX-License-Identifier: Apache-2.0
// The shortest way down: no interrupt table, then a fault.
#include "lib.h"

int main(void)
{
	struct {
		u16 limit;
		u64 base;
	} __attribute__((packed)) none = {0, 0};

	say("fault", "now", 0);
	__asm__ volatile("lidt %0; ud2" : : "m"(none));
	return 0;
}
