// SPDX-License-Identifier: Apache-2.0
// Read a whole snapshot and compare it with its digests; off the hot path.
#include <errno.h>
#include <string.h>

#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/mem.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** compare() - log what is wrong with the file @name. @ret: of making @digest. */
static int compare(const struct snap *snap, const char *name, int ret,
		   const u8 digest[SNAP_DIGEST_BYTES], const char *want)
{
	char hex[SNAP_DIGEST_HEX];

	if (ret) {
		log_err("%s/%s: %s", snap->path, name,
			ret == -ENODATA ? "truncated" : strerror(-ret));
		return ret;
	}
	snap_digest_hex(digest, hex);
	if (!strcmp(hex, want))
		return 0;
	log_err("%s/%s: digest mismatch: the file was changed or is damaged; build the template again",
		snap->path, name);
	return -EBADMSG;
}

/** verify_pack() - the memory once more, compressed, where there is one. */
static int verify_pack(const struct snap *snap)
{
	char id[SNAP_DIGEST_HEX];
	struct snap_mem mem = {.id = id};
	u8 digest[SNAP_DIGEST_BYTES];
	struct snap_blocks *blocks;
	int ret;

	ret = snap_pack_open(snap, &mem.pack_fd);
	if (ret || mem.pack_fd < 0)
		return ret;
	snap_digest_hex(snap->view.header->digest, id);
	snap_mem_ranges(&mem, snap->view.machine->ram_bytes);
	ret = snap_mem_pack.map(&mem);
	fd_close(&mem.pack_fd);
	blocks = ret ? NULL : snap_blocks_new();
	if (!ret && !blocks)
		ret = -ENOMEM;
	for (unsigned int i = 0; !ret && i < mem.nranges; i++)
		snap_blocks_add(blocks, mem.ranges[i].gpa, mem.ranges[i].hva,
				mem.ranges[i].len_bytes);
	if (!ret)
		snap_blocks_end(blocks, snap->manifest.memory_bytes, digest);
	snap_mem_unmap(&mem);
	return compare(snap, SNAP_FILE_PACK, ret, digest, snap->manifest.memory_digest);
}

int snap_verify(const struct snap *snap)
{
	const struct snap_manifest *manifest = &snap->manifest;
	u8 digest[SNAP_DIGEST_BYTES];
	const struct snap *link = snap;
	int ret;

	/* The lists of a chain's diffs were compared when they were opened. */
	do {
		ret = snap_digest_sparse(link->memory_fd, link->manifest.memory_bytes, digest);
		ret = compare(link, SNAP_FILE_MEMORY, ret, digest, link->manifest.memory_digest);
		link = link->parent;
	} while (link && !ret);
	if (!ret)
		ret = verify_pack(snap);
	if (ret)
		return ret;
	if (snap->disk_fd >= 0) {
		ret = snap_digest_sparse(snap->disk_fd, manifest->disk_bytes, digest);
		ret = compare(snap, SNAP_FILE_DISK, ret, digest, manifest->disk_digest);
		if (ret)
			return ret;
	}
	if (snap->root_fd >= 0) {
		ret = snap_digest_plain(snap->root_fd, manifest->root_bytes, digest);
		ret = compare(snap, "root image", ret, digest, manifest->root_digest);
	}
	return ret;
}
