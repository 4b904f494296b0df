/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorders of the hot set, behind one table. `thaw template build` starts a fresh clone for each
 * command it records; a recorder tells which pages that clone touched. A new one is one file with a
 * `const struct hot_recorder_ops`, an id in hot.h, and one line in hot_recorder.c.
 */
#ifndef THAW_CLI_HOT_RECORDER_H
#define THAW_CLI_HOT_RECORDER_H

#include <sys/types.h>

#include "vmm/snapshot/hot_set.h"

struct hot_bpf;

/** What a recorder works on, and its own things. */
struct hot_recorder {
	const struct hot_recorder_ops *ops;
	u64 ram_bytes, pmem_bytes; /* of the snapshot */
	const u8 *state_digest;
	int file_fd;	     /* pagemap: what thaw-vmm writes; -1 outside of a clone's life */
	struct hot_bpf *bpf; /* bpf: the loaded program, from open() to close() */
};

struct hot_recorder_ops {
	const char *name;
	enum snap_hot_recorder_id id;
	const char *summary; /* for help */
	/** Can it be had here? Return: 0, or -errno and a static text in *@why. */
	int (*probe)(const char **why);
	/** Once a build. Return: 0 or -errno (logged); close() is due in both cases. */
	int (*open)(struct hot_recorder *recorder);
	/** Before a clone's thaw-vmm is started. *@hot_fd: what it gets as --hot-fd, owned by the
	 * recorder, or -1. Return: 0 or -errno (logged). */
	int (*before)(struct hot_recorder *recorder, int *hot_fd);
	/** The thaw-vmm @pid exists, and waits for its request. Return: 0 or -errno (logged). */
	int (*started)(struct hot_recorder *recorder, pid_t pid);
	/** It has ended well. @out: empty, gets the pages; snap_hot_set_free() is due in both
	 * cases. Return: 0 or -errno (logged). */
	int (*after)(struct hot_recorder *recorder, struct snap_hot_set *out);
	void (*close)(struct hot_recorder *recorder);
};

/** hot_recorder_find() - by name; NULL = the default ("pagemap"). Return: NULL when there is none
 * of that name. */
const struct hot_recorder_ops *hot_recorder_find(const char *name);

/** hot_recorder_list() - all of them, NULL-terminated. */
const struct hot_recorder_ops *const *hot_recorder_list(void);

/** hot_recorder_name() - by the id in a file; "unknown" when there is none. */
const char *hot_recorder_name(u32 id);

extern const struct hot_recorder_ops hot_recorder_pagemap;
extern const struct hot_recorder_ops hot_recorder_bpf;

/*
 * The BPF program itself, apart from what it is used for, so that it can be tested without a
 * snapshot (hot_bpf.c).
 */

/** hot_bpf_open() - load it for guest addresses below @end_gpa, and attach it. Return: 0 or -errno
 * (logged). */
int __must_check hot_bpf_open(u64 end_gpa, struct hot_bpf **out);

/** hot_bpf_watch() - forget what was recorded; from now on, the faults of process @pid (as this
 * process sees it). */
void hot_bpf_watch(struct hot_bpf *bpf, pid_t pid);

/** hot_bpf_read() - pages of [@gpa, @gpa + @len_bytes) that faulted, to the end of @out.
 * @read_only: nothing there counts as written. Return: 0, -E2BIG or -ENOMEM. */
int __must_check hot_bpf_read(const struct hot_bpf *bpf, u64 gpa, u64 len_bytes, bool read_only,
			      struct snap_hot_set *out);

/** hot_bpf_close() - detach, unload, free; NULL is fine. */
void hot_bpf_close(struct hot_bpf *bpf);

#endif
