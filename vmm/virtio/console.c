// SPDX-License-Identifier: Apache-2.0
// virtio-console (virtio 1.2 §5.3): one port, guest output only.
//
// The guest must never wait for whoever reads its console, so output that can't be written at once
// is dropped and counted. Three kinds of output need three ways not to block:
//  - pipes and terminals: an own open file description with O_NONBLOCK, by way of /proc. Setting
//  the
//    flag on the given one would change it under every other process that shares it;
//  - sockets: MSG_DONTWAIT;
//  - the rest, and pipes where /proc is not there: poll(2) first, then at most PIPE_BUF bytes,
//  which a
//    writable pipe takes whole when nobody else writes to it.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/virtio_console.h>
#include <linux/virtio_ids.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"
#include "vmm/virtio/devices.h"

#define CONSOLE_RX 0
#define CONSOLE_TX 1

/* The driver fills the whole receive queue with pages that no input ever comes into: keep it small.
 */
#define CONSOLE_QUEUE_MAX 16

/* A line discipline writes at most a page; what a chain holds beyond this is dropped. */
#define CONSOLE_CHAIN_BYTES (64 * KIB)

struct console {
	struct virtio_dev dev;
	struct virtio_console_config config;
	int out_fd;	 /* as given, not owned; -1: drop everything */
	int nonblock_fd; /* owned: out_fd reopened; -1: not possible or not needed */
	bool is_socket;
	u64 dropped_bytes;
};

/* Return: bytes written, 0 when it would block, or -errno. */
static ssize_t write_now(const struct console *console, const void *buf, size_t len_bytes)
{
	struct pollfd poll_fd = {.fd = console->out_fd, .events = POLLOUT};
	ssize_t n;

	if (console->is_socket) {
		n = send(console->out_fd, buf, len_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
	} else if (console->nonblock_fd >= 0) {
		n = write(console->nonblock_fd, buf, len_bytes);
	} else {
		if (poll(&poll_fd, 1, 0) <= 0)
			return 0;
		n = write(console->out_fd, buf, MIN(len_bytes, (size_t)PIPE_BUF));
	}
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	return n;
}

static void console_output(struct console *console, const struct virtq_chain *chain)
{
	u32 total_bytes = MIN(chain->read_bytes, (u32)CONSOLE_CHAIN_BYTES);
	u8 buf[PIPE_BUF];
	u32 done = 0;

	if (console->out_fd < 0)
		return;
	while (done < total_bytes) {
		size_t len = virtq_chain_read(chain, done, buf,
					      MIN(sizeof(buf), (size_t)(total_bytes - done)));
		ssize_t n = write_now(console, buf, len);

		if (n <= 0)
			break;
		done += (u32)n;
	}
	if (done == chain->read_bytes)
		return;
	console->dropped_bytes += chain->read_bytes - done;
	log_guest("virtio-console: output is full, %llu bytes dropped so far",
		  (unsigned long long)console->dropped_bytes);
}

static u32 console_serve(struct virtio_dev *dev, const struct virtq_chain *chain)
{
	console_output(container_of(dev, struct console, dev), chain);
	return 0;
}

static int console_queue(struct virtio_dev *dev, unsigned int q)
{
	if (q == CONSOLE_RX)
		return 0; /* buffers for input, which never comes */
	return virtio_serve(dev, CONSOLE_TX, console_serve);
}

static void console_reset(struct virtio_dev *dev)
{
	(void)dev; /* nothing outlives a request */
}

static void console_destroy(struct virtio_dev *dev)
{
	struct console *console = container_of(dev, struct console, dev);

	fd_close(&console->nonblock_fd);
	free(console);
}

static const struct virtio_ops console_ops = {
	.name = "console",
	.id = VIRTIO_ID_CONSOLE,
	.nqueues = 2,
	.queue_max = CONSOLE_QUEUE_MAX,
	.reset = console_reset,
	.queue = console_queue,
	.destroy = console_destroy,
};

static void open_output(struct console *console)
{
	struct stat st;
	char path[64];

	if (console->out_fd < 0 || fstat(console->out_fd, &st) < 0)
		return;
	console->is_socket = S_ISSOCK(st.st_mode);
	if (!S_ISFIFO(st.st_mode) && !S_ISCHR(st.st_mode))
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", console->out_fd);
	/* A failure is fine: write_now() polls then. */
	console->nonblock_fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

int console_create(struct virtio_host *host, unsigned int slot, int out_fd, struct virtio_dev **out)
{
	struct console *console = calloc(1, sizeof(*console));

	if (!console) {
		log_err("virtio-console: out of memory");
		return -ENOMEM;
	}
	console->out_fd = out_fd;
	console->nonblock_fd = -1;
	open_output(console);
	virtio_init(&console->dev, &console_ops, host, slot, &console->config,
		    sizeof(console->config));
	*out = &console->dev;
	return 0;
}
