// SPDX-License-Identifier: Apache-2.0
// Metrics in Prometheus' text format. Counters and histograms are atomic; gauges are asked for when
// somebody looks.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "vmm/daemon/http_internal.h"
#include "vmm/daemon/notes_internal.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

struct metric_out {
	FILE *file;
	const char *last; /* name of the metric whose head was printed */
};

/** Rows of one name follow each other. */
static const struct counter_row {
	enum metric_counter counter;
	const char *name, *labels, *help;
} counter_rows[] = {
	{METRIC_STARTS_POOL_HIT, "thaw_starts_total", "pool=\"hit\"", "Sandboxes started."},
	{METRIC_STARTS_POOL_MISS, "thaw_starts_total", "pool=\"miss\"", ""},
	{METRIC_START_FAILURES, "thaw_start_failures_total", "", "Starts that failed."},
	{METRIC_STOPS_EXITED, "thaw_stops_total", "reason=\"exited\"", "Sandboxes that ended."},
	{METRIC_STOPS_IDLE, "thaw_stops_total", "reason=\"idle\"", ""},
	{METRIC_STOPS_HARD_TIMEOUT, "thaw_stops_total", "reason=\"hard_timeout\"", ""},
	{METRIC_STOPS_REQUESTED, "thaw_stops_total", "reason=\"requested\"", ""},
	{METRIC_STOPS_LOST, "thaw_stops_total", "reason=\"lost\"", ""},
	{METRIC_EXECS, "thaw_execs_total", "", "Commands started in sandboxes."},
	{METRIC_EXEC_FAILURES, "thaw_exec_failures_total", "", "Commands that could not start."},
	{METRIC_EXEC_TIMEOUTS, "thaw_exec_timeouts_total", "", "Commands ended by their time-out."},
	{METRIC_FORKS, "thaw_forks_total", "", "Sandboxes made by fork."},
	{METRIC_PAUSES, "thaw_pauses_total", "", "Sandboxes paused."},
	{METRIC_RESUMES, "thaw_resumes_total", "", "Sandboxes resumed."},
	{METRIC_SNAPSHOTS, "thaw_snapshots_total", "", "Snapshots taken."},
	{METRIC_QUOTA_REFUSALS, "thaw_quota_refusals_total", "",
	 "Starts and sandboxes refused by a quota."},
	{METRIC_BYTES_EXEC_IN, "thaw_bytes_total", "kind=\"exec\",direction=\"in\"",
	 "Bytes moved for clients, in: to the sandbox."},
	{METRIC_BYTES_EXEC_OUT, "thaw_bytes_total", "kind=\"exec\",direction=\"out\"", ""},
	{METRIC_BYTES_FILES_IN, "thaw_bytes_total", "kind=\"files\",direction=\"in\"", ""},
	{METRIC_BYTES_FILES_OUT, "thaw_bytes_total", "kind=\"files\",direction=\"out\"", ""},
	{METRIC_BYTES_PORTS_IN, "thaw_bytes_total", "kind=\"ports\",direction=\"in\"", ""},
	{METRIC_BYTES_PORTS_OUT, "thaw_bytes_total", "kind=\"ports\",direction=\"out\"", ""},
	{METRIC_ADOPTED, "thaw_adopted_total", "", "Machines found alive at thawd's start."},
	{METRIC_ORPHANS_REMOVED, "thaw_orphans_removed_total", "",
	 "Leftovers of killed processes that were removed."},
};

_Static_assert(ARRAY_SIZE(counter_rows) == METRIC_COUNTERS, "each counter has a row");

static const struct histogram_row {
	enum metric_histogram histogram;
	const char *name, *labels, *help;
} histogram_rows[] = {
	{METRIC_START_SECONDS_POOL_HIT, "thaw_start_seconds", "pool=\"hit\",",
	 "From the request to a sandbox that runs commands."},
	{METRIC_START_SECONDS_POOL_MISS, "thaw_start_seconds", "pool=\"miss\",", ""},
	{METRIC_EXEC_SECONDS, "thaw_exec_seconds", "", "Time that commands ran."},
	{METRIC_FORK_PAUSE_SECONDS, "thaw_fork_pause_seconds", "",
	 "Time that sandboxes stood still for a fork."},
};

_Static_assert(ARRAY_SIZE(histogram_rows) == METRIC_HISTOGRAMS, "each histogram has a row");

/** Upper bounds in us: 1 ms to 5 minutes, and what is above. */
static const u64 bounds_us[METRIC_BUCKETS] = {
	1000,	2500,	 5000,	  10000,   25000,    50000,    100000,	 250000,
	500000, 1000000, 2500000, 5000000, 10000000, 30000000, 60000000, 300000000,
};

void metric_add(struct thawd *thawd, enum metric_counter counter, u64 n)
{
	__atomic_fetch_add(&thawd->notes->counters[counter], n, __ATOMIC_RELAXED);
}

void metric_observe_ns(struct thawd *thawd, enum metric_histogram histogram, u64 ns)
{
	struct histogram *h = &thawd->notes->histograms[histogram];

	for (size_t i = 0; i < METRIC_BUCKETS; i++) {
		if (ns <= bounds_us[i] * 1000) {
			__atomic_fetch_add(&h->buckets[i], 1, __ATOMIC_RELAXED);
			break;
		}
	}
	__atomic_fetch_add(&h->count, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&h->sum_ns, ns, __ATOMIC_RELAXED);
}

void metric_register(struct thawd *thawd, metric_gauge_fn *fn)
{
	struct notes *notes = thawd->notes;

	BUG_ON(notes->ngauges == METRIC_GAUGE_FNS_MAX);
	notes->gauges[notes->ngauges++] = fn;
}

static void head(struct metric_out *out, const char *name, const char *kind, const char *help)
{
	if (out->last && !strcmp(out->last, name))
		return;
	out->last = name;
	fprintf(out->file, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

void metric_gauge(struct metric_out *out, const char *name, const char *help, const char *label,
		  const char *label_value, double value)
{
	head(out, name, "gauge", help);
	if (label)
		fprintf(out->file, "%s{%s=\"%s\"} %.17g\n", name, label, label_value, value);
	else
		fprintf(out->file, "%s %.17g\n", name, value);
}

void metric_counter(struct metric_out *out, const char *name, const char *help, const char *label,
		    const char *label_value, u64 value)
{
	head(out, name, "counter", help);
	fprintf(out->file, "%s{%s=\"%s\"} %llu\n", name, label, label_value,
		(unsigned long long)value);
}

static void print_counters(struct notes *notes, struct metric_out *out)
{
	for (size_t i = 0; i < ARRAY_SIZE(counter_rows); i++) {
		const struct counter_row *row = &counter_rows[i];
		u64 n = __atomic_load_n(&notes->counters[row->counter], __ATOMIC_RELAXED);

		head(out, row->name, "counter", row->help);
		fprintf(out->file, *row->labels ? "%s{%s} %llu\n" : "%s%s %llu\n", row->name,
			row->labels, (unsigned long long)n);
	}
}

static void print_histograms(struct notes *notes, struct metric_out *out)
{
	for (size_t i = 0; i < ARRAY_SIZE(histogram_rows); i++) {
		const struct histogram_row *row = &histogram_rows[i];
		struct histogram *h = &notes->histograms[row->histogram];
		u64 count = __atomic_load_n(&h->count, __ATOMIC_RELAXED), sum = 0;
		char labels[32];

		snprintf(labels, sizeof(labels), "%s", row->labels);
		head(out, row->name, "histogram", row->help);
		for (size_t b = 0; b < METRIC_BUCKETS; b++) {
			sum += __atomic_load_n(&h->buckets[b], __ATOMIC_RELAXED);
			fprintf(out->file, "%s_bucket{%sle=\"%g\"} %llu\n", row->name, labels,
				(double)bounds_us[b] / 1e6, (unsigned long long)sum);
		}
		/* The total was read first, or it could be less than a bucket. */
		fprintf(out->file, "%s_bucket{%sle=\"+Inf\"} %llu\n", row->name, labels,
			(unsigned long long)MAX(count, sum));
		if (*labels) /* without the comma */
			labels[strlen(labels) - 1] = '\0';
		fprintf(out->file, *labels ? "%s_sum{%s} %.9g\n" : "%s_sum%s %.9g\n", row->name,
			labels, (double)__atomic_load_n(&h->sum_ns, __ATOMIC_RELAXED) / 1e9);
		fprintf(out->file, *labels ? "%s_count{%s} %llu\n" : "%s_count%s %llu\n", row->name,
			labels, (unsigned long long)MAX(count, sum));
	}
}

static void print_http(struct http *http, struct metric_out *out)
{
	static const char *const kinds[] = {"unix", "tcp", "preview"};

	for (unsigned int i = 0; i < http->nlisteners; i++) {
		struct http_listener *listener = &http->listeners[i];
		unsigned int count;

		pthread_mutex_lock(&listener->lock);
		count = listener->count;
		pthread_mutex_unlock(&listener->lock);
		metric_gauge(out, "thaw_http_connections", "Connections of clients.", "listener",
			     kinds[listener->kind], count);
	}
	head(out, "thaw_http_requests_total", "counter", "Requests answered.");
	for (unsigned int i = 1; i < ARRAY_SIZE(http->answers); i++)
		fprintf(out->file, "thaw_http_requests_total{code=\"%uxx\"} %llu\n", i,
			(unsigned long long)__atomic_load_n(&http->answers[i], __ATOMIC_RELAXED));
}

static void print_process(struct thawd *thawd, struct metric_out *out)
{
	unsigned long long pages = 0, resident = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (file && fscanf(file, "%llu %llu", &pages, &resident) == 2)
		metric_gauge(out, "thaw_thawd_memory_bytes", "Resident memory of thawd.", NULL,
			     NULL, (double)(resident * PAGE_SIZE_BYTES));
	if (file)
		fclose(file);
	metric_gauge(out, "thaw_thawd_uptime_seconds", "Time since thawd's start.", NULL, NULL,
		     (double)(clock_now_ns() - thawd->start_ns) / 1e9);
}

char *metrics_print(struct thawd *thawd)
{
	struct notes *notes = thawd->notes;
	struct metric_out out = {.last = NULL};
	size_t len_bytes = 0;
	char *text = NULL;

	out.file = open_memstream(&text, &len_bytes);
	if (!out.file)
		return NULL;
	metric_gauge(&out, "thaw_build_info", "What runs here; always 1.", "version", THAW_VERSION,
		     1);
	for (unsigned int i = 0; i < notes->ngauges; i++)
		notes->gauges[i](thawd, &out);
	print_counters(notes, &out);
	print_histograms(notes, &out);
	print_http(thawd->http, &out);
	print_process(thawd, &out);
	if (fclose(out.file)) {
		free(text);
		return NULL;
	}
	return text;
}
