/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the block device: blk.c (device, queue, life of a request), blk_io.c (what a request
 * does to the files), blk_image.c (the merged image). Nobody else includes this; devices.h is the
 * interface.
 */
#ifndef THAW_VIRTIO_BLK_H
#define THAW_VIRTIO_BLK_H

#include <linux/virtio_blk.h>

#include "vmm/util/ring.h"
#include "vmm/virtio/blk_map.h"
#include "vmm/virtio/devices.h"

#define BLK_SECTOR_BYTES ((u64)512)

/* Requests under way; more wait in the queue. Each costs memory only from its first use on. */
#define BLK_REQS_MAX 64

/* Of one discard or write-zeroes request. */
#define BLK_ZERO_MAX_BYTES GIB

/* Registered files of the ring. */
#define BLK_FILE_DELTA 0
#define BLK_FILE_BASE  1

/* What the ring operation under way is for. */
enum blk_step {
	BLK_STEP_READ,	     /* file to guest memory */
	BLK_STEP_WRITE,	     /* guest memory to the delta */
	BLK_STEP_COPY_READ,  /* a base block into the bounce buffer */
	BLK_STEP_COPY_WRITE, /* the bounce buffer, merged, to the delta */
	BLK_STEP_PUNCH,	     /* whole blocks of the delta freed */
	BLK_STEP_FLUSH,
};

struct blk_req {
	struct ring_req io; /* at most one under way */
	struct blk *blk;
	struct blk_req *prev, *next; /* active list in order of arrival, or free list (next) */
	bool started;
	u8 retries;
	u32 type;		    /* VIRTIO_BLK_T_* */
	u64 pos, end;		    /* bytes of the disk still to do; end is exclusive */
	u64 first_block, end_block; /* what it may write; empty for requests that write nothing */
	enum blk_step step;
	u64 step_bytes;	   /* of the disk, that the operation under way covers */
	u64 iov_next;	   /* first data buffer of the chain that is not done */
	u64 iov_cut_bytes; /* of the last buffer of the operation: cut off, to be put back */
	u8 *status_hva;	   /* the answer's byte in guest memory: the last writable one */
	u32 used_bytes;	   /* what the used ring reports */
	struct iovec bounce_iov;
	struct virtq_chain chain;
	u8 bounce[BLK_BLOCK_BYTES];
};

struct blk {
	struct virtio_dev dev;
	struct virtio_blk_config config;
	struct ring ring;
	struct ev_handler ring_handler;
	bool failed;	/* the ring could not be drained: unusable for good */
	bool starved;	/* requests were left in the queue for want of a free blk_req */
	bool rescan;	/* a request ended: one that waits may be startable */
	bool bad_queue; /* a completion could not be pushed */
	int base_fd, delta_fd;
	u64 base_bytes; /* what lies past it reads as zeros; 0 without a base */
	u64 size_bytes;
	struct blk_map map;
	struct blk_req *reqs; /* BLK_REQS_MAX */
	unsigned int nreqs;   /* ever used: the rest was never touched */
	struct blk_req *free_reqs;
	struct blk_req *first, *last; /* active: started or waiting for an earlier one */
	unsigned int nactive;
};

/** blk_req_split_status() - take the status byte off the writable part: what is left of it is data.
 * Return: 0, or -EBADMSG when there is none. */
int __must_check blk_req_split_status(struct blk_req *req);

/** blk_req_prepare() - check the request and set what blk_req_step() goes by. Return:
 * VIRTIO_BLK_S_OK, or another status, which is final. */
u8 __must_check blk_req_prepare(struct blk_req *req);

/** blk_req_step() - go on with a started request until it needs the ring or is complete.
 * blk_req_done() - ring callback. */
void blk_req_step(struct blk_req *req);
void blk_req_done(struct ring_req *io, s64 result);

/** blk_req_complete() - answer with @status (VIRTIO_BLK_S_*) and free @req. */
void blk_req_complete(struct blk_req *req, u8 status);

/** blk_req_release() - free @req without an answer. */
void blk_req_release(struct blk_req *req);

/** blk_runs() - do completions still reach the driver? */
bool blk_runs(const struct blk *blk);

#endif
