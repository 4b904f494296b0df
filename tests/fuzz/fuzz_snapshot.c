// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the state file. Oracles: sanitizers, and that building what was parsed gives the
// input again.
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/internal.h"
#include "vmm/util/log.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes);

/** touch_all() - read every byte that a restore would read; a view that leads out of the buffer is
 * a sanitizer's find. */
static u8 touch_all(const struct snap_view *view)
{
	u8 sum = 0;

#define TOUCH(ptr)                                                               \
	do {                                                                     \
		for (size_t touch_i_ = 0; touch_i_ < sizeof(*(ptr)); touch_i_++) \
			sum ^= ((const u8 *)(ptr))[touch_i_];                    \
	} while (0)
	TOUCH(view->machine);
	TOUCH(view->cpuid);
	TOUCH(view->ioapic);
	for (unsigned int i = 0; i < view->nvcpus; i++)
		TOUCH(view->vcpus[i]);
	for (unsigned int i = 0; i < view->ndevs; i++)
		TOUCH(view->devs[i]);
#undef TOUCH
	return sum;
}

static void check(const u8 *buf, size_t len_bytes)
{
	struct snap_view view;
	const char *why = NULL;
	char vendor[13], model[49], text[200];
	size_t again_bytes;
	volatile u8 sink;
	void *again;

	if (snap_parse(buf, len_bytes, &view, &why)) {
		BUG_ON(!why);
		return;
	}
	sink = touch_all(&view);
	(void)sink;
	BUG_ON(view.nvcpus != view.machine->nvcpus);
	if (snap_build(&view, view.header->manifest_digest, &again, &again_bytes))
		abort();
	BUG_ON(again_bytes != len_bytes);
	BUG_ON(memcmp(again, buf, len_bytes));
	free(again);
	/* The CPU check works on the same hostile entries; a CPU always fits itself. */
	snap_cpu_vendor(view.cpuid, vendor);
	snap_cpu_model(view.cpuid, model);
	BUG_ON(strlen(vendor) > 12 || strlen(model) > 48);
	(void)!snap_cpu_check(view.cpuid, view.cpuid, text, sizeof(text));
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes)
{
	struct snap_header *header;
	u8 *buf;

	check(data, len_bytes);
	/* No mutation finds a right digest. Seal it, so that what is behind it is reached. */
	if (len_bytes < sizeof(*header) || len_bytes > SNAP_STATE_MAX_BYTES)
		return 0;
	buf = malloc(len_bytes);
	if (!buf)
		return 0;
	memcpy(buf, data, len_bytes);
	header = (struct snap_header *)buf;
	header->magic = SNAP_MAGIC;
	header->version = SNAP_VERSION;
	header->total_bytes = len_bytes;
	snap_digest_state(buf, len_bytes, header->digest);
	check(buf, len_bytes);
	free(buf);
	return 0;
}
