/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the hostile guests share: ports, registers, a serial line for their verdicts, and a virtio
 * driver that obeys no rule unless its caller wants to.
 *
 * A guest prints one line an observation ("name: what was seen"), and "done" last;
 * tests/vm/test_hostile.py says what must be seen. No interrupts: everything is polled, and every
 * wait is bounded.
 */
#ifndef THAW_TESTS_HOSTILE_LIB_H
#define THAW_TESTS_HOSTILE_LIB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define VIRTIO_BASE 0xd0010000ull
#define RAM_END	    (128ull << 20) /* the tests give each guest 128 MiB */
#define ARENA	    (32ull << 20)  /* free memory of the guest: [ARENA, RAM_END) */
#define DOORBELL    0xd0000000ull

enum { ID_BLK = 2, ID_CONSOLE = 3, ID_RNG = 4, ID_VSOCK = 19, ID_PMEM = 27 };

/* virtio-mmio registers, virtio 1.2 table 4.1 */
enum {
	R_MAGIC = 0x00,
	R_DEVICE_ID = 0x08,
	R_FEATURES = 0x10,
	R_FEATURES_SEL = 0x14,
	R_DRIVER_FEATURES = 0x20,
	R_DRIVER_FEATURES_SEL = 0x24,
	R_QUEUE_SEL = 0x30,
	R_QUEUE_SIZE_MAX = 0x34,
	R_QUEUE_SIZE = 0x38,
	R_QUEUE_READY = 0x44,
	R_QUEUE_NOTIFY = 0x50,
	R_INTERRUPT_STATUS = 0x60,
	R_INTERRUPT_ACK = 0x64,
	R_STATUS = 0x70,
	R_QUEUE_DESC = 0x80,
	R_QUEUE_AVAIL = 0x90,
	R_QUEUE_USED = 0xa0,
	R_CONFIG = 0x100,
};

enum { S_ACK = 1, S_DRIVER = 2, S_DRIVER_OK = 4, S_FEATURES_OK = 8, S_NEEDS_RESET = 0x40 };
enum { F_NEXT = 1, F_WRITE = 2, F_INDIRECT = 4 };

struct desc {
	u64 addr;
	u32 len;
	u16 flags;
	u16 next;
};

struct queue {
	u64 regs; /* the device's page */
	u32 index;
	u16 size;
	u16 last_used;
	volatile struct desc *desc;
	volatile u16 *avail; /* flags, idx, ring[size] */
	volatile u16 *used;  /* flags, idx, then {u32 id, len}[size] */
};

static inline void outb(u16 port, u8 value)
{
	__asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline u8 inb(u16 port)
{
	u8 value;

	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline u32 rd32(u64 addr)
{
	return *(volatile u32 *)addr;
}

static inline void wr32(u64 addr, u32 value)
{
	*(volatile u32 *)addr = value;
}

static inline void barrier(void)
{
	__asm__ volatile("mfence" : : : "memory");
}

int main(void);
void *memset(void *dst, int byte, size_t len);
void *memcpy(void *dst, const void *src, size_t len);

/** say() - "NAME: " and a line that may have one %x with @value. */
void say(const char *name, const char *text, u64 value);

/** random32() - a fixed pseudo-random sequence: every run attacks alike. */
u32 random32(void);

/** alloc() - zeroed memory from the arena, never freed; @align a power of two. */
void *alloc(u64 len, u64 align);

/** find() - register page of the device of type @id, 0 if there is none. */
u64 find(u32 id);

/** init() - reset the device and go up to FEATURES_OK with VERSION_1 and @features; does not set
 * DRIVER_OK. */
void init(u64 regs, u64 features);

/** queue_init() - rings of @size for queue @index in fresh memory, registered and ready. */
void queue_init(struct queue *q, u64 regs, u32 index, u16 size);

/** driver_ok() - let the device start. */
void driver_ok(u64 regs);

/** put() - one descriptor. */
void put(struct queue *q, u16 i, u64 addr, u32 len, u16 flags, u16 next);

/** submit() - make @head available and notify. */
void submit(struct queue *q, u16 head);

/** wait_used() - true when one more used entry came; false after a bounded wait, or when the device
 * needs a reset. */
bool wait_used(struct queue *q);

/** broken() - does the device say DEVICE_NEEDS_RESET? Waits a bounded time for it. */
bool broken(u64 regs);

/** rng_works() - positive control: a fresh rng driver gets 16 bytes that are not all zero. */
bool rng_works(void);

#endif
