// SPDX-License-Identifier: Apache-2.0
// The made-up snapshot: written through the product's own writer, read through its own restore.
//
// Memory: MADE_DATA_MIB of random words from address 0, then holes. Hot set: runs of 1-5 pages
// scattered over 41 MiB of them, as recorded sets look (docs/restore.md), every fourth page
// written; every eighth run lies in the root image, which nobody writes.
#include "bench/made.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vmm/kvm/vm.h"
#include "vmm/snapshot/hot.h"
#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/pack.h"
#include "vmm/snapshot/snapshot.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define DISK_BYTES (1024 * MIB)
#define SPAN_PAGES (41 * MIB / PAGE_SIZE_BYTES)

struct made {
	char folder[128], root_path[160], path[160];
	struct snap snap;
	u64 hot_bytes;
	int kvm_fd, vm_fd; /* an empty VM: see made_new() */
};

static u64 random_next(u64 *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void fill_random(void *to, u64 len_bytes, u64 seed)
{
	for (u64 *word = to; len_bytes; len_bytes -= sizeof(*word))
		*word++ = random_next(&seed);
}

/** What thaw-vmm maps must begin like an erofs file system. */
static int write_root(const struct made *made)
{
	const u32 magic = 0xe0f5e1e2;
	int fd = open(made->root_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0400), ret = 0;
	char *part = malloc(MIB);

	if (fd < 0 || !part)
		ret = fd < 0 ? -errno : -ENOMEM;
	for (u64 i = 0; i < MADE_ROOT_MIB && !ret; i++) {
		fill_random(part, MIB, i + 1);
		if (!i)
			memcpy(part + 1024, &magic, sizeof(magic));
		ret = fd_pwrite_full(fd, part, MIB, i * MIB);
	}
	if (!ret && fsync(fd) < 0)
		ret = -errno;
	free(part);
	fd_close(&fd);
	return ret;
}

static int write_snapshot(const struct made *made, const struct made_shape *shape)
{
	struct vm_config cfg = {.ram_bytes = shape->ram_mib * MIB,
				.nvcpus = shape->nvcpus,
				.pmem_fd = -1,
				.pmem_bytes = MADE_ROOT_MIB * MIB,
				.disk_base_fd = -1,
				.disk_delta_fd = -1,
				.disk_bytes = DISK_BYTES,
				.console_fd = -1,
				.ctl_fd = -1,
				.vsock_listen_fd = -1};
	struct snap_write_opts opts = {.path = made->path,
				       .name = "made",
				       .kernel = "none",
				       .root_image = made->root_path};
	struct snap_writer *writer = NULL;
	struct vm *vm = malloc(sizeof(*vm));
	int ret;

	if (!vm)
		return -ENOMEM;
	cfg.pmem_fd = open(made->root_path, O_RDONLY | O_CLOEXEC);
	cfg.disk_delta_fd = open(made->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	vm_init(vm, &cfg);
	ret = cfg.pmem_fd < 0 || ftruncate(cfg.disk_delta_fd, DISK_BYTES) < 0 ? -errno : 0;
	ret = ret ?: vm_ram_map_anon(vm);
	ret = ret ?: vm_create(vm);
	ret = ret ?: vm_create_vcpus(vm);
	ret = ret ?: vm_create_devices(vm);
	if (!ret) {
		vm->generation = 1;
		fill_random(vm->low_hva, MADE_DATA_MIB * MIB, 0x7468617721);
	}
	ret = ret ?: snap_write_prepare(&opts, &writer);
	ret = ret ?: snap_write(writer, vm);
	snap_write_abort(writer);
	vm_destroy(vm);
	free(vm);
	fd_close(&cfg.pmem_fd);
	fd_close(&cfg.disk_delta_fd);
	return ret;
}

/** A new file of the snapshot's folder, which is sealed. Return: the descriptor or -errno. */
static int part_create(const struct made *made, const char *name)
{
	char path[192];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", made->path, name);
	if (chmod(made->path, 0700) < 0)
		return -errno;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

static int write_hot(struct made *made, u64 ram_bytes)
{
	struct snap_hot_info info = {.recorder = SNAP_HOT_PAGEMAP,
				     .rule = SNAP_HOT_UNION,
				     .threshold = 1,
				     .nclones = 1,
				     .ncommands = 1,
				     .stability_permille = SNAP_HOT_UNKNOWN,
				     .similarity_permille = SNAP_HOT_UNKNOWN};
	static struct snap_hot_run runs[MADE_HOT_RUNS];
	const u64 stride = SPAN_PAGES / MADE_HOT_RUNS * PAGE_SIZE_BYTES;
	const u32 nroot = MADE_HOT_RUNS / 8, nram = MADE_HOT_RUNS - nroot;
	u32 npages = 0;
	size_t len_bytes;
	void *buf = NULL;
	int fd, ret;

	for (u32 i = 0; i < MADE_HOT_RUNS; i++) {
		u64 base = i < nram ? 0 : layout_pmem_gpa(ram_bytes);
		u32 left = MADE_HOT_RUNS - i - 1, want = MADE_HOT_PAGES - npages;

		runs[i] = (struct snap_hot_run){.gpa = base + (i < nram ? i : i - nram) * stride,
						.npages = left ? 1 + i % 5 : want,
						.kind = i < nram && i % 4 == 3 ? SNAP_HOT_WRITE
									       : SNAP_HOT_READ};
		npages += runs[i].npages;
	}
	info.union_pages = info.intersection_pages = npages;
	made->hot_bytes = npages * PAGE_SIZE_BYTES;
	ret = snap_hot_build(runs, MADE_HOT_RUNS, &info, made->snap.view.header->digest, &buf,
			     &len_bytes);
	if (ret)
		return ret;
	fd = part_create(made, SNAP_FILE_HOT);
	ret = fd < 0 ? fd : fd_pwrite_full(fd, buf, len_bytes, 0);
	fd_close(&fd);
	free(buf);
	return ret;
}

static int write_pack(struct made *made)
{
	struct pack_write_opts opts = {.memory_only = true, .to = "memory.pack"};
	struct pack_stats stats;
	int ret;

	opts.fd = part_create(made, "memory.pack");
	ret = opts.fd < 0 ? opts.fd : pack_write(&made->snap, &opts, &stats);
	fd_close(&opts.fd);
	return ret;
}

int made_new(const struct made_shape *shape, struct made **out)
{
	const char *dir = getenv("THAW_BENCH_DIR");
	struct made *made = calloc(1, sizeof(*made));
	int ret = 0;

	*out = made;
	if (!made)
		return -ENOMEM;
	/* As in thaw-vmm, which has freed no large block either. */
	heap_prepare();
	made->kvm_fd = made->vm_fd = -1;
	made->snap.dirfd = made->snap.memory_fd = made->snap.disk_fd = made->snap.root_fd = -1;
	snprintf(made->folder, sizeof(made->folder), "%s/thaw-bench-XXXXXX",
		 dir ? dir : "/var/tmp");
	if (!mkdtemp(made->folder)) {
		ret = -errno;
		log_err("%s: %s", made->folder, strerror(-ret));
		made->folder[0] = '\0';
		return ret;
	}
	snprintf(made->root_path, sizeof(made->root_path), "%s/root.erofs", made->folder);
	snprintf(made->path, sizeof(made->path), "%s/made", made->folder);
	/* A host that runs sandboxes has a VM already: the first one of a host also switches
	 * virtualisation on, on every processor. */
	made->kvm_fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	made->vm_fd = made->kvm_fd < 0 ? -1 : ioctl(made->kvm_fd, KVM_CREATE_VM, 0);
	ret = made->vm_fd < 0 ? -errno : write_root(made);
	ret = ret ?: write_snapshot(made, shape);
	ret = ret ?: snap_open(&made->snap, made->path);
	ret = ret ?: write_hot(made, shape->ram_mib * MIB);
	ret = ret ?: write_pack(made);
	if (ret)
		log_err("%s: made-up snapshot: %s", made->folder, strerror(-ret));
	return ret;
}

void made_free(struct made *made)
{
	static const char *const parts[] = {"manifest.json", "state", "memory",	   "hot",
					    "memory.pack",   "disk",  "root.erofs"};
	char path[224];

	if (!made)
		return;
	snap_close(&made->snap);
	fd_close(&made->vm_fd);
	fd_close(&made->kvm_fd);
	for (size_t i = 0; made->folder[0] && i < ARRAY_SIZE(parts); i++) {
		snprintf(path, sizeof(path), "%s/%s",
			 i + 1 < ARRAY_SIZE(parts) ? made->path : made->folder, parts[i]);
		if (unlink(path) < 0 && errno != ENOENT)
			log_warn("%s: %s", path, strerror(errno));
	}
	if (made->folder[0] &&
	    ((rmdir(made->path) < 0 && errno != ENOENT) || rmdir(made->folder) < 0))
		log_warn("%s: %s", made->folder, strerror(errno));
	free(made);
}

/** Read-hot pages read, write-hot ones written, as a guest would; the pages of a command. */
static void touch_hot(const struct vm *vm, const struct snap_hot *hot)
{
	const u64 pmem_gpa = layout_pmem_gpa(vm->cfg.ram_bytes);

	for (u32 i = 0; i < hot->nruns; i++) {
		const struct snap_hot_run *run = &hot->runs[i];
		volatile u8 *hva = (u8 *)vm->low_hva + run->gpa;

		if (run->gpa >= pmem_gpa)
			hva = (u8 *)vm->pmem_hva + (run->gpa - pmem_gpa);
		for (u64 at = 0; at < run->npages * PAGE_SIZE_BYTES; at += PAGE_SIZE_BYTES) {
			if (run->kind == SNAP_HOT_WRITE)
				hva[at] = (u8)(hva[at] + 1);
			else
				(void)hva[at];
		}
	}
}

/** Bytes that storage gave this process. */
static u64 storage_bytes(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (u64)usage.ru_inblock * 512;
}

static u64 faults_now(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (u64)(usage.ru_minflt + usage.ru_majflt);
}

static int clone_child(struct made *made, const struct made_how *how, struct made_times *times)
{
	struct snap_restore_opts opts = {.strategy = how->strategy, .threads = how->threads};
	struct vm_config cfg = {.console_fd = -1, .ctl_fd = -1, .vsock_listen_fd = -1};
	struct vm *vm = calloc(1, sizeof(*vm));
	u64 start_ns = clock_now_ns(), read_bytes = storage_bytes(), faults;
	struct snap_hot hot;
	int ret;

	if (!vm)
		return -ENOMEM;
	if (how->state_only) {
		opts.populate = SNAP_POPULATE_OFF;
		opts.prefault = SNAP_PREFAULT_OFF;
	}
	cfg.disk_delta_fd = open(made->folder, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
	if (cfg.disk_delta_fd < 0 || ftruncate(cfg.disk_delta_fd, DISK_BYTES) < 0)
		return -errno;
	snap_vm_config(&made->snap, &cfg);
	vm_init(vm, &cfg);
	ret = snap_restore(&made->snap, vm, &opts);
	if (ret)
		return ret;
	times->restore_ns = clock_now_ns() - start_ns;
	times->c1_ns = vm->clocks.state_set_ns - vm->clocks.first_ioctl_ns;
	ret = how->touch ? snap_hot_open(&made->snap, &hot) : 0;
	if (how->touch && !ret) {
		faults = faults_now();
		start_ns = clock_now_ns();
		touch_hot(vm, &hot);
		times->touch_ns = clock_now_ns() - start_ns;
		times->faults = faults_now() - faults;
	}
	times->bytes_read = storage_bytes() - read_bytes;
	times->hot_bytes = made->hot_bytes;
	return ret;
}

static int make_cold(const struct made *made)
{
	const int fds[] = {made->snap.memory_fd, made->snap.root_fd};
	int ret = 0;

	for (size_t i = 0; i < ARRAY_SIZE(fds) && !ret; i++)
		ret = -posix_fadvise(fds[i], 0, 0, POSIX_FADV_DONTNEED);
	return ret;
}

int made_clone(struct made *made, const struct made_how *how, struct made_times *times)
{
	struct {
		int ret;
		struct made_times times;
	} result = {.ret = -ECHILD};
	int pipe_fd[2], ret;
	pid_t pid;

	ret = how->cold ? make_cold(made) : 0;
	if (ret)
		return ret;
	if (pipe2(pipe_fd, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		result.ret = clone_child(made, how, &result.times);
		_exit(write(pipe_fd[1], &result, sizeof(result)) != sizeof(result));
	}
	ret = pid < 0 ? -errno : 0;
	fd_close(&pipe_fd[1]);
	if (!ret)
		ret = fd_read_full(pipe_fd[0], &result, sizeof(result));
	fd_close(&pipe_fd[0]);
	if (pid > 0 && waitpid(pid, NULL, 0) != pid)
		ret = -errno;
	*times = result.times;
	return ret ? ret : result.ret;
}

const char *const *made_strategies(void)
{
	static const char *names[16];
	const struct snap_mem_ops *const *ops = snap_mem_list();

	for (size_t i = 0; ops[i] && i + 1 < ARRAY_SIZE(names); i++)
		names[i] = ops[i]->name;
	return names;
}
