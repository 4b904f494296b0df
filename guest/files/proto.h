/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What thaw-files says to the host; README.md tells it in prose.
 *
 * stdout carries a file's or an archive's bytes as they are, stdin takes them. stderr carries
 * frames: an 8-byte header and a payload. Integers are little-endian; names are bytes, not text.
 * The last frame is FILES_DONE or FILES_ERROR, and the exit status 0 or 1 with it. The host treats
 * the guest as hostile.
 */
#ifndef THAW_FILES_PROTO_H
#define THAW_FILES_PROTO_H

#include <stdint.h>

#define FILES_PROTO_VERSION 1

#define FILES_NAME_MAX_BYTES	65535u /* a path in a frame: u16 */
#define FILES_TEXT_MAX_BYTES	512u   /* text of FILES_ERROR and FILES_NOTE */
#define FILES_PAYLOAD_MAX_BYTES 140000u
#define FILES_LIST_DEPTH_MAX	255u

/* Its own name: argv[0]; argv[1] is the operation. */
#define FILES_PROGRAM "thaw-files"

enum files_frame_type {
	FILES_OPENED = 1, /* struct files_opened: read and write have the file open, tar_out,
			     tar_in and watch the folder; data or events follow */
	FILES_ENTRY = 2,  /* struct files_entry + path + target: stat, lstat: one, path empty;
			     list: each one found */
	FILES_EVENT = 3,  /* struct files_event + path + to: watch */
	FILES_NOTE = 4,	  /* struct files_note + path + text: something was left out or changed */
	FILES_DONE = 5,	  /* struct files_done: last */
	FILES_ERROR = 6,  /* struct files_error + path + destination + text: last */
};

struct files_frame {
	uint32_t len_bytes; /* of the payload */
	uint8_t type;	    /* enum files_frame_type */
	uint8_t version;    /* FILES_PROTO_VERSION */
	uint16_t reserved;  /* 0 */
};

struct files_stat {
	uint64_t size_bytes;
	uint64_t inode;
	int64_t atime_s, mtime_s, ctime_s;
	uint32_t atime_ns, mtime_ns, ctime_ns; /* below 1e9 */
	uint32_t mode;			       /* st_mode: kind of file and permissions */
	uint32_t uid, gid;
	uint32_t links;
	uint32_t reserved; /* 0 */
};

enum files_opened_flags {
	/* a regular file whose size means something: exactly length_bytes follow, or the end is an
	 * error */
	FILES_SIZED = 1u << 0,
};

struct files_opened {
	struct files_stat stat;
	uint64_t offset_bytes; /* read: of the first byte that follows */
	uint64_t length_bytes; /* read, FILES_SIZED: so many follow */
	uint32_t flags;	       /* enum files_opened_flags */
	uint32_t reserved;
};

struct files_entry {
	struct files_stat stat;
	uint32_t error; /* list: what is in this folder could not be listed; 0: it could */
	uint16_t path_bytes, target_bytes;
};

enum files_event_kind {
	FILES_CREATED = 1,
	FILES_MODIFIED = 2,
	FILES_DELETED = 3,
	FILES_MOVED = 4, /* within what is watched: path, to */
	FILES_ATTRIB = 5,
	FILES_OVERFLOW = 6, /* events were lost; what is there now is watched */
};

struct files_event {
	uint32_t kind;	 /* enum files_event_kind */
	uint32_t folder; /* 1: it is about a folder */
	uint16_t path_bytes, to_bytes;
	uint32_t reserved;
};

struct files_note {
	uint32_t error; /* errno, or 0: it was left out on purpose */
	uint16_t path_bytes, text_bytes;
};

struct files_done {
	uint64_t bytes; /* read, write, tar_out: moved; tar_in: of the files' content */
	uint64_t count; /* list, tar_out, tar_in, remove: entries */
};

struct files_error {
	uint32_t error; /* 1 to 4095 */
	uint16_t path_bytes, destination_bytes, text_bytes, reserved;
};

_Static_assert(sizeof(struct files_frame) == 8, "wire format");
_Static_assert(sizeof(struct files_stat) == 72, "wire format");
_Static_assert(sizeof(struct files_opened) == 96, "wire format");
_Static_assert(sizeof(struct files_entry) == 80, "wire format");
_Static_assert(sizeof(struct files_event) == 16, "wire format");
_Static_assert(sizeof(struct files_note) == 8, "wire format");
_Static_assert(sizeof(struct files_done) == 16, "wire format");
_Static_assert(sizeof(struct files_error) == 12, "wire format");

#endif
