// SPDX-License-Identifier: Apache-2.0
// What thaw-files says: frames on stderr, data on stdout.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "guest/files/files.h"

#define QUEUE_BYTES (2 * FILES_FRAME_MAX_BYTES)

static u8 queue[QUEUE_BYTES];
static size_t queued_bytes;

static int write_all(int fd, const u8 *data, size_t len_bytes)
{
	while (len_bytes) {
		ssize_t n = write(fd, data, len_bytes);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		data += n;
		len_bytes -= (size_t)n;
	}
	return 0;
}

void out_flush(void)
{
	/* Nobody can be told that telling does not work. */
	if (write_all(STDERR_FILENO, queue, queued_bytes))
		_exit(1);
	queued_bytes = 0;
}

void out_message(const struct files_message *msg)
{
	queued_bytes += files_frame_put(queue + queued_bytes, msg);
	/* What waits together goes together, but in pieces that a pipe takes at once. */
	if (queued_bytes >= FILES_CHUNK_BYTES)
		out_flush();
}

int out_data(const void *data, size_t len_bytes)
{
	return write_all(STDOUT_FILENO, data, len_bytes);
}

struct files_str str_of(const char *text)
{
	return (struct files_str){.bytes = text, .len_bytes = text ? strlen(text) : 0};
}

void stat_pack(const struct stat *from, struct files_stat *to)
{
	*to = (struct files_stat){
		.size_bytes = (u64)from->st_size,
		.inode = from->st_ino,
		.atime_s = from->st_atim.tv_sec,
		.mtime_s = from->st_mtim.tv_sec,
		.ctime_s = from->st_ctim.tv_sec,
		.atime_ns = (u32)from->st_atim.tv_nsec,
		.mtime_ns = (u32)from->st_mtim.tv_nsec,
		.ctime_ns = (u32)from->st_ctim.tv_nsec,
		.mode = from->st_mode,
		.uid = from->st_uid,
		.gid = from->st_gid,
		.links = (u32)from->st_nlink,
	};
}

void out_opened(const struct stat *st, u64 offset_bytes, s64 length_bytes)
{
	struct files_message msg = {.type = FILES_OPENED};

	stat_pack(st, &msg.opened.stat);
	msg.opened.offset_bytes = offset_bytes;
	if (length_bytes >= 0) {
		msg.opened.length_bytes = (u64)length_bytes;
		msg.opened.flags = FILES_SIZED;
	}
	out_message(&msg);
	out_flush();
}

void out_note(int error, const char *path, const char *text)
{
	struct files_message msg = {
		.type = FILES_NOTE,
		.note.error = (u32)error,
		.path = str_of(path),
		.text = str_of(text),
	};

	out_message(&msg);
}

int out_done(u64 bytes, u64 count)
{
	struct files_message msg = {.type = FILES_DONE};

	msg.done.bytes = bytes;
	msg.done.count = count;
	out_message(&msg);
	out_flush();
	return 0;
}

int out_fail(int error, const char *path, const char *to, const char *text)
{
	struct files_message msg = {
		.type = FILES_ERROR,
		.error.error = error > 0 ? (u32)error : EIO,
		.path = str_of(path),
		.to = str_of(to),
		.text = str_of(text ? text : strerror(error > 0 ? error : EIO)),
	};

	out_message(&msg);
	out_flush();
	return 1;
}
