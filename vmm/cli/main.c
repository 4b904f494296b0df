// SPDX-License-Identifier: Apache-2.0
// thaw: the command. The dispatch table and what must happen before it.
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "vmm/cli/cli.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#ifndef THAW_VERSION
#define THAW_VERSION "unknown"
#endif

static int version_main(struct cli *cli, int argc, char **argv)
{
	(void)cli;
	(void)argc;
	(void)argv;
	printf("thaw %s\n", THAW_VERSION);
	return cli_flush() ? CLI_FAILED : CLI_OK;
}

static const struct cli_command commands[] = {
	{"run", "run a command in a sandbox restored from a template", run_main},
	{"exec", "run a command in a sandbox that stays", exec_main},
	{"ps", "list the sandboxes that stay", ps_main},
	{"fork", "make clones of a sandbox that stays", fork_main},
	{"pause", "write a sandbox to disk and end its machine", pause_main},
	{"resume", "bring a paused sandbox back", resume_main},
	{"stop", "end sandboxes, their processes first", stop_main},
	{"rm", "remove sandboxes that are paused, or kill them", rm_main},
	{"template", "build, list, inspect, verify and remove templates", template_main},
	{"pool", "keep machines of a template ready to run", pool_main},
	{"doctor", "what this machine has and lacks, with what to do", doctor_main},
	{"version", "print the version", version_main},
	{"--version", "the same", version_main},
};

/** Time this process has already used when main() starts: exec, loading, start of libc. */
static u64 cpu_used_ns(void)
{
	struct timespec used;

	if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) < 0)
		return 0;
	return (u64)used.tv_sec * 1000000000ull + (u64)used.tv_nsec;
}

/** Without this, the first file that is opened could become stdout. */
static int open_standard_fds(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		if (fd < 0)
			return -1;
	} while (fd <= STDERR_FILENO);
	return close(fd);
}

int main(int argc, char **argv)
{
	struct cli cli = {.start_ns = clock_now_ns()};

	cli.start_ns -= cpu_used_ns();
	if (open_standard_fds() < 0)
		return CLI_FAILED;
	log_init("thaw");
	return cli_dispatch(&cli, "thaw", commands, ARRAY_SIZE(commands), argc - 1, argv + 1);
}
