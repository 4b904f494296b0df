// SPDX-License-Identifier: Apache-2.0
// Listening sockets: the Unix socket with its group, addresses of TCP.
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/usock.h"
#include "vmm/util/util.h"

#define BACKLOG 4096

/** find_group() - Return: 0 with the id, 1 when there is no such group, or -errno. */
static int find_group(const char *name, gid_t *out)
{
	char buf[16384];
	struct group group, *found = NULL;
	int ret;

	if (!*name)
		return 1;
	ret = getgrnam_r(name, &group, buf, sizeof(buf), &found);
	if (ret && ret != ENOENT)
		return -ret;
	if (!found)
		return 1;
	*out = found->gr_gid;
	return 0;
}

/** make_folder() - of the socket, if it is not there; its own name alone. */
static int make_folder(const char *path)
{
	char folder[128];

	snprintf(folder, sizeof(folder), "%s", path);
	if (mkdir(dirname(folder), 0755) < 0 && errno != EEXIST)
		return -errno;
	return 0;
}

int http_listen_unix(struct thawd *thawd)
{
	const struct conf *conf = &thawd->conf;
	const char *path = conf->socket_path;
	gid_t gid = 0;
	int fd, group;

	group = find_group(conf->socket_group, &gid);
	if (group < 0) {
		log_err("group %s: %s", conf->socket_group, strerror(-group));
		return group;
	}
	if (group == 1 && *conf->socket_group)
		log_info("there is no group %s: only root may connect to %s", conf->socket_group,
			 path);
	fd = make_folder(path);
	/* Root's alone until it has its group. */
	if (!fd)
		fd = usock_listen(path, SOCK_STREAM, BACKLOG, 0600);
	if (fd < 0) {
		log_err("socket %s: %s%s", path, strerror(-fd),
			fd == -EADDRINUSE ? "; another thawd listens there, or it is no socket"
					  : "");
		return fd;
	}
	if ((group == 0 && chown(path, (uid_t)-1, gid) < 0) ||
	    chmod(path, (mode_t)conf->socket_mode) < 0) {
		int ret = -errno;

		log_err("socket %s: can't give it its group and mode: %s", path, strerror(-ret));
		fd_close(&fd);
		return ret;
	}
	return fd;
}

/** split_address() - "HOST:PORT", "[HOST]:PORT". Return: 0 or -EINVAL. */
static int split_address(const char *address, char *host, size_t host_bytes, char *port,
			 size_t port_bytes)
{
	const char *colon = strrchr(address, ':');
	size_t len = colon ? (size_t)(colon - address) : 0;
	u64 number;

	if (!colon || !len || strlen(colon + 1) >= port_bytes ||
	    parse_u64(colon + 1, 1, 65535, &number))
		return -EINVAL;
	if (*address == '[' && address[len - 1] == ']') {
		address++;
		len -= 2;
	}
	if (!len || len >= host_bytes)
		return -EINVAL;
	memcpy(host, address, len);
	host[len] = '\0';
	memcpy(port, colon + 1, strlen(colon + 1) + 1);
	return 0;
}

static int listen_at(const struct addrinfo *info)
{
	int on = 1, ret;
	int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, info->ai_addr, info->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
		ret = -errno;
		fd_close(&fd);
		return ret;
	}
	return fd;
}

int http_listen_tcp(const char *setting, const char *address)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
	struct addrinfo *list = NULL;
	char host[256], port[8];
	int fd, ret;

	if (split_address(address, host, sizeof(host), port, sizeof(port))) {
		log_err("%s: '%s' is not ADDRESS:PORT, such as 127.0.0.1:8080 or [::1]:8080",
			setting, address);
		return -EINVAL;
	}
	ret = getaddrinfo(host, port, &hints, &list);
	if (ret) {
		log_err("%s: '%s': %s", setting, address, gai_strerror(ret));
		return -EINVAL;
	}
	fd = listen_at(list);
	freeaddrinfo(list);
	if (fd < 0)
		log_err("%s: '%s': %s", setting, address, strerror(-fd));
	return fd;
}
