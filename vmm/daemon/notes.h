/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What thawd tells about itself: events for clients, the audit log, metrics. All are safe from any
 * thread and never wait for a reader.
 *
 * No secret may be in any of them: of an exec the audit log has the argv's first word and count
 * unless the setting audit_argv is on, never environment or input.
 */
#ifndef THAW_DAEMON_NOTES_H
#define THAW_DAEMON_NOTES_H

#include <jansson.h>

#include "vmm/util/types.h"

struct thawd;
struct http_req;

/** event_emit() - to all readers of /v1/events. @type: "sandbox.started"; @sandbox: its name or
 * NULL;
 * @details: stolen, may be NULL. */
void event_emit(struct thawd *thawd, const char *type, const char *sandbox, json_t *details);

/**
 * audit_write() - one JSON line: time, who, action, sandbox, result, details.
 * @req: NULL: thawd itself (a time-out, a reconciliation). @result: "ok" or an error's code.
 * @details: stolen, may be NULL.
 */
void audit_write(struct thawd *thawd, const struct http_req *req, const char *action,
		 const char *sandbox, const char *result, json_t *details);

enum metric_counter {
	METRIC_STARTS_POOL_HIT,
	METRIC_STARTS_POOL_MISS,
	METRIC_START_FAILURES,
	METRIC_STOPS_EXITED,
	METRIC_STOPS_IDLE,
	METRIC_STOPS_HARD_TIMEOUT,
	METRIC_STOPS_REQUESTED,
	METRIC_STOPS_LOST,
	METRIC_EXECS,
	METRIC_EXEC_FAILURES, /* spawn failures */
	METRIC_EXEC_TIMEOUTS,
	METRIC_FORKS,
	METRIC_PAUSES,
	METRIC_RESUMES,
	METRIC_SNAPSHOTS,
	METRIC_QUOTA_REFUSALS,
	METRIC_BYTES_EXEC_IN,
	METRIC_BYTES_EXEC_OUT,
	METRIC_BYTES_FILES_IN,
	METRIC_BYTES_FILES_OUT,
	METRIC_BYTES_PORTS_IN,
	METRIC_BYTES_PORTS_OUT,
	METRIC_ADOPTED, /* machines found alive at thawd's start */
	METRIC_ORPHANS_REMOVED,
	METRIC_COUNTERS,
};

enum metric_histogram {
	METRIC_START_SECONDS_POOL_HIT,
	METRIC_START_SECONDS_POOL_MISS,
	METRIC_EXEC_SECONDS,
	METRIC_FORK_PAUSE_SECONDS,
	METRIC_HISTOGRAMS,
};

void metric_add(struct thawd *thawd, enum metric_counter counter, u64 n);
void metric_observe_ns(struct thawd *thawd, enum metric_histogram histogram, u64 ns);

struct metric_out;
/** Something that is counted when it is asked for: sandboxes by state, memory. Called in the thread
 * that answers /metrics; tells its values by metric_gauge(). */
typedef void metric_gauge_fn(struct thawd *thawd, struct metric_out *out);

/** metric_register() - at the start of a part, before requests are served; at most 16. */
void metric_register(struct thawd *thawd, metric_gauge_fn *fn);

/**
 * metric_gauge() - one value. All of one @name follow each other; @help is printed before the
 * first.
 * @label, @label_value: "state", "running"; both NULL: none.
 */
void metric_gauge(struct metric_out *out, const char *name, const char *help, const char *label,
		  const char *label_value, double value);
/** metric_counter() - the same for one that only grows, with a label. */
void metric_counter(struct metric_out *out, const char *name, const char *help, const char *label,
		    const char *label_value, u64 value);

#endif
