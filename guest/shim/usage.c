// SPDX-License-Identifier: Apache-2.0
// What the guest uses, from /proc: read into a buffer, never waited for.
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "guest/shim/kept.h"
#include "guest/shim/shim.h"
#include "guest/shim/tunnel.h"

#define TEXT_BYTES 2048 /* the first lines are enough */

/* The first bytes of a file, as a string; "" when there is none. */
static const char *read_text(int dir_fd, const char *path, char text[TEXT_BYTES])
{
	int fd = loop_open(dir_fd, path, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, text, TEXT_BYTES - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	return text;
}

/* The number behind the word @name at a line's start; 0 without it. */
static u64 line_value(const char *text, const char *name)
{
	size_t len = strlen(name);

	while (text) {
		if (!strncmp(text, name, len))
			return strtoull(text + len, NULL, 10);
		text = strchr(text, '\n');
		if (text)
			text++;
	}
	return 0;
}

/* All but idle and waiting, in microseconds. */
static u64 cpu_usage_us(const struct shim *shim)
{
	/* Fields of the first line of /proc/stat: user nice system idle iowait irq softirq steal;
	 * what guests of this machine use is in user already. */
	enum { IDLE = 3, IOWAIT = 4, STEAL = 7 };
	char text[TEXT_BYTES];
	const char *at = read_text(shim->proc_fd, "stat", text);
	long hz = sysconf(_SC_CLK_TCK);
	u64 ticks = 0;

	if (strncmp(at, "cpu ", 4) != 0 || hz <= 0)
		return 0;
	at += 4;
	for (int i = 0; i < STEAL; i++) {
		char *end;
		u64 value = strtoull(at, &end, 10);

		if (i != IDLE && i != IOWAIT)
			ticks += value;
		at = end;
	}
	return ticks * 1000000 / (u64)hz;
}

/* Of all commands; without a pids controller every process of the machine. */
static u32 count_processes(const struct shim *shim)
{
	char text[TEXT_BYTES];
	struct dirent *entry;
	u32 n = 0;
	DIR *dir;

	if (shim->cgroup_fd >= 0 && read_text(shim->cgroup_fd, "pids.current", text)[0])
		return (u32)strtoul(text, NULL, 10);
	dir = opendir("/proc");
	if (!dir)
		return 0;
	while ((entry = readdir(dir)))
		n += isdigit((unsigned char)entry->d_name[0]) != 0;
	closedir(dir);
	return n;
}

void usage_reply(struct shim *shim, struct conn *c)
{
	struct shim_usage usage = {
		.cpu_usage_us = cpu_usage_us(shim),
		.processes = count_processes(shim),
		.kept_execs = kept_count(shim),
	};
	char text[TEXT_BYTES];
	struct timespec up;
	struct statvfs fs;

	if (!clock_gettime(CLOCK_BOOTTIME, &up))
		usage.uptime_ms = (u64)up.tv_sec * 1000 + (u64)up.tv_nsec / 1000000;
	(void)read_text(shim->proc_fd, "meminfo", text);
	usage.memory_total_bytes = line_value(text, "MemTotal:") * KIB;
	usage.memory_available_bytes = line_value(text, "MemAvailable:") * KIB;
	if (!statvfs("/", &fs)) {
		usage.disk_total_bytes = (u64)fs.f_blocks * fs.f_frsize;
		usage.disk_free_bytes = (u64)fs.f_bavail * fs.f_frsize;
	}
	conn_put_frame(c, SHIM_USAGE_REPLY, &usage, sizeof(usage));
	c->phase = CONN_LAST;
}
