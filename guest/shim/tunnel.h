/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that are TCP connections to ports of the guest (SHIM_CONNECT). */
#ifndef THAW_SHIM_TUNNEL_H
#define THAW_SHIM_TUNNEL_H

#include "vmm/util/types.h"

struct shim;
struct conn;
struct tunnel;

/** tunnel_begin() - SHIM_CONNECT came on @c: a tunnel takes its stream over, or it fails. */
void tunnel_begin(struct shim *shim, struct conn *c, const u8 *payload);

/** tunnel_input() - what had been read behind the request. */
void tunnel_input(struct shim *shim, struct tunnel *t, const u8 *data, u32 len_bytes);

/** tunnel_event() - epoll events of a side. */
void tunnel_event(struct shim *shim, u32 index, u32 generation, u32 side, u32 events);

/** tunnel_run_queue() - do what can be done for those with events. */
void tunnel_run_queue(struct shim *shim);

/** tunnel_end_all() - close every one. */
void tunnel_end_all(struct shim *shim);

/** usage_reply() - SHIM_USAGE came on @c. */
void usage_reply(struct shim *shim, struct conn *c);

#endif
