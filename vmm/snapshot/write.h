/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's parts, and the transfer queue that the copy strategy shares with it; nothing outside
 * of this folder and its tests includes it. */
#ifndef THAW_SNAPSHOT_WRITE_H
#define THAW_SNAPSHOT_WRITE_H

#include "vmm/kvm/gmem.h"
#include "vmm/snapshot/internal.h"
#include "vmm/snapshot/mem.h"
#include "vmm/util/ring.h"

/*
 * Many transfers of up to 1 MiB between one file and memory, BULK_DEPTH of them in flight.
 */
#define BULK_DEPTH     64u
#define BULK_MAX_BYTES MIB

struct bulk;
struct snap_hot;

/** bulk_new() - transfers in direction @op (RING_READ or RING_WRITE) with file 0 of @ring. Return:
 * NULL without memory. */
struct bulk *bulk_new(struct ring *ring, enum ring_op op);
/** bulk_add() - @len_bytes between @hva and @offset_bytes; @hva must stay valid until bulk_end().
 * Waits while too many are in flight. Return: 0 or -errno of any transfer so far (-ENODATA: the
 * file ended). */
int __must_check bulk_add(struct bulk *bulk, void *hva, u64 offset_bytes, u64 len_bytes);

/**
 * bulk_new_fixed() - reads by RING_READ_FIXED into registered buffers of @ring.
 * @bounce: NULL: bulk_add_fixed() names the buffer that its memory lies in. Otherwise BULK_DEPTH
 * buffers of @part_bytes, one registered buffer each: bulk_add() reads into one of them and copies.
 */
struct bulk *bulk_new_fixed(struct ring *ring, void *bounce, u64 part_bytes);
int __must_check bulk_add_fixed(struct bulk *bulk, void *hva, u64 offset_bytes, u64 len_bytes,
				unsigned int buf);
/** bulk_end() - wait for all, free @bulk. Return: 0 or -errno of the first that failed. */
int __must_check bulk_end(struct bulk *bulk);

/** snap_ram_write() - the RAM of @gmem (nobody writes to it) into file 0 of @ring, holes for zero
 * pages.
 * @pagemap_fd: /proc/self/pagemap, or -1: then every page is looked at.
 * @base: snapshot whose memory the RAM may be a private mapping of, or NULL.
 * @digest: block digest of the file. Return: 0 or -errno. */
int __must_check snap_ram_write(struct ring *ring, const struct gmem *gmem, int pagemap_fd,
				const struct snap *base, u64 file_bytes,
				u8 digest[SNAP_DIGEST_BYTES]);

/** A snapshot on its way to the disk. */
struct snap_writer {
	struct snap_write_opts opts; /* strings owned; base not */
	int parent_fd;		     /* the folder that the target stands in */
	const char *target;	     /* name of the target in it: the end of opts.path */
	char temp[128];		     /* name of the temporary folder in it; "" = none */
	int temp_fd;		     /* exclusively locked */
	int memory_fd, disk_fd, state_fd, manifest_fd;
	int diff_fd;		 /* of a diff, else -1 */
	struct snap_mem content; /* of a diff: the parent's memory */
	u64 diff_pages;
	char diff_digest[SNAP_DIGEST_HEX];
	int disk_source_fd; /* the disk is that of this file, not of a device; not owned; or -1 */
	int pagemap_fd;	    /* -1: every page is looked at */
	struct ring ring;   /* over memory_fd */
	bool ring_ready;
	u64 root_bytes;
	char root_digest[SNAP_DIGEST_HEX];
};

/** snap_writer_open() - fill in everything of @writer from opts.path up to the four files. Return:
 * 0 or -errno (logged). */
int __must_check snap_writer_open(struct snap_writer *writer);

/** snap_writer_close() - remove the temporary folder, if it is still one, and close the files. */
void snap_writer_close(struct snap_writer *writer);

/** snap_writer_publish() - modes, sync, rename over the target. Return: 0 or -errno (logged). */
int __must_check snap_writer_publish(struct snap_writer *writer, bool has_disk);

/** snap_writer_diff_prepare() - of a diff: check that the base is fit to be its parent, and map
 * what is compared with. Return: 0 or -errno (logged). */
int __must_check snap_writer_diff_prepare(struct snap_writer *writer);

/** snap_writer_diff_check() - before a diff is published: its parent is still in its place. Return:
 * 0 or -errno (logged). */
int __must_check snap_writer_diff_check(const struct snap_writer *writer);

/** snap_writer_diff_store() - the pages of @gmem that differ into `memory`, and the list of them
 * into `diff`. @digest: block digest of `memory`. Return: 0 or -errno. */
int __must_check snap_writer_diff_store(struct snap_writer *writer, const struct gmem *gmem,
					u64 file_bytes, u8 digest[SNAP_DIGEST_BYTES]);

/** snap_writer_hot_store() - writer->hot, bound to the new state file. Return: 0 or -errno
 * (logged).
 */
int __must_check snap_writer_hot_store(const struct snap_writer *writer,
				       const u8 state_digest[SNAP_DIGEST_BYTES]);

struct virtio_dev;

/** snap_writer_store() - snap_write() but for the collecting: no KVM needed. @blk: NULL without a
 * disk, or with one in writer->disk_source_fd. Return: 0 or -errno (logged). */
int __must_check snap_writer_store(struct snap_writer *writer, const struct snap_view *parts,
				   const struct gmem *gmem, struct virtio_dev *blk);

#endif
