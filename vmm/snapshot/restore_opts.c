// SPDX-License-Identifier: Apache-2.0
// Options of a restore: their words, and whether they can be had.
#include "vmm/snapshot/restore_opts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/snapshot/mem.h"
#include "vmm/snapshot/pager.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define THP_FOLDER "/sys/kernel/mm/transparent_hugepage/"

/** Return: the index of @text in the NULL-terminated @words, 0 for NULL, or -1. */
static int word_index(const char *const *words, const char *text)
{
	if (!text)
		return 0;
	for (int i = 1; words[i]; i++) {
		if (!strcmp(words[i], text))
			return i;
	}
	return -1;
}

bool snap_populate_parse(const char *text, enum snap_populate *out)
{
	static const char *const words[] = {
		"",
		[SNAP_POPULATE_OFF] = "off",
		[SNAP_POPULATE_READ] = "read",
		[SNAP_POPULATE_WRITE] = "write",
		[SNAP_POPULATE_BOTH] = "both",
		NULL,
	};
	int index = word_index(words, text);

	*out = index < 0 ? SNAP_POPULATE_DEFAULT : (enum snap_populate)index;
	return index >= 0;
}

bool snap_prefault_parse(const char *text, enum snap_prefault *out)
{
	static const char *const words[] = {
		"", [SNAP_PREFAULT_OFF] = "off", [SNAP_PREFAULT_ON] = "on", NULL};
	int index = word_index(words, text);

	*out = index < 0 ? SNAP_PREFAULT_DEFAULT : (enum snap_prefault)index;
	return index >= 0;
}

bool snap_huge_parse(const char *text, enum snap_huge_pages *out)
{
	*out = SNAP_HUGE_PAGES_NONE;
	if (!text || !strcmp(text, "none"))
		return true;
	*out = SNAP_HUGE_PAGES_THP;
	return !strcmp(text, "thp");
}

bool snap_fault_window_parse(const char *text, u64 *out_bytes)
{
	return !parse_size(text, out_bytes) && *out_bytes >= PAGE_SIZE_BYTES &&
	       *out_bytes <= PAGER_WINDOW_MAX_BYTES && !(*out_bytes & (*out_bytes - 1));
}

void snap_opts_note(struct snap_restore_opts *opts, const char *what)
{
	size_t used = strlen(opts->note);

	snprintf(opts->note + used, sizeof(opts->note) - used, "+%s", what);
}

/** Does the kernel give huge pages to who asks for them by madvise(2)? @file has all choices, the
 * one in force in brackets. It is of sysfs, whose files claim a size that they do not have. */
static bool thp_offered(const char *file)
{
	static const char *const refusals[] = {"[never]", "[deny]"};
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	char text[256];
	bool offered;
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	fd_close(&fd);
	text[n > 0 ? n : 0] = '\0';
	offered = n > 0;
	for (size_t i = 0; i < ARRAY_SIZE(refusals); i++)
		offered = offered && !strstr(text, refusals[i]);
	return offered;
}

/* What snap_opts_look_thp() has seen. */
static bool thp_seen_anon, thp_seen_shmem;

void snap_opts_look_thp(void)
{
	thp_seen_anon = thp_offered(THP_FOLDER "enabled");
	thp_seen_shmem = thp_offered(THP_FOLDER "shmem_enabled");
}

static int check_huge(const struct snap_mem_ops *ops)
{
	const char *file = THP_FOLDER "enabled";
	bool seen = thp_seen_anon;

	if (ops->huge == SNAP_HUGE_NONE) {
		log_err("huge pages: strategy %s can't have them: it maps pages one by one or from a "
			"file's page cache",
			ops->name);
		return -EOPNOTSUPP;
	}
	if (ops->huge == SNAP_HUGE_SHMEM) {
		file = THP_FOLDER "shmem_enabled";
		seen = thp_seen_shmem;
	}
	if (seen || thp_offered(file))
		return 0;
	log_err("huge pages: this host has turned them off (%s)", file);
	return -EOPNOTSUPP;
}

int snap_opts_check(const struct snap_restore_opts *opts, const struct snap_mem_ops *ops)
{
	if (opts->memory_fd && !ops->takes_memory_fd) {
		log_err("strategy %s takes no memory descriptor", ops->name);
		return -EINVAL;
	}
	return opts->huge == SNAP_HUGE_PAGES_THP ? check_huge(ops) : 0;
}
