/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share with each other and with their tests; nothing else includes
 * it. */
#ifndef THAW_SNAPSHOT_INTERNAL_H
#define THAW_SNAPSHOT_INTERNAL_H

#include "vmm/snapshot/snapshot.h"

#define SNAP_FILE_MANIFEST "manifest.json"
#define SNAP_FILE_STATE	   "state"
#define SNAP_FILE_MEMORY   "memory"
#define SNAP_FILE_DISK	   "disk"
#define SNAP_FILE_PACK	   "memory.pack" /* for strategy "pack" */
#define SNAP_FILE_DIFF	   "diff"

#define SNAP_FORMAT_NAME	"thaw-snapshot"
#define SNAP_MANIFEST_MAX_BYTES (64u << 10)
#define SNAP_SECTION_ALIGN	64u

#define SNAP_DIGEST_BYTES 16
#define SNAP_DIGEST_HEX	  33 /* with the NUL */

/** snap_memory_bytes() - size of the memory file: where the last RAM range ends. */
u64 snap_memory_bytes(u64 ram_bytes);

/**
 * snap_part_open() - open file @name of the folder @dirfd for reading: a regular file (no link),
 * owned by root or this user, writable by nobody else, with no other name.
 * @path: the folder's, for messages. Return: a file descriptor and @len_bytes, or -errno (logged
 * "PATH/NAME: reason").
 */
int __must_check snap_part_open(int dirfd, const char *path, const char *name, u64 *len_bytes);

/** snap_part_there() - false only if there is no file @name in the folder @dirfd. */
bool snap_part_there(int dirfd, const char *name);

struct stat;
/** snap_check_owner() - nobody but root and this user can change what @st is about. Return: NULL or
 * what is wrong. */
const char *snap_check_owner(const struct stat *st);
/** snap_check_part() - of the open file @fd, what snap_part_open() promises. @linked: it may have
 * other names. @vouched: who owns it was looked at before. Return: 0, or -errno and @why. */
int __must_check snap_check_part(int fd, bool linked, bool vouched, const char **why,
				 u64 *len_bytes);

/** snap_part_read() - file @name of the folder @dirfd whole, at most @max_bytes; opened as by
 * snap_part_open(). @out: the caller frees it. Return: 0 or -errno (logged). */
int __must_check snap_part_read(int dirfd, const char *path, const char *name, size_t max_bytes,
				void **out, size_t *len_bytes);

/** snap_pack_open() - memory.pack of @snap; *@fd is -1 when there is none. Return: 0 or -errno
 * (logged). */
int __must_check snap_pack_open(const struct snap *snap, int *fd);

/** snap_digest_buf() - XXH3-128, canonical (big-endian) form. */
void snap_digest_buf(const void *buf, size_t len_bytes, u8 out[SNAP_DIGEST_BYTES]);

/** snap_digest_state() - of a state file: the 16 bytes of header.digest count as zero. @len_bytes
 * >= sizeof(struct snap_header). */
void snap_digest_state(const void *buf, size_t len_bytes, u8 out[SNAP_DIGEST_BYTES]);

/** snap_digest_hex() - 32 lower-case digits and a NUL. */
void snap_digest_hex(const u8 digest[SNAP_DIGEST_BYTES], char out[SNAP_DIGEST_HEX]);

/** snap_page_is_zero() - true if all 4 KiB at @page (8-byte aligned) are zero. */
bool snap_page_is_zero(const void *page);

/*
 * Block digest of a sparse file (FORMAT.md "Digests"): over (offset, 4 KiB) of every block that is
 * not all zero, in ascending order, then the file's size. So it does not matter which zero blocks
 * are holes.
 */
struct snap_blocks; /* the running digest */

/** snap_blocks_new() - Return: the digest, or NULL without memory. */
struct snap_blocks *snap_blocks_new(void);
/** snap_blocks_add() - blocks at @offset_bytes; both multiples of 4 KiB; zero blocks are skipped;
 * ascending. */
void snap_blocks_add(struct snap_blocks *blocks, u64 offset_bytes, const void *data, u64 len_bytes);
/** snap_blocks_end() - result into @out and free @blocks; @out may be NULL to give up. */
void snap_blocks_end(struct snap_blocks *blocks, u64 file_bytes, u8 out[SNAP_DIGEST_BYTES]);

/** snap_digest_sparse() - block digest of the open file @fd, which is @file_bytes long (multiple of
 * 4 KiB). Return: 0 or -errno. */
int __must_check snap_digest_sparse(int fd, u64 file_bytes, u8 out[SNAP_DIGEST_BYTES]);

/** snap_digest_plain() - XXH3-128 of the whole open file (what `xxhsum -H2` prints). Return: 0 or
 * -errno. */
int __must_check snap_digest_plain(int fd, u64 file_bytes, u8 out[SNAP_DIGEST_BYTES]);

/**
 * snap_extent_next() - the first stretch of data in @fd at or after @pos, widened to 4 KiB bounds
 * and cut at @file_bytes. The file position of @fd moves. Return: 1 and [@start, @end), 0 when only
 * holes follow, or -errno.
 */
int __must_check snap_extent_next(int fd, u64 file_bytes, u64 pos, u64 *start, u64 *end);

/**
 * snap_build() - a whole state file out of @parts (header ignored): the reverse of snap_parse().
 * Unused tails (MSRs, CPUID entries, XSAVE) come out zero.
 * @out: the caller frees it.
 *
 * Return: 0 or -ENOMEM.
 */
int __must_check snap_build(const struct snap_view *parts,
			    const u8 manifest_digest[SNAP_DIGEST_BYTES], void **out,
			    size_t *len_bytes);

/** snap_manifest_parse() - @json into @out, which owns a copy of it; @why (may be NULL) gets the
 * reason. Return: 0, -EINVAL, -EPROTONOSUPPORT, -ENOMEM. */
int __must_check snap_manifest_parse(const char *json, size_t len_bytes, struct snap_manifest *out,
				     char *why, size_t why_bytes);

/** snap_manifest_print() - the JSON text of @manifest (json and json_len_bytes are filled), with
 * @cpuid's features by name. Return: 0 or -ENOMEM. */
int __must_check snap_manifest_print(struct snap_manifest *manifest,
				     const struct snap_cpuid *cpuid);

/** snap_cpu_find() - entry of leaf @function, sub-leaf @index (ignored where the leaf has none).
 * Return: NULL when there is none. */
const struct kvm_cpuid_entry2 *snap_cpu_find(const struct snap_cpuid *cpuid, u32 function,
					     u32 index);

/** snap_cpu_vendor() - 12 printable characters and a NUL. */
void snap_cpu_vendor(const struct snap_cpuid *cpuid, char vendor[13]);
/** snap_cpu_model() - brand string, trimmed, or "unknown". */
void snap_cpu_model(const struct snap_cpuid *cpuid, char model[49]);
/** snap_cpu_signature() - CPUID.1:EAX, or 0. */
u32 snap_cpu_signature(const struct snap_cpuid *cpuid);

/** One 32-bit word of feature bits. */
struct snap_cpu_word {
	u32 function, index;
	enum snap_cpu_reg { SNAP_EAX, SNAP_EBX, SNAP_ECX, SNAP_EDX } reg;
	u32 dynamic;		  /* bits that follow the guest's own CR4: never compared */
	const char *const *names; /* 32 of them, NULL where there is none; or NULL */
};

extern const struct snap_cpu_word snap_cpu_words[];
extern const unsigned int snap_cpu_nwords;

/** snap_cpu_word_get() - the word of @cpuid, 0 where the leaf is absent. */
u32 snap_cpu_word_get(const struct snap_cpuid *cpuid, const struct snap_cpu_word *word);

#endif
