// SPDX-License-Identifier: Apache-2.0
/*
 * A folder as a pax archive on stdout, by libarchive.
 *
 * Names are bytes: without a locale libarchive can't convert one that is not ASCII, warns, and
 * writes it as it is, marked hdrcharset=BINARY. Owners are numbers, holes stay holes. What a tar
 * can't hold (sockets) and what went away while it was looked at is left out: told by FILES_NOTE,
 * and in the archive itself, for who only has that, in the comment of a global header at its end.
 * What can't be read is an error: an archive is whole or it is none.
 *
 * The folder itself comes last, so that an entry follows that header (there are readers that insist
 * on one), and its time is set when all is in it.
 *
 * A file's first bytes are read before its header is written, so that one that can't be opened has
 * no header.
 */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest/files/files.h"

#define TAR_BLOCK_BYTES	  512
#define COMMENT_MAX_BYTES 60000

struct tar_out {
	struct archive *disk, *tar;
	struct archive_entry_linkresolver *links;
	const char *top;	      /* as it was asked for */
	int top_fd;		      /* names are relative to it */
	struct archive_entry *folder; /* the top itself, to be written last */
	u64 bytes, count;
	size_t chunk_bytes;
	size_t comment_bytes;
	char comment[COMMENT_MAX_BYTES];
	u8 chunk[FILES_CHUNK_BYTES];
};

static int flush(struct tar_out *out)
{
	int err = out_data(out->chunk, out->chunk_bytes);

	out->bytes += out->chunk_bytes;
	out->chunk_bytes = 0;
	return err;
}

static int collect(struct tar_out *out, const u8 *data, size_t len_bytes)
{
	while (len_bytes) {
		size_t n = MIN(len_bytes, sizeof(out->chunk) - out->chunk_bytes);
		int err;

		memcpy(out->chunk + out->chunk_bytes, data, n);
		out->chunk_bytes += n;
		data += n;
		len_bytes -= n;
		err = out->chunk_bytes == sizeof(out->chunk) ? flush(out) : 0;
		if (err)
			return err;
	}
	return 0;
}

static la_ssize_t collect_for_archive(struct archive *archive, void *opaque, const void *data,
				      size_t len_bytes)
{
	int err = collect(opaque, data, len_bytes);

	if (err) {
		archive_set_error(archive, -err, "can't write the archive");
		return -1;
	}
	return (la_ssize_t)len_bytes;
}

static void leave_out(struct tar_out *out, int error, const char *path, const char *why)
{
	size_t left = sizeof(out->comment) - out->comment_bytes;
	int n;

	out_note(error, path, why);
	out_flush();
	n = snprintf(out->comment + out->comment_bytes, left, "\n%s: %s", path, why);
	if (n < 0 || (size_t)n >= left)
		return;
	for (char *at = out->comment + out->comment_bytes + 1; *at; at++)
		if (*at < ' ' || *at > '~')
			*at = '?';
	out->comment_bytes += (size_t)n;
}

/* "LENGTH comment=TEXT\n", where the length counts its own digits. */
static size_t comment_record(const struct tar_out *out, char *record, size_t room)
{
	static const char head[] = " comment=thaw left out:";
	size_t tail = sizeof(head) - 1 + out->comment_bytes + 1, total = tail + 1;

	while (total != tail + (size_t)snprintf(NULL, 0, "%zu", total))
		total = tail + (size_t)snprintf(NULL, 0, "%zu", total);
	return (size_t)snprintf(record, room, "%zu%s%.*s\n", total, head, (int)out->comment_bytes,
				out->comment);
}

/* A pax global header: readers that do not care skip it. */
static int put_comment(struct tar_out *out)
{
	static char record[COMMENT_MAX_BYTES + 100];
	static const u8 padding[TAR_BLOCK_BYTES];
	size_t len = comment_record(out, record, sizeof(record));
	char block[TAR_BLOCK_BYTES] = "pax_global_header";
	unsigned int sum = 0;
	int err;

	snprintf(block + 100, 8, "%07o", 0644);
	snprintf(block + 108, 8, "%07o", 0);
	snprintf(block + 116, 8, "%07o", 0);
	snprintf(block + 124, 12, "%011zo", len);
	snprintf(block + 136, 12, "%011o", 0);
	memset(block + 148, ' ', 8);
	block[156] = 'g';
	snprintf(block + 257, 6, "ustar");
	block[263] = '0';
	block[264] = '0';
	for (size_t i = 0; i < sizeof(block); i++)
		sum += (u8)block[i];
	snprintf(block + 148, 8, "%06o", sum);
	err = collect(out, (const u8 *)block, sizeof(block));
	if (!err)
		err = collect(out, (const u8 *)record, len);
	if (!err && len % TAR_BLOCK_BYTES)
		err = collect(out, padding, TAR_BLOCK_BYTES - len % TAR_BLOCK_BYTES);
	return err;
}

static int fail_archive(struct archive *from, const char *path)
{
	int error = archive_errno(from);

	return out_fail(error > 0 ? error : EIO, path, NULL, archive_error_string(from));
}

/* Holes are zeros here; the writer knows from the entry where they are, and leaves them out. */
static int put_zeros(struct tar_out *out, s64 count)
{
	static const u8 zeros[FILES_CHUNK_BYTES];

	while (count > 0) {
		size_t n = (size_t)MIN(count, (s64)sizeof(zeros));

		if (archive_write_data(out->tar, zeros, n) < 0)
			return -1;
		count -= (s64)n;
	}
	return 0;
}

/* The first block of @entry's content has been read already. */
static int put_content(struct tar_out *out, struct archive_entry *entry, const void *data,
		       size_t len_bytes, la_int64_t offset, int state)
{
	const char *path = archive_entry_pathname(entry);
	s64 done = 0;

	for (; state == ARCHIVE_OK || state == ARCHIVE_WARN;
	     state = archive_read_data_block(out->disk, &data, &len_bytes, &offset)) {
		if (put_zeros(out, offset - done) ||
		    archive_write_data(out->tar, data, len_bytes) < 0)
			return fail_archive(out->tar, path);
		done = offset + (s64)len_bytes;
	}
	if (state != ARCHIVE_EOF)
		return fail_archive(out->disk, path);
	/* The writer fills up with zeros, which must not pass for content. */
	if (MAX(done, offset) < archive_entry_size(entry))
		return out_fail(EIO, path, NULL, "the file became shorter while it was read");
	return 0;
}

/* Return: 0, or the exit status. */
static int put_entry(struct tar_out *out, struct archive_entry *entry)
{
	const char *path = archive_entry_pathname(entry);
	bool content = archive_entry_filetype(entry) == AE_IFREG && archive_entry_size(entry) > 0 &&
		       !archive_entry_hardlink(entry);
	const void *data = NULL;
	size_t len_bytes = 0;
	la_int64_t offset = 0;
	int state = ARCHIVE_EOF, r;

	if (content) {
		state = archive_read_data_block(out->disk, &data, &len_bytes, &offset);
		if (state < ARCHIVE_WARN && archive_errno(out->disk) == ENOENT) {
			leave_out(out, ENOENT, path, "it went away");
			return 0;
		}
		if (state < ARCHIVE_WARN)
			return fail_archive(out->disk, path);
	}
	r = archive_write_header(out->tar, entry);
	if (r < ARCHIVE_WARN)
		return fail_archive(out->tar, path);
	out->count++;
	if (content)
		r = put_content(out, entry, data, len_bytes, offset, state);
	if (content && r)
		return r;
	if (archive_write_finish_entry(out->tar) < ARCHIVE_WARN)
		return fail_archive(out->tar, path);
	return 0;
}

/*
 * Something could not even be looked at. libarchive says the name of a folder in its text alone,
 * and not why. Return: 0 when it has gone meanwhile, or the exit status.
 */
static int not_visited(struct tar_out *out, const char *path, bool fatal)
{
	static const char tail[] = ": Couldn't visit directory";
	const char *text = archive_error_string(out->disk);
	char *name = strdup(text ? text : ""), *end = name ? strstr(name, tail) : NULL;
	int error = archive_errno(out->disk), fd = -1, status;

	if (end && error <= 0) {
		*end = '\0';
		fd = openat(out->top_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		error = fd < 0 ? errno : EIO;
		if (fd >= 0)
			close(fd);
	}
	if (error == ENOENT && !fatal)
		status = 0;
	else
		status = out_fail(error,
				  end	 ? name
				  : path ? path
					 : out->top,
				  NULL, end ? NULL : text);
	free(name);
	return status;
}

static int put_found(struct tar_out *out, struct archive_entry *entry)
{
	struct archive_entry *spare = NULL;

	if (archive_entry_filetype(entry) == AE_IFSOCK) {
		leave_out(out, 0, archive_entry_pathname(entry), "a socket");
		return 0;
	}
	archive_entry_unset_atime(entry);
	archive_entry_unset_ctime(entry);
	if (!out->folder && !out->count && archive_entry_filetype(entry) == AE_IFDIR) {
		out->folder = archive_entry_clone(entry);
		return 0;
	}
	archive_entry_linkify(out->links, &entry, &spare);
	return entry ? put_entry(out, entry) : 0;
}

/* Return: 0, or the exit status. */
static int put_all(struct tar_out *out)
{
	struct archive_entry *entry = archive_entry_new();
	int r, status = 0;

	while (!status) {
		archive_entry_clear(entry);
		r = archive_read_next_header2(out->disk, entry);
		if (r == ARCHIVE_EOF)
			break;
		if (r < ARCHIVE_WARN) {
			status =
				not_visited(out, archive_entry_pathname(entry), r == ARCHIVE_FATAL);
			continue;
		}
		if (archive_read_disk_can_descend(out->disk))
			archive_read_disk_descend(out->disk);
		status = put_found(out, entry);
	}
	archive_entry_free(entry);
	return status;
}

static int finish(struct tar_out *out)
{
	int err = out->comment_bytes ? put_comment(out) : 0, status = 0;

	if (out->folder)
		status = put_entry(out, out->folder);
	if (status)
		return status;
	if (archive_write_close(out->tar) < ARCHIVE_WARN)
		return fail_archive(out->tar, out->top);
	if (!err)
		err = flush(out);
	if (err)
		return out_fail(-err, out->top, NULL, NULL);
	return out_done(out->bytes, out->count);
}

/* Goes to where the archive's names begin. Return: what to archive there, or NULL: *@err. */
static const char *enter(const char *path, const struct stat *st, int *err)
{
	const char *slash = strrchr(path, '/');
	char *parent;
	int fd;

	*err = 0;
	if (S_ISDIR(st->st_mode)) {
		fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		*err = fd < 0 ? -errno : confine_to(fd);
		return *err ? NULL : ".";
	}
	if (!slash)
		return path;
	parent = strndup(path, slash == path ? 1 : (size_t)(slash - path));
	if (!parent || chdir(parent))
		*err = -errno;
	free(parent);
	return *err ? NULL : slash + 1;
}

int op_tar_out(char **args)
{
	static struct tar_out out;
	const char *first;
	struct stat st;
	int err;

	out.top = args[0];
	if (stat(args[0], &st))
		return out_fail(errno, args[0], NULL, NULL);
	first = enter(args[0], &st, &err);
	if (!first)
		return out_fail(-err, args[0], NULL, NULL);
	if (S_ISSOCK(st.st_mode))
		return out_fail(EINVAL, args[0], NULL, "an archive can't hold a socket");
	out.top_fd = open(".", O_PATH | O_CLOEXEC);
	out.disk = archive_read_disk_new();
	out.tar = archive_write_new();
	out.links = archive_entry_linkresolver_new();
	if (!out.disk || !out.tar || !out.links)
		return out_fail(ENOMEM, args[0], NULL, NULL);
	/* Hybrid: the path that was asked for is followed, nothing below it is. */
	archive_read_disk_set_symlink_hybrid(out.disk);
	archive_read_disk_set_behavior(out.disk, ARCHIVE_READDISK_NO_TRAVERSE_MOUNTS |
							 ARCHIVE_READDISK_NO_FFLAGS);
	archive_write_set_format_pax(out.tar);
	archive_entry_linkresolver_set_strategy(out.links, archive_format(out.tar));
	/* Unbuffered: collect() does that. */
	archive_write_set_bytes_per_block(out.tar, 0);
	if (archive_write_open(out.tar, &out, NULL, collect_for_archive, NULL) != ARCHIVE_OK)
		return fail_archive(out.tar, args[0]);
	if (archive_read_disk_open(out.disk, first) != ARCHIVE_OK)
		return fail_archive(out.disk, args[0]);
	out_opened(&st, 0, -1);
	err = put_all(&out);
	return err ? err : finish(&out);
}
