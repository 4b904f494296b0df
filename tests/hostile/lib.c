// SPDX-License-Identifier: Apache-2.0
// What the hostile guests share.
#include "lib.h"

#define SPINS 40000000u

static u64 arena_next = ARENA;
static u32 random_state = 0x12345678;

void *memset(void *dst, int byte, size_t len)
{
	volatile u8 *p = dst;

	while (len--)
		*p++ = (u8)byte;
	return dst;
}

void *memcpy(void *dst, const void *src, size_t len)
{
	volatile u8 *d = dst;
	const u8 *s = src;

	while (len--)
		*d++ = *s++;
	return dst;
}

static void put_char(char c)
{
	outb(0x3f8, (u8)c);
}

static void put_text(const char *text)
{
	while (*text)
		put_char(*text++);
}

static void put_hex(u64 value)
{
	bool started = false;

	for (int shift = 60; shift >= 0; shift -= 4) {
		unsigned int digit = (value >> shift) & 15;

		if (digit || started || !shift) {
			put_char("0123456789abcdef"[digit]);
			started = true;
		}
	}
}

void say(const char *name, const char *text, u64 value)
{
	put_text(name);
	put_text(": ");
	for (; *text; text++) {
		if (text[0] == '%' && text[1] == 'x') {
			put_hex(value);
			text++;
		} else {
			put_char(*text);
		}
	}
	put_char('\n');
}

u32 random32(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 17;
	random_state ^= random_state << 5;
	return random_state;
}

void *alloc(u64 len, u64 align)
{
	u64 at = (arena_next + align - 1) & ~(align - 1);

	arena_next = at + len;
	if (arena_next > RAM_END) {
		say("lib", "arena exhausted", 0);
		outb(0x600, 0x34);
	}
	memset((void *)at, 0, len);
	return (void *)at;
}

u64 find(u32 id)
{
	for (u64 slot = 0; slot < 8; slot++) {
		u64 regs = VIRTIO_BASE + slot * 0x1000;

		if (rd32(regs + R_MAGIC) == 0x74726976 && rd32(regs + R_DEVICE_ID) == id)
			return regs;
	}
	return 0;
}

void init(u64 regs, u64 features)
{
	features |= 1ull << 32; /* VIRTIO_F_VERSION_1 */
	wr32(regs + R_STATUS, 0);
	wr32(regs + R_STATUS, S_ACK);
	wr32(regs + R_STATUS, S_ACK | S_DRIVER);
	for (u32 half = 0; half < 2; half++) {
		wr32(regs + R_DRIVER_FEATURES_SEL, half);
		wr32(regs + R_DRIVER_FEATURES, (u32)(features >> (32 * half)));
	}
	wr32(regs + R_STATUS, S_ACK | S_DRIVER | S_FEATURES_OK);
}

static void wr64(u64 addr, u64 value)
{
	wr32(addr, (u32)value);
	wr32(addr + 4, (u32)(value >> 32));
}

void queue_init(struct queue *q, u64 regs, u32 index, u16 size)
{
	*q = (struct queue){.regs = regs, .index = index, .size = size};
	q->desc = alloc(sizeof(struct desc) * size, 4096);
	q->avail = alloc(6 + 2ull * size, 4096);
	q->used = alloc(6 + 8ull * size, 4096);
	wr32(regs + R_QUEUE_SEL, index);
	wr32(regs + R_QUEUE_SIZE, size);
	wr64(regs + R_QUEUE_DESC, (u64)q->desc);
	wr64(regs + R_QUEUE_AVAIL, (u64)q->avail);
	wr64(regs + R_QUEUE_USED, (u64)q->used);
	wr32(regs + R_QUEUE_READY, 1);
}

void driver_ok(u64 regs)
{
	wr32(regs + R_STATUS, S_ACK | S_DRIVER | S_FEATURES_OK | S_DRIVER_OK);
}

void put(struct queue *q, u16 i, u64 addr, u32 len, u16 flags, u16 next)
{
	q->desc[i].addr = addr;
	q->desc[i].len = len;
	q->desc[i].flags = flags;
	q->desc[i].next = next;
}

void submit(struct queue *q, u16 head)
{
	u16 idx = q->avail[1];

	q->avail[2 + idx % q->size] = head;
	barrier();
	q->avail[1] = (u16)(idx + 1);
	barrier();
	wr32(q->regs + R_QUEUE_NOTIFY, q->index);
}

bool wait_used(struct queue *q)
{
	for (u32 i = 0; i < SPINS; i++) {
		if (q->used[1] != q->last_used) {
			q->last_used++;
			return true;
		}
		if (!(i & 0xffff) && (rd32(q->regs + R_STATUS) & S_NEEDS_RESET))
			return false;
		__asm__ volatile("pause");
	}
	return false;
}

bool broken(u64 regs)
{
	for (u32 i = 0; i < 2000; i++) {
		if (rd32(regs + R_STATUS) & S_NEEDS_RESET)
			return true;
		for (volatile u32 j = 0; j < 2000; j++)
			;
	}
	return false;
}

bool rng_works(void)
{
	u64 regs = find(ID_RNG);
	u64 *bytes = alloc(16, 16);
	struct queue q;

	init(regs, 0);
	queue_init(&q, regs, 0, 8);
	driver_ok(regs);
	put(&q, 0, (u64)bytes, 16, F_WRITE, 0);
	submit(&q, 0);
	return wait_used(&q) && (bytes[0] | bytes[1]);
}
