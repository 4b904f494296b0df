// SPDX-License-Identifier: Apache-2.0
// The HTTP client's parsers: heads and bodies of hostile peers.
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/types.h>

#include "vmm/util/httpc_internal.h"

/** A chunk's size with its extensions, or a trailer. */
#define LINE_MAX_BYTES 4096u
/** The trailers of one body together. */
#define TRAILERS_MAX 64u

bool httpc_is_token(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		const u8 c = (u8)text[i];

		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
			continue;
		if (!c || !strchr("!#$%&'*+-.^_`|~", c))
			return false;
	}
	return len > 0;
}

bool httpc_is_value(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		const u8 c = (u8)text[i];

		if ((c < ' ' && c != '\t') || c == 0x7f)
			return false;
	}
	return true;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

/** The next line of a head: @*at goes behind it, its end becomes a NUL. Return: its length, or
 * -EPROTO: a CR or LF stands alone. */
static ssize_t next_line(char **at)
{
	char *line = *at;
	const size_t len = strcspn(line, "\r\n");

	if (line[len] != '\r' || line[len + 1] != '\n')
		return -EPROTO;
	line[len] = '\0';
	*at = line + len + 2;
	return (ssize_t)len;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/** "HTTP/1.1 200 OK". @minor: of the version. */
static int parse_status(const char *line, size_t len, struct httpc_response *response, int *minor)
{
	if (len < 12 || memcmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') ||
	    line[8] != ' ')
		return -EPROTO;
	if (!is_digit(line[9]) || !is_digit(line[10]) || !is_digit(line[11]))
		return -EPROTO;
	if (len > 12 && (line[12] != ' ' || !httpc_is_value(line + 12, len - 12)))
		return -EPROTO;
	*minor = line[7] - '0';
	response->status =
		(unsigned int)((line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0'));
	return response->status < 100 || response->status > 599 ? -EPROTO : 0;
}

static int parse_header(char *line, size_t len, struct httpc_response *response)
{
	struct httpc_header *header = &response->headers[response->nheaders];
	char *colon = memchr(line, ':', len), *value, *end = line + len;

	if (response->nheaders == HTTPC_HEADERS_MAX)
		return -E2BIG;
	/* A blank before the colon, or at the start of the line (a folded one), is in no token. */
	if (!colon || !httpc_is_token(line, (size_t)(colon - line)))
		return -EPROTO;
	*colon = '\0';
	for (value = colon + 1; is_blank(*value); value++)
		;
	while (end > value && is_blank(end[-1]))
		end--;
	*end = '\0';
	if (!httpc_is_value(value, (size_t)(end - value)))
		return -EPROTO;
	header->name = line;
	header->value = value;
	response->nheaders++;
	return 0;
}

/** Decimal digits and nothing else. Return: the number, or -1. */
static s64 parse_length(const char *text)
{
	u64 value = 0;

	if (!*text)
		return -1;
	for (; *text; text++) {
		if (!is_digit(*text) || value > ((u64)INT64_MAX - 9) / 10)
			return -1;
		value = value * 10 + (u64)(*text - '0');
	}
	return (s64)value;
}

/** Is @token one of the comma-separated words of @value? */
static bool has_token(const char *value, const char *token)
{
	const size_t len = strlen(token);

	while (*value) {
		size_t word;

		value += strspn(value, ", \t");
		word = strcspn(value, ", \t");
		if (word == len && !strncasecmp(value, token, len))
			return true;
		value += word;
	}
	return false;
}

/* What the headers say about the body. */
struct framing {
	s64 length; /* -1: not said */
	bool chunked, close, upgrade;
};

static int find_framing(const struct httpc_response *response, int minor, struct framing *framing)
{
	*framing = (struct framing){.length = -1, .close = minor == 0};
	for (unsigned int i = 0; i < response->nheaders; i++) {
		const struct httpc_header *header = &response->headers[i];

		if (!strcasecmp(header->name, "Content-Length")) {
			s64 length = parse_length(header->value);

			if (length < 0 || (framing->length >= 0 && framing->length != length))
				return -EPROTO;
			framing->length = length;
		} else if (!strcasecmp(header->name, "Transfer-Encoding")) {
			if (framing->chunked || minor == 0 ||
			    strcasecmp(header->value, "chunked") != 0)
				return -EPROTO;
			framing->chunked = true;
		} else if (!strcasecmp(header->name, "Connection")) {
			framing->close = framing->close || has_token(header->value, "close");
		} else if (!strcasecmp(header->name, "Upgrade")) {
			framing->upgrade = true;
		}
	}
	/* Whoever believes the one reads something else than who believes the other. */
	return framing->chunked && framing->length >= 0 ? -EPROTO : 0;
}

static void begin_body(struct httpc *http, enum httpc_body_kind kind, s64 length)
{
	http->body_kind = (u8)kind;
	http->body_left = length > 0 ? (u64)length : 0;
	http->start = http->used = 0;
	switch (kind) {
	case HTTPC_BODY_LENGTH:
		http->body_state = length ? HTTPC_DATA : HTTPC_DONE;
		break;
	case HTTPC_BODY_CHUNKED:
		http->body_state = HTTPC_CHUNK_SIZE;
		break;
	case HTTPC_BODY_TO_END:
		http->body_state = HTTPC_DATA;
		break;
	case HTTPC_BODY_NONE:
		http->body_state = HTTPC_DONE;
		break;
	}
}

static int frame_body(struct httpc *http, bool is_head, int minor, struct httpc_response *response)
{
	struct framing framing;
	int ret = find_framing(response, minor, &framing);

	if (ret)
		return ret;
	response->upgraded = false;
	response->length_bytes = 0;
	begin_body(http, HTTPC_BODY_NONE, 0);
	if (response->status < 200) {
		if (framing.chunked || framing.length > 0)
			return -EPROTO;
		if (response->status != 101)
			return 0;
		if (!http->upgrade_asked || !framing.upgrade)
			return -EPROTO;
		response->upgraded = true;
		http->keep_alive = false;
		return 0;
	}
	http->keep_alive = !framing.close;
	if (is_head) {
		response->length_bytes = framing.length;
		return 0;
	}
	if (response->status == 204 || response->status == 304)
		return 0;
	response->length_bytes = framing.length;
	if (framing.chunked) {
		begin_body(http, HTTPC_BODY_CHUNKED, 0);
	} else if (framing.length >= 0) {
		begin_body(http, HTTPC_BODY_LENGTH, framing.length);
	} else {
		http->keep_alive = false;
		begin_body(http, HTTPC_BODY_TO_END, 0);
	}
	return 0;
}

int httpc_parse_head(struct httpc *http, char *head, size_t len, bool is_head,
		     struct httpc_response *response)
{
	char *at = head, *line = head;
	int minor = 0, ret;
	ssize_t n;

	/* From here on it is a string. */
	if (memchr(head, '\0', len))
		return -EPROTO;
	response->nheaders = 0;
	n = next_line(&at);
	ret = n < 0 ? (int)n : parse_status(line, (size_t)n, response, &minor);
	while (!ret) {
		line = at;
		n = next_line(&at);
		if (n < 0)
			return (int)n;
		if (n == 0)
			break;
		ret = parse_header(line, (size_t)n, response);
	}
	return ret ? ret : frame_body(http, is_head, minor, response);
}

/** The buffer of a chunked body: more of it. */
static int fill(struct httpc *http)
{
	ssize_t n;

	if (http->start == http->used)
		http->start = http->used = 0;
	n = httpc_recv(http, http->buf + http->used, HTTPC_HEAD_MAX_BYTES - http->used, 0);
	if (n <= 0)
		return n ? (int)n : -EPIPE;
	http->used += (size_t)n;
	return 0;
}

/**
 * A line of a chunked body, as a string that is valid until the next read.
 * Return: 0, -EPROTO (too long, or a CR or LF stands alone) or as httpc_recv(). It can be called
 * again after a time-out.
 */
static int take_line(struct httpc *http, char **out)
{
	int ret;

	for (;;) {
		const size_t len = http->used - http->start;
		char *line = http->buf + http->start;
		char *end = memchr(line, '\n', len);

		if (end) {
			if (end == line || end[-1] != '\r' || (size_t)(end - line) > LINE_MAX_BYTES)
				return -EPROTO;
			end[-1] = '\0';
			http->start += (size_t)(end - line) + 1;
			*out = line;
			return strlen(line) == (size_t)(end - 1 - line) ? 0 : -EPROTO;
		}
		if (len > LINE_MAX_BYTES)
			return -EPROTO;
		if (http->used == HTTPC_HEAD_MAX_BYTES) {
			memmove(http->buf, line, len);
			http->start = 0;
			http->used = len;
		}
		ret = fill(http);
		if (ret)
			return ret;
	}
}

static int hex_digit(char c)
{
	if (is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static int take_chunk_size(struct httpc *http)
{
	char *line, *at;
	u64 size = 0;
	int ret = take_line(http, &line);

	if (ret)
		return ret;
	for (at = line; hex_digit(*at) >= 0; at++) {
		if (at - line == 15)
			return -EPROTO;
		size = size * 16 + (u64)hex_digit(*at);
	}
	if (at == line || (*at && *at != ';') || !httpc_is_value(at, strlen(at)))
		return -EPROTO;
	http->body_left = size;
	http->body_state = size ? HTTPC_DATA : HTTPC_TRAILER;
	/* Of the trailers: how many there may be. */
	if (!size)
		http->body_left = TRAILERS_MAX;
	return 0;
}

static int take_chunk_end(struct httpc *http)
{
	char *line;
	int ret = take_line(http, &line);

	if (!ret && line[0])
		ret = -EPROTO;
	if (!ret)
		http->body_state = HTTPC_CHUNK_SIZE;
	return ret;
}

static int take_trailer(struct httpc *http)
{
	char *line, *colon;
	int ret = take_line(http, &line);

	if (ret)
		return ret;
	if (!line[0]) {
		http->body_state = HTTPC_DONE;
		return 0;
	}
	colon = strchr(line, ':');
	if (!http->body_left-- || !colon || !httpc_is_token(line, (size_t)(colon - line)) ||
	    !httpc_is_value(colon, strlen(colon)))
		return -EPROTO;
	return 0;
}

/** Bytes of the current piece. Return: number > 0, 0 at the end of a body without length, or
 * -errno. */
static ssize_t take_data(struct httpc *http, void *buf, size_t max_bytes)
{
	ssize_t n;

	if (http->body_kind == HTTPC_BODY_TO_END) {
		n = httpc_recv(http, buf, max_bytes, 0);
		if (n == 0)
			http->body_state = HTTPC_DONE;
		return n;
	}
	max_bytes = (size_t)MIN((u64)max_bytes, http->body_left);
	if (http->start != http->used) {
		n = (ssize_t)MIN(max_bytes, http->used - http->start);
		memcpy(buf, http->buf + http->start, (size_t)n);
		http->start += (size_t)n;
	} else {
		n = httpc_recv(http, buf, max_bytes, 0);
		if (n <= 0)
			return n ? n : -EPIPE;
	}
	http->body_left -= (u64)n;
	if (!http->body_left)
		http->body_state =
			http->body_kind == HTTPC_BODY_CHUNKED ? HTTPC_CHUNK_END : HTTPC_DONE;
	return n;
}

ssize_t httpc_read(struct httpc *http, void *buf, size_t max_bytes)
{
	ssize_t n = 0;

	if (!max_bytes)
		return -EINVAL;
	max_bytes = MIN(max_bytes, (size_t)INT32_MAX);
	while (!n && http->body_state != HTTPC_DONE) {
		switch ((enum httpc_body_state)http->body_state) {
		case HTTPC_CHUNK_SIZE:
			n = take_chunk_size(http);
			break;
		case HTTPC_DATA:
			n = take_data(http, buf, max_bytes);
			break;
		case HTTPC_CHUNK_END:
			n = take_chunk_end(http);
			break;
		case HTTPC_TRAILER:
			n = take_trailer(http);
			break;
		case HTTPC_BROKEN:
			return -EPROTO;
		case HTTPC_DONE:
			break;
		}
	}
	/* After a time-out it can go on; after these it can't. */
	if (n == -EPROTO || n == -EPIPE)
		http->body_state = HTTPC_BROKEN;
	return n;
}
