/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipes: what a template is built from. JSON, read strictly: an unknown field, a wrong type or a
 * value out of range is an error that names the file and the field. snapshots/README.md lists the
 * fields.
 */
#ifndef THAW_CLI_RECIPE_H
#define THAW_CLI_RECIPE_H

#include "vmm/util/types.h"

#define RECIPE_MAX_BYTES       (1u << 20)
#define RECIPE_WARM_MAX	       64
#define RECIPE_WARM_ARGS_MAX   1024
#define RECIPE_SCRATCH_MAX_MIB (1u << 20) /* 1 TiB */

/** A list of commands to run before the snapshot is taken; strings are owned. */
struct warm_list {
	char ***commands; /* each a NULL-terminated argv */
	size_t count;
};

struct recipe {
	char *image; /* name of the guest image: guest.json's "image" must be it */
	u32 vcpus;   /* 1-8 */
	u64 memory_bytes;
	u64 scratch_bytes;   /* 0: no scratch disk; writes of the guest stay in its memory */
	char *cmdline_extra; /* appended to the kernel's command line, may be "" */
	struct warm_list warm;
};

/**
 * recipe_parse() - @text is the recipe's JSON of @len_bytes.
 * @why: gets "field: reason", for a message that names the file.
 *
 * Return: 0 (recipe_free() is due), -EINVAL (@why) or -ENOMEM.
 */
int __must_check recipe_parse(const char *text, size_t len_bytes, struct recipe *out, char *why,
			      size_t why_bytes);

/** recipe_read() - the recipe in file @path. Return: 0 or -errno (logged as "PATH: FIELD: reason").
 */
int __must_check recipe_read(const char *path, struct recipe *out);
void recipe_free(struct recipe *recipe);

/**
 * recipe_find() - path of the recipe that belongs to template @name into @out of PATH_MAX bytes:
 * recipes/@name if there is such a file, else recipes/debian, in $THAW_RECIPES, snapshots/recipes
 * of the checkout, or share/thaw/recipes of the installation. Return: 0 or -ENOENT (logged).
 */
int __must_check recipe_find(const char *name, char *out);

/** warm_list_add() - copy @argv (@argc >= 1 strings) to the end of @list. Return: 0, -EINVAL (too
 * many, or an empty program) or -ENOMEM. */
int __must_check warm_list_add(struct warm_list *list, int argc, char *const *argv);
void warm_list_free(struct warm_list *list);

#endif
