// SPDX-License-Identifier: Apache-2.0
// Recorder "bpf": the page faults that KVM handles for a clone's guest, by a BPF program on its
// tracepoint (bpf/hot_fault.bpf.c).
//
// What it sees and the other recorder does not: nothing but the guest's own accesses, each with its
// kind, and at a cost only where there is a fault anyway. What it does not see: what thaw-vmm
// touches in the guest's place (queues, buffers of its devices). It needs CAP_BPF and CAP_PERFMON,
// and a KVM that lets the processor translate guest addresses (EPT, NPT): where KVM shadows page
// tables the tracepoint tells virtual addresses.
//
// The process is known only once it exists, by when it runs already. But a thaw-vmm with
// --request-fd reads its request to the end before all else, and the recording build writes that
// request after hot_bpf_watch(): no fault of the guest can come before.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <hot_fault.lskel.h>

#include "vmm/cli/hot_recorder.h"
#include "vmm/kvm/layout.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define BITS_PER_PAGE  2
#define PAGES_PER_WORD 32
#define BIT_TOUCHED    1
#define BIT_WRITTEN    2

#define EPT_FILE "/sys/module/kvm_intel/parameters/ept"
#define NPT_FILE "/sys/module/kvm_amd/parameters/npt"

struct hot_bpf {
	struct hot_fault *skel;
	u64 *words; /* the program's array, mapped */
	size_t words_bytes;
	u64 nwords;
};

void hot_bpf_close(struct hot_bpf *bpf)
{
	if (!bpf)
		return;
	if (bpf->words)
		munmap(bpf->words, bpf->words_bytes);
	hot_fault__destroy(bpf->skel);
	free(bpf);
}

/** Whose numbers this process and its children go by. */
static int set_pid_namespace(struct hot_bpf *bpf)
{
	struct stat st;

	if (stat("/proc/self/ns/pid", &st) < 0)
		return -errno;
	bpf->skel->bss->pidns_dev = st.st_dev;
	bpf->skel->bss->pidns_ino = st.st_ino;
	return 0;
}

static int map_words(struct hot_bpf *bpf)
{
	void *words = mmap(NULL, bpf->words_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			   bpf->skel->maps.pages.map_fd, 0);

	if (words == MAP_FAILED)
		return -errno;
	bpf->words = words;
	return 0;
}

int hot_bpf_open(u64 end_gpa, struct hot_bpf **out)
{
	struct hot_bpf *bpf = calloc(1, sizeof(*bpf));
	const char *what = "memory";
	int ret = -ENOMEM;

	if (!bpf)
		goto fail;
	bpf->nwords = (end_gpa / PAGE_SIZE_BYTES + PAGES_PER_WORD - 1) / PAGES_PER_WORD;
	bpf->words_bytes = ALIGN_UP(bpf->nwords * sizeof(u64), PAGE_SIZE_BYTES);
	ret = -E2BIG;
	if (bpf->nwords > UINT32_MAX)
		goto fail;
	ret = -ENOMEM;
	bpf->skel = hot_fault__open();
	if (!bpf->skel)
		goto fail;
	bpf->skel->maps.pages.max_entries = (u32)bpf->nwords;
	what = "BPF program: load (CAP_BPF and CAP_PERFMON are needed)";
	ret = hot_fault__load(bpf->skel);
	if (ret)
		goto fail;
	what = "BPF program: its array";
	ret = map_words(bpf);
	if (ret)
		goto fail;
	what = "pid namespace";
	ret = set_pid_namespace(bpf);
	if (ret)
		goto fail;
	what = "BPF program: attach to the tracepoint kvm_page_fault (Linux 6.2)";
	ret = hot_fault__attach(bpf->skel);
	if (ret)
		goto fail;
	*out = bpf;
	return 0;
fail:
	log_err("recording the hot set: %s: %s", what, strerror(-ret));
	hot_bpf_close(bpf);
	return ret;
}

void hot_bpf_watch(struct hot_bpf *bpf, pid_t pid)
{
	__atomic_store_n(&bpf->skel->bss->tgid, 0u, __ATOMIC_SEQ_CST);
	memset(bpf->words, 0, bpf->nwords * sizeof(u64));
	__atomic_store_n(&bpf->skel->bss->tgid, (u32)pid, __ATOMIC_SEQ_CST);
}

int hot_bpf_read(const struct hot_bpf *bpf, u64 gpa, u64 len_bytes, bool read_only,
		 struct snap_hot_set *out)
{
	u64 end = (gpa + len_bytes) / PAGE_SIZE_BYTES;
	int ret = 0;

	BUG_ON(end > bpf->nwords * PAGES_PER_WORD);
	for (u64 page = gpa / PAGE_SIZE_BYTES; page < end && !ret; page++) {
		u64 word = __atomic_load_n(&bpf->words[page / PAGES_PER_WORD], __ATOMIC_RELAXED);
		u64 bits = word >> page % PAGES_PER_WORD * BITS_PER_PAGE;

		if (!word) {
			page |= PAGES_PER_WORD - 1;
			continue;
		}
		if (bits & BIT_TOUCHED)
			ret = snap_hot_set_add(out, page * PAGE_SIZE_BYTES, 1,
					       (bits & BIT_WRITTEN) && !read_only ? SNAP_HOT_WRITE
										  : SNAP_HOT_READ);
	}
	return ret;
}

static bool is_yes(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char c = 'N';

	if (fd < 0)
		return false;
	if (read(fd, &c, 1) != 1)
		c = 'N';
	fd_close(&fd);
	return c == 'Y' || c == '1';
}

static int bpf_probe(const char **why)
{
	struct hot_bpf *bpf;
	int ret;

	*why = "needs a KVM with EPT or NPT: where page tables are shadowed, its tracepoint tells "
	       "virtual addresses";
	if (!is_yes(EPT_FILE) && !is_yes(NPT_FILE))
		return -EOPNOTSUPP;
	*why = "the BPF program can't be used here";
	ret = hot_bpf_open(PAGE_SIZE_BYTES, &bpf);
	if (!ret)
		hot_bpf_close(bpf);
	return ret;
}

static int bpf_open(struct hot_recorder *recorder)
{
	return hot_bpf_open(layout_pmem_gpa(recorder->ram_bytes) + recorder->pmem_bytes,
			    &recorder->bpf);
}

static int bpf_before(struct hot_recorder *recorder, int *hot_fd)
{
	(void)recorder;
	*hot_fd = -1;
	return 0;
}

static int bpf_started(struct hot_recorder *recorder, pid_t pid)
{
	hot_bpf_watch(recorder->bpf, pid);
	return 0;
}

static int bpf_after(struct hot_recorder *recorder, struct snap_hot_set *out)
{
	u64 low_bytes = layout_low_ram_bytes(recorder->ram_bytes);
	u64 high_bytes = layout_high_ram_bytes(recorder->ram_bytes);
	int ret;

	ret = hot_bpf_read(recorder->bpf, 0, low_bytes, false, out);
	if (!ret)
		ret = hot_bpf_read(recorder->bpf, LAYOUT_HIGH_RAM_GPA, high_bytes, false, out);
	if (!ret)
		ret = hot_bpf_read(recorder->bpf, layout_pmem_gpa(recorder->ram_bytes),
				   recorder->pmem_bytes, true, out);
	if (!ret && !out->nruns) {
		log_err("recording the hot set: KVM reported no fault of the clone");
		ret = -ENODATA;
	}
	return ret;
}

static void bpf_close(struct hot_recorder *recorder)
{
	hot_bpf_close(recorder->bpf);
	recorder->bpf = NULL;
}

const struct hot_recorder_ops hot_recorder_bpf = {
	.name = "bpf",
	.id = SNAP_HOT_BPF,
	.summary = "faults that KVM handles; needs root and EPT or NPT",
	.probe = bpf_probe,
	.open = bpf_open,
	.before = bpf_before,
	.started = bpf_started,
	.after = bpf_after,
	.close = bpf_close,
};
