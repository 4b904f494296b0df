// SPDX-License-Identifier: Apache-2.0
// Telling systemd how it goes.
#include "vmm/daemon/sdnotify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

void sd_say(const char *text)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	const char *path = getenv("NOTIFY_SOCKET");
	size_t len = path ? strlen(path) : 0;
	int fd;

	if (!len || len >= sizeof(addr.sun_path) || (*path != '/' && *path != '@'))
		return;
	memcpy(addr.sun_path, path, len);
	if (*path == '@') /* an abstract address */
		addr.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&addr,
			     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
		log_warn("NOTIFY_SOCKET %s: %s", path, strerror(errno));
	fd_close(&fd);
}

void sd_reloading(void)
{
	char text[80];

	snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu",
		 (unsigned long long)clock_now_ns() / 1000);
	sd_say(text);
}

u64 sd_watchdog_ms(void)
{
	const char *text = getenv("WATCHDOG_USEC"), *pid_text = getenv("WATCHDOG_PID");
	u64 us, pid;

	if (!text || parse_u64(text, 1, UINT64_MAX, &us))
		return 0;
	if (pid_text && (parse_u64(pid_text, 1, INT32_MAX, &pid) || pid != (u64)getpid()))
		return 0;
	return MAX(us / 2000, 1u);
}
