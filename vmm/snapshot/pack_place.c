// SPDX-License-Identifier: Apache-2.0
// Import: from checked frames to a published snapshot.
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "vmm/snapshot/pack_in.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * A template is bound to its machine by two things: its name, and the path of the root image. Where
 * the image is already among this machine's images, at the manifest's path or where an earlier
 * import put it, with the right digest, it is used: all templates of one image share its pages. A
 * path that leads anywhere else is not followed: it is a stranger's. Else the image comes out of
 * the pack, into a folder that its digest names. If name or path change, the manifest does, and
 * with it the digests in `state` and `hot` that bind them to it; if neither does, all files come
 * out byte for byte as they were.
 *
 * Until the end the files have no names that anyone looks for: the folder is a temporary one and
 * the image an unnamed file. The image is published first, since an image without a template does
 * no harm, and a template without its image is broken. Then the temporary folder is opened like any
 * snapshot: what a restore would refuse is not published either.
 */

static int bad(const struct pack_in *in, int ret, const char *why)
{
	log_err("%s: %s", in->opts->from, why);
	return ret;
}

static int bad_file(const char *path, int ret)
{
	log_err("%s: %s", path, strerror(-ret));
	return ret;
}

/** check_small() - manifest, state and hot set, each by itself and that they belong together. The
 * rest is for check_whole(). */
static int check_small(struct pack_in *in)
{
	const struct pack_size *sizes = in->header.parts;
	struct snap *snap = &in->snap;
	u8 digest[SNAP_DIGEST_BYTES];
	char text[256] = "";
	const char *why;
	int ret;

	ret = snap_manifest_parse((const char *)in->small[PACK_MANIFEST],
				  sizes[PACK_MANIFEST].size_bytes, &snap->manifest, text,
				  sizeof(text));
	if (ret) {
		log_err("%s: " SNAP_FILE_MANIFEST ": %s", in->opts->from, text);
		return ret;
	}
	ret = snap_parse(in->small[PACK_STATE], sizes[PACK_STATE].size_bytes, &snap->view, &why);
	if (ret) {
		log_err("%s: " SNAP_FILE_STATE ": %s", in->opts->from, why);
		return ret;
	}
	snap_digest_buf(in->small[PACK_MANIFEST], sizes[PACK_MANIFEST].size_bytes, digest);
	if (memcmp(digest, snap->view.header->manifest_digest, sizeof(digest)) != 0)
		return bad(in, -EBADMSG,
			   SNAP_FILE_MANIFEST ": is not the one that " SNAP_FILE_STATE " names");
	if (memcmp(in->header.state_digest, snap->view.header->digest, SNAP_DIGEST_BYTES) != 0)
		return bad(in, -EINVAL, "header: of another snapshot");
	if (snap->manifest.diff_digest)
		return bad(in, -EINVAL, "holds a diff, which is no use without its parent");
	if (sizes[PACK_HOT].size_bytes) {
		struct snap_hot hot;

		ret = snap_hot_parse(in->small[PACK_HOT], sizes[PACK_HOT].size_bytes,
				     snap->view.machine->ram_bytes, snap->view.machine->pmem_bytes,
				     snap->view.header->digest, &hot, &why);
		if (ret) {
			log_err("%s: " SNAP_FILE_HOT ": %s", in->opts->from, why);
			return ret;
		}
	}
	if (sizes[PACK_MEMORY].size_bytes != snap->manifest.memory_bytes ||
	    sizes[PACK_DISK].size_bytes != snap->manifest.disk_bytes ||
	    (sizes[PACK_ROOT].size_bytes &&
	     sizes[PACK_ROOT].size_bytes != snap->manifest.root_bytes))
		return bad(in, -EINVAL, "header: a size is not the one in the manifest");
	return 0;
}

/** image_is_here() - is @path the root image, and one that a restore would take? */
static bool image_is_here(const struct snap_manifest *manifest, const char *path)
{
	u8 digest[SNAP_DIGEST_BYTES];
	char hex[SNAP_DIGEST_HEX];
	bool found = false;
	struct stat st;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return false;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && (u64)st.st_size == manifest->root_bytes &&
	    !(st.st_mode & (S_IWGRP | S_IWOTH)) && (!st.st_uid || st.st_uid == geteuid()) &&
	    !snap_digest_plain(fd, manifest->root_bytes, digest)) {
		snap_digest_hex(digest, hex);
		found = !strcmp(hex, manifest->root_digest);
	}
	fd_close(&fd);
	return found;
}

/** among_images() - does @path lead to something below the folder @images? */
static bool among_images(const char *path, const char *images)
{
	size_t len = strlen(images);

	return !strncmp(path, images, len) && path[len] == '/' && !strstr(path + len, "/../");
}

/** find_root() - where the root image is or will be; in the latter case an unnamed file for it. */
static int find_root(struct pack_in *in)
{
	const struct snap_manifest *manifest = &in->snap.manifest;
	char folder[PATH_MAX];

	if (!manifest->root_image)
		return 0;
	snprintf(in->root_path, PATH_MAX, "%s", manifest->root_image);
	if (among_images(in->root_path, in->opts->images) && image_is_here(manifest, in->root_path))
		return 0;
	if (snprintf(folder, PATH_MAX, "%s/%s", in->opts->images, manifest->root_digest) >=
		    PATH_MAX ||
	    snprintf(in->root_path, PATH_MAX, "%s/root.erofs", folder) >= PATH_MAX)
		return bad_file(in->opts->images, -ENAMETOOLONG);
	if (image_is_here(manifest, in->root_path))
		return 0;
	if (!in->header.parts[PACK_ROOT].size_bytes) {
		log_err("%s: the root image %s (XXH3-128 %s) is neither here nor in the pack; export the template with it",
			in->opts->from, manifest->root_image, manifest->root_digest);
		return -ENOENT;
	}
	in->root_fd = open(in->opts->images, O_TMPFILE | O_RDWR | O_CLOEXEC, 0444);
	if (in->root_fd < 0)
		return bad_file(in->opts->images, -errno);
	memcpy(in->root_folder, folder, strlen(folder) + 1);
	in->targets[PACK_ROOT].fd = in->root_fd;
	return 0;
}

static int check_space(const struct pack_in *in, int fd, u64 need_bytes)
{
	struct statvfs vfs;
	u64 free_bytes;

	if (fstatvfs(fd, &vfs) < 0)
		return bad(in, -errno, strerror(errno));
	free_bytes = (u64)vfs.f_bavail * vfs.f_frsize;
	if (need_bytes <= free_bytes)
		return 0;
	log_err("%s: holds %llu MiB, and only %llu MiB are free", in->opts->from,
		(unsigned long long)(need_bytes / MIB), (unsigned long long)(free_bytes / MIB));
	return -ENOSPC;
}

/** make_writer() - the temporary folder beside @path, and its files. */
static int make_writer(struct pack_in *in, const char *path)
{
	struct snap_writer *writer = calloc(1, sizeof(*writer));

	if (!writer)
		return bad(in, -ENOMEM, strerror(ENOMEM));
	in->writer = writer;
	writer->parent_fd = writer->temp_fd = writer->pagemap_fd = -1;
	writer->memory_fd = writer->disk_fd = writer->state_fd = writer->manifest_fd = -1;
	writer->diff_fd = -1;
	writer->opts.replace = in->opts->replace;
	writer->opts.wanted = in->opts->wanted;
	writer->opts.opaque = in->opts->opaque;
	writer->opts.path = strdup(path);
	if (!writer->opts.path)
		return bad(in, -ENOMEM, strerror(ENOMEM));
	return snap_writer_open(writer);
}

static int make_targets(struct pack_in *in)
{
	for (unsigned int part = PACK_FIRST_FILE; part < PACK_PARTS; part++) {
		struct pack_target *target = &in->targets[part];
		int ret;

		if (target->fd < 0 || !in->header.parts[part].size_bytes)
			continue;
		if (ftruncate(target->fd, (off_t)in->header.parts[part].size_bytes) < 0)
			return bad(in, -errno, strerror(errno));
		ret = ring_init(&target->ring, BULK_DEPTH, &target->fd, 1, RING_RESTRICT);
		if (ret)
			return ret;
		target->ring_ready = true;
	}
	return 0;
}

int pack_place(struct pack_in *in)
{
	const struct pack_size *sizes = in->header.parts;
	u64 need_bytes = sizes[PACK_MEMORY].data_bytes + sizes[PACK_DISK].data_bytes;
	char path[PATH_MAX];
	int ret;

	in->snap.path = (char *)in->opts->from;
	in->snap.state = in->small[PACK_STATE];
	ret = check_small(in);
	if (!ret)
		ret = in->opts->place(in->opts->opaque, &in->snap.manifest, path, &in->name);
	if (!ret)
		ret = make_writer(in, path);
	if (!ret)
		ret = find_root(in);
	if (ret)
		return ret;
	in->targets[PACK_MEMORY].fd = in->writer->memory_fd;
	in->targets[PACK_DISK].fd = in->writer->disk_fd;
	/* Two file systems are rare, and each is asked for its own share then by ENOSPC. */
	if (in->root_fd >= 0)
		need_bytes += sizes[PACK_ROOT].data_bytes;
	ret = check_space(in, in->writer->temp_fd, need_bytes);
	return ret ? ret : make_targets(in);
}

/** check_content() - a file's digest against the manifest's. */
static int check_content(const struct pack_in *in, const char *name, int ret, const u8 *digest,
			 const char *want)
{
	char hex[SNAP_DIGEST_HEX];

	if (ret)
		return bad(in, ret, strerror(-ret));
	snap_digest_hex(digest, hex);
	if (!strcmp(hex, want))
		return 0;
	log_err("%s: %s: digest mismatch: the pack was changed or is damaged", in->opts->from,
		name);
	return -EBADMSG;
}

static int check_contents(const struct pack_in *in)
{
	const struct snap_manifest *manifest = &in->snap.manifest;
	u8 digest[SNAP_DIGEST_BYTES];
	int ret;

	ret = snap_digest_sparse(in->writer->memory_fd, manifest->memory_bytes, digest);
	ret = check_content(in, SNAP_FILE_MEMORY, ret, digest, manifest->memory_digest);
	if (!ret && manifest->disk_bytes) {
		ret = snap_digest_sparse(in->writer->disk_fd, manifest->disk_bytes, digest);
		ret = check_content(in, SNAP_FILE_DISK, ret, digest, manifest->disk_digest);
	}
	if (ret || in->root_fd < 0)
		return ret;
	ret = snap_digest_plain(in->root_fd, manifest->root_bytes, digest);
	return check_content(in, "root image", ret, digest, manifest->root_digest);
}

/** publish_root() - the unnamed file gets its name. */
static int publish_root(struct pack_in *in)
{
	int fd, ret;

	if (in->root_fd < 0)
		return 0;
	if (fsync(in->root_fd) < 0)
		return bad_file(in->root_path, -errno);
	ret = fd_link_into(in->root_fd, in->root_folder, in->root_path);
	/* Another import of the same image was faster. */
	if (ret == -EEXIST && image_is_here(&in->snap.manifest, in->root_path))
		ret = 0;
	if (ret)
		return bad_file(in->root_path, ret);
	fd = open(in->root_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		ret = bad_file(in->root_folder, -errno);
	fd_close(&fd);
	return ret;
}

/** new_manifest() - the manifest's text with this machine's name and image. @out: the caller frees
 * it. */
static int new_manifest(const struct pack_in *in, char **out)
{
	const struct snap_manifest *manifest = &in->snap.manifest;
	json_t *root = json_loadb(manifest->json, manifest->json_len_bytes, 0, NULL);
	struct snap_manifest again;
	char *text = NULL;
	int ret = -ENOMEM;

	*out = NULL;
	if (!root || json_object_set_new(root, "name", json_string(in->name)) ||
	    (manifest->root_image &&
	     json_object_set_new(root, "root_image", json_string(in->root_path))))
		goto out;
	text = json_dumps(root, JSON_INDENT(2) | JSON_ENSURE_ASCII);
	if (!text || asprintf(out, "%s\n", text) < 0)
		goto out;
	ret = snap_manifest_parse(*out, strlen(*out), &again, NULL, 0);
	if (!ret)
		snap_manifest_free(&again);
out:
	free(text);
	json_decref(root);
	return ret;
}

static int write_hot(const struct pack_in *in, const void *buf, size_t len_bytes)
{
	int fd = openat(in->writer->temp_fd, SNAP_FILE_HOT,
			O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	int ret = fd < 0 ? -errno : fd_write_full(fd, buf, len_bytes);

	if (!ret && (fchmod(fd, 0400) < 0 || fsync(fd) < 0))
		ret = -errno;
	fd_close(&fd);
	return ret;
}

/** rebind() - state and hot set belong to a manifest with digest @digest from now on. */
static void rebind(struct pack_in *in, const u8 digest[SNAP_DIGEST_BYTES])
{
	struct snap_header *state = (struct snap_header *)in->small[PACK_STATE];
	struct snap_hot_header *hot = (struct snap_hot_header *)in->small[PACK_HOT];
	const size_t hot_bytes = in->header.parts[PACK_HOT].size_bytes;

	memcpy(state->manifest_digest, digest, SNAP_DIGEST_BYTES);
	snap_digest_state(state, in->header.parts[PACK_STATE].size_bytes, state->digest);
	if (!hot_bytes)
		return;
	memcpy(hot->state_digest, state->digest, SNAP_DIGEST_BYTES);
	memset(hot->digest, 0, SNAP_DIGEST_BYTES);
	snap_digest_buf(hot, hot_bytes, hot->digest);
}

/** write_small() - manifest, state and hot set into the temporary folder. */
static int write_small(struct pack_in *in)
{
	const struct snap_manifest *manifest = &in->snap.manifest;
	const struct pack_size *sizes = in->header.parts;
	const char *json = manifest->json;
	u8 digest[SNAP_DIGEST_BYTES];
	char *changed = NULL;
	int ret = 0;

	if (strcmp(in->name, manifest->name) != 0 ||
	    (manifest->root_image && strcmp(in->root_path, manifest->root_image) != 0)) {
		ret = new_manifest(in, &changed);
		if (ret)
			goto out;
		json = changed;
		snap_digest_buf(json, strlen(json), digest);
		rebind(in, digest);
	}
	ret = fd_write_full(in->writer->manifest_fd, json, strlen(json));
	if (!ret)
		ret = fd_write_full(in->writer->state_fd, in->small[PACK_STATE],
				    sizes[PACK_STATE].size_bytes);
	if (!ret && sizes[PACK_HOT].size_bytes)
		ret = write_hot(in, in->small[PACK_HOT], sizes[PACK_HOT].size_bytes);
out:
	free(changed);
	return ret ? bad_file(in->writer->opts.path, ret) : 0;
}

/** check_whole() - would a restore open the temporary folder? */
static int check_whole(const struct pack_in *in)
{
	struct snap_writer *writer = in->writer;
	const size_t parent_len = (size_t)(writer->target - writer->opts.path);
	char path[PATH_MAX];
	struct snap snap;
	int ret;

	/* A reader's lock beside ours; nobody else gets an exclusive one. */
	if (flock(writer->temp_fd, LOCK_SH) < 0)
		return bad_file(writer->opts.path, -errno);
	if (snprintf(path, PATH_MAX, "%.*s%s", (int)parent_len, writer->opts.path, writer->temp) >=
	    PATH_MAX)
		return bad_file(writer->opts.path, -ENAMETOOLONG);
	ret = snap_load(&snap, path);
	snap_close(&snap);
	if (ret)
		return bad(in, ret, "holds no usable snapshot (above)");
	return flock(writer->temp_fd, LOCK_EX) < 0 ? bad_file(writer->opts.path, -errno) : 0;
}

int pack_publish(struct pack_in *in)
{
	int ret;

	ret = check_contents(in);
	if (!ret)
		ret = publish_root(in);
	if (!ret)
		ret = write_small(in);
	if (!ret)
		ret = check_whole(in);
	return ret ? ret : snap_writer_publish(in->writer, in->snap.manifest.disk_bytes != 0);
}

void pack_unplace(struct pack_in *in)
{
	for (unsigned int part = 0; part < PACK_PARTS; part++) {
		struct pack_target *target = &in->targets[part];

		if (target->ring_ready && !target->ring.inflight)
			ring_destroy(&target->ring);
		target->ring_ready = false;
	}
	fd_close(&in->root_fd);
	snap_write_abort(in->writer);
	in->writer = NULL;
	snap_manifest_free(&in->snap.manifest);
}
