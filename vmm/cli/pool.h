/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pool of ready shells (`thaw pool`) and its clients say to each other.
 *
 * $THAW_STATE/pools/NAME.sock, mode 0600, SOCK_SEQPACKET: one question a connection, one answer.
 * A shell changes hands by its control channel: whoever holds the other end is its owner, and the
 * shell ends when that closes.
 */
#ifndef THAW_CLI_POOL_H
#define THAW_CLI_POOL_H

#include <sys/types.h>
#include <sys/un.h>

#include "vmm/cli/json_out.h"
#include "vmm/cli/state.h"
#include "vmm/util/types.h"

#define POOL_VERSION  1
#define POOL_SIZE_MAX 128

enum pool_type {
	/* client to pool */
	POOL_CLAIM = 1,
	POOL_STATUS = 2,
	/* pool to client */
	POOL_SHELL = 64, /* two fds: control channel, pidfd; pid, strategy, counters */
	POOL_EMPTY = 65, /* no shell is ready */
	POOL_STATE = 66,
};

struct pool_msg {
	u32 version; /* POOL_VERSION */
	u32 type;    /* enum pool_type */
	/* POOL_SHELL: how it was made, and what making it has cost, to be taken off its counters */
	s32 pid;
	char strategy[20]; /* NUL-terminated; of POOL_STATE as well */
	struct proc_counters counters;
	/* POOL_STATE */
	u32 size, target, ready, starting;
	u64 hits, misses;
	s32 zygote_pid; /* 0: none at the moment */
	u32 npids;
	s32 pids[POOL_SIZE_MAX]; /* of the shells */
};

#define POOL_FDS_MAX 2

/** pool_send() - @msg with @nfds fds (the caller keeps its own); does not block. Return: 0 or
 * -errno. */
int __must_check pool_send(int sock, const struct pool_msg *msg, const int *fds, unsigned int nfds);

/**
 * pool_recv() - the peer is not trusted: size, version, counts and strings are checked.
 * @fds: get what came along, close-on-exec, or -1; the caller owns them.
 *
 * Return: 1, 0 at the end, -EAGAIN (also: a time-out of the socket's), -EPROTO, or -errno.
 */
int __must_check pool_recv(int sock, struct pool_msg *msg, int fds[POOL_FDS_MAX]);

/**
 * pool_address() - of the socket of @name's pool, in whatever length $THAW_STATE has.
 * @dir_fd: gets an fd of the pools' folder; @addr is good as long as it is open. The caller closes
 * it.
 *
 * Return: 0, -ENOENT (no pool was ever there), or -errno.
 */
int __must_check pool_address(const struct state *state, const char *name, struct sockaddr_un *addr,
			      int *dir_fd);

/**
 * pool_listen() - make the socket. What a killed pool left is replaced. Return: an fd, -EADDRINUSE
 * (a pool of @name is there), or -errno. Logs nothing.
 */
int __must_check pool_listen(const struct state *state, const char *name);

/** pool_unlink() - remove the socket of a pool that still listens, at its end. */
void pool_unlink(const struct state *state, const char *name);

/** pool_connect() - to the pool of @name. What a killed one left is removed. Return: an fd, -ENOENT
 * (there is none), or -errno. Logs nothing. */
int __must_check pool_connect(const struct state *state, const char *name);

/** A shell that is the caller's now. */
struct pool_shell_claim {
	int ctl_fd, pid_fd; /* the caller owns them */
	pid_t pid;
	char strategy[20];
	struct proc_counters counters; /* at the time it was ready */
};

/** pool_claim() - ask for a shell. Return: 1, 0 when none is ready, or -errno. Logs nothing. */
int __must_check pool_claim(int sock, struct pool_shell_claim *out);

/** pool_status() - Return: 0 or -errno. Logs nothing. */
int __must_check pool_status(int sock, struct pool_msg *out);

#endif
