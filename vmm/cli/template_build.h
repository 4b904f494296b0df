/* SPDX-License-Identifier: Apache-2.0 */
/* The two halves of `thaw template build`: what is prepared on the host (template_build.c), and
 * what happens with the guest (template_guest.c). */
#ifndef THAW_CLI_TEMPLATE_BUILD_H
#define THAW_CLI_TEMPLATE_BUILD_H

#include <limits.h>

#include "vmm/cli/assets.h"
#include "vmm/cli/progress.h"
#include "vmm/cli/recipe.h"
#include "vmm/cli/state.h"
#include "vmm/cli/vmmproc.h"
#include "vmm/util/types.h"

#define BUILD_CMDLINE_BYTES 2048

struct build_opts {
	const char *recipe_path, *from, *strategy;
	const char *recorder, *hot_rule; /* NULL: the default */
	u32 hot_runs;			 /* clones for each command */
	u32 vcpus;			 /* 0: the recipe's */
	u64 memory_bytes;		 /* 0: the recipe's */
	u64 timeout_ns;
	bool replace, serial, whole;
	struct warm_list warm;
};

struct build {
	struct build_opts opts;
	const char *name;
	struct state state;
	struct recipe recipe;
	struct guest_files guest;
	struct progress progress;
	struct vmmproc vmm;
	char image[PATH_MAX], folder[PATH_MAX], from_folder[PATH_MAX], log_path[PATH_MAX];
	char cmdline[BUILD_CMDLINE_BYTES];
	int build_lock_fd, from_lock_fd, log_fd, disk_fd;
	u64 start_ns, deadline_ns;
	bool hot_required; /* without a hot set it has failed */
};

/** build_init() - nothing open, nothing asked for; what `template build` and `record` have alike.
 */
void build_init(struct build *build, u64 start_ns, u64 timeout_ns);

/** build_free() - close, unlock and free all that @build holds. */
void build_free(struct build *build);

/** build_claim() - the state folder, and the lock on the template's name. Return: 0 or -errno
 * (logged). */
int __must_check build_claim(struct build *build);

/** build_open_log() - logs/NAME.log, emptied. Return: 0 or -errno (logged). */
int __must_check build_open_log(struct build *build);

/**
 * build_guest() - start thaw-vmm for what is prepared in @build, wait until the guest is up, run
 * the warm-ups, have the snapshot written and published. Return: 0 or -errno (said on stderr,
 * once).
 */
int __must_check build_guest(struct build *build);

/** build_hot_check() - can the recorder that was asked for be had? Return: 0 or -errno (logged). */
int __must_check build_hot_check(const struct build *build);

/** build_hot() - record the hot set of the template just published. A template without one is good
 * too: a failure is a warning, and 0, unless @build->hot_required. Return: 0 or -errno
 * (logged). */
int __must_check build_hot(struct build *build);

#endif
