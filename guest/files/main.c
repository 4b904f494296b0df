// SPDX-License-Identifier: Apache-2.0
// thaw-files OPERATION ARGUMENT...: one operation on the guest's files, for the host.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "guest/files/files.h"

static const struct {
	const char *name;
	int args;
	int (*run)(char **args);
} operations[] = {
	{"read", 3, op_read},	  {"write", 3, op_write},   {"stat", 1, op_stat},
	{"lstat", 1, op_lstat},	  {"list", 2, op_list},	    {"mkdir", 3, op_mkdir},
	{"rename", 2, op_rename}, {"remove", 2, op_remove}, {"symlink", 2, op_symlink},
	{"chmod", 2, op_chmod},	  {"chown", 4, op_chown},   {"tar_out", 1, op_tar_out},
	{"tar_in", 2, op_tar_in}, {"watch", 2, op_watch},
};

u64 arg_number(const char *arg, u64 max)
{
	char *end = NULL;
	u64 value;

	errno = 0;
	value = strtoull(arg, &end, 10);
	if (arg[0] < '0' || arg[0] > '9' || *end || errno || value > max)
		exit(out_fail(EINVAL, arg, NULL, "bad number in the arguments"));
	return value;
}

mode_t arg_mode(const char *arg)
{
	char *end = NULL;
	unsigned long value;

	errno = 0;
	value = strtoul(arg, &end, 8);
	if (arg[0] < '0' || arg[0] > '7' || *end || errno || value > 07777)
		exit(out_fail(EINVAL, arg, NULL, "bad mode in the arguments"));
	return (mode_t)value;
}

unsigned int arg_flags(const char *arg, const char *known)
{
	unsigned int flags = 0;

	if (!strcmp(arg, "-"))
		return 0;
	for (const char *at = arg; *at; at++) {
		const char *found = strchr(known, *at);

		if (!found)
			exit(out_fail(EINVAL, arg, NULL, "bad flags in the arguments"));
		flags |= 1u << (found - known);
	}
	return flags;
}

int main(int argc, char **argv)
{
	struct rlimit files;

	/* Modes are what is asked for, and the user's limit of open files is the only one. */
	umask(0);
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	for (size_t i = 0; argc > 1 && i < ARRAY_SIZE(operations); i++)
		if (!strcmp(argv[1], operations[i].name) && argc == 2 + operations[i].args)
			return operations[i].run(argv + 2);
	return out_fail(EINVAL, argc > 1 ? argv[1] : "", NULL, "no such operation");
}
