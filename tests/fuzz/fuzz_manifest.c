// SPDX-License-Identifier: Apache-2.0
// Fuzz target: manifest.json. Oracles: sanitizers, and that what was read is written and read back
// the same.
#include <stdlib.h>
#include <string.h>

#include "vmm/snapshot/internal.h"
#include "vmm/util/log.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes);

static bool same(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : !a && !b;
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes)
{
	struct snap_manifest manifest, again;
	struct snap_cpuid cpuid;
	char why[256] = "";

	if (snap_manifest_parse((const char *)data, len_bytes, &manifest, why, sizeof(why))) {
		BUG_ON(manifest.name || manifest.json);
		return 0;
	}
	BUG_ON(manifest.json_len_bytes != len_bytes || memcmp(manifest.json, data, len_bytes));
	memset(&cpuid, 0, sizeof(cpuid));
	if (snap_manifest_print(&manifest, &cpuid) ||
	    snap_manifest_parse(manifest.json, manifest.json_len_bytes, &again, why, sizeof(why)))
		abort();
	BUG_ON(!same(manifest.name, again.name) || !same(manifest.kernel, again.kernel));
	BUG_ON(!same(manifest.cpu_vendor, again.cpu_vendor) ||
	       !same(manifest.cpu_model, again.cpu_model));
	BUG_ON(!same(manifest.root_image, again.root_image) ||
	       !same(manifest.root_digest, again.root_digest));
	BUG_ON(!same(manifest.memory_digest, again.memory_digest) ||
	       !same(manifest.disk_digest, again.disk_digest));
	BUG_ON(!same(manifest.created, again.created) || !same(manifest.parent, again.parent));
	BUG_ON(manifest.vcpus != again.vcpus || manifest.cpu_signature != again.cpu_signature);
	BUG_ON(manifest.memory_bytes != again.memory_bytes ||
	       manifest.disk_bytes != again.disk_bytes);
	BUG_ON(manifest.root_bytes != again.root_bytes);
	BUG_ON(!same(manifest.diff_digest, again.diff_digest) ||
	       !same(manifest.diff_parent_state, again.diff_parent_state) ||
	       manifest.diff_pages != again.diff_pages);
	snap_manifest_free(&manifest);
	snap_manifest_free(&again);
	return 0;
}
