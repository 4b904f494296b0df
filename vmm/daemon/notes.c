// SPDX-License-Identifier: Apache-2.0
// Start and end of events, audit log and metrics.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "vmm/daemon/notes_internal.h"
#include "vmm/daemon/thawd.h"

void notes_time(char out[32])
{
	struct timespec now;
	struct tm parts;
	size_t used;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &parts);
	used = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &parts);
	snprintf(out + used, 32 - used, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

int notes_start(struct thawd *thawd)
{
	struct notes *notes = calloc(1, sizeof(*notes));
	int ret;

	if (!notes)
		return -ENOMEM;
	thawd->notes = notes;
	notes->thawd = thawd;
	notes->audit_fd = -1;
	ret = events_init(notes);
	return ret ? ret : audit_init(notes);
}

void notes_reload(struct thawd *thawd)
{
	audit_reopen(thawd->notes);
}

void notes_stop(struct thawd *thawd)
{
	if (!thawd->notes)
		return;
	events_free(thawd->notes);
	audit_free(thawd->notes);
	free(thawd->notes);
	thawd->notes = NULL;
}
