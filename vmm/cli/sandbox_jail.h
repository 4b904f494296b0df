/* SPDX-License-Identifier: Apache-2.0 */
/* Jails of sandboxes (vmm/jail): what their machines are told, and their snapshots. */
#ifndef THAW_CLI_SANDBOX_JAIL_H
#define THAW_CLI_SANDBOX_JAIL_H

#include "vmm/cli/sandbox.h"

#define SANDBOX_JAIL_WORDS 10

/** A machine's jail, and the words that it is told of it. */
struct sandbox_cell {
	struct jail jail;
	char uid[16], file_max[32], parents[PATH_MAX];
	char *root_image; /* owned */
};

/** sandbox_cell_open() - a jail with cgroup @name for a machine that is to run from @snapshot.
 * Return: 0 or -errno (logged); sandbox_cell_close() is due. */
int __must_check sandbox_cell_open(const struct state *state, const char *snapshot,
				   const char *name, const struct sandbox_jail *jail,
				   struct sandbox_cell *cell);
/** sandbox_cell_make() - a jail for @sb's machine, which is to run from @snapshot; its cgroup is
 * that of the sandbox, and is written down for sandbox_cell_remove(). Return: 0 or -errno (logged);
 * sandbox_cell_close() is due. */
int __must_check sandbox_cell_make(const struct state *state, const struct sandbox *sb,
				   const struct sandbox_jail *jail, struct sandbox_cell *cell);
/** sandbox_cell_words() - into @out, at most SANDBOX_JAIL_WORDS. Return: how many. */
size_t sandbox_cell_words(const struct sandbox_cell *cell, const char **out);
void sandbox_cell_close(struct sandbox_cell *cell);
/** sandbox_cell_remove() - the cgroup of sandbox @id, if it has one. */
void sandbox_cell_remove(const struct state *state, const char *id);

/** A folder that a jailed machine writes a snapshot into. */
struct sandbox_stage {
	u32 uid;       /* of the machine; 0: it is in no jail, and there is no stage */
	int parent_fd; /* templates/ */
	int fd;	       /* locked */
	char name[STATE_NAME_MAX + 1], temp[STATE_NAME_MAX + 16];
	char base[STATE_NAME_MAX + 1]; /* what the machine runs from... */
	u64 base_inode;		       /* ...and may be a diff of; 0: not */
	/* what the machine has open, by which its root image is known again */
	u64 open_dev[64], open_inode[64];
	unsigned int nopen;
	bool recovers; /* nothing is known of these; the base's root image has to do */
};

/** sandbox_stage_make() - for snapshot @name of the machine @pid. Return: 0 or -errno (logged);
 * sandbox_stage_drop() is due. */
int __must_check sandbox_stage_make(const struct state *state, const struct sandbox *sb, pid_t pid,
				    const char *name, struct sandbox_stage *stage);
/** sandbox_stage_fd() - what the machine gets: an fd of the caller's, or -errno (logged). */
int __must_check sandbox_stage_fd(const struct sandbox_stage *stage);
/** sandbox_stage_publish() - it is written: take it from the machine's user, look whether it is
 * what it should be, give it its place. @sync: it has to outlive this boot. Return: 0 or -errno
 * (logged). */
int __must_check sandbox_stage_publish(const struct state *state, struct sandbox_stage *stage,
				       bool sync);
/** sandbox_stage_recover() - @sb was being paused, its machine has ended, and so has who had it
 * paused: if the snapshot was written, it gets its place. Return: 0, -ENOENT (it was not), or
 * another -errno (logged). */
int __must_check sandbox_stage_recover(const struct state *state, const struct sandbox *sb);
/** sandbox_stage_drop() - what was not published is removed. */
void sandbox_stage_drop(struct sandbox_stage *stage);

#endif
