// SPDX-License-Identifier: Apache-2.0
// The hot set as `thaw template inspect` shows it: size, how it was recorded, how stable it is.
#include "vmm/cli/hot_show.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "vmm/cli/hot_plan.h"
#include "vmm/cli/hot_recorder.h"
#include "vmm/util/log.h"

#define NS_PER_MS 1000000.0

int hot_summary_read(const char *folder, struct hot_summary *out)
{
	char path[PATH_MAX];
	struct snap_hot hot;
	struct snap snap;
	int n, ret;

	*out = (struct hot_summary){0};
	n = snprintf(path, sizeof(path), "%s/%s", folder, SNAP_FILE_HOT);
	if (n < 0 || n >= (int)sizeof(path))
		return -ENAMETOOLONG;
	if (access(path, F_OK) < 0 && errno == ENOENT)
		return 0;
	ret = snap_load(&snap, folder);
	if (!ret)
		ret = snap_hot_open(&snap, &hot);
	if (!ret && hot.buf) {
		out->present = true;
		out->info = *hot.info;
		out->nruns = hot.nruns;
		for (u32 i = 0; i < hot.nruns; i++)
			*(hot.runs[i].kind == SNAP_HOT_WRITE ? &out->write_pages
							     : &out->read_pages) +=
				hot.runs[i].npages;
	}
	if (!ret)
		snap_hot_close(&hot);
	snap_close(&snap);
	return ret;
}

/** A share in [0, 1], or null. */
static json_t *share_json(u32 permille)
{
	return permille == SNAP_HOT_UNKNOWN ? json_null() : json_real(permille / 1000.0);
}

json_t *hot_summary_json(const struct hot_summary *summary)
{
	const struct snap_hot_info *info = &summary->info;

	if (!summary->present)
		return json_null();
	return json_pack(
		"{s:I, s:I, s:i, s:s, s:s, s:i, s:i, s:i, s:I, s:I, s:o, s:o, s:f, s:f}",
		"read_pages", (json_int_t)summary->read_pages, "write_pages",
		(json_int_t)summary->write_pages, "runs", (int)summary->nruns, "recorder",
		hot_recorder_name(info->recorder), "rule", hot_rule_name(info->rule), "threshold",
		(int)info->threshold, "clones", (int)info->nclones, "commands",
		(int)info->ncommands, "union_pages", (json_int_t)info->union_pages,
		"intersection_pages", (json_int_t)info->intersection_pages, "stability",
		share_json(info->stability_permille), "similarity",
		share_json(info->similarity_permille), "record_ms",
		(double)info->record_ns / NS_PER_MS, "exec_ms", (double)info->exec_ns / NS_PER_MS);
}

static const char *share_text(u32 permille, char text[8])
{
	if (permille == SNAP_HOT_UNKNOWN)
		return "-";
	snprintf(text, 8, "%.3f", permille / 1000.0);
	return text;
}

void hot_summary_print(const struct hot_summary *summary)
{
	const struct snap_hot_info *info = &summary->info;
	char same[8], other[8];

	if (!summary->present) {
		printf("hot set       none: first commands are slower\n");
		return;
	}
	printf("hot set       %llu pages read, %llu written (%llu KiB of a clone's own), in %u "
	       "runs\n",
	       (unsigned long long)summary->read_pages, (unsigned long long)summary->write_pages,
	       (unsigned long long)summary->write_pages * PAGE_SIZE_BYTES / KIB, summary->nruns);
	printf("  recorded    by %s in %u clones with %u commands: %.0f ms, %.1f ms a command\n",
	       hot_recorder_name(info->recorder), info->nclones, info->ncommands,
	       (double)info->record_ns / NS_PER_MS, (double)info->exec_ns / NS_PER_MS);
	printf("  rule        %s: touched in %u of them; in any %llu pages, in all %llu\n",
	       hot_rule_name(info->rule), info->threshold, (unsigned long long)info->union_pages,
	       (unsigned long long)info->intersection_pages);
	printf("  stability   %s same command, %s different commands (Jaccard index, mean)\n",
	       share_text(info->stability_permille, same),
	       share_text(info->similarity_permille, other));
}
