/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots written from made-up state and RAM into a folder of the test's own. */
#ifndef THAW_TESTS_UNIT_SNAP_WRITE_RIG_H
#define THAW_TESTS_UNIT_SNAP_WRITE_RIG_H

#include "tests/unit/snapshot_fixture.h"
#include "vmm/snapshot/write.h"

#define RAM_BYTES (128 * MIB)

static char folder[64], target[128], root_path[160];
static struct fixture fix;
static struct gmem gmem;
static struct capture capture;

static inline u8 *ram_new(void)
{
	u8 *ram = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(ram != MAP_FAILED);
	memset(&gmem, 0, sizeof(gmem));
	CHECK_EQ(gmem_add(&gmem, 0, RAM_BYTES, ram), 0);
	return ram;
}

static inline struct snap_write_opts make_opts(void)
{
	return (struct snap_write_opts){.path = target, .name = "test", .kernel = "6.12.0-test"};
}

/** write_one() - prepare, store, free. Return: what failed first, or 0. */
static inline int write_one(const struct snap_write_opts *opts, struct virtio_dev *blk,
			    bool use_pagemap)
{
	struct snap_writer *writer;
	int ret = snap_write_prepare(opts, &writer);

	if (ret)
		return ret;
	if (!use_pagemap) {
		close(writer->pagemap_fd);
		writer->pagemap_fd = -1;
	}
	ret = snap_writer_store(writer, &fix.parts, &gmem, blk);
	snap_write_abort(writer);
	return ret;
}

static inline unsigned int count_entries(void)
{
	char command[128];
	FILE *pipe;
	unsigned int count;

	snprintf(command, sizeof(command), "ls -A %s | wc -l", folder);
	pipe = popen(command, "r");
	CHECK(pipe && fscanf(pipe, "%u", &count) == 1);
	pclose(pipe);
	return count;
}

static inline void begin(void)
{
	temp_folder(folder);
	snprintf(target, sizeof(target), "%s/one", folder);
	snprintf(root_path, sizeof(root_path), "%s/root.erofs", folder);
	fixture_init(&fix, 2, 0, 0);
}

static inline void end(u8 *ram)
{
	if (ram)
		munmap(ram, RAM_BYTES);
	temp_folder_remove(folder);
}

#endif
