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
	uint32_t kind;	  /* enum shim_exit_kind */
	uint32_t value;	  /* exit code or signal number */
	uint32_t drained; /* 1: both pipes reached their end; 0: the drain time ran out while
			     something held them */
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

#endif
