// SPDX-License-Identifier: Apache-2.0
// This process's terminal: raw, and back on every way out.
#include "vmm/cli/tty.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

/* One a process; written before handlers that read it are installed. */
static struct termios saved;
static volatile sig_atomic_t raw_fd = -1;

void tty_restore(void)
{
	const int fd = raw_fd;

	raw_fd = -1;
	if (fd >= 0)
		(void)tcsetattr(fd, TCSADRAIN, &saved);
}

/** Restore, and end of the signal as if there was no handler (SA_RESETHAND). */
static void on_fatal(int number)
{
	const int fd = raw_fd;

	raw_fd = -1;
	if (fd >= 0)
		(void)tcsetattr(fd, TCSANOW, &saved);
	raise(number);
}

int tty_raw(int fd)
{
	static const int fatal[] = {SIGHUP,  SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGABRT,
				    SIGSEGV, SIGBUS, SIGILL,  SIGFPE,  SIGALRM};
	struct sigaction action = {.sa_handler = on_fatal, .sa_flags = SA_RESETHAND}, old;
	struct termios raw;

	if (tcgetattr(fd, &saved) < 0)
		return -errno;
	raw_fd = fd;
	atexit(tty_restore);
	for (size_t i = 0; i < ARRAY_SIZE(fatal); i++) {
		/* What is ignored stays so. */
		if (sigaction(fatal[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
			(void)sigaction(fatal[i], &action, NULL);
	}
	raw = saved;
	cfmakeraw(&raw);
	/* A reader of nothing waits for one byte. */
	raw.c_cc[VMIN] = 1;
	raw.c_cc[VTIME] = 0;
	if (tcsetattr(fd, TCSADRAIN, &raw) < 0) {
		raw_fd = -1;
		return -errno;
	}
	return 0;
}
