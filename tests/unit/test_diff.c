// SPDX-License-Identifier: Apache-2.0
// Diff snapshots: the list of pages, chains written and put together again by every strategy,
// flattening, and each way in which a parent can be the wrong one.
#include <errno.h>
#include <sys/wait.h>

#include "tests/unit/snapshot_fixture.h"
#include "vmm/kvm/vm.h"
#include "vmm/seccomp.h"
#include "vmm/snapreq.h"
#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/util.h"

#define RAM_BYTES (128 * MIB)
#define BIG_BYTES (4 * GIB)
#define SEED_MIB  10 /* what the root holds: 2 MiB of sixes from here on */

static char folder[64];
static struct fixture fix;
static struct gmem gmem;
static struct capture capture;
static u8 *want; /* what the youngest snapshot's memory must be */

static const char *path_of(const char *name)
{
	static char paths[4][160];
	static unsigned int next;
	char *path = paths[next++ % ARRAY_SIZE(paths)];

	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static void begin(void)
{
	temp_folder(folder);
	fixture_init(&fix, 1, 0, 0);
	want = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(want != MAP_FAILED);
	memset(want + SEED_MIB * MIB, 6, 2 * MIB);
}

static void end(void)
{
	munmap(want, RAM_BYTES);
	temp_folder_remove(folder);
}

static int store(const struct snap_write_opts *opts, bool use_pagemap)
{
	struct snap_writer *writer;
	int ret = snap_write_prepare(opts, &writer);

	if (ret)
		return ret;
	if (!use_pagemap)
		fd_close(&writer->pagemap_fd);
	ret = snap_writer_store(writer, &fix.parts, &gmem, NULL);
	snap_write_abort(writer);
	return ret;
}

/** write_root() - a whole snapshot of `want`. */
static void write_root(const char *name)
{
	struct snap_write_opts opts = {
		.path = path_of(name), .name = "test", .kernel = "k", .replace = true};

	memset(&gmem, 0, sizeof(gmem));
	CHECK_EQ(gmem_add(&gmem, 0, RAM_BYTES, want), 0);
	CHECK_EQ(store(&opts, true), 0);
}

/** clone_memory() - the memory of @snap as a restore by @ops makes it. */
static void clone_memory(const struct snap *snap, const struct snap_mem_ops *ops,
			 struct snap_mem *mem)
{
	*mem = (struct snap_mem){.fd = snap_root(snap)->memory_fd};
	snap_mem_ranges(mem, snap->view.machine->ram_bytes);
	CHECK_EQ(ops->map(mem), 0);
	CHECK_EQ(snap_diff_overlay(snap, mem, ops->eager), 0);
	memset(&gmem, 0, sizeof(gmem));
	for (unsigned int i = 0; i < mem->nranges; i++)
		CHECK_EQ(gmem_add(&gmem, mem->ranges[i].gpa, mem->ranges[i].len_bytes,
				  mem->ranges[i].hva),
			 0);
}

/** write_child() - a clone of @parent by @ops that changes pages as the @nth of its line, kept as
 * @name. Return: of the write. */
static int write_child(const char *parent, const char *name, unsigned int nth,
		       const struct snap_mem_ops *ops, bool diff, bool use_pagemap)
{
	struct snap_write_opts opts = {.path = path_of(name),
				       .name = "test",
				       .kernel = "k",
				       .parent = parent,
				       .replace = true,
				       .diff = diff};
	struct snap_mem mem;
	struct snap base;
	u8 *ram;
	int ret;

	CHECK_EQ(snap_load(&base, path_of(parent)), 0);
	opts.base = &base;
	clone_memory(&base, ops, &mem);
	ram = mem.ranges[0].hva;
	for (u8 *at[] = {want, ram}, **p = at; p < at + 2; p++) {
		(*p)[(1 + nth) * MIB] = (u8)(0x10 + nth);		  /* in a hole */
		(*p)[SEED_MIB * MIB + 5000] = (u8)(0x40 + nth);		  /* over data, each time */
		memset(*p + (SEED_MIB + 1) * MIB + nth * 65536, 0, 4096); /* data becomes zero */
		(*p)[RAM_BYTES - 1] = (u8)nth;
	}
	/* Written, and the same: no difference. */
	ram[SEED_MIB * MIB + 4096 * 64] = ram[SEED_MIB * MIB + 4096 * 64];
	*(volatile u8 *)(ram + SEED_MIB * MIB + 4096 * 80) = 6;
	ret = store(&opts, use_pagemap);
	snap_mem_unmap(&mem);
	snap_close(&base);
	return ret;
}

/** check_content() - @name restored by every strategy, and by the tools' mapping, is `want`. */
static void check_content(const char *name)
{
	struct snap_mem mem;
	struct snap snap;

	CHECK_EQ(snap_load(&snap, path_of(name)), 0);
	CHECK_EQ(snap_verify(&snap), 0);
	for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops && !(*ops)->takes_pack;
	     ops++) {
		clone_memory(&snap, *ops, &mem);
		CHECK(!memcmp(mem.ranges[0].hva, want, RAM_BYTES));
		snap_mem_unmap(&mem);
	}
	CHECK_EQ(snap_content_map(&snap, &mem), 0);
	CHECK(!memcmp(mem.ranges[0].hva, want, RAM_BYTES));
	snap_mem_unmap(&mem);
	snap_close(&snap);
}

static void test_child_of_every_strategy(void)
{
	begin();
	for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops && !(*ops)->takes_pack;
	     ops++) {
		struct stat st;
		struct snap snap;

		memset(want, 0, RAM_BYTES);
		memset(want + SEED_MIB * MIB, 6, 2 * MIB);
		write_root("root");
		CHECK_EQ(write_child("root", "child", 1, *ops, true, true), 0);
		CHECK_EQ(snap_load(&snap, path_of("child")), 0);
		CHECK(snap.diff && snap.parent);
		CHECK_EQ(snap_depth(&snap), 2);
		CHECK_EQ(snap.manifest.version, SNAP_VERSION_DIFF);
		/* One page each: the hole, the data, the zeros, the end. */
		CHECK_EQ(snap.diff->npages, 4);
		CHECK_EQ(snap.manifest.diff_pages, 4);
		CHECK_EQ(fstat(snap.memory_fd, &st), 0);
		CHECK_EQ(st.st_size, RAM_BYTES);
		CHECK(st.st_blocks <= 3 * 8 + 16);
		CHECK_EQ(st.st_mode & 07777, 0400);
		snap_close(&snap);
		check_content("child");
	}
	end();
}

static void test_without_pagemap(void)
{
	struct snap snap;

	begin();
	write_root("root");
	CHECK_EQ(write_child("root", "child", 1, &snap_mem_mmap, true, false), 0);
	CHECK_EQ(snap_load(&snap, path_of("child")), 0);
	CHECK_EQ(snap.diff->npages, 4);
	snap_close(&snap);
	check_content("child");
	end();
}

static void test_plain_io(void)
{
	begin();
	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	write_root("root");
	CHECK_EQ(write_child("root", "child", 1, &snap_mem_copy, true, true), 0);
	{
		struct snap_mem mem;
		struct snap snap;

		CHECK_EQ(snap_load(&snap, path_of("child")), 0);
		clone_memory(&snap, &snap_mem_copy, &mem);
		CHECK(mem.plain_io);
		CHECK(!memcmp(mem.ranges[0].hva, want, RAM_BYTES));
		snap_mem_unmap(&mem);
		snap_close(&snap);
	}
	CHECK_EQ(unsetenv("THAW_IO"), 0);
	check_content("child");
	end();
}

static void test_no_change(void)
{
	struct snap_write_opts opts = {
		.path = path_of(""), .name = "test", .kernel = "k", .parent = "root", .diff = true};
	struct snap_mem mem;
	struct snap base, snap;

	begin();
	write_root("root");
	CHECK_EQ(snap_load(&base, path_of("root")), 0);
	clone_memory(&base, &snap_mem_copy, &mem);
	opts.base = &base;
	opts.path = path_of("same");
	CHECK_EQ(store(&opts, true), 0);
	snap_mem_unmap(&mem);
	snap_close(&base);
	CHECK_EQ(snap_load(&snap, path_of("same")), 0);
	CHECK_EQ(snap.diff->nruns, 0);
	snap_close(&snap);
	check_content("same");
	end();
}

/** test_chain() - up to the limit; then whole ones. */
static void test_chain(void)
{
	const struct snap_mem_ops *const *ops = snap_mem_list();
	char parent[16] = "root", name[16];
	struct snap_write_opts opts = {
		.name = "test", .kernel = "k", .parent = "gen15", .diff = true};
	struct snap_writer *writer;
	struct snap snap;

	begin();
	write_root("root");
	for (unsigned int i = 1; i < SNAP_CHAIN_MAX; i++) {
		snprintf(name, sizeof(name), "gen%u", i);
		CHECK_EQ(write_child(parent, name, i % 8, *ops, true, true), 0);
		strcpy(parent, name);
		ops = ops[1] && !ops[1]->takes_pack ? ops + 1 : snap_mem_list();
	}
	check_content(name);
	CHECK_EQ(snap_load(&snap, path_of(name)), 0);
	CHECK_EQ(snap_depth(&snap), SNAP_CHAIN_MAX);
	opts.base = &snap;
	opts.path = path_of("more");
	capture_begin(&capture);
	CHECK_EQ(snap_write_prepare(&opts, &writer), -ELOOP);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "more: 'gen15' stands on a chain of 16 snapshots");
	CHECK(access(path_of("more"), F_OK) < 0);
	snap_close(&snap);

	/* Whole ones, of the longest chain by a lazy strategy, of that by an eager one. */
	CHECK_EQ(write_child(name, "whole", 3, &snap_mem_mmap, false, true), 0);
	check_content("whole");
	CHECK_EQ(write_child("whole", "whole2", 4, &snap_mem_copy, false, true), 0);
	check_content("whole2");
	CHECK_EQ(snap_load(&snap, path_of("whole")), 0);
	CHECK(!snap.diff && !snap.parent);
	CHECK_EQ(snap.manifest.version, SNAP_VERSION);
	CHECK_STR(snap.manifest.parent, name);
	snap_close(&snap);
	end();
}

static bool unwanted(void *opaque)
{
	++*(unsigned int *)opaque;
	return false;
}

static void test_flatten(void)
{
	static const struct snap_hot_run runs[] = {{.gpa = 4096, .npages = 3, .kind = 1}};
	static const struct snap_hot_info info = {.recorder = SNAP_HOT_PAGEMAP,
						  .rule = SNAP_HOT_UNION,
						  .threshold = 1,
						  .nclones = 1,
						  .ncommands = 1,
						  .stability_permille = SNAP_HOT_UNKNOWN,
						  .similarity_permille = SNAP_HOT_UNKNOWN,
						  .union_pages = 3,
						  .intersection_pages = 3};
	u8 disk_byte;
	struct snap snap;
	struct snap_hot hot;
	size_t len_bytes;
	void *buf;
	unsigned int asked = 0;
	int fd;

	begin();
	write_root("root");
	CHECK_EQ(write_child("root", "a", 1, &snap_mem_mmap, true, true), 0);
	CHECK_EQ(write_child("a", "b", 2, &snap_mem_mmap, true, true), 0);
	/* It has got a diff of its own meanwhile: nothing changes. */
	CHECK_EQ(snap_load(&snap, path_of("b")), 0);
	CHECK_EQ(snap_flatten(&snap, unwanted, &asked), -ECANCELED);
	CHECK_EQ(asked, 1);
	snap_close(&snap);
	CHECK_EQ(snap_load(&snap, path_of("b")), 0);
	CHECK(snap.diff);
	snap_close(&snap);
	/* A hot set, and a clone that holds the diff while it is replaced. */
	CHECK_EQ(snap_load(&snap, path_of("b")), 0);
	CHECK_EQ(snap_hot_build(runs, 1, &info, snap.view.header->digest, &buf, &len_bytes), 0);
	CHECK_EQ(chmod(path_of("b"), 0700), 0);
	file_write(path_of("b/hot"), buf, len_bytes);
	free(buf);
	CHECK_EQ(snap_flatten(&snap, NULL, NULL), 0);
	CHECK_EQ(snap_verify(&snap), 0);
	snap_close(&snap);
	check_content("b");
	CHECK_EQ(snap_load(&snap, path_of("b")), 0);
	CHECK(!snap.diff && !snap.parent);
	CHECK(access(path_of("b/diff"), F_OK) < 0);
	CHECK_STR(snap.manifest.parent, "a");
	CHECK_EQ(snap_hot_open(&snap, &hot), 0);
	CHECK_EQ(hot.nruns, 1);
	CHECK_EQ(hot.runs[0].npages, 3);
	CHECK(!memcmp(hot.info, &info, sizeof(info)));
	snap_hot_close(&hot);
	snap_close(&snap);
	/* It needs its parents no more. */
	CHECK_EQ(rename(path_of("a"), path_of("gone")), 0);
	check_content("b");

	/* With a disk: that is a whole copy in every snapshot. */
	fixture_init(&fix, 1, 0, 16 * MIB);
	{
		struct snap_write_opts opts = {.path = path_of("d"), .name = "test", .kernel = "k"};
		struct snap_writer *writer;
		struct snap base;

		fd = open(path_of("disk"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		CHECK_EQ(pwrite(fd, "D", 1, 3 * MIB), 1);
		CHECK_EQ(ftruncate(fd, 16 * MIB), 0);
		memset(&gmem, 0, sizeof(gmem));
		CHECK_EQ(gmem_add(&gmem, 0, RAM_BYTES, want), 0);
		CHECK_EQ(snap_write_prepare(&opts, &writer), 0);
		writer->disk_source_fd = fd;
		CHECK_EQ(snap_writer_store(writer, &fix.parts, &gmem, NULL), 0);
		snap_write_abort(writer);
		CHECK_EQ(snap_load(&base, path_of("d")), 0);
		opts = (struct snap_write_opts){.path = path_of("e"),
						.name = "test",
						.kernel = "k",
						.parent = "d",
						.base = &base,
						.diff = true};
		want[0] = 1;
		CHECK_EQ(snap_write_prepare(&opts, &writer), 0);
		writer->disk_source_fd = fd;
		CHECK_EQ(snap_writer_store(writer, &fix.parts, &gmem, NULL), 0);
		snap_write_abort(writer);
		snap_close(&base);
		close(fd);
	}
	CHECK_EQ(snap_load(&snap, path_of("e")), 0);
	CHECK(snap.diff);
	CHECK_EQ(snap_flatten(&snap, NULL, NULL), 0);
	snap_close(&snap);
	CHECK_EQ(snap_load(&snap, path_of("e")), 0);
	CHECK_EQ(pread(snap.disk_fd, &disk_byte, 1, 3 * MIB), 1);
	CHECK_EQ(disk_byte, 'D');
	CHECK_EQ(lseek(snap.disk_fd, 0, SEEK_DATA), (off_t)(3 * MIB));
	snap_close(&snap);
	check_content("e");
	end();
}

/** refused() - @name is not opened, for @error, and the log says @part. */
static void refused(const char *name, int error, const char *part)
{
	struct snap snap;
	int ret;

	capture_begin(&capture);
	ret = snap_load(&snap, path_of(name));
	capture_end(&capture);
	snap_close(&snap);
	CHECK_EQ(ret, error);
	CHECK_LOGGED(&capture, part);
}

static void test_wrong_parents(void)
{
	struct snap snap;

	begin();
	write_root("root");
	CHECK_EQ(write_child("root", "a", 1, &snap_mem_mmap, true, true), 0);
	CHECK_EQ(write_child("a", "b", 2, &snap_mem_mmap, true, true), 0);
	check_content("b");

	/* Not there, at either depth; a link in its place; a file; and back again. */
	CHECK_EQ(rename(path_of("root"), path_of("hidden")), 0);
	refused("a", -ENOENT,
		"/a: holds only what differs from its parent 'root', which is not there");
	refused("b", -ENOENT,
		"/a: holds only what differs from its parent 'root', which is not there");
	CHECK_EQ(symlink("hidden", path_of("root")), 0);
	refused("a", -ENOTDIR, "/root: ");
	CHECK_EQ(unlink(path_of("root")), 0);
	file_write(path_of("root"), "x", 1);
	refused("a", -ENOTDIR, "/root: ");
	CHECK_EQ(unlink(path_of("root")), 0);
	CHECK_EQ(rename(path_of("hidden"), path_of("root")), 0);
	check_content("b");

	/* Another one under the name: the same content, written again, is another snapshot. */
	CHECK_EQ(rename(path_of("root"), path_of("hidden")), 0);
	fix.machine.generation++;
	write_root("root");
	refused("b", -ESTALE,
		"/a: its parent 'root' is another snapshot than the one it was made from");
	/* One whose parent was flattened under it. */
	temp_folder_remove(path_of("root"));
	CHECK_EQ(rename(path_of("hidden"), path_of("root")), 0);
	CHECK_EQ(snap_load(&snap, path_of("a")), 0);
	CHECK_EQ(snap_flatten(&snap, NULL, NULL), 0);
	snap_close(&snap);
	refused("b", -ESTALE,
		"/b: its parent 'a' is another snapshot than the one it was made from");
	end();
}

static void test_damage(void)
{
	u8 bytes[256], flipped[256];
	struct snap snap;
	ssize_t n;
	int fd;

	begin();
	write_root("root");
	CHECK_EQ(write_child("root", "a", 1, &snap_mem_mmap, true, true), 0);
	CHECK_EQ(chmod(path_of("a"), 0700), 0);
	fd = open(path_of("a/diff"), O_RDONLY | O_CLOEXEC);
	n = read(fd, bytes, sizeof(bytes));
	close(fd);
	CHECK_EQ(n, 16 + 16 * 4);
	CHECK_EQ(chmod(path_of("a/diff"), 0600), 0);
	for (ssize_t i = 0; i < n; i++) {
		memcpy(flipped, bytes, sizeof(bytes));
		flipped[i] ^= 1;
		file_write(path_of("a/diff"), flipped, (size_t)n);
		refused("a", -EBADMSG, "/a/diff: digest mismatch");
		file_write(path_of("a/diff"), bytes, (size_t)i);
		refused("a", -EBADMSG, "/a/diff: digest mismatch");
	}
	file_write(path_of("a/diff"), bytes, (size_t)n + 1);
	refused("a", -EBADMSG, "/a/diff: digest mismatch");
	CHECK_EQ(truncate(path_of("a/diff"), 1 << 20), 0);
	refused("a", -EFBIG, "/a/diff: too large");
	CHECK_EQ(unlink(path_of("a/diff")), 0);
	refused("a", -ENOENT, "/a/diff: No such file");
	file_write(path_of("a/diff"), bytes, (size_t)n);
	check_content("a");

	/* Damage of large files is found by verify, at any depth. */
	CHECK_EQ(write_child("a", "b", 2, &snap_mem_mmap, true, true), 0);
	CHECK_EQ(chmod(path_of("root/memory"), 0600), 0);
	fd = open(path_of("root/memory"), O_RDWR | O_CLOEXEC);
	CHECK_EQ(pwrite(fd, "x", 1, 5), 1);
	close(fd);
	CHECK_EQ(snap_load(&snap, path_of("b")), 0);
	capture_begin(&capture);
	CHECK_EQ(snap_verify(&snap), -EBADMSG);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "/root/memory: digest mismatch");
	snap_close(&snap);
	CHECK_EQ(truncate(path_of("root/memory"), 4096), 0);
	refused("b", -EINVAL, "/root/memory: truncated");
	end();
}

static void test_writer_refusals(void)
{
	struct snap_write_opts opts = {.name = "test", .kernel = "k", .diff = true};
	struct snap_writer *writer;
	struct snap base;

	begin();
	write_root("root");
	CHECK_EQ(write_child("root", "a", 1, &snap_mem_mmap, true, true), 0);
	CHECK_EQ(snap_load(&base, path_of("a")), 0);

	capture_begin(&capture);
	opts.path = path_of("x");
	CHECK_EQ(snap_write_prepare(&opts, &writer), -EINVAL);
	opts.base = &base;
	CHECK_EQ(snap_write_prepare(&opts, &writer), -EINVAL);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "/x: a diff needs a parent that was restored");

	capture_begin(&capture);
	opts.parent = "root";
	CHECK_EQ(snap_write_prepare(&opts, &writer), -EINVAL);
	opts.parent = "nothing";
	CHECK_EQ(snap_write_prepare(&opts, &writer), -EINVAL);
	CHECK_EQ(mkdir(path_of("elsewhere"), 0700), 0);
	opts.parent = "a";
	opts.path = path_of("elsewhere/x");
	CHECK_EQ(snap_write_prepare(&opts, &writer), -EINVAL);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "a diff has to stand beside its parent, and 'root' there is not");
	CHECK_LOGGED(&capture, "elsewhere/x: a diff has to stand beside its parent");

	/* Its own parent, or its parent's. */
	capture_begin(&capture);
	opts.replace = true;
	opts.path = path_of("a");
	CHECK_EQ(snap_write_prepare(&opts, &writer), -EINVAL);
	opts.path = path_of("root");
	CHECK_EQ(snap_write_prepare(&opts, &writer), -EINVAL);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "/root: a diff can't replace what it is a diff of");

	/* The parent is replaced while the clone runs. */
	opts.path = path_of("x");
	CHECK_EQ(snap_write_prepare(&opts, &writer), 0);
	CHECK_EQ(rename(path_of("a"), path_of("old")), 0);
	memset(&gmem, 0, sizeof(gmem));
	CHECK_EQ(gmem_add(&gmem, 0, RAM_BYTES, want), 0);
	capture_begin(&capture);
	CHECK_EQ(snap_writer_store(writer, &fix.parts, &gmem, NULL), -ESTALE);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "/x: its parent 'a' was replaced or removed meanwhile");
	snap_write_abort(writer);
	CHECK(access(path_of("x"), F_OK) < 0);
	snap_close(&base);
	end();
}

/** What the writer does once the guest has run is done under the system call filter. */
static void test_confined(void)
{
	struct snap_write_opts opts = {
		.name = "test", .kernel = "k", .parent = "root", .diff = true};
	unsigned int options = SECCOMP_SNAPSHOT;
	struct snap_writer *writer;
	struct snap_mem mem;
	struct snap base;
	int status;
	pid_t pid;

#ifdef THAW_SANITIZER
	options |= SECCOMP_SANITIZER;
#endif
	begin();
	write_root("root");
	want[RAM_BYTES / 2] = 9;
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK_EQ(snap_load(&base, path_of("root")), 0);
		clone_memory(&base, &snap_mem_mmap, &mem);
		((u8 *)mem.ranges[0].hva)[RAM_BYTES / 2] = 9;
		opts.base = &base;
		opts.path = path_of("child");
		CHECK_EQ(snap_write_prepare(&opts, &writer), 0);
		CHECK_EQ(seccomp_apply_main(options), 0);
		if (snap_writer_store(writer, &fix.parts, &gmem, NULL))
			_exit(1);
		snap_write_abort(writer);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	check_content("child");
	end();
}

/** A list that is too long is joined; RAM above the PCI hole; runs never bridge that. */
static void test_many_runs(void)
{
	struct snap_write_opts opts = {.name = "test", .kernel = "k", .parent = "root"};
	struct snap_mem mem = {.fd = -1}, again;
	struct snap base, snap;
	u64 start_ns;

	begin();
	fix.machine.ram_bytes = BIG_BYTES;
	snap_mem_ranges(&mem, BIG_BYTES);
	CHECK_EQ(mem.nranges, 2);
	memset(&gmem, 0, sizeof(gmem));
	for (unsigned int i = 0; i < 2; i++) {
		mem.ranges[i].hva = mmap(NULL, mem.ranges[i].len_bytes, PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(mem.ranges[i].hva != MAP_FAILED);
		CHECK_EQ(gmem_add(&gmem, mem.ranges[i].gpa, mem.ranges[i].len_bytes,
				  mem.ranges[i].hva),
			 0);
	}
	opts.path = path_of("root");
	CHECK_EQ(store(&opts, true), 0);
	CHECK_EQ(snap_load(&base, path_of("root")), 0);
	/* 4,000 pages; with the first half joined, the list is as good as full. */
	for (u64 i = 0, page = 0; i < 4000; i++, page += i < 2000 ? 16 : 40)
		((u8 *)mem.ranges[0].hva)[page * 4096] = 1;
	((u8 *)mem.ranges[0].hva)[mem.ranges[0].len_bytes - 1] = 2;
	((u8 *)mem.ranges[1].hva)[0] = 3;
	opts.path = path_of("child");
	opts.base = &base;
	opts.diff = true;
	CHECK_EQ(store(&opts, true), 0);
	snap_close(&base);
	CHECK_EQ(snap_load(&snap, path_of("child")), 0);
	CHECK(snap.diff->nruns >= 2000 && snap.diff->nruns <= SNAP_DIFF_RUNS_MAX);
	CHECK_EQ(snap.diff->runs[snap.diff->nruns - 1].gpa, LAYOUT_HIGH_RAM_GPA);
	CHECK_EQ(snap.diff->runs[snap.diff->nruns - 1].npages, 1);
	CHECK_EQ(snap_verify(&snap), 0);
	start_ns = clock_now_ns();
	CHECK_EQ(snap_content_map(&snap, &again), 0);
	printf("    %u runs, %llu pages mapped in %llu us\n", snap.diff->nruns,
	       (unsigned long long)snap.diff->npages,
	       (unsigned long long)(clock_now_ns() - start_ns) / 1000);
	CHECK(!memcmp(again.ranges[0].hva, mem.ranges[0].hva, 2000 * 56 * 4096ull));
	CHECK_EQ(((u8 *)again.ranges[0].hva)[mem.ranges[0].len_bytes - 1], 2);
	CHECK_EQ(((u8 *)again.ranges[1].hva)[0], 3);
	snap_mem_unmap(&again);
	snap_mem_unmap(&mem);
	snap_close(&snap);
	end();
}

static void check_list(const struct snap_diff_run *runs, u32 nruns, u64 ram_bytes, int error,
		       const char *text)
{
	struct snap_diff diff = {0};
	const char *why = NULL;
	size_t len_bytes;
	void *buf;

	CHECK_EQ(snap_diff_build(runs, nruns, &buf, &len_bytes), 0);
	CHECK_EQ(snap_diff_parse(buf, len_bytes, ram_bytes, &diff, &why), error);
	if (error)
		CHECK(strstr(why, text));
	else
		CHECK_EQ(diff.nruns, nruns);
	free(buf);
}

static void test_list(void)
{
	static struct snap_diff_run many[SNAP_DIFF_RUNS_MAX + 1];
	const u64 high = LAYOUT_HIGH_RAM_GPA, low = layout_low_ram_bytes(BIG_BYTES);
	struct snap_diff_header head = {SNAP_DIFF_MAGIC, 2, 0};
	struct snap_diff diff;
	const char *why;

#define RUNS(...)                                    \
	(const struct snap_diff_run[]){__VA_ARGS__}, \
		sizeof((const struct snap_diff_run[]){__VA_ARGS__}) / sizeof(struct snap_diff_run)
	check_list(NULL, 0, RAM_BYTES, 0, "");
	check_list(RUNS({0, 1}, {8192, 1}), RAM_BYTES, 0, "");
	check_list(RUNS({0, RAM_BYTES / 4096}), RAM_BYTES, 0, "");
	check_list(RUNS({low - 4096, 1}, {high, 1}), BIG_BYTES, 0, "");
	check_list(RUNS({high, (BIG_BYTES - low) / 4096}), BIG_BYTES, 0, "");
	check_list(RUNS({0, 0}), RAM_BYTES, -EINVAL, "outside");
	check_list(RUNS({1, 1}), RAM_BYTES, -EINVAL, "outside");
	check_list(RUNS({0, RAM_BYTES / 4096 + 1}), RAM_BYTES, -EINVAL, "outside");
	check_list(RUNS({RAM_BYTES, 1}), RAM_BYTES, -EINVAL, "outside");
	check_list(RUNS({~4095ull, 1}), RAM_BYTES, -EINVAL, "outside");
	check_list(RUNS({4096, ~0ull}), RAM_BYTES, -EINVAL, "outside");
	check_list(RUNS({4096, 1ull << 52}), RAM_BYTES, -EINVAL, "outside");
	check_list(RUNS({low, 1}), BIG_BYTES, -EINVAL, "outside");
	check_list(RUNS({low - 4096, 2}), BIG_BYTES, -EINVAL, "outside");
	check_list(RUNS({low - 4096, (high - low) / 4096 + 2}), BIG_BYTES, -EINVAL, "outside");
	check_list(RUNS({high, (BIG_BYTES - low) / 4096 + 1}), BIG_BYTES, -EINVAL, "outside");
	check_list(RUNS({0, 1}, {4096, 1}), RAM_BYTES, -EINVAL, "order");
	check_list(RUNS({8192, 1}, {0, 1}), RAM_BYTES, -EINVAL, "order");
	check_list(RUNS({8192, 1}, {8192, 1}), RAM_BYTES, -EINVAL, "order");
#undef RUNS
	for (u32 i = 0; i < ARRAY_SIZE(many); i++)
		many[i] = (struct snap_diff_run){.gpa = i * 8192ull, .npages = 1};
	check_list(many, SNAP_DIFF_RUNS_MAX, RAM_BYTES, 0, "");
	check_list(many, SNAP_DIFF_RUNS_MAX + 1, RAM_BYTES, -EINVAL, "size");
	CHECK_EQ(snap_diff_parse(&head, sizeof(head), RAM_BYTES, &diff, &why), -EPROTONOSUPPORT);
	head.version = 1;
	CHECK_EQ(snap_diff_parse(&head, sizeof(head) - 1, RAM_BYTES, &diff, &why), -EINVAL);
	CHECK_EQ(snap_diff_parse(&head, 0, RAM_BYTES, &diff, &why), -EINVAL);
	head.nruns = 1;
	CHECK_EQ(snap_diff_parse(&head, sizeof(head), RAM_BYTES, &diff, &why), -EINVAL);
	head.magic++;
	CHECK_EQ(snap_diff_parse(&head, sizeof(head), RAM_BYTES, &diff, &why), -EINVAL);
}

/** ask() - a running clone's owner asks for a snapshot. Return: is it to be a diff? */
static bool ask(struct snapreq *req)
{
	static struct vm vm;
	const struct ctl_msg msg = {.text = "new"};
	struct vm_config cfg = {0};
	bool diff;

	snapreq_config(req, &cfg);
	CHECK_EQ(cfg.snapshot_request(&vm, req, &msg,
				      open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
		 0);
	diff = req->writer->opts.diff;
	snapreq_end(req);
	return diff;
}

static void test_parent_that_is_being_built(void)
{
	struct snapreq req = {0};
	struct snap base;
	int fd;

	begin();
	write_root("test");
	CHECK_EQ(snap_load(&base, path_of("test")), 0);
	CHECK_EQ(snapreq_init(&req, &base, -1), 0);
	CHECK(ask(&req));
	fd = open(path_of(".test.build"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	close(fd);
	CHECK(!ask(&req));
	CHECK_EQ(unlink(path_of(".test.build")), 0);
	CHECK(ask(&req));
	close(req.pagemap_fd);
	snap_close(&base);
	end();
}

TEST_MAIN({"parent that is being built", test_parent_that_is_being_built}, {"list", test_list},
	  {"child_of_every_strategy", test_child_of_every_strategy},
	  {"without_pagemap", test_without_pagemap}, {"plain_io", test_plain_io},
	  {"no_change", test_no_change}, {"chain", test_chain}, {"flatten", test_flatten},
	  {"wrong_parents", test_wrong_parents}, {"damage", test_damage},
	  {"writer_refusals", test_writer_refusals}, {"confined", test_confined},
	  {"many_runs", test_many_runs})
