// SPDX-License-Identifier: Apache-2.0
// Restore strategies over a sparse memory file: content, holes, privacy, errors; with io_uring and
// without.
#include <errno.h>

#include "tests/unit/snapshot_fixture.h"
#include "vmm/snapshot/mem.h"

/* Two ranges as with RAM above the PCI hole, small ones. */
#define LOW_BYTES  (8 * MIB)
#define HIGH_GPA   (4 * GIB)
#define HIGH_BYTES (4 * MIB)
#define FILE_BYTES (HIGH_GPA + HIGH_BYTES)

static char folder[64], path[96];

/* Where the data is: single pages at the bounds, and a stretch that takes several transfers. */
static const struct {
	u64 gpa, len_bytes;
} data[] = {
	{0, 4096},	  {3 * MIB - 4096, 2 * MIB + 8192}, {LOW_BYTES - 4096, 4096},
	{HIGH_GPA, 4096}, {FILE_BYTES - 4096, 4096},
};

static u8 pattern(u64 gpa)
{
	return (u8)(1 + gpa / 4096 % 251);
}

static u8 expected(u64 gpa)
{
	for (unsigned int i = 0; i < ARRAY_SIZE(data); i++) {
		if (gpa >= data[i].gpa && gpa - data[i].gpa < data[i].len_bytes)
			return pattern(gpa);
	}
	return 0;
}

static int make_file(void)
{
	u8 page[4096];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, FILE_BYTES), 0);
	for (unsigned int i = 0; i < ARRAY_SIZE(data); i++) {
		for (u64 done = 0; done < data[i].len_bytes; done += sizeof(page)) {
			memset(page, pattern(data[i].gpa + done), sizeof(page));
			CHECK_EQ(pwrite(fd, page, sizeof(page), (off_t)(data[i].gpa + done)),
				 sizeof(page));
		}
	}
	close(fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static struct snap_mem make_mem(int fd)
{
	return (struct snap_mem){.fd = fd,
				 .ranges = {{.gpa = 0, .len_bytes = LOW_BYTES},
					    {.gpa = HIGH_GPA, .len_bytes = HIGH_BYTES}},
				 .nranges = 2};
}

static void check_strategy(const struct snap_mem_ops *ops)
{
	int fd = make_file();
	struct snap_mem mem = make_mem(fd);
	u8 byte;

	CHECK_EQ(ops->map(&mem), 0);
	for (unsigned int r = 0; r < mem.nranges; r++) {
		const u8 *hva = mem.ranges[r].hva;

		CHECK(hva);
		for (u64 offset = 0; offset < mem.ranges[r].len_bytes; offset += 4096) {
			u8 want = expected(mem.ranges[r].gpa + offset);

			CHECK_EQ(hva[offset], want);
			CHECK_EQ(hva[offset + 4095], want);
		}
	}
	/* Writes stay here. */
	((u8 *)mem.ranges[0].hva)[0] = 0xee;
	((u8 *)mem.ranges[0].hva)[4096] = 0xee;
	CHECK_EQ(pread(fd, &byte, 1, 0), 1);
	CHECK_EQ(byte, pattern(0));
	CHECK_EQ(pread(fd, &byte, 1, 4096), 1);
	CHECK_EQ(byte, 0);
	if (!strcmp(ops->name, "mmap"))
		CHECK_EQ(mem.bytes_read, 0);
	if (!strcmp(ops->name, "copy"))
		CHECK(mem.bytes_read >= 2 * MIB + 6 * 4096 && mem.bytes_read < 4 * MIB);
	for (unsigned int r = 0; r < mem.nranges; r++)
		CHECK_EQ(munmap(mem.ranges[r].hva, mem.ranges[r].len_bytes), 0);
	close(fd);
}

static void test_strategies(void)
{
	for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops; ops++)
		check_strategy(*ops);
}

static void test_plain(void)
{
	int fd = make_file();
	struct snap_mem mem = make_mem(fd);

	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	check_strategy(&snap_mem_copy);
	CHECK_EQ(snap_mem_copy.map(&mem), 0);
	CHECK(mem.plain_io);
	CHECK_EQ(unsetenv("THAW_IO"), 0);
	for (unsigned int r = 0; r < mem.nranges; r++)
		munmap(mem.ranges[r].hva, mem.ranges[r].len_bytes);
	close(fd);
}

static void test_find(void)
{
	unsigned int count = 0;

	CHECK(snap_mem_find(NULL) == &snap_mem_ws);
	CHECK(snap_mem_find("copy") == &snap_mem_copy);
	CHECK(!snap_mem_find("cop"));
	CHECK(!snap_mem_find(""));
	for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops; ops++, count++) {
		CHECK(snap_mem_find((*ops)->name) == *ops);
		CHECK((*ops)->summary && (*ops)->map);
	}
	CHECK(count >= 2);
}

static void test_shrunk_file(void)
{
	int fd = make_file();
	struct snap_mem mem = make_mem(fd);
	struct capture capture;
	int ret;

	/* Behind the end of a file there is no data, which must not pass for a hole. */
	CHECK_EQ(truncate(path, FILE_BYTES - 4096), 0);
	capture_begin(&capture);
	ret = snap_mem_copy.map(&mem);
	capture_end(&capture);
	CHECK_EQ(ret, -ENODATA);
	CHECK_LOGGED(&capture, "truncated");
	CHECK(!mem.ranges[0].hva && !mem.ranges[1].hva);
	close(fd);
}

static void test_bad_file(void)
{
	int pipes[2];
	struct snap_mem mem;
	struct capture capture;

	CHECK_EQ(pipe2(pipes, O_CLOEXEC), 0);
	for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops; ops++) {
		int ret;

		mem = make_mem(pipes[0]);
		capture_begin(&capture);
		ret = (*ops)->map(&mem);
		capture_end(&capture);
		CHECK(ret < 0);
		CHECK(*capture.text);
		CHECK(!mem.ranges[0].hva && !mem.ranges[1].hva);
	}
	close(pipes[0]);
	close(pipes[1]);
}

static void setup(void)
{
	temp_folder(folder);
	snprintf(path, sizeof(path), "%s/memory", folder);
}

static void teardown(void)
{
	temp_folder_remove(folder);
}

TEST_MAIN({"setup", setup}, {"find", test_find}, {"strategies", test_strategies},
	  {"plain", test_plain}, {"shrunk_file", test_shrunk_file}, {"bad_file", test_bad_file},
	  {"teardown", teardown})
