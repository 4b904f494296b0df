/* SPDX-License-Identifier: Apache-2.0 */
/* The payload of SHIM_EXEC: checked and taken apart; pure, fuzzed. */
#ifndef THAW_SHIM_PARSE_H
#define THAW_SHIM_PARSE_H

#include "guest/shim/proto.h"
#include "vmm/util/types.h"

#define PARSE_DRAIN_DEFAULT_MS 1000u
#define PARSE_DRAIN_MAX_MS     3600000u

/** A terminal whose size was not given. */
#define PARSE_DEFAULT_COLS 80
#define PARSE_DEFAULT_ROWS 24

/** Used when the request's environment has no PATH. */
#define PARSE_DEFAULT_PATH "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/** A checked request. The strings lie in the payload, the arrays in the caller's slots. */
struct parse_exec {
	char **argv;	  /* argc strings, NULL */
	char **envp;	  /* envc strings, PARSE_DEFAULT_PATH if there was no PATH, NULL */
	const char *path; /* value of PATH */
	const char *cwd;  /* NULL: / */
	u32 argc, envc;	  /* as sent */
	u32 uid, gid;
	u32 drain_ms; /* default filled in */
	bool with_stdin, detach;
	struct shim_exec_ext ext; /* all 0 without SHIM_EXEC_EXT; size filled in for a terminal */
	bool keep, pty, combined, files; /* of ext.flags */
};

/**
 * parse_exec_slots() - how many char * parse_exec() needs for this payload.
 * Return: the number, or the errors of parse_exec() as far as the head shows them.
 */
s64 __must_check parse_exec_slots(const u8 *payload, size_t len_bytes);

/**
 * parse_exec() - check a payload from the host and point into it.
 * @payload: must outlive @out; not changed
 * @slots: parse_exec_slots() pointers
 *
 * A uid or gid of -1 is refused: setresuid(2) takes it as "leave as it is", that is root.
 *
 * Return: 0; -EINVAL (unknown flags, flags that exclude each other, counts that do not fit, missing
 * NUL, bytes left over, an empty argv[0] or cwd, an environment string without a name, uid or gid
 * of -1, an id without SHIM_EXT_KEEP or SHIM_EXT_KEEP without one, half a terminal's size), -E2BIG
 * (more than SHIM_ARGS_MAX strings).
 */
int __must_check parse_exec(u8 *payload, size_t len_bytes, char **slots, struct parse_exec *out);

/** parse_id_is_zero() - the id that no kept exec has. */
bool parse_id_is_zero(const u8 id[SHIM_ID_BYTES]);

#endif
