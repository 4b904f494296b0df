// SPDX-License-Identifier: Apache-2.0
// The HTTP client, against scripted peers over a socket pair.
#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/unit/httpc_rig.h"

static void test_send(void)
{
	static const struct httpc_header plain[] = {{"Accept", "a/b"}, {NULL, NULL}};
	static const struct httpc_header host[] = {{"host", "x"}, {NULL, NULL}};
	struct rig rig;

	rig_init(&rig);
	CHECK_EQ(httpc_send(&rig.http, "GET", "/a?b=c", plain, 0), 0);
	CHECK_STR(peer_got(&rig), "GET /a?b=c HTTP/1.1\r\nAccept: a/b\r\nHost: localhost\r\n\r\n");
	CHECK_EQ(httpc_send(&rig.http, "POST", "/", host, 0), 0);
	CHECK_STR(peer_got(&rig), "POST / HTTP/1.1\r\nhost: x\r\nContent-Length: 0\r\n\r\n");
	CHECK_EQ(httpc_send_end(&rig.http), 0);
	CHECK_EQ(httpc_send(&rig.http, "PUT", "/", host, 5), 0);
	CHECK_EQ(httpc_send_body(&rig.http, "abcdef", 6), -EINVAL);
	CHECK_EQ(httpc_send_body(&rig.http, "abc", 3), 0);
	CHECK_EQ(httpc_send_end(&rig.http), -EINVAL);
	CHECK_EQ(httpc_send(&rig.http, "GET", "/", host, 0), -EINVAL);
	CHECK_EQ(httpc_send_body(&rig.http, "de", 2), 0);
	CHECK_STR(peer_got(&rig), "PUT / HTTP/1.1\r\nhost: x\r\nContent-Length: 5\r\n\r\nabcde");
	CHECK_EQ(httpc_send(&rig.http, "PUT", "/", host, -1), 0);
	CHECK_EQ(httpc_send_body(&rig.http, "0123456789abcdefg", 17), 0);
	CHECK_EQ(httpc_send_body(&rig.http, "", 0), 0);
	CHECK(!httpc_reusable(&rig.http));
	CHECK_EQ(httpc_send_end(&rig.http), 0);
	CHECK_STR(peer_got(&rig), "PUT / HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
				  "11\r\n0123456789abcdefg\r\n0\r\n\r\n");
	CHECK(httpc_reusable(&rig.http));
	rig_free(&rig);
}

static void test_send_refused(void)
{
	static const char *const targets[] = {"", "/ x", "/\r\nX: y", "/\x7f", "/\xc3\xa4"};
	static const struct httpc_header bad[] = {
		{"A", "b\r\nC: d"}, {"A", "b\nC: d"},	     {"A b", "c"},
		{"", "c"},	    {"Content-Length", "3"}, {"transfer-encoding", "chunked"},
		{"A:", "b"}};
	static const struct httpc_header two_hosts[] = {{"Host", "a"}, {"host", "b"}, {NULL, NULL}};
	struct httpc_header one[2] = {{NULL, NULL}, {NULL, NULL}};
	struct rig rig;
	char *big;

	rig_init(&rig);
	for (size_t i = 0; i < ARRAY_SIZE(targets); i++)
		CHECK_EQ(httpc_send(&rig.http, "GET", targets[i], NULL, 0), -EINVAL);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		one[0] = bad[i];
		CHECK_EQ(httpc_send(&rig.http, "GET", "/", one, 0), -EINVAL);
	}
	CHECK_EQ(httpc_send(&rig.http, "GET", "/", two_hosts, 0), -EINVAL);
	CHECK_EQ(httpc_send(&rig.http, "G T", "/", NULL, 0), -EINVAL);
	CHECK_EQ(httpc_send(&rig.http, "CONNECT", "/", NULL, 0), -EINVAL);
	CHECK_EQ(httpc_send(&rig.http, "GET", "/", NULL, -2), -EINVAL);
	big = malloc(HTTPC_HEAD_MAX_BYTES + 1);
	memset(big, 'a', HTTPC_HEAD_MAX_BYTES);
	big[HTTPC_HEAD_MAX_BYTES] = '\0';
	CHECK_EQ(httpc_send(&rig.http, "GET", big, NULL, 0), -E2BIG);
	free(big);
	CHECK_STR(peer_got(&rig), "");
	fd_close(&rig.peer);
	CHECK_EQ(httpc_send(&rig.http, "GET", "/", NULL, 0), -EPIPE);
	rig_free(&rig);
}

static void test_lengths(void)
{
	struct rig rig;
	char body[64];

	rig_init(&rig);
	peer_says(&rig,
		  "HTTP/1.1 200 OK\r\nContent-Type:  a/b \r\nContent-Length: 5\r\n\r\nhelloNEXT");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
	CHECK_EQ(rig.response.status, 200);
	CHECK_EQ(rig.response.length_bytes, 5);
	CHECK_STR(httpc_header(&rig.response, "content-type"), "a/b");
	CHECK(!httpc_header(&rig.response, "content"));
	CHECK_EQ(httpc_receive(&rig.http, false, &(struct httpc_response){0}), -EINVAL);
	CHECK_EQ(httpc_send(&rig.http, "GET", "/", NULL, 0), -EINVAL);
	CHECK_EQ(httpc_read(&rig.http, body, 0), -EINVAL);
	CHECK_EQ(read_all(&rig, body, sizeof(body), 64), 0);
	CHECK_STR(body, "hello");
	CHECK_EQ(httpc_read(&rig.http, body, 10), 0);
	/* What nobody asked for is there: the connection is not used again. */
	CHECK(!httpc_reusable(&rig.http));
	CHECK_EQ(recv(rig.http.fd, body, sizeof(body), MSG_DONTWAIT), 4);
	CHECK(httpc_reusable(&rig.http));
	httpc_response_free(&rig.response);

	peer_says(&rig, "HTTP/1.1 204\r\n\r\n");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
	CHECK_EQ(rig.response.status, 204);
	CHECK_EQ(httpc_read(&rig.http, body, 10), 0);
	httpc_response_free(&rig.response);

	peer_says(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 700\r\n\r\n");
	CHECK_EQ(httpc_receive(&rig.http, true, &rig.response), 0);
	CHECK_EQ(rig.response.length_bytes, 700);
	CHECK_EQ(httpc_read(&rig.http, body, 10), 0);
	httpc_response_free(&rig.response);

	peer_says(&rig, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
	fd_close(&rig.peer);
	CHECK_EQ(read_all(&rig, body, sizeof(body), 3), -EPIPE);
	CHECK_STR(body, "short");
	CHECK(!httpc_reusable(&rig.http));
	CHECK_EQ(httpc_read(&rig.http, body, 10), -EPROTO);
	rig_free(&rig);
}

static void test_to_end(void)
{
	static const char *const heads[] = {"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n"};
	struct rig rig;
	char body[64];

	for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
		rig_init(&rig);
		peer_says(&rig, heads[i]);
		peer_says(&rig, "all of it");
		fd_close(&rig.peer);
		CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
		CHECK_EQ(rig.response.length_bytes, -1);
		CHECK_EQ(read_all(&rig, body, sizeof(body), 4), 0);
		CHECK_STR(body, "all of it");
		CHECK(!httpc_reusable(&rig.http));
		rig_free(&rig);
	}
	rig_init(&rig);
	peer_says(&rig, "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 0\r\n\r\n");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
	CHECK(!httpc_reusable(&rig.http));
	rig_free(&rig);
}

static void test_chunked(void)
{
	static const char *const bodies[] = {
		"5\r\nhello\r\n00006;x=\"y\"\r\n world\r\n0\r\n\r\n",
		"1\r\nh\r\n0A\r\nello world\r\n000\r\nTrailer: x\r\nAnd: more\r\n\r\n",
	};
	struct rig rig;
	char body[64];

	rig_init(&rig);
	for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
		peer_says(&rig, CHUNKED_HEAD);
		peer_says(&rig, bodies[i]);
		CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
		CHECK_EQ(rig.response.length_bytes, -1);
		CHECK_EQ(read_all(&rig, body, sizeof(body), i ? 3 : 64), 0);
		CHECK_STR(body, "hello world");
		CHECK(httpc_reusable(&rig.http));
		httpc_response_free(&rig.response);
	}
	/* Smuggled behind the end: seen, and never taken for an answer. */
	peer_says(&rig, CHUNKED_HEAD "0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
	CHECK_EQ(read_all(&rig, body, sizeof(body), 64), 0);
	CHECK(!httpc_reusable(&rig.http));
	httpc_response_free(&rig.response);
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), -EPROTO);
	rig_free(&rig);
}

static void *write_much(void *opaque)
{
	int fd = *(int *)opaque;
	char text[1024];

	memset(text, 'a', sizeof(text));
	for (int i = 0; i < 80; i++) {
		if (send(fd, text, sizeof(text), MSG_NOSIGNAL) < 0)
			break;
	}
	return NULL;
}

static void test_too_much(void)
{
	pthread_t thread;
	struct rig rig;

	rig_init(&rig);
	peer_says(&rig, "HTTP/1.1 200 OK\r\n");
	CHECK_EQ(pthread_create(&thread, NULL, write_much, &rig.peer), 0);
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), -E2BIG);
	shutdown(rig.http.fd, SHUT_RDWR);
	pthread_join(thread, NULL);
	rig_free(&rig);

	rig_init(&rig);
	peer_says(&rig, "HTTP/1.1 200 OK\r\n");
	for (unsigned int i = 0; i <= HTTPC_HEADERS_MAX; i++)
		peer_says(&rig, "A: b\r\n");
	peer_says(&rig, "\r\n");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), -E2BIG);
	rig_free(&rig);

	rig_init(&rig);
	for (int i = 0; i < 20; i++)
		peer_says(&rig, "HTTP/1.1 100 Continue\r\n\r\n");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), -EPROTO);
	rig_free(&rig);
}

static void test_upgrade(void)
{
	static const struct httpc_header headers[] = {
		{"Upgrade", "thaw-exec/1"}, {"Connection", "upgrade"}, {NULL, NULL}};
	struct rig rig;
	char early[16];

	rig_init(&rig);
	CHECK_EQ(httpc_send(&rig.http, "POST", "/x", headers, 0), 0);
	peer_says(&rig, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching\r\n"
			"Upgrade: thaw-exec/1\r\nConnection: upgrade\r\n\r\nearly");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
	CHECK(rig.response.upgraded);
	CHECK_STR(httpc_header(&rig.response, "Upgrade"), "thaw-exec/1");
	CHECK_EQ(httpc_take_early(&rig.http, early, sizeof(early)), 0);
	CHECK_EQ(recv(rig.http.fd, early, sizeof(early), 0), 5);
	CHECK(!memcmp(early, "early", 5));
	CHECK(!httpc_reusable(&rig.http));
	rig_free(&rig);

	/* Refused: an answer as any other, and the connection stays. */
	rig_init(&rig);
	CHECK_EQ(httpc_send(&rig.http, "POST", "/x", headers, 0), 0);
	peer_says(&rig, "HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\nno");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
	CHECK(!rig.response.upgraded);
	CHECK_EQ(read_all(&rig, early, sizeof(early), 16), 0);
	CHECK(httpc_reusable(&rig.http));
	rig_free(&rig);
}

static void test_waits(void)
{
	struct rig rig;
	char body[16];
	int stop;

	rig_init(&rig);
	rig.http.deadline_ns = clock_now_ns() + 1000000;
	peer_says(&rig, "HTTP/1.1 200 OK\r\n");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), -ETIMEDOUT);
	rig_free(&rig);

	/* A body goes on after a time-out. */
	rig_init(&rig);
	peer_says(&rig, CHUNKED_HEAD "5\r\nhel");
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
	rig.http.deadline_ns = clock_now_ns();
	CHECK_EQ(read_all(&rig, body, sizeof(body), 16), -ETIMEDOUT);
	CHECK_STR(body, "hel");
	peer_says(&rig, "lo\r\n0\r\n\r\n");
	CHECK_EQ(read_all(&rig, body, sizeof(body), 16), 0);
	CHECK_STR(body, "lo");
	rig_free(&rig);

	rig_init(&rig);
	stop = eventfd(1, EFD_CLOEXEC);
	CHECK(stop >= 0);
	rig.http.stop_fd = stop;
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), -ECANCELED);
	rig_free(&rig);
	close(stop);

	rig_init(&rig);
	fd_close(&rig.peer);
	CHECK(!httpc_reusable(&rig.http));
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), -EPIPE);
	rig_free(&rig);
}

struct trickle {
	int fd;
	const char *text;
};

static void *write_bytes(void *opaque)
{
	const struct trickle *trickle = opaque;

	for (const char *at = trickle->text; *at; at++)
		CHECK_EQ(send(trickle->fd, at, 1, 0), 1);
	return NULL;
}

/** However the bytes arrive, they mean the same. */
static void test_trickle(void)
{
	struct trickle trickle = {.text = CHUNKED_HEAD
				  "5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nX: y\r\n\r\n"};
	pthread_t thread;
	struct rig rig;
	char body[64];

	rig_init(&rig);
	trickle.fd = rig.peer;
	CHECK_EQ(pthread_create(&thread, NULL, write_bytes, &trickle), 0);
	CHECK_EQ(httpc_receive(&rig.http, false, &rig.response), 0);
	CHECK_EQ(read_all(&rig, body, sizeof(body), 64), 0);
	CHECK_STR(body, "hello world");
	pthread_join(thread, NULL);
	CHECK(httpc_reusable(&rig.http));
	rig_free(&rig);
}

static void *drain(void *opaque)
{
	int fd = *(int *)opaque;
	static u8 buf[65536];
	u64 sum = 0;
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		for (ssize_t i = 0; i < n; i++)
			sum += buf[i];
	}
	return (void *)(uintptr_t)sum;
}

/** A body that no socket buffer holds waits for its reader. */
static void test_large_body(void)
{
	static u8 chunk[100000];
	pthread_t thread;
	struct rig rig;
	void *sum;

	rig_init(&rig);
	memset(chunk, 1, sizeof(chunk));
	CHECK_EQ(pthread_create(&thread, NULL, drain, &rig.peer), 0);
	CHECK_EQ(httpc_send(&rig.http, "PUT", "/", NULL, 5 * (s64)sizeof(chunk)), 0);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(httpc_send_body(&rig.http, chunk, sizeof(chunk)), 0);
	CHECK_EQ(httpc_send_end(&rig.http), 0);
	shutdown(rig.http.fd, SHUT_WR);
	pthread_join(thread, &sum);
	CHECK((uintptr_t)sum > 5 * sizeof(chunk));
	rig_free(&rig);
}

static void test_connect(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	char folder[] = "/tmp/test-httpc-XXXXXX", path[64], longer[200];
	int listener, fd;

	CHECK(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/sock", folder);
	CHECK_EQ(httpc_connect_unix(path), -ENOENT);
	memset(longer, 'a', sizeof(longer));
	longer[sizeof(longer) - 1] = '\0';
	CHECK_EQ(httpc_connect_unix(longer), -ENAMETOOLONG);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	strcpy(addr.sun_path, path);
	CHECK_EQ(bind(listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	CHECK_EQ(httpc_connect_unix(path), -ECONNREFUSED);
	CHECK_EQ(listen(listener, 1), 0);
	fd = httpc_connect_unix(path);
	CHECK(fd >= 0);
	close(fd);
	close(listener);
	unlink(path);
	rmdir(folder);
}

static void test_url(void)
{
	char out[16];

	CHECK_EQ(httpc_url_encode("aZ09-._~", out, sizeof(out)), 0);
	CHECK_STR(out, "aZ09-._~");
	CHECK_EQ(httpc_url_encode("/ %\xc3\n", out, 16), 0);
	CHECK_STR(out, "%2F%20%25%C3%0A");
	CHECK_EQ(httpc_url_encode("/ %\xc3\n", out, 15), -ENAMETOOLONG);
	CHECK_EQ(httpc_url_encode("abc", out, 4), 0);
	CHECK_EQ(httpc_url_encode("abc", out, 3), -ENAMETOOLONG);
	CHECK_EQ(httpc_url_encode("", out, 1), 0);
	CHECK_EQ(httpc_url_encode("", out, 0), -ENAMETOOLONG);
}

TEST_MAIN({"requests", test_send}, {"requests that are refused", test_send_refused},
	  {"bodies of known length", test_lengths}, {"bodies to the end", test_to_end},
	  {"chunked bodies", test_chunked}, {"too much", test_too_much}, {"upgrade", test_upgrade},
	  {"waits", test_waits}, {"byte by byte", test_trickle}, {"large bodies", test_large_body},
	  {"connect", test_connect}, {"URL encoding", test_url})
