// SPDX-License-Identifier: Apache-2.0
/*
 * A folder as a pax archive on stdout, by libarchive.
 *
 * The walk is our own: each name is looked up in its open folder, without following a link, and a
 * folder's content stands right behind its entry, as unpackers that set its time and mode when they
 * leave it expect. libarchive says what is to be known of each file and writes it down.
 *
 * Names are bytes: without a locale libarchive can't convert one that is not ASCII, warns, and
 * writes it as it is, marked hdrcharset=BINARY. Owners are numbers, holes stay holes. What a tar
 * can't hold (sockets) and what went away while it was looked at is left out: told by FILES_NOTE,
 * and in the archive itself, for who only has that, in the comment of a global header at its end.
 * What can't be read is an error: an archive is whole or it is none.
 *
 * The folder itself comes last, so that an entry follows that header (there are readers that insist
 * on one).
 */
#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
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
	const char *top; /* as it was asked for */
	dev_t dev;	 /* of the top: other file systems are not entered */
	u64 bytes, count;
	size_t chunk_bytes;
	size_t comment_bytes;
	char comment[COMMENT_MAX_BYTES];
	size_t path_bytes;
	char path[FILES_NAME_MAX_BYTES + 1]; /* of what is under way */
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

/* Return: 0, or the exit status. */
static int put_block(struct tar_out *out, int fd, s64 offset, s64 len_bytes)
{
	static u8 chunk[FILES_CHUNK_BYTES];

	while (len_bytes > 0) {
		ssize_t n = pread(fd, chunk, (size_t)MIN(len_bytes, (s64)sizeof(chunk)), offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return out_fail(errno, out->path, NULL, NULL);
		/* The writer would fill up with zeros, which must not pass for content. */
		if (!n)
			return out_fail(EIO, out->path, NULL,
					"the file became shorter while it was read");
		if (archive_write_data(out->tar, chunk, (size_t)n) < 0)
			return fail_archive(out->tar, out->path);
		offset += n;
		len_bytes -= n;
	}
	return 0;
}

/* Return: 0, or the exit status. */
static int put_content(struct tar_out *out, struct archive_entry *entry, int fd)
{
	la_int64_t offset, len_bytes, size = archive_entry_size(entry), done = 0;
	int status;

	if (!archive_entry_sparse_reset(entry))
		return put_block(out, fd, 0, size);
	while (archive_entry_sparse_next(entry, &offset, &len_bytes) == ARCHIVE_OK) {
		if (put_zeros(out, offset - done))
			return fail_archive(out->tar, out->path);
		status = put_block(out, fd, offset, len_bytes);
		if (status)
			return status;
		done = offset + len_bytes;
	}
	return put_zeros(out, size - done) ? fail_archive(out->tar, out->path) : 0;
}

/* Return: 0, or the exit status. */
static int put_entry(struct tar_out *out, struct archive_entry *entry, int fd)
{
	bool content = archive_entry_filetype(entry) == AE_IFREG && archive_entry_size(entry) > 0 &&
		       !archive_entry_hardlink(entry);
	int status;

	if (archive_write_header(out->tar, entry) < ARCHIVE_WARN)
		return fail_archive(out->tar, out->path);
	out->count++;
	status = content ? put_content(out, entry, fd) : 0;
	if (status)
		return status;
	if (archive_write_finish_entry(out->tar) < ARCHIVE_WARN)
		return fail_archive(out->tar, out->path);
	return 0;
}

/* @name in @parent, open as @fd if it is a file or a folder. Return: 0, or the exit status. */
static int describe(struct tar_out *out, int parent, const char *name, int fd,
		    const struct stat *st)
{
	struct archive_entry *entry = archive_entry_new(), *left = entry, *spare = NULL;
	int status = 0;

	if (!entry)
		return out_fail(ENOMEM, out->path, NULL, NULL);
	archive_entry_copy_pathname(entry, out->path);
	/* Where libarchive has no call by fd it goes by this name, from here. */
	archive_entry_copy_sourcepath(entry, name);
	if (parent != AT_FDCWD && fchdir(parent)) {
		status = out_fail(errno, out->path, NULL, NULL);
	} else if (archive_read_disk_entry_from_file(out->disk, entry, fd, st) < ARCHIVE_WARN) {
		if (archive_errno(out->disk) == ENOENT)
			leave_out(out, ENOENT, out->path, "it went away");
		else
			status = fail_archive(out->disk, out->path);
		left = NULL;
	}
	if (!status && left) {
		archive_entry_unset_atime(entry);
		archive_entry_unset_ctime(entry);
		archive_entry_linkify(out->links, &left, &spare);
		status = left ? put_entry(out, left, fd) : 0;
	}
	archive_entry_free(entry);
	return status;
}

static int put_name(struct tar_out *out, int parent, const char *name);

/* Takes @fd. Return: 0, or the exit status. */
static int put_folder(struct tar_out *out, int fd)
{
	size_t path_bytes = out->path_bytes;
	DIR *dir = fdopendir(fd);
	int status = 0;

	if (!dir) {
		status = out_fail(errno, out->path, NULL, NULL);
		close(fd);
		return status;
	}
	while (!status) {
		struct dirent *entry;

		errno = 0;
		entry = readdir(dir);
		if (!entry && errno)
			status = out_fail(errno, out->path, NULL, NULL);
		if (!entry)
			break;
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (path_bytes + 1 + strlen(entry->d_name) >= sizeof(out->path)) {
			status = out_fail(ENAMETOOLONG, out->path, NULL, NULL);
			break;
		}
		out->path_bytes += (size_t)sprintf(out->path + path_bytes, "/%s", entry->d_name);
		status = put_name(out, dirfd(dir), entry->d_name);
		out->path_bytes = path_bytes;
		out->path[path_bytes] = '\0';
	}
	closedir(dir);
	return status;
}

/* Return: an fd, or -errno; -ENOENT: it went away or became something else. */
static int open_content(int parent, const char *name, struct stat *st)
{
	mode_t kind = st->st_mode & S_IFMT;
	int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	int err = 0;

	if (fd < 0)
		return errno == ELOOP ? -ENOENT : -errno;
	if (fstat(fd, st))
		err = -errno;
	else if ((st->st_mode & S_IFMT) != kind)
		err = -ENOENT;
	if (!err)
		return fd;
	close(fd);
	return err;
}

/* One name, and what is below it. Return: 0, or the exit status. */
static int put_name(struct tar_out *out, int parent, const char *name)
{
	int fd = -1, err = 0, status;
	struct stat st;

	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW))
		err = -errno;
	else if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
		err = fd = open_content(parent, name, &st);
	if (err == -ENOENT) {
		leave_out(out, ENOENT, out->path, "it went away");
		return 0;
	}
	if (err < 0)
		return out_fail(-err, out->path, NULL, NULL);
	if (S_ISSOCK(st.st_mode)) {
		leave_out(out, 0, out->path, "a socket");
		return 0;
	}
	status = describe(out, parent, name, fd, &st);
	if (!status && S_ISDIR(st.st_mode) && st.st_dev == out->dev)
		return put_folder(out, fd);
	if (fd >= 0)
		close(fd);
	return status;
}

static int finish(struct tar_out *out)
{
	int err = flush(out);

	if (err)
		return out_fail(-err, out->top, NULL, NULL);
	return out_done(out->bytes, out->count);
}

/* All that is in the folder, what was left out, the folder. Return: 0, or the exit status. */
static int put_top(struct tar_out *out, int fd, const struct stat *st)
{
	int err = confine_to(fd), below, status;

	if (err)
		return out_fail(-err, out->top, NULL, NULL);
	out->dev = st->st_dev;
	out->path_bytes = 1;
	memcpy(out->path, ".", 2);
	below = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (below < 0)
		return out_fail(errno, out->top, NULL, NULL);
	status = put_folder(out, below);
	if (!status && out->comment_bytes && (err = put_comment(out)))
		status = out_fail(-err, out->top, NULL, NULL);
	return status ? status : describe(out, fd, ".", fd, st);
}

static int start(struct tar_out *out)
{
	out->disk = archive_read_disk_new();
	out->tar = archive_write_new();
	out->links = archive_entry_linkresolver_new();
	if (!out->disk || !out->tar || !out->links)
		return out_fail(ENOMEM, out->top, NULL, NULL);
	archive_read_disk_set_symlink_physical(out->disk);
	archive_read_disk_set_behavior(out->disk, ARCHIVE_READDISK_NO_FFLAGS);
	archive_write_set_format_pax(out->tar);
	archive_entry_linkresolver_set_strategy(out->links, archive_format(out->tar));
	/* Unbuffered: collect() does that. */
	archive_write_set_bytes_per_block(out->tar, 0);
	if (archive_write_open(out->tar, out, NULL, collect_for_archive, NULL) != ARCHIVE_OK)
		return fail_archive(out->tar, out->top);
	return 0;
}

int op_tar_out(char **args)
{
	static struct tar_out out;
	const char *slash = strrchr(args[0], '/'), *name = slash ? slash + 1 : args[0];
	struct stat st;
	int fd, status;

	out.top = args[0];
	/* The path that was asked for is followed, nothing below it is. */
	fd = open(args[0], O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return out_fail(errno, args[0], NULL, NULL);
	if (fstat(fd, &st))
		return out_fail(errno, args[0], NULL, NULL);
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
		return out_fail(EINVAL, args[0], NULL, "neither a file nor a folder");
	status = start(&out);
	if (status)
		return status;
	out_opened(&st, 0, -1);
	snprintf(out.path, sizeof(out.path), "%s", name);
	status = S_ISDIR(st.st_mode) ? put_top(&out, fd, &st)
				     : describe(&out, AT_FDCWD, args[0], fd, &st);
	if (status)
		return status;
	if (archive_write_close(out.tar) < ARCHIVE_WARN)
		return fail_archive(out.tar, out.top);
	return finish(&out);
}
