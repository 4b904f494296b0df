// SPDX-License-Identifier: Apache-2.0
// A connection to a port in a sandbox: a stream to its shim, which connects there.
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/shim/frame.h"
#include "vmm/daemon/proxy.h"
#include "vmm/util/util.h"

#define ERROR_MAX_BYTES 4096u

/** wait_readable() - Return: 0, -ETIMEDOUT, -ECANCELED. */
static int wait_readable(int fd, u64 deadline_ns, int stop_fd)
{
	struct pollfd fds[2] = {{.fd = fd, .events = POLLIN},
				{.fd = stop_fd, .events = PROXY_STOP_EVENTS}};

	for (;;) {
		u64 now_ns = clock_now_ns();

		if (now_ns >= deadline_ns)
			return -ETIMEDOUT;
		if (poll(fds, 2, (int)((deadline_ns - now_ns) / 1000000) + 1) < 0 && errno != EINTR)
			return -errno;
		if (fds[1].revents)
			return -ECANCELED;
		if (fds[0].revents)
			return 0;
	}
}

/** read_exact() - not a byte more: what follows is the server's. */
static int read_exact(int fd, void *buf, size_t len_bytes, u64 deadline_ns, int stop_fd)
{
	size_t used = 0;

	while (used < len_bytes) {
		ssize_t got = recv(fd, (char *)buf + used, len_bytes - used, MSG_DONTWAIT);
		int ret;

		if (got > 0) {
			used += (size_t)got;
			continue;
		}
		if (!got || (got < 0 && errno != EAGAIN && errno != EINTR))
			return -ENODEV;
		ret = wait_readable(fd, deadline_ns, stop_fd);
		if (ret)
			return ret;
	}
	return 0;
}

/** read_error() - the shim's SHIM_ERROR. Return: -errno of it, or what went wrong. */
static int read_error(int fd, u32 len_bytes, u64 deadline_ns, int stop_fd)
{
	u8 payload[sizeof(struct shim_error) + ERROR_MAX_BYTES];
	struct shim_error error;
	int ret;

	if (len_bytes < sizeof(error) || len_bytes > sizeof(payload))
		return -EPROTO;
	ret = read_exact(fd, payload, len_bytes, deadline_ns, stop_fd);
	if (ret)
		return ret;
	memcpy(&error, payload, sizeof(error));
	/* The guest's word, so only a number that is one of errno's. */
	return error.error > 0 && error.error < 4096 ? -(int)error.error : -EPROTO;
}

static int handshake(int fd, u32 port, u64 deadline_ns, int stop_fd)
{
	struct {
		u8 header[FRAME_HEADER_BYTES];
		struct shim_connect connect;
	} request = {.connect = {.port = port}};
	struct shim_frame frame;
	u8 header[FRAME_HEADER_BYTES];
	int ret;

	frame_put(request.header, SHIM_CONNECT, sizeof(request.connect));
	/* The first bytes of a fresh stream: they fit. */
	if (send(fd, &request, sizeof(request), MSG_DONTWAIT | MSG_NOSIGNAL) !=
	    (ssize_t)sizeof(request))
		return -ENODEV;
	ret = read_exact(fd, header, sizeof(header), deadline_ns, stop_fd);
	if (ret)
		return ret;
	if (frame_get(header, FRAME_FROM_GUEST, &frame))
		return -EPROTO;
	if (frame.type == SHIM_ERROR)
		return read_error(fd, frame.len_bytes, deadline_ns, stop_fd);
	return frame.type == SHIM_OK && !frame.len_bytes ? 0 : -EPROTO;
}

int proxy_connect(struct thawd *thawd, const struct box_use *use, u32 port, u64 deadline_ns,
		  int stop_fd)
{
	int fd = box_stream(thawd, use, deadline_ns, stop_fd), ret;

	if (fd < 0)
		return fd;
	ret = handshake(fd, port, deadline_ns, stop_fd);
	if (!ret)
		return fd;
	fd_close(&fd);
	return ret;
}

void proxy_reply_failed(struct http_req *req, const char *box, u32 port, int err)
{
	json_t *details = json_pack("{s:i}", "port", (int)port);

	if (err == -ECANCELED) {
		json_decref(details);
		return;
	}
	if (err == -ECONNREFUSED)
		http_reply_error(req, 502, "port_closed", details,
				 "nothing listens on port %u of sandbox '%s'", port, box);
	else if (err == -ETIMEDOUT)
		http_reply_error(req, 504, "timeout", details,
				 "port %u of sandbox '%s' could not be reached in time", port, box);
	else if (err == -EAGAIN)
		http_reply_retry(req, 1, "sandbox '%s' has as many connections as it can have",
				 box);
	else if (err == -ENODEV || err == -EPROTO || err == -EPIPE || err == -ECONNRESET)
		http_reply_error(req, 502, "guest_lost", details,
				 "sandbox '%s' does not answer any more", box);
	else
		http_reply_error(req, 502, "port_closed", details, "port %u of sandbox '%s': %s",
				 port, box, strerror(-err));
	if (err == -EAGAIN)
		json_decref(details);
}

u32 proxy_port(struct http_req *req)
{
	const char *text = http_param(req, "port");
	u64 port;

	if (text && !parse_u64(text, 1, 65535, &port))
		return (u32)port;
	http_reply_error(req, 400, "invalid_request", NULL, "expected a port from 1 to 65535");
	return 0;
}
