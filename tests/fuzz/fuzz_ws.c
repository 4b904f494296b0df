// SPDX-License-Identifier: Apache-2.0
// Bytes of a hostile WebSocket client.
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vmm/daemon/exec_text.h"
#include "vmm/daemon/ws.h"
#include "vmm/util/log.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

static int on_text(void *opaque, const char *text, size_t len_bytes)
{
	(void)opaque;
	/* What is called text is text. */
	BUG_ON(len_bytes > WS_MESSAGE_MAX || !exec_utf8_ok((const u8 *)text, len_bytes));
	return len_bytes && text[0] == 'x' ? -1 : 0;
}

static int on_binary(void *opaque, const u8 *data, size_t len_bytes)
{
	struct ws *ws = opaque;

	BUG_ON(len_bytes > WS_MESSAGE_MAX);
	/* As an echo would. */
	if (len_bytes < 1000)
		(void)!ws_binary(ws, data, len_bytes);
	return 0;
}

static const struct ws_ops ops = {on_text, on_binary};

/* The first byte: in which pieces the rest comes, and whether the client reads. */
int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	char accept[WS_ACCEPT_CHARS + 1], key[25] = "";
	size_t piece, n;
	u8 sink[4096];
	struct ws ws;
	int fds[2];

	if (!size || size > 65536 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) < 0)
		return 0;
	memcpy(key, data, size < 24 ? size : 24);
	(void)!ws_accept_key(key, accept);
	piece = data[0] >> 1 ? data[0] >> 1 : size;
	BUG_ON(ws_init(&ws, fds[0], &ops, &ws));
	for (size_t at = 1; at < size && !ws_over(&ws); at += n) {
		n = size - at < piece ? size - at : piece;
		if (write(fds[1], data + at, n) != (ssize_t)n)
			break;
		if (ws_receive(&ws) || ws_send_some(&ws))
			break;
		if (data[0] & 1)
			while (read(fds[1], sink, sizeof(sink)) > 0)
				;
	}
	if (!ws.failed) {
		ws_close(&ws, WS_CLOSE_NORMAL);
		(void)!ws_send_some(&ws);
	}
	ws_destroy(&ws);
	close(fds[1]);
	return 0;
}
