/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots: a folder with manifest.json, state, memory, disk. snapshots/FORMAT.md is the
 * authority.
 *
 * Writing: into a temporary folder beside the target, every file and the folder synced, then
 * renamed; an interrupted write leaves the old one whole. Reading: state is checked (magic,
 * version, size, digest, section table, sizes) before any of it is used; manifest.json is bound to
 * it by digest; a memory or disk file of another size is refused. Nothing of a snapshot is trusted.
 */
#ifndef THAW_SNAPSHOT_SNAPSHOT_H
#define THAW_SNAPSHOT_SNAPSHOT_H

#include "vmm/snapshot/format.h"
#include "vmm/snapshot/manifest.h"
#include "vmm/snapshot/restore_opts.h"
#include "vmm/util/types.h"

struct snap_diff;
struct snap_hot;
struct vm;

/** A checked view of a state buffer; pointers into the buffer. */
struct snap_view {
	const struct snap_header *header;
	const struct snap_machine *machine;
	const struct snap_cpuid *cpuid;
	const struct snap_ioapic *ioapic;
	const struct snap_vcpu *vcpus[8];
	unsigned int nvcpus;
	const struct snap_virtio *devs[8];
	unsigned int ndevs;
};

/**
 * snap_parse() - check a whole state file in memory (pure: buffer in, views out; fuzzed).
 * @why: gets a static text that says what is wrong, for the message that names the file.
 *
 * Return: 0, -EINVAL (malformed), -EBADMSG (digest), -EPROTONOSUPPORT (unknown version).
 */
int __must_check snap_parse(const void *buf, size_t len_bytes, struct snap_view *view,
			    const char **why);

/** An open snapshot: everything a restore needs, checked. Keep it open while a VM made of it runs:
 * the memory and the disk are read through it. */
struct snap {
	char *path;
	int dirfd; /* holds a shared lock (flock(2)) on the folder */
	int memory_fd;
	int disk_fd; /* -1: none */
	int root_fd; /* the root image, -1: none */
	/* A diff: which pages `memory` holds, and where the others are. NULL for a whole snapshot.
	 */
	struct snap_diff *diff;
	struct snap *parent; /* open too, but for its disk and root image */
	void *state;	     /* the state file's bytes, owned */
	size_t state_len_bytes;
	struct snap_view view;
	struct snap_manifest manifest;
};

/**
 * snap_load() - open and check the folder @path: manifest, state, sizes of memory and disk, root
 * image's size, ownership and modes of all files; of a diff, the snapshots below it as well. For
 * tools (inspect, verify), which also work where the guest could not run. Return: 0 or -errno; logs
 * "PATH/FILE: reason" once. snap_close() frees, and is due in both cases.
 */
int __must_check snap_load(struct snap *snap, const char *path);

/**
 * snap_open() - snap_load(), and that this machine's CPU has what the guest was shown (vendor,
 * family/model/stepping and every CPUID feature bit). Return: as snap_load(); -ENOTSUP when the CPU
 * does not fit.
 */
int __must_check snap_open(struct snap *snap, const char *path);
void snap_close(struct snap *snap);

/** snap_verify() - read all of memory, disk and root image, and the memory of the snapshots below a
 * diff, and compare with the manifests' digests.
 * Return: 0, -EBADMSG, or -errno; logs "PATH/FILE: reason". */
int __must_check snap_verify(const struct snap *snap);

struct vm_config;

/** snap_vm_config() - the machine's shape (memory, vCPUs, root image, disk base) into @cfg; its
 * other fields stay. File descriptors remain @snap's. */
void snap_vm_config(const struct snap *snap, struct vm_config *cfg);

/**
 * snap_cpu_check() - can a guest made with @cpuid run where @host (KVM_GET_SUPPORTED_CPUID,
 * adjusted like a new VM's) is what KVM offers?
 * @why: buffer for the reason ("CPU model ... differs", "CPU feature ... is missing"). Return: 0 or
 * -ENOTSUP.
 */
int __must_check snap_cpu_check(const struct snap_cpuid *cpuid, const struct snap_cpuid *host,
				char *why, size_t why_bytes);

/**
 * snap_restore() - bring @vm (created by vm_init() with the snapshot's shape) to the point where it
 * can run: maps memory by the strategy, then vm_create(), vm_create_vcpus(), vm_create_devices(),
 * loads device, ioapic, clock and vCPU state in that order, then resumes every device. Fills
 * vm->clocks. With streams open at the snapshot the guest is told of a transport reset. The mailbox
 * is filled by the caller right before vm_run().
 *
 * Return: 0 or -errno (logged); vm_destroy() is due in both cases.
 */
int __must_check snap_restore(struct snap *snap, struct vm *vm, struct snap_restore_opts *opts);

/**
 * snap_restore_time() - a restored @vm that has waited before its first run: the clocks go on from
 * the snapshot once more, or the guest would see the wait as time that has passed. Return: 0 or
 * -errno (logged).
 */
int __must_check snap_restore_time(const struct snap *snap, struct vm *vm);

/** What snap_write() puts in the manifest beyond the machine's own state. */
struct snap_write_opts {
	const char *path; /* target folder; must not exist unless @replace */
	bool replace;
	const char *name;
	const char *kernel;
	const char *parent;	    /* or NULL */
	const char *root_image;	    /* absolute path, or NULL; with @base: NULL takes the base's */
	const struct snap *base;    /* snapshot the VM was restored from, or NULL */
	const struct snap_hot *hot; /* the snapshot's hot set, or NULL; not owned */
	/*
	 * For a process that is confined already (snap_write_prepare() after the system call
	 * filter): >= 0: the folder that @path, a plain name, is to stand in; owned by the writer,
	 * also on failure. Then there is no io_uring, and leftovers stay. 0: not given.
	 */
	int folder_fd;
	bool into;	/* with @folder_fd: that is the snapshot's own folder, empty, and nobody's
			   before the caller of this process gives it a place: no rename here,
			   and a diff's parent is not looked for */
	int pagemap_fd; /* with @folder_fd: /proc/self/pagemap, or -1; not owned */
	bool no_sync;	/* not to outlive this boot of the machine */
	bool diff;	/* keep only what differs from @base, which stands beside @path as
			   @parent */
	/** Asked last before publishing, if not NULL; false: it is not published (-ECANCELED). */
	bool (*wanted)(void *opaque);
	void *opaque;
};

struct snap_writer;

/**
 * snap_write_prepare() - before seccomp and jail: open the parent folder, make the temporary one,
 * open its files, digest the root image. Leftovers of interrupted writes of the same name go.
 * Strings of @opts are copied; opts->base must stay open. Return: 0 or -errno (logged).
 *
 * snap_write() - at the checkpoint, vCPUs stopped and devices quiesced: write everything and
 * publish. Return: 0 or -errno (logged as "PATH/FILE: reason"; the old snapshot is whole, and it
 * may be called again).
 *
 * snap_write_abort() - remove what was not published and free @writer (NULL is fine); due after any
 * outcome.
 */
int __must_check snap_write_prepare(const struct snap_write_opts *opts, struct snap_writer **out);
int __must_check snap_write(struct snap_writer *writer, struct vm *vm);
void snap_write_abort(struct snap_writer *writer);

/** snap_flatten() - replace the diff @snap by a whole snapshot of the same content and hot set; no
 * KVM needed. Its digest changes, so that diffs of it lose their parent: the caller has seen that
 * there are none.
 * @wanted, @opaque: as in struct snap_write_opts.
 * Return: 0 or -errno (logged). */
int __must_check snap_flatten(const struct snap *snap, bool (*wanted)(void *opaque), void *opaque);

#endif
