// SPDX-License-Identifier: Apache-2.0
// Events: a ring of the last ones, and readers that follow it.
//
// A reader keeps the id of the last event it has sent and takes the next one from the ring, with a
// copy, so that the lock is never held while something is sent. One that falls behind by more than
// the ring is told so by an event `gap`. Ids begin with the time of thawd's start: a client that
// comes back after a restart with an older id is told of a gap, too, and never given wrong ones.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "vmm/daemon/http.h"
#include "vmm/daemon/notes_internal.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/util.h"

#define PING_MS 10000

int events_init(struct notes *notes)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	notes->first_id = (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
	notes->next_id = notes->first_id;
	notes->ring_size = notes->thawd->conf.event_ring;
	LIST_INIT(&notes->readers);
	pthread_mutex_init(&notes->events_lock, NULL);
	notes->ring = calloc(notes->ring_size, sizeof(*notes->ring));
	return notes->ring ? 0 : -ENOMEM;
}

static void event_clear(struct event *event)
{
	free(event->type);
	free(event->sandbox);
	free(event->json);
	memset(event, 0, sizeof(*event));
}

void events_free(struct notes *notes)
{
	for (u64 i = 0; notes->ring && i < notes->ring_size; i++)
		event_clear(&notes->ring[i]);
	free(notes->ring);
	pthread_mutex_destroy(&notes->events_lock);
}

static char *event_json(u64 id, const char *type, const char *sandbox, json_t *details)
{
	char now[32], text_id[24], *text;
	json_t *data;

	notes_time(now);
	if (!details)
		details = json_object();
	snprintf(text_id, sizeof(text_id), "%llu", (unsigned long long)id);
	data = json_pack("{s:s, s:s, s:s, s:s?, s:o}", "id", text_id, "time", now, "type", type,
			 "sandbox", sandbox, "details", details);
	text = data ? json_dumps(data, JSON_COMPACT) : NULL;
	json_decref(data);
	return text;
}

void event_emit(struct thawd *thawd, const char *type, const char *sandbox, json_t *details)
{
	struct notes *notes = thawd->notes;
	struct event event = {.type = strdup(type), .sandbox = sandbox ? strdup(sandbox) : NULL};
	struct event_reader *reader;
	struct event *slot;

	pthread_mutex_lock(&notes->events_lock);
	/* One that there is no memory for keeps its number and is passed over. */
	event.id = notes->next_id++;
	event.json = event_json(event.id, type, sandbox, details);
	slot = &notes->ring[event.id % notes->ring_size];
	event_clear(slot);
	*slot = event;
	LIST_FOREACH(reader, &notes->readers, link)
	{
		eventfd_write(reader->fd, 1);
	}
	pthread_mutex_unlock(&notes->events_lock);
}

/** oldest_id() - of those that are still there; with the lock held. */
static u64 oldest_id(const struct notes *notes)
{
	u64 count = notes->next_id - notes->first_id;

	return count > notes->ring_size ? notes->next_id - notes->ring_size : notes->first_id;
}

/**
 * next_event() - the one after *@last that @sandbox (NULL: all) asks for, copied.
 * @gap: the first one there is, when events between *@last and it are lost; else 0.
 * Return: is there one? *@last is moved.
 */
static bool next_event(struct notes *notes, u64 *last, const char *sandbox, struct event *out,
		       u64 *gap)
{
	u64 oldest, before = *last;
	bool found = false;

	*gap = 0;
	memset(out, 0, sizeof(*out));
	pthread_mutex_lock(&notes->events_lock);
	oldest = oldest_id(notes);
	if (*last + 1 < oldest) {
		*last = oldest - 1;
		/* "From the beginning" misses nothing as long as nothing was dropped. */
		if (before || oldest != notes->first_id)
			*gap = oldest;
	}
	if (*last >= notes->next_id) /* another clock's: ids of the future are none */
		*last = notes->next_id - 1;
	while (!*gap && !found && *last + 1 < notes->next_id) {
		const struct event *event = &notes->ring[++*last % notes->ring_size];

		if (!event->type || !event->json ||
		    (sandbox && (!event->sandbox || strcmp(event->sandbox, sandbox))))
			continue;
		out->id = event->id;
		out->type = strdup(event->type);
		out->json = strdup(event->json);
		found = out->type && out->json;
		if (!found)
			event_clear(out);
	}
	pthread_mutex_unlock(&notes->events_lock);
	return found;
}

static int send_event(struct http_req *req, struct event *event)
{
	char id[24];
	int ret;

	snprintf(id, sizeof(id), "%llu", (unsigned long long)event->id);
	ret = http_sse_send(req, event->type, id, json_loads(event->json, 0, NULL));
	event_clear(event);
	return ret;
}

/** send_all() - what there is. Return: 0, or -EPIPE: the client left. */
static int send_all(struct notes *notes, struct http_req *req, u64 *last, const char *sandbox)
{
	struct event event;
	int ret = 0;
	u64 gap;

	while (!ret && !http_stopping(req)) {
		bool found = next_event(notes, last, sandbox, &event, &gap);
		char id[24];

		snprintf(id, sizeof(id), "%llu", (unsigned long long)gap);
		if (gap)
			ret = http_sse_send(req, "gap", NULL, json_pack("{s:s}", "id", id));
		else if (found)
			ret = send_event(req, &event);
		else
			break;
	}
	return ret;
}

/** where_from() - the id after which to begin: Last-Event-ID, else `since`, else only what is to
 * come. Return: 0, or -EINVAL: answered. */
static int where_from(struct notes *notes, struct http_req *req, u64 *last)
{
	const char *header = http_header(req, "Last-Event-ID");

	pthread_mutex_lock(&notes->events_lock);
	*last = notes->next_id - 1;
	pthread_mutex_unlock(&notes->events_lock);
	if (header && !parse_u64(header, 0, INT64_MAX, last))
		return 0;
	return http_query_u64(req, "since", 0, INT64_MAX, *last, last);
}

void events_serve(struct thawd *thawd, struct http_req *req)
{
	struct notes *notes = thawd->notes;
	struct event_reader reader = {.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	struct pollfd fds[3];
	eventfd_t ignored;
	u64 last;

	if (reader.fd < 0) {
		http_reply_retry(req, 1, "out of descriptors");
		return;
	}
	if (where_from(notes, req, &last)) {
		fd_close(&reader.fd);
		return;
	}
	pthread_mutex_lock(&notes->events_lock);
	LIST_INSERT_HEAD(&notes->readers, &reader, link);
	pthread_mutex_unlock(&notes->events_lock);
	http_sse_begin(req);
	fds[0] = (struct pollfd){.fd = reader.fd, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = http_client_fd(req), .events = POLLRDHUP};
	fds[2] = (struct pollfd){.fd = http_stop_fd(req), .events = POLLIN};
	while (!send_all(notes, req, &last, http_query(req, "sandbox")) && !http_stopping(req)) {
		if (http_sse_ping(req) || (poll(fds, 3, PING_MS) < 0 && errno != EINTR))
			break;
		if (fds[1].revents || fds[2].revents)
			break;
		(void)!eventfd_read(reader.fd, &ignored);
	}
	pthread_mutex_lock(&notes->events_lock);
	LIST_REMOVE(&reader, link);
	pthread_mutex_unlock(&notes->events_lock);
	fd_close(&reader.fd);
}
