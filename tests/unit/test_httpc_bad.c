// SPDX-License-Identifier: Apache-2.0
// The HTTP client: what it refuses of a peer.
#include <errno.h>

#include "tests/unit/httpc_rig.h"

static void test_bad_chunks(void)
{
	static const char *const bodies[] = {"\r\n",
					     "x\r\n",
					     "-1\r\n",
					     "+5\r\nhello\r\n",
					     " 5\r\nhello\r\n",
					     "5 \r\nhello\r\n",
					     "0x5\r\nhello\r\n",
					     "5\nhello\r\n",
					     "5\r\nhello\n",
					     "5\r\nhellox\r\n",
					     "5\r\nhello\r\r\n",
					     "1000000000000000\r\n",
					     "5;\x01\r\nhello\r\n",
					     "0\r\nbad\r\n\r\n",
					     "0\r\n: x\r\n\r\n",
					     "0\r\nA b: x\r\n\r\n",
					     "0\r\nA: \x02\r\n\r\n",
					     "\n",
					     "5\rx\r\n"};
	struct rig rig;
	char body[64], *line;

	for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
		rig_init(&rig);
		peer_says(&rig, CHUNKED_HEAD);
		peer_says(&rig, bodies[i]);
		CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
		CHECK_EQ(read_all(&rig, body, sizeof(body), 64), -EPROTO);
		CHECK_EQ(httpc_read(&rig.http, body, 10), -EPROTO);
		CHECK_EQ(httpc_receive(&rig.http, false, &(struct httpc_response){0}), -EPROTO);
		rig_free(&rig);
	}
	/* A line without end is given up early; so are endless trailers. */
	line = malloc(8192);
	for (int trailers = 0; trailers < 2; trailers++) {
		rig_init(&rig);
		peer_says(&rig, CHUNKED_HEAD "0");
		memset(line, '0', 8192);
		line[8191] = '\0';
		for (size_t i = 0; trailers && i + 6 < 8192; i += 6)
			memcpy(line + i, i ? "a:bc\r\n" : "\r\nd:e\r", 6);
		peer_says(&rig, line);
		CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
		CHECK_EQ(read_all(&rig, body, sizeof(body), 64), -EPROTO);
		rig_free(&rig);
	}
	free(line);
}

static void test_bad_heads(void)
{
	static const char *const heads[] = {
		"HTTP/1.1 200 OK\n\n",
		"HTTP/2.0 200 OK\r\n\r\n",
		"HTTP/1.2 200 OK\r\n\r\n",
		"http/1.1 200 OK\r\n\r\n",
		"HTTP/1.1  200 OK\r\n\r\n",
		"HTTP/1.1 20 OK\r\n\r\n",
		"HTTP/1.1 2000\r\n\r\n",
		"HTTP/1.1 099 x\r\n\r\n",
		"HTTP/1.1 600 x\r\n\r\n",
		"HTTP/1.1 200 O\rK\r\n\r\n",
		"HTTP/1.1 200 \x01\r\n\r\n",
		"\r\nHTTP/1.1 200\r\n\r\n",
		"HTTP/1.1 200\r\nA : b\r\n\r\n",
		"HTTP/1.1 200\r\nA: b\r\n c\r\n\r\n",
		"HTTP/1.1 200\r\nA\r\n\r\n",
		"HTTP/1.1 200\r\n: b\r\n\r\n",
		"HTTP/1.1 200\r\nA: b\x7f\r\n\r\n",
		"HTTP/1.1 200\r\nA: b\nC: d\r\n\r\n",
		"HTTP/1.1 200\r\nA: b\rC: d\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length: 5, 5\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length: +5\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length: 0x5\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length:\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"HTTP/1.1 200\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 200\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"HTTP/1.0 200\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 100\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 101\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"};
	struct rig rig;

	for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
		rig_init(&rig);
		peer_says(&rig, heads[i]);
		/* One of them has no end: it is the end of the stream that it lacks. */
		shutdown(rig.peer, SHUT_WR);
		CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), i ? -EPROTO : -EPIPE);
		CHECK(!httpc_reusable(&rig.http));
		rig_free(&rig);
	}
	rig_init(&rig);
	CHECK_EQ(write(rig.peer, "HTTP/1.1 200\r\nA: b\0c\r\n\r\n", 25), 25);
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), -EPROTO);
	rig_free(&rig);
}

TEST_MAIN({"bad chunks", test_bad_chunks}, {"bad heads", test_bad_heads})
