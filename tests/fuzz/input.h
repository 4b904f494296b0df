/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzzer's input as a stream of little-endian numbers; zeros when it is used up. */
#ifndef THAW_TESTS_FUZZ_INPUT_H
#define THAW_TESTS_FUZZ_INPUT_H

#include "vmm/util/types.h"

struct input {
	const u8 *data;
	size_t left;
};

static inline u32 input_take(struct input *in, unsigned int len_bytes)
{
	u32 value = 0;

	for (unsigned int i = 0; i < len_bytes && in->left; i++, in->left--)
		value |= (u32)*in->data++ << (8 * i);
	return value;
}

#endif
