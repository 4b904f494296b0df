/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of thaw-vmm: one table of options, from which parsing and help both come. */
#ifndef THAW_VMM_OPTS_H
#define THAW_VMM_OPTS_H

#include <stdio.h>

#include "vmm/snapshot/restore_opts.h"
#include "vmm/util/types.h"

enum opts_command {
	OPTS_BOOT = 1u << 0,
	OPTS_RESTORE = 1u << 1,
	OPTS_HELP = 1u << 2,
	OPTS_VERSION = 1u << 3,
};

/** Strings point into argv; NULL where not given. */
struct opts {
	enum opts_command command;
	/* boot */
	const char *kernel, *initramfs, *cmdline, *root, *disk_base;
	u64 vcpus, memory_bytes, disk_bytes;
	bool serial;
	/* restore */
	const char *folder, *strategy, *parent;
	u64 fault_window_bytes; /* 0: not given */
	int hot_fd;		/* -1: not given */
	int zygote_fd;		/* -1: not given */
	bool wait;
	enum snap_populate populate;
	enum snap_prefault prefault;
	enum snap_huge_pages huge;
	u64 threads;   /* 0: not given */
	int memory_fd; /* 0: not given */
	u32 jail_uid;  /* 0: no jail */
	const char *parents, *root_image;
	u64 file_max_bytes;  /* 0: not given */
	u64 hard_timeout_ms; /* 0: not given */
	/* both */
	const char *disk_dir, *console, *vsock, *hostname, *ctl_listen;
	int ctl_fd, request_fd; /* -1: not given */
	const char *snapshot, *name, *guest_kernel;
	bool replace, keep_running, diff;
};

/**
 * opts_parse() - @argv as main() gets it.
 * @why: a message that names the option and what is wrong with it.
 *
 * Return: 0, or -EINVAL and @why.
 */
int __must_check opts_parse(struct opts *opts, int argc, char *const *argv, char *why,
			    size_t why_bytes);

/** opts_help() - the help text, made from the table. */
void opts_help(FILE *out);

#endif
