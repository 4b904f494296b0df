/* SPDX-License-Identifier: Apache-2.0 */
/* Between the pager's two sides. */
#ifndef THAW_SNAPSHOT_PAGER_INTERNAL_H
#define THAW_SNAPSHOT_PAGER_INTERNAL_H

#include "vmm/snapshot/pager.h"

/** From a server, once: it is set up and confined. */
#define PAGER_READY	  'r'
#define PAGER_READY_PLAIN 'p' /* without io_uring */

/** To a server, once: serve these. */
struct pager_task {
	struct pager_range ranges[PAGER_RANGES];
	u32 nranges;
	u32 reserved;
};

/** What a server process has. */
struct pager_server_args {
	struct pager_config cfg;
	int uffd;
	int sock; /* to its VMM: SOCK_SEQPACKET; the end of it is the server's */
	int parent_pid;
	struct pager_stats *stats; /* shared memory */
};

/** pager_server() - a server's life, from fork() on. */
_Noreturn void pager_server(const struct pager_server_args *args);

#endif
