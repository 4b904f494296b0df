/* SPDX-License-Identifier: Apache-2.0 */
/* The guest's first request, as its owner passes it. */
#ifndef THAW_VMM_REQUEST_H
#define THAW_VMM_REQUEST_H

#include "vmm/kvm/thawdev.h"

/**
 * request_read() - all of @fd into @out; -1: nothing.
 * @is_file: only a file will do, whose reads always end; it is read from its start.
 *
 * Return: 0 or -errno (logged).
 */
int __must_check request_read(int fd, bool is_file, char out[THAW_REQUEST_BYTES], u32 *len_bytes);

#endif
