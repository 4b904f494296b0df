/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP client and a scripted peer, at the ends of a socket pair. */
#ifndef THAW_TESTS_UNIT_HTTPC_RIG_H
#define THAW_TESTS_UNIT_HTTPC_RIG_H

#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "vmm/util/httpc.h"
#include "vmm/util/util.h"

struct rig {
	int peer;
	struct httpc http;
	struct httpc_response response;
};

static inline void rig_init(struct rig *rig)
{
	int fds[2];

	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	rig->peer = fds[1];
	CHECK_EQ(httpc_init(&rig->http, fds[0]), 0);
	rig->response = (struct httpc_response){0};
}

static inline void rig_free(struct rig *rig)
{
	httpc_response_free(&rig->response);
	close(rig->http.fd);
	httpc_free(&rig->http);
	fd_close(&rig->peer);
}

static inline void peer_says(struct rig *rig, const char *text)
{
	CHECK_EQ(write(rig->peer, text, strlen(text)), (ssize_t)strlen(text));
}

/** What the peer has got so far, as a string. */
static inline const char *peer_got(struct rig *rig)
{
	static char text[4096];
	ssize_t n = recv(rig->peer, text, sizeof(text) - 1, MSG_DONTWAIT);

	text[n > 0 ? n : 0] = '\0';
	return text;
}

/** The body up to its end into @out. Return: what httpc_read() returned last. */
static inline ssize_t read_all(struct rig *rig, char *out, size_t room, size_t step)
{
	size_t used = 0;
	ssize_t n;

	while ((n = httpc_read(&rig->http, out + used, MIN(step, room - 1 - used))) > 0)
		used += (size_t)n;
	out[used] = '\0';
	return n;
}

#define CHUNKED_HEAD "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"

#endif
