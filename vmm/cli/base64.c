// SPDX-License-Identifier: Apache-2.0
// Base64.
#include "vmm/cli/base64.h"

#include <stdlib.h>

static int value_of(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	if (c == '+')
		return 62;
	return c == '/' ? 63 : -1;
}

u8 *base64_decode(const char *text, size_t len, size_t *out_bytes)
{
	size_t padding = 0, used = 0;
	u32 bits = 0;
	u8 *out;

	while (padding < 2 && padding < len && text[len - 1 - padding] == '=')
		padding++;
	out = len % 4 ? NULL : malloc(len / 4 * 3 + 1);
	if (!out)
		return NULL;
	for (size_t i = 0; i < len; i++) {
		const int value = i >= len - padding ? 0 : value_of(text[i]);

		if (value < 0) {
			free(out);
			return NULL;
		}
		bits = bits << 6 | (u32)value;
		if (i % 4 != 3)
			continue;
		out[used++] = (u8)(bits >> 16);
		out[used++] = (u8)(bits >> 8);
		out[used++] = (u8)bits;
	}
	*out_bytes = used - padding;
	return out;
}
