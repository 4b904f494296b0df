/* SPDX-License-Identifier: Apache-2.0 */
/* The result of `thaw run --json`, and how the JSON of every command is written. */
#ifndef THAW_CLI_JSON_OUT_H
#define THAW_CLI_JSON_OUT_H

#include <jansson.h>

#include "vmm/util/ctl.h"
#include "vmm/util/types.h"

struct run_result {
	const char *template_name;
	const char *strategy; /* as it was really done */
	const char *pool;     /* "hit", or "miss" or "none": the VMM was started for this run */
	const char *kvm;      /* "hardware" or "emulated" */
	struct ctl_clocks clocks;
	u64 client_start_ns; /* of c5 */
	u64 exit_ns;	     /* when the last frame was here; 0: it never came */
	s64 faults_minor, faults_major, bytes_read; /* of thaw-vmm; -1: unknown */
	int code;				    /* exit status; not used if @signal is not 0 */
	int signal;
};

/**
 * run_result_json() - the object of the schema: clocks in ms with 3 decimals, null where a
 * moment did not come (or came before the clock's start, which only a broken peer can claim).
 * Return: a new reference, or NULL (out of memory).
 */
json_t *run_result_json(const struct run_result *result);

/** start_clocks_json() - c1, c2 and c3 of a start without a command. Return: a new reference or
 * NULL.
 */
json_t *start_clocks_json(const struct ctl_clocks *clocks);

/** json_write_file() - @value as @path: beside it first, then renamed, so that no reader sees half
 * of it. Return: 0 or -errno (logged). */
int __must_check json_write_file(const char *path, const json_t *value);

/** json_print() - @value and a newline to stdout. Return: 0 or -errno (logged). */
int __must_check json_print(const json_t *value);

/** Counters of a process, from /proc; -1 where one can't be read. */
struct proc_counters {
	s64 faults_minor, faults_major, bytes_read;
};

/** proc_counters_read() - of process @pid, which must not be reaped yet. Never fails as a whole. */
void proc_counters_read(int pid, struct proc_counters *out);

/** proc_stat_faults() - minflt and majflt out of the text of /proc/PID/stat. Return: 0 or -EINVAL.
 */
int __must_check proc_stat_faults(const char *text, s64 *out_minor, s64 *out_major);

#endif
