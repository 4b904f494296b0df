/* SPDX-License-Identifier: Apache-2.0 */
/* What one page costs by each way of getting it. */
#ifndef THAW_BENCH_PAGE_COST_H
#define THAW_BENCH_PAGE_COST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PAGE_COST_PAGES 4096 /* of one measurement: 16 MiB */

/** Ways to make PAGE_COST_PAGES pages usable. */
enum page_cost {
	PAGE_READ_FAULT,     /* private mapping of cached file pages, read: fault-around maps 16 */
	PAGE_READ_FAULT_ONE, /* the same, registered for write protection: no fault-around */
	PAGE_WRITE_FAULT,    /* the same mapping, written: a copy each */
	PAGE_ANON_FAULT,     /* fresh anonymous memory, written */
	PAGE_POPULATE_READ,  /* MADV_POPULATE_READ of the file's mapping */
	PAGE_POPULATE_WRITE, /* MADV_POPULATE_WRITE of it */
	PAGE_UFFD_COPY,	     /* UFFDIO_COPY, a page a call */
	PAGE_UFFD_COPY_16,   /* 16 pages a call */
	PAGE_PRE_FAULT,	     /* KVM_PRE_FAULT_MEMORY of populated pages into a VM's page tables */
	PAGE_PRE_FAULT_COLD, /* of pages that are in the page cache only */
	PAGE_COSTS,
};

/** page_cost_once() - @ns: what all PAGE_COST_PAGES pages took, mapping and unmapping left out.
 * Return: 0, -EOPNOTSUPP where the kernel or this KVM has no such call, or -errno. */
int page_cost_once(enum page_cost way, uint64_t *ns);

/** page_cost_name() - short name of @way. */
const char *page_cost_name(enum page_cost way);

#ifdef __cplusplus
}
#endif

#endif
