/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim: one thread; everything hangs off one struct shim.
 *
 * loop.c has epoll, accepting, reaping and timers; log.c the log.
 */
#ifndef THAW_SHIM_SHIM_H
#define THAW_SHIM_SHIM_H

#include <sys/resource.h>

#include "guest/shim/conn.h"

/** Commands at once. */
#define SHIM_EXEC_MAX 128u
/**
 * Places of connections: commands that run, kept ones that have ended, and for streams that are
 * neither (yet) as many as always remain. Each place is 8 fds at most.
 */
#define SHIM_CONN_MAX (SHIM_EXEC_MAX + SHIM_KEPT_ENDED_MAX + 64u)
/** Connections to ports of the guest at once; 2 fds each. */
#define SHIM_TUNNEL_MAX 256u
/** The shim's own limit. */
#define SHIM_NOFILE 4096u
/** Ended connections whose memory is kept, so that it is warm for the next. */
#define SHIM_CONN_WARM 2u

struct shim {
	int epoll_fd, signal_fd, listen_fd, null_fd;
	int thaw_fd;	/* /dev/thaw; -1: none */
	int cgroup_fd;	/* where exec-N are made; -1: process groups instead (tests only) */
	int scratch_fd; /* root of the scratch file system, for its end; -1: none */
	int files_fd;	/* thaw-files of the initramfs; -1: none */
	int pts_fd;	/* /dev/pts and /proc as they were at the start (loop_open()); -1: none */
	int proc_fd;
	bool is_init;
	bool vsock;	     /* listen_fd is AF_VSOCK: only the host may connect */
	bool exit_when_idle; /* tests: end when the last connection has */
	bool stop;
	bool listen_paused;
	bool checkpoint_wanted; /* once nothing runs */
	bool checkpoint_live;	/* now */
	const char *run_dir;	/* /run in a guest */

	struct conn *conns[SHIM_CONN_MAX];
	u32 nconns;
	u32 generation;
	u32 ndeadlines; /* deadlines and timeouts that are set */
	u32 nexecs;	/* commands that run */
	u32 nended;	/* kept ones that have ended: CONN_ENDED */
	u64 last_ended;
	struct conn *warm;
	u32 nwarm;
	struct conn *run_first, **run_last;

	struct tunnel *tunnels[SHIM_TUNNEL_MAX];
	u32 ntunnels;
	struct tunnel *tunnel_first, **tunnel_last;

	struct rlimit nofile; /* what a command gets that asks for nothing else */
	u64 pids_default;     /* pids.max of an exec; 0: not set */

	bool spare_failed;   /* not tried again before the next exec */
	struct cgroup spare; /* made ahead: mkdir of a cgroup is the dearest part of an exec */
	u32 last_cgroup;

	u8 io[sizeof(((struct conn *)0)->head) + CONN_READ_BYTES];
};

/** shim_log() - a line to the kernel log (as init) or stderr; @level: 3 error, 4 warning. */
void shim_log(int level, const char *fmt, ...) __printf(2, 3);

/** shim_log_to() - where lines go: an open /dev/kmsg, or -1 for stderr. */
void shim_log_to(int kmsg_fd);

/** shim_panic() - say why, then power off (as init) or exit 1: never a silent hang. */
_Noreturn void shim_panic(const char *fmt, ...) __printf(1, 2);

/** loop_init() - epoll, signals and /dev/null; nothing listens yet. Panics when it can't. */
void loop_init(struct shim *shim);

/** loop_listen() - serve what connects to @fd (listening, now owned). Return: 0 or -errno. */
int __must_check loop_listen(struct shim *shim, int fd);

/** loop_run() - serve until shim->stop; returns only in tests. */
void loop_run(struct shim *shim);

/** loop_watch() - deliver edge-triggered @events of c->fd[slot] to @c. Return: 0 or -errno. */
int __must_check loop_watch(struct shim *shim, struct conn *c, enum conn_slot slot, u32 events);

/** loop_move() - @c has got another's stream: events of it are for @c from now on; what it is ready
 * for is told again. Return: 0 or -errno. */
int __must_check loop_move(struct shim *shim, struct conn *c);

/** loop_watch_tunnel() - deliver events of @fd to tunnel_event(); @moved: it was a connection's.
 * Return: 0 or -errno. */
int __must_check loop_watch_tunnel(struct shim *shim, int fd, u32 index, u32 generation, u32 side,
				   bool moved);

/** loop_queue() - have conn_run(@c) called before the next wait. */
void loop_queue(struct shim *shim, struct conn *c);

/** loop_set_deadline() - wake @c after @delay_ms; 0 takes the deadline away. */
void loop_set_deadline(struct shim *shim, struct conn *c, u32 delay_ms);

/** loop_set_timeout() - the same for c->timeout_ns. */
void loop_set_timeout(struct shim *shim, struct conn *c, u32 delay_ms);

/**
 * loop_open() - open a file of the file system that @dir_fd is of, by its name in there. Nothing
 * that was mounted on it is followed: to open a file that a command serves (FUSE) can take for
 * ever.
 * Return: the fd (close-on-exec) or -errno.
 */
int __must_check loop_open(int dir_fd, const char *name, int flags);

/** loop_now_ns() - CLOCK_MONOTONIC. */
u64 loop_now_ns(void);

#endif
