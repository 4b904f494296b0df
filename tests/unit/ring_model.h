/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output ring of a kept exec beside a model that forgets nothing. Driven by numbers: random
 * ones (unit/test_output_ring.c) or a fuzzer's (fuzz/fuzz_ring.c). A difference aborts.
 */
#ifndef THAW_TESTS_RING_MODEL_H
#define THAW_TESTS_RING_MODEL_H

#include <stdlib.h>
#include <string.h>

#include "guest/shim/ring.h"

#define MODEL_BYTES (8u << 20)

struct ring_model {
	struct ring ring;
	u8 *log; /* bit 7: stderr; the rest tells the place */
	u64 acked;
};

#define MODEL_CHECK(cond)        \
	do {                     \
		if (!(cond))     \
			abort(); \
	} while (0)

static inline void ring_model_init(struct ring_model *m)
{
	memset(m, 0, sizeof(*m));
	m->log = malloc(MODEL_BYTES);
	MODEL_CHECK(m->log);
}

static inline void ring_model_free(struct ring_model *m)
{
	ring_free(&m->ring);
	free(m->log);
}

static inline void ring_model_check(const struct ring_model *m)
{
	const struct ring *r = &m->ring;

	MODEL_CHECK(r->acked.offset == m->acked);
	MODEL_CHECK(r->oldest.offset <= r->acked.offset && r->acked.offset <= r->end);
	MODEL_CHECK(r->ending || r->end - r->acked.offset <= SHIM_RING_UNACKED_MAX);
	MODEL_CHECK(r->head - r->oldest.pos <= SHIM_RING_BYTES);
	MODEL_CHECK(!r->reading ||
		    (r->oldest.offset <= r->view.offset && r->view.offset <= r->end));
	/* Who has acknowledged everything and reads nothing is never kept waiting. */
	MODEL_CHECK(r->reading || r->acked.offset < r->end || ring_room(r));
}

/* Return: bytes added. */
static inline u32 ring_model_add(struct ring_model *m, bool err, u32 len)
{
	const u64 at = m->ring.end;
	struct iovec iov[2];
	u32 room = ring_room(&m->ring), got, n = 0;

	len = (u32)MIN((u64)len, MODEL_BYTES - at);
	got = ring_reserve(&m->ring, err, len, iov);
	MODEL_CHECK(got <= MIN(len, room) && (!got == (!len || !room)));
	for (int i = 0; i < 2 && got; i++) {
		for (size_t j = 0; j < iov[i].iov_len; j++, n++) {
			m->log[at + n] = (u8)(((at + n) % 113) | (err ? 0x80 : 0));
			((u8 *)iov[i].iov_base)[j] = m->log[at + n];
		}
	}
	MODEL_CHECK(n == got);
	ring_commit(&m->ring, err, got);
	MODEL_CHECK(m->ring.end == at + got);
	return got;
}

/* Return: bytes read, and found right. */
static inline u32 ring_model_read(struct ring_model *m, u32 max)
{
	static u8 out[SHIM_DATA_MAX_BYTES];
	const u64 at = m->ring.view.offset;
	bool err = false;
	u32 n;

	n = ring_read(&m->ring, out, MIN(max, SHIM_DATA_MAX_BYTES), &err);
	MODEL_CHECK(m->ring.view.offset == at + n && at + n <= m->ring.end);
	MODEL_CHECK(n || !max || at == m->ring.end);
	MODEL_CHECK(!memcmp(out, m->log + at, n));
	for (u32 i = 0; i < n; i++)
		MODEL_CHECK(!(out[i] & 0x80) == !err);
	return n;
}

static inline void ring_model_seek(struct ring_model *m, u64 offset)
{
	u64 want = MIN(MAX(offset, m->ring.oldest.offset), m->ring.end);

	ring_seek(&m->ring, offset);
	MODEL_CHECK(m->ring.view.offset == want);
	m->ring.reading = true;
}

static inline void ring_model_ack(struct ring_model *m, u64 offset)
{
	m->acked = MAX(m->acked, MIN(offset, m->ring.end));
	ring_ack(&m->ring, offset);
}

/* One step: what, of which stream, how much. */
static inline void ring_model_step(struct ring_model *m, u32 what, u32 amount)
{
	switch (what % 8) {
	case 0:
	case 1:
		(void)ring_model_add(m, what & 8, amount % (SHIM_DATA_MAX_BYTES + 1));
		break;
	case 2:
		(void)ring_model_add(m, what & 8, amount % 16);
		break;
	case 3:
		if (m->ring.reading)
			(void)ring_model_read(m, amount % (SHIM_DATA_MAX_BYTES + 1));
		break;
	case 4:
		ring_model_ack(m, m->acked + amount % (SHIM_RING_UNACKED_MAX + 5));
		break;
	case 5:
		ring_model_seek(m, amount % (MODEL_BYTES + 10));
		break;
	case 6:
		ring_model_seek(m, m->ring.end - MIN((u64)(amount % SHIM_RING_BYTES), m->ring.end));
		break;
	default:
		m->ring.reading = m->ring.reading && amount % 4;
		break;
	}
	ring_model_check(m);
}

#endif
