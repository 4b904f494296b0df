// SPDX-License-Identifier: Apache-2.0
// Frames of a hostile guest into thawd's end of an exec's stream.
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vmm/daemon/exec_guest.h"
#include "vmm/util/log.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

struct seen {
	const struct exec_guest *g;
	bool attach, started, over;
	u64 output;
};

static int on_output(void *opaque, enum exec_stream stream, const u8 *data, size_t len_bytes)
{
	struct seen *seen = opaque;
	u64 sum = 0;

	/* Only of one that runs; and all of it can be read. */
	BUG_ON(!seen->started || seen->over || !len_bytes);
	BUG_ON(stream != EXEC_STDOUT && stream != EXEC_STDERR);
	for (size_t i = 0; i < len_bytes; i++)
		sum += data[i];
	seen->output += len_bytes + (sum == UINT64_MAX);
	return 0;
}

static void on_started(void *opaque, u32 pid)
{
	struct seen *seen = opaque;

	BUG_ON(!pid || seen->started || seen->over);
	seen->started = true;
}

static void on_attached(void *opaque, const struct shim_attached *attached)
{
	struct seen *seen = opaque;

	BUG_ON(!seen->attach || attached->offset < 100 || attached->offset > attached->end);
}

static void on_exited(void *opaque, const struct shim_exit *end)
{
	struct seen *seen = opaque;

	BUG_ON(!seen->started || seen->over ||
	       !exec_guest_exit_ok(end->kind, end->value, end->flags));
	seen->over = true;
}

static void on_failed(void *opaque, const struct shim_error *error, const char *text)
{
	struct seen *seen = opaque;

	BUG_ON(seen->over || !error->error || strlen(text) > SHIM_TEXT_MAX_BYTES);
	seen->over = true;
}

static void on_room(void *opaque)
{
	const struct seen *seen = opaque;

	BUG_ON(seen->g->window_used > SHIM_STDIN_WINDOW_BYTES);
}

static const struct exec_guest_ops ops = {on_output, on_started, on_attached,
					  on_exited, on_failed,	 on_room};

static void on_entry(void *opaque, const struct shim_entry *entry)
{
	(void)opaque;
	BUG_ON(entry->oldest > entry->end);
}

/* The first byte: what was asked, and in which pieces the answer comes. */
int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	static const u8 id[SHIM_ID_BYTES] = {1};
	struct seen seen = {0};
	struct exec_guest g;
	int fds[2], ret = 0;
	size_t piece, n;
	u8 sink[256];

	if (!size || size > 65536 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) < 0)
		return 0;
	seen.attach = data[0] & 1;
	piece = data[0] >> 2 ? data[0] >> 2 : size;
	seen.g = &g;
	BUG_ON(exec_guest_init(&g, fds[0], &ops, &seen));
	if (data[0] & 2) {
		(void)!write(fds[1], data + 1, size - 1);
		shutdown(fds[1], SHUT_WR);
		(void)!exec_guest_call(g.fd, SHIM_LIST, NULL, 0, UINT64_MAX, -1, on_entry, NULL);
		goto out;
	}
	BUG_ON(seen.attach ? exec_guest_attach(&g, id, 100) : exec_guest_exec(&g, id, sizeof(id)));
	BUG_ON(exec_guest_send(&g));
	(void)!read(fds[1], sink, sizeof(sink));
	for (size_t at = 1; at < size && !ret; at += n) {
		n = size - at < piece ? size - at : piece;
		if (write(fds[1], data + at, n) != (ssize_t)n)
			break;
		ret = exec_guest_receive(&g);
	}
	while (!ret) {
		shutdown(fds[1], SHUT_WR);
		ret = exec_guest_receive(&g);
	}
	BUG_ON(g.offset < seen.output);
out:
	exec_guest_destroy(&g);
	close(fds[1]);
	return 0;
}
