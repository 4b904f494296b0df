// SPDX-License-Identifier: Apache-2.0
// The shim's log lines, and its end when it can't go on.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "guest/shim/shim.h"

#define LINE_BYTES 512

/* The log's only state: set once at the start. */
static int log_kmsg_fd = -1;

void shim_log_to(int kmsg_fd)
{
	log_kmsg_fd = kmsg_fd;
}

static void __printf(2, 0) log_line(int level, const char *fmt, va_list args)
{
	int saved_errno = errno;
	char line[LINE_BYTES];
	int len, n;

	if (log_kmsg_fd >= 0)
		len = snprintf(line, sizeof(line), "<%d>thaw-shim: ", level);
	else
		len = snprintf(line, sizeof(line), "thaw-shim: ");
	errno = saved_errno;
	n = vsnprintf(line + len, sizeof(line) - (size_t)len - 1, fmt, args);
	if (n > 0)
		len += n < (int)sizeof(line) - len - 1 ? n : (int)sizeof(line) - len - 2;
	line[len++] = '\n';
	if (write(log_kmsg_fd >= 0 ? log_kmsg_fd : STDERR_FILENO, line, (size_t)len) < 0) {
		/* There is no other place to say it. */
	}
	errno = saved_errno;
}

void shim_log(int level, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	log_line(level, fmt, args);
	va_end(args);
}

void shim_panic(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	log_line(2, fmt, args);
	va_end(args);
	if (getpid() == 1) {
		sync();
		reboot(RB_POWER_OFF);
		/* The kernel panics when init ends, and the VMM sees that. */
	}
	_exit(1);
}
