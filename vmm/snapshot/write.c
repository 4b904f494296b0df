// SPDX-License-Identifier: Apache-2.0
// Write a snapshot: everything but what needs KVM (collect.c) and the folder's life (write_dir.c).
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/write.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"
#include "vmm/virtio/devices.h"

/*
 * Order: memory and disk first, since their digests stand in the manifest; the manifest next, since
 * its digest stands in the state file; the state file last.
 *
 * A guest whose checkpoint failed may ask again, and the files are still there (snap_write() may be
 * called until it succeeds): so each of them is written from nothing.
 *
 * Everything that can be had before the guest runs is had in snap_write_prepare(): folder, files,
 * ring, pagemap, the root image's digest. So a target that can't be written is known before minutes
 * of warm-up are spent on it, and the confined process needs few system calls.
 */

#define COPY_CHUNK_BYTES (256 * KIB)

static int copy_opts(struct snap_write_opts *out, const struct snap_write_opts *in)
{
	const char *root_image = in->root_image;

	if (!root_image && in->base)
		root_image = in->base->manifest.root_image;
	out->replace = in->replace;
	out->base = in->base;
	out->diff = in->diff;
	out->wanted = in->wanted;
	out->opaque = in->opaque;
	out->hot = in->hot;
	out->folder_fd = in->folder_fd;
	out->into = in->into;
	out->pagemap_fd = in->pagemap_fd;
	out->no_sync = in->no_sync;
	out->path = strdup(in->path);
	out->name = strdup(in->name);
	out->kernel = strdup(in->kernel ? in->kernel : "unknown");
	out->parent = in->parent ? strdup(in->parent) : NULL;
	out->root_image = root_image ? strdup(root_image) : NULL;
	if (!out->path || !out->name || !out->kernel || (in->parent && !out->parent) ||
	    (root_image && !out->root_image))
		return -ENOMEM;
	return 0;
}

static int digest_root(struct snap_writer *writer)
{
	const struct snap_manifest *base = writer->opts.base ? &writer->opts.base->manifest : NULL;
	const char *path = writer->opts.root_image;
	u8 digest[SNAP_DIGEST_BYTES];
	off_t end;
	int fd, ret;

	if (!path)
		return 0;
	if (base && base->root_image && !strcmp(base->root_image, path)) {
		writer->root_bytes = base->root_bytes;
		snprintf(writer->root_digest, sizeof(writer->root_digest), "%s", base->root_digest);
		return 0;
	}
	ret = -EINVAL;
	fd = path[0] == '/' ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0) {
		if (path[0] == '/')
			ret = -errno;
		log_err("root image %s: %s", path,
			path[0] == '/' ? strerror(-ret) : "not an absolute path");
		return ret;
	}
	end = lseek(fd, 0, SEEK_END);
	ret = end < 0 ? -errno : snap_digest_plain(fd, (u64)end, digest);
	fd_close(&fd);
	if (ret) {
		log_err("root image %s: %s", path, strerror(-ret));
		return ret;
	}
	writer->root_bytes = (u64)end;
	snap_digest_hex(digest, writer->root_digest);
	return 0;
}

int snap_write_prepare(const struct snap_write_opts *opts, struct snap_writer **out)
{
	struct snap_writer *writer = calloc(1, sizeof(*writer));
	int ret;

	if (!writer) {
		if (opts->folder_fd > 0)
			close(opts->folder_fd);
		return -ENOMEM;
	}
	writer->parent_fd = writer->temp_fd = writer->memory_fd = writer->disk_fd = -1;
	writer->state_fd = writer->manifest_fd = writer->pagemap_fd = -1;
	writer->diff_fd = writer->disk_source_fd = -1;
	if (opts->folder_fd > 0)
		writer->parent_fd = opts->folder_fd;
	ret = copy_opts(&writer->opts, opts);
	if (ret)
		goto err;
	ret = snap_writer_open(writer);
	if (ret)
		goto err;
	ret = snap_writer_diff_prepare(writer);
	if (ret)
		goto err;
	ret = digest_root(writer);
	if (ret)
		goto err;
	ret = ring_init(&writer->ring, BULK_DEPTH, &writer->memory_fd, 1,
			opts->folder_fd > 0 ? RING_PLAIN : RING_RESTRICT);
	if (ret)
		goto err;
	writer->ring_ready = true;
	*out = writer;
	if (opts->folder_fd > 0) {
		writer->pagemap_fd = opts->pagemap_fd;
		return 0;
	}
	writer->pagemap_fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (writer->pagemap_fd < 0)
		log_warn("/proc/self/pagemap: %s; the snapshot will look at every page of memory",
			 strerror(errno));
	return 0;
err:
	snap_write_abort(writer);
	return ret;
}

static int store_memory(struct snap_writer *writer, const struct gmem *gmem, u64 file_bytes,
			char digest_hex[SNAP_DIGEST_HEX])
{
	u8 digest[SNAP_DIGEST_BYTES];
	int ret;

	/* To nothing first: pages that an attempt before this one wrote and that are zero now are
	 * not written, and must be holes. */
	ret = ftruncate(writer->memory_fd, 0) < 0 ||
			      ftruncate(writer->memory_fd, (off_t)file_bytes) < 0
		      ? -errno
		      : 0;
	if (!ret && writer->opts.diff)
		ret = snap_writer_diff_store(writer, gmem, file_bytes, digest);
	else if (!ret)
		ret = snap_ram_write(&writer->ring, gmem, writer->pagemap_fd, writer->opts.base,
				     file_bytes, digest);
	if (!ret)
		snap_digest_hex(digest, digest_hex);
	if (ret)
		log_err("%s/%s: %s", writer->opts.path, SNAP_FILE_MEMORY, strerror(-ret));
	return ret;
}

/** copy_sparse() - the data of @from_fd into the empty @to_fd. */
static int copy_sparse(int to_fd, int from_fd, u64 file_bytes)
{
	u8 *buf = malloc(COPY_CHUNK_BYTES);
	u64 pos = 0, start, end;
	int ret = buf ? 0 : -ENOMEM;

	while (!ret && (ret = snap_extent_next(from_fd, file_bytes, pos, &start, &end)) > 0) {
		for (pos = start, ret = 0; pos < end && !ret;) {
			u64 len_bytes = MIN(end - pos, COPY_CHUNK_BYTES);

			ret = fd_pread_full(from_fd, buf, len_bytes, pos);
			if (!ret)
				ret = fd_pwrite_full(to_fd, buf, len_bytes, pos);
			pos += len_bytes;
		}
	}
	free(buf);
	return ret;
}

static int store_disk(struct snap_writer *writer, struct virtio_dev *blk, u64 disk_bytes,
		      char digest_hex[SNAP_DIGEST_HEX])
{
	u8 digest[SNAP_DIGEST_BYTES];
	int ret;

	ret = blk ? blk_write_image(blk, writer->disk_fd)
		  : copy_sparse(writer->disk_fd, writer->disk_source_fd, disk_bytes);
	/* An image ends with a hole as often as not. */
	if (!ret && ftruncate(writer->disk_fd, (off_t)disk_bytes) < 0)
		ret = -errno;
	if (!ret)
		ret = snap_digest_sparse(writer->disk_fd, disk_bytes, digest);
	if (!ret)
		snap_digest_hex(digest, digest_hex);
	if (ret)
		log_err("%s/%s: %s", writer->opts.path, SNAP_FILE_DISK, strerror(-ret));
	return ret;
}

/**
 * now_text() - RFC 3339 in UTC. By hand, because gmtime_r(3) and strftime(3) read /etc/localtime,
 * which a confined process can't. The calendar is counted from 1 March of year 0, so that the leap
 * day is the last of its year.
 */
static void now_text(char out[32])
{
	const u64 now = (u64)time(NULL);
	const u64 days = now / 86400 + 719468, secs = now % 86400;
	const u64 era = days / 146097, day_of_era = days % 146097;
	const u64 year_of_era =
		(day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
	const u64 day_of_year =
		day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
	const u64 shifted_month = (5 * day_of_year + 2) / 153;
	const u64 day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
	const u64 month = shifted_month < 10 ? shifted_month + 3 : shifted_month - 9;
	const u64 year = era * 400 + year_of_era + (month <= 2);

	snprintf(out, 32, "%04u-%02u-%02uT%02u:%02u:%02uZ", (unsigned int)year, (unsigned int)month,
		 (unsigned int)day, (unsigned int)(secs / 3600), (unsigned int)(secs / 60 % 60),
		 (unsigned int)(secs % 60));
}

/** store_file() - exactly these bytes, whatever an attempt before this one left. Return: 0 or
 * -errno. */
static int store_file(int fd, const void *buf, size_t len_bytes)
{
	if (ftruncate(fd, 0) < 0)
		return -errno;
	return fd_pwrite_full(fd, buf, len_bytes, 0);
}

/** store_manifest() - text, digest, file. The strings of the manifest are all borrowed. */
static int store_manifest(struct snap_writer *writer, const struct snap_view *parts,
			  char *memory_digest, char *disk_digest, u8 digest[SNAP_DIGEST_BYTES])
{
	char vendor[13], model[49], created[32], parent_state[SNAP_DIGEST_HEX];
	struct snap_manifest manifest = {
		.version = writer->opts.diff ? SNAP_VERSION_DIFF : SNAP_VERSION,
		.name = (char *)writer->opts.name,
		.kernel = (char *)writer->opts.kernel,
		.parent = (char *)writer->opts.parent,
		.vcpus = parts->machine->nvcpus,
		.cpu_vendor = vendor,
		.cpu_model = model,
		.cpu_signature = snap_cpu_signature(parts->cpuid),
		.root_image = (char *)writer->opts.root_image,
		.root_bytes = writer->root_bytes,
		.root_digest = writer->opts.root_image ? writer->root_digest : NULL,
		.memory_bytes = snap_memory_bytes(parts->machine->ram_bytes),
		.memory_digest = memory_digest,
		.disk_bytes = parts->machine->disk_bytes,
		.disk_digest = parts->machine->disk_bytes ? disk_digest : NULL,
		.created = created,
		.diff_parent_state = writer->opts.diff ? parent_state : NULL,
		.diff_digest = writer->opts.diff ? writer->diff_digest : NULL,
		.diff_pages = writer->diff_pages,
	};
	struct snap_manifest again;
	char why[160];
	int ret;

	snap_cpu_vendor(parts->cpuid, vendor);
	snap_cpu_model(parts->cpuid, model);
	now_text(created);
	if (writer->opts.diff)
		snap_digest_hex(writer->opts.base->view.header->digest, parent_state);
	ret = snap_manifest_print(&manifest, parts->cpuid);
	if (ret)
		goto out;
	/* A name, path or kernel release that a reader would refuse is found out now. */
	ret = snap_manifest_parse(manifest.json, manifest.json_len_bytes, &again, why, sizeof(why));
	if (ret) {
		log_err("%s/%s: %s", writer->opts.path, SNAP_FILE_MANIFEST, why);
		goto out;
	}
	snap_manifest_free(&again);
	snap_digest_buf(manifest.json, manifest.json_len_bytes, digest);
	ret = store_file(writer->manifest_fd, manifest.json, manifest.json_len_bytes);
	if (ret)
		log_err("%s/%s: %s", writer->opts.path, SNAP_FILE_MANIFEST, strerror(-ret));
out:
	free(manifest.json);
	return ret;
}

static int store_state(struct snap_writer *writer, const struct snap_view *parts,
		       const u8 manifest_digest[SNAP_DIGEST_BYTES], u8 digest[SNAP_DIGEST_BYTES])
{
	struct snap_view view;
	const char *why = "out of memory";
	size_t len_bytes;
	void *buf;
	int ret;

	ret = snap_build(parts, manifest_digest, &buf, &len_bytes);
	if (ret)
		goto out;
	/* What no reader would take is not published, whatever the reason. */
	ret = snap_parse(buf, len_bytes, &view, &why);
	if (!ret) {
		ret = store_file(writer->state_fd, buf, len_bytes);
		why = strerror(-ret);
	}
	if (!ret)
		memcpy(digest, view.header->digest, SNAP_DIGEST_BYTES);
	free(buf);
out:
	if (ret)
		log_err("%s/%s: %s", writer->opts.path, SNAP_FILE_STATE, why);
	return ret;
}

int snap_writer_store(struct snap_writer *writer, const struct snap_view *parts,
		      const struct gmem *gmem, struct virtio_dev *blk)
{
	char memory_digest[SNAP_DIGEST_HEX], disk_digest[SNAP_DIGEST_HEX] = "";
	const u64 disk_bytes = parts->machine->disk_bytes;
	u8 digest[SNAP_DIGEST_BYTES], state_digest[SNAP_DIGEST_BYTES];
	int ret;

	BUG_ON((blk || writer->disk_source_fd >= 0) != (disk_bytes != 0));
	ret = store_memory(writer, gmem, snap_memory_bytes(parts->machine->ram_bytes),
			   memory_digest);
	if (!ret && disk_bytes)
		ret = store_disk(writer, blk, disk_bytes, disk_digest);
	if (!ret)
		ret = store_manifest(writer, parts, memory_digest, disk_digest, digest);
	if (!ret)
		ret = store_state(writer, parts, digest, state_digest);
	if (!ret)
		ret = snap_writer_hot_store(writer, state_digest);
	if (!ret)
		ret = snap_writer_publish(writer, disk_bytes != 0);
	return ret;
}

void snap_write_abort(struct snap_writer *writer)
{
	if (!writer)
		return;
	if (writer->ring_ready && !writer->ring.inflight)
		ring_destroy(&writer->ring);
	if (writer->opts.folder_fd <= 0)
		fd_close(&writer->pagemap_fd);
	snap_mem_unmap(&writer->content);
	snap_writer_close(writer);
	free((char *)writer->opts.path);
	free((char *)writer->opts.name);
	free((char *)writer->opts.kernel);
	free((char *)writer->opts.parent);
	free((char *)writer->opts.root_image);
	free(writer);
}
