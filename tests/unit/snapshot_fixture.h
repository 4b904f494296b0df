/* SPDX-License-Identifier: Apache-2.0 */
/* A made-up machine state that every reader must take, a folder to put it in, and a look at what is
 * logged. */
#ifndef THAW_TESTS_UNIT_SNAPSHOT_FIXTURE_H
#define THAW_TESTS_UNIT_SNAPSHOT_FIXTURE_H

#include <fcntl.h>
#include <ftw.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/kvm/layout.h"
#include "vmm/snapshot/internal.h"

struct fixture {
	struct snap_view parts;
	struct snap_machine machine;
	struct snap_cpuid cpuid;
	struct snap_ioapic ioapic;
	struct snap_vcpu vcpus[VM_VCPUS_MAX];
	struct snap_virtio devs[LAYOUT_VIRTIO_SLOTS];
};

static inline void fixture_cpuid(struct snap_cpuid *cpuid)
{
	const struct kvm_cpuid_entry2 entries[] = {
		/* "AuthenticAMD" */
		{.function = 0,
		 .eax = 0x10,
		 .ebx = 0x68747541,
		 .ecx = 0x444d4163,
		 .edx = 0x69746e65},
		{.function = 1, .eax = 0x00870f10, .ecx = 0x80b82201 | 1u << 20, .edx = 0x0f8bfbff},
		{.function = 7,
		 .flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
		 .eax = 1,
		 .ebx = 0x219c07ab,
		 .ecx = 0x10},
		{.function = 7, .index = 1, .flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX, .eax = 0x30},
		{.function = 0xd,
		 .flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
		 .eax = 7,
		 .ebx = 832,
		 .ecx = 832},
		{.function = 0xd, .index = 1, .flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX, .eax = 0xf},
		{.function = 0xd,
		 .index = 2,
		 .flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
		 .eax = 256,
		 .ebx = 576},
		{.function = 0x40000001, .eax = 0x01000009},
		{.function = 0x80000001, .ecx = 0x1, .edx = 0x2c100800},
		/* "  Test  CPU 1" */
		{.function = 0x80000002,
		 .eax = 0x65542020,
		 .ebx = 0x20207473,
		 .ecx = 0x20555043,
		 .edx = 0x31},
		{.function = 0x80000008, .eax = 0x3030, .ebx = 0x1000},
	};

	memset(cpuid, 0, sizeof(*cpuid));
	cpuid->nent = sizeof(entries) / sizeof(entries[0]);
	memcpy(cpuid->entries, entries, sizeof(entries));
}

/** fixture_init() - 128 MiB, @nvcpus, console and rng, a root image of up to @pmem_bytes and a disk
 * if these are not 0. */
static inline void fixture_init(struct fixture *fix, unsigned int nvcpus, u64 pmem_bytes,
				u64 disk_bytes)
{
	static const u32 ids[LAYOUT_VIRTIO_SLOTS] = {3, 4, 27, 2, 19};

	memset(fix, 0, sizeof(*fix));
	fixture_cpuid(&fix->cpuid);
	fix->machine = (struct snap_machine){.ram_bytes = 128 * MIB,
					     .nvcpus = nvcpus,
					     .checkpoint_vcpu = nvcpus - 1,
					     .pmem_bytes = pmem_bytes,
					     .disk_bytes = disk_bytes,
					     .generation = 1,
					     .tsc_khz = 2500000,
					     .host_tsc = 123456789,
					     .realtime_ns = 1700000000000000000ull,
					     .clock = {.clock = 5000000000ull}};
	for (unsigned int pin = 0; pin < 24; pin++)
		fix->ioapic.redir[pin] = 0x10000 | pin;
	for (unsigned int i = 0; i < nvcpus; i++) {
		struct snap_vcpu *vcpu = &fix->vcpus[i];

		vcpu->regs.rip = 0xffffffff81000000ull + i;
		vcpu->sregs.cr0 = 0x80050033;
		vcpu->nmsrs = 3;
		for (u32 m = 0; m < vcpu->nmsrs; m++)
			vcpu->msrs[m] = (struct snap_msr){.index = 0x10 + m, .value = ~(u64)m};
		vcpu->xsave_bytes = 4096;
		memset(vcpu->xsave, 0x5a, 600);
		fix->parts.vcpus[i] = vcpu;
	}
	fix->parts.nvcpus = nvcpus;
	for (u32 slot = 0; slot < LAYOUT_VIRTIO_SLOTS; slot++) {
		struct snap_virtio *dev = &fix->devs[slot];

		if ((slot == LAYOUT_VIRTIO_PMEM && !pmem_bytes) ||
		    (slot == LAYOUT_VIRTIO_BLK && !disk_bytes) || slot == LAYOUT_VIRTIO_VSOCK)
			continue;
		dev->slot = slot;
		dev->id = ids[slot];
		dev->status = 0xf;
		dev->driver_features = (u64)1 << 32;
		dev->queues[0] = (struct snap_virtq){
			.size = 64, .ready = 1, .desc_gpa = 0x100000 + slot * 0x10000};
		fix->parts.devs[fix->parts.ndevs++] = dev;
	}
	fix->parts.machine = &fix->machine;
	fix->parts.cpuid = &fix->cpuid;
	fix->parts.ioapic = &fix->ioapic;
}

/* What was logged between capture_begin() and capture_end(), so that a test can look at it and a
 * success stays silent. */
struct capture {
	int saved_fd, memory_fd;
	char text[4096];
};

static inline void capture_begin(struct capture *capture)
{
	fflush(stderr);
	capture->memory_fd = memfd_create("stderr", MFD_CLOEXEC);
	capture->saved_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
	CHECK(capture->memory_fd >= 0 && capture->saved_fd >= 0);
	CHECK(dup2(capture->memory_fd, STDERR_FILENO) >= 0);
}

static inline void capture_end(struct capture *capture)
{
	ssize_t n;

	CHECK(dup2(capture->saved_fd, STDERR_FILENO) >= 0);
	n = pread(capture->memory_fd, capture->text, sizeof(capture->text) - 1, 0);
	CHECK(n >= 0);
	capture->text[n] = '\0';
	close(capture->saved_fd);
	close(capture->memory_fd);
}

/** CHECK_LOGGED() - @part is in what was captured; shows all of it if not. */
#define CHECK_LOGGED(capture, part)                                                          \
	do {                                                                                 \
		if (!strstr((capture)->text, part)) {                                        \
			fprintf(stderr, "%s:%d: logged \"%s\", expected it to say \"%s\"\n", \
				__FILE__, __LINE__, (capture)->text, part);                  \
			exit(1);                                                             \
		}                                                                            \
	} while (0)

static inline void temp_folder(char path[64])
{
	strcpy(path, "/tmp/thaw-test-XXXXXX");
	CHECK(mkdtemp(path));
}

static inline int temp_folder_remove_one(const char *path, const struct stat *st, int type,
					 struct FTW *where)
{
	(void)st;
	(void)type;
	(void)where;
	return remove(path);
}

/** temp_folder_remove() - the folder and all below; published folders are made writable first. */
static inline void temp_folder_remove(const char *path)
{
	char command[160];

	snprintf(command, sizeof(command), "chmod -R u+w '%s'", path);
	CHECK_EQ(system(command), 0);
	CHECK_EQ(nftw(path, temp_folder_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/** file_write() - @path gets exactly these bytes. */
static inline void file_write(const char *path, const void *data, size_t len_bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, data, len_bytes), len_bytes);
	close(fd);
}

/** root_image_write() - @len_bytes (>= 1028) that begin like an erofs image, @fill in every other
 * byte. */
static inline void root_image_write(const char *path, char fill, size_t len_bytes)
{
	static const u8 magic[4] = {0xe2, 0xe1, 0xf5, 0xe0};
	static char image[8192];

	memset(image, fill, sizeof(image));
	memcpy(image + 1024, magic, sizeof(magic));
	file_write(path, image, len_bytes);
}

#endif
