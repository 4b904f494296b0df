// SPDX-License-Identifier: Apache-2.0
// Cold boot, the memory side: ELF segments, e820 of every size class, initramfs, command line,
// refusals.
#include "vmm/kvm/boot.h"

#include <asm/bootparam.h>
#include <elf.h>
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/kvm/vm.h"

#define KERNEL_GPA 0x1000000ull

struct image {
	Elf64_Ehdr eh;
	Elf64_Phdr ph[2];
	u8 text[64];
};

static struct image make_image(void)
{
	struct image image = {
		.eh = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64},
		       .e_machine = EM_X86_64,
		       .e_entry = KERNEL_GPA + 0x10,
		       .e_phoff = offsetof(struct image, ph),
		       .e_phentsize = sizeof(Elf64_Phdr),
		       .e_phnum = 2},
		.ph = {{.p_type = PT_NOTE, .p_paddr = ~0ull, .p_filesz = ~0ull},
		       {.p_type = PT_LOAD,
			.p_offset = offsetof(struct image, text),
			.p_paddr = KERNEL_GPA,
			.p_filesz = sizeof(image.text),
			.p_memsz = 0x200000}},
	};

	for (size_t i = 0; i < sizeof(image.text); i++)
		image.text[i] = (u8)(i + 1);
	return image;
}

static int make_file(const void *data, size_t len)
{
	int fd = memfd_create("boot", MFD_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, data, len), len);
	return fd;
}

static void make_vm(struct vm *vm, u64 ram_bytes)
{
	struct vm_config cfg = {.ram_bytes = ram_bytes, .nvcpus = 2};

	vm_init(vm, &cfg);
	CHECK_EQ(vm_ram_map_anon(vm), 0);
	CHECK_EQ(gmem_add(&vm->gmem, 0, layout_low_ram_bytes(ram_bytes), vm->low_hva), 0);
	if (vm->high_hva)
		CHECK_EQ(gmem_add(&vm->gmem, LAYOUT_HIGH_RAM_GPA, layout_high_ram_bytes(ram_bytes),
				  vm->high_hva),
			 0);
}

static int load(struct vm *vm, const struct image *image, size_t len, int initramfs_fd,
		const char *cmdline, u64 *entry)
{
	struct boot_files files = {.kernel_fd = make_file(image, len),
				   .initramfs_fd = initramfs_fd,
				   .cmdline = cmdline};
	int ret = boot_load(vm, &files, entry);

	close(files.kernel_fd);
	return ret;
}

static void check_e820(const struct boot_params *bp, unsigned int i, u64 addr, u64 size, u32 type)
{
	CHECK(i < bp->e820_entries);
	CHECK_EQ(bp->e820_table[i].addr, addr);
	CHECK_EQ(bp->e820_table[i].size, size);
	CHECK_EQ(bp->e820_table[i].type, type);
}

static void check_size(u64 ram_bytes)
{
	static const char initramfs[5000] = "cpio";
	struct image image = make_image();
	u64 low = layout_low_ram_bytes(ram_bytes), high = layout_high_ram_bytes(ram_bytes), entry;
	int fd = make_file(initramfs, sizeof(initramfs));
	const struct boot_params *bp;
	struct vm vm;

	make_vm(&vm, ram_bytes);
	CHECK_EQ(load(&vm, &image, sizeof(image), fd, "quiet x=1", &entry), 0);
	CHECK_EQ(entry, KERNEL_GPA + 0x10);
	CHECK(!memcmp(gmem_ptr(&vm.gmem, KERNEL_GPA, 64), image.text, 64));
	bp = gmem_ptr(&vm.gmem, BOOT_PARAMS_GPA, sizeof(*bp));
	CHECK_STR(gmem_ptr(&vm.gmem, bp->hdr.cmd_line_ptr, 16), "quiet x=1");
	CHECK_EQ(bp->acpi_rsdp_addr, LAYOUT_ACPI_GPA);
	CHECK(!memcmp(gmem_ptr(&vm.gmem, LAYOUT_ACPI_GPA, 8), "RSD PTR ", 8));
	check_e820(bp, 0, 0, 0x9fc00, 1);
	check_e820(bp, 1, 0xe0000, 0x10000, 3);
	check_e820(bp, 2, 0x100000, low - 0x100000, 1);
	CHECK_EQ(bp->e820_entries, high ? 4 : 3);
	if (high)
		check_e820(bp, 3, 4 * GIB, high, 1);
	CHECK_EQ(bp->hdr.ramdisk_size, sizeof(initramfs));
	CHECK_EQ(bp->hdr.ramdisk_image, low - 8192);
	CHECK_STR(gmem_ptr(&vm.gmem, bp->hdr.ramdisk_image, 8), "cpio");
	close(fd);
	vm_destroy(&vm);
}

static void test_sizes(void)
{
	check_size(128 * MIB);
	check_size(3 * GIB - 2 * MIB);
	check_size(3 * GIB);
	check_size(3 * GIB + 2 * MIB);
	check_size(5 * GIB);
	check_size(64 * GIB);
}

static void refuse(const struct image *image, size_t len, int want)
{
	struct vm vm;
	u64 entry;

	make_vm(&vm, 128 * MIB);
	CHECK_EQ(load(&vm, image, len, -1, "", &entry), want);
	vm_destroy(&vm);
}

static void test_bad_kernels(void)
{
	struct image image = make_image();

	refuse(&image, 10, -ENOEXEC);
	refuse(&image, sizeof(image.eh) + 8, -ENODATA); /* headers cut */
	refuse(&image, sizeof(image) - 1, -ENODATA);	/* segment cut */
	image.eh.e_ident[0] = 0;
	refuse(&image, sizeof(image), -ENOEXEC);
	image = make_image();
	image.eh.e_machine = EM_AARCH64;
	refuse(&image, sizeof(image), -ENOEXEC);
	image = make_image();
	image.eh.e_phnum = 33;
	refuse(&image, sizeof(image), -ENOEXEC);
	image = make_image();
	image.eh.e_phentsize = 32;
	refuse(&image, sizeof(image), -ENOEXEC);
	image = make_image();
	image.ph[1].p_filesz = image.ph[1].p_memsz + 1;
	refuse(&image, sizeof(image), -ENOEXEC);
	image = make_image();
	image.ph[1].p_paddr = 0x7000; /* over boot_params */
	refuse(&image, sizeof(image), -ENOEXEC);
	image = make_image();
	image.ph[1].p_memsz = ~0ull; /* wraps */
	refuse(&image, sizeof(image), -ENOEXEC);
	image = make_image();
	image.ph[1].p_memsz = 128 * MIB;
	refuse(&image, sizeof(image), -ENOMEM);
	image = make_image();
	image.eh.e_entry = KERNEL_GPA + 0x200000; /* the end itself */
	refuse(&image, sizeof(image), -ENOEXEC);
	image = make_image();
	image.ph[1].p_type = PT_NOTE; /* nothing to load */
	refuse(&image, sizeof(image), -ENOEXEC);
}

static void test_initramfs_too_large(void)
{
	struct image image = make_image();
	int fd = memfd_create("initramfs", MFD_CLOEXEC);
	struct vm vm;
	u64 entry;

	CHECK(fd >= 0);
	make_vm(&vm, 128 * MIB);
	/* Up to the kernel's end it fits, a byte more does not. */
	CHECK_EQ(ftruncate(fd, (off_t)(128 * MIB - KERNEL_GPA - 0x200000)), 0);
	CHECK_EQ(load(&vm, &image, sizeof(image), fd, "", &entry), 0);
	CHECK_EQ(ftruncate(fd, (off_t)(128 * MIB - KERNEL_GPA - 0x200000 + 1)), 0);
	CHECK_EQ(load(&vm, &image, sizeof(image), fd, "", &entry), -ENOMEM);
	CHECK_EQ(ftruncate(fd, (off_t)(129 * MIB)), 0);
	CHECK_EQ(load(&vm, &image, sizeof(image), fd, "", &entry), -ENOMEM);
	close(fd);
	vm_destroy(&vm);
}

static void test_cmdline_length(void)
{
	struct image image = make_image();
	char line[2049];
	struct vm vm;
	u64 entry;

	memset(line, 'a', sizeof(line) - 1);
	line[2048] = '\0';
	make_vm(&vm, 128 * MIB);
	CHECK_EQ(load(&vm, &image, sizeof(image), -1, line, &entry), -E2BIG);
	CHECK_EQ(load(&vm, &image, sizeof(image), -1, line + 1, &entry), 0);
	CHECK_STR(gmem_ptr(&vm.gmem, BOOT_CMDLINE_GPA, 2048), line + 1);
	vm_destroy(&vm);
}

TEST_MAIN({"memory sizes", test_sizes}, {"bad kernels", test_bad_kernels},
	  {"initramfs too large", test_initramfs_too_large}, {"command line", test_cmdline_length})
