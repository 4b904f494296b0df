// SPDX-License-Identifier: Apache-2.0
// thaw: the command. The dispatch table and what must happen before it.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

const struct cli_command thaw_commands[THAW_COMMANDS] = {
	CLI_COMMAND("run", "run a command in a sandbox restored from a template", run_main,
		    &run_command),
	CLI_COMMAND("create", "make a sandbox that has a name", create_main, &create_command),
	CLI_COMMAND("start", "start sandboxes that are stopped", start_main, &start_command),
	CLI_COMMAND("exec", "run a command in a sandbox", exec_main, &exec_command),
	CLI_COMMAND("cp", "copy files into and out of a sandbox", cp_main, &cp_command),
	CLI_COMMAND("ps", "list sandboxes", ps_main, &ps_command),
	CLI_COMMAND("inspect", "print all that is known of sandboxes", inspect_main,
		    &inspect_command),
	CLI_COMMAND("logs", "print what an entrypoint or another command has printed", logs_main,
		    &logs_command),
	CLI_COMMAND("attach", "take part in a command that runs", attach_main, &attach_command),
	CLI_COMMAND("forward", "make a port of a sandbox reachable here", forward_main,
		    &forward_command),
	CLI_COMMAND("stats", "what sandboxes use", stats_main, &stats_command),
	CLI_COMMAND("top", "list the processes in a sandbox", top_main, &top_command),
	CLI_COMMAND("fork", "make clones of a running sandbox", fork_main, &fork_command),
	CLI_GROUP("snapshot", "keep a running sandbox's state", snapshot_main, NULL,
		  snapshot_commands, SNAPSHOT_COMMANDS),
	CLI_COMMAND("pause", "write sandboxes to disk and end their machines", pause_main,
		    &pause_command),
	CLI_COMMAND("resume", "bring paused sandboxes back", resume_main, &resume_command),
	CLI_COMMAND("wait", "wait until sandboxes have stopped", wait_main, &wait_command),
	CLI_COMMAND("stop", "end sandboxes, their processes first", stop_main, &stop_command),
	CLI_COMMAND("kill", "end sandboxes at once, or signal their entrypoint", kill_main,
		    &kill_command),
	CLI_COMMAND("rm", "remove sandboxes", rm_main, &rm_command),
	CLI_GROUP("template", "build, list, inspect, verify and remove templates",
		  template_group_main, NULL, template_commands, TEMPLATE_COMMANDS),
	CLI_GROUP("pool", "keep machines of a template ready to run", pool_group_main,
		  &pool_command, pool_commands, POOL_COMMANDS),
	CLI_COMMAND("events", "print what happens to sandboxes", events_main, &events_command),
	CLI_COMMAND("prune", "remove what nobody needs", prune_main, &prune_command),
	CLI_COMMAND("doctor", "what this machine has and lacks, with what to do", doctor_main,
		    &doctor_command),
	CLI_COMMAND("completion", "print the completion of a shell", completion_main,
		    &completion_command),
	CLI_COMMAND("version", "print the version", version_main, &version_command),
	CLI_COMMAND("--version", "the same", version_main, NULL),
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
	return cli_dispatch(&cli, "thaw", thaw_commands, THAW_COMMANDS, argc - 1, argv + 1);
}
