/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots that an owner asks for while the VM runs (CTL_SNAPSHOT_REQ): fork and pause.
 *
 * What the process needs for it and may not open once it is confined is opened by snapreq_init().
 */
#ifndef THAW_VMM_SNAPREQ_H
#define THAW_VMM_SNAPREQ_H

#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/snapshot.h"
#include "vmm/util/ctl.h"

struct vm_config;
struct snap_writer;

struct snapreq {
	const struct snap *base; /* what the VM was restored from; not owned */
	int pagemap_fd;
	bool into_only;	     /* this process sees no place that a snapshot could have: jailed */
	struct snap_hot hot; /* the base's */
	struct snap_writer *writer; /* of the request under way, or NULL */
};

/** snapreq_init() - before the system call filter; @base stays open. @pagemap_fd:
 * /proc/self/pagemap where it is open already, else -1. Return: 0 or -errno (logged). */
int __must_check snapreq_init(struct snapreq *req, const struct snap *base, int pagemap_fd);

/** snapreq_config() - @cfg's VM takes requests: CTL_SNAPSHOT_REQ gets the writer ready, or -EBUSY
 * (one is under way), -EINVAL (flags, name), -errno (logged); the next checkpoint writes; a request
 * is over then, whatever came of it, or when its owner leaves. */
void snapreq_config(struct snapreq *req, struct vm_config *cfg);

/** snapreq_end() - what was not written is removed. Safe if never initialised. */
void snapreq_end(struct snapreq *req);

#endif
