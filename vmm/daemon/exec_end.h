/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an exec: written down, told, and forgotten by the guest. */
#ifndef THAW_DAEMON_EXEC_END_H
#define THAW_DAEMON_EXEC_END_H

struct kept;
struct kept_end;

/** kept_ended() - by its puller, which has closed its stream: the end is written to disk before
 * the shim is told to forget it. */
void kept_ended(struct kept *kept, const struct kept_end *end);

/** kept_stream() - a new stream to its shim. Return: the fd, -ENODEV: there is no such machine any
 * more, or -errno. */
int kept_stream(struct kept *kept);
/** kept_forget() - tell the shim; waits for some seconds at most. */
void kept_forget(struct kept *kept);

#endif
