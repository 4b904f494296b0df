/* SPDX-License-Identifier: Apache-2.0 */
/* Entry of a hostile guest: 64-bit mode by the Linux boot protocol, its own identity map of 4 GiB, a stack, then main(). */
	.section .text.start, "ax"
	.globl _start
_start:
	cli
	leaq stack_top(%rip), %rsp
	/* PDPT entries 0-3 -> four page directories of 2 MiB pages. */
	leaq pml4(%rip), %rdi
	leaq pdpt(%rip), %rax
	orq $3, %rax
	movq %rax, (%rdi)
	leaq pdpt(%rip), %rdi
	leaq pd(%rip), %rax
	orq $3, %rax
	movl $4, %ecx
1:	movq %rax, (%rdi)
	addq $8, %rdi
	addq $4096, %rax
	loop 1b
	leaq pd(%rip), %rdi
	movq $0x83, %rax
	movl $2048, %ecx
2:	movq %rax, (%rdi)
	addq $8, %rdi
	addq $0x200000, %rax
	loop 2b
	leaq pml4(%rip), %rax
	movq %rax, %cr3
	call main
	movw $0x600, %dx
	movb $0x34, %al
	outb %al, %dx
3:	hlt
	jmp 3b

	.section .bss
	.balign 4096
pml4:	.skip 4096
pdpt:	.skip 4096
pd:	.skip 4 * 4096
	.skip 65536
stack_top:
	.section .note.GNU-stack, "", @progbits
