/* SPDX-License-Identifier: Apache-2.0 */
/* Base64 (RFC 4648, 4), as thawd writes it. */
#ifndef THAW_CLI_BASE64_H
#define THAW_CLI_BASE64_H

#include "vmm/util/types.h"

/** base64_decode() - @len characters, padded, without white space. Return: the bytes, which the
 * caller frees, with their number in @out_bytes; NULL: malformed, or out of memory. */
u8 *base64_decode(const char *text, size_t len, size_t *out_bytes);

#endif
