/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of thaw-files (proto.h): made in the guest, taken apart and checked by the host; pure,
 * fuzzed. */
#ifndef THAW_FILES_FRAME_H
#define THAW_FILES_FRAME_H

#include <stddef.h>
#include <sys/types.h>

#include "guest/files/proto.h"
#include "vmm/util/types.h"

#define FILES_HEADER_BYTES    sizeof(struct files_frame)
#define FILES_FRAME_MAX_BYTES (FILES_HEADER_BYTES + FILES_PAYLOAD_MAX_BYTES)

/** A name or text inside a frame: not NUL-terminated, free of NULs. */
struct files_str {
	const char *bytes;
	size_t len_bytes;
};

/** One frame, taken apart; strings point into the frame. */
struct files_message {
	enum files_frame_type type;
	union {
		struct files_opened opened;
		struct files_entry entry;
		struct files_event event;
		struct files_note note;
		struct files_done done;
		struct files_error error;
	};
	struct files_str path; /* ENTRY, EVENT, NOTE, ERROR */
	struct files_str to;   /* ENTRY: target; EVENT: new name; ERROR: destination */
	struct files_str text; /* NOTE, ERROR */
};

/**
 * files_frame_put() - write a frame to @out.
 * @out: FILES_FRAME_MAX_BYTES of room
 * @msg: strings that are too long are cut (names at FILES_NAME_MAX_BYTES, text at
 *	FILES_TEXT_MAX_BYTES); the lengths in the structs are filled in
 * Return: its length.
 */
size_t files_frame_put(u8 *out, const struct files_message *msg);

/**
 * files_frame_get() - take the first frame of @in apart.
 * Return: its length; 0: it is not complete yet; -EPROTONOSUPPORT (another version), -EPROTO
 * (malformed), -EMSGSIZE (too long).
 */
ssize_t files_frame_get(const u8 *in, size_t len_bytes, struct files_message *out);

#endif
