// SPDX-License-Identifier: Apache-2.0
// Restore strategies over a sparse memory file: content, holes, privacy, errors; with io_uring and
// without.
#include <errno.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

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
	if (!strcmp(ops->name, "copy") || !strcmp(ops->name, "uring") ||
	    !strcmp(ops->name, "memfd"))
		CHECK(mem.bytes_read >= 2 * MIB + 6 * 4096 && mem.bytes_read < 4 * MIB);
	CHECK(!mem.note);
	snap_mem_unmap(&mem);
	close(fd);
}

static void test_strategies(void)
{
	for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops && !(*ops)->takes_pack;
	     ops++)
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
	snap_mem_unmap(&mem);
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
	static const struct snap_mem_ops *const eager[] = {&snap_mem_copy, &snap_mem_uring,
							   &snap_mem_memfd};

	/* Behind the end of a file there is no data, which must not pass for a hole. */
	for (size_t i = 0; i < ARRAY_SIZE(eager); i++) {
		int fd = make_file();
		struct snap_mem mem = make_mem(fd);
		struct capture capture;
		int ret;

		CHECK_EQ(truncate(path, FILE_BYTES - 4096), 0);
		capture_begin(&capture);
		ret = eager[i]->map(&mem);
		capture_end(&capture);
		CHECK_EQ(ret, -ENODATA);
		CHECK_LOGGED(&capture, "truncated");
		CHECK(!mem.ranges[0].hva && !mem.ranges[1].hva);
		close(fd);
	}
}

static int map_logged(const struct snap_mem_ops *ops, struct snap_mem *mem, struct capture *capture)
{
	int ret;

	capture_begin(capture);
	ret = ops->map(mem);
	capture_end(capture);
	return ret;
}

static void test_uring_refusals(void)
{
	int fd = make_file(), proc = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	struct snap_mem mem = make_mem(fd), no_direct = make_mem(proc);
	struct capture capture;

	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	CHECK_EQ(map_logged(&snap_mem_uring, &mem, &capture), -EOPNOTSUPP);
	CHECK_LOGGED(&capture, "io_uring with registered buffers");
	CHECK(!mem.ranges[0].hva);
	CHECK_EQ(unsetenv("THAW_IO"), 0);
	CHECK_EQ(map_logged(&snap_mem_uring, &no_direct, &capture), -EINVAL);
	CHECK_LOGGED(&capture, "can't be read with O_DIRECT");
	CHECK(!no_direct.ranges[0].hva);
	close(proc);
	close(fd);
}

/** Every other page has data: as many stretches as buffers, or more than there can be. */
static void check_scattered(u64 len_bytes, u64 want_bytes)
{
	int fd = make_file();
	struct snap_mem mem = {
		.fd = fd, .ranges = {{.gpa = 0, .len_bytes = len_bytes}}, .nranges = 1};
	int writer = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
	u8 page[4096];

	CHECK(writer >= 0);
	CHECK_EQ(ftruncate(writer, (off_t)len_bytes), 0);
	memset(page, 0x5a, sizeof(page));
	for (u64 offset = 0; offset < len_bytes; offset += 8192)
		CHECK_EQ(pwrite(writer, page, sizeof(page), (off_t)offset), sizeof(page));
	close(writer);
	CHECK_EQ(snap_mem_uring.map(&mem), 0);
	for (u64 offset = 0; offset < len_bytes; offset += 4096)
		CHECK_EQ(((u8 *)mem.ranges[0].hva)[offset + 17], offset % 8192 ? 0 : 0x5a);
	CHECK_EQ(mem.bytes_read, want_bytes);
	snap_mem_unmap(&mem);
	close(fd);
}

static void test_uring_scattered(void)
{
	check_scattered(LOW_BYTES, LOW_BYTES / 2);
	/* Small holes are read along. */
	check_scattered(160 * MIB, 160 * MIB - 4096);
}

static void test_uring_bounce(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2];
	struct rlimit limit = {.rlim_cur = 5 * MIB, .rlim_max = 5 * MIB};
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		/* All of low RAM has data: more than may be pinned, and the bounce buffers not. */
		u8 *all = malloc(LOW_BYTES);
		int fd = make_file();
		struct snap_mem mem = make_mem(fd);
		int writer = open(path, O_WRONLY | O_CLOEXEC);

		memset(all, 0x77, LOW_BYTES);
		CHECK_EQ(pwrite(writer, all, LOW_BYTES, 0), LOW_BYTES);
		CHECK_EQ(syscall(SYS_capget, &header, caps), 0);
		caps[CAP_IPC_LOCK / 32].effective &= ~(1u << CAP_IPC_LOCK % 32);
		CHECK_EQ(syscall(SYS_capset, &header, caps), 0);
		CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
		CHECK_EQ(snap_mem_uring.map(&mem), 0);
		CHECK(mem.note && !strcmp(mem.note, "bounce"));
		CHECK(!memcmp(mem.ranges[0].hva, all, LOW_BYTES));
		CHECK_EQ(((u8 *)mem.ranges[1].hva)[0], pattern(HIGH_GPA));
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

static void test_memfd(void)
{
	int fd = make_file(), memory_fd, other_fd;
	struct snap_mem mem = make_mem(fd), clone = make_mem(fd);
	struct capture capture;

	mem.id = clone.id = "0123456789abcdef";
	memory_fd = snap_memfd_make(&mem);
	CHECK(memory_fd > 2);
	CHECK(mem.bytes_read > 0 && !mem.ranges[0].hva);
	/* Sealed for good. */
	CHECK(pwrite(memory_fd, "x", 1, 0) < 0 && errno == EPERM);
	CHECK(ftruncate(memory_fd, 4096) < 0 && errno == EPERM);
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0) == MAP_FAILED);
	clone.memory_fd = memory_fd;
	CHECK_EQ(snap_mem_memfd.map(&clone), 0);
	CHECK_EQ(clone.bytes_read, 0);
	CHECK_EQ(((u8 *)clone.ranges[1].hva)[0], pattern(HIGH_GPA));
	snap_mem_unmap(&clone);

	clone.id = "0123456789abcdee";
	CHECK_EQ(map_logged(&snap_mem_memfd, &clone, &capture), -EINVAL);
	CHECK_LOGGED(&capture, "of another snapshot");
	clone.id = mem.id;
	clone.ranges[1].len_bytes -= 4096;
	CHECK_EQ(map_logged(&snap_mem_memfd, &clone, &capture), -EINVAL);
	CHECK_LOGGED(&capture, "another size");
	clone.ranges[1].len_bytes += 4096;
	clone.memory_fd = fd;
	CHECK_EQ(map_logged(&snap_mem_memfd, &clone, &capture), -EINVAL);
	CHECK_LOGGED(&capture, "is not a memfd");
	other_fd = memfd_create("thaw-memory:0123456789abcdef", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK_EQ(ftruncate(other_fd, FILE_BYTES), 0);
	clone.memory_fd = other_fd;
	CHECK_EQ(map_logged(&snap_mem_memfd, &clone, &capture), -EINVAL);
	CHECK_LOGGED(&capture, "is not sealed");
	CHECK(!clone.ranges[0].hva && !clone.ranges[1].hva);
	close(other_fd);
	close(memory_fd);
	close(fd);
}

/** Kilobytes of the line @name of the mapping at @hva. */
static unsigned long smaps_kib(const void *hva, const char *name)
{
	unsigned long start, kib = 0;
	bool ours = false;
	char line[256];
	FILE *f = fopen("/proc/self/smaps", "re");

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-", &start) == 1 && strchr(line, '-'))
			ours = start == (uintptr_t)hva;
		else if (ours && !strncmp(line, name, strlen(name)))
			kib = strtoul(line + strlen(name) + 1, NULL, 10);
	}
	fclose(f);
	return kib;
}

/** Anonymous huge pages, to who asks for them. */
static bool host_has_huge(void)
{
	FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
	char text[128] = "";

	if (!f)
		return false;
	CHECK(fgets(text, sizeof(text), f));
	fclose(f);
	return !strstr(text, "[never]");
}

static void check_huge(const struct snap_mem_ops *ops, const char *name)
{
	struct snap_restore_opts opts = {.huge = SNAP_HUGE_PAGES_THP};
	struct capture capture;
	volatile u8 sum = 0;
	int fd = make_file(), ret;
	struct snap_mem mem = make_mem(fd);

	capture_begin(&capture);
	ret = snap_opts_check(&opts, ops);
	capture_end(&capture);
	if (ret) {
		CHECK_LOGGED(&capture, "huge pages: ");
		CHECK(ops->huge != SNAP_HUGE_ANON || !host_has_huge());
		close(fd);
		return;
	}
	mem.huge = true;
	CHECK_EQ(ops->map(&mem), 0);
	CHECK_EQ((uintptr_t)mem.ranges[0].hva % HUGE_SIZE_BYTES, 0);
	for (u64 offset = 0; offset < LOW_BYTES; offset += 4096) {
		CHECK_EQ(((u8 *)mem.ranges[0].hva)[offset], expected(offset));
		sum = sum + ((u8 *)mem.ranges[0].hva)[offset];
	}
	/* A host that is out of huge pages has none to give, which is no error. */
	if (!smaps_kib(mem.ranges[0].hva, name))
		fprintf(stderr, "%s: no huge page was to be had\n", ops->name);
	snap_mem_unmap(&mem);
	close(fd);
}

static void test_huge(void)
{
	struct snap_restore_opts opts = {.huge = SNAP_HUGE_PAGES_THP};
	struct capture capture;
	int ret;

	check_huge(&snap_mem_copy, "AnonHugePages");
	check_huge(&snap_mem_uring, "AnonHugePages");
	check_huge(&snap_mem_memfd, "ShmemPmdMapped");
	capture_begin(&capture);
	ret = snap_opts_check(&opts, &snap_mem_ws);
	capture_end(&capture);
	CHECK_EQ(ret, -EOPNOTSUPP);
	CHECK_LOGGED(&capture, "strategy ws can't have them");
}

static void test_bad_file(void)
{
	int pipes[2];
	struct snap_mem mem;
	struct capture capture;

	CHECK_EQ(pipe2(pipes, O_CLOEXEC), 0);
	for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops && !(*ops)->takes_pack;
	     ops++) {
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
	  {"uring_refusals", test_uring_refusals}, {"uring_scattered", test_uring_scattered},
	  {"uring_bounce", test_uring_bounce}, {"memfd", test_memfd}, {"huge", test_huge},
	  {"teardown", teardown})
