/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind notes.h share. */
#ifndef THAW_DAEMON_NOTES_INTERNAL_H
#define THAW_DAEMON_NOTES_INTERNAL_H

#include <pthread.h>
#include <sys/queue.h>

#include "vmm/daemon/notes.h"

#define METRIC_GAUGE_FNS_MAX 16
#define METRIC_BUCKETS	     16

struct event {
	u64 id; /* rises by one; begins with thawd's start in microseconds since 1970 */
	char *type, *sandbox, *json;
};

struct event_reader {
	LIST_ENTRY(event_reader) link;
	int fd; /* an eventfd, written at each event */
};

struct histogram {
	u64 buckets[METRIC_BUCKETS], count, sum_ns; /* atomic */
};

struct notes {
	struct thawd *thawd;
	/* events */
	pthread_mutex_t events_lock;
	struct event *ring; /* of ring_size; event id is at id % ring_size */
	u64 ring_size, first_id, next_id;
	LIST_HEAD(event_readers, event_reader) readers;
	/* audit */
	pthread_mutex_t audit_lock;
	int audit_fd;
	bool audit_failed;
	/* metrics */
	u64 counters[METRIC_COUNTERS]; /* atomic */
	struct histogram histograms[METRIC_HISTOGRAMS];
	metric_gauge_fn *gauges[METRIC_GAUGE_FNS_MAX];
	unsigned int ngauges;
};

/** notes_time() - now as RFC 3339 UTC with milliseconds. */
void notes_time(char out[32]);

int __must_check events_init(struct notes *notes);
void events_free(struct notes *notes);
/** events_serve() - GET /v1/events. */
void events_serve(struct thawd *thawd, struct http_req *req);

int __must_check audit_init(struct notes *notes);
void audit_reopen(struct notes *notes);
void audit_free(struct notes *notes);

/** metrics_print() - in Prometheus' text format. Return: the text, to be freed; NULL: no memory. */
char *metrics_print(struct thawd *thawd);

#endif
