/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a restore, and their words on a command line. */
#ifndef THAW_SNAPSHOT_RESTORE_OPTS_H
#define THAW_SNAPSHOT_RESTORE_OPTS_H

#include "vmm/util/types.h"

struct snap_hot_recorder;

#define SNAP_THREADS_MAX    64
#define SNAP_OPTS_NOTE_SIZE 48

/** Which pages of the hot set are put into this process's page tables before the guest runs. 0:
 * what the strategy does by itself, as far as it can be had here. */
enum snap_populate {
	SNAP_POPULATE_DEFAULT = 0,
	SNAP_POPULATE_OFF,
	SNAP_POPULATE_READ,  /* read-hot pages, shared with the page cache */
	SNAP_POPULATE_WRITE, /* write-hot pages, copied ahead */
	SNAP_POPULATE_BOTH,
};

/** Whether the hot set is mapped into the guest's own page tables (KVM_PRE_FAULT_MEMORY). */
enum snap_prefault {
	SNAP_PREFAULT_DEFAULT = 0,
	SNAP_PREFAULT_OFF,
	SNAP_PREFAULT_ON,
};

enum snap_huge_pages {
	SNAP_HUGE_PAGES_NONE = 0,
	SNAP_HUGE_PAGES_THP,
};

/** What is asked for (a value other than the default) is done or the restore fails. */
struct snap_restore_opts {
	const char *strategy;	/* NULL: the default */
	u64 fault_window_bytes; /* "uffd" only: brought at a fault, at most; 0: the default */
	enum snap_populate populate;
	enum snap_prefault prefault;
	enum snap_huge_pages huge;
	unsigned int threads; /* that populate; 0: this one alone */
	int memory_fd;	      /* for "memfd": a prepared one (mem.h), above 2; 0: none */
	/* in: record the hot set of this clone (hot.h), or NULL */
	struct snap_hot_recorder *recorder;
	/* out */
	u64 bytes_read; /* what the strategy itself read from the memory file; of "ws" also from the
			   root image */
	/* What was not done as the strategy's documentation says, each with a plus before it:
	 * "+pread", "+bounce", "+no-hot-set", "+no-populate", "+no-pre-fault"; or "". */
	char note[SNAP_OPTS_NOTE_SIZE];
};

/** snap_opts_note() - add "+@what" to the note. */
void snap_opts_note(struct snap_restore_opts *opts, const char *what);

struct snap_mem_ops;

/** snap_opts_look_thp() - see whether the host offers transparent huge pages, for a later
 * snap_opts_check() that can't look. */
void snap_opts_look_thp(void);

/** snap_opts_check() - can what @opts ask for be had with strategy @ops on this host, as far as
 * that can be told before anything is done? Return: 0 or -errno (logged). */
int __must_check snap_opts_check(const struct snap_restore_opts *opts,
				 const struct snap_mem_ops *ops);

/** Parsers of the options' values. @text: NULL is the default. Return: false: not one of the words
 * that snap_*_words names. */
bool __must_check snap_populate_parse(const char *text, enum snap_populate *out);
bool __must_check snap_prefault_parse(const char *text, enum snap_prefault *out);
bool __must_check snap_huge_parse(const char *text, enum snap_huge_pages *out);
/** snap_fault_window_parse() - @text is not NULL. */
bool __must_check snap_fault_window_parse(const char *text, u64 *out_bytes);

#define SNAP_POPULATE_WORDS "off, read, write or both"
#define SNAP_PREFAULT_WORDS "on or off"
#define SNAP_HUGE_WORDS	    "none or thp"
#define SNAP_WINDOW_WORDS   "a power of two from 4K to 2M"

#endif
