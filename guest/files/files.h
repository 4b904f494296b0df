/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of thaw-files. One process is one operation; it runs with the rights of whom it is for,
 * and ends at its first error. Anybody in the guest may change the same files at the same time.
 */
#ifndef THAW_FILES_FILES_H
#define THAW_FILES_FILES_H

#include <sys/stat.h>

#include "guest/files/frame.h"

/* Two transfers of this size are in flight at most: one here, one in the pipe. */
#define FILES_CHUNK_BYTES 65536u

/* out.c */

/** out_message() - queue a frame; it leaves when the queue is full or flushed. */
void out_message(const struct files_message *msg);
void out_flush(void);
/** out_data() - bytes to stdout. The end of who reads them is the end of this process (SIGPIPE).
 * Return: 0 or -errno. */
int __must_check out_data(const void *data, size_t len_bytes);

struct files_str str_of(const char *text);
void stat_pack(const struct stat *from, struct files_stat *to);

/** out_opened() - FILES_OPENED, at once. @length_bytes: negative: not known. */
void out_opened(const struct stat *st, u64 offset_bytes, s64 length_bytes);
/** out_note() - FILES_NOTE about @path. */
void out_note(int error, const char *path, const char *text);

/** out_done() - the last frame. Return: exit status. */
int out_done(u64 bytes, u64 count);
/**
 * out_fail() - the last frame.
 * @error: positive errno; @to: NULL: only one path has to do with it; @text: NULL: strerror's.
 * Return: exit status.
 */
int out_fail(int error, const char *path, const char *to, const char *text);

/* Operations: args are those behind the operation's name; each returns the exit status. */
int op_read(char **args);    /* PATH OFFSET|-LAST LENGTH|- */
int op_write(char **args);   /* PATH MODE|- FLAGS */
int op_stat(char **args);    /* PATH */
int op_lstat(char **args);   /* PATH */
int op_list(char **args);    /* PATH DEPTH */
int op_mkdir(char **args);   /* PATH MODE FLAGS */
int op_rename(char **args);  /* FROM TO */
int op_remove(char **args);  /* PATH FLAGS */
int op_symlink(char **args); /* TARGET PATH */
int op_chmod(char **args);   /* PATH MODE */
int op_chown(char **args);   /* PATH UID|- GID|- FLAGS */
int op_tar_out(char **args); /* PATH */
int op_tar_in(char **args);  /* PATH FLAGS */
int op_watch(char **args);   /* PATH FLAGS */

/* main.c: each ends the process with EINVAL's frame when the argument is not what it should be. */
u64 arg_number(const char *arg, u64 max);
mode_t arg_mode(const char *arg);
/** arg_flags() - letters of @known, or "-" for none. Return: bit n: the n-th letter is there. */
unsigned int arg_flags(const char *arg, const char *known);

/* confine.c */

/**
 * confine_to() - from now on this process can't reach a file outside the folder @fd: its root is
 * moved there where it may do that (root), and Landlock holds it where the kernel has that.
 * The working directory is @fd afterwards. Return: 0 or -errno.
 */
int __must_check confine_to(int fd);

#endif
