/* SPDX-License-Identifier: Apache-2.0 */
/* Cold boot: 64-bit Linux boot protocol, e820, ACPI tables, first registers. Used to make
 * templates. */
#ifndef THAW_KVM_BOOT_H
#define THAW_KVM_BOOT_H

#include "vmm/util/types.h"

struct vm;

struct boot_files {
	int kernel_fd;	  /* uncompressed ELF vmlinux */
	int initramfs_fd; /* -1: none */
	const char *cmdline;
};

/**
 * boot_load() - the part of boot_setup() that only touches guest memory: kernel, initramfs,
 * boot_params, command line, page tables, GDT, ACPI tables.
 * @entry_gpa: where vCPU 0 has to start. Return: 0 or -errno (logged).
 */
int __must_check boot_load(struct vm *vm, const struct boot_files *files, u64 *entry_gpa);

/* Where boot_load() puts what the guest finds by register or pointer. */
#define BOOT_PARAMS_GPA	 0x7000ull
#define BOOT_CMDLINE_GPA 0x20000ull

/**
 * boot_setup() - load the kernel and initramfs, write boot_params, page tables, GDT and ACPI
 * tables, set vCPU 0's registers. Kernel and initramfs are trusted files of the operator, but their
 * headers are checked. Return: 0 or -errno (logged with the file's role and the reason).
 */
int __must_check boot_setup(struct vm *vm, const struct boot_files *files);

#endif
