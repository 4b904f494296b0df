/* SPDX-License-Identifier: Apache-2.0 */
/* Telling systemd how it goes: the protocol of sd_notify(3), a datagram to $NOTIFY_SOCKET. */
#ifndef THAW_DAEMON_SDNOTIFY_H
#define THAW_DAEMON_SDNOTIFY_H

#include "vmm/util/types.h"

/** sd_say() - "READY=1" and the like, lines parted by \n. Without $NOTIFY_SOCKET nothing happens;
 * what goes wrong is logged. */
void sd_say(const char *text);

/** sd_reloading() - RELOADING=1 with the time it must have; READY=1 is due afterwards. */
void sd_reloading(void);

/** sd_watchdog_ms() - how often "WATCHDOG=1" is to be said, half the time that systemd allows; 0:
 * never. */
u64 sd_watchdog_ms(void);

#endif
