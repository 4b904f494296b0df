/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files that write and read packs: a pack as a stream of bytes, and frames on all
 * CPUs. */
#ifndef THAW_SNAPSHOT_PACK_IO_H
#define THAW_SNAPSHOT_PACK_IO_H

#include <xxhash.h>

#include "vmm/snapshot/pack.h"
#include "vmm/snapshot/pack_check.h"
#include "vmm/snapshot/write.h"

/** A pack's bytes in order, with their digest so far. */
struct pack_stream {
	int fd;
	bool plain;    /* read(2) and write(2), no positions */
	bool plain_io; /* the ring is a plain one */
	struct ring ring;
	bool ring_ready;
	struct bulk *bulk; /* transfers of the half that is not in use */
	u8 *halves[2];
	unsigned int half;   /* the one in use */
	size_t used_bytes;   /* of it */
	size_t filled_bytes; /* of it, when reading */
	size_t next_bytes;   /* of the other half, under way, when reading */
	u64 file_bytes;	     /* when reading a file */
	u64 offset_bytes;    /* of what the stream starts or started last */
	u64 pos_bytes;	     /* of the next byte of the pack */
	XXH3_state_t *xxh;
};

/** pack_stream_open() - @op RING_WRITE or RING_READ; @plain: no positions, for pipes. Return: 0 or
 * -errno (logged); pack_stream_close() is due in both cases. */
int __must_check pack_stream_open(struct pack_stream *stream, int fd, bool plain, enum ring_op op);
void pack_stream_close(struct pack_stream *stream);

/** pack_stream_write() - Return: 0 or -errno. pack_stream_flush() - wait until all is written. */
int __must_check pack_stream_write(struct pack_stream *stream, const void *buf, size_t len_bytes);
int __must_check pack_stream_flush(struct pack_stream *stream);

/** pack_stream_read() - exactly @len_bytes. Return: 0, -ENODATA (it ended before), or -errno. */
int __must_check pack_stream_read(struct pack_stream *stream, void *buf, size_t len_bytes);

/** pack_stream_digest() - of every byte so far. */
void pack_stream_digest(const struct pack_stream *stream, u8 out[SNAP_DIGEST_BYTES]);

/** One frame on its way: in order through the caller, in between on any CPU. */
struct pack_slot {
	struct pack_frame *frame; /* room for PACK_FRAME_MAX_BYTES */
	u8 *raw;		  /* PACK_FRAME_BYTES */
	int result;
	bool done;
	struct pack_slot *next;
};

#define PACK_THREADS_MAX 64u

/** pack_count_cpus() - that this process may use, at most PACK_THREADS_MAX. */
unsigned int pack_count_cpus(void);

struct pack_pool;

/** pack_pool_new() - @threads (0: one a CPU) that pack or, with @unpack, unpack. Return: NULL
 * without memory or threads (logged). */
struct pack_pool *pack_pool_new(unsigned int threads, bool unpack);

/** pack_pool_free() - waits for what is under way. */
void pack_pool_free(struct pack_pool *pool);

unsigned int pack_pool_threads(const struct pack_pool *pool);

/** pack_pool_slot() - the slot for the next frame, or NULL when all are taken. */
struct pack_slot *pack_pool_slot(struct pack_pool *pool);

/** pack_pool_start() - work on the slot pack_pool_slot() gave. */
void pack_pool_start(struct pack_pool *pool);

/** pack_pool_oldest() - wait for the slot started first; NULL when there is none. Its result is in
 * it. It stays taken until pack_pool_drop(). */
struct pack_slot *pack_pool_oldest(struct pack_pool *pool);
void pack_pool_drop(struct pack_pool *pool);

#endif
