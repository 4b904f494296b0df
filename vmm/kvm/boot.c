// SPDX-License-Identifier: Apache-2.0
// Cold boot by the 64-bit Linux boot protocol (Documentation/arch/x86/boot.rst, "64-bit Boot
// Protocol").
//
// The kernel is an uncompressed ELF vmlinux: its segments go to their physical addresses and vCPU 0
// starts at the entry point in long mode, with paging on over an identity map of the first GiB and
// RSI pointing to boot_params. Memory is fresh and zero, so that nothing has to be cleared.
//
//	0x00500  GDT            0x07000  boot_params      0x09000  page tables (3 pages)
//	0x20000  command line   0xe0000  ACPI tables      1 MiB..  kernel, then initramfs at the top
// of low RAM
#include "vmm/kvm/boot.h"

#include <asm/bootparam.h>
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "vmm/kvm/acpi.h"
#include "vmm/kvm/vm.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define BOOT_GDT_GPA   0x500ull
#define BOOT_PML4_GPA  0x9000ull
#define BOOT_PDPT_GPA  0xa000ull
#define BOOT_PD_GPA    0xb000ull
#define BOOT_STACK_GPA 0x8ff0ull
#define BOOT_EBDA_GPA  0x9fc00ull
#define BOOT_HIGH_GPA  0x100000ull

#define BOOT_CMDLINE_MAX_BYTES 2048 /* COMMAND_LINE_SIZE of x86 Linux, NUL included */
#define BOOT_PHDRS_MAX	       32
#define BOOT_CS		       0x10
#define BOOT_DS		       0x18

#define BOOT_MSR_MISC_ENABLE   0x1a0u
#define BOOT_MISC_FAST_STRING  1ull
#define BOOT_MSR_MTRR_DEF_TYPE 0x2ffu
#define BOOT_MTRR_ENABLED_WB   (1ull << 11 | 6)

#define BOOT_E820_RAM  1
#define BOOT_E820_ACPI 3

/** One PT_LOAD segment. Raises *@end_gpa to its end. */
static int boot_load_segment(struct vm *vm, int fd, const Elf64_Phdr *ph, u64 *end_gpa)
{
	void *dst;
	u64 end;
	int ret;

	if (ph->p_filesz > ph->p_memsz || ph->p_paddr < BOOT_HIGH_GPA ||
	    !u64_add_ok(ph->p_paddr, ph->p_memsz, &end)) {
		log_err("kernel: segment at %#llx: bad address or size",
			(unsigned long long)ph->p_paddr);
		return -ENOEXEC;
	}
	if (!ph->p_memsz)
		return 0;
	dst = gmem_ptr(&vm->gmem, ph->p_paddr, ph->p_memsz);
	if (!dst || end > layout_low_ram_bytes(vm->cfg.ram_bytes)) {
		log_err("kernel: segment at %#llx, %llu bytes, does not fit in guest memory",
			(unsigned long long)ph->p_paddr, (unsigned long long)ph->p_memsz);
		return -ENOMEM;
	}
	ret = fd_pread_full(fd, dst, ph->p_filesz, ph->p_offset);
	if (ret)
		log_err("kernel: cannot read segment: %s", strerror(-ret));
	*end_gpa = MAX(*end_gpa, end);
	return ret;
}

static int boot_load_kernel(struct vm *vm, int fd, u64 *entry_gpa, u64 *end_gpa)
{
	Elf64_Phdr phdrs[BOOT_PHDRS_MAX];
	Elf64_Ehdr eh;
	int ret;

	ret = fd_pread_full(fd, &eh, sizeof(eh), 0);
	if (ret || memcmp(eh.e_ident, ELFMAG, SELFMAG) || eh.e_ident[EI_CLASS] != ELFCLASS64 ||
	    eh.e_machine != EM_X86_64 || eh.e_phentsize != sizeof(Elf64_Phdr) || !eh.e_phnum ||
	    eh.e_phnum > BOOT_PHDRS_MAX) {
		log_err("kernel: not an uncompressed x86-64 ELF vmlinux");
		return ret && ret != -ENODATA ? ret : -ENOEXEC;
	}
	ret = fd_pread_full(fd, phdrs, eh.e_phnum * sizeof(Elf64_Phdr), eh.e_phoff);
	if (ret) {
		log_err("kernel: cannot read program headers: %s", strerror(-ret));
		return ret;
	}
	*end_gpa = 0;
	for (unsigned int i = 0; i < eh.e_phnum && !ret; i++) {
		if (phdrs[i].p_type == PT_LOAD)
			ret = boot_load_segment(vm, fd, &phdrs[i], end_gpa);
	}
	if (ret)
		return ret;
	if (eh.e_entry < BOOT_HIGH_GPA || eh.e_entry >= *end_gpa || *end_gpa > GIB) {
		log_err("kernel: entry point %#llx or end %#llx out of range",
			(unsigned long long)eh.e_entry, (unsigned long long)*end_gpa);
		return -ENOEXEC;
	}
	*entry_gpa = eh.e_entry;
	return 0;
}

/** At the top of low RAM, so that the kernel has the most room to grow in place. */
static int boot_load_initramfs(struct vm *vm, int fd, u64 kernel_end_gpa, u64 *gpa, u64 *len_bytes)
{
	u64 top = layout_low_ram_bytes(vm->cfg.ram_bytes);
	struct stat st;
	int ret;

	if (fstat(fd, &st) < 0) {
		ret = -errno;
		log_err("initramfs: %s", strerror(-ret));
		return ret;
	}
	*len_bytes = (u64)st.st_size;
	if (!*len_bytes)
		return 0;
	if (*len_bytes > top || ALIGN_DOWN(top - *len_bytes, PAGE_SIZE_BYTES) < kernel_end_gpa) {
		log_err("initramfs: %llu bytes do not fit in guest memory behind the kernel",
			(unsigned long long)*len_bytes);
		return -ENOMEM;
	}
	*gpa = ALIGN_DOWN(top - *len_bytes, PAGE_SIZE_BYTES);
	ret = fd_pread_full(fd, gmem_ptr(&vm->gmem, *gpa, *len_bytes), *len_bytes, 0);
	if (ret)
		log_err("initramfs: cannot read: %s", strerror(-ret));
	return ret;
}

static void boot_e820_add(struct boot_params *bp, u64 gpa, u64 end_gpa, u32 type)
{
	if (end_gpa > gpa)
		bp->e820_table[bp->e820_entries++] =
			(struct boot_e820_entry){.addr = gpa, .size = end_gpa - gpa, .type = type};
}

static int boot_write_params(struct vm *vm, const char *cmdline, u64 initramfs_gpa,
			     u64 initramfs_bytes)
{
	struct boot_params *bp = gmem_ptr(&vm->gmem, BOOT_PARAMS_GPA, sizeof(*bp));
	u64 high_bytes = layout_high_ram_bytes(vm->cfg.ram_bytes);
	size_t cmdline_bytes = strlen(cmdline) + 1;

	if (cmdline_bytes > BOOT_CMDLINE_MAX_BYTES) {
		log_err("kernel command line: %zu bytes, Linux takes %d", cmdline_bytes - 1,
			BOOT_CMDLINE_MAX_BYTES - 1);
		return -E2BIG;
	}
	bp->hdr.type_of_loader = 0xff; /* no assigned number */
	bp->hdr.boot_flag = 0xaa55;
	bp->hdr.header = 0x53726448; /* "HdrS" */
	bp->hdr.version = 0x020f;
	bp->hdr.kernel_alignment = 0x1000000;
	bp->hdr.cmd_line_ptr = BOOT_CMDLINE_GPA;
	bp->hdr.cmdline_size = BOOT_CMDLINE_MAX_BYTES - 1;
	bp->hdr.ramdisk_image = (u32)initramfs_gpa;
	bp->hdr.ramdisk_size = (u32)initramfs_bytes;
	bp->acpi_rsdp_addr = LAYOUT_ACPI_GPA;
	boot_e820_add(bp, 0, BOOT_EBDA_GPA, BOOT_E820_RAM);
	boot_e820_add(bp, LAYOUT_ACPI_GPA, LAYOUT_ACPI_GPA + ACPI_TABLES_BYTES, BOOT_E820_ACPI);
	boot_e820_add(bp, BOOT_HIGH_GPA, layout_low_ram_bytes(vm->cfg.ram_bytes), BOOT_E820_RAM);
	boot_e820_add(bp, LAYOUT_HIGH_RAM_GPA, LAYOUT_HIGH_RAM_GPA + high_bytes, BOOT_E820_RAM);
	return gmem_write(&vm->gmem, BOOT_CMDLINE_GPA, cmdline, cmdline_bytes);
}

/** Identity map of the first GiB in 2 MiB pages, and the flat segments. */
static void boot_write_tables(struct vm *vm)
{
	u64 *pml4 = gmem_ptr(&vm->gmem, BOOT_PML4_GPA, PAGE_SIZE_BYTES);
	u64 *pdpt = gmem_ptr(&vm->gmem, BOOT_PDPT_GPA, PAGE_SIZE_BYTES);
	u64 *pd = gmem_ptr(&vm->gmem, BOOT_PD_GPA, PAGE_SIZE_BYTES);
	u64 *gdt = gmem_ptr(&vm->gmem, BOOT_GDT_GPA, 4 * sizeof(u64));

	pml4[0] = BOOT_PDPT_GPA | 3; /* present, writable */
	pdpt[0] = BOOT_PD_GPA | 3;
	for (u64 i = 0; i < 512; i++)
		pd[i] = i << 21 | 0x83;		  /* present, writable, 2 MiB */
	gdt[BOOT_CS / 8] = 0x00af9b000000ffffull; /* 64-bit code */
	gdt[BOOT_DS / 8] = 0x00cf93000000ffffull; /* data */
}

static int boot_set_registers(struct vm *vm, u64 entry_gpa)
{
	struct kvm_segment cs = {.limit = ~0u,
				 .selector = BOOT_CS,
				 .type = 11,
				 .present = 1,
				 .s = 1,
				 .l = 1,
				 .g = 1};
	struct kvm_segment ds = {.limit = ~0u,
				 .selector = BOOT_DS,
				 .type = 3,
				 .present = 1,
				 .db = 1,
				 .s = 1,
				 .g = 1};
	struct kvm_regs regs = {
		.rip = entry_gpa, .rflags = 2, .rsi = BOOT_PARAMS_GPA, .rsp = BOOT_STACK_GPA};
	int fd = vm->vcpus[0].fd, ret;
	struct kvm_sregs sregs;

	if (ioctl(fd, KVM_GET_SREGS, &sregs) < 0)
		goto fail;
	sregs.cs = cs;
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = ds;
	sregs.gdt.base = BOOT_GDT_GPA;
	sregs.gdt.limit = 4 * sizeof(u64) - 1;
	sregs.cr3 = BOOT_PML4_GPA;
	sregs.cr4 |= 1u << 5;		      /* PAE */
	sregs.cr0 |= 1u << 31 | 1u << 4 | 1u; /* PG, ET, PE */
	sregs.efer |= 1u << 10 | 1u << 8;     /* LMA, LME */
	if (ioctl(fd, KVM_SET_SREGS, &sregs) < 0 || ioctl(fd, KVM_SET_REGS, &regs) < 0)
		goto fail;
	return 0;
fail:
	ret = -errno;
	log_err("vCPU 0: cannot set the registers of the boot protocol: %s", strerror(-ret));
	return ret;
}

/**
 * What firmware would have set on every vCPU: fast string operations (Linux believes REP MOVSB to
 * be slow without the bit), and MTRRs on with write-back as the default type. Without the latter
 * Linux takes memory outside of RAM for uncacheable, and maps the pmem root and the mailbox so.
 */
static int boot_set_msrs(struct vm *vm)
{
	for (unsigned int i = 0; i < vm->cfg.nvcpus; i++) {
		struct {
			u32 nmsrs, pad; /* as struct kvm_msrs */
			struct kvm_msr_entry entries[2];
		} msrs = {.nmsrs = 1, .entries[0].index = BOOT_MSR_MISC_ENABLE};
		int n, fd = vm->vcpus[i].fd;

		n = ioctl(fd, KVM_GET_MSRS, &msrs);
		msrs.entries[0].data |= BOOT_MISC_FAST_STRING;
		msrs.entries[1] = (struct kvm_msr_entry){.index = BOOT_MSR_MTRR_DEF_TYPE,
							 .data = BOOT_MTRR_ENABLED_WB};
		msrs.nmsrs = 2;
		if (n == 1)
			n = ioctl(fd, KVM_SET_MSRS, &msrs);
		if (n != 2) {
			log_err("vCPU %u: cannot set boot MSRs", i);
			return n < 0 ? -errno : -EIO;
		}
	}
	return 0;
}

int boot_load(struct vm *vm, const struct boot_files *files, u64 *entry_gpa)
{
	u64 kernel_end_gpa, initramfs_gpa = 0, initramfs_bytes = 0;
	struct acpi_config acpi = {.nvcpus = vm->cfg.nvcpus};
	int ret;

	ret = boot_load_kernel(vm, files->kernel_fd, entry_gpa, &kernel_end_gpa);
	if (ret)
		return ret;
	if (files->initramfs_fd >= 0) {
		ret = boot_load_initramfs(vm, files->initramfs_fd, kernel_end_gpa, &initramfs_gpa,
					  &initramfs_bytes);
		if (ret)
			return ret;
	}
	ret = boot_write_params(vm, files->cmdline, initramfs_gpa, initramfs_bytes);
	if (ret)
		return ret;
	for (unsigned int slot = 0; slot < LAYOUT_VIRTIO_SLOTS; slot++) {
		if (vm->devs[slot])
			acpi.virtio_slots |= 1u << slot;
	}
	acpi_build(gmem_ptr(&vm->gmem, LAYOUT_ACPI_GPA, ACPI_TABLES_BYTES), LAYOUT_ACPI_GPA, &acpi);
	boot_write_tables(vm);
	return 0;
}

int boot_setup(struct vm *vm, const struct boot_files *files)
{
	u64 entry_gpa;
	int ret;

	ret = boot_load(vm, files, &entry_gpa);
	if (ret)
		return ret;
	ret = boot_set_msrs(vm);
	if (ret)
		return ret;
	ret = boot_set_registers(vm, entry_gpa);
	if (ret)
		return ret;
	vm->clocks.state_set_ns = clock_now_ns();
	return 0;
}
