// SPDX-License-Identifier: Apache-2.0
// `thaw forward`: a TCP port or a Unix socket here that leads to a port in a sandbox.
//
// Each connection that comes in gets one to thawd of its own, upgraded to the guest's TCP stream,
// and a thread that moves bytes in both directions until both are at their end. A port nobody
// listens to ends the connection at once; the error says so, and the next one is tried anew.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define FORWARDS_MAX	16
#define CONNECTIONS_MAX 256
#define RELAY_BYTES	65536
#define THREAD_STACK	(256u << 10)

struct forward_opts {
	const char *bind;
	bool json;
};

#define FIELD(field) offsetof(struct forward_opts, field)

static const struct optparse_spec forward_specs[] = {
	{"bind", 'b', "ADDRESS", optparse_string, FIELD(bind),
	 "listen at ADDRESS, an IP address of this machine (default\n127.0.0.1)", NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "where it listens, as JSON", NULL},
};

const struct optparse_command forward_command = {
	.usage = "thaw forward NAME [LOCAL:]PORT... [OPTION]...",
	.summary = "Make ports of a sandbox reachable here, until interrupted.",
	.details =
		"LOCAL is a TCP port here (default: the same number; 0: any that is free, which is "
		"printed) or the path\nof a Unix socket to make. PORT is one that something in the "
		"sandbox listens to at 127.0.0.1.",
	.specs = forward_specs,
	.nspecs = ARRAY_SIZE(forward_specs),
	.positional_min = 2,
	.positional_max = 1 + FORWARDS_MAX,
	.positional_name = "NAME or PORT",
	.completes = "sandbox",
};

/* One listener. */
struct listener {
	int fd;
	u16 port; /* in the sandbox */
	char where[128];
	const char *path; /* of a Unix socket, to be removed; NULL: TCP */
};

struct forward {
	struct forward_opts opts;
	char box[CLIENT_NAME_BYTES];
	struct listener listeners[FORWARDS_MAX];
	size_t count;
};

/* One connection; its thread frees it. */
struct link {
	const char *box;
	u16 port;
	int fd;
};

static unsigned int connections;

static int parse_port(const char *text, u64 min, u16 *out)
{
	u64 port;

	if (parse_u64(text, min, 65535, &port))
		return -EINVAL;
	*out = (u16)port;
	return 0;
}

static int listen_unix(struct listener *listener)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct stat st;

	if (strlen(listener->path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	memcpy(addr.sun_path, listener->path, strlen(listener->path) + 1);
	listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener->fd < 0)
		return -errno;
	/* One that a killed process left is replaced; one that is listened to is not. */
	if (lstat(listener->path, &st) == 0 && S_ISSOCK(st.st_mode) &&
	    connect(listener->fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 &&
	    errno == ECONNREFUSED)
		unlink(listener->path);
	fd_close(&listener->fd);
	listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		return -errno;
	snprintf(listener->where, sizeof(listener->where), "%s", listener->path);
	return 0;
}

/** @out: @address and @port. Return: its length, 0: it is no IP address. */
static socklen_t make_address(const char *address, u16 port, struct sockaddr_storage *out)
{
	struct sockaddr_in *in = (struct sockaddr_in *)out;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (inet_pton(AF_INET, address, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		return sizeof(*in);
	}
	if (inet_pton(AF_INET6, address, &in6->sin6_addr) != 1)
		return 0;
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons(port);
	return sizeof(*in6);
}

static int listen_tcp(struct listener *listener, const char *address, u16 port)
{
	struct sockaddr_storage addr;
	socklen_t len = make_address(address, port, &addr);
	const int on = 1;

	if (!len)
		return -EINVAL;
	listener->fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener->fd < 0 ||
	    setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    bind(listener->fd, (struct sockaddr *)&addr, len) < 0 ||
	    getsockname(listener->fd, (struct sockaddr *)&addr, &len) < 0)
		return -errno;
	/* Both families have the port at the same place. */
	snprintf(listener->where, sizeof(listener->where),
		 addr.ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", address,
		 ntohs(((struct sockaddr_in *)&addr)->sin_port));
	return 0;
}

/** "8080", "9000:80", "/run/x.sock:80". Return: 0 or -errno (logged). */
static int add_listener(struct forward *forward, char *text)
{
	struct listener *listener = &forward->listeners[forward->count];
	char *colon = strrchr(text, ':');
	const char *remote = colon ? colon + 1 : text;
	const char *local = text;
	u16 port = 0;
	int ret;

	listener->fd = -1;
	listener->path = NULL;
	if (parse_port(remote, 1, &listener->port))
		goto bad;
	if (colon)
		*colon = '\0';
	if (strchr(local, '/'))
		listener->path = local;
	else if (parse_port(local, 0, &port))
		goto bad;
	forward->count++;
	ret = listener->path ? listen_unix(listener)
			     : listen_tcp(listener, forward->opts.bind, port);
	if (!ret && listen(listener->fd, 64) < 0)
		ret = -errno;
	if (ret) {
		log_err("forward: can't listen at %s%s%s: %s",
			listener->path ? "" : forward->opts.bind, listener->path ? "" : " port ",
			local, strerror(-ret));
		listener->path = NULL;
	}
	return ret;
bad:
	log_err("forward: '%.100s': expected PORT, LOCALPORT:PORT or PATH:PORT", text);
	return -EINVAL;
}

/* One direction of a link. */
struct half {
	int from, to;
	size_t start, used;
	bool ended; /* nothing more comes */
	bool told;  /* and the other end knows */
	char buf[RELAY_BYTES];
};

/** Return: 0, or -errno: the link is broken. */
static int move_half(struct half *half, short from_events, short to_events)
{
	ssize_t n;

	if (!half->ended && half->start == half->used && from_events) {
		n = recv(half->from, half->buf, sizeof(half->buf), MSG_DONTWAIT);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		if (n >= 0) {
			half->start = 0;
			half->used = (size_t)n;
			half->ended = n == 0;
			to_events |= POLLOUT;
		}
	}
	if (half->start < half->used && to_events) {
		n = send(half->to, half->buf + half->start, half->used - half->start,
			 MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		half->start += (size_t)MAX(n, (ssize_t)0);
	}
	if (half->ended && half->start == half->used && !half->told) {
		half->told = true;
		shutdown(half->to, SHUT_WR);
	}
	return 0;
}

static void relay(int one, int two)
{
	struct half *halves = calloc(2, sizeof(*halves));
	bool done = !halves;

	if (halves) {
		halves[0].from = halves[1].to = one;
		halves[0].to = halves[1].from = two;
	}
	while (!done) {
		struct pollfd fds[2] = {{.fd = one}, {.fd = two}};

		for (int i = 0; i < 2; i++) {
			if (halves[i].start < halves[i].used)
				fds[1 - i].events |= POLLOUT;
			else if (!halves[i].ended)
				fds[i].events |= POLLIN;
		}
		/* What is asked for nothing would be reported as hung up again and again. */
		for (int i = 0; i < 2; i++)
			fds[i].fd = fds[i].events ? fds[i].fd : -1;
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		for (int i = 0; i < 2 && !done; i++)
			done = move_half(&halves[i], fds[i].revents & (POLLIN | POLLHUP | POLLERR),
					 fds[1 - i].revents & (POLLOUT | POLLHUP | POLLERR)) != 0;
		done = done || (halves[0].told && halves[1].told);
	}
	free(halves);
}

static void *serve_link(void *opaque)
{
	struct link *link = opaque;
	struct httpc_response response;
	struct client_target target;
	struct client client;
	char port[8];

	snprintf(port, sizeof(port), "%u", link->port);
	client_target_box(&target, link->box, "ports");
	client_target_add(&target, port);
	if (!client_want(&client, "forward")) {
		if (!client_upgrade(&client, "GET", &target, "thaw-tcp/1", &response)) {
			httpc_response_free(&response);
			relay(link->fd, client.fd);
		}
		client_close(&client);
	}
	fd_close(&link->fd);
	free(link);
	__atomic_fetch_sub(&connections, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void take_link(const struct forward *forward, const struct listener *listener)
{
	struct link *link = malloc(sizeof(*link));
	pthread_attr_t attr;
	pthread_t thread;
	int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC), ret = 0;

	if (fd < 0 || !link)
		goto out_free;
	if (__atomic_add_fetch(&connections, 1, __ATOMIC_RELAXED) > CONNECTIONS_MAX) {
		log_warn("forward: more than %d connections at a time: one is refused",
			 CONNECTIONS_MAX);
		ret = -EBUSY;
	}
	*link = (struct link){.box = forward->box, .port = listener->port, .fd = fd};
	if (!ret)
		ret = pthread_attr_init(&attr);
	if (!ret) {
		pthread_attr_setstacksize(&attr, THREAD_STACK);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		ret = pthread_create(&thread, &attr, serve_link, link);
		pthread_attr_destroy(&attr);
	}
	if (!ret)
		return;
	__atomic_fetch_sub(&connections, 1, __ATOMIC_RELAXED);
out_free:
	fd_close(&fd);
	free(link);
}

static int tell(const struct forward *forward)
{
	json_t *list = json_array();
	int ret = 0;

	for (size_t i = 0; i < forward->count; i++) {
		const struct listener *listener = &forward->listeners[i];

		if (!forward->opts.json)
			printf("%s -> %s:%u\n", listener->where, forward->box, listener->port);
		else
			json_array_append_new(list,
					      json_pack("{s:s, s:s, s:i}", "local", listener->where,
							"sandbox", forward->box, "port",
							(int)listener->port));
	}
	if (forward->opts.json)
		ret = json_print(list);
	json_decref(list);
	return ret ? ret : cli_flush();
}

/** Until a signal. Return: 0 or -errno (logged). */
static int serve(const struct forward *forward)
{
	struct pollfd fds[FORWARDS_MAX + 1];
	sigset_t set;
	int ret = 0;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	if (pthread_sigmask(SIG_BLOCK, &set, NULL))
		return -EINVAL;
	fds[forward->count] =
		(struct pollfd){.fd = signalfd(-1, &set, SFD_CLOEXEC), .events = POLLIN};
	for (size_t i = 0; i < forward->count; i++)
		fds[i] = (struct pollfd){.fd = forward->listeners[i].fd, .events = POLLIN};
	if (fds[forward->count].fd < 0)
		return -errno;
	ret = tell(forward);
	while (!ret) {
		if (poll(fds, forward->count + 1, -1) < 0 && errno != EINTR)
			ret = -errno;
		if (fds[forward->count].revents)
			break;
		for (size_t i = 0; !ret && i < forward->count; i++) {
			if (fds[i].revents)
				take_link(forward, &forward->listeners[i]);
		}
	}
	fd_close(&fds[forward->count].fd);
	return ret;
}

int forward_main(struct cli *cli, int argc, char **argv)
{
	static struct forward forward = {.opts = {.bind = "127.0.0.1"}};
	struct optparse_result result;
	struct client client;
	int status, ret;

	(void)cli;
	status = cli_parse(&forward_command, &forward.opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (client_want(&client, "forward"))
		return CLI_FAILED;
	ret = client_find_name(&client, result.positional[0], forward.box);
	client_close(&client);
	for (int i = 1; !ret && i < result.npositional; i++)
		ret = add_listener(&forward, result.positional[i]);
	if (!ret)
		ret = serve(&forward);
	for (size_t i = 0; i < forward.count; i++) {
		fd_close(&forward.listeners[i].fd);
		if (forward.listeners[i].path)
			unlink(forward.listeners[i].path);
	}
	return ret ? CLI_FAILED : CLI_OK;
}
