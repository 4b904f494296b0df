/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes that stay: `thaw run -d` and what comes after it, without a daemon.
 *
 *   run/ID/ctl        control socket of its thaw-vmm (--ctl-listen)
 *   run/ID/vsock      streams to the guest
 *   run/ID/pid        "PID START BOOT": process id, its start time and the machine's boot id, so
 * that neither a new process of that number nor a reboot is taken for it run/ID/meta.json  what it
 * is: see struct sandbox run/ID/log        what its thaw-vmm says run/.lock         shared while
 * sandboxes are made or changed; exclusive to clean up
 *
 * Memory and disk of a fork or a pause stand as templates/snap.HEX, a diff beside its parent. Such
 * a snapshot is removed when nobody runs from it, no paused sandbox needs it and no other snapshot
 * stands on it.
 *
 * thawd's sandboxes have such folders as well, marked as its own ("owner" in meta.json): they are
 * no business of the commands that work without it, which neither find nor tidy them. A snapshot
 * that thawd keeps has a name in keep/ (sandbox_keep()).
 *
 * A command holds run/ID locked (flock, exclusive) while it changes a sandbox. Steps that a kill
 * can interrupt are announced in the state first ("pausing", "resuming"); whoever looks next
 * finishes or undoes them (sandbox_sweep.c).
 */
#ifndef THAW_CLI_SANDBOX_H
#define THAW_CLI_SANDBOX_H

#include "vmm/cli/state.h"
#include "vmm/cli/vmmproc.h"
#include "vmm/jail/jail.h"

#define SANDBOX_ID_CHARS    12
#define SANDBOX_SNAP_PREFIX "snap."
#define SANDBOX_SNAP_CHARS  (sizeof(SANDBOX_SNAP_PREFIX) - 1 + SANDBOX_ID_CHARS)

enum sandbox_state {
	SANDBOX_RUNNING,
	SANDBOX_PAUSING,  /* @next is being written; if it is there and the VMM is not: paused */
	SANDBOX_PAUSED,	  /* in @snapshot */
	SANDBOX_RESUMING, /* from @snapshot; if there is no VMM: paused */
	SANDBOX_DEAD,	  /* never written: running by its file, but the VMM is gone */
};

enum sandbox_jail_kind {
	SANDBOX_JAIL_NONE,
	SANDBOX_JAIL_FULL,
	SANDBOX_JAIL_NO_CGROUP, /* where the host has no cgroup v2 */
};

struct sandbox {
	char id[SANDBOX_ID_CHARS + 1];
	enum sandbox_state state;
	char template_name[STATE_NAME_MAX + 1]; /* the one it all began with */
	char snapshot[STATE_NAME_MAX + 1];	/* what it runs from: a template, or snap.HEX */
	char next[STATE_NAME_MAX + 1];		/* while it is pausing */
	char parent[SANDBOX_ID_CHARS + 1];	/* the sandbox it was forked from, or "" */
	char hostname[64];
	char created[32];	     /* UTC, RFC 3339 */
	bool thawd;		     /* belongs to thawd */
	enum sandbox_jail_kind jail; /* of its machine, now and after a resume */
	pid_t pid;		     /* of its thaw-vmm, if that lives, else 0 */
	int lock_fd;		     /* of its folder; -1: not locked */
};

const char *sandbox_state_name(enum sandbox_state state);

/** sandbox_jail_parse() - "full" or "no-cgroup". Return: false if @text is neither. */
bool sandbox_jail_parse(const char *text, enum sandbox_jail_kind *out);

/** sandbox_path() - "ROOT/run/ID/@file" into @out. */
void sandbox_path(const struct state *state, const char *id, const char *file, char out[PATH_MAX]);

/** sandbox_lock_all() - run/.lock; also makes run/. @exclusive: only if nobody has it (-EBUSY).
 * Return: an fd that holds it, or -errno (logged, but for -EBUSY). */
int __must_check sandbox_lock_all(const struct state *state, bool exclusive);

/** sandbox_new() - @sb's folder under a new id, locked; the other fields are the caller's. Return:
 * 0 or -errno (logged). */
int __must_check sandbox_new(const struct state *state, struct sandbox *sb);

/** sandbox_save() - write meta.json. Return: 0 or -errno (logged). */
int __must_check sandbox_save(const struct state *state, const struct sandbox *sb);

/** sandbox_save_pid() - of its thaw-vmm, which has just been started. Return: 0, -ESRCH (it has
 * ended already), or another -errno (logged). */
int __must_check sandbox_save_pid(const struct state *state, struct sandbox *sb, pid_t pid);

/** sandbox_load() - what is there of @id, and whether it lives; not locked. Return: 0 or -errno
 * (not logged). */
int __must_check sandbox_load(const struct state *state, const char *id, struct sandbox *sb);

/** sandbox_pidfd() - of its thaw-vmm. Return: an fd, -ESRCH if it does not live, or -errno. */
int __must_check sandbox_pidfd(const struct state *state, const char *id, pid_t *pid);

/** sandbox_find() - by the start of its id, which must be that of one alone; not one of thawd's.
 * Return: 0 or -errno (logged). */
int __must_check sandbox_find(const struct state *state, const char *prefix, struct sandbox *sb);

/** sandbox_find_locked() - the same, and lock it for a change. Return: as sandbox_find(), -EBUSY.
 */
int __must_check sandbox_find_locked(const struct state *state, const char *prefix,
				     struct sandbox *sb);
void sandbox_unlock(struct sandbox *sb);

/** sandbox_want_running() - Return: 0, or -EINVAL with a message that says what it is instead. */
int __must_check sandbox_want_running(const struct state *state, const struct sandbox *sb,
				      const char *verb);

/** Ids of all folders in run/, sorted. */
struct sandbox_ids {
	char (*ids)[SANDBOX_ID_CHARS + 1];
	size_t count;
};

/** sandbox_list() - Return: 0 (no folder yet counts as none) or -errno (logged); free() ids->ids.
 */
int __must_check sandbox_list(const struct state *state, struct sandbox_ids *ids);

/** sandbox_remove() - its folder and the files in it; @sb is locked. Return: 0 or -errno (logged).
 */
int __must_check sandbox_remove(const struct state *state, struct sandbox *sb);

/** sandbox_random_hex() - SANDBOX_ID_CHARS digits and a NUL. Return: 0 or -errno (logged). */
int __must_check sandbox_random_hex(char out[SANDBOX_ID_CHARS + 1]);

/** sandbox_is_snap() - is @name one of a snapshot that belongs to sandboxes? */
bool sandbox_is_snap(const char *name);

/** sandbox_keep() - snapshot @name stays, whoever runs from it or does not, until it is called with
 * !@keep. Return: 0 or -errno (logged). */
int __must_check sandbox_keep(const struct state *state, const char *name, bool keep);

/** sandbox_kept() - Return: was it called for @name? */
bool sandbox_kept(const struct state *state, const char *name);

/** sandbox_sweep() - remove what no one needs any more: entries of dead machines, snapshots, halves
 * of an interrupted step. Nothing happens while sandboxes are being made or changed. What can't be
 * removed is logged. Return: false: that was so. */
bool sandbox_sweep(const struct state *state);

/** sandbox_settled() - of a machine that lives: does its guest run, and will it go on? One that
 * serves a new owner has given up what the last one asked for. */
bool sandbox_settled(const struct state *state, const char *id);

/** sandbox_end_stray() - kill its machine if nobody wrote down its number: the command that started
 * it was killed right after. The listener says who it is. */
void sandbox_end_stray(const struct state *state, const char *id);

/** The jail of a sandbox's machine. */
struct sandbox_jail {
	struct jail_config config;
	struct jail_limits limits; /* all 0: what its snapshot's sizes call for */
};

/** How a sandbox is restored. */
struct sandbox_opts {
	const char *strategy;	  /* NULL: the default */
	const char *const *words; /* more options of `thaw-vmm restore`, NULL-terminated; or NULL */
	const char *console_path;
	/* NULL: the default one of the kind @sb->jail. Its cgroup is named by the sandbox's id */
	const struct sandbox_jail *jail;
	bool wait; /* do all but run: vmm->waiting comes, then vmmproc_begin() is due. Until then it
		      ends with this process */
	u64 hard_timeout_ms; /* without @wait; 0: none */
};

/** sandbox_start() - start its thaw-vmm from sb->snapshot. @vmm: vmmproc_release() leaves it alone,
 * vmmproc_end() ends it. Return: 0 or -errno (logged). */
int __must_check sandbox_start(const struct state *state, struct sandbox *sb,
			       const struct sandbox_opts *opts, struct vmmproc *vmm);

/** sandbox_wait_resumed() - until its guest is back from the checkpoint call. @why: buffer for what
 * went wrong. Return: 0 or -errno. */
int __must_check sandbox_wait_resumed(const struct state *state, const struct sandbox *sb,
				      struct vmmproc *vmm, char *why, size_t why_bytes);

/** sandbox_last_words() - the last line of its log, which says what went wrong, into @out; @out
 * stays as it is if there is none. */
void sandbox_last_words(const struct state *state, const struct sandbox *sb, char *out,
			size_t len_bytes);

/** sandbox_own() - control it. Return: 0 or -errno (logged). vmmproc_release() is due. */
int __must_check sandbox_own(const struct state *state, const struct sandbox *sb,
			     struct vmmproc *vmm);

/** sandbox_stream() - a stream to its shim. Return: the fd (the caller's) or -errno (logged). */
int __must_check sandbox_stream(const struct state *state, const struct sandbox *sb);
/** sandbox_stream_until() - the same. A guest that is deaf has until @deadline_ns (CLOCK_MONOTONIC,
 * -ETIMEDOUT), and no longer than until @stop_fd, if it is not -1, has hung up (-ECANCELED). */
int __must_check sandbox_stream_until(const struct state *state, const struct sandbox *sb,
				      u64 deadline_ns, int stop_fd);

/**
 * sandbox_snapshot() - have its machine written as a new snap.HEX, whose name comes into @name.
 * @ends: with the machine (pause), else it goes on (fork).
 * @vmm: its owner, see sandbox_own().
 *
 * Return: 0 or -errno (logged).
 */
int __must_check sandbox_snapshot(const struct state *state, const struct sandbox *sb,
				  struct vmmproc *vmm, bool ends,
				  const char name[STATE_NAME_MAX + 1]);

/** sandbox_snap_name() - a new name for one. Return: 0 or -errno (logged). */
int __must_check sandbox_snap_name(char name[STATE_NAME_MAX + 1]);

#endif
