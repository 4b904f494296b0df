/* SPDX-License-Identifier: Apache-2.0 */
/* The hot set as `thaw template inspect` shows it. */
#ifndef THAW_CLI_HOT_SHOW_H
#define THAW_CLI_HOT_SHOW_H

#include <jansson.h>

#include "vmm/snapshot/hot.h"

/** What there is to say about a template's hot set. */
struct hot_summary {
	bool present;
	struct snap_hot_info info;
	u64 read_pages, write_pages;
	u32 nruns;
};

/** hot_summary_read() - of the template in @folder; without a file `hot` nothing is opened and
 * @out->present is false. Return: 0 or -errno (logged). */
int __must_check hot_summary_read(const char *folder, struct hot_summary *out);

/** hot_summary_json() - null when there is no hot set. Return: a new reference, or NULL (out of
 * memory). */
json_t *hot_summary_json(const struct hot_summary *summary);

/** hot_summary_print() - lines of "name value" for people, to stdout. */
void hot_summary_print(const struct hot_summary *summary);

#endif
