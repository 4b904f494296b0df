// SPDX-License-Identifier: Apache-2.0
// Connections that leave HTTP.
//
// A plain connection's socket is handed out as a duplicate, and MHD keeps its own until the
// handler ends. Bytes that the client sent before it saw the answer have been read already and
// can't be put back: then, and only then, two threads carry the bytes of a socket pair of ours.
//
// Over TLS it is one end of MHD's socket pair, which MHD encrypts for. MHD does not pass on that
// the client has gone: it stops reading and writing, and whoever holds the other end waits for
// ever. So a thread watches the connection itself, and shuts the pair down when the client is gone
// and MHD has read what it sent.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define PUMP_BYTES	 (16 * KIB)
#define PUMP_STACK_BYTES (64 * KIB)

#define WATCH_DRAIN_MS	  10u
#define WATCH_DRAIN_TRIES 100u

/** upgraded() - the 101 is sent; in MHD's thread. */
static void upgraded(void *opaque, struct MHD_Connection *mhd, void *context, const char *early,
		     size_t early_bytes, MHD_socket fd, struct MHD_UpgradeResponseHandle *handle)
{
	struct http_req *req = opaque;

	(void)mhd;
	(void)context;
	http_req_lock(req);
	req->upgrade = handle;
	__atomic_store_n(&req->conn->upgraded, true, __ATOMIC_RELAXED);
	req->upgrade_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (early_bytes) {
		req->early = malloc(early_bytes);
		if (req->early) {
			memcpy(req->early, early, early_bytes);
			req->early_bytes = early_bytes;
		} else {
			fd_close(&req->upgrade_fd);
		}
	}
	pthread_cond_broadcast(&req->wake);
	http_req_unlock(req);
}

struct pump {
	int from, to;
	struct relay *relay;
};

/** Shared by the two pumps; the last one frees. */
struct relay {
	struct pump pumps[2];
	unsigned int refs;
	u8 *early;
	size_t early_bytes;
};

static void relay_put(struct relay *relay)
{
	if (__atomic_sub_fetch(&relay->refs, 1, __ATOMIC_ACQ_REL))
		return;
	fd_close(&relay->pumps[0].from);
	fd_close(&relay->pumps[0].to);
	free(relay->early);
	free(relay);
}

static void *pump_main(void *opaque)
{
	struct pump *pump = opaque;
	struct relay *relay = pump->relay;
	u8 buf[PUMP_BYTES];
	ssize_t got;
	int ret = 0;

	if (pump == &relay->pumps[0])
		ret = fd_write_full(pump->to, relay->early, relay->early_bytes);
	while (!ret) {
		got = recv(pump->from, buf, sizeof(buf), 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		ret = fd_write_full(pump->to, buf, (size_t)got);
	}
	shutdown(pump->to, SHUT_WR);
	if (ret)
		shutdown(pump->from, SHUT_RD);
	relay_put(relay);
	return NULL;
}

/** relay_start() - between the client at *@fd, which becomes the relay's, and a socket pair.
 * Return: its other end, or -errno; *@early is stolen. */
static int relay_start(int *fd, u8 **early, size_t early_bytes)
{
	struct relay *relay = calloc(1, sizeof(*relay));
	int pair[2] = {-1, -1}, ret = 0;
	pthread_attr_t attr;
	pthread_t thread;

	if (!relay)
		return -ENOMEM;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
		ret = -errno;
		free(relay);
		return ret;
	}
	relay->refs = 2;
	relay->early = *early;
	relay->early_bytes = early_bytes;
	relay->pumps[0] = (struct pump){*fd, pair[1], relay};
	relay->pumps[1] = (struct pump){pair[1], *fd, relay};
	*early = NULL;
	*fd = -1;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, PUMP_STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	ret = -pthread_create(&thread, &attr, pump_main, &relay->pumps[0]);
	if (ret) {
		relay->refs = 1;
	} else {
		ret = -pthread_create(&thread, &attr, pump_main, &relay->pumps[1]);
		if (ret) /* the first one ends by this */
			shutdown(pair[1], SHUT_RDWR);
	}
	pthread_attr_destroy(&attr);
	if (ret) {
		relay_put(relay);
		fd_close(&pair[0]);
	}
	return ret ? ret : pair[0];
}

struct http_watch {
	pthread_t thread;
	int conn_fd, app_fd, end_fd;
};

static void *watch_main(void *opaque)
{
	struct http_watch *watch = opaque;
	struct pollfd fds[2] = {{.fd = watch->conn_fd, .events = POLLRDHUP},
				{.fd = watch->end_fd, .events = POLLIN}};
	int unread = 0;

	while (poll(fds, 2, -1) < 0 && errno == EINTR)
		;
	for (unsigned int i = 0; i < WATCH_DRAIN_TRIES && !fds[1].revents; i++) {
		if (ioctl(watch->conn_fd, FIONREAD, &unread) < 0 || !unread)
			break;
		(void)!poll(&fds[1], 1, WATCH_DRAIN_MS);
	}
	if (!fds[1].revents)
		shutdown(watch->app_fd, SHUT_RDWR);
	return NULL;
}

static void watch_free(struct http_watch *watch)
{
	fd_close(&watch->conn_fd);
	fd_close(&watch->app_fd);
	fd_close(&watch->end_fd);
	free(watch);
}

/** watch_start() - for the connection of @req, whose socket pair ends at @fd. Return: 0 or -errno.
 */
static int watch_start(struct http_req *req, int fd)
{
	struct http_watch *watch = malloc(sizeof(*watch));
	pthread_attr_t attr;
	int ret = 0;

	if (!watch)
		return -ENOMEM;
	http_req_lock(req);
	watch->conn_fd = req->conn ? fcntl(req->conn->fd, F_DUPFD_CLOEXEC, 3) : -1;
	http_req_unlock(req);
	watch->app_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	watch->end_fd = eventfd(0, EFD_CLOEXEC);
	if (watch->conn_fd < 0 || watch->app_fd < 0 || watch->end_fd < 0) {
		watch_free(watch);
		return -ECONNRESET;
	}
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, PUMP_STACK_BYTES);
	ret = -pthread_create(&watch->thread, &attr, watch_main, watch);
	pthread_attr_destroy(&attr);
	if (ret)
		watch_free(watch);
	else
		req->watch = watch;
	return ret;
}

int http_upgrade(struct http_req *req, const char *protocol)
{
	struct MHD_Response *response;
	int fd = -1, ret = -ECONNRESET, flags;

	response = MHD_create_response_for_upgrade(upgraded, req);
	BUG_ON(!response);
	MHD_add_response_header(response, "Upgrade", protocol);
	http_add_extra(req, response);
	http_answer(req, 101, response, NULL);

	http_req_lock(req);
	while (req->mhd && !req->upgrade)
		(void)!http_req_wait(req, 0);
	if (req->upgrade) {
		fd = req->upgrade_fd;
		req->upgrade_fd = -1;
	}
	http_req_unlock(req);
	if (fd < 0)
		return ret;
	flags = fcntl(fd, F_GETFL);
	ret = flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0 ? -errno : 0;
	if (!ret && req->listener->tls)
		ret = watch_start(req, fd);
	if (ret) {
		fd_close(&fd);
		return ret;
	}
	if (!req->early_bytes)
		return fd;
	ret = relay_start(&fd, &req->early, req->early_bytes);
	fd_close(&fd);
	return ret;
}

void http_upgrade_end(struct http_req *req)
{
	struct MHD_UpgradeResponseHandle *handle;

	if (req->watch) {
		eventfd_write(req->watch->end_fd, 1);
		pthread_join(req->watch->thread, NULL);
		watch_free(req->watch);
		req->watch = NULL;
	}
	http_req_lock(req);
	handle = req->mhd ? req->upgrade : NULL;
	req->upgrade = NULL;
	http_req_unlock(req);
	if (handle)
		MHD_upgrade_action(handle, MHD_UPGRADE_ACTION_CLOSE);
}
