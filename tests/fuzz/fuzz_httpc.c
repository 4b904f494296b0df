// SPDX-License-Identifier: Apache-2.0
// Fuzz target: answers to the HTTP client. The first byte says what was asked for; the rest is what
// the peer sends. Oracles: sanitizers, that bodies have the length that was announced, that what
// was read in pieces is what is read at once, and that headers are what the contract says.
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vmm/util/httpc.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define INPUT_MAX   65536u
#define ANSWERS_MAX 8

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes);

/* What one reading of the whole input gave. */
struct reading {
	int ret[ANSWERS_MAX];
	unsigned int status[ANSWERS_MAX];
	ssize_t end[ANSWERS_MAX];
	size_t body_bytes;
	u8 body[INPUT_MAX];
};

static void check_headers(const struct httpc_response *response)
{
	BUG_ON(response->status < 100 || response->status > 599);
	BUG_ON(response->nheaders > HTTPC_HEADERS_MAX);
	for (unsigned int i = 0; i < response->nheaders; i++) {
		BUG_ON(!response->headers[i].name[0] ||
		       strpbrk(response->headers[i].name, " \t\r\n:") ||
		       strpbrk(response->headers[i].value, "\r\n"));
		BUG_ON(!httpc_header(response, response->headers[i].name));
	}
}

/** One answer. Return: may another one be asked for? */
static bool read_answer(struct httpc *http, u8 flags, size_t step, struct reading *out, int i)
{
	static const struct httpc_header upgrade[] = {{"Upgrade", "x"}, {NULL, NULL}};
	const size_t before = out->body_bytes;
	struct httpc_response response;
	ssize_t n = 0;

	if (httpc_send(http, "GET", "/", flags & 1 ? upgrade : NULL, 0))
		return false;
	out->ret[i] = httpc_receive(http, flags & 2, &response);
	if (out->ret[i])
		return false;
	out->status[i] = response.status;
	check_headers(&response);
	BUG_ON(response.upgraded && !(flags & 1));
	while (!response.upgraded) {
		const size_t room = INPUT_MAX - out->body_bytes;

		n = httpc_read(http, out->body + out->body_bytes, MIN(step, room));
		if (n <= 0)
			break;
		out->body_bytes += (size_t)n;
	}
	out->end[i] = n;
	BUG_ON((flags & 2) && out->body_bytes != before);
	BUG_ON(n == 0 && !(flags & 2) && response.length_bytes >= 0 &&
	       out->body_bytes - before != (u64)response.length_bytes);
	httpc_response_free(&response);
	return n == 0 && !response.upgraded;
}

static void read_input(const u8 *data, size_t len_bytes, u8 flags, size_t step, struct reading *out)
{
	struct httpc http;
	int fds[2];

	memset(out, 0, offsetof(struct reading, body));
	BUG_ON(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
	BUG_ON(httpc_init(&http, fds[0]));
	http.deadline_ns = 1;
	BUG_ON(fd_write_full(fds[1], data, len_bytes));
	shutdown(fds[1], SHUT_WR);
	for (int i = 0; i < ANSWERS_MAX; i++) {
		if (!read_answer(&http, flags, step, out, i))
			break;
	}
	httpc_free(&http);
	close(fds[0]);
	close(fds[1]);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t len_bytes)
{
	static struct reading at_once, pieces;

	if (len_bytes < 2 || len_bytes > INPUT_MAX)
		return 0;
	read_input(data + 1, len_bytes - 1, data[0], INPUT_MAX, &at_once);
	read_input(data + 1, len_bytes - 1, data[0], 1 + data[0] % 7, &pieces);
	BUG_ON(memcmp(&at_once, &pieces, offsetof(struct reading, body)) != 0);
	BUG_ON(memcmp(at_once.body, pieces.body, at_once.body_bytes) != 0);
	return 0;
}
