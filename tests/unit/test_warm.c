// SPDX-License-Identifier: Apache-2.0
// The hot set made ready: exactly the cold pages are fetched, exactly the pages asked for are
// populated, by any number of threads; what can't be had is refused or named.
#include <errno.h>

#include "tests/unit/snapshot_fixture.h"
#include "vmm/kvm/vm.h"
#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/warm.h"

#define RAM_BYTES  (128 * MIB)
#define DATA_BYTES (16 * MIB)
#define ROOT_BYTES (2 * MIB)
#define NPAGES	   (DATA_BYTES / PAGE_SIZE_BYTES)

#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_FILE	(1ull << 61)

static char folder[64], path[96], root_path[96];
static struct snap_machine machine = {.ram_bytes = RAM_BYTES, .pmem_bytes = ROOT_BYTES};
static struct snap_header header;
static struct capture capture;

/* Scattered, next to each other, long; read and written; the last lies in a hole of the file. */
static const struct snap_hot_run runs[] = {
	{.gpa = 0x3000, .npages = 1, .kind = SNAP_HOT_READ},
	{.gpa = 0x40000, .npages = 2, .kind = SNAP_HOT_READ},
	{.gpa = 0x42000, .npages = 3, .kind = SNAP_HOT_WRITE},
	{.gpa = 0x100000, .npages = 1, .kind = SNAP_HOT_WRITE},
	{.gpa = 0x200000, .npages = 700, .kind = SNAP_HOT_READ},
	{.gpa = DATA_BYTES + 0x10000, .npages = 4, .kind = SNAP_HOT_WRITE},
	{.gpa = RAM_BYTES, .npages = 0, .kind = SNAP_HOT_READ}, /* root image: see hot_set() */
};
#define DATA_PAGES (1 + 2 + 3 + 1 + 700)
#define ROOT_PAGES 5

static struct snap_hot hot_set(void)
{
	static struct snap_hot_run all[ARRAY_SIZE(runs)];

	memcpy(all, runs, sizeof(all));
	all[ARRAY_SIZE(runs) - 1].gpa = layout_pmem_gpa(RAM_BYTES) + 0x80000;
	all[ARRAY_SIZE(runs) - 1].npages = ROOT_PAGES;
	return (struct snap_hot){.runs = all, .nruns = ARRAY_SIZE(all)};
}

static bool is_hot(u64 gpa, int kind)
{
	for (size_t i = 0; i < ARRAY_SIZE(runs) - 1; i++) {
		if (gpa >= runs[i].gpa && gpa < runs[i].gpa + runs[i].npages * PAGE_SIZE_BYTES)
			return kind < 0 || (u32)kind == runs[i].kind;
	}
	return false;
}

/** A file of @data_bytes of data and a hole behind them, on the disk and not in the page cache. */
static int make_file(const char *name, u64 data_bytes, u64 len_bytes)
{
	static u8 data[MIB];
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	memset(data, 0x5a, sizeof(data));
	for (u64 done = 0; done < data_bytes; done += sizeof(data))
		CHECK_EQ(write(fd, data, sizeof(data)), sizeof(data));
	CHECK_EQ(ftruncate(fd, (off_t)len_bytes), 0);
	CHECK_EQ(fsync(fd), 0);
	CHECK_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	return fd;
}

static void make_snap(struct snap *snap, struct snap_mem *mem)
{
	*snap = (struct snap){.path = folder,
			      .memory_fd = make_file(path, DATA_BYTES, RAM_BYTES),
			      .root_fd = make_file(root_path, ROOT_BYTES, ROOT_BYTES),
			      .view = {.machine = &machine, .header = &header},
			      .manifest = {.root_bytes = ROOT_BYTES}};
	*mem = (struct snap_mem){.fd = snap->memory_fd,
				 .ranges = {{.gpa = 0, .len_bytes = RAM_BYTES}},
				 .nranges = 1};
	CHECK_EQ(snap_mem_mmap.map(mem), 0);
}

static void drop_snap(struct snap *snap, struct snap_mem *mem)
{
	snap_mem_unmap(mem);
	close(snap->memory_fd);
	close(snap->root_fd);
}

static bool cached_now(void *hva, u64 page)
{
	unsigned char there;

	CHECK_EQ(mincore((u8 *)hva + page * PAGE_SIZE_BYTES, PAGE_SIZE_BYTES, &there), 0);
	return there & 1;
}

/** A page that the kernel is just moving is not there for a moment, which mincore(2) may see. */
static void check_cached(void *hva, u64 page, bool want)
{
	for (unsigned int i = 0; want && i < 100 && !cached_now(hva, page); i++)
		usleep(1000);
	CHECK_EQ(cached_now(hva, page), want);
}

static void check_fetch(bool want_plain)
{
	struct snap_hot hot = hot_set();
	struct warm_fetch *fetch;
	struct snap_mem mem;
	struct snap snap;
	u64 bytes_read = 0, page;
	u8 *root;
	bool plain;

	make_snap(&snap, &mem);
	root = mmap(NULL, ROOT_BYTES, PROT_READ, MAP_PRIVATE, snap.root_fd, 0);
	CHECK(root != MAP_FAILED);
	if (cached_now(mem.ranges[0].hva, 3))
		SKIP("this file system keeps what is to be dropped");
	CHECK_EQ(warm_fetch_start(&snap, &hot, &mem, &fetch, &plain), 0);
	CHECK(fetch);
	CHECK_EQ(plain, want_plain);
	CHECK_EQ(warm_fetch_wait(fetch, &bytes_read), 0);
	warm_fetch_free(fetch);
	/* Neither more nor less; holes cost nothing. */
	CHECK_EQ(bytes_read, (DATA_PAGES + ROOT_PAGES) * PAGE_SIZE_BYTES);
	for (page = 0; page < NPAGES; page++)
		check_cached(mem.ranges[0].hva, page, is_hot(page * PAGE_SIZE_BYTES, -1));
	for (page = 0; page < ROOT_BYTES / PAGE_SIZE_BYTES; page++)
		check_cached(root, page, page >= 0x80 && page < 0x80 + ROOT_PAGES);
	/* Warm now, but for the hole, which is no work. */
	CHECK_EQ(((volatile u8 *)mem.ranges[0].hva)[0x3000], 0x5a);
	for (unsigned int i = 0; bytes_read && i < 10; i++) {
		bytes_read = 0;
		CHECK_EQ(warm_fetch_start(&snap, &hot, &mem, &fetch, &plain), 0);
		if (fetch)
			CHECK_EQ(warm_fetch_wait(fetch, &bytes_read), 0);
		warm_fetch_free(fetch);
	}
	CHECK_EQ(bytes_read, 0);
	munmap(root, ROOT_BYTES);
	drop_snap(&snap, &mem);
}

static void test_fetch(void)
{
	check_fetch(false);
}

/** A diff: its own pages come of its file, the others of its parent's. */
static void test_fetch_diff(void)
{
	static const struct snap_diff_run held[] = {{.gpa = 0x41000, .npages = 2},
						    {.gpa = 0x210000, .npages = 16},
						    {.gpa = 0x900000, .npages = 1}};
	struct snap_diff diff = {.runs = held, .nruns = ARRAY_SIZE(held), .npages = 19};
	char diff_path[128];
	struct snap_hot hot = hot_set();
	struct snap snap, parent;
	struct warm_fetch *fetch;
	struct snap_mem mem;
	u64 bytes_read, here = 0;
	u8 *own, *below;
	bool plain;

	make_snap(&parent, &mem);
	snprintf(diff_path, sizeof(diff_path), "%s/diff-memory", folder);
	snap = parent;
	snap.memory_fd = make_file(diff_path, DATA_BYTES, RAM_BYTES);
	snap.diff = &diff;
	snap.parent = &parent;
	CHECK_EQ(snap_diff_overlay(&snap, &mem, false), 0);
	CHECK_EQ(warm_fetch_start(&snap, &hot, &mem, &fetch, &plain), 0);
	CHECK(fetch);
	CHECK_EQ(warm_fetch_wait(fetch, &bytes_read), 0);
	warm_fetch_free(fetch);
	CHECK_EQ(bytes_read, (DATA_PAGES + ROOT_PAGES) * PAGE_SIZE_BYTES);
	own = mmap(NULL, DATA_BYTES, PROT_READ, MAP_PRIVATE, snap.memory_fd, 0);
	below = mmap(NULL, DATA_BYTES, PROT_READ, MAP_PRIVATE, parent.memory_fd, 0);
	for (u64 page = 0; page < NPAGES; page++) {
		u64 gpa = page * PAGE_SIZE_BYTES;
		bool in_diff = false;

		for (size_t i = 0; i < ARRAY_SIZE(held); i++)
			in_diff |= gpa >= held[i].gpa &&
				   gpa < held[i].gpa + held[i].npages * PAGE_SIZE_BYTES;
		check_cached(own, page, in_diff && is_hot(gpa, -1));
		check_cached(below, page, !in_diff && is_hot(gpa, -1));
		here += in_diff && is_hot(gpa, -1);
	}
	CHECK_EQ(here, 18);
	munmap(own, DATA_BYTES);
	munmap(below, DATA_BYTES);
	close(snap.memory_fd);
	drop_snap(&parent, &mem);
}

static void test_fetch_plain(void)
{
	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	check_fetch(true);
	CHECK_EQ(unsetenv("THAW_IO"), 0);
}

static void test_fetch_given_up(void)
{
	struct snap_hot hot = hot_set();
	struct warm_fetch *fetch;
	struct snap_mem mem;
	struct snap snap;
	bool plain;

	/* A restore that fails meanwhile. */
	make_snap(&snap, &mem);
	CHECK_EQ(warm_fetch_start(&snap, &hot, &mem, &fetch, &plain), 0);
	warm_fetch_free(fetch);
	warm_fetch_free(NULL);
	drop_snap(&snap, &mem);
}

static void check_populate(bool read, bool write, unsigned int nthreads)
{
	struct snap_hot hot = hot_set();
	struct vm vm = {.cfg = {.ram_bytes = RAM_BYTES, .pmem_bytes = ROOT_BYTES}};
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	struct snap_mem mem;
	struct snap snap;
	u64 entry;

	make_snap(&snap, &mem);
	vm.pmem_hva = mmap(NULL, ROOT_BYTES, PROT_READ, MAP_PRIVATE, snap.root_fd, 0);
	CHECK(vm.pmem_hva != MAP_FAILED && pagemap >= 0);
	CHECK_EQ(gmem_add(&vm.gmem, 0, RAM_BYTES, mem.ranges[0].hva), 0);
	CHECK_EQ(warm_populate(&hot, &vm, read, write, nthreads), 0);
	for (u64 gpa = 0; gpa < DATA_BYTES + MIB; gpa += PAGE_SIZE_BYTES) {
		u64 at = ((uintptr_t)mem.ranges[0].hva + gpa) / PAGE_SIZE_BYTES * sizeof(entry);
		bool copied;

		CHECK_EQ(pread(pagemap, &entry, sizeof(entry), (off_t)at), sizeof(entry));
		copied = (entry & PAGEMAP_PRESENT) && !(entry & PAGEMAP_FILE);
		CHECK_EQ(copied, write && is_hot(gpa, SNAP_HOT_WRITE));
		if (read && is_hot(gpa, SNAP_HOT_READ))
			CHECK(entry & PAGEMAP_PRESENT);
	}
	munmap(vm.pmem_hva, ROOT_BYTES);
	close(pagemap);
	drop_snap(&snap, &mem);
}

static void test_populate(void)
{
	check_populate(false, false, 0);
	check_populate(true, false, 1);
	check_populate(false, true, 0);
	check_populate(true, true, 3);
	check_populate(true, true, SNAP_THREADS_MAX);
}

static void test_words(void)
{
	enum snap_populate populate;
	enum snap_prefault prefault;
	enum snap_huge_pages huge;
	struct snap_restore_opts opts = {0};

	CHECK(snap_populate_parse(NULL, &populate) && populate == SNAP_POPULATE_DEFAULT);
	CHECK(snap_populate_parse("off", &populate) && populate == SNAP_POPULATE_OFF);
	CHECK(snap_populate_parse("read", &populate) && populate == SNAP_POPULATE_READ);
	CHECK(snap_populate_parse("write", &populate) && populate == SNAP_POPULATE_WRITE);
	CHECK(snap_populate_parse("both", &populate) && populate == SNAP_POPULATE_BOTH);
	CHECK(!snap_populate_parse("", &populate) && !snap_populate_parse("on", &populate));
	CHECK(snap_prefault_parse("on", &prefault) && prefault == SNAP_PREFAULT_ON);
	CHECK(snap_prefault_parse("off", &prefault) && prefault == SNAP_PREFAULT_OFF);
	CHECK(!snap_prefault_parse("both", &prefault));
	CHECK(snap_huge_parse(NULL, &huge) && huge == SNAP_HUGE_PAGES_NONE);
	CHECK(snap_huge_parse("none", &huge) && huge == SNAP_HUGE_PAGES_NONE);
	CHECK(snap_huge_parse("thp", &huge) && huge == SNAP_HUGE_PAGES_THP);
	CHECK(!snap_huge_parse("2M", &huge));
	snap_opts_note(&opts, "pread");
	snap_opts_note(&opts, "no-pre-fault");
	CHECK_STR(opts.note, "+pread+no-pre-fault");
	for (int i = 0; i < 10; i++)
		snap_opts_note(&opts, "no-pre-fault"); /* cut, never past the end */
	CHECK_EQ(strlen(opts.note), sizeof(opts.note) - 1);
}

/** snap_warm_begin() without a file `hot`. */
static int begin(struct snap_restore_opts *opts, const char *strategy)
{
	struct snap_warm warm;
	struct snap_mem mem;
	struct snap snap;
	int ret;

	make_snap(&snap, &mem);
	snap.dirfd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	opts->note[0] = '\0';
	capture_begin(&capture);
	ret = snap_warm_begin(&warm, &snap, &mem, snap_mem_find(strategy), opts);
	capture_end(&capture);
	snap_warm_end(&warm);
	snap_warm_end(&warm);
	close(snap.dirfd);
	drop_snap(&snap, &mem);
	return ret;
}

static void test_no_hot_set(void)
{
	struct snap_restore_opts habit = {0}, off = {.populate = SNAP_POPULATE_OFF},
				 read = {.populate = SNAP_POPULATE_READ},
				 prefault = {.prefault = SNAP_PREFAULT_ON},
				 threads = {.threads = 2};

	CHECK_EQ(begin(&habit, "ws"), 0);
	CHECK_STR(habit.note, "+no-hot-set");
	CHECK_EQ(begin(&habit, "mmap"), 0);
	CHECK_STR(habit.note, "");
	CHECK_EQ(begin(&off, "ws"), 0);
	CHECK_EQ(begin(&read, "ws"), -ENOENT);
	CHECK_LOGGED(&capture, "has no hot set");
	CHECK_EQ(begin(&read, "mmap"), -ENOENT);
	CHECK_EQ(begin(&prefault, "copy"), -ENOENT);
	CHECK_EQ(begin(&threads, "mmap"), -EINVAL);
	CHECK_LOGGED(&capture, "populates nothing by itself");
	CHECK_EQ(begin(&threads, "ws"), 0);
}

static void setup(void)
{
	temp_folder(folder);
	snprintf(path, sizeof(path), "%s/memory", folder);
	snprintf(root_path, sizeof(root_path), "%s/root", folder);
}

static void teardown(void)
{
	temp_folder_remove(folder);
}

TEST_MAIN({"setup", setup}, {"words", test_words}, {"no hot set", test_no_hot_set},
	  {"populate", test_populate}, {"fetch", test_fetch}, {"fetch plain", test_fetch_plain},
	  {"fetch diff", test_fetch_diff}, {"fetch given up", test_fetch_given_up},
	  {"teardown", teardown})
