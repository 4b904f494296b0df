/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thaw-vmm of one's own: start, talk, notice its end, leave nothing behind.
 *
 * The child gets its standard fds (stdin from /dev/null, stdout and stderr as asked), the control
 * channel and, if given, one or two files more; of the environment only THAW_* and sanitizer
 * options. The other end of the channel is close-on-exec and lives in this process alone: when this
 * process ends, in whatever way, the channel closes and thaw-vmm ends too.
 */
#ifndef THAW_CLI_VMMPROC_H
#define THAW_CLI_VMMPROC_H

#include <sys/types.h>

#include "vmm/util/ctl.h"
#include "vmm/util/types.h"

/** fds in the child; the numbers are part of the command lines that callers write. */
#define VMMPROC_CTL_FD	  3
#define VMMPROC_CTL_TEXT  "3"
#define VMMPROC_FILE_FD	  4
#define VMMPROC_FILE_TEXT "4"
#define VMMPROC_FILE_PATH "/proc/self/fd/4"
#define VMMPROC_HOT_FD	  5
#define VMMPROC_HOT_TEXT  "5"

struct jail;

struct vmmproc {
	pid_t pid;    /* 0: not started, or reaped */
	bool adopted; /* made by somebody else: no child of this process */
	int pid_fd;   /* of an adopted one */
	int ctl_fd;   /* our end; non-blocking; -1: closed */
	int log_fd;   /* unnamed file that collects its stderr; -1: not collected */

	/* What it said so far. */
	bool running, resumed, ready;
	bool accepted; /* the guest has opened the stream of its first request */
	int accept_fd; /* that stream, until vmmproc_take_stream() has it; -1: none */
	bool waiting;  /* for vmmproc_begin() */
	bool owned;    /* it serves us (CTL_OWNED) */
	bool armed;    /* a snapshot that was asked for is due, or refused: snapshot_error */
	u32 pause_us;  /* of CTL_SNAPSHOT */
	u64 generation;
	bool snapshot_seen, exit_seen;
	int snapshot_error; /* of CTL_SNAPSHOT */
	u32 exit_reason;    /* enum ctl_exit_reason */
	int exit_error;
	char text[192];		/* of the last message that had one */
	char restore_note[192]; /* of CTL_RUNNING: how the restore was done when it is not as asked
				 */
	struct ctl_clocks clocks;
	int wait_status; /* of waitpid(2), once reaped */
};

struct vmmproc_opts {
	const char *const *argv; /* NULL-terminated; argv[0] is replaced by thaw-vmm's path */
	int output_fd; /* its stdout (console with "--console -"); -1: /dev/null. Not owned */
	int log_fd;  /* its stderr; -1: collect it, to be shown by vmmproc_show_log(). Not owned */
	int file_fd; /* becomes VMMPROC_FILE_FD; -1: none. Not owned */
	int hot_fd;  /* becomes VMMPROC_HOT_FD; 0: none. Not owned */
	const struct jail *jail; /* it is born there; NULL: none */
	/* The caller's own standard fds must be open (cli main sees to it): a source below 3 would
	 * be overwritten. */
};

/** vmmproc_find() - path of thaw-vmm into @out of PATH_MAX bytes. Return: 0 or -errno. Logs
 * nothing. */
int __must_check vmmproc_find(char *out);

/**
 * vmmproc_start() - start thaw-vmm ($THAW_VMM, or the one beside this executable). With $THAW_LOG
 * set its stderr is not collected but passed on.
 *
 * Return: 0 or -errno (logged). vmmproc_end() is due in every case.
 */
int __must_check vmmproc_start(struct vmmproc *proc, const struct vmmproc_opts *opts);

/**
 * vmmproc_adopt() - take over one that is somebody else's child: @ctl_fd and @pid_fd become
 * @proc's. Its exit status can't be known, and its stderr is not collected.
 */
void vmmproc_adopt(struct vmmproc *proc, pid_t pid, int ctl_fd, int pid_fd);

/**
 * vmmproc_connect() - a stream to guest port @port. It can be written to at once: the VMM holds the
 * bytes until the guest takes them. Return: a connected socket (the caller owns it) or -errno
 * (logged).
 */
int __must_check vmmproc_connect(struct vmmproc *proc, u32 port);

/** vmmproc_take_stream() - the stream of the first request, once @proc->accepted; the caller owns
 * it. */
int vmmproc_take_stream(struct vmmproc *proc);

/**
 * vmmproc_receive() - take in what has arrived, without waiting.
 * Return: 0, -EPIPE (it is gone: after what it said was taken in), or -errno (logged).
 */
int __must_check vmmproc_receive(struct vmmproc *proc);

/**
 * vmmproc_wait() - receive until *@flag (a field of @proc) is true.
 * @deadline_ns: CLOCK_MONOTONIC, 0: none.
 * @stop_fd: give up when it becomes readable; it is not read. -1: none.
 * @tick, @opaque: called about once a second meanwhile; NULL: never.
 *
 * Return: 0, -ETIMEDOUT, -EPIPE (it ended first), -EINTR (@stop_fd), or -errno (logged).
 */
int __must_check vmmproc_wait(struct vmmproc *proc, const bool *flag, u64 deadline_ns, int stop_fd,
			      void (*tick)(void *opaque), void *opaque);

/** vmmproc_why() - one line about why it ended, into @out of @len_bytes. */
void vmmproc_why(const struct vmmproc *proc, char *out, size_t len_bytes);

/** vmmproc_show_log() - write what was collected of its stderr to ours. */
void vmmproc_show_log(const struct vmmproc *proc);

/** vmmproc_reap() - once its channel has closed: wait for its end, so that its exit status is
 * known; after 5 s it is killed. */
void vmmproc_reap(struct vmmproc *proc);

/**
 * vmmproc_own() - become the owner of one that listens at @ctl_path: the rest as if it were
 * adopted.
 * @deadline_ns: how long another owner is waited for.
 *
 * Return: 0; -ENOENT or -ECONNREFUSED: nobody listens; -EBUSY: another process controls it; or
 * -errno. Logs nothing. vmmproc_release() or vmmproc_end() is due after success.
 */
int __must_check vmmproc_own(struct vmmproc *proc, const char *ctl_path, u64 deadline_ns);

/** vmmproc_snapshot() - ask for a snapshot @name in @folder_fd, with enum ctl_snapshot_flags, and
 * wait until it is armed. @base_inode: with CTL_SNAPSHOT_INTO (ctl.h). Return: 0 or -errno
 * (@proc->text may tell more). */
int __must_check vmmproc_snapshot(struct vmmproc *proc, int folder_fd, const char *name, u32 flags,
				  u64 base_inode, u64 deadline_ns);

/** vmmproc_begin() - one that waits (@proc->waiting) runs now, as @hostname. @request_fd: a file
 * with the guest's first request, or -1. @hard_timeout_ms: as for vmmproc_deadline(). Return: 0 or
 * -errno (-EPIPE: it has ended). Logs nothing. */
int __must_check vmmproc_begin(struct vmmproc *proc, const char *hostname, int request_fd,
			       u64 hard_timeout_ms);

/** vmmproc_deadline() - it ends by itself that many milliseconds from now (CTL_EXIT_DEADLINE); 0:
 * not at all. The last word counts, whoever owns it then. Return: 0 or -errno. Logs nothing. */
int __must_check vmmproc_deadline(struct vmmproc *proc, u64 from_now_ms);

/** vmmproc_release() - let go of one that lives on (--ctl-listen) and close everything. */
void vmmproc_release(struct vmmproc *proc);

/** vmmproc_end() - kill it if it still lives, reap it (an adopted one is its parent's, and not
 * waited for), close everything. Safe at any time, twice
 * too. */
void vmmproc_end(struct vmmproc *proc);

#endif
