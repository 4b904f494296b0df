// SPDX-License-Identifier: Apache-2.0
// The output ring of a kept exec: any order of output, acknowledgements and readers.
#include "tests/fuzz/input.h"
#include "tests/unit/ring_model.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct input in = {data, size};
	struct ring_model m;

	ring_model_init(&m);
	while (in.left) {
		u32 what = input_take(&in, 1);

		ring_model_step(&m, what, input_take(&in, 3));
	}
	ring_model_free(&m);
	return 0;
}
