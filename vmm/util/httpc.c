// SPDX-License-Identifier: Apache-2.0
// A small strict HTTP/1.1 client: waiting, sending, finding the end of a head.
//
// A head is taken from the socket exactly: what is there is looked at first (MSG_PEEK), and only
// what belongs to the head is removed. So after an upgrade the socket is the new protocol's from
// its first byte on, and a body of known length goes straight into the caller's buffer. Only a
// chunked body is read through the buffer here, since its lines can't be foreseen.
#include "vmm/util/httpc.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "vmm/util/httpc_internal.h"
#include "vmm/util/util.h"

/** Interim answers (100, 102, 103) before the real one. */
#define INTERIM_MAX 16

int httpc_init(struct httpc *http, int fd)
{
	*http = (struct httpc){.fd = fd, .stop_fd = -1, .stop_events = POLLIN, .keep_alive = true};
	/* Only what is used of it is ever touched. */
	http->buf = malloc(HTTPC_HEAD_MAX_BYTES + 1);
	return http->buf ? 0 : -ENOMEM;
}

void httpc_free(struct httpc *http)
{
	free(http->buf);
	http->buf = NULL;
}

int httpc_connect_unix(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	size_t len = strlen(path);
	int fd, ret;

	if (len >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	memcpy(addr.sun_path, path, len);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	do {
		ret = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
	} while (ret < 0 && errno == EINTR);
	if (ret < 0) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

/** Return: 0 when @events may have come, -ETIMEDOUT, -ECANCELED or -errno. */
static int wait_for(const struct httpc *http, short events)
{
	struct pollfd fds[2] = {{.fd = http->fd, .events = events},
				{.fd = http->stop_fd, .events = http->stop_events}};
	int timeout_ms = -1, n;

	if (http->deadline_ns) {
		u64 now_ns = clock_now_ns();

		if (now_ns >= http->deadline_ns)
			return -ETIMEDOUT;
		timeout_ms = (int)MIN((http->deadline_ns - now_ns) / 1000000 + 1, (u64)1000000000);
	}
	n = poll(fds, 2, timeout_ms);
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	if (fds[1].revents)
		return -ECANCELED;
	return 0;
}

static int send_all(struct httpc *http, const void *buf, size_t len_bytes)
{
	const char *at = buf;
	ssize_t n;
	int ret;

	while (len_bytes) {
		n = send(http->fd, at, len_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n >= 0) {
			at += n;
			len_bytes -= (size_t)n;
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno == EPIPE || errno == ECONNRESET)
			return -EPIPE;
		if (errno != EAGAIN)
			return -errno;
		ret = wait_for(http, POLLOUT);
		if (ret)
			return ret;
	}
	return 0;
}

ssize_t httpc_recv(struct httpc *http, void *buf, size_t max_bytes, int flags)
{
	ssize_t n;
	int ret;

	for (;;) {
		n = recv(http->fd, buf, max_bytes, flags | MSG_DONTWAIT);
		if (n >= 0)
			return n;
		if (errno == EINTR)
			continue;
		if (errno == ECONNRESET)
			return -EPIPE;
		if (errno != EAGAIN)
			return -errno;
		ret = wait_for(http, POLLIN);
		if (ret)
			return ret;
	}
}

/* A head under construction. */
struct head {
	char *text;
	size_t len;
	int error;
};

static void head_add(struct head *head, const char *fmt, ...) __printf(2, 3);

static void head_add(struct head *head, const char *fmt, ...)
{
	const size_t room = HTTPC_HEAD_MAX_BYTES - head->len;
	va_list args;
	int n;

	if (head->error)
		return;
	va_start(args, fmt);
	n = vsnprintf(head->text + head->len, room, fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= room)
		head->error = -E2BIG;
	else
		head->len += (size_t)n;
}

/** A method whose request has a body, if only an empty one (RFC 9110, 8.6). */
static bool method_has_body(const char *method)
{
	return !strcmp(method, "POST") || !strcmp(method, "PUT") || !strcmp(method, "PATCH");
}

static bool target_ok(const char *target)
{
	if (!target[0])
		return false;
	for (; *target; target++) {
		if (*target <= ' ' || *target > '~')
			return false;
	}
	return true;
}

/** Return: 0 or -EINVAL. */
static int add_headers(struct httpc *http, struct head *head, const struct httpc_header *headers)
{
	unsigned int hosts = 0;

	http->upgrade_asked = false;
	for (; headers && headers->name; headers++) {
		if (!httpc_is_token(headers->name, strlen(headers->name)) ||
		    !httpc_is_value(headers->value, strlen(headers->value)))
			return -EINVAL;
		if (!strcasecmp(headers->name, "Content-Length") ||
		    !strcasecmp(headers->name, "Transfer-Encoding"))
			return -EINVAL;
		hosts += !strcasecmp(headers->name, "Host");
		if (!strcasecmp(headers->name, "Upgrade"))
			http->upgrade_asked = true;
		head_add(head, "%s: %s\r\n", headers->name, headers->value);
	}
	if (!hosts)
		head_add(head, "Host: localhost\r\n");
	return hosts > 1 ? -EINVAL : 0;
}

int httpc_send(struct httpc *http, const char *method, const char *target,
	       const struct httpc_header *headers, s64 body_bytes)
{
	struct head head = {0};
	int ret = -EINVAL;

	if (!httpc_is_token(method, strlen(method)) || !strcmp(method, "CONNECT") ||
	    !target_ok(target) || body_bytes < -1 || http->body_state != HTTPC_DONE ||
	    http->send_left)
		return -EINVAL;
	head.text = malloc(HTTPC_HEAD_MAX_BYTES);
	if (!head.text)
		return -ENOMEM;
	head_add(&head, "%s %s HTTP/1.1\r\n", method, target);
	if (add_headers(http, &head, headers))
		goto out;
	if (body_bytes < 0)
		head_add(&head, "Transfer-Encoding: chunked\r\n");
	else if (body_bytes || method_has_body(method))
		head_add(&head, "Content-Length: %lld\r\n", (long long)body_bytes);
	head_add(&head, "\r\n");
	ret = head.error ? head.error : send_all(http, head.text, head.len);
	if (!ret)
		http->send_left = body_bytes;
out:
	free(head.text);
	return ret;
}

int httpc_send_body(struct httpc *http, const void *buf, size_t len_bytes)
{
	char line[24];
	int n, ret;

	if (!len_bytes)
		return 0;
	if (http->send_left >= 0) {
		if (len_bytes > (u64)http->send_left)
			return -EINVAL;
		ret = send_all(http, buf, len_bytes);
		if (!ret)
			http->send_left -= (s64)len_bytes;
		return ret;
	}
	n = snprintf(line, sizeof(line), "%zx\r\n", len_bytes);
	ret = send_all(http, line, (size_t)n);
	if (!ret)
		ret = send_all(http, buf, len_bytes);
	return ret ? ret : send_all(http, "\r\n", 2);
}

int httpc_send_end(struct httpc *http)
{
	int ret;

	if (http->send_left >= 0)
		return http->send_left ? -EINVAL : 0;
	ret = send_all(http, "0\r\n\r\n", 5);
	if (!ret)
		http->send_left = 0;
	return ret;
}

/** Where the head in @buf ends; 0: not yet. @from: what is before it has been looked at. */
static size_t head_end(const char *buf, size_t from, size_t len)
{
	const size_t at = from > 3 ? from - 3 : 0;
	const char *end = memmem(buf + at, len - at, "\r\n\r\n", 4);

	return end ? (size_t)(end - buf) + 4 : 0;
}

/** Return: length of the head that is in http->buf then, or -errno. */
static ssize_t take_head(struct httpc *http)
{
	size_t used = 0, end;
	ssize_t n;

	for (;;) {
		if (used == HTTPC_HEAD_MAX_BYTES)
			return -E2BIG;
		n = httpc_recv(http, http->buf + used, HTTPC_HEAD_MAX_BYTES - used, MSG_PEEK);
		if (n == 0)
			return -EPIPE;
		if (n < 0)
			return n;
		end = head_end(http->buf, used, used + (size_t)n);
		/* The same bytes again, this time to be removed. */
		n = httpc_recv(http, http->buf + used, end ? end - used : (size_t)n, 0);
		if (n <= 0)
			return n ? n : -EPIPE;
		used += (size_t)n;
		if (end && used == end)
			return (ssize_t)used;
	}
}

/** One head, interim or final. */
static int receive_one(struct httpc *http, bool is_head, struct httpc_response *response)
{
	ssize_t len = take_head(http);
	int ret;

	if (len < 0)
		return (int)len;
	response->head = malloc((size_t)len + 1);
	if (!response->head)
		return -ENOMEM;
	memcpy(response->head, http->buf, (size_t)len);
	response->head[len] = '\0';
	ret = httpc_parse_head(http, response->head, (size_t)len, is_head, response);
	if (ret)
		httpc_response_free(response);
	return ret;
}

int httpc_receive(struct httpc *http, bool is_head, struct httpc_response *response)
{
	int ret;

	response->head = NULL;
	if (http->body_state != HTTPC_DONE)
		return http->body_state == HTTPC_BROKEN ? -EPROTO : -EINVAL;
	/* Left over from a chunked body: nobody had asked for it. */
	if (http->start != http->used)
		return -EPROTO;
	http->start = http->used = 0;
	for (int i = 0; i <= INTERIM_MAX; i++) {
		ret = receive_one(http, is_head, response);
		if (ret)
			goto out_broken;
		if (response->status >= 200 || response->upgraded)
			return 0;
		httpc_response_free(response);
	}
	ret = -EPROTO;
out_broken:
	http->body_state = HTTPC_BROKEN;
	return ret;
}

void httpc_response_free(struct httpc_response *response)
{
	free(response->head);
	response->head = NULL;
	response->nheaders = 0;
}

const char *httpc_header(const struct httpc_response *response, const char *name)
{
	for (unsigned int i = 0; i < response->nheaders; i++) {
		if (!strcasecmp(response->headers[i].name, name))
			return response->headers[i].value;
	}
	return NULL;
}

size_t httpc_take_early(struct httpc *http, void *buf, size_t max_bytes)
{
	(void)http;
	(void)buf;
	(void)max_bytes;
	return 0;
}

bool httpc_reusable(const struct httpc *http)
{
	char byte;

	if (!http->keep_alive || http->body_state != HTTPC_DONE || http->send_left ||
	    http->start != http->used)
		return false;
	return recv(http->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

int httpc_url_encode(const char *text, char *out, size_t out_bytes)
{
	static const char digits[] = "0123456789ABCDEF";
	size_t used = 0;

	for (; *text; text++) {
		const u8 c = (u8)*text;
		const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
				   (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' ||
				   c == '~';

		if (out_bytes - used < (plain ? 2 : 4) || used >= out_bytes)
			return -ENAMETOOLONG;
		if (plain) {
			out[used++] = (char)c;
			continue;
		}
		out[used++] = '%';
		out[used++] = digits[c >> 4];
		out[used++] = digits[c & 15];
	}
	if (used >= out_bytes)
		return -ENAMETOOLONG;
	out[used] = '\0';
	return 0;
}
