// SPDX-License-Identifier: Apache-2.0
// State through a real /dev/kvm: a machine that never ran is written, restored into another one,
// written again. Needs the set-up calls only.
#include <errno.h>
#include <sys/ioctl.h>

#include "tests/unit/snapshot_fixture.h"
#include "vmm/kvm/vm.h"
#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/pack.h"
#include "vmm/snapshot/write.h"

#define DISK_BYTES (16 * MIB)

static char folder[64], first[96], second[96], root_path[96];
static struct capture capture;

static int temp_file(u64 len_bytes)
{
	int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, (off_t)len_bytes), 0);
	return fd;
}

static void write_to(struct vm *vm, const char *path, const struct snap *base)
{
	struct snap_write_opts opts = {.path = path,
				       .name = "kvm",
				       .kernel = "none",
				       .base = base,
				       .root_image = base ? NULL : root_path,
				       .parent = base ? "kvm" : NULL};
	struct snap_writer *writer;

	CHECK_EQ(snap_write_prepare(&opts, &writer), 0);
	CHECK_EQ(snap_write(writer, vm), 0);
	snap_write_abort(writer);
}

static void write_diff(struct vm *vm, const char *path, const struct snap *base, const char *parent)
{
	struct snap_write_opts opts = {.path = path,
				       .name = "kvm",
				       .kernel = "none",
				       .base = base,
				       .parent = parent,
				       .diff = true};
	struct snap_writer *writer;

	CHECK_EQ(snap_write_prepare(&opts, &writer), 0);
	CHECK_EQ(snap_write(writer, vm), 0);
	snap_write_abort(writer);
}

/** boot() - a machine as after boot_setup(), with something in every kind of state. */
static void boot(struct vm *vm, unsigned int nvcpus, u64 ram_bytes)
{
	struct vm_config cfg = {.ram_bytes = ram_bytes,
				.nvcpus = nvcpus,
				.pmem_fd = open(root_path, O_RDONLY | O_CLOEXEC),
				.pmem_bytes = 2 * MIB,
				.disk_base_fd = -1,
				.disk_delta_fd = temp_file(DISK_BYTES),
				.disk_bytes = DISK_BYTES,
				.console_fd = -1,
				.ctl_fd = -1,
				.vsock_listen_fd = -1};

	vm_init(vm, &cfg);
	CHECK_EQ(vm_ram_map_anon(vm), 0);
	CHECK_EQ(vm_create(vm), 0);
	CHECK_EQ(vm_create_vcpus(vm), 0);
	CHECK_EQ(vm_create_devices(vm), 0);
	vm->generation = 1;
	memset(vm->low_hva, 0x77, 3 * MIB);
	if (vm->high_hva)
		memset(vm->high_hva, 0x88, MIB);
}

static void poke_registers(struct vm *vm)
{
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++) {
		struct kvm_regs regs = {
			.rip = 0x100000 + i, .rsp = 0x8000, .rax = 0xabcdef00 + i, .rflags = 2};

		CHECK_EQ(ioctl(vm->vcpus[i].fd, KVM_SET_REGS, &regs), 0);
	}
}

static void restore(struct vm *vm, struct snap *snap, const char *strategy)
{
	struct snap_restore_opts opts = {.strategy = strategy};
	struct vm_config cfg = {.console_fd = -1, .ctl_fd = -1, .vsock_listen_fd = -1};

	cfg.disk_delta_fd = temp_file(DISK_BYTES);
	snap_vm_config(snap, &cfg);
	vm_init(vm, &cfg);
	CHECK_EQ(snap_restore(snap, vm, &opts), 0);
	vm->generation = 2;
	CHECK(vm->clocks.first_ioctl_ns && vm->clocks.state_set_ns >= vm->clocks.first_ioctl_ns);
}

/** check_same() - the state of @b is that of @a, but for what time moves. */
static void check_same(const struct snap_view *a, const struct snap_view *b)
{
	CHECK_EQ(a->nvcpus, b->nvcpus);
	CHECK_EQ(a->ndevs, b->ndevs);
	CHECK(!memcmp(a->cpuid, b->cpuid, sizeof(*a->cpuid)));
	CHECK(!memcmp(a->ioapic, b->ioapic, sizeof(*a->ioapic)));
	for (unsigned int i = 0; i < a->ndevs; i++)
		CHECK(!memcmp(a->devs[i], b->devs[i], sizeof(*a->devs[i])));
	for (unsigned int i = 0; i < a->nvcpus; i++) {
		const struct snap_vcpu *was = a->vcpus[i], *is = b->vcpus[i];

		CHECK(!memcmp(&was->regs, &is->regs, sizeof(was->regs)));
		CHECK(!memcmp(&was->sregs, &is->sregs, sizeof(was->sregs)));
		CHECK(!memcmp(&was->mp_state, &is->mp_state, sizeof(was->mp_state)));
		CHECK(!memcmp(&was->xcrs, &is->xcrs, sizeof(was->xcrs)));
		CHECK(!memcmp(&was->lapic, &is->lapic, sizeof(was->lapic)));
		CHECK_EQ(was->xsave_bytes, is->xsave_bytes);
		CHECK_EQ(was->nmsrs, is->nmsrs);
		for (u32 m = 0; m < was->nmsrs; m++) {
			CHECK_EQ(was->msrs[m].index, is->msrs[m].index);
			/* The TSC goes on. */
			if (was->msrs[m].index == 0x10)
				CHECK(is->msrs[m].value >= was->msrs[m].value);
			else
				CHECK_EQ(was->msrs[m].value, is->msrs[m].value);
		}
	}
	/* kvmclock goes on from the snapshot, and not by the wall clock: seconds would show. */
	CHECK(b->machine->clock.clock >= a->machine->clock.clock);
	CHECK(b->machine->clock.clock - a->machine->clock.clock < 2000000000ull);
}

static void check_shape(unsigned int nvcpus, u64 ram_bytes, const char *strategy)
{
	static struct vm vm, clone;
	struct snap snap, again;

	boot(&vm, nvcpus, ram_bytes);
	poke_registers(&vm);
	write_to(&vm, first, NULL);
	vm_destroy(&vm);
	CHECK_EQ(snap_open(&snap, first), 0);
	CHECK_EQ(snap_verify(&snap), 0);
	CHECK_EQ(snap.manifest.memory_bytes, snap_memory_bytes(ram_bytes));
	usleep(50000);
	restore(&clone, &snap, strategy);
	CHECK_EQ(((u8 *)clone.low_hva)[3 * MIB - 1], 0x77);
	CHECK_EQ(((u8 *)clone.low_hva)[3 * MIB], 0);
	if (clone.high_hva)
		CHECK_EQ(((u8 *)clone.high_hva)[MIB - 1], 0x88);
	((u8 *)clone.low_hva)[64 * MIB] = 0x99;
	write_to(&clone, second, &snap);
	vm_destroy(&clone);
	CHECK_EQ(snap_open(&again, second), 0);
	CHECK_EQ(snap_verify(&again), 0);
	CHECK_STR(again.manifest.parent, "kvm");
	CHECK_STR(again.manifest.root_image, root_path);
	CHECK_EQ(again.view.machine->generation, 2);
	check_same(&snap.view, &again.view);
	snap_close(&again);
	snap_close(&snap);
}

static void setup(void)
{
	int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

	if (fd < 0 || ioctl(fd, KVM_CHECK_EXTENSION, KVM_CAP_SPLIT_IRQCHIP) <= 0)
		SKIP("no usable /dev/kvm here");
	close(fd);
}

static void run(unsigned int nvcpus, u64 ram_bytes, const char *strategy)
{
	temp_folder(folder);
	snprintf(first, sizeof(first), "%s/first", folder);
	snprintf(second, sizeof(second), "%s/second", folder);
	snprintf(root_path, sizeof(root_path), "%s/root.erofs", folder);
	root_image_write(root_path, 'x', 4096);
	check_shape(nvcpus, ram_bytes, strategy);
	temp_folder_remove(folder);
}

/** Two diffs, one on the other, through whole restores by every strategy. */
static void check_diffs(const char *strategy)
{
	static struct vm vm, clone;
	char third[96];
	struct snap snap, top;
	struct stat st;

	snprintf(third, sizeof(third), "%s/third", folder);
	CHECK_EQ(snap_open(&snap, first), 0);
	restore(&clone, &snap, strategy);
	((u8 *)clone.low_hva)[MIB] = 0x91;
	((u8 *)clone.low_hva)[64 * MIB] = 0x92;
	write_diff(&clone, second, &snap, "first");
	vm_destroy(&clone);
	snap_close(&snap);
	CHECK_EQ(snap_open(&snap, second), 0);
	CHECK_EQ(snap.manifest.diff_pages, 2);
	CHECK_EQ(fstat(snap.memory_fd, &st), 0);
	CHECK(st.st_blocks <= 4 * 8);
	restore(&vm, &snap, strategy);
	CHECK_EQ(((u8 *)vm.low_hva)[MIB], 0x91);
	memset((u8 *)vm.low_hva + MIB, 0, 4096);
	write_diff(&vm, third, &snap, "second");
	vm_destroy(&vm);
	snap_close(&snap);
	CHECK_EQ(snap_open(&top, third), 0);
	CHECK_EQ(snap_verify(&top), 0);
	CHECK_EQ(top.manifest.diff_pages, 1);
	restore(&clone, &top, strategy);
	CHECK_EQ(((u8 *)clone.low_hva)[MIB - 1], 0x77);
	CHECK_EQ(((u8 *)clone.low_hva)[MIB], 0);
	CHECK_EQ(((u8 *)clone.low_hva)[MIB + 4096], 0x77);
	CHECK_EQ(((u8 *)clone.low_hva)[64 * MIB], 0x92);
	CHECK_EQ(((u8 *)clone.low_hva)[3 * MIB], 0);
	vm_destroy(&clone);
	CHECK_EQ(snap_open(&snap, first), 0);
	check_same(&snap.view, &top.view);
	snap_close(&snap);
	snap_close(&top);
	temp_folder_remove(second);
	temp_folder_remove(third);
}

static void test_diffs(void)
{
	static struct vm vm;

	temp_folder(folder);
	snprintf(first, sizeof(first), "%s/first", folder);
	snprintf(second, sizeof(second), "%s/second", folder);
	snprintf(root_path, sizeof(root_path), "%s/root.erofs", folder);
	root_image_write(root_path, 'x', 4096);
	boot(&vm, 2, 128 * MIB);
	poke_registers(&vm);
	write_to(&vm, first, NULL);
	vm_destroy(&vm);
	for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops && !(*ops)->takes_pack;
	     ops++)
		check_diffs((*ops)->name);
	temp_folder_remove(folder);
}

static void test_one_vcpu(void)
{
	run(1, 128 * MIB, "mmap");
}

static void test_copy(void)
{
	run(2, 256 * MIB, "copy");
}

static void test_uffd(void)
{
	run(2, 256 * MIB, "uffd");
}

static void test_uring(void)
{
	run(1, 4 * GIB, "uring");
}

static void test_memfd(void)
{
	run(1, 4 * GIB, "memfd");
}

static void test_many_vcpus_high_ram(void)
{
	run(8, 4 * GIB, NULL);
}

/** restore_with() - a clone by @opts, and its end. Return: what snap_restore() said. */
static bool page_reads; /* of the last clone: its start reads by page */

static int restore_with(struct snap *snap, struct snap_restore_opts *opts)
{
	static struct vm clone;
	struct vm_config cfg = {.console_fd = -1, .ctl_fd = -1, .vsock_listen_fd = -1};
	int ret;

	cfg.disk_delta_fd = temp_file(DISK_BYTES);
	snap_vm_config(snap, &cfg);
	vm_init(&clone, &cfg);
	capture_begin(&capture);
	ret = snap_restore(snap, &clone, opts);
	capture_end(&capture);
	page_reads = clone.page_reads_ns != 0;
	if (!ret) {
		CHECK_EQ(((u8 *)clone.low_hva)[3 * MIB - 1], 0x77);
		CHECK_EQ(((u8 *)clone.low_hva)[3 * MIB], 0);
	}
	vm_destroy(&clone);
	close(cfg.disk_delta_fd);
	return ret;
}

/** The hot set of @snap: some pages with data, read and written. */
static void write_hot(const struct snap *snap)
{
	static const struct snap_hot_run runs[] = {
		{.gpa = 0x10000, .npages = 3, .kind = SNAP_HOT_READ},
		{.gpa = 0x20000, .npages = 5, .kind = SNAP_HOT_WRITE},
	};
	static const struct snap_hot_info info = {.recorder = SNAP_HOT_PAGEMAP,
						  .rule = SNAP_HOT_UNION,
						  .threshold = 1,
						  .nclones = 1,
						  .ncommands = 1,
						  .union_pages = 8};
	char path[128];
	size_t len;
	void *buf;

	CHECK_EQ(snap_hot_build(runs, ARRAY_SIZE(runs), &info, snap->view.header->digest, &buf,
				&len),
		 0);
	CHECK_EQ(chmod(first, 0700), 0);
	snprintf(path, sizeof(path), "%s/hot", first);
	file_write(path, buf, len);
	free(buf);
}

/** Its memory.pack, for the strategy that reads that. */
static void write_pack(const struct snap *snap)
{
	struct pack_write_opts opts = {.memory_only = true, .to = "memory.pack"};
	struct pack_stats stats;
	char path[128];

	snprintf(path, sizeof(path), "%s/memory.pack", first);
	opts.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(opts.fd >= 0);
	CHECK_EQ(pack_write(snap, &opts, &stats), 0);
	close(opts.fd);
}

static void check_options(struct snap *snap)
{
	const int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	const bool has_prefault =
		ioctl(kvm, KVM_CHECK_EXTENSION, 236 /* KVM_CAP_PRE_FAULT_MEMORY */) > 0;
	struct snap_restore_opts habit = {0}, both = {.populate = SNAP_POPULATE_BOTH},
				 on = {.prefault = SNAP_PREFAULT_ON, .threads = 2},
				 off = {.populate = SNAP_POPULATE_OFF,
					.prefault = SNAP_PREFAULT_OFF},
				 none = {.populate = SNAP_POPULATE_OFF, .threads = 2},
				 huge = {.strategy = "copy", .huge = SNAP_HUGE_PAGES_THP},
				 memfd = {.strategy = "memfd", .memory_fd = 3},
				 pack = {.strategy = "pack"};

	close(kvm);
	CHECK_EQ(restore_with(snap, &habit), 0);
	if (has_prefault)
		CHECK(!habit.note[0] || !strcmp(habit.note, "+no-pre-fault"));
	else
		CHECK_STR(habit.note, "+no-pre-fault");
	/* Of what is in the page cache nothing is fetched, and then read-around does no harm. */
	CHECK(!page_reads);
	CHECK_EQ(posix_fadvise(snap->memory_fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(restore_with(snap, &habit), 0);
	CHECK(page_reads || !habit.bytes_read);
	CHECK_EQ(restore_with(snap, &off), 0);
	CHECK_STR(off.note, "");
	CHECK_EQ(restore_with(snap, &pack), -ENOENT);
	CHECK_LOGGED(&capture, "has no memory.pack");
	write_pack(snap);
	CHECK_EQ(snap_verify(snap), 0);
	for (unsigned int threads = 0; threads <= 4; threads += 2) {
		both.threads = threads;
		for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops; ops++) {
			both.strategy = (*ops)->name;
			CHECK_EQ(restore_with(snap, &both), 0);
		}
	}
	if (!has_prefault) {
		CHECK_EQ(restore_with(snap, &on), -EOPNOTSUPP);
		CHECK_LOGGED(&capture, "KVM_PRE_FAULT_MEMORY");
	}
	CHECK_EQ(restore_with(snap, &none), -EINVAL);
	CHECK_LOGGED(&capture, "populates nothing");
	if (restore_with(snap, &huge))
		CHECK_LOGGED(&capture, "huge pages: ");
	huge.strategy = "mmap";
	CHECK_EQ(restore_with(snap, &huge), -EOPNOTSUPP);
	CHECK_EQ(restore_with(snap, &memfd), -EINVAL);
	CHECK_LOGGED(&capture, "memory descriptor 3");
	memfd.strategy = "copy";
	CHECK_EQ(restore_with(snap, &memfd), -EINVAL);
	CHECK_LOGGED(&capture, "takes no memory descriptor");
}

static void test_options(void)
{
	static struct vm vm;
	struct snap_restore_opts read = {.populate = SNAP_POPULATE_READ};
	struct snap snap;
	struct snap_mem mem;
	struct snap_restore_opts handed = {.strategy = "memfd"};
	char id[SNAP_DIGEST_HEX];

	temp_folder(folder);
	snprintf(first, sizeof(first), "%s/first", folder);
	snprintf(root_path, sizeof(root_path), "%s/root.erofs", folder);
	root_image_write(root_path, 'x', 4096);
	boot(&vm, 1, 128 * MIB);
	write_to(&vm, first, NULL);
	vm_destroy(&vm);
	CHECK_EQ(snap_open(&snap, first), 0);
	CHECK_EQ(restore_with(&snap, &read), -ENOENT);
	CHECK_LOGGED(&capture, "has no hot set");
	write_hot(&snap);
	check_options(&snap);
	/* One memfd for many. */
	snap_digest_hex(snap.view.header->digest, id);
	mem = (struct snap_mem){
		.fd = snap.memory_fd, .ranges = {{.len_bytes = 128 * MIB}}, .nranges = 1, .id = id};
	handed.memory_fd = snap_memfd_make(&mem);
	CHECK(handed.memory_fd > 2);
	for (unsigned int i = 0; i < 3; i++) {
		CHECK_EQ(restore_with(&snap, &handed), 0);
		CHECK_EQ(handed.bytes_read, 0);
	}
	close(handed.memory_fd);
	snap_close(&snap);
	temp_folder_remove(folder);
}

static void test_refusals(void)
{
	static struct vm vm, clone;
	struct snap_restore_opts opts = {.strategy = "nosuch"};
	struct vm_config cfg = {.console_fd = -1, .ctl_fd = -1, .vsock_listen_fd = -1};
	struct snap snap;
	int ret;

	temp_folder(folder);
	snprintf(first, sizeof(first), "%s/first", folder);
	snprintf(root_path, sizeof(root_path), "%s/root.erofs", folder);
	root_image_write(root_path, 'x', 4096);
	boot(&vm, 1, 128 * MIB);
	write_to(&vm, first, NULL);
	vm_destroy(&vm);
	CHECK_EQ(snap_open(&snap, first), 0);
	snap_vm_config(&snap, &cfg);
	cfg.disk_delta_fd = temp_file(DISK_BYTES);
	vm_init(&clone, &cfg);
	capture_begin(&capture);
	ret = snap_restore(&snap, &clone, &opts);
	capture_end(&capture);
	CHECK_EQ(ret, -EINVAL);
	CHECK_LOGGED(&capture, "no restore strategy \"nosuch\"");
	vm_destroy(&clone);
	cfg.nvcpus = 2;
	opts.strategy = NULL;
	vm_init(&clone, &cfg);
	capture_begin(&capture);
	ret = snap_restore(&snap, &clone, &opts);
	capture_end(&capture);
	CHECK_EQ(ret, -EINVAL);
	CHECK_LOGGED(&capture, "another shape");
	vm_destroy(&clone);
	snap_close(&snap);
	temp_folder_remove(folder);
}

TEST_MAIN({"setup", setup}, {"one_vcpu", test_one_vcpu}, {"copy", test_copy}, {"diffs", test_diffs},
	  {"many_vcpus_high_ram", test_many_vcpus_high_ram}, {"uring", test_uring},
	  {"memfd", test_memfd}, {"uffd", test_uffd}, {"options", test_options},
	  {"refusals", test_refusals})
