/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `thaw pool` share. */
#ifndef THAW_CLI_POOL_INTERNAL_H
#define THAW_CLI_POOL_INTERNAL_H

#include "vmm/cli/pool.h"
#include "vmm/cli/sandbox.h"
#include "vmm/cli/vmmproc.h"

#define POOL_CLIENTS_MAX 16

struct pool_opts {
	const char *name;
	u32 size;
	bool populate;
	u64 idle_ns; /* 0: never shrink */
	bool status, json;
	enum sandbox_jail_kind jail;
};

/** A thaw-vmm that waits, or will. */
struct pool_shell {
	u64 serial; /* of the CTL_FORK */
	int ctl_fd;
	int pid_fd; /* -1 until the zygote has answered */
	pid_t pid;
	bool waiting;		       /* it has said so */
	struct proc_counters counters; /* once ready */
};

struct pool {
	struct pool_opts opts;
	struct state state;
	const char *strategy;
	int lock_fd;  /* the template's folder, shared; -1 */
	u64 dev, ino; /* of it: a template that was replaced is another one */
	int listen_fd, signal_fd;
	struct vmmproc zygote;
	bool zygote_ready;
	/* In the order of their making; ready is one with pid_fd >= 0 and waiting. */
	struct pool_shell shells[POOL_SIZE_MAX];
	u32 nshells;
	u64 last_serial;
	int clients[POOL_CLIENTS_MAX]; /* connected and silent so far; -1: free */
	unsigned int next_client;      /* whose place is taken when there is no other */
	u32 target;		       /* how many there are to be now: size, or 1 when idle */
	u32 at_once;		       /* how many may be under way */
	u64 hits, misses;
	u64 refill_ns, idle_ns, retry_ns; /* CLOCK_MONOTONIC; 0: now, never, now */
	u64 backoff_ns;
	bool announced; /* the first filling is done */
};

/** pool_shell_ready() - can it be handed out? */
static inline bool pool_shell_ready(const struct pool_shell *shell)
{
	return shell->pid_fd >= 0 && shell->waiting;
}

/** pool_count_ready() - how many can be handed out. */
u32 pool_count_ready(const struct pool *pool);

/** pool_lock() - lock the template, note which one it is. Return: 0 or -errno (logged). */
int __must_check pool_lock(struct pool *pool);

/** pool_template_changed() - is another template behind the name, or none? */
bool pool_template_changed(const struct pool *pool);

/**
 * pool_fill() - start the zygote or as many shells as are missing and may be made now.
 * Return: 0 or -errno (logged): this pool can't go on.
 */
int __must_check pool_fill(struct pool *pool, u64 now_ns);

/** pool_jail_start() - one more shell, in a jail. Return: 0 or -errno (logged). pool_jail_sweep() -
 * remove the cgroups of those that have ended. */
int __must_check pool_jail_start(struct pool *pool);
void pool_jail_sweep(const struct pool *pool);

/** pool_shell_receive() - its channel has something. Return: 0, or -errno: it is gone, and
 * pool_shell_drop() is due. */
int __must_check pool_shell_receive(struct pool_shell *shell);

/** pool_zygote_receive() - its channel has something. Return: 0, or -errno: it is gone, and
 * pool_zygote_drop() is due. */
int __must_check pool_zygote_receive(struct pool *pool);

/** pool_failed() - a shell or the zygote did not come up: the next try is later. Return: 0, or
 * -EIO: none ever did. */
int __must_check pool_failed(struct pool *pool, u64 now_ns);

/** pool_shell_forget() - number @index is someone else's now. pool_shell_drop() - it is to end. */
void pool_shell_forget(struct pool *pool, u32 index);
void pool_shell_drop(struct pool *pool, u32 index);

/** pool_zygote_drop() - with the shells that it has not made yet. */
void pool_zygote_drop(struct pool *pool);

/** pool_end_all() - every shell and the zygote are gone when it returns. */
void pool_end_all(struct pool *pool);

/** pool_serve() - until a signal says so. Return: 0 or -errno (logged). */
int __must_check pool_serve(struct pool *pool);

#endif
