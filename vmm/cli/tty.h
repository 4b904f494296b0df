/* SPDX-License-Identifier: Apache-2.0 */
/* This process's terminal, for a command that has one in a sandbox. */
#ifndef THAW_CLI_TTY_H
#define THAW_CLI_TTY_H

#include "vmm/util/types.h"

/**
 * tty_raw() - make terminal @fd raw: every key goes to the command. It is restored by
 * tty_restore(), and else when the process ends: by exit() or a signal that it does not block.
 * Return: 0 or -errno.
 */
int __must_check tty_raw(int fd);
/** tty_restore() - safe when nothing was made raw, and twice. */
void tty_restore(void);

#endif
