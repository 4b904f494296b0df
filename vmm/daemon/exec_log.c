// SPDX-License-Identifier: Apache-2.0
// The host's log of one exec's output.
#include "vmm/daemon/exec_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define MAGIC	     0x31474f4c57414854ull /* "THAWLOG1" */
#define RECORD_MAGIC 0x5ec0u
#define MARK_BYTES   65536u

struct seg_head {
	u64 magic;
	u64 base;		  /* output before this file */
	u64 out_bytes, err_bytes; /* the same by stream */
};

struct record {
	u16 magic;
	u16 stream; /* enum exec_stream */
	u32 len_bytes;
	u64 offset;
	u64 time_ns;
};

_Static_assert(sizeof(struct seg_head) == 32 && sizeof(struct record) == 24, "file format");

static void seg_close(struct exec_log_seg *seg)
{
	fd_close(&seg->fd);
	free(seg->marks);
	*seg = (struct exec_log_seg){.fd = -1};
}

/* A mark that can't be had costs a longer search, nothing else. */
static void seg_mark(struct exec_log_seg *seg, u64 offset, u64 pos_bytes)
{
	struct exec_log_mark *more;
	size_t max;

	if (seg->nmarks && pos_bytes - seg->marks[seg->nmarks - 1].pos_bytes < MARK_BYTES)
		return;
	if (seg->nmarks == seg->marks_max) {
		max = seg->marks_max ? seg->marks_max * 2 : 4;
		more = realloc(seg->marks, max * sizeof(*more));
		if (!more)
			return;
		seg->marks = more;
		seg->marks_max = max;
	}
	seg->marks[seg->nmarks++] = (struct exec_log_mark){offset, pos_bytes};
}

static void old_path(const struct exec_log *log, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%.*s.old", PATH_MAX - 8, log->path);
}

void exec_log_init(struct exec_log *log, const char *path, u64 cap_bytes, u64 base)
{
	*log = (struct exec_log){
		.old.fd = -1,
		.cur.fd = -1,
		.end = base,
		.path = path,
	};
	log->cap_bytes = MAX(cap_bytes, (u64)EXEC_LOG_CAP_MIN);
}

void exec_log_close(struct exec_log *log)
{
	seg_close(&log->old);
	seg_close(&log->cur);
}

void exec_log_remove(struct exec_log *log)
{
	char old[PATH_MAX];

	exec_log_close(log);
	old_path(log, old);
	unlink(log->path);
	unlink(old);
}

/* Is this a record that can stand at @pos of a file of @size, behind output up to @end? */
static bool record_ok(const struct record *rec, u64 pos, u64 size, u64 end)
{
	return rec->magic == RECORD_MAGIC &&
	       (rec->stream == EXEC_STDOUT || rec->stream == EXEC_STDERR) && rec->len_bytes &&
	       rec->len_bytes <= EXEC_LOG_RECORD_MAX && rec->offset >= end &&
	       rec->offset < UINT64_MAX / 2 && rec->len_bytes <= size - pos - sizeof(*rec);
}

/* Read the file's records one after the other. Return: 0 with seg->size_bytes behind the last whole
 * one, or -errno. */
static int seg_scan(struct exec_log *log, struct exec_log_seg *seg, u64 size)
{
	u64 pos = sizeof(struct seg_head);
	struct record rec;
	int ret;

	while (pos + sizeof(rec) <= size) {
		ret = fd_pread_full(seg->fd, &rec, sizeof(rec), pos);
		if (ret)
			return ret;
		if (!record_ok(&rec, pos, size, log->end))
			break;
		seg_mark(seg, rec.offset, pos);
		log->end = rec.offset + rec.len_bytes;
		log->count[rec.stream] += rec.len_bytes;
		pos += sizeof(rec) + rec.len_bytes;
	}
	seg->size_bytes = pos;
	return 0;
}

/* Return: 1 when it is there, 0 when it is not (or holds nothing), or -errno. */
static int seg_open(struct exec_log *log, struct exec_log_seg *seg, const char *path)
{
	struct seg_head head;
	struct stat st;
	int ret;

	*seg = (struct exec_log_seg){.fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW)};
	if (seg->fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (fstat(seg->fd, &st) < 0) {
		ret = -errno;
		goto err;
	}
	ret = 0;
	if (!S_ISREG(st.st_mode) || (u64)st.st_size < sizeof(head))
		goto err;
	ret = fd_pread_full(seg->fd, &head, sizeof(head), 0);
	if (ret)
		goto err;
	if (head.magic != MAGIC || head.base < log->end || head.base >= UINT64_MAX / 2)
		goto err;
	log->end = seg->base = head.base;
	log->count[EXEC_STDOUT] = head.out_bytes;
	log->count[EXEC_STDERR] = head.err_bytes;
	ret = seg_scan(log, seg, (u64)st.st_size);
	if (ret)
		goto err;
	if (seg->size_bytes < (u64)st.st_size && ftruncate(seg->fd, (off_t)seg->size_bytes) < 0) {
		ret = -errno;
		goto err;
	}
	return 1;
err:
	seg_close(seg);
	return ret;
}

int exec_log_open(struct exec_log *log, const char *path, u64 cap_bytes)
{
	char old[PATH_MAX];
	int ret;

	exec_log_init(log, path, cap_bytes, 0);
	old_path(log, old);
	ret = seg_open(log, &log->old, old);
	if (ret >= 0)
		ret = seg_open(log, &log->cur, path);
	if (ret < 0) {
		log_err("%s: %s", path, strerror(-ret));
		exec_log_close(log);
		return ret;
	}
	return 0;
}

static int seg_create(struct exec_log *log)
{
	struct seg_head head = {
		.magic = MAGIC,
		.base = log->end,
		.out_bytes = log->count[EXEC_STDOUT],
		.err_bytes = log->count[EXEC_STDERR],
	};
	int fd = open(log->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	int ret;

	if (fd < 0)
		return -errno;
	ret = fd_pwrite_full(fd, &head, sizeof(head), 0);
	if (ret) {
		close(fd);
		return ret;
	}
	log->cur = (struct exec_log_seg){.fd = fd, .base = log->end, .size_bytes = sizeof(head)};
	return 0;
}

static int turn(struct exec_log *log)
{
	char old[PATH_MAX];

	old_path(log, old);
	if (rename(log->path, old) < 0)
		return -errno;
	seg_close(&log->old);
	log->old = log->cur;
	log->cur = (struct exec_log_seg){.fd = -1};
	log->generation++;
	return 0;
}

void exec_log_skip(struct exec_log *log, u64 offset)
{
	log->end = MAX(log->end, offset);
}

int exec_log_append(struct exec_log *log, enum exec_stream stream, u64 time_ns, const void *data,
		    size_t len_bytes)
{
	struct record rec = {
		.magic = RECORD_MAGIC,
		.stream = (u16)stream,
		.len_bytes = (u32)len_bytes,
		.offset = log->end,
		.time_ns = time_ns,
	};
	struct iovec iov[2] = {{&rec, sizeof(rec)}, {(void *)(uintptr_t)data, len_bytes}};
	size_t total = sizeof(rec) + len_bytes;
	ssize_t n;
	int ret;

	BUG_ON(!len_bytes || len_bytes > EXEC_LOG_RECORD_MAX);
	if (log->cur.fd >= 0 && log->cur.size_bytes + total > log->cap_bytes / 2) {
		ret = turn(log);
		if (ret)
			return ret;
	}
	if (log->cur.fd < 0) {
		ret = seg_create(log);
		if (ret)
			return ret;
	}
	n = pwritev(log->cur.fd, iov, 2, (off_t)log->cur.size_bytes);
	if (n != (ssize_t)total) {
		ret = n < 0 ? -errno : -ENOSPC;
		/* What is left of it must not look like a record if the next one is shorter. */
		if (n > 0 && ftruncate(log->cur.fd, (off_t)log->cur.size_bytes) < 0)
			log_err("%s: %s", log->path, strerror(errno));
		return ret;
	}
	seg_mark(&log->cur, log->end, log->cur.size_bytes);
	log->cur.size_bytes += total;
	log->end += len_bytes;
	log->count[stream] += len_bytes;
	return 0;
}

u64 exec_log_oldest(const struct exec_log *log)
{
	if (log->old.fd >= 0)
		return log->old.base;
	return log->cur.fd >= 0 ? log->cur.base : log->end;
}

bool exec_log_room(const struct exec_log *log)
{
	return log->old.fd < 0 || log->cur.fd < 0 ||
	       log->cur.size_bytes + EXEC_LOG_ROOM <= log->cap_bytes / 2;
}

u64 exec_log_disk(const struct exec_log *log)
{
	return log->old.size_bytes + log->cur.size_bytes;
}

/* The last mark at or before @cursor; the file's first record without one. */
static u64 seg_seek(const struct exec_log_seg *seg, u64 cursor)
{
	size_t low = 0, high = seg->nmarks;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (seg->marks[mid].offset <= cursor)
			low = mid + 1;
		else
			high = mid;
	}
	return low ? seg->marks[low - 1].pos_bytes : sizeof(struct seg_head);
}

/* Find the record that has @cursor, or the first one behind it. Return: 1, 0 when this file has
 * none, or -errno. */
static int seg_find(const struct exec_log_seg *seg, u64 cursor, u64 *pos, struct record *rec)
{
	int ret;

	while (*pos + sizeof(*rec) <= seg->size_bytes) {
		ret = fd_pread_full(seg->fd, rec, sizeof(*rec), *pos);
		if (ret)
			return ret;
		if (!record_ok(rec, *pos, seg->size_bytes, seg->base))
			return -EIO;
		if (rec->offset + rec->len_bytes > cursor)
			return 1;
		*pos += sizeof(*rec) + rec->len_bytes;
	}
	return 0;
}

ssize_t exec_log_read(struct exec_log *log, u64 cursor, struct exec_log_hint *hint, void *buf,
		      size_t max_bytes, struct exec_log_chunk *chunk)
{
	struct exec_log_seg *segs[2] = {&log->old, &log->cur};
	struct record rec;
	u64 pos, skip;
	int ret;

	*chunk = (struct exec_log_chunk){0};
	for (int i = 0; i < 2 && cursor < log->end && max_bytes; i++) {
		struct exec_log_seg *seg = segs[i];
		/* The current file is that of the present generation, the old one of the one
		 * before. */
		u64 generation = log->generation + (u64)i;

		if (seg->fd < 0)
			continue;
		if (hint->valid && hint->generation == generation && hint->offset == cursor)
			pos = hint->pos_bytes;
		else
			pos = seg_seek(seg, cursor);
		ret = seg_find(seg, cursor, &pos, &rec);
		if (ret < 0)
			return ret;
		if (!ret)
			continue;
		skip = cursor > rec.offset ? cursor - rec.offset : 0;
		chunk->stream = rec.stream;
		chunk->time_ns = rec.time_ns;
		chunk->cursor = rec.offset + skip;
		chunk->skipped = chunk->cursor - cursor;
		chunk->len_bytes = MIN(max_bytes, (size_t)(rec.len_bytes - skip));
		ret = fd_pread_full(seg->fd, buf, chunk->len_bytes, pos + sizeof(rec) + skip);
		if (ret)
			return ret == -ENODATA ? -EIO : ret;
		*hint = (struct exec_log_hint){generation, chunk->cursor + chunk->len_bytes, pos,
					       true};
		return (ssize_t)chunk->len_bytes;
	}
	return 0;
}
