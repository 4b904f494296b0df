/* SPDX-License-Identifier: Apache-2.0 */
/* What to run, as a client says it: JSON, or a SHIM_EXEC frame. */
#ifndef THAW_DAEMON_EXEC_SPEC_H
#define THAW_DAEMON_EXEC_SPEC_H

#include <jansson.h>

#include "guest/shim/proto.h"
#include "vmm/util/types.h"

#define EXEC_OUTPUT_DEFAULT (1 * MIB)
#define EXEC_OUTPUT_MAX	    (64 * MIB)
#define EXEC_STDIN_JSON_MAX (4 * MIB)
#define EXEC_PTY_COLS	    80
#define EXEC_PTY_ROWS	    24

struct exec_spec {
	u8 raw_id[SHIM_ID_BYTES];
	char id[33];
	u8 *payload; /* of SHIM_EXEC, with SHIM_EXEC_EXT and the id */
	size_t payload_bytes;
	json_t *argv; /* array of strings */
	bool pty, combined, detached, entrypoint;
	bool with_stdin; /* the command has a stdin to write to */
	bool stdin_open; /* and it stays open behind @in */
	u32 timeout_ms;
	u8 *in;
	size_t in_bytes;
	bool utf8;
	u64 output_max_bytes;
};

struct exec_spec_limits {
	u32 pids_max, nofile;
};

/** Where a spec is from: which fields it may have. */
enum exec_spec_form {
	EXEC_FORM_POST,	     /* POST .../exec */
	EXEC_FORM_SOCKET,    /* the first message of a WebSocket: stdin is the socket */
	EXEC_FORM_ENTRYPOINT /* argv and env of a box */
};

struct exec_spec_error {
	const char *code; /* "unknown_field", "invalid_request", "too_large", "internal" */
	unsigned int status;
	char field[64]; /* of unknown_field */
	char text[200];
};

/** exec_spec_json() - Return: 0 with @spec filled, or -EINVAL with @error. exec_spec_destroy() in
 * any case. */
int __must_check exec_spec_json(struct exec_spec *spec, const json_t *json,
				enum exec_spec_form form, const struct exec_spec_limits *limits,
				struct exec_spec_error *error);

/**
 * exec_spec_frame() - from the payload of a client's SHIM_EXEC frame.
 * @spec: its id has been made (exec_spec_new_id()).
 */
int __must_check exec_spec_frame(struct exec_spec *spec, u8 *payload, size_t len_bytes,
				 const struct exec_spec_limits *limits,
				 struct exec_spec_error *error);

/** exec_spec_new_id() - done by exec_spec_json(), too. Return: 0 or -errno. */
int __must_check exec_spec_new_id(struct exec_spec *spec);

/** exec_spec_destroy() - safe twice. */
void exec_spec_destroy(struct exec_spec *spec);

#endif
