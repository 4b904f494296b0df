/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that are known by an id and outlive their streams. */
#ifndef THAW_SHIM_KEPT_H
#define THAW_SHIM_KEPT_H

#include "guest/shim/conn.h"

/** kept_begin() - c->exec asks to be kept. Return: 0, -EEXIST (the id is taken), -EAGAIN. */
int __must_check kept_begin(struct shim *shim, struct conn *c);

/** kept_attach() - SHIM_ATTACH: the stream of @c becomes that of the command it names. */
void kept_attach(struct shim *shim, struct conn *c, const u8 *payload);

/** kept_detach() - the stream is gone; the command waits for another. */
void kept_detach(struct shim *shim, struct conn *c);

/** kept_list() / kept_forget() - SHIM_LIST, SHIM_FORGET. */
void kept_list(struct shim *shim, struct conn *c);
void kept_forget(struct shim *shim, struct conn *c, const u8 *payload);

/** kept_ended() - c->status is known: CONN_ENDED. */
void kept_ended(struct shim *shim, struct conn *c);

/** kept_progress() - of a CONN_ENDED: SHIM_EXIT in its time. */
void kept_progress(struct shim *shim, struct conn *c);

/** kept_flushed() - all that was queued is sent. */
void kept_flushed(struct shim *shim, struct conn *c);

/** kept_push_out() - give up the ended one that was acknowledged and ended first. Return: false
 * when there is none. */
bool kept_push_out(struct shim *shim);

/** kept_count() - those that run and those that have ended. */
u32 kept_count(const struct shim *shim);

#endif
