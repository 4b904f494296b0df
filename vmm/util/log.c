// SPDX-License-Identifier: Apache-2.0
// Logging to stderr.
#include "vmm/util/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/util/util.h"

static enum log_level log_level = LOG_WARN;
static const char *log_program = "thaw";

static const char *const log_names[] = {"error", "warn", "info", "debug"};

static __thread struct log_keep *log_kept;

void log_keep_begin(struct log_keep *keep, bool quiet)
{
	*keep = (struct log_keep){.outer = log_kept, .quiet = quiet};
	log_kept = keep;
}

void log_keep_end(struct log_keep *keep)
{
	BUG_ON(log_kept != keep);
	log_kept = keep->outer;
}

void log_set_level(enum log_level level)
{
	log_level = level;
}

void log_init(const char *program)
{
	const char *wanted = getenv("THAW_LOG");

	log_program = program;
	for (size_t i = 0; wanted && i < ARRAY_SIZE(log_names); i++) {
		if (!strcmp(wanted, log_names[i]))
			log_level = (enum log_level)i;
	}
}

void log_write(enum log_level level, const char *fmt, ...)
{
	int saved_errno = errno;
	char line[1024];
	va_list args;
	size_t used;
	int n;

	if (log_kept && level == LOG_ERROR) {
		va_start(args, fmt);
		(void)vsnprintf(log_kept->text, sizeof(log_kept->text), fmt, args);
		va_end(args);
		errno = saved_errno;
	}
	if (level > log_level || (log_kept && log_kept->quiet))
		return;
	n = snprintf(line, sizeof(line), "%s: %s: ", log_program, log_names[level]);
	used = n < 0 ? 0 : MIN((size_t)n, sizeof(line) - 2);
	va_start(args, fmt);
	n = vsnprintf(line + used, sizeof(line) - used - 1, fmt, args);
	va_end(args);
	if (n > 0)
		used = MIN(used + (size_t)n, sizeof(line) - 2);
	line[used++] = '\n';
	/* One write a line, so that lines of several processes do not mix; nothing to do if stderr
	 * is gone. */
	if (write(STDERR_FILENO, line, used) < 0)
		errno = saved_errno;
	errno = saved_errno;
}

void log_bug(const char *expr, const char *file, int line)
{
	char text[512];
	int n = snprintf(text, sizeof(text), "%s: BUG at %s:%d: %s\n", log_program, file, line,
			 expr);

	if (n > 0 && write(STDERR_FILENO, text, MIN((size_t)n, sizeof(text) - 1)) < 0)
		abort();
	abort();
}

bool log_limit_ok(struct log_limit *limit)
{
	const u64 window_ns = 5000000000ull;
	u64 now_ns = clock_now_ns();

	if (now_ns - limit->window_start_ns > window_ns) {
		limit->window_start_ns = now_ns;
		limit->count = 0;
	}
	if (limit->count >= 10)
		return false;
	limit->count++;
	return true;
}
