// SPDX-License-Identifier: Apache-2.0
// The CLI as a client of thawd: connection, requests, errors.
#include "vmm/cli/client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** More than thawd ever answers with as one JSON document. */
#define BODY_MAX_BYTES (128u << 20)

static int connect_thawd(struct client *client)
{
	int fd = httpc_connect_unix(client->path), ret;

	if (fd < 0)
		return fd;
	ret = httpc_init(&client->http, fd);
	if (ret)
		fd_close(&fd);
	client->fd = fd;
	return ret;
}

static void disconnect(struct client *client)
{
	if (client->fd >= 0)
		httpc_free(&client->http);
	fd_close(&client->fd);
}

int client_open(struct client *client)
{
	const char *given = getenv("THAW_SOCKET");
	int ret;

	*client = (struct client){.fd = -1, .path = given ? given : CLIENT_SOCKET};
	if (given && !*given)
		return -ENOENT;
	ret = connect_thawd(client);
	if (!ret || (!given && (ret == -ENOENT || ret == -ECONNREFUSED)))
		return ret ? -ENOENT : 0;
	if (ret == -EACCES || ret == -EPERM)
		log_err("%s: %s: be root, or of the group that the socket has ('thaw')",
			client->path, strerror(-ret));
	else
		log_err("%s: no thawd answers there: %s%s", client->path, strerror(-ret),
			given ? " (it is what THAW_SOCKET names)" : "");
	return ret == -ENOENT ? -ECONNREFUSED : ret;
}

int client_want(struct client *client, const char *verb)
{
	int ret = client_open(client);

	if (ret == -ENOENT)
		log_err("%s needs thawd, and none listens at %s: 'systemctl start thawd', or run "
			"'thawd' as root",
			verb, CLIENT_SOCKET);
	return ret;
}

void client_close(struct client *client)
{
	disconnect(client);
}

void client_target(struct client_target *target, const char *base)
{
	target->overflow = target->has_query = false;
	target->len = (size_t)snprintf(target->text, sizeof(target->text), "%s", base);
}

static void add_text(struct client_target *target, const char *text, bool encode)
{
	const size_t room = sizeof(target->text) - target->len;
	const size_t len = strlen(text);

	if (encode ? httpc_url_encode(text, target->text + target->len, room) != 0 : len >= room) {
		target->overflow = true;
		target->text[target->len] = '\0';
		return;
	}
	if (!encode)
		memcpy(target->text + target->len, text, len + 1);
	target->len += strlen(target->text + target->len);
}

void client_target_add(struct client_target *target, const char *segment)
{
	add_text(target, "/", false);
	add_text(target, segment, true);
}

void client_target_query(struct client_target *target, const char *name, const char *value)
{
	add_text(target, target->has_query ? "&" : "?", false);
	target->has_query = true;
	add_text(target, name, true);
	add_text(target, "=", false);
	add_text(target, value, true);
}

void client_target_u64(struct client_target *target, const char *name, u64 value)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	client_target_query(target, name, text);
}

void client_target_box(struct client_target *target, const char *name, const char *verb)
{
	client_target(target, "/v1/sandboxes");
	client_target_add(target, name);
	if (verb) {
		add_text(target, "/", false);
		add_text(target, verb, false);
	}
}

/** Of a connection that broke. */
static int transport_error(const struct client *client, const char *doing, int ret)
{
	if (!client->silent)
		log_err("thawd at %s: %s: %s", client->path, doing,
			ret == -EPIPE ? "it closed the connection" : strerror(-ret));
	return ret;
}

int client_begin(struct client *client, const char *method, const struct client_target *target,
		 const struct httpc_header *headers, s64 body_bytes)
{
	int ret = 0;

	if (target->overflow) {
		log_err("%s: the request's path is too long", method);
		return -ENAMETOOLONG;
	}
	if (client->fd >= 0 && !httpc_reusable(&client->http))
		disconnect(client);
	if (client->fd < 0)
		ret = connect_thawd(client);
	if (!ret)
		ret = httpc_send(&client->http, method, target->text, headers, body_bytes);
	return ret ? transport_error(client, "sending a request", ret) : 0;
}

/** The whole body. @len_bytes: without the NUL behind it. */
static int read_body(struct client *client, char **out, size_t *len_bytes)
{
	size_t room = 0, used = 0;
	char *text = NULL, *grown;
	ssize_t n;

	do {
		if (room - used < 2) {
			room = room ? room * 2 : 4096;
			grown = room > BODY_MAX_BYTES ? NULL : realloc(text, room);
			if (!grown) {
				free(text);
				return room > BODY_MAX_BYTES ? -EFBIG : -ENOMEM;
			}
			text = grown;
		}
		n = httpc_read(&client->http, text + used, room - used - 1);
		if (n > 0)
			used += (size_t)n;
	} while (n > 0);
	if (n < 0) {
		free(text);
		return (int)n;
	}
	text[used] = '\0';
	*out = text;
	*len_bytes = used;
	return 0;
}

static int read_json(struct client *client, json_t **out)
{
	size_t len_bytes = 0;
	char *text = NULL;
	int ret = read_body(client, &text, &len_bytes);

	*out = NULL;
	if (ret)
		return transport_error(client, "reading its answer", ret);
	if (len_bytes) {
		*out = json_loadb(text, len_bytes, JSON_ALLOW_NUL, NULL);
		if (!*out) {
			log_err("thawd at %s: its answer is no JSON", client->path);
			ret = -EPROTO;
		}
	}
	free(text);
	return ret;
}

/** What to do about it, in the CLI's words; NULL: the message says it all. */
static const char *fix_for(const char *code)
{
	static const char *const fixes[][2] = {
		{"not_found", "'thaw ps -a' lists the sandboxes, 'thaw template ls' the templates"},
		{"unauthorized", "the socket of this machine needs no token; another one does"},
		{"capacity", "try again in a moment, or end something: 'thaw ps'"},
		{"too_many", "try again in a moment"},
		{"internal", "thawd's log tells more: 'journalctl -u thawd'"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(fixes); i++) {
		if (!strcmp(fixes[i][0], code))
			return fixes[i][1];
	}
	return NULL;
}

static void log_differences(const json_t *details)
{
	const json_t *list = json_object_get(details, "differences"), *one;
	size_t i;

	json_array_foreach((json_t *)list, i, one)
	{
		char *have = json_dumps(json_object_get(one, "have"), JSON_ENCODE_ANY);
		char *want = json_dumps(json_object_get(one, "want"), JSON_ENCODE_ANY);

		log_err("  %s: it has %s, asked for %s", client_string(one, "field"),
			have ? have : "null", want ? want : "null");
		free(have);
		free(want);
	}
}

/** What an API's user would call is told by the CLI's own words. */
static const char *fix_state(char *text)
{
	char *call = strstr(text, ": POST ");

	if (call)
		*call = '\0';
	if (strstr(text, " paused"))
		return "'thaw resume' brings it back";
	return strstr(text, " stopped") ? "'thaw start' starts it" : NULL;
}

static void log_api_error(struct client *client, const json_t *error)
{
	const char *fix = fix_for(client->code);
	char text[1024];

	client_printable(client_string(error, "message"), text, sizeof(text));
	if (!strcmp(client->code, "wrong_state"))
		fix = fix_state(text);
	if (fix)
		log_err("%s (%s): %s", text, client->code, fix);
	else
		log_err("%s (%s)", text, client->code);
	log_differences(json_object_get(error, "details"));
}

/** An answer above 399 whose head has been read. Return: -EREMOTEIO or -errno (logged). */
static int take_error(struct client *client, unsigned int status)
{
	const json_t *error;
	json_t *body;
	int ret = read_json(client, &body);

	if (ret)
		return ret;
	error = json_object_get(body, "error");
	client->status = status;
	client_printable(client_string(error, "code"), client->code, sizeof(client->code));
	error = json_object_get(error, "details");
	client_printable(client_string(error, "stage"), client->stage, sizeof(client->stage));
	client_printable(client_string(error, "errno"), client->error_name,
			 sizeof(client->error_name));
	if (!client->code[0])
		snprintf(client->code, sizeof(client->code), "HTTP %u", status);
	if (!client->quiet && !client->silent)
		log_api_error(client, json_object_get(body, "error"));
	json_decref(body);
	return -EREMOTEIO;
}

int client_answer(struct client *client, bool is_head, struct httpc_response *response)
{
	int ret = httpc_receive(&client->http, is_head, response);
	unsigned int status;

	if (ret)
		return transport_error(client, "waiting for its answer", ret);
	if (response->status < 400)
		return 0;
	status = response->status;
	httpc_response_free(response);
	return take_error(client, status);
}

int client_call(struct client *client, const char *method, const struct client_target *target,
		json_t *steal, json_t **out)
{
	static const struct httpc_header json_type[] = {{"Content-Type", "application/json"},
							{NULL, NULL}};
	char *text = steal ? json_dumps(steal, JSON_COMPACT) : NULL;
	struct httpc_response response;
	json_t *body = NULL;
	int ret;

	if (out)
		*out = NULL;
	if (steal && !text) {
		json_decref(steal);
		log_err("JSON: out of memory");
		return -ENOMEM;
	}
	json_decref(steal);
	ret = client_begin(client, method, target, text ? json_type : NULL,
			   text ? (s64)strlen(text) : 0);
	if (!ret && text) {
		ret = httpc_send_body(&client->http, text, strlen(text));
		/* Refused early: the answer says why. */
		if (ret && ret != -EPIPE)
			transport_error(client, "sending a request", ret);
		ret = ret == -EPIPE ? 0 : ret;
	}
	free(text);
	if (!ret)
		ret = client_answer(client, false, &response);
	if (ret)
		return ret;
	httpc_response_free(&response);
	ret = read_json(client, &body);
	if (out)
		*out = body;
	else
		json_decref(body);
	return ret;
}

int client_upgrade(struct client *client, const char *method, const struct client_target *target,
		   const char *protocol, struct httpc_response *response)
{
	const struct httpc_header headers[] = {
		{"Connection", "Upgrade"}, {"Upgrade", protocol}, {NULL, NULL}};
	int ret = client_begin(client, method, target, headers, 0);

	if (!ret)
		ret = client_answer(client, false, response);
	if (ret || response->upgraded)
		return ret;
	httpc_response_free(response);
	log_err("thawd at %s does not speak %s: is it as old as that?", client->path, protocol);
	return -EPROTONOSUPPORT;
}

const char *client_string(const json_t *object, const char *field)
{
	const char *text = json_string_value(json_object_get(object, field));

	return text ? text : "";
}

const char *client_printable(const char *text, char *out, size_t out_bytes)
{
	size_t used = 0;

	for (; *text && used + 1 < out_bytes; text++) {
		const u8 c = (u8)*text;

		out[used++] = c < ' ' || c == 0x7f ? '?' : (char)c;
	}
	out[used] = '\0';
	return out;
}
