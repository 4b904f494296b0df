// SPDX-License-Identifier: Apache-2.0
// Block requests as the guest sent them: everything in them is checked here, once, before any I/O.
//
// The descriptors were copied and checked by virtq_pop(); header and segment are copied out of
// guest memory here, then checked. Data is never looked at.
#include <errno.h>
#include <string.h>

#include "vmm/util/log.h"
#include "vmm/virtio/blk.h"

#define BLK_HEADER_BYTES   sizeof(struct virtio_blk_outhdr)
#define BLK_ZERO_SEG_BYTES sizeof(struct virtio_blk_discard_write_zeroes)

static const char blk_id[VIRTIO_BLK_ID_BYTES] = "thaw-scratch";

int blk_req_split_status(struct blk_req *req)
{
	struct virtq_chain *chain = &req->chain;
	struct iovec *last;

	if (chain->write_bytes == 0) {
		log_guest("virtio-blk: request without room for a status");
		return -EBADMSG;
	}
	last = &chain->iov[chain->nread + chain->nwrite - 1];
	last->iov_len--;
	req->status_hva = (u8 *)last->iov_base + last->iov_len;
	req->used_bytes = chain->write_bytes;
	chain->write_bytes--;
	if (!last->iov_len)
		chain->nwrite--;
	return 0;
}

/* Take the header off the readable part. */
static void skip_header(struct blk_req *req)
{
	u64 left_bytes = BLK_HEADER_BYTES;

	req->iov_next = 0;
	while (left_bytes) {
		struct iovec *iov = &req->chain.iov[req->iov_next];
		size_t n = MIN(left_bytes, (u64)iov->iov_len);

		iov->iov_base = (u8 *)iov->iov_base + n;
		iov->iov_len -= n;
		left_bytes -= n;
		if (!iov->iov_len)
			req->iov_next++;
	}
}

/* Is [@sector, + @len_bytes) on the disk and whole sectors? Sets the request's range. */
static bool set_range(struct blk_req *req, u64 sector, u64 len_bytes)
{
	u64 sectors = req->blk->size_bytes / BLK_SECTOR_BYTES;

	if (len_bytes % BLK_SECTOR_BYTES || sector > sectors ||
	    len_bytes / BLK_SECTOR_BYTES > sectors - sector)
		return false;
	req->pos = sector * BLK_SECTOR_BYTES;
	req->end = req->pos + len_bytes;
	return true;
}

static void set_write_blocks(struct blk_req *req)
{
	req->first_block = req->pos / BLK_BLOCK_BYTES;
	req->end_block = (req->end + BLK_BLOCK_BYTES - 1) / BLK_BLOCK_BYTES;
}

/* Discard and write zeroes: exactly one segment, which is what the configuration space allows. */
static u8 prepare_zeroing(struct blk_req *req)
{
	struct virtio_blk_discard_write_zeroes seg;
	u32 flags_ok =
		req->type == VIRTIO_BLK_T_WRITE_ZEROES ? VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP : 0;
	u64 len_bytes;

	if (req->chain.read_bytes != BLK_HEADER_BYTES + BLK_ZERO_SEG_BYTES ||
	    virtq_chain_read(&req->chain, BLK_HEADER_BYTES, &seg, sizeof(seg)) != sizeof(seg))
		return VIRTIO_BLK_S_IOERR;
	if (seg.flags & ~flags_ok)
		return VIRTIO_BLK_S_UNSUPP;
	len_bytes = seg.num_sectors * BLK_SECTOR_BYTES;
	if (len_bytes > BLK_ZERO_MAX_BYTES || !set_range(req, seg.sector, len_bytes))
		return VIRTIO_BLK_S_IOERR;
	set_write_blocks(req);
	return VIRTIO_BLK_S_OK;
}

static u8 prepare_out(struct blk_req *req, u64 sector)
{
	if (!set_range(req, sector, req->chain.read_bytes - BLK_HEADER_BYTES))
		return VIRTIO_BLK_S_IOERR;
	skip_header(req);
	set_write_blocks(req);
	return VIRTIO_BLK_S_OK;
}

static u8 prepare_in(struct blk_req *req, u64 sector)
{
	req->iov_next = req->chain.nread;
	return set_range(req, sector, req->chain.write_bytes) ? VIRTIO_BLK_S_OK
							      : VIRTIO_BLK_S_IOERR;
}

u8 blk_req_prepare(struct blk_req *req)
{
	struct virtio_blk_outhdr hdr;

	req->pos = req->end = 0;
	req->first_block = req->end_block = 0;
	if (virtq_chain_read(&req->chain, 0, &hdr, sizeof(hdr)) != sizeof(hdr))
		return VIRTIO_BLK_S_IOERR;
	req->type = hdr.type;
	switch (hdr.type) {
	case VIRTIO_BLK_T_IN:
		return prepare_in(req, hdr.sector);
	case VIRTIO_BLK_T_OUT:
		return prepare_out(req, hdr.sector);
	case VIRTIO_BLK_T_DISCARD:
	case VIRTIO_BLK_T_WRITE_ZEROES:
		return prepare_zeroing(req);
	case VIRTIO_BLK_T_GET_ID:
		virtq_chain_write(&req->chain, 0, blk_id, sizeof(blk_id));
		return VIRTIO_BLK_S_OK;
	case VIRTIO_BLK_T_FLUSH:
		return VIRTIO_BLK_S_OK;
	default:
		return VIRTIO_BLK_S_UNSUPP;
	}
}
