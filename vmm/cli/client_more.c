// SPDX-License-Identifier: Apache-2.0
// The CLI as a client of thawd: events, lists, names.
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/cli/client.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** One event's data. */
#define EVENT_MAX_BYTES (16u << 20)
#define PAGES_MAX	10000

/* A stream of server-sent events, taken apart line by line. */
struct events {
	client_event_fn *fn;
	void *opaque;
	char *line, *data;
	size_t line_len, line_room, data_len, data_room;
	char name[64], id[64];
};

static int append(char **buf, size_t *len, size_t *room, const char *text, size_t text_len)
{
	char *grown;

	if (*len + text_len + 1 > EVENT_MAX_BYTES)
		return -EMSGSIZE;
	if (!*buf || *len + text_len + 1 > *room) {
		*room = MAX(*room * 2, *len + text_len + 256);
		grown = realloc(*buf, *room);
		if (!grown)
			return -ENOMEM;
		*buf = grown;
	}
	memcpy(*buf + *len, text, text_len);
	*len += text_len;
	(*buf)[*len] = '\0';
	return 0;
}

/** An empty line: the event is complete. */
static int give_event(struct events *events)
{
	json_t *data = NULL;
	int ret = 0;

	if (events->data_len) {
		data = json_loadb(events->data, events->data_len, JSON_DECODE_ANY | JSON_ALLOW_NUL,
				  NULL);
		ret = data ? events->fn(events->opaque, events->name[0] ? events->name : "message",
					events->id, data)
			   : -EPROTO;
	}
	json_decref(data);
	events->data_len = 0;
	events->name[0] = '\0';
	return ret;
}

static int take_line(struct events *events)
{
	char *line = events->line, *value;
	size_t len = events->line_len;

	if (len && line[len - 1] == '\r')
		line[--len] = '\0';
	events->line_len = 0;
	if (!len)
		return give_event(events);
	value = memchr(line, ':', len);
	/* A comment keeps the connection warm. */
	if (value == line)
		return 0;
	if (value)
		*value++ = '\0';
	else
		value = line + len;
	value += *value == ' ';
	if (!strcmp(line, "event"))
		snprintf(events->name, sizeof(events->name), "%s", value);
	else if (!strcmp(line, "id"))
		snprintf(events->id, sizeof(events->id), "%s", value);
	else if (!strcmp(line, "data"))
		return append(&events->data, &events->data_len, &events->data_room, value,
			      strlen(value));
	return 0;
}

static int take_bytes(struct events *events, const char *buf, size_t len)
{
	int ret;

	while (len) {
		const char *end = memchr(buf, '\n', len);
		const size_t part = end ? (size_t)(end - buf) : len;

		ret = append(&events->line, &events->line_len, &events->line_room, buf, part);
		if (!ret && end)
			ret = take_line(events);
		if (ret)
			return ret;
		buf += part + (end != NULL);
		len -= part + (end != NULL);
	}
	return 0;
}

static int read_events(struct client *client, client_event_fn *fn, void *opaque)
{
	struct events events = {.fn = fn, .opaque = opaque};
	char buf[16384];
	int ret = 0;
	ssize_t n;

	do {
		if (client->idle_ns)
			client->http.deadline_ns = clock_now_ns() + client->idle_ns;
		n = httpc_read(&client->http, buf, sizeof(buf));
		if (n > 0)
			ret = take_bytes(&events, buf, (size_t)n);
	} while (n > 0 && !ret);
	free(events.line);
	free(events.data);
	if (client->idle_ns && n == -ETIMEDOUT)
		n = 0;
	if (n < 0)
		log_err("thawd at %s: its events broke off: %s", client->path,
			n == -EPIPE ? "it closed the connection" : strerror((int)-n));
	else if (ret == -EPROTO || ret == -EMSGSIZE || ret == -ENOMEM)
		log_err("thawd at %s: its events: %s", client->path, strerror(-ret));
	return n < 0 ? (int)n : MIN(ret, 0);
}

static const struct httpc_header event_headers[] = {{"Accept", "text/event-stream"}, {NULL, NULL}};

int client_events(struct client *client, const struct client_target *target, client_event_fn *fn,
		  void *opaque)
{
	struct httpc_response response;
	int ret = client_begin(client, "GET", target, event_headers, 0);

	if (!ret)
		ret = client_answer(client, false, &response);
	if (ret)
		return ret;
	httpc_response_free(&response);
	return read_events(client, fn, opaque);
}

int client_post_events(struct client *client, const struct client_target *target, json_t *steal,
		       client_event_fn *fn, void *opaque)
{
	char *text = json_dumps(steal, JSON_COMPACT);
	struct httpc_response response;
	int ret;

	json_decref(steal);
	if (!text)
		return -ENOMEM;
	ret = client_begin(client, "POST", target, event_headers, (s64)strlen(text));
	if (!ret && httpc_send_body(&client->http, text, strlen(text)))
		log_debug("thawd takes no body: its answer says why");
	free(text);
	if (!ret)
		ret = client_answer(client, false, &response);
	if (ret)
		return ret;
	httpc_response_free(&response);
	return read_events(client, fn, opaque);
}

int client_list(struct client *client, const struct client_target *target, const char *field,
		json_t **out)
{
	json_t *all = json_array(), *page = NULL;
	char cursor[512] = "";
	int ret = all ? 0 : -ENOMEM;

	for (int i = 0; !ret && i < PAGES_MAX; i++) {
		struct client_target next = *target;

		if (cursor[0])
			client_target_query(&next, "cursor", cursor);
		ret = client_call(client, "GET", &next, NULL, &page);
		if (!ret && json_array_extend(all, json_object_get(page, field))) {
			log_err("thawd at %s: its answer has no list '%s'", client->path, field);
			ret = -EPROTO;
		}
		snprintf(cursor, sizeof(cursor), "%s", client_string(page, "next_cursor"));
		json_decref(page);
		page = NULL;
		if (!cursor[0])
			break;
	}
	if (ret)
		json_decref(all);
	*out = ret ? NULL : all;
	return ret;
}

/** Could @text be a sandbox's name, so that it is worth a question? */
static bool is_name(const char *text)
{
	const size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-");

	return len && !text[len] && len < CLIENT_NAME_BYTES && text[0] != '-';
}

/** How many of @all have @prefix in front of their @field; one of them in @found. */
static size_t match_prefix(const json_t *all, const char *field, const char *prefix, json_t **found)
{
	const size_t len = strlen(prefix);
	size_t i, count = 0;
	json_t *one;

	json_array_foreach(all, i, one)
	{
		if (strncmp(client_string(one, field), prefix, len) != 0)
			continue;
		if (count++ == 0)
			*found = one;
		if (count == 2)
			log_err("'%.60s' is the start of more than one sandbox:", prefix);
		if (count == 2)
			log_err("  %s", client_string(*found, "name"));
		if (count >= 2)
			log_err("  %s", client_string(one, "name"));
	}
	return count;
}

/** Among all of them; names go before ids, which are made up. Return: as client_find(). */
static int find_prefix(struct client *client, const char *prefix, json_t **out)
{
	struct client_target target;
	json_t *all, *found = NULL;
	size_t count;
	int ret;

	client_target(&target, "/v1/sandboxes");
	ret = client_list(client, &target, "sandboxes", &all);
	if (ret)
		return ret;
	count = match_prefix(all, "name", prefix, &found);
	if (!count)
		count = match_prefix(all, "id", prefix, &found);
	if (count == 1)
		*out = json_incref(found);
	json_decref(all);
	if (count == 1)
		return 0;
	return count ? -EINVAL : -ENOENT;
}

int client_find(struct client *client, const char *prefix, json_t **out)
{
	const bool quiet = client->quiet;
	struct client_target target;
	int ret = -EREMOTEIO;

	if (!is_name(prefix))
		return -ENOENT;
	client_target_box(&target, prefix, NULL);
	client->quiet = true;
	ret = client_call(client, "GET", &target, NULL, out);
	client->quiet = quiet;
	if (ret != -EREMOTEIO)
		return ret;
	return find_prefix(client, prefix, out);
}

int client_find_name(struct client *client, const char *prefix, char name[CLIENT_NAME_BYTES])
{
	json_t *object;
	int ret = client_find(client, prefix, &object);

	if (ret == -ENOENT)
		log_err("no sandbox '%.60s': 'thaw ps -a' lists them", prefix);
	if (ret)
		return ret;
	snprintf(name, CLIENT_NAME_BYTES, "%s", client_string(object, "name"));
	json_decref(object);
	return 0;
}
