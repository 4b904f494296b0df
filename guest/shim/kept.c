// SPDX-License-Identifier: Apache-2.0
/*
 * Kept commands: known by an id, with output in a ring and an exit status that wait until they are
 * read.
 *
 * A kept command is a connection like any other, but its stream can come and go. When the stream
 * ends the connection stays; SHIM_ATTACH takes the stream off the connection it came on and puts it
 * here, with what was read from it already, and gives a stream that was here before to that other
 * connection, which says ESTALE on it and ends. So whoever comes last has the command, and a host
 * that was killed with its streams half open can come back at once.
 *
 * When the command has ended and its output is in the ring the connection is CONN_ENDED: a page of
 * memory, the ring, and no fd. It goes by SHIM_FORGET; or, when there are more than
 * SHIM_KEPT_ENDED_MAX, the one that ended first of those whose output was acknowledged to its end.
 */
#include "guest/shim/kept.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include "guest/shim/exec.h"
#include "guest/shim/shim.h"

/* For the peer to acknowledge and to close, behind SHIM_EXIT or ESTALE. */
#define LAST_WAIT_MS 10000

static struct conn *kept_find(struct shim *shim, const u8 *id)
{
	for (u32 i = 0; i < SHIM_CONN_MAX; i++) {
		struct conn *c = shim->conns[i];

		if (c && c->kept && !memcmp(c->exec.ext.id, id, SHIM_ID_BYTES))
			return c;
	}
	return NULL;
}

u32 kept_count(const struct shim *shim)
{
	u32 n = 0;

	for (u32 i = 0; i < SHIM_CONN_MAX; i++)
		n += shim->conns[i] && shim->conns[i]->kept;
	return n;
}

static bool kept_can_go(const struct conn *c)
{
	return c->phase == CONN_ENDED && c->orphan && c->ring.acked.offset == c->ring.end;
}

bool kept_push_out(struct shim *shim)
{
	struct conn *first = NULL;

	for (u32 i = 0; i < SHIM_CONN_MAX; i++) {
		struct conn *c = shim->conns[i];

		if (c && kept_can_go(c) && (!first || c->ended_number < first->ended_number))
			first = c;
	}
	if (!first)
		return false;
	conn_end(shim, first);
	loop_queue(shim, first);
	return true;
}

/* Ended ones beyond their number, as far as they may go. */
static void kept_trim(struct shim *shim)
{
	while (shim->nended > SHIM_KEPT_ENDED_MAX && kept_push_out(shim))
		;
}

int kept_begin(struct shim *shim, struct conn *c)
{
	struct timespec now;

	if (kept_find(shim, c->exec.ext.id))
		return -EEXIST;
	/* Those that run may all end, and none of them be acknowledged: places for other streams
	 * must be left. */
	if (kept_count(shim) >= SHIM_EXEC_MAX + SHIM_KEPT_ENDED_MAX && !kept_push_out(shim))
		return -EAGAIN;
	clock_gettime(CLOCK_REALTIME, &now);
	c->started_ns = (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
	c->kept = true;
	c->ring.reading = true;
	return 0;
}

#define SWAP(a, b)                         \
	do {                               \
		__typeof__(a) swap_ = (a); \
		(a) = (b);                 \
		(b) = swap_;               \
	} while (0)

/* Each gets the other's stream, in the state it is in; what is unsent goes with it from @c to @n,
 * which has sent nothing. */
static void swap_streams(struct conn *c, struct conn *n)
{
	SWAP(c->fd[SLOT_STREAM], n->fd[SLOT_STREAM]);
	SWAP(c->ready[SLOT_STREAM], n->ready[SLOT_STREAM]);
	SWAP(c->hup[SLOT_STREAM], n->hup[SLOT_STREAM]);
	SWAP(c->writable, n->writable);
	SWAP(c->connecting, n->connecting);
	SWAP(c->probe, n->probe);
	SWAP(c->rx_eof, n->rx_eof);
	memcpy(n->out, c->out + c->out_start, c->out_len);
	n->out_start = 0;
	n->out_len = c->out_len;
	c->out_start = c->out_len = 0;
	c->head_len = 0;
	c->stdin_left = 0;
}

/* @n's stream is still to say that it is not the command's any more. */
static void stale_stream(struct shim *shim, struct conn *n)
{
	if (n->fd[SLOT_STREAM] < 0 || loop_move(shim, n)) {
		conn_end(shim, n);
		return;
	}
	conn_put_error(n, SHIM_STAGE_REQUEST, ESTALE, "another stream has taken the command over");
	n->phase = CONN_LAST;
	loop_set_deadline(shim, n, LAST_WAIT_MS);
}

static void put_attached(struct conn *c)
{
	const struct shim_attached body = {
		.offset = c->ring.view.offset,
		.end = c->ring.end,
		.pid = c->phase == CONN_STARTING ? 0 : (u32)c->pid,
		.state = c->phase == CONN_ENDED ? SHIM_STATE_ENDED : SHIM_STATE_RUNNING,
	};
	u8 credit[4];

	conn_put_frame(c, SHIM_ATTACHED, &body, sizeof(body));
	/* What is left of the window is told: this host may not know what the last one sent. */
	c->window_used = c->in_len;
	c->credit = 0;
	if (c->fd[SLOT_STDIN] < 0 || c->stdin_over)
		return;
	frame_put_u32(credit, SHIM_STDIN_WINDOW_BYTES - c->in_len);
	conn_put_frame(c, SHIM_STDIN_CREDIT, credit, sizeof(credit));
}

void kept_attach(struct shim *shim, struct conn *n, const u8 *payload)
{
	const u64 offset = frame_get_u64(payload + offsetof(struct shim_attach, offset));
	struct conn *c = kept_find(shim, payload);

	if (!c) {
		conn_fail(shim, n, SHIM_STAGE_REQUEST, ENOENT, "attach");
		return;
	}
	if (c->exit_sent)
		conn_close_stream(c);
	swap_streams(c, n);
	if (c->phase == CONN_ENDED)
		loop_set_deadline(shim, c, 0);
	c->orphan = c->exit_queued = c->exit_sent = false;
	/* A terminal goes on after its end-of-file character. */
	if (c->exec.pty)
		c->stdin_over = false;
	ring_seek(&c->ring, offset);
	c->ring.reading = true;
	n->moved_to = c;
	stale_stream(shim, n);
	loop_queue(shim, n);
	loop_queue(shim, c);
	if (loop_move(shim, c)) {
		kept_detach(shim, c);
		return;
	}
	put_attached(c);
}

void kept_detach(struct shim *shim, struct conn *c)
{
	conn_close_stream(c);
	c->orphan = true;
	c->exit_queued = c->exit_sent = false;
	c->ring.reading = false;
	loop_queue(shim, c);
	if (c->phase != CONN_ENDED)
		return;
	loop_set_deadline(shim, c, 0);
	/* All but the head and the first page of what is sent. */
	(void)madvise(c->out + PAGE_SIZE_BYTES,
		      ALIGN_DOWN(sizeof(c->out) + sizeof(c->in) - PAGE_SIZE_BYTES, PAGE_SIZE_BYTES),
		      MADV_DONTNEED);
	kept_trim(shim);
}

void kept_ended(struct shim *shim, struct conn *c)
{
	c->phase = CONN_ENDED;
	c->ended_number = ++shim->last_ended;
	shim->nended++;
	conn_close_slot(c, SLOT_STDIN);
	c->in_len = 0;
	if (c->orphan)
		kept_detach(shim, c);
}

void kept_progress(struct shim *shim, struct conn *c)
{
	if (c->orphan)
		return;
	if (c->exit_sent) {
		if (c->rx_eof || c->deadline_ns <= loop_now_ns())
			kept_detach(shim, c);
		return;
	}
	if (c->exit_queued || c->ring.view.offset < c->ring.end)
		return;
	conn_put_frame(c, SHIM_EXIT, &c->status, sizeof(c->status));
	c->exit_queued = true;
}

/*
 * The stream is not closed behind SHIM_EXIT, only our side of it: acknowledgements of the last
 * output are still under way.
 */
void kept_flushed(struct shim *shim, struct conn *c)
{
	if (!c->exit_queued || c->exit_sent)
		return;
	shutdown(c->fd[SLOT_STREAM], SHUT_WR);
	c->exit_sent = true;
	loop_set_deadline(shim, c, LAST_WAIT_MS);
	if (c->rx_eof)
		loop_queue(shim, c);
}

void kept_list(struct shim *shim, struct conn *c)
{
	for (u32 i = 0; i < SHIM_CONN_MAX; i++) {
		const struct conn *k = shim->conns[i];
		struct shim_entry entry;

		if (!k || !k->kept)
			continue;
		entry = (struct shim_entry){
			.end = k->ring.end,
			.oldest = k->ring.oldest.offset,
			.started_ns = k->started_ns,
			.pid = k->phase == CONN_STARTING ? 0 : (u32)k->pid,
			.attached = !k->orphan && !k->exit_sent,
			.ext_flags = k->exec.ext.flags,
		};
		memcpy(entry.id, k->exec.ext.id, SHIM_ID_BYTES);
		if (k->phase == CONN_ENDED) {
			entry.state = SHIM_STATE_ENDED;
			entry.kind = k->status.kind;
			entry.value = k->status.value;
			entry.flags = k->status.flags;
		}
		conn_put_frame(c, SHIM_ENTRY, &entry, sizeof(entry));
	}
	conn_put_frame(c, SHIM_OK, NULL, 0);
	c->phase = CONN_LAST;
}

void kept_forget(struct shim *shim, struct conn *n, const u8 *payload)
{
	struct conn *c = kept_find(shim, payload);

	if (!c || c->phase != CONN_ENDED) {
		conn_fail(shim, n, SHIM_STAGE_REQUEST, c ? EBUSY : ENOENT, "forget");
		return;
	}
	/* One that reads it gets what is under way and a stream that ends. */
	conn_end(shim, c);
	loop_queue(shim, c);
	conn_put_frame(n, SHIM_OK, NULL, 0);
	n->phase = CONN_LAST;
}
