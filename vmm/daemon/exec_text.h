/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes and numbers of an exec as JSON has them: base64, UTF-8 or not, names of signals. Pure. */
#ifndef THAW_DAEMON_EXEC_TEXT_H
#define THAW_DAEMON_EXEC_TEXT_H

#include <jansson.h>

#include "vmm/util/types.h"

/** exec_base64() - @len_bytes of @data as padded base64 with a NUL. The caller frees it; NULL: no
 * memory. */
char *exec_base64(const void *data, size_t len_bytes);

/** exec_base64_decode() - padded base64 without white space. @out: the caller frees it. Return: 0,
 * -EINVAL, -ENOMEM. */
int __must_check exec_base64_decode(const char *text, size_t len_bytes, u8 **out,
				    size_t *out_bytes);

/** exec_utf8_ok() - well-formed UTF-8 as RFC 3629 has it: no overlong form, no surrogate. */
bool exec_utf8_ok(const u8 *data, size_t len_bytes);

/** exec_utf8_cut() - how many of @len_bytes are there before a last character that is not complete;
 * @len_bytes if none is. */
size_t exec_utf8_cut(const u8 *data, size_t len_bytes);

/**
 * exec_bytes_json() - bytes as a JSON string.
 * @utf8: as text if they are valid UTF-8; else base64.
 * @encoding: set to "utf-8" or "base64".
 * Return: the caller's reference, or NULL: no memory.
 */
json_t *exec_bytes_json(const u8 *data, size_t len_bytes, bool utf8, const char **encoding);

/** exec_signal_number() - of "SIGTERM", "TERM" or 15. Return: 1 to 64, or -EINVAL. */
int exec_signal_number(const json_t *value);
/** exec_signal_name() - "SIGTERM"; "SIGRTMIN+n" for those without a name. @out: 16 bytes. */
const char *exec_signal_name(u32 number, char out[16]);

/** exec_now_ns() - CLOCK_REALTIME. */
u64 exec_now_ns(void);
/** exec_time_json() - CLOCK_REALTIME in ns as RFC 3339 UTC with milliseconds; 0: null. */
json_t *exec_time_json(u64 time_ns);

#endif
