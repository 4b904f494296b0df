/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control channel of a thaw-vmm: SOCK_SEQPACKET, one fixed-size message a packet, at most one
 * fd with it.
 *
 * The owner (thaw, later thawd) keeps one end, thaw-vmm gets the other by number. When the owner's
 * end closes, thaw-vmm ends: no VM outlives its owner unless the owner handed the channel on.
 *
 * With --ctl-listen it goes on instead, and serves whoever connects there next: one owner at a
 * time, of the same user or root. The others wait in the listener's queue.
 */
#ifndef THAW_UTIL_CTL_H
#define THAW_UTIL_CTL_H

#include "vmm/util/types.h"

#define CTL_VERSION 1

enum ctl_type {
	/* owner to VMM */
	CTL_CONNECT = 1, /* fd: a connected Unix stream socket; port: guest vsock port. The VMM
			    bridges them and owns the fd. On refusal it closes it. */
	CTL_STOP = 2,	 /* end at once */
	CTL_START = 3,	 /* to a waiting VM, once: run. text: host name, or ""; fd: a file with the
			    first request from its offset 0 on, or none; generation: as that of
			    CTL_DEADLINE */
	CTL_FORK = 4, /* to a zygote: make a waiting VM; fd: its end of its own control channel */
	CTL_SNAPSHOT_REQ = 5, /* to a VM with --ctl-listen: write a snapshot at the guest's next
				 checkpoint call. fd: the folder it is to stand in; text: its name;
				 port: enum ctl_snapshot_flags. Answered by CTL_ARMED; CTL_SNAPSHOT
				 comes when it is written. Ends with the owner that asked.
				 generation: see CTL_SNAPSHOT_INTO */
	CTL_DEADLINE = 6,     /* generation: milliseconds from now until the VM ends by itself
				 (CTL_EXIT_DEADLINE); 0: it does not. The last one counts */

	/* VMM to owner */
	/* fd: a Unix stream socket that a guest process opened to host port `port` */
	CTL_ACCEPT = 64,
	CTL_RUNNING = 65,  /* set-up done, vCPUs about to run: clocks filled up to t_run_ns */
	CTL_RESUMED = 66,  /* the guest is back from the checkpoint call: t_resumed_ns */
	CTL_READY = 67,	   /* the shim listens */
	CTL_SNAPSHOT = 68, /* a snapshot was written (error 0) or failed (error, text) */
	CTL_EXIT = 69,	   /* last message: reason, text */
	CTL_WAITING = 70,  /* all is done but the start: CTL_START is due */
	CTL_OWNED = 72,	   /* first message to an owner that came to the listener: it is served from
			      now on. port: enum ctl_owned_flags */
	CTL_ARMED = 73,	   /* a CTL_SNAPSHOT_REQ is taken (error 0) or refused (error, text) */
	CTL_FORKED = 71,   /* of a zygote: fd is a pidfd of the new process, port its pid; or error.
			      generation is the CTL_FORK's */
};

enum ctl_snapshot_flags {
	CTL_SNAPSHOT_EXIT = 1u << 0, /* the VM ends when it is written, and it is synced; otherwise
					the VM goes on */
	CTL_SNAPSHOT_INTO = 1u << 1, /* fd is the snapshot's own folder, empty, and it is the
					owner's to give it a place; generation: inode number of the
					folder of what the VM runs from, if a diff may stand beside
					it, else 0 */
};

enum ctl_owned_flags {
	CTL_OWNED_RESUMED = 1u << 0, /* CTL_RESUMED was due before */
};

enum ctl_exit_reason {
	CTL_EXIT_POWEROFF = 0, /* ACPI S5 */
	CTL_EXIT_RESET = 1,    /* the guest asked for a reset, or triple-faulted */
	CTL_EXIT_STOPPED = 2,  /* CTL_STOP or signal */
	CTL_EXIT_SNAPSHOT = 3, /* the snapshot is written and the VM was told to end then */
	CTL_EXIT_ERROR = 4,    /* thaw-vmm's own fault: error, text */
	CTL_EXIT_DEADLINE = 5, /* its hard time-out was over */
};

/* CLOCK_MONOTONIC of the host, nanoseconds; 0 = did not happen yet. */
struct ctl_clocks {
	u64 start_ns;	    /* main() was entered; of a waiting VM: CTL_START arrived */
	u64 first_ioctl_ns; /* before KVM_CREATE_VM */
	u64 state_set_ns;   /* vCPU state set (restore), or registers set (boot) */
	u64 run_ns;	    /* before the first KVM_RUN */
	u64 resumed_ns;	    /* THAW_CMD_RESUMED arrived */
};

struct ctl_msg {
	u32 version; /* CTL_VERSION */
	u32 type;    /* enum ctl_type */
	u32 port;
	u32 reason;   /* enum ctl_exit_reason */
	s32 error;    /* -errno or 0 */
	u32 pause_us; /* CTL_SNAPSHOT: from the guest's call until the vCPUs went on, or to the end
		       */
	u64 generation; /* CTL_RUNNING, CTL_RESUMED */
	struct ctl_clocks clocks;
	char text[192]; /* NUL-terminated */
};

_Static_assert(sizeof(struct ctl_msg) == 264, "ABI between thaw and thaw-vmm");

/**
 * ctl_send() - send @msg and, if @fd >= 0, a duplicate of @fd (the caller keeps its own). Does not
 * block. Return: 0 or -errno (-EAGAIN: the peer does not read; -EPIPE).
 */
int __must_check ctl_send(int sock, const struct ctl_msg *msg, int fd);

/**
 * ctl_recv() - receive one message; the peer is not trusted: size, version, NUL and fd count are
 * checked.
 * @fd: gets the received fd (close-on-exec) or -1; the caller owns it.
 *
 * Return: 1, 0 at the end of the channel, -EAGAIN, -EPROTO (malformed), or -errno.
 */
int __must_check ctl_recv(int sock, struct ctl_msg *msg, int *fd);

#endif
