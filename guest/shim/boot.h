/* SPDX-License-Identifier: Apache-2.0 */
/* What PID 1 does before it serves (boot.c, mount.c, device.c); the checkpoint (ckpt.c). */
#ifndef THAW_SHIM_BOOT_H
#define THAW_SHIM_BOOT_H

#include "vmm/util/types.h"

struct shim;

/** ckpt_run() - the checkpoint call; in a clone: identity, first request. @live: commands run. */
void ckpt_run(struct shim *shim, bool live);

/** ckpt_under_way() - was one asked for that did not come yet? */
bool ckpt_under_way(const struct shim *shim);

/**
 * ckpt_write_identity() - <run_dir>/machine-id and <run_dir>/thaw/generation.
 * Return: 0 or -errno.
 */
int __must_check ckpt_write_identity(const struct shim *shim, const u8 vm_id[16], u64 generation);

/** ckpt_poweroff() - SIGTERM for all and @grace_ms to end, if that is not 0; kill everything, sync,
 * power off; in tests: stop the loop. */
void ckpt_poweroff(struct shim *shim, u32 grace_ms);

/** boot_init() - from the initramfs to a root with all that a command needs; or panics. */
void boot_init(struct shim *shim);

/** boot_listen() - listen on SHIM_PORT and tell the host. */
void boot_listen(struct shim *shim);

/** mount_early() - /dev, /proc, /sys. mount_rest() - what comes on top of the root. */
void mount_early(void);
/**
 * mount_root() - the overlay, made the root: @root is the device of the erofs image, mounted with
 * DAX when it is a pmem device; @scratch that of the ext4 above it, or NULL for a tmpfs.
 */
void mount_root(struct shim *shim, const char *root, const char *scratch);
void mount_rest(void);

/** device_load_modules() - what /modules/order names; a failure is logged, the next one tried. */
void device_load_modules(void);

/**
 * device_mount() - mount a file system from a device that may still have to appear, waiting for
 * kernel events. Panics after 60 s or when it can't be mounted.
 */
void device_mount(const char *device, const char *target, const char *type, unsigned long flags,
		  const char *options);

#endif
