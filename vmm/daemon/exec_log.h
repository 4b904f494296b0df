/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's log of one exec's output: what readers of any speed, and thawd after a restart, take
 * it from.
 *
 * A cursor is an offset in the output payload, stdout and stderr together in the order in which
 * they came. The log is two files, PATH and PATH.old: when PATH has half of the cap it becomes
 * PATH.old, and the older half is given up. Each file is a header and records that are only ever
 * appended, so what a killed thawd leaves is whole up to a last record that may be cut;
 * exec_log_open() takes that one away. Nothing in them is trusted.
 *
 * Not locked: the owner's lock is held around every call.
 */
#ifndef THAW_DAEMON_EXEC_LOG_H
#define THAW_DAEMON_EXEC_LOG_H

#include <limits.h>
#include <sys/types.h>

#include "vmm/util/types.h"

#define EXEC_LOG_RECORD_MAX 65536u /* payload of one record */
#define EXEC_LOG_CAP_MIN    (4 * EXEC_LOG_RECORD_MAX)
#define EXEC_LOG_ROOM	    (4 * EXEC_LOG_RECORD_MAX)

enum exec_stream {
	EXEC_STDOUT = 1,
	EXEC_STDERR = 2,
};

struct exec_log_mark {
	u64 offset;
	u64 pos_bytes;
};

struct exec_log_seg {
	int fd;	  /* -1: not there */
	u64 base; /* offset of its first byte of output */
	u64 size_bytes;
	struct exec_log_mark *marks; /* one each 64 KiB of the file */
	size_t nmarks, marks_max;
};

struct exec_log {
	const char *path; /* the caller's; must outlive the log */
	u64 cap_bytes;
	struct exec_log_seg old, cur;
	u64 generation; /* counts the turns of PATH into PATH.old */
	u64 end;	/* offset behind the last byte */
	u64 count[3];	/* bytes so far by enum exec_stream, those given up included */
};

/** Where a reader was: saves the search. Zeroed at first. */
struct exec_log_hint {
	u64 generation, offset, pos_bytes;
	bool valid;
};

struct exec_log_chunk {
	enum exec_stream stream;
	u64 cursor;  /* of its first byte */
	u64 time_ns; /* CLOCK_REALTIME when it came */
	u64 skipped; /* bytes between the asked cursor and this that are no longer there */
	size_t len_bytes;
};

/** exec_log_init() - an empty log whose output begins at @base; files appear with the first
 * record. */
void exec_log_init(struct exec_log *log, const char *path, u64 cap_bytes, u64 base);

/**
 * exec_log_open() - what is there of it at @path, cut behind its last whole record.
 * Return: 0 (also when there is nothing: then as exec_log_init() with 0), or -errno.
 */
int __must_check exec_log_open(struct exec_log *log, const char *path, u64 cap_bytes);
/** exec_log_close() - the files stay. Safe twice. */
void exec_log_close(struct exec_log *log);
/** exec_log_remove() - close, and remove its files. */
void exec_log_remove(struct exec_log *log);

/** exec_log_skip() - output up to @offset is not to be had: the next record begins there. Nothing
 * happens when it is not ahead. */
void exec_log_skip(struct exec_log *log, u64 offset);

/** exec_log_append() - @len_bytes <= EXEC_LOG_RECORD_MAX. Return: 0 or -errno (nothing of it
 * counts then). */
int __must_check exec_log_append(struct exec_log *log, enum exec_stream stream, u64 time_ns,
				 const void *data, size_t len_bytes);

/** exec_log_oldest() - first offset that can be read; log->end when there is nothing. */
u64 exec_log_oldest(const struct exec_log *log);
/** exec_log_room() - would EXEC_LOG_ROOM bytes of records more give up nothing? */
bool exec_log_room(const struct exec_log *log);
/** exec_log_disk() - bytes of its files. */
u64 exec_log_disk(const struct exec_log *log);

/**
 * exec_log_read() - the next output of one stream at @cursor, or the first that is there behind it.
 * @hint: of this reader.
 * Return: bytes (chunk->len_bytes), 0: no more yet, -EIO: the file is damaged, or -errno.
 */
ssize_t exec_log_read(struct exec_log *log, u64 cursor, struct exec_log_hint *hint, void *buf,
		      size_t max_bytes, struct exec_log_chunk *chunk);

#endif
