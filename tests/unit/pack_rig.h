/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with a template and its image, and export and import of it. */
#ifndef THAW_TESTS_UNIT_PACK_RIG_H
#define THAW_TESTS_UNIT_PACK_RIG_H

#include <errno.h>

#include "tests/unit/pack_fixture.h"
#include "vmm/snapshot/pack.h"
#include "vmm/util/util.h"

static char folder[64], source[128], images[128], target[128];
static const char *target_name = "one";
static struct capture capture;

static inline int place(void *opaque, const struct snap_manifest *manifest, char path[PATH_MAX],
			const char **name)
{
	(void)opaque;
	CHECK_STR(manifest->name, "one");
	*name = target_name;
	snprintf(path, PATH_MAX, "%s", target);
	return 0;
}

static inline int import_fd(int fd, bool stream, unsigned int threads, bool replace)
{
	struct pack_read_opts opts = {.fd = fd,
				      .stream = stream,
				      .from = "pack",
				      .images = images,
				      .replace = replace,
				      .threads = threads,
				      .place = place};
	struct pack_stats stats;

	return pack_read(&opts, &stats);
}

/** import_buf() - Return: what pack_read() gave; what it logged is in `capture`. */
static inline int import_buf(const u8 *pack, size_t len_bytes)
{
	int fd = memfd_create("pack", MFD_CLOEXEC), ret;

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, pack, len_bytes), len_bytes);
	CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
	capture_begin(&capture);
	ret = import_fd(fd, true, 1, false);
	capture_end(&capture);
	close(fd);
	return ret;
}

static inline struct pack_stats export_fd(int fd, bool stream, unsigned int threads, bool root)
{
	struct pack_write_opts opts = {
		.fd = fd, .stream = stream, .root = root, .threads = threads, .to = "pack"};
	struct pack_stats stats;
	struct snap snap;

	CHECK_EQ(snap_load(&snap, source), 0);
	CHECK_EQ(pack_write(&snap, &opts, &stats), 0);
	snap_close(&snap);
	return stats;
}

static inline size_t export_buf(u8 **out, unsigned int threads, bool root)
{
	int fd = memfd_create("pack", MFD_CLOEXEC);
	struct pack_stats stats;

	CHECK(fd >= 0);
	stats = export_fd(fd, false, threads, root);
	*out = malloc(stats.pack_bytes);
	CHECK(*out);
	CHECK_EQ(lseek(fd, 0, SEEK_END), stats.pack_bytes);
	CHECK_EQ(fd_pread_full(fd, *out, stats.pack_bytes, 0), 0);
	close(fd);
	return stats.pack_bytes;
}

static inline void begin_with(const u64 (*pages)[2], unsigned int nstretches)
{
	temp_folder(folder);
	snprintf(source, sizeof(source), "%s/one", folder);
	snprintf(images, sizeof(images), "%s/images", folder);
	snprintf(target, sizeof(target), "%s/two", folder);
	target_name = "one";
	CHECK_EQ(mkdir(images, 0700), 0);
	pack_template(folder, pages, nstretches);
}

static inline void begin(void)
{
	static const u64 pages[][2] = {{0, 9}, {256, 258}, {30000, 30001}};

	begin_with(pages, 3);
}

static inline void end(void)
{
	temp_folder_remove(folder);
}

static inline unsigned int count_entries(const char *path)
{
	char command[192];
	unsigned int count;
	FILE *pipe;

	snprintf(command, sizeof(command), "ls -A '%s' | wc -l", path);
	pipe = popen(command, "r");
	CHECK(pipe && fscanf(pipe, "%u", &count) == 1);
	pclose(pipe);
	return count;
}

/** Template and root image: what was there before. */
static inline void check_nothing_left(void)
{
	CHECK_EQ(count_entries(folder), 2);
	CHECK_EQ(count_entries(images), 1);
}

#endif
