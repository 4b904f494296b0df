/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress of a long command, on stderr.
 *
 * On a terminal each phase is one line that is rewritten with the seconds it has taken. In a log
 * each phase is a plain line when it begins, with the seconds since the command's start.
 */
#ifndef THAW_CLI_PROGRESS_H
#define THAW_CLI_PROGRESS_H

#include "vmm/util/types.h"

struct progress {
	bool terminal;
	bool open; /* a phase is under way */
	u64 start_ns, phase_ns;
	char phase[128];
};

/** progress_init() - @start_ns: CLOCK_MONOTONIC of the command's start. */
void progress_init(struct progress *progress, u64 start_ns);

/** progress_phase() - the phase before is done, this one begins. Control characters in the text are
 * shown as '?'. */
void progress_phase(struct progress *progress, const char *fmt, ...) __printf(2, 3);

/** progress_tick() - rewrite the line; @opaque is the struct progress (fits vmmproc_wait()). */
void progress_tick(void *opaque);

/** progress_note() - replace the phase's text, e.g. by how far it is ("root image 40 %"); shown on
 * a terminal only. */
void progress_note(struct progress *progress, const char *fmt, ...) __printf(2, 3);

/** progress_break() - end the line of the phase under way, so that a message can follow. */
void progress_break(struct progress *progress);

/** progress_done() - the last phase is done: a line "done: TEXT in N s". */
void progress_done(struct progress *progress, const char *fmt, ...) __printf(2, 3);

#endif
