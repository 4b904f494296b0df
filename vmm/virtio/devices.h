/* SPDX-License-Identifier: Apache-2.0 */
/* Constructors of the devices, and the few calls beyond struct virtio_ops that the machine makes.
 */
#ifndef THAW_VIRTIO_DEVICES_H
#define THAW_VIRTIO_DEVICES_H

#include "vmm/virtio/virtio.h"

/**
 * Each constructor returns 0 and *@out (freed by virtio_destroy()), or -errno (logged). All of them
 * are called before seccomp.
 */

/** console_create() - virtio-console, one port: guest output goes to @out_fd (not owned; -1 =
 * dropped), no input. Never blocks the VM: output is dropped, and counted, while @out_fd is full.
 */
int __must_check console_create(struct virtio_host *host, unsigned int slot, int out_fd,
				struct virtio_dev **out);

/** rng_create() - virtio-rng from getrandom(2), at most 4 KiB a request. */
int __must_check rng_create(struct virtio_host *host, unsigned int slot, struct virtio_dev **out);

/** pmem_create() - virtio-pmem over the read-only range [@gpa, @gpa + @len_bytes) that the machine
 * maps; flush requests succeed (nothing is ever dirty). */
int __must_check pmem_create(struct virtio_host *host, unsigned int slot, u64 gpa, u64 len_bytes,
			     struct virtio_dev **out);

/**
 * blk_create() - virtio-blk: the scratch disk, copy on write in 4 KiB blocks.
 * @base_fd: read-only lower file (a template's disk), or -1. Not owned. Holes and what lies past
 * its end read as zeros.
 * @delta_fd: read-write file of this VM alone, sparse; not owned. Blocks written go here only.
 * @size_bytes: of the disk, a multiple of 4 KiB.
 *
 * Features: FLUSH, DISCARD, WRITE_ZEROES, BLK_SIZE, SEG_MAX. I/O goes through io_uring (ring.h),
 * errors become VIRTIO_BLK_S_IOERR.
 */
int __must_check blk_create(struct virtio_host *host, unsigned int slot, int base_fd, int delta_fd,
			    u64 size_bytes, struct virtio_dev **out);

/**
 * blk_write_image() - the disk as it is now (device quiesced) into @out_fd: merged, sparse. For
 * snapshots, off the hot path. Return: 0 or -errno (logged).
 */
int __must_check blk_write_image(struct virtio_dev *dev, int out_fd);

/** What the vsock device asks of its owner. */
struct vsock_owner {
	/**
	 * A guest process connects to host port @port. Return: a connected stream socket that the
	 * device owns from then on, or -errno: the guest gets a reset.
	 */
	int (*guest_connect)(struct vsock_owner *owner, u32 port);
};

/** vsock_create() - virtio-vsock, streams only; @owner must outlive it. The guest's CID is
 * SHIM_GUEST_CID. */
int __must_check vsock_create(struct virtio_host *host, unsigned int slot,
			      struct vsock_owner *owner, struct virtio_dev **out);

/**
 * vsock_connect() - bridge @fd (a connected Unix stream socket, owned by the device from now on,
 * whatever is returned) to guest port @port.
 *
 * Requests made before the driver is up, or while a transport reset is being handled, wait. If the
 * guest refuses, @fd is closed without a byte. Return: 0 or -errno (too many connections: -EMFILE).
 */
int __must_check vsock_connect(struct virtio_dev *dev, u32 port, int fd);

/** vsock_connect_announce() - vsock_connect(), and when the guest has accepted, "OK <port>\n" is
 * the first that comes out of @fd. For clients of the text protocol of vm_ctl.c. */
int __must_check vsock_connect_announce(struct virtio_dev *dev, u32 port, int fd);

/** vsock_connections() - streams in any state but closed. */
u32 vsock_connections(const struct virtio_dev *dev);

/**
 * vsock_transport_reset() - after virtio_load(), before virtio_resume(): queue
 * VIRTIO_VSOCK_EVENT_TRANSPORT_RESET (virtio 1.2 §5.10.6.7) and hold all packets to the guest back
 * until it has taken the event and given a new event buffer, because its handler resets every
 * connected socket.
 */
void vsock_transport_reset(struct virtio_dev *dev);

#endif
