/* SPDX-License-Identifier: Apache-2.0 */
/* A transmit-only 8250 at LAYOUT_SERIAL_PORT, for boots that die before a virtio console can speak.
 */
#ifndef THAW_KVM_SERIAL_H
#define THAW_KVM_SERIAL_H

#include "vmm/util/types.h"

#define SERIAL_LINE_BYTES 128

struct serial {
	int out_fd; /* -1: dropped; not owned */
	u8 ier, lcr, mcr, scr, fcr;
	u8 dll, dlm;
	u32 used_bytes;
	u8 line[SERIAL_LINE_BYTES]; /* written out at a newline or when full */
};

/** serial_init() - reset values. Never raises an interrupt, so only the kernel's polled console
 * works on it. */
void serial_init(struct serial *serial, int out_fd);

/** serial_access() - bus_fn of the eight ports; @opaque is the serial. Never blocks: what @out_fd
 * can't take is dropped. */
void serial_access(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write);

/** serial_flush() - write out an unfinished line. */
void serial_flush(struct serial *serial);

#endif
