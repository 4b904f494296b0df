// SPDX-License-Identifier: Apache-2.0
// What the commands of thaw share: dispatch, parsing with messages, files beside the executable.
#include "vmm/cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/optparse.h"
#include "vmm/util/log.h"

static void print_commands(const char *group, const struct cli_command *table, size_t count,
			   FILE *out)
{
	fprintf(out, "Usage: %s COMMAND [ARG]...\n\nCommands:\n", group);
	for (size_t i = 0; i < count; i++)
		fprintf(out, "  %-16s%s\n", table[i].name, table[i].summary);
	fprintf(out, "\n'%s COMMAND --help' tells about one of them.\n", group);
}

int cli_flush(void)
{
	int ret;

	errno = 0;
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	ret = errno ? -errno : -EIO;
	log_err("stdout: %s", strerror(-ret));
	return ret;
}

int cli_dispatch(struct cli *cli, const char *group, const struct cli_command *table, size_t count,
		 int argc, char **argv)
{
	if (argc == 0) {
		print_commands(group, table, count, stderr);
		return CLI_USAGE;
	}
	for (size_t i = 0; argc > 1 && !strcmp(argv[0], "help") && i < count; i++) {
		if (!strcmp(argv[1], table[i].name))
			return table[i].run(cli, 1, (char *[]){"--help", NULL});
	}
	if (!strcmp(argv[0], "help") || !strcmp(argv[0], "--help") || !strcmp(argv[0], "-h")) {
		print_commands(group, table, count, stdout);
		return cli_flush() ? CLI_FAILED : CLI_OK;
	}
	for (size_t i = 0; i < count; i++) {
		if (!strcmp(argv[0], table[i].name)) {
			cli->command = table[i].name;
			return table[i].run(cli, argc - 1, argv + 1);
		}
	}
	log_err("unknown command '%.60s': '%s help' lists them", argv[0], group);
	return CLI_USAGE;
}

int cli_parse(const struct optparse_command *command, void *dest, int argc, char **argv,
	      struct optparse_result *result, int usage_status)
{
	int ret = optparse(command, dest, argc, argv, result);

	if (ret == -EINVAL) {
		log_err("%s", result->error);
		return usage_status;
	}
	if (ret) {
		log_err("command line: %s", strerror(-ret));
		return usage_status == CLI_USAGE ? CLI_FAILED : usage_status;
	}
	if (result->help) {
		optparse_help(command, stdout);
		return cli_flush() ? CLI_FAILED : CLI_OK;
	}
	return -1;
}

int cli_find_near_exe(const char *const *relative, size_t count, char *out)
{
	char exe[PATH_MAX];
	ssize_t len = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	if (len < 0)
		return -errno;
	exe[len] = '\0';
	slash = strrchr(exe, '/');
	if (!slash)
		return -ENOENT;
	*slash = '\0';
	for (size_t i = 0; i < count; i++) {
		int n = snprintf(out, PATH_MAX, "%s/%s", exe, relative[i]);

		if (n < 0 || n >= PATH_MAX)
			return -ENAMETOOLONG;
		if (access(out, F_OK) == 0)
			return 0;
	}
	return -ENOENT;
}
