/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exec protocol between the host and thaw-shim; docs/exec-protocol.md tells it in prose.
 *
 * One vsock stream carries one operation. Both sides send frames: an 8-byte header and a payload.
 * The host's first frame says what the stream is for. Integers are little-endian. Both ends treat
 * the other as hostile.
 */
#ifndef THAW_SHIM_PROTO_H
#define THAW_SHIM_PROTO_H

#include <stdint.h>

#define SHIM_PROTO_VERSION 1

/** vsock ports: the shim listens on SHIM_PORT; it calls SHIM_FIRST_PORT of the host for a request
 * that came by the mailbox. */
#define SHIM_PORT	1024u
#define SHIM_FIRST_PORT 1025u

/** Guest context id of every sandbox; each has a VMM of its own, so it need not be unique. */
#define SHIM_GUEST_CID 3u

#define SHIM_DATA_MAX_BYTES 65536u     /* payload of a data frame */
#define SHIM_EXEC_MAX_BYTES (2u << 20) /* payload of SHIM_EXEC */
#define SHIM_ARGS_MAX	    65536u     /* argv + env strings */
#define SHIM_TEXT_MAX_BYTES 512u       /* text of SHIM_ERROR */
#define SHIM_PING_MAX_BYTES 64u
#define SHIM_GRACE_MAX_MS   600000u

/*
 * How much SHIM_STDIN payload the host may have sent beyond what SHIM_STDIN_CREDIT frames gave
 * back. The shim can hold that much, so it never has to stop reading the stream: a signal is not
 * stuck behind input that the command does not read.
 */
#define SHIM_STDIN_WINDOW_BYTES 262144u

enum shim_frame_type {
	/* host to guest */
	SHIM_EXEC = 1,	     /* first frame: struct shim_exec + strings */
	SHIM_STDIN = 2,	     /* bytes for stdin */
	SHIM_STDIN_EOF = 3,  /* no payload; stdin is closed once what came before is written */
	SHIM_SIGNAL = 4,     /* u32 signal number for the command */
	SHIM_CHECKPOINT = 5, /* first frame, no payload: answer SHIM_OK, wait for the stream's end
				and for the last exec, then checkpoint */
	SHIM_PING = 6, /* first frame: answered by SHIM_PONG with the same payload (<= 64 bytes) */
	SHIM_POWEROFF = 7,	  /* first frame: SHIM_OK, then sync and power off */
	SHIM_CHECKPOINT_LIVE = 8, /* first frame, no payload: as SHIM_CHECKPOINT, but waits for no
				     exec: once this stream has ended the checkpoint is made, and
				     in a clone the commands go on without their streams */
	SHIM_SHUTDOWN = 9, /* first frame: u32 ms, at most SHIM_GRACE_MAX_MS; as SHIM_POWEROFF, but
			      SIGTERM for all first, and so long for them to end */
	SHIM_RESIZE = 10,  /* struct shim_size: of the terminal */
	SHIM_KILL = 11,	   /* no payload: SIGKILL for the command and all its descendants */
	SHIM_ACK = 12,	   /* u64 offset: output of a kept exec before it may be given up */
	SHIM_ATTACH = 13,  /* first frame: struct shim_attach; answered by SHIM_ATTACHED, then
			      output and end as if it had been here from the start. Takes the exec
			      over from the stream that had it (which gets SHIM_ERROR, ESTALE) */
	SHIM_LIST = 14,	   /* first frame, no payload: a SHIM_ENTRY each kept exec, then SHIM_OK */
	SHIM_FORGET = 15,  /* first frame: id (16 bytes) of a kept exec that has ended: SHIM_OK, or
			      SHIM_ERROR with ENOENT or EBUSY */
	SHIM_CONNECT = 16, /* first frame: struct shim_connect. SHIM_OK, and from there on the
			      stream is the TCP connection's, without frames, its half-closes
			      included; or SHIM_ERROR with connect's errno */
	SHIM_USAGE = 17,   /* first frame, no payload: answered by SHIM_USAGE_REPLY */

	/* guest to host */
	SHIM_STARTED = 64, /* u32 pid: the exec of the program succeeded */
	SHIM_STDOUT = 65,
	SHIM_STDERR = 66,
	SHIM_EXIT = 67,	 /* struct shim_exit: last frame; all output has been sent before it */
	SHIM_ERROR = 68, /* struct shim_error + text: last frame; the command did not start, or the
			    request was refused */
	SHIM_PONG = 69,
	SHIM_OK = 70,
	SHIM_STDIN_CREDIT =
		71, /* u32 bytes of SHIM_STDIN payload that were consumed (written or dropped) */
	SHIM_ATTACHED = 72,    /* struct shim_attached */
	SHIM_ENTRY = 73,       /* struct shim_entry */
	SHIM_USAGE_REPLY = 74, /* struct shim_usage */
};

struct shim_frame {
	uint32_t len_bytes; /* of the payload */
	uint8_t type;
	uint8_t version;   /* SHIM_PROTO_VERSION */
	uint16_t reserved; /* 0 */
};

enum shim_exec_flags {
	/* stdin is a pipe fed by SHIM_STDIN; without it stdin is /dev/null */
	SHIM_EXEC_STDIN = 1u << 0,
	/* stdin, stdout and stderr are /dev/null; SHIM_STARTED is the last frame, and the command
	 * goes on when the stream has ended. Not with SHIM_EXEC_STDIN */
	SHIM_EXEC_DETACH = 1u << 1,
	/* struct shim_exec_ext stands between struct shim_exec and the strings */
	SHIM_EXEC_EXT = 1u << 2,
};

#define SHIM_ID_BYTES	      16u
#define SHIM_RING_BYTES	      (1u << 20) /* output of a kept exec that can be read again */
#define SHIM_RING_UNACKED_MAX (SHIM_RING_BYTES / 2)
/** Ended kept execs; beyond it those go whose output was acknowledged, the first that ended first.
 */
#define SHIM_KEPT_ENDED_MAX 64u

enum shim_ext_flags {
	/* The exec is known by its id and outlives its streams: output waits in a ring, the exit
	 * status until SHIM_FORGET. Offsets count its output payload, both streams together, from
	 * its start. Unacknowledged output is at most SHIM_RING_UNACKED_MAX: then the command
	 * blocks. */
	SHIM_EXT_KEEP = 1u << 0,
	/* stdin, stdout and stderr are a terminal; all output is SHIM_STDOUT; STDIN_EOF is its
	 * end-of-file character. With SHIM_EXEC_STDIN */
	SHIM_EXT_PTY = 1u << 1,
	/* stderr is stdout */
	SHIM_EXT_COMBINED = 1u << 2,
	/* Run thaw-files of the initramfs instead of argv[0] */
	SHIM_EXT_FILES = 1u << 3,
};

struct shim_size {
	uint16_t cols, rows; /* 1 to 65535 each */
};

struct shim_exec_ext {
	uint8_t id[SHIM_ID_BYTES]; /* with SHIM_EXT_KEEP; else 0 */
	uint32_t flags;		   /* enum shim_ext_flags */
	uint32_t timeout_ms;	   /* from its start; then SIGKILL for all of it; 0: none */
	struct shim_size size;	   /* with SHIM_EXT_PTY; else 0 */
	uint32_t pids_max;	   /* processes of this exec; 0: no limit */
	uint32_t nofile;	   /* RLIMIT_NOFILE, soft and hard; 0: the guest's default */
	uint32_t reserved;	   /* 0 */
};

struct shim_attach {
	uint8_t id[SHIM_ID_BYTES];
	uint64_t offset; /* output from there on, or from the oldest that is left; ~0: the end */
};

struct shim_attached {
	uint64_t offset; /* where the output that follows begins */
	uint64_t end;	 /* how much the exec has printed so far */
	uint32_t pid;	 /* 0: it has not reached execve */
	uint32_t state;	 /* enum shim_exec_state */
};

enum shim_exec_state {
	SHIM_STATE_RUNNING = 0,
	SHIM_STATE_ENDED = 1,
};

struct shim_entry {
	uint8_t id[SHIM_ID_BYTES];
	uint64_t end;	      /* output so far */
	uint64_t oldest;      /* first offset that can still be read */
	uint64_t started_ns;  /* CLOCK_REALTIME of the guest */
	uint32_t pid;	      /* 0: it has not reached execve */
	uint32_t state;	      /* enum shim_exec_state */
	uint32_t kind, value; /* ended: as in struct shim_exit */
	uint32_t flags;	      /* enum shim_exit_flags of the end */
	uint32_t attached;    /* 1: a stream has it */
	uint32_t ext_flags;   /* enum shim_ext_flags it was started with */
	uint32_t reserved;
};

struct shim_connect {
	uint32_t port; /* 1 to 65535, of 127.0.0.1, or ::1 if nobody listens there */
	uint32_t reserved;
};

struct shim_usage {
	uint64_t uptime_ms, cpu_usage_us;
	uint64_t memory_total_bytes, memory_available_bytes;
	uint64_t disk_total_bytes, disk_free_bytes; /* of / */
	uint32_t processes, kept_execs;
};

/**
 * struct shim_exec - head of a SHIM_EXEC payload
 *
 * Followed by @argc + @envc NUL-terminated strings and, if @has_cwd, one more; nothing else.
 * argv[0] is looked up in PATH of the given environment, or the default PATH, unless it has a
 * slash. The environment is exactly the given one plus PATH when it has none.
 */
struct shim_exec {
	uint32_t flags;
	uint32_t argc; /* >= 1 */
	uint32_t envc; /* each NAME=value */
	uint32_t has_cwd;
	uint32_t uid;
	uint32_t gid;
	uint32_t drain_ms; /* how long output is waited for after the exit while something else
			      holds the pipes; 0 = 1000 */
	uint32_t reserved;
};

enum shim_exit_kind {
	SHIM_EXIT_CODE = 0,
	SHIM_EXIT_SIGNAL = 1,
};

struct shim_exit {
	uint32_t kind;	/* enum shim_exit_kind */
	uint32_t value; /* exit code or signal number */
	uint32_t flags; /* enum shim_exit_flags */
};

enum shim_exit_flags {
	SHIM_EXIT_DRAINED = 1u << 0,   /* both pipes reached their end; else the drain time ran out
					  while something held them */
	SHIM_EXIT_TIMED_OUT = 1u << 1, /* timeout_ms ended it */
	SHIM_EXIT_OOM = 1u << 2,       /* the guest's kernel killed something of it for memory */
};

enum shim_error_stage {
	SHIM_STAGE_REQUEST = 0, /* malformed or refused request */
	SHIM_STAGE_SETUP = 1,	/* cgroup, pipes, fork, credentials */
	SHIM_STAGE_CWD = 2,
	SHIM_STAGE_EXEC = 3, /* execve; ENOENT: not found; EACCES, ENOEXEC: not executable */
};

struct shim_error {
	uint32_t stage; /* enum shim_error_stage */
	uint32_t error; /* positive Linux errno */
			/* text, not NUL-terminated, <= 512 bytes */
};

_Static_assert(sizeof(struct shim_frame) == 8, "wire format");
_Static_assert(sizeof(struct shim_exec) == 32, "wire format");
_Static_assert(sizeof(struct shim_exit) == 12, "wire format");
_Static_assert(sizeof(struct shim_error) == 8, "wire format");
_Static_assert(sizeof(struct shim_exec_ext) == 40, "wire format");
_Static_assert(sizeof(struct shim_attach) == 24, "wire format");
_Static_assert(sizeof(struct shim_attached) == 24, "wire format");
_Static_assert(sizeof(struct shim_entry) == 72, "wire format");
_Static_assert(sizeof(struct shim_usage) == 56, "wire format");

#endif
