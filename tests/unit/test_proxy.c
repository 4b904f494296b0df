// SPDX-License-Identifier: Apache-2.0
// What passes thawd's port proxy: headers, cookies, query; host names of previews.
#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test.h"
#include "vmm/daemon/auth.h"
#include "vmm/daemon/proxy.h"

static void test_headers(void)
{
	CHECK(proxy_header_passes("Accept", NULL));
	CHECK(proxy_header_passes("X-Connection", "close"));
	CHECK(!proxy_header_passes("connection", NULL));
	CHECK(!proxy_header_passes("Transfer-Encoding", NULL));
	CHECK(!proxy_header_passes("CONTENT-LENGTH", NULL));
	CHECK(!proxy_header_passes("Upgrade", NULL));
	CHECK(!proxy_header_passes("Proxy-Authorization", NULL));
	CHECK(!proxy_header_passes("X-Secret", "keep-alive, x-secret"));
	CHECK(!proxy_header_passes("X-Secret", "keep-alive,,\tX-SECRET ,a"));
	CHECK(proxy_header_passes("X-Secret", "x-secrets, x-secre"));
}

static void strips(const char *value, const char *expected)
{
	char out[200];

	CHECK_EQ(proxy_strip_cookie(value, "t", out), strlen(expected));
	CHECK_STR(out, expected);
}

static void test_cookies(void)
{
	const char *at;

	strips("t=1", "");
	strips("a=1; t=2; b=3", "a=1; b=3");
	strips("tt=1; t =2;t=3 ;  at=4", "tt=1; at=4");
	strips("a=t=1;b", "a=t=1; b");
	strips("a;b;c", "a; b; c"); /* longer than it was */
	strips("", "");
	strips("; ;", "");
	strips("t", "");
	CHECK_EQ(proxy_cookie("a=1; t=abc; b=2", "t", &at), 3);
	CHECK(!strncmp(at, "abc", 3));
	CHECK_EQ(proxy_cookie("t=", "t", &at), 0);
	CHECK_EQ(proxy_cookie("tt=1; t", "t", &at), -ENOENT);
	CHECK_EQ(proxy_cookie("a=\"t=1\"", "t", &at), -ENOENT);
}

static void query(const char *target, const char *expected)
{
	char out[200];

	proxy_strip_query(target, "tok", out);
	CHECK_STR(out, expected);
}

static void test_query(void)
{
	query("/", "/");
	query("/?", "/");
	query("/a?tok=1", "/a");
	query("/a?tok=1&b=2", "/a?b=2");
	query("/a?b=2&tok=1&c", "/a?b=2&c");
	query("/a?t%6Fk=1&toks=2&tok", "/a?toks=2");
	query("/a?b=tok=1&%zz", "/a?b=tok=1&%zz");
	query("/a?b=?tok=1", "/a?b=?tok=1");
}

static int host(const char *text, struct preview_host *out)
{
	return preview_host_parse(text, "p.example.org", out);
}

static void test_hosts(void)
{
	static const char *const bad[] = {
		"",
		"p.example.org",
		"80.p.example.org",
		"80-.p.example.org",
		"-a.p.example.org",
		"0-a.p.example.org",
		"080-a.p.example.org",
		"65536-a.p.example.org",
		"80-a.q.example.org",
		"80-a.p.example.or",
		"80-a.p.example.orgx",
		"80-a-.p.example.org",
		"80-a.b.p.example.org",
		"80-a p.example.org",
		"80-ap.example.org",
		"99999999999-a.p.example.org",
		"80-a_b.p.example.org",
		"[::1]:80",
	};
	struct preview_host out;
	char text[200];

	CHECK_EQ(host("8080-user-123.p.example.org", &out), 0);
	CHECK_EQ(out.port, 8080);
	CHECK_STR(out.name, "user-123");
	CHECK_EQ(host("1-A.P.example.ORG:8443", &out), 0);
	CHECK_STR(out.name, "a");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (host(bad[i], &out) != -EINVAL) {
			fprintf(stderr, "'%s' was taken\n", bad[i]);
			exit(1);
		}
	}
	memset(text, 'a', sizeof(text));
	memcpy(text, "80-", 3);
	strcpy(text + 3 + 63, ".p.example.org");
	CHECK_EQ(host(text, &out), 0);
	CHECK_EQ(strlen(out.name), 63);
	strcpy(text + 3 + 64, ".p.example.org");
	CHECK_EQ(host(text, &out), -EINVAL);
}

static void test_same(void)
{
	CHECK(auth_same("abc", "abc"));
	CHECK(!auth_same("abc", "abd"));
	CHECK(!auth_same("abc", "ab"));
	CHECK(!auth_same("abc", "abcabc"));
	CHECK(!auth_same("abc", ""));
	CHECK(!auth_same("", "a"));
	CHECK(auth_same("", ""));
}

/** A pump between the inner ends of two pairs. */
struct rig {
	int a[2], b[2], stop;
	u64 in_bytes, out_bytes;
	pthread_t thread;
};

static void *pump(void *opaque)
{
	struct rig *rig = opaque;

	proxy_pump(rig->a[1], rig->b[1], rig->stop, &rig->in_bytes, &rig->out_bytes);
	close(rig->a[1]);
	close(rig->b[1]);
	return NULL;
}

static void rig_start(struct rig *rig)
{
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, rig->a), 0);
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, rig->b), 0);
	rig->stop = eventfd(0, 0);
	CHECK_EQ(pthread_create(&rig->thread, NULL, pump, rig), 0);
}

static void rig_end(struct rig *rig)
{
	CHECK_EQ(pthread_join(rig->thread, NULL), 0);
	close(rig->stop);
}

static void *send_much(void *opaque)
{
	static u8 data[100000];

	for (unsigned int i = 0; i < 30; i++)
		CHECK_EQ(send(*(int *)opaque, data, sizeof(data), 0), sizeof(data));
	shutdown(*(int *)opaque, SHUT_WR);
	return NULL;
}

static u64 drain(int fd)
{
	u8 buf[5000];
	u64 total = 0;
	ssize_t got;

	while ((got = recv(fd, buf, sizeof(buf), 0)) > 0)
		total += (u64)got;
	return total;
}

static void test_pump(void)
{
	pthread_t sender;
	struct rig rig;
	char buf[8];

	/* There, its end, and then back. */
	rig_start(&rig);
	CHECK_EQ(pthread_create(&sender, NULL, send_much, &rig.a[0]), 0);
	CHECK_EQ(drain(rig.b[0]), 3000000);
	pthread_join(sender, NULL);
	CHECK_EQ(send(rig.b[0], "back", 4, 0), 4);
	CHECK_EQ(recv(rig.a[0], buf, sizeof(buf), 0), 4);
	close(rig.b[0]);
	CHECK_EQ(drain(rig.a[0]), 0);
	rig_end(&rig);
	CHECK_EQ(rig.in_bytes, 3000000);
	CHECK_EQ(rig.out_bytes, 4);
	close(rig.a[0]);

	/* One that is gone for good ends it, though the other says nothing; what it sent arrives.
	 */
	rig_start(&rig);
	CHECK_EQ(send(rig.a[0], "last", 4, 0), 4);
	close(rig.a[0]);
	CHECK_EQ(drain(rig.b[0]), 4);
	rig_end(&rig);
	close(rig.b[0]);

	/* Told to stop. */
	rig_start(&rig);
	eventfd_write(rig.stop, 1);
	rig_end(&rig);
	CHECK_EQ(drain(rig.a[0]), 0);
	close(rig.a[0]);
	close(rig.b[0]);
}

TEST_MAIN({"headers", test_headers}, {"cookies", test_cookies}, {"query", test_query},
	  {"hosts", test_hosts}, {"same", test_same}, {"pump", test_pump})
