// SPDX-License-Identifier: Apache-2.0
// The output ring of a kept exec.
#include "guest/shim/ring.h"

#include "tests/unit/ring_model.h"
#include "tests/unit/test.h"

static void put(struct ring *r, bool err, const char *text)
{
	struct iovec iov[2];
	u32 n = (u32)strlen(text);

	CHECK_EQ(ring_reserve(r, err, n, iov), n);
	CHECK_EQ(iov[0].iov_len, n);
	memcpy(iov[0].iov_base, text, n);
	ring_commit(r, err, n);
}

static void pieces(void)
{
	struct ring r = {0};
	u8 out[16];
	bool err;

	r.reading = true;
	CHECK_EQ(ring_read(&r, out, sizeof(out), &err), 0);
	put(&r, false, "ab");
	put(&r, false, "c");
	put(&r, true, "de");
	put(&r, false, "f");
	CHECK_EQ(r.end, 6);
	/* What came one behind the other from one stream is one piece. */
	CHECK_EQ(ring_read(&r, out, sizeof(out), &err), 3);
	CHECK(!memcmp(out, "abc", 3) && !err);
	CHECK_EQ(ring_read(&r, out, 1, &err), 1);
	CHECK(out[0] == 'd' && err);
	CHECK_EQ(ring_read(&r, out, sizeof(out), &err), 1);
	CHECK(out[0] == 'e' && err);
	CHECK_EQ(ring_read(&r, out, sizeof(out), &err), 1);
	CHECK(out[0] == 'f' && !err);
	CHECK_EQ(ring_read(&r, out, sizeof(out), &err), 0);
	/* A piece that grows while it is read. */
	put(&r, false, "gh");
	CHECK_EQ(ring_read(&r, out, sizeof(out), &err), 2);
	CHECK(!memcmp(out, "gh", 2) && !err);
	ring_seek(&r, 4);
	CHECK_EQ(ring_read(&r, out, sizeof(out), &err), 1);
	CHECK(out[0] == 'e' && err);
	ring_seek(&r, UINT64_MAX);
	CHECK_EQ(r.view.offset, 8);
	/* None of it took memory of its own. */
	CHECK(!r.big);
	ring_free(&r);
	CHECK_EQ(r.end, 0);
}

static void limits(void)
{
	struct ring_model m;
	u64 total = 0;

	ring_model_init(&m);
	while (ring_model_add(&m, false, 65536))
		ring_model_check(&m);
	CHECK_EQ(m.ring.end, SHIM_RING_UNACKED_MAX);
	CHECK_EQ(m.ring.oldest.offset, 0);
	ring_model_ack(&m, 1);
	CHECK_EQ(ring_room(&m.ring), 1);
	/* All is acknowledged as it comes: about the ring's size can be read again. */
	while (m.ring.end < 4 << 20) {
		ring_model_ack(&m, m.ring.end);
		CHECK(ring_model_add(&m, (m.ring.end >> 16) & 1, 50000));
		ring_model_check(&m);
	}
	CHECK(m.ring.end - m.ring.oldest.offset > SHIM_RING_BYTES - 2 * 65536);
	/* A reader of the oldest that stands still holds up what comes, and nothing is lost to it.
	 */
	ring_model_seek(&m, 0);
	for (int i = 0; i < 100; i++) {
		ring_model_ack(&m, m.ring.end);
		total += ring_model_add(&m, false, 65536);
		ring_model_check(&m);
	}
	CHECK(total < 2 * 65536);
	while (ring_model_read(&m, 1000))
		;
	CHECK(ring_room(&m.ring));
	ring_model_free(&m);
}

/* The command has ended: what is in its pipes comes whether somebody acknowledges or not. */
static void ending(void)
{
	struct ring_model m;

	ring_model_init(&m);
	while (ring_model_add(&m, false, 65536))
		;
	m.ring.ending = true;
	CHECK_EQ(ring_model_add(&m, false, 65536), 65536);
	CHECK_EQ(ring_model_add(&m, true, 65536), 65536);
	while (ring_model_add(&m, false, 65536))
		ring_model_check(&m);
	CHECK_EQ(m.ring.oldest.offset, 0);
	CHECK(m.ring.end > SHIM_RING_BYTES - 100);
	ring_model_free(&m);
}

/* The worst for the heads: a byte of each in turn. */
static void single_bytes(void)
{
	struct ring_model m;
	u32 n = 0;

	ring_model_init(&m);
	while (ring_model_add(&m, n & 1, 1))
		n++;
	ring_model_check(&m);
	CHECK(n > SHIM_RING_BYTES / 5 - 16 && n < SHIM_RING_BYTES / 5 + 16);
	ring_model_ack(&m, n / 2);
	CHECK(ring_room(&m.ring));
	ring_model_seek(&m, 0);
	while (ring_model_read(&m, 7))
		n--;
	CHECK_EQ(n, 0);
	ring_model_free(&m);
}

static void random_steps(void)
{
	for (u32 seed = 1; seed <= 40; seed++) {
		struct ring_model m;

		srand(seed);
		ring_model_init(&m);
		m.ring.ending = seed > 35;
		for (int i = 0; i < 2000; i++)
			ring_model_step(&m, (u32)rand() >> 3, (u32)rand());
		CHECK(m.ring.end > SHIM_RING_BYTES);
		ring_model_free(&m);
	}
}

TEST_MAIN({"pieces", pieces}, {"limits", limits}, {"ending", ending},
	  {"single_bytes", single_bytes}, {"random_steps", random_steps})
