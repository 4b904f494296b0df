// SPDX-License-Identifier: Apache-2.0
// Bytes between two sockets, both ways at once.
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "vmm/daemon/proxy.h"

#define PUMP_BYTES ((size_t)(64 * KIB))

/** One direction. It has ended when @from has, and all has been written. */
struct flow {
	int from, to;
	u8 *buf;
	size_t start, used;
	u64 moved;
	bool eof, ended;
};

/** flow_read() - Return: 0 or -errno. */
static int flow_read(struct flow *flow)
{
	ssize_t got;

	if (flow->eof || flow->used)
		return 0;
	got = recv(flow->from, flow->buf, PUMP_BYTES, MSG_DONTWAIT);
	if (got < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	flow->eof = !got;
	flow->start = 0;
	flow->used = (size_t)got;
	return 0;
}

static int flow_write(struct flow *flow)
{
	while (flow->used) {
		ssize_t put = send(flow->to, flow->buf + flow->start, flow->used,
				   MSG_DONTWAIT | MSG_NOSIGNAL);

		if (put < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		flow->start += (size_t)put;
		flow->used -= (size_t)put;
		flow->moved += (u64)put;
	}
	if (flow->eof && !flow->ended) {
		flow->ended = true;
		shutdown(flow->to, SHUT_WR);
	}
	return 0;
}

/** events() - what @fd is waited for: it is read by @in and written by @out. */
static short events(const struct flow *in, const struct flow *out)
{
	return (short)((!in->eof && !in->used ? POLLIN : 0) | (out->used ? POLLOUT : 0));
}

static int pump_once(struct flow *ab, struct flow *ba, int stop_fd)
{
	struct pollfd fds[3] = {{.fd = ab->from, .events = events(ab, ba)},
				{.fd = ba->from, .events = events(ba, ab)},
				{.fd = stop_fd, .events = POLLIN}};
	bool idle[2];
	int ret;

	/* One that has nothing to be waited for would make poll() spin once it is hung up. But when
	 * all it sent has been delivered, a hang-up says that nobody takes what comes back. */
	for (unsigned int i = 0; i < 2; i++) {
		const struct flow *in = i ? ba : ab, *out = i ? ab : ba;

		idle[i] = !fds[i].events && in->ended && !out->ended;
		if (!fds[i].events && !idle[i])
			fds[i].fd = -1;
	}
	if (poll(fds, 3, -1) < 0 && errno != EINTR)
		return -errno;
	if (fds[2].revents)
		return -ECANCELED;
	if ((idle[0] && fds[0].revents) || (idle[1] && fds[1].revents))
		return -EPIPE;
	ret = flow_read(ab);
	if (!ret)
		ret = flow_write(ab);
	if (!ret)
		ret = flow_read(ba);
	return ret ? ret : flow_write(ba);
}

void proxy_pump(int a, int b, int stop_fd, u64 *in_bytes, u64 *out_bytes)
{
	struct flow ab = {.from = a, .to = b, .buf = malloc(PUMP_BYTES)};
	struct flow ba = {.from = b, .to = a, .buf = malloc(PUMP_BYTES)};
	int ret = ab.buf && ba.buf ? 0 : -ENOMEM;

	while (!ret && !(ab.ended && ba.ended))
		ret = pump_once(&ab, &ba, stop_fd);
	*in_bytes = ab.moved;
	*out_bytes = ba.moved;
	free(ab.buf);
	free(ba.buf);
}
