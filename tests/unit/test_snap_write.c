// SPDX-License-Identifier: Apache-2.0
// Snapshots written to a folder and opened again: content, sparseness, generations, publishing.
#include <errno.h>
#include <sys/wait.h>

#include "tests/unit/snap_write_rig.h"
#include "vmm/seccomp.h"
#include "vmm/snapshot/mem.h"
#include "vmm/virtio/devices.h"

#define DISK_BYTES (16 * MIB)

static void test_content(void)
{
	struct snap_write_opts opts = make_opts();
	struct snap snap;
	struct stat st;
	u8 *ram, page[4096];

	begin();
	ram = ram_new();
	memset(ram, 1, 4096);
	memset(ram + 16 * MIB - 4096, 2, 8192); /* across the walk's windows */
	memset(ram + 40 * MIB, 3, 3 * MIB + 4096);
	ram[64 * MIB + 4095] = 4;
	ram[80 * MIB] = 0; /* touched, and zero */
	memset(ram + RAM_BYTES - 4096, 5, 4096);
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	CHECK_EQ(count_entries(), 1);

	CHECK_EQ(snap_load(&snap, target), 0);
	CHECK_EQ(snap.view.nvcpus, 2);
	CHECK_EQ(snap.manifest.vcpus, 2);
	CHECK_STR(snap.manifest.name, "test");
	CHECK_STR(snap.manifest.cpu_model, "Test CPU 1");
	CHECK(!snap.manifest.parent && !snap.manifest.root_image);
	CHECK_EQ(snap.disk_fd, -1);
	CHECK_EQ(fstat(snap.memory_fd, &st), 0);
	CHECK_EQ(st.st_size, RAM_BYTES);
	CHECK_EQ(st.st_mode & 07777, 0400);
	CHECK(st.st_blocks * 512 < 4 * (off_t)MIB);
	CHECK_EQ(lseek(snap.memory_fd, 4096, SEEK_DATA), (off_t)(16 * MIB - 4096));
	CHECK_EQ(lseek(snap.memory_fd, 79 * MIB, SEEK_DATA), (off_t)(RAM_BYTES - 4096));
	for (u64 gpa = 0; gpa < RAM_BYTES; gpa += 4096) {
		CHECK_EQ(pread(snap.memory_fd, page, 4096, (off_t)gpa), 4096);
		CHECK(!memcmp(page, ram + gpa, 4096));
	}
	CHECK_EQ(snap_verify(&snap), 0);
	snap_close(&snap);
	end(ram);
}

static void test_digest_of_holes(void)
{
	struct snap_write_opts opts = make_opts();
	char first[SNAP_DIGEST_HEX];
	struct snap snap;
	u8 *ram;

	/* With and without pagemap, and with zero blocks that are no holes: the digest is of the
	 * content. */
	begin();
	ram = ram_new();
	memset(ram + 5 * MIB, 9, 2 * MIB);
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	CHECK_EQ(snap_load(&snap, target), 0);
	strcpy(first, snap.manifest.memory_digest);
	snap_close(&snap);
	opts.replace = true;
	CHECK_EQ(write_one(&opts, NULL, false), 0);
	CHECK_EQ(snap_load(&snap, target), 0);
	CHECK_STR(snap.manifest.memory_digest, first);
	snap_close(&snap);
	CHECK_EQ(chmod(target, 0700), 0);
	snprintf(root_path, sizeof(root_path), "%s/memory", target);
	CHECK_EQ(chmod(root_path, 0600), 0);
	{
		static const u8 zeros[65536];
		int fd = open(root_path, O_RDWR | O_CLOEXEC);

		CHECK_EQ(pwrite(fd, zeros, sizeof(zeros), MIB), sizeof(zeros));
		CHECK_EQ(snap_load(&snap, target), 0);
		CHECK_EQ(snap_verify(&snap), 0);
		/* And one byte of it is noticed. */
		CHECK_EQ(pwrite(fd, "x", 1, MIB + 77), 1);
		capture_begin(&capture);
		CHECK_EQ(snap_verify(&snap), -EBADMSG);
		capture_end(&capture);
		CHECK_LOGGED(&capture, "one/memory: digest mismatch");
		snap_close(&snap);
		close(fd);
	}
	end(ram);
}

static void test_plain_io(void)
{
	struct snap_write_opts opts = make_opts();
	struct snap snap;
	u8 *ram;

	begin();
	ram = ram_new();
	memset(ram + MIB, 7, 5 * MIB);
	CHECK_EQ(setenv("THAW_IO", "plain", 1), 0);
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	CHECK_EQ(unsetenv("THAW_IO"), 0);
	CHECK_EQ(snap_load(&snap, target), 0);
	CHECK_EQ(snap_verify(&snap), 0);
	snap_close(&snap);
	end(ram);
}

/** check_generation() - a clone of `one` by @ops that changes pages, written as `two`. */
static void check_generation(const struct snap_mem_ops *ops)
{
	char second[96];
	struct snap_write_opts opts = make_opts();
	struct snap base, snap;
	struct snap_mem mem = {.ranges = {{.gpa = 0, .len_bytes = RAM_BYTES}}, .nranges = 1};
	u8 *ram, *want, page[4096];

	CHECK_EQ(snap_load(&base, target), 0);
	mem.fd = base.memory_fd;
	CHECK_EQ(ops->map(&mem), 0);
	ram = mem.ranges[0].hva;
	memset(&gmem, 0, sizeof(gmem));
	CHECK_EQ(gmem_add(&gmem, 0, RAM_BYTES, ram), 0);
	ram[1 * MIB] = 0x11;		 /* in a hole */
	ram[10 * MIB + 5000] = 0x22;	 /* over data */
	memset(ram + 11 * MIB, 0, 4096); /* data becomes zero */
	snprintf(second, sizeof(second), "%s/two", folder);
	opts.path = second;
	opts.base = &base;
	opts.parent = "test";
	opts.replace = true;
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	CHECK_EQ(snap_load(&snap, second), 0);
	CHECK_STR(snap.manifest.parent, "test");
	CHECK_EQ(snap_verify(&snap), 0);
	CHECK_EQ(snap_verify(&base), 0);
	want = calloc(1, RAM_BYTES);
	memset(want + 10 * MIB, 6, 2 * MIB);
	want[1 * MIB] = 0x11;
	want[10 * MIB + 5000] = 0x22;
	memset(want + 11 * MIB, 0, 4096);
	for (u64 gpa = 0; gpa < RAM_BYTES; gpa += 4096) {
		CHECK_EQ(pread(snap.memory_fd, page, 4096, (off_t)gpa), 4096);
		CHECK(!memcmp(page, want + gpa, 4096));
	}
	CHECK_EQ(lseek(snap.memory_fd, 11 * MIB, SEEK_HOLE), (off_t)(11 * MIB));
	free(want);
	snap_mem_unmap(&mem);
	snap_close(&snap);
	snap_close(&base);
}

static void test_second_generation(void)
{
	struct snap_write_opts opts = make_opts();
	u8 *ram;

	begin();
	ram = ram_new();
	memset(ram + 10 * MIB, 6, 2 * MIB);
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	for (const struct snap_mem_ops *const *ops = snap_mem_list(); *ops && !(*ops)->takes_pack;
	     ops++)
		check_generation(*ops);
	end(ram);
}

static void no_interrupt(struct virtio_host *host, unsigned int slot)
{
	(void)host;
	(void)slot;
}

static void test_disk_and_root(void)
{
	struct snap_write_opts opts = make_opts();
	struct virtio_host host = {.interrupt = no_interrupt};
	char base_path[96], delta_path[96], not_an_image[4096];
	struct virtio_dev *blk;
	struct snap snap;
	struct ev ev;
	int base_fd, delta_fd;
	u8 *ram, byte;

	begin();
	ram = ram_new();
	fixture_init(&fix, 1, 2 * MIB, DISK_BYTES);
	root_image_write(root_path, 'r', 4096);
	snprintf(base_path, sizeof(base_path), "%s/base", folder);
	snprintf(delta_path, sizeof(delta_path), "%s/delta", folder);
	base_fd = open(base_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	delta_fd = open(delta_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK_EQ(pwrite(base_fd, "D", 1, 3 * MIB), 1);
	CHECK_EQ(ftruncate(base_fd, DISK_BYTES), 0);
	CHECK_EQ(ev_init(&ev), 0);
	host.gmem = &gmem;
	host.ev = &ev;
	CHECK_EQ(blk_create(&host, LAYOUT_VIRTIO_BLK, base_fd, delta_fd, DISK_BYTES, &blk), 0);
	opts.root_image = root_path;
	CHECK_EQ(write_one(&opts, blk, true), 0);
	CHECK_EQ(snap_load(&snap, target), 0);
	CHECK_EQ(snap.manifest.disk_bytes, DISK_BYTES);
	CHECK_EQ(snap.manifest.root_bytes, 4096);
	CHECK(snap.root_fd >= 0 && snap.disk_fd >= 0);
	CHECK_EQ(pread(snap.disk_fd, &byte, 1, 3 * MIB), 1);
	CHECK_EQ(byte, 'D');
	CHECK_EQ(snap_verify(&snap), 0);
	snap_close(&snap);

	/* The root image is no part of the folder, but it is bound to it. */
	root_image_write(root_path, 'R', 4096);
	CHECK_EQ(snap_load(&snap, target), 0);
	capture_begin(&capture);
	CHECK_EQ(snap_verify(&snap), -EBADMSG);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "root image: digest mismatch");
	snap_close(&snap);
	root_image_write(root_path, 'r', 4095);
	capture_begin(&capture);
	CHECK_EQ(snap_load(&snap, target), -EINVAL);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "root.erofs: it has 4095 bytes, the snapshot was made with 4096");
	snap_close(&snap);
	/* A file of the right size that is no image: the path in a manifest must not reach any file
	 * of the host. */
	memset(not_an_image, 's', sizeof(not_an_image));
	file_write(root_path, not_an_image, sizeof(not_an_image));
	capture_begin(&capture);
	CHECK_EQ(snap_load(&snap, target), -EINVAL);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "root.erofs: not an erofs file system");
	snap_close(&snap);
	virtio_destroy(blk);
	ev_destroy(&ev);
	close(base_fd);
	close(delta_fd);
	end(ram);
}

static void test_existing_target(void)
{
	struct snap_write_opts opts = make_opts();
	struct snap old, fresh;
	u8 *ram, byte;

	begin();
	ram = ram_new();
	ram[0] = 1;
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	capture_begin(&capture);
	CHECK_EQ(write_one(&opts, NULL, true), -EEXIST);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "one: already exists");
	CHECK_EQ(count_entries(), 1);

	/* Replaced while a clone holds the old one. */
	CHECK_EQ(snap_load(&old, target), 0);
	ram[0] = 2;
	opts.replace = true;
	CHECK_EQ(write_one(&opts, NULL, true), 0);
	CHECK_EQ(count_entries(), 1);
	CHECK_EQ(pread(old.memory_fd, &byte, 1, 0), 1);
	CHECK_EQ(byte, 1);
	CHECK_EQ(snap_load(&fresh, target), 0);
	CHECK_EQ(pread(fresh.memory_fd, &byte, 1, 0), 1);
	CHECK_EQ(byte, 2);
	snap_close(&old);
	snap_close(&fresh);
	end(ram);
}

static void test_replaces_snapshots_only(void)
{
	struct snap_write_opts opts = make_opts();
	char file[160];

	begin();
	opts.replace = true;
	CHECK_EQ(mkdir(target, 0700), 0);
	snprintf(file, sizeof(file), "%s/precious", target);
	file_write(file, "x", 1);
	capture_begin(&capture);
	CHECK_EQ(write_one(&opts, NULL, true), -EEXIST);
	capture_end(&capture);
	CHECK_LOGGED(&capture, "not replaced, because it is no snapshot");
	CHECK_EQ(access(file, F_OK), 0);
	opts.path = file;
	capture_begin(&capture);
	CHECK_EQ(write_one(&opts, NULL, true), -EEXIST);
	opts.path = "/tmp/..";
	CHECK_EQ(write_one(&opts, NULL, true), -EINVAL);
	opts.path = "/nowhere/at/all";
	CHECK_EQ(write_one(&opts, NULL, true), -ENOENT);
	capture_end(&capture);
	CHECK_EQ(count_entries(), 1);
	end(NULL);
}

/** In a child under the system call filter of a machine that takes requests. */
static void write_confined(void)
{
	static const struct {
		const char *name;
		int want;
	} cases[] = {
		{"one", 0}, {"one", -EEXIST}, {"a/b", -EINVAL}, {".x", -EINVAL}, {"", -EINVAL}};
	struct snap_write_opts opts = make_opts();
	int fds[ARRAY_SIZE(cases)];

	for (unsigned int i = 0; i < ARRAY_SIZE(cases); i++)
		fds[i] = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	opts.pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	opts.no_sync = true;
	if (opts.pagemap_fd < 0 ||
	    seccomp_apply_main(SECCOMP_SNAPSHOT | SECCOMP_OWNERS | SECCOMP_BUILD))
		_exit(100);
	for (unsigned int i = 0; i < ARRAY_SIZE(cases); i++) {
		opts.path = cases[i].name;
		opts.folder_fd = fds[i];
		if (write_one(&opts, NULL, true) != cases[i].want)
			_exit(1 + (int)i);
	}
	_exit(0);
}

static void test_confined(void)
{
	u8 *ram, page[4096];
	struct snap snap;
	int status;
	pid_t pid;

	begin();
	ram = ram_new();
	memset(ram + MIB, 7, 5 * MIB);
	memset(ram + RAM_BYTES - 4096, 5, 4096);
	capture_begin(&capture);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		write_confined();
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	capture_end(&capture);
	CHECK_EQ(status, 0);
	CHECK_LOGGED(&capture, "no name for a snapshot");
	CHECK_EQ(count_entries(), 1);
	CHECK_EQ(snap_load(&snap, target), 0);
	CHECK_EQ(snap_verify(&snap), 0);
	for (u64 gpa = 0; gpa < RAM_BYTES; gpa += 4096) {
		CHECK_EQ(pread(snap.memory_fd, page, 4096, (off_t)gpa), 4096);
		CHECK(!memcmp(page, ram + gpa, 4096));
	}
	snap_close(&snap);
	end(ram);
}

TEST_MAIN({"content", test_content}, {"digest_of_holes", test_digest_of_holes},
	  {"plain_io", test_plain_io}, {"second_generation", test_second_generation},
	  {"disk_and_root", test_disk_and_root}, {"existing_target", test_existing_target},
	  {"replaces_snapshots_only", test_replaces_snapshots_only}, {"confined", test_confined})
