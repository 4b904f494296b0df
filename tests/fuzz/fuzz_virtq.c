// SPDX-License-Identifier: Apache-2.0
// Rings written by a hostile driver while the device works on them; see seeds_virtio.py for the
// format.
//
// Oracles: the sanitizers; a chain that virtq_pop() gives lies in RAM, is no longer than the queue
// and its sums are true; writing to it changes no byte outside its writable buffers; an empty queue
// leaves the driver's kick armed.
#include <errno.h>

#include "tests/unit/test.h"

#include "tests/fuzz/input.h"
#include "vmm/virtio/virtq.h"

#define RAM_BYTES   (128 * KIB)
#define RINGS_BYTES 0x4000u
#define STEPS_MAX   400

struct target {
	struct gmem gmem;
	u8 *ram;
	struct virtq vq;
	struct virtq_chain chain;
	bool popped; /* the last pop may still be given back */
};

static u8 ram[RAM_BYTES] __attribute__((aligned(4096)));
static u8 shadow[RAM_BYTES];
static u8 may_write[RAM_BYTES];

static void check_chain(const struct target *t)
{
	const struct virtq_chain *chain = &t->chain;
	u64 sums[2] = {0, 0};

	CHECK(chain->head < t->vq.size);
	CHECK(chain->nread + chain->nwrite <= t->vq.size);
	for (unsigned int i = 0; i < chain->nread + chain->nwrite; i++) {
		const u8 *base = chain->iov[i].iov_base;

		CHECK(chain->iov[i].iov_len > 0 && chain->iov[i].iov_len <= RAM_BYTES);
		CHECK(base >= ram && base + chain->iov[i].iov_len <= ram + RAM_BYTES);
		sums[i >= chain->nread] += chain->iov[i].iov_len;
	}
	CHECK_EQ(sums[0], chain->read_bytes);
	CHECK_EQ(sums[1], chain->write_bytes);
}

/* Copy something from the readable part at @offset to the writable one. */
static void use_chain(const struct target *t, size_t offset)
{
	const struct virtq_chain *chain = &t->chain;
	u8 buf[300];
	size_t got, put;

	memcpy(shadow, ram, RAM_BYTES);
	memset(may_write, 0, RAM_BYTES);
	for (unsigned int i = chain->nread; i < chain->nread + chain->nwrite; i++)
		memset(may_write + ((u8 *)chain->iov[i].iov_base - ram), 1, chain->iov[i].iov_len);
	memset(buf, 0x5c, sizeof(buf));
	got = virtq_chain_read(chain, offset, buf, sizeof(buf));
	CHECK_EQ(got,
		 offset >= chain->read_bytes ? 0 : MIN(chain->read_bytes - offset, sizeof(buf)));
	put = virtq_chain_write(chain, offset, buf, sizeof(buf));
	CHECK_EQ(put,
		 offset >= chain->write_bytes ? 0 : MIN(chain->write_bytes - offset, sizeof(buf)));
	for (size_t page = 0; page < RAM_BYTES; page += PAGE_SIZE_BYTES) {
		if (!memcmp(ram + page, shadow + page, PAGE_SIZE_BYTES))
			continue;
		for (size_t i = page; i < page + PAGE_SIZE_BYTES; i++)
			CHECK(may_write[i] || ram[i] == shadow[i]);
	}
}

static void step_pop(struct target *t, struct input *in)
{
	u64 event_gpa = t->vq.used_gpa + 4 + 8 * (u64)t->vq.size;
	u16 before = t->vq.next_avail;
	int ret = virtq_pop(&t->vq, &t->chain);
	u16 event;

	t->popped = ret == 1;
	if (ret == 1) {
		CHECK_EQ((u16)(before + 1), t->vq.next_avail);
		check_chain(t);
		use_chain(t, input_take(in, 2));
		return;
	}
	CHECK(ret == 0 || ret == -EBADMSG);
	CHECK_EQ(before, t->vq.next_avail);
	if (ret == 0 && t->vq.event_idx) {
		CHECK_EQ(gmem_read(&t->gmem, event_gpa, &event, sizeof(event)), 0);
		CHECK_EQ(event, t->vq.next_avail);
	}
}

static void step_desc(struct target *t, struct input *in)
{
	struct {
		u64 gpa;
		u32 len;
		u16 flags, next;
	} desc;
	u32 index = input_take(in, 1) % t->vq.size;

	desc.gpa = input_take(in, 3) % (RAM_BYTES + 64);
	desc.len = input_take(in, 2);
	desc.flags = (u16)input_take(in, 1);
	desc.next = (u16)input_take(in, 1);
	if (desc.flags & 0x80)
		desc.gpa = ~desc.gpa;
	memcpy(ram + t->vq.desc_gpa + 16 * index, &desc, sizeof(desc));
}

static void step_add(struct target *t, struct input *in)
{
	u16 *avail = (u16 *)(void *)(ram + t->vq.avail_gpa);

	avail[2 + avail[1] % t->vq.size] = (u16)input_take(in, 1);
	avail[1]++;
}

/* New ring addresses, taken over if they pass. */
static void step_move(struct target *t, struct input *in)
{
	struct virtq moved = t->vq;

	moved.desc_gpa = input_take(in, 3);
	moved.avail_gpa = input_take(in, 3);
	moved.used_gpa = input_take(in, 3);
	moved.size = (u16)input_take(in, 2);
	if (!virtq_validate(&moved))
		t->vq = moved;
}

static void step(struct target *t, struct input *in)
{
	u32 at;

	switch (input_take(in, 1) % 8) {
	case 0:
		at = input_take(in, 2) % RINGS_BYTES;
		ram[at] = (u8)input_take(in, 1);
		break;
	case 1:
		step_pop(t, in);
		break;
	case 2:
		at = input_take(in, 2);
		CHECK_EQ(virtq_push(&t->vq, (u16)at, input_take(in, 4)),
			 at < t->vq.size ? 0 : -EBADMSG);
		break;
	case 3:
		virtq_should_signal(&t->vq);
		CHECK_EQ(t->vq.signalled_used, t->vq.next_used);
		virtq_used_unseen(&t->vq);
		break;
	case 4:
		if (t->popped)
			virtq_unpop(&t->vq);
		t->popped = false;
		break;
	case 5:
		step_desc(t, in);
		break;
	case 6:
		step_add(t, in);
		break;
	default:
		step_move(t, in);
		break;
	}
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);
int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct input in = {data, size};
	struct target t = {0};

	memset(ram, 0, sizeof(ram));
	CHECK_EQ(gmem_add(&t.gmem, 0, RAM_BYTES, ram), 0);
	t.vq = (struct virtq){
		.gmem = &t.gmem,
		.size_max = VIRTQ_SIZE_MAX,
		.size = (u16)(1u << input_take(&in, 1) % 9),
		.ready = true,
		.event_idx = input_take(&in, 1) & 1,
		.desc_gpa = 0,
		.avail_gpa = 0x2000,
		.used_gpa = 0x3000,
	};
	CHECK_EQ(virtq_validate(&t.vq), 0);
	t.vq.next_avail = t.vq.next_used = t.vq.signalled_used = (u16)input_take(&in, 2);
	memcpy(ram + 0x2002, &t.vq.next_avail, 2);
	for (int i = 0; i < STEPS_MAX && in.left; i++)
		step(&t, &in);
	return 0;
}
