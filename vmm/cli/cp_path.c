// SPDX-License-Identifier: Apache-2.0
// Paths of `thaw cp`; pure.
#include "vmm/cli/cp_path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/util/log.h"

char *cp_find_colon(char *arg)
{
	char *colon = strchr(arg, ':');

	return colon && colon > arg && !memchr(arg, '/', (size_t)(colon - arg)) ? colon : NULL;
}

const char *cp_guest_path(const char *path, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%s%s", path[0] == '/' ? "" : "/", path);
	return out;
}

void cp_last_name(const char *path, char out[NAME_MAX + 1])
{
	size_t end = strlen(path), start;

	while (end && path[end - 1] == '/')
		end--;
	for (start = end; start && path[start - 1] != '/'; start--)
		;
	snprintf(out, NAME_MAX + 1, "%.*s", (int)(end - start), path + start);
	if (!strcmp(out, "."))
		out[0] = '\0';
}

bool cp_ends_in_slash(const char *path)
{
	return path[0] && path[strlen(path) - 1] == '/';
}

int cp_join(const char *folder, const char *name, char out[PATH_MAX])
{
	int n = snprintf(out, PATH_MAX, "%s%s%s", folder, cp_ends_in_slash(folder) ? "" : "/",
			 name);

	if (n < PATH_MAX)
		return 0;
	log_err("cp: %s/%s: the path is too long", folder, name);
	return -ENAMETOOLONG;
}
