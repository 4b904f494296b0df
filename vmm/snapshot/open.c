// SPDX-License-Identifier: Apache-2.0
// Open a snapshot folder and check everything about it before anything of it is used.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/kvm/cpuid.h"
#include "vmm/kvm/layout.h"
#include "vmm/kvm/vm.h"
#include "vmm/snapshot/diff.h"
#include "vmm/snapshot/handed.h"
#include "vmm/util/kvmdev.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/*
 * Every file is opened once and checked through its descriptor, so what was checked is what is
 * used. A file of the folder has one name only: what is done to a copy made of links would be done
 * to the snapshot, and to all clones of it that run. The folder is locked (shared) as long as the
 * snapshot is open: a running clone reads its memory and disk from these files, so `thaw template
 * rm` takes the lock exclusively first.
 *
 * A diff's parent is looked for by its name beside the diff's own folder, whichever path that was
 * opened by, and is the right one only if its state file has the digest that the diff's manifest
 * names. That digest covers the parent's manifest, and so the digest of its memory and of its own
 * parent: the chain is bound from the top to the root. Digests of snapshots can't form a circle,
 * but made-up ones might, so the depth is bounded.
 */

u64 snap_memory_bytes(u64 ram_bytes)
{
	u64 high_bytes = layout_high_ram_bytes(ram_bytes);

	return high_bytes ? LAYOUT_HIGH_RAM_GPA + high_bytes : layout_low_ram_bytes(ram_bytes);
}

int snap_manifest_read(int dirfd, const char *path_for_messages, struct snap_manifest *out)
{
	char why[256] = "";
	size_t len_bytes;
	void *json;
	int ret;

	memset(out, 0, sizeof(*out));
	ret = snap_part_read(dirfd, path_for_messages, SNAP_FILE_MANIFEST, SNAP_MANIFEST_MAX_BYTES,
			     &json, &len_bytes);
	if (ret)
		return ret;
	ret = snap_manifest_parse(json, len_bytes, out, why, sizeof(why));
	if (ret)
		log_err("%s/%s: %s", path_for_messages, SNAP_FILE_MANIFEST, why);
	free(json);
	return ret;
}

/** open_folder() - @name from the folder @at_fd, as openat(2) takes them; @flags more for it. */
static int open_folder(struct snap *snap, int at_fd, const char *name, int flags)
{
	const bool handed = snap_handed_any();
	const char *why = NULL;
	struct stat st;
	int ret;

	snap->dirfd = handed ? snap_handed_folder(name)
			     : openat(at_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
	if (snap->dirfd < 0 || fstat(snap->dirfd, &st) < 0) {
		ret = -errno;
		log_err("%s: %s", snap->path,
			handed ? "was not handed over to the jail" : strerror(-ret));
		return handed ? -ENOENT : ret;
	}
	/* What was handed over was looked at by somebody who sees its owner. */
	why = handed ? NULL : snap_check_owner(&st);
	if (why) {
		log_err("%s: %s", snap->path, why);
		return -EPERM;
	}
	if (flock(snap->dirfd, LOCK_SH | LOCK_NB) < 0) {
		ret = errno == EWOULDBLOCK ? -EBUSY : -errno;
		log_err("%s: %s", snap->path,
			ret == -EBUSY ? "is being written or removed" : strerror(-ret));
		return ret;
	}
	return 0;
}

static int load_state(struct snap *snap)
{
	u8 digest[SNAP_DIGEST_BYTES];
	const char *why;
	int ret;

	ret = snap_part_read(snap->dirfd, snap->path, SNAP_FILE_STATE, SNAP_STATE_MAX_BYTES,
			     &snap->state, &snap->state_len_bytes);
	if (ret)
		return ret;
	ret = snap_parse(snap->state, snap->state_len_bytes, &snap->view, &why);
	if (ret) {
		log_err("%s/%s: %s", snap->path, SNAP_FILE_STATE, why);
		return ret;
	}
	snap_digest_buf(snap->manifest.json, snap->manifest.json_len_bytes, digest);
	if (memcmp(digest, snap->view.header->manifest_digest, sizeof(digest))) {
		log_err("%s/%s: digest mismatch: the file was changed or is damaged; build the template again",
			snap->path, SNAP_FILE_MANIFEST);
		return -EBADMSG;
	}
	return 0;
}

/** check_agreement() - manifest and state speak of the same machine. Return: NULL or what is wrong.
 */
static const char *check_agreement(const struct snap *snap)
{
	const struct snap_machine *machine = snap->view.machine;
	const struct snap_manifest *manifest = &snap->manifest;
	char vendor[13];

	if (manifest->vcpus != machine->nvcpus)
		return "vCPU count is not the one in the state file";
	if (manifest->memory_bytes != snap_memory_bytes(machine->ram_bytes))
		return "memory size is not the one in the state file";
	if (manifest->disk_bytes != machine->disk_bytes)
		return "disk size is not the one in the state file";
	if (!manifest->root_bytes != !machine->pmem_bytes ||
	    manifest->root_bytes > machine->pmem_bytes)
		return "root image size is not the one in the state file";
	snap_cpu_vendor(snap->view.cpuid, vendor);
	if (strcmp(vendor, manifest->cpu_vendor) ||
	    snap_cpu_signature(snap->view.cpuid) != manifest->cpu_signature)
		return "CPU is not the one in the state file";
	return NULL;
}

static int open_sized(struct snap *snap, const char *name, u64 want_bytes, int *fd)
{
	u64 len_bytes;
	int ret;

	ret = snap_part_open(snap->dirfd, snap->path, name, &len_bytes);
	if (ret < 0)
		return ret;
	*fd = ret;
	if (len_bytes == want_bytes)
		return 0;
	log_err("%s/%s: %s: it has %llu bytes, the snapshot was made with %llu", snap->path, name,
		len_bytes < want_bytes ? "truncated" : "changed", (unsigned long long)len_bytes,
		(unsigned long long)want_bytes);
	return -EINVAL;
}

/**
 * The manifest names any path of the host, and a hostile one would name a secret to have it mapped
 * into its guest: only what begins like a file system image is. Linux,
 * Documentation/filesystems/erofs.rst: the superblock.
 */
static bool is_erofs(int fd)
{
	const u32 magic = 0xe0f5e1e2;
	u32 found = 0;

	return fd_pread_full(fd, &found, sizeof(found), 1024) == 0 && found == magic;
}

static int open_root(struct snap *snap)
{
	const char *path = snap->manifest.root_image;
	const bool handed = snap_handed_any();
	u64 len_bytes = 0;
	const char *why;
	int ret;

	snap->root_fd = handed ? snap_handed_root(path)
			       : open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (snap->root_fd < 0) {
		ret = handed ? snap->root_fd : -errno;
		log_err("%s: root image %s: %s", snap->path, path, strerror(-ret));
		return ret;
	}
	/* Shared by all templates of an image, and its digest is in the manifest. */
	ret = snap_check_part(snap->root_fd, true, handed, &why, &len_bytes);
	if (ret) {
		log_err("%s: root image %s: %s", snap->path, path, why);
		return ret;
	}
	if (len_bytes != snap->manifest.root_bytes) {
		log_err("%s: root image %s: it has %llu bytes, the snapshot was made with %llu",
			snap->path, path, (unsigned long long)len_bytes,
			(unsigned long long)snap->manifest.root_bytes);
		return -EINVAL;
	}
	if (!is_erofs(snap->root_fd)) {
		log_err("%s: root image %s: not an erofs file system", snap->path, path);
		return -EINVAL;
	}
	return 0;
}

static void snap_init(struct snap *snap)
{
	memset(snap, 0, sizeof(*snap));
	snap->dirfd = snap->memory_fd = snap->disk_fd = snap->root_fd = -1;
}

/** load_memory() - what of an open folder makes up its memory, and the small files. */
static int load_memory(struct snap *snap)
{
	const char *why;
	int ret;

	ret = snap_manifest_read(snap->dirfd, snap->path, &snap->manifest);
	if (ret)
		return ret;
	ret = load_state(snap);
	if (ret)
		return ret;
	why = check_agreement(snap);
	if (why) {
		log_err("%s/%s: %s", snap->path, SNAP_FILE_MANIFEST, why);
		return -EINVAL;
	}
	ret = open_sized(snap, SNAP_FILE_MEMORY, snap->manifest.memory_bytes, &snap->memory_fd);
	return ret ? ret : snap_diff_open(snap);
}

/** parent_path() - for messages: the parent's folder beside that of @link. Return: NULL without
 * memory. */
static char *parent_path(const struct snap *link)
{
	const char *slash = strrchr(link->path, '/'), *name = link->manifest.parent;
	char *path;
	int ret;

	if (slash && slash[1] && slash[1] != '.')
		ret = asprintf(&path, "%.*s%s", (int)(slash + 1 - link->path), link->path, name);
	else
		ret = asprintf(&path, "%s/../%s", link->path, name);
	return ret < 0 ? NULL : path;
}

/** check_parent() - is the open @link->parent what @link was made from? */
static int check_parent(const struct snap *link)
{
	const struct snap *parent = link->parent;
	char hex[SNAP_DIGEST_HEX];

	snap_digest_hex(parent->view.header->digest, hex);
	if (strcmp(hex, link->manifest.diff_parent_state)) {
		log_err("%s: its parent '%s' is another snapshot than the one it was made from; build it again",
			link->path, link->manifest.parent);
		return -ESTALE;
	}
	if (parent->view.machine->ram_bytes != link->view.machine->ram_bytes) {
		log_err("%s: its parent '%s' has memory of another size", link->path,
			link->manifest.parent);
		return -EINVAL;
	}
	return 0;
}

static int open_parent(struct snap *link)
{
	char name[NAME_MAX + sizeof("../")];
	struct snap *parent = malloc(sizeof(*parent));
	int ret;

	if (!parent)
		return -ENOMEM;
	snap_init(parent);
	link->parent = parent;
	parent->path = parent_path(link);
	if (!parent->path)
		return -ENOMEM;
	/* The manifest's check has bounded the name, and no slash is in it. */
	snprintf(name, sizeof(name), "../%s", link->manifest.parent);
	if (!snap_handed_any() && faccessat(link->dirfd, name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 &&
	    errno == ENOENT) {
		log_err("%s: holds only what differs from its parent '%s', which is not there",
			link->path, link->manifest.parent);
		return -ENOENT;
	}
	ret = open_folder(parent, link->dirfd, name, O_NOFOLLOW);
	if (!ret)
		ret = load_memory(parent);
	return ret ? ret : check_parent(link);
}

static int open_chain(struct snap *snap)
{
	struct snap *link = snap;

	for (unsigned int depth = 1; link->diff; depth++) {
		int ret;

		if (depth == SNAP_CHAIN_MAX) {
			log_err("%s: the chain of its parents is longer than %d", snap->path,
				SNAP_CHAIN_MAX);
			return -ELOOP;
		}
		ret = open_parent(link);
		if (ret)
			return ret;
		link = link->parent;
	}
	return 0;
}

int snap_load(struct snap *snap, const char *path)
{
	int ret;

	snap_init(snap);
	snap->path = strdup(path);
	if (!snap->path)
		return -ENOMEM;
	ret = open_folder(snap, AT_FDCWD, path, 0);
	if (!ret)
		ret = load_memory(snap);
	if (!ret)
		ret = open_chain(snap);
	if (ret)
		return ret;
	if (snap->manifest.disk_bytes) {
		ret = open_sized(snap, SNAP_FILE_DISK, snap->manifest.disk_bytes, &snap->disk_fd);
		if (ret)
			return ret;
	}
	return snap->manifest.root_image ? open_root(snap) : 0;
}

/** check_host() - the guest's CPUID against what KVM would give a new VM of this shape here. */
static int check_host(const struct snap *snap)
{
	struct snap_cpuid *host;
	char why[256] = "";
	int kvm_fd, ret;

	kvm_fd = kvm_open();
	if (kvm_fd < 0) {
		ret = kvm_fd;
		log_err("/dev/kvm: %s", strerror(-ret));
		return ret;
	}
	ret = -ENOMEM;
	host = malloc(sizeof(*host));
	if (!host)
		goto out_close;
	ret = cpuid_supported(kvm_fd, snap->view.nvcpus, host);
	if (ret)
		goto out_free;
	ret = snap_cpu_check(snap->view.cpuid, host, why, sizeof(why));
	if (ret)
		log_err("%s/%s: %s; build the template on this machine", snap->path,
			SNAP_FILE_STATE, why);
out_free:
	free(host);
out_close:
	fd_close(&kvm_fd);
	return ret;
}

int snap_open(struct snap *snap, const char *path)
{
	int ret = snap_load(snap, path);

	return ret ? ret : check_host(snap);
}

static void close_one(struct snap *snap)
{
	snap_diff_free(snap->diff);
	snap->diff = NULL;
	snap_manifest_free(&snap->manifest);
	free(snap->state);
	free(snap->path);
	snap->state = NULL;
	snap->path = NULL;
	fd_close(&snap->memory_fd);
	fd_close(&snap->disk_fd);
	fd_close(&snap->root_fd);
	/* Last: it holds the lock. */
	fd_close(&snap->dirfd);
}

void snap_close(struct snap *snap)
{
	struct snap *parent = snap->parent;

	snap->parent = NULL;
	close_one(snap);
	while (parent) {
		struct snap *next = parent->parent;

		close_one(parent);
		free(parent);
		parent = next;
	}
}

void snap_vm_config(const struct snap *snap, struct vm_config *cfg)
{
	const struct snap_machine *machine = snap->view.machine;

	cfg->ram_bytes = machine->ram_bytes;
	cfg->nvcpus = machine->nvcpus;
	cfg->pmem_fd = snap->root_fd;
	cfg->pmem_bytes = machine->pmem_bytes;
	cfg->disk_base_fd = snap->disk_fd;
	cfg->disk_bytes = machine->disk_bytes;
}
