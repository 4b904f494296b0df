/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed-width types and the few macros that every file uses. */
#ifndef THAW_UTIL_TYPES_H
#define THAW_UTIL_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;

#define KIB ((u64)1 << 10)
#define MIB ((u64)1 << 20)
#define GIB ((u64)1 << 30)

/** The 4 KiB base page of x86-64, guest and host alike. */
#define PAGE_SIZE_BYTES ((u64)4096)
#define HUGE_SIZE_BYTES (2 * MIB)

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/** Power-of-two alignment; @a must be a power of two. */
#define ALIGN_DOWN(x, a) ((x) & ~((__typeof__(x))(a)-1))
#define ALIGN_UP(x, a)	 ALIGN_DOWN((x) + ((__typeof__(x))(a)-1), a)

#define MIN(a, b)                                  \
	({                                         \
		__typeof__(a) min_a_ = (a);        \
		__typeof__(b) min_b_ = (b);        \
		min_a_ < min_b_ ? min_a_ : min_b_; \
	})
#define MAX(a, b)                                  \
	({                                         \
		__typeof__(a) max_a_ = (a);        \
		__typeof__(b) max_b_ = (b);        \
		max_a_ > max_b_ ? max_a_ : max_b_; \
	})

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define __must_check	   __attribute__((warn_unused_result))
#define __printf(fmt, arg) __attribute__((format(printf, fmt, arg)))

#endif
