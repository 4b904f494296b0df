// SPDX-License-Identifier: Apache-2.0
// Progress of a long command.
#include "vmm/cli/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "vmm/util/util.h"

static double seconds_since(u64 then_ns)
{
	return (double)(clock_now_ns() - then_ns) / 1e9;
}

void progress_init(struct progress *progress, u64 start_ns)
{
	*progress = (struct progress){
		.terminal = isatty(STDERR_FILENO) == 1,
		.start_ns = start_ns,
	};
}

/** The text may come from a recipe: an escape sequence in it must not reach a terminal. */
static void __printf(2, 0) set_text(struct progress *progress, const char *fmt, va_list args)
{
	vsnprintf(progress->phase, sizeof(progress->phase), fmt, args);
	for (char *p = progress->phase; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?';
	}
}

void progress_tick(void *opaque)
{
	struct progress *progress = opaque;

	if (progress->terminal && progress->open)
		fprintf(stderr, "\r\033[K%8.1f s  %.68s", seconds_since(progress->phase_ns),
			progress->phase);
}

void progress_break(struct progress *progress)
{
	if (progress->terminal && progress->open) {
		progress_tick(progress);
		fputc('\n', stderr);
	}
	progress->open = false;
}

void progress_phase(struct progress *progress, const char *fmt, ...)
{
	va_list args;

	progress_break(progress);
	va_start(args, fmt);
	set_text(progress, fmt, args);
	va_end(args);
	progress->open = true;
	progress->phase_ns = clock_now_ns();
	if (progress->terminal)
		progress_tick(progress);
	else
		fprintf(stderr, "[%7.1f s] %s\n", seconds_since(progress->start_ns),
			progress->phase);
}

void progress_note(struct progress *progress, const char *fmt, ...)
{
	va_list args;

	if (!progress->terminal)
		return;
	va_start(args, fmt);
	set_text(progress, fmt, args);
	va_end(args);
	progress_tick(progress);
}

void progress_done(struct progress *progress, const char *fmt, ...)
{
	va_list args;

	progress_break(progress);
	va_start(args, fmt);
	set_text(progress, fmt, args);
	va_end(args);
	if (progress->terminal)
		fprintf(stderr, "done: %s in %.1f s\n", progress->phase,
			seconds_since(progress->start_ns));
	else
		fprintf(stderr, "[%7.1f s] done: %s in %.1f s\n", seconds_since(progress->start_ns),
			progress->phase, seconds_since(progress->start_ns));
}
