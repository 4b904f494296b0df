// SPDX-License-Identifier: Apache-2.0
/*
 * An archive on stdin into a folder, by libarchive. The archive is hostile.
 *
 * Three walls, each enough for the attacks that are known:
 *
 *   names     absolute ones and those with ".." are refused here, before anything is made
 *   libarchive's SECURE_* flags: no way through a link, whoever made it. Not with UNLINK, which
 *             would replace the link without a word
 *   the process can't reach anything outside: confine_to()
 *
 * A refused entry ends the extraction with an error. What came before it stays.
 *
 * What gives rights to others is dropped and told, unless the caller wants it: device nodes,
 * set-user-id bits, extended attributes security.* and trusted.*. The folder itself ("./") keeps
 * its owner and mode. Only root sets owners.
 */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "guest/files/files.h"

#define EXTRACT_FLAGS                                                                       \
	(ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_ACL |                \
	 ARCHIVE_EXTRACT_XATTR | ARCHIVE_EXTRACT_SPARSE | ARCHIVE_EXTRACT_SECURE_SYMLINKS | \
	 ARCHIVE_EXTRACT_SECURE_NODOTDOT | ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS)

struct tar_in {
	struct archive *tar, *disk;
	bool privileged;
	u64 bytes, count;
};

static int fail_archive(struct archive *from, const char *path, int otherwise)
{
	int error = archive_errno(from);

	return out_fail(error > 0 ? error : otherwise, path, NULL, archive_error_string(from));
}

/* Relative, and no component is "..". */
static bool name_ok(const char *name)
{
	if (!*name || *name == '/')
		return false;
	for (const char *at = name; *at; at += strspn(at, "/")) {
		size_t n = strcspn(at, "/");

		if (n == 2 && !memcmp(at, "..", 2))
			return false;
		at += n;
	}
	return true;
}

static bool name_is_top(const char *name)
{
	for (const char *at = name; *at; at += strspn(at, "/")) {
		size_t n = strcspn(at, "/");

		if (n != 1 || *at != '.')
			return false;
		at += n;
	}
	return true;
}

static bool xattr_is_privileged(const char *name)
{
	return !strncmp(name, "security.", 9) || !strncmp(name, "trusted.", 8);
}

static void drop_xattrs(struct archive_entry *entry, const char *path)
{
	const char *name;
	const void *value;
	size_t len_bytes;
	bool found = false;
	struct archive_entry *all;

	archive_entry_xattr_reset(entry);
	while (archive_entry_xattr_next(entry, &name, &value, &len_bytes) == ARCHIVE_OK)
		found |= xattr_is_privileged(name);
	if (!found)
		return;
	out_note(0, path, "its extended attributes security.* and trusted.* were dropped");
	all = archive_entry_clone(entry);
	archive_entry_xattr_clear(entry);
	archive_entry_xattr_reset(all);
	while (archive_entry_xattr_next(all, &name, &value, &len_bytes) == ARCHIVE_OK)
		if (!xattr_is_privileged(name))
			archive_entry_xattr_add_entry(entry, name, value, len_bytes);
	archive_entry_free(all);
}

/* Return: is the entry wanted at all? */
static bool filter(const struct tar_in *in, struct archive_entry *entry, const char *path)
{
	mode_t mode = archive_entry_perm(entry);

	switch (archive_entry_filetype(entry)) {
	case AE_IFSOCK:
		out_note(0, path, "a socket: left out");
		return false;
	case AE_IFCHR:
	case AE_IFBLK:
		if (in->privileged)
			break;
		out_note(0, path, "a device: left out");
		return false;
	default:
		break;
	}
	if (in->privileged)
		return true;
	if (mode & 06000) {
		out_note(0, path, "its set-user-id or set-group-id bit was dropped");
		archive_entry_set_perm(entry, mode & ~(mode_t)06000);
	}
	drop_xattrs(entry, path);
	return true;
}

/* Return: 0, or the exit status. */
static int put_content(struct tar_in *in, const char *path)
{
	const void *data;
	size_t len_bytes;
	la_int64_t offset;
	int r;

	for (;;) {
		r = archive_read_data_block(in->tar, &data, &len_bytes, &offset);
		if (r == ARCHIVE_EOF)
			return 0;
		if (r == ARCHIVE_RETRY)
			continue;
		if (r < ARCHIVE_WARN)
			return fail_archive(in->tar, path, EILSEQ);
		/* A failed write is no more than a warning to libarchive. */
		if (archive_write_data_block(in->disk, data, len_bytes, offset) < ARCHIVE_OK)
			return fail_archive(in->disk, path, EIO);
		in->bytes += len_bytes;
	}
}

/* Return: 0, or the exit status. */
static int put_entry(struct tar_in *in, struct archive_entry *entry)
{
	const char *path = archive_entry_pathname(entry), *link = archive_entry_hardlink(entry);
	int r;

	if (!path || !name_ok(path))
		return out_fail(EINVAL, path ? path : "", NULL,
				"an entry's name leads out of the folder");
	if (link && !name_ok(link))
		return out_fail(EINVAL, path, link, "a hard link leads out of the folder");
	if (name_is_top(path) || !filter(in, entry, path))
		return 0;
	r = archive_write_header(in->disk, entry);
	if (r < ARCHIVE_WARN)
		return fail_archive(in->disk, path, EINVAL);
	if (r < ARCHIVE_OK)
		out_note(MAX(archive_errno(in->disk), 0), path, archive_error_string(in->disk));
	in->count++;
	/* A hard link may bring content: libarchive writes it to what it is linked to. */
	r = archive_entry_size(entry) > 0 ? put_content(in, path) : 0;
	if (r)
		return r;
	r = archive_write_finish_entry(in->disk);
	if (r < ARCHIVE_WARN)
		return fail_archive(in->disk, path, EIO);
	if (r < ARCHIVE_OK)
		out_note(MAX(archive_errno(in->disk), 0), path, archive_error_string(in->disk));
	return 0;
}

/* What follows the archive's end: padding, and who sends it wants to get rid of it. */
static int drain(void)
{
	static u8 chunk[FILES_CHUNK_BYTES];

	for (;;) {
		ssize_t n = read(STDIN_FILENO, chunk, sizeof(chunk));

		if (n < 0 && errno != EINTR)
			return -errno;
		if (!n)
			return 0;
	}
}

static int put_all(struct tar_in *in, const char *top)
{
	struct archive_entry *entry;
	int r, status;

	for (;;) {
		r = archive_read_next_header(in->tar, &entry);
		if (r == ARCHIVE_EOF)
			break;
		if (r == ARCHIVE_RETRY)
			continue;
		/* A warning: a name that is not UTF-8, and bytes are what is wanted. */
		if (r < ARCHIVE_WARN)
			return fail_archive(in->tar, top, EILSEQ);
		status = put_entry(in, entry);
		if (status)
			return status;
		out_flush();
	}
	/* Folders get their times and modes now. */
	if (archive_write_close(in->disk) < ARCHIVE_WARN)
		return fail_archive(in->disk, top, EIO);
	r = drain();
	if (r)
		return out_fail(-r, top, NULL, NULL);
	return out_done(in->bytes, in->count);
}

int op_tar_in(char **args)
{
	struct tar_in in = {.privileged = arg_flags(args[1], "p")};
	struct stat st;
	int fd, err, status;

	fd = open(args[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return out_fail(errno, args[0], NULL, NULL);
	if (fstat(fd, &st))
		return out_fail(errno, args[0], NULL, NULL);
	err = confine_to(fd);
	if (err)
		return out_fail(-err, args[0], NULL, "can't confine the extraction to the folder");
	close(fd);
	in.tar = archive_read_new();
	in.disk = archive_write_disk_new();
	if (!in.tar || !in.disk)
		return out_fail(ENOMEM, args[0], NULL, NULL);
	archive_read_support_format_tar(in.tar);
	archive_read_support_format_empty(in.tar);
	archive_write_disk_set_options(in.disk,
				       EXTRACT_FLAGS | (geteuid() ? 0 : ARCHIVE_EXTRACT_OWNER));
	out_opened(&st, 0, -1);
	if (archive_read_open_fd(in.tar, STDIN_FILENO, FILES_CHUNK_BYTES) == ARCHIVE_OK)
		status = put_all(&in, args[0]);
	else
		status = fail_archive(in.tar, args[0], EILSEQ);
	/* Also after an error: folders that are there get their modes. */
	archive_write_free(in.disk);
	archive_read_free(in.tar);
	return status;
}
