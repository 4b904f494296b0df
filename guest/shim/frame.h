/* SPDX-License-Identifier: Apache-2.0 */
/* Frame headers of the exec protocol: made and checked here for both ends; pure, fuzzed. */
#ifndef THAW_SHIM_FRAME_H
#define THAW_SHIM_FRAME_H

#include "guest/shim/proto.h"
#include "vmm/util/types.h"

#define FRAME_HEADER_BYTES sizeof(struct shim_frame)

/** Who sent a frame. */
enum frame_sender {
	FRAME_FROM_HOST,
	FRAME_FROM_GUEST,
};

/** frame_put() - write the header of a frame of @type with @len_bytes of payload to @out (8 bytes).
 */
void frame_put(u8 *out, enum shim_frame_type type, u32 len_bytes);

/**
 * frame_get() - read and check a header.
 * @in: 8 bytes from the peer
 *
 * Return: 0 with *@out filled; -EPROTONOSUPPORT (another version), -EPROTO (a type that @sender
 * does not send, reserved bits), -EMSGSIZE (a length that this type can't have).
 */
int __must_check frame_get(const u8 *in, enum frame_sender sender, struct shim_frame *out);

/** frame_get_u32(), frame_put_u32(), ... - a little-endian number at any alignment. */
u32 frame_get_u32(const u8 *in);
void frame_put_u32(u8 *out, u32 value);
u64 frame_get_u64(const u8 *in);
void frame_put_u64(u8 *out, u64 value);

#endif
