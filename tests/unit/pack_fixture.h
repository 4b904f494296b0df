/* SPDX-License-Identifier: Apache-2.0 */
/* A template to pack, and packs taken apart and put together again. */
#ifndef THAW_TESTS_UNIT_PACK_FIXTURE_H
#define THAW_TESTS_UNIT_PACK_FIXTURE_H

#include "tests/unit/snapshot_fixture.h"
#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/pack_check.h"

#define PACK_RAM_BYTES	(128 * MIB)
#define PACK_DISK_BYTES (16 * MIB)
#define PACK_ROOT_BYTES 6000

/** pack_sparse_file() - @path with @size_bytes, of which the stretches of @pages, [first, last),
 * hold noise, and its digest. */
static inline void pack_sparse_file(const char *path, u64 size_bytes, const u64 (*pages)[2],
				    unsigned int nstretches, char digest_hex[SNAP_DIGEST_HEX])
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	u8 digest[SNAP_DIGEST_BYTES];
	u64 x = size_bytes | 1, page[512];

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, (off_t)size_bytes), 0);
	for (unsigned int s = 0; s < nstretches; s++) {
		for (u64 p = pages[s][0]; p < pages[s][1]; p++) {
			/* Every third page compresses well, and one in eight is zero. */
			for (unsigned int i = 0; i < 512; i++) {
				x ^= x << 13, x ^= x >> 7, x ^= x << 17;
				page[i] = p % 8 == 7 ? 0 : p % 3 ? x : p;
			}
			CHECK_EQ(pwrite(fd, page, 4096, (off_t)(p * 4096)), 4096);
		}
	}
	CHECK_EQ(snap_digest_sparse(fd, size_bytes, digest), 0);
	snap_digest_hex(digest, digest_hex);
	close(fd);
}

/** pack_template() - a snapshot "one" in @folder, with disk, hot set, and a root image in its
 * folder images (which exists). @pages: of its memory. */
static inline void pack_template(const char *folder, const u64 (*pages)[2], unsigned int nstretches)
{
	static const u64 disk_pages[][2] = {{0, 3}, {700, 702}};
	static const struct snap_hot_run hot_runs[] = {
		{0x2000, 2, SNAP_HOT_WRITE}, {0x6000, 1, SNAP_HOT_READ}, {0x100000, 4, 0}};
	static const struct snap_hot_info info = {.recorder = SNAP_HOT_PAGEMAP,
						  .rule = SNAP_HOT_UNION,
						  .threshold = 1,
						  .nclones = 1,
						  .ncommands = 1,
						  .stability_permille = SNAP_HOT_UNKNOWN,
						  .similarity_permille = SNAP_HOT_UNKNOWN,
						  .union_pages = 7,
						  .intersection_pages = 7};
	static struct fixture fix;
	char path[192], root[160], memory_hex[SNAP_DIGEST_HEX], disk_hex[SNAP_DIGEST_HEX];
	char root_hex[SNAP_DIGEST_HEX], vendor[13], model[49];
	u8 digest[SNAP_DIGEST_BYTES];
	struct snap_manifest manifest = {.version = 1, .name = (char *)"one"};
	size_t len_bytes;
	void *buf;
	int fd;

	fixture_init(&fix, 1, 2 * MIB, PACK_DISK_BYTES);
	snprintf(path, sizeof(path), "%s/one", folder);
	CHECK_EQ(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/one/memory", folder);
	pack_sparse_file(path, PACK_RAM_BYTES, pages, nstretches, memory_hex);
	snprintf(path, sizeof(path), "%s/one/disk", folder);
	pack_sparse_file(path, PACK_DISK_BYTES, disk_pages, 2, disk_hex);
	snprintf(root, sizeof(root), "%s/images/own", folder);
	CHECK_EQ(mkdir(root, 0700), 0);
	snprintf(root, sizeof(root), "%s/images/own/root.erofs", folder);
	root_image_write(root, 'r', PACK_ROOT_BYTES);
	fd = open(root, O_RDONLY | O_CLOEXEC);
	CHECK_EQ(snap_digest_plain(fd, PACK_ROOT_BYTES, digest), 0);
	snap_digest_hex(digest, root_hex);
	close(fd);
	snap_cpu_vendor(&fix.cpuid, vendor);
	snap_cpu_model(&fix.cpuid, model);
	manifest.kernel = (char *)"6.12.0-test";
	manifest.created = (char *)"2026-01-02T03:04:05Z";
	manifest.vcpus = 1;
	manifest.cpu_vendor = vendor;
	manifest.cpu_model = model;
	manifest.cpu_signature = snap_cpu_signature(&fix.cpuid);
	manifest.root_image = root;
	manifest.root_bytes = PACK_ROOT_BYTES;
	manifest.root_digest = root_hex;
	manifest.memory_bytes = PACK_RAM_BYTES;
	manifest.memory_digest = memory_hex;
	manifest.disk_bytes = PACK_DISK_BYTES;
	manifest.disk_digest = disk_hex;
	CHECK_EQ(snap_manifest_print(&manifest, &fix.cpuid), 0);
	snprintf(path, sizeof(path), "%s/one/manifest.json", folder);
	file_write(path, manifest.json, manifest.json_len_bytes);
	snap_digest_buf(manifest.json, manifest.json_len_bytes, digest);
	free(manifest.json);
	CHECK_EQ(snap_build(&fix.parts, digest, &buf, &len_bytes), 0);
	snprintf(path, sizeof(path), "%s/one/state", folder);
	file_write(path, buf, len_bytes);
	memcpy(digest, ((struct snap_header *)buf)->digest, sizeof(digest));
	free(buf);
	CHECK_EQ(snap_hot_build(hot_runs, 3, &info, digest, &buf, &len_bytes), 0);
	snprintf(path, sizeof(path), "%s/one/hot", folder);
	file_write(path, buf, len_bytes);
	free(buf);
}

/** A pack in memory, in pieces. */
struct pieces {
	struct pack_header header;
	struct pack_frame *frames[64];
	u32 nframes;
};

static inline void pieces_take(struct pieces *out, const u8 *pack)
{
	size_t pos = sizeof(out->header), len_bytes;
	struct pack_frame head;
	const char *why;

	memcpy(&out->header, pack, sizeof(out->header));
	out->nframes = 0;
	for (;;) {
		memcpy(&head, pack + pos, sizeof(head));
		if (head.kind != PACK_RECORD_FRAME)
			break;
		CHECK_EQ(pack_frame_size(&head, &len_bytes, &why), 0);
		CHECK(out->nframes < 64);
		out->frames[out->nframes] = malloc(PACK_FRAME_MAX_BYTES);
		CHECK(out->frames[out->nframes]);
		memcpy(out->frames[out->nframes++], pack + pos, len_bytes);
		pos += len_bytes;
	}
}

static inline void pieces_free(struct pieces *pieces)
{
	while (pieces->nframes)
		free(pieces->frames[--pieces->nframes]);
}

/** pieces_join() - a pack of them, with table and end that fit. @out: the caller frees it. Return:
 * its size. */
static inline size_t pieces_join(const struct pieces *pieces, u8 **out)
{
	struct pack_end end = {.record = {PACK_SKIPPABLE, sizeof(end) - 8},
			       .kind = PACK_RECORD_END,
			       .nframes = pieces->nframes,
			       .magic = PACK_END_MAGIC};
	struct pack_table *table = calloc(1, pack_table_bytes(pieces->nframes));
	size_t pos = sizeof(pieces->header), len_bytes;
	u8 *pack = malloc(64 * MIB);
	const char *why;

	CHECK(table && pack);
	memcpy(pack, &pieces->header, sizeof(pieces->header));
	for (u32 i = 0; i < pieces->nframes; i++) {
		const struct pack_frame *frame = pieces->frames[i];

		CHECK_EQ(pack_frame_size(frame, &len_bytes, &why), 0);
		pack_frame_entry(frame, pos, &((struct pack_entry *)(table + 1))[i]);
		memcpy(pack + pos, frame, len_bytes);
		pos += len_bytes;
	}
	pack_table_seal(table, pieces->nframes);
	end.table_offset_bytes = pos;
	memcpy(pack + pos, table, pack_table_bytes(pieces->nframes));
	pos += pack_table_bytes(pieces->nframes);
	end.pack_bytes = pos + sizeof(end);
	memcpy(pack + pos, &end, sizeof(end));
	pos += sizeof(end);
	snap_digest_buf(pack, pos - 16, pack + pos - 16);
	free(table);
	*out = pack;
	return pos;
}

#endif
