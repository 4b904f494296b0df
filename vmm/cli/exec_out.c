// SPDX-License-Identifier: Apache-2.0
// The host's side of an exec: output fds and terminals.
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "vmm/cli/exec_internal.h"

#define CTRL_P 0x10
#define CTRL_Q 0x11

void out_init(struct out *out, int fd, u64 *count_bytes)
{
	struct stat st;

	out->fd = fd;
	out->count_bytes = count_bytes;
	out->kind = OUT_PLAIN;
	if (fd < 0 || fstat(fd, &st) < 0)
		return;
	if (S_ISFIFO(st.st_mode))
		out->kind = OUT_PIPE_NOWAIT;
	else if (S_ISSOCK(st.st_mode))
		out->kind = OUT_SOCKET;
}

ssize_t out_write(struct out *out, const u8 *data, size_t len)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
	struct pollfd ready = {.fd = out->fd, .events = POLLOUT};
	ssize_t n;

	if (out->fd < 0)
		return (ssize_t)len;
	switch (out->kind) {
	case OUT_SOCKET:
		n = send(out->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	case OUT_PIPE_NOWAIT:
		n = pwritev2(out->fd, &iov, 1, -1, RWF_NOWAIT);
		if (n >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS))
			break;
		out->kind = OUT_PIPE_SMALL;
		return out_write(out, data, len);
	case OUT_PIPE_SMALL:
		/* POLLOUT on a pipe means room for PIPE_BUF bytes. */
		if (poll(&ready, 1, 0) == 0)
			return -EAGAIN;
		n = write(out->fd, data, MIN(len, (size_t)PIPE_BUF));
		break;
	case OUT_PLAIN:
	default:
		n = write(out->fd, data, len);
		break;
	}
	return n < 0 ? -errno : n;
}

size_t detach_filter(struct detach_keys *keys, u8 *data, size_t len)
{
	if (keys->held) {
		memmove(data + 1, data, len);
		data[0] = CTRL_P;
		len++;
		keys->held = false;
	}
	for (size_t i = 0; i < len; i++) {
		if (data[i] != CTRL_P)
			continue;
		if (i + 1 == len) {
			keys->held = true;
			return i;
		}
		if (data[i + 1] == CTRL_Q) {
			keys->pressed = true;
			return i;
		}
	}
	return len;
}

bool tty_size_of(int fd, struct shim_size *out)
{
	struct winsize size;

	if (fd < 0 || ioctl(fd, TIOCGWINSZ, &size) < 0 || !size.ws_col || !size.ws_row)
		return false;
	out->cols = size.ws_col;
	out->rows = size.ws_row;
	return true;
}
