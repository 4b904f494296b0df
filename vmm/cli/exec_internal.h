/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the host's side of an exec. */
#ifndef THAW_CLI_EXEC_INTERNAL_H
#define THAW_CLI_EXEC_INTERNAL_H

#include <sys/types.h>

#include "guest/shim/proto.h"
#include "vmm/util/types.h"

/* How an output fd must be written so that it can't block for long. */
enum out_kind {
	OUT_PLAIN, /* files, terminals, /dev/null */
	OUT_PIPE_NOWAIT,
	OUT_PIPE_SMALL,
	OUT_SOCKET,
};

struct out {
	int fd; /* -1: drop */
	enum out_kind kind;
	u64 *count_bytes;
};

void out_init(struct out *out, int fd, u64 *count_bytes);
/** out_write() - Return: bytes written, -EAGAIN when it would block, or -errno. */
ssize_t out_write(struct out *out, const u8 *data, size_t len);

/* ctrl-p ctrl-q in what is typed. */
struct detach_keys {
	bool held;    /* a ctrl-p that may be the first of them */
	bool pressed; /* both came */
};

/**
 * detach_filter() - look for them in @len bytes at @data, of which there is room for one more.
 * A ctrl-p at the end is held back until the next call. Return: how many bytes are to be sent:
 * those before the keys, if they were pressed.
 */
size_t detach_filter(struct detach_keys *keys, u8 *data, size_t len);

/** tty_size_of() - of the terminal @fd; false: it is none, or does not know. */
bool tty_size_of(int fd, struct shim_size *out);

#endif
