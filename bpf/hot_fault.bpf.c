// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Records which pages of one VM's guest fault, on KVM's own tracepoint; vmm/cli/hot_bpf.c loads it.
//
// The tracepoint fires before KVM looks at the fault, in the vCPU's thread. Its second argument is
// the guest physical address, its third the fault's error code: bit 1 is "write" in AMD's error
// code and in Intel's exit qualification alike. A page that is read first and written later faults
// twice, since what backs it is a private mapping of a file: until the write it is mapped
// read-only.
//
// Two bits a page (touched, written), 32 pages a word, in an array that the loader maps: no locks,
// nothing to allocate, nothing that can overflow. Both threads of a two-vCPU guest may hit one
// word, hence the atomic.
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#define PAGE_SHIFT     12
#define ERROR_WRITE    2 /* the same bit that "written" is in a page's pair */
#define PAGE_TOUCHED   1
#define PAGES_PER_WORD 32

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set by the loader: what the guest's addresses need */
	__type(key, __u32);
	__type(value, __u64);
} pages SEC(".maps");

/* Set by the loader. Whose faults: a process by its id in the loader's pid namespace. */
__u64 pidns_dev, pidns_ino;
__u32 tgid;

/* Faults outside of the array: registers of devices. */
__u64 outside;

SEC("raw_tp/kvm_page_fault")
int record_fault(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 page = ctx->args[1] >> PAGE_SHIFT;
	__u64 bits = PAGE_TOUCHED | (ctx->args[2] & ERROR_WRITE);
	__u64 index = page / PAGES_PER_WORD;
	struct bpf_pidns_info id = {};
	__u32 key = (__u32)index;
	__u64 *word = 0;

	if (bpf_get_ns_current_pid_tgid(pidns_dev, pidns_ino, &id, sizeof(id)) || id.tgid != tgid)
		return 0;
	if (index == key)
		word = bpf_map_lookup_elem(&pages, &key);
	if (word)
		__sync_fetch_and_or(word, bits << (page % PAGES_PER_WORD * 2));
	else
		__sync_fetch_and_add(&outside, 1);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
