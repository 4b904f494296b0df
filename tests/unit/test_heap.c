// SPDX-License-Identifier: Apache-2.0
// The heap of a thaw-vmm: what of a large table is not used is no memory.
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/unit/test.h"
#include "vmm/util/util.h"

#define TABLE_BYTES (512 * KIB)

#ifdef THAW_SANITIZER
static void test_untouched(void)
{
	/* The sanitizer's allocator takes no advice; this is what there is to see with it. */
	void *table = calloc(1, TABLE_BYTES);

	heap_prepare();
	CHECK(table);
	free(table);
}
#else
static void test_untouched(void)
{
	unsigned char there[TABLE_BYTES / PAGE_SIZE_BYTES + 1];
	unsigned int npages = 0;
	char *table, *page;

	heap_prepare();
	/* A large block that comes and goes would make malloc keep the next one in the heap. */
	table = malloc(TABLE_BYTES);
	CHECK(table);
	memset(table, 1, TABLE_BYTES);
	free(table);
	table = calloc(1, TABLE_BYTES);
	CHECK(table);
	page = (char *)((uintptr_t)table & ~(PAGE_SIZE_BYTES - 1));
	CHECK_EQ(mincore(page, TABLE_BYTES, there), 0);
	for (u64 i = 0; i < TABLE_BYTES / PAGE_SIZE_BYTES; i++)
		npages += there[i] & 1;
	CHECK(npages <= 1);
	table[TABLE_BYTES / 2] = 1;
	CHECK_EQ(mincore(page, TABLE_BYTES, there), 0);
	CHECK(there[(TABLE_BYTES / 2 + (u64)(table - page)) / PAGE_SIZE_BYTES] & 1);
	free(table);
}
#endif

TEST_MAIN({"untouched", test_untouched})
