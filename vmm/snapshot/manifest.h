/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.json as a structure; snapshots/FORMAT.md is the authority on its fields. */
#ifndef THAW_SNAPSHOT_MANIFEST_H
#define THAW_SNAPSHOT_MANIFEST_H

#include "vmm/util/types.h"

/** What of a manifest a restore needs; strings are owned (snap_manifest_free()). */
struct snap_manifest {
	u32 version;
	char *name;   /* template name it was built as */
	char *kernel; /* guest kernel release */
	u32 vcpus;
	char *cpu_vendor;    /* 12 characters */
	u32 cpu_signature;   /* CPUID.1:EAX of the build host */
	char *cpu_model;     /* brand string, for people */
	char *root_image;    /* path of the erofs image, or NULL */
	u64 root_bytes;	     /* its size */
	char *root_digest;   /* XXH3-128 of it, hex */
	u64 memory_bytes;    /* size of the memory file */
	char *memory_digest; /* XXH3-128 over its data, hex; checked by `template verify`, not at
				each restore */
	u64 disk_bytes;
	char *disk_digest;
	char *created;		 /* RFC 3339 */
	char *parent;		 /* name of the template it was made from, or NULL */
	char *diff_parent_state; /* of a diff: header.digest of the parent's state, hex; else NULL
				  */
	char *diff_digest;	 /* plain digest of the file `diff`, hex; else NULL */
	u64 diff_pages;		 /* pages that `memory` holds */
	char *json;		 /* the bytes, for digest and display */
	size_t json_len_bytes;
};

/** snap_manifest_read() - from @dirfd; strict: unknown version, missing or mistyped fields are
 * refused. Return: 0 or -errno (logged with the path). */
int __must_check snap_manifest_read(int dirfd, const char *path_for_messages,
				    struct snap_manifest *out);
void snap_manifest_free(struct snap_manifest *manifest);

#endif
