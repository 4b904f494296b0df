/* SPDX-License-Identifier: Apache-2.0 */
/* Paths of `thaw cp`, as docker cp reads them. */
#ifndef THAW_CLI_CP_PATH_H
#define THAW_CLI_CP_PATH_H

#include <limits.h>

#include "vmm/util/types.h"

/** cp_find_colon() - the ':' of NAME:PATH, or NULL: a path here. "./a:b" is one. */
char *cp_find_colon(char *arg);

/** cp_guest_path() - paths in a sandbox are absolute. Return: @out. */
const char *cp_guest_path(const char *path, char out[PATH_MAX]);

/** cp_last_name() - of @path, slashes at its end apart; "" for "/", and for what ends in "/.",
 * which means what is in it. */
void cp_last_name(const char *path, char out[NAME_MAX + 1]);

bool cp_ends_in_slash(const char *path);

/** cp_join() - @folder/@name. Return: 0 or -ENAMETOOLONG (logged). */
int __must_check cp_join(const char *folder, const char *name, char out[PATH_MAX]);

#endif
