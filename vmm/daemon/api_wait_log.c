// SPDX-License-Identifier: Apache-2.0
/*
 * Wait for a line of an exec's output.
 *
 * Lines are those of each stream by itself, so that a stderr line in the middle of a stdout line
 * breaks neither. Only complete lines are looked at, and the last one when the command has ended.
 * What a line has beyond LINE_MAX_BYTES is not looked at: a command that prints no newline costs no
 * more than that.
 */
#include <errno.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/daemon/api_exec.h"
#include "vmm/daemon/exec_text.h"
#include "vmm/util/util.h"

#define CHUNK_BYTES    65536u
#define LINE_MAX_BYTES 65536u
#define PATTERN_MAX    4096u
#define WAIT_MAX_MS    600000u
#define WAIT_MS	       30000u

#define REGEX_DEPTH_MAX	 32u
#define REGEX_COPIES_MAX 1000ull

struct line {
	u64 cursor; /* of its first byte */
	size_t len;
	char *text; /* LINE_MAX_BYTES and a NUL; NULL: not needed yet */
};

struct waiter {
	struct exec_call *call;
	const char *text; /* of the request's JSON; NULL: the expression */
	regex_t regex;
	bool with_regex;
	enum exec_stream stream; /* 0: both */
	u64 cursor;
	u64 until_ns;
	struct line lines[3]; /* by enum exec_stream */
	bool matched, ended;
	json_t *line; /* that matched */
	u64 line_cursor;
	char chunk[CHUNK_BYTES];
};

static int bad(struct waiter *w, const char *what)
{
	http_reply_error(w->call->req, 400, "invalid_request", NULL, "%s", what);
	return -EINVAL;
}

/*
 * Is it an expression that the C library can deal with, whoever sent it? Bounds in each other make
 * it copy the inner one so many times, back-references make it try all ways, and nesting takes
 * stack.
 */
static bool regex_ok(const char *regex)
{
	u64 copies = 1, bound = 0;
	u32 depth = 0;

	for (const char *at = regex; *at; at++) {
		if (*at == '\\') {
			at++;
			if (!*at || (*at >= '0' && *at <= '9'))
				return false;
		} else if (*at == '(' && ++depth > REGEX_DEPTH_MAX) {
			return false;
		} else if (*at >= '0' && *at <= '9') {
			bound = MIN(bound * 10 + (u64)(*at - '0'), REGEX_COPIES_MAX + 1);
		} else if (*at == ',' || *at == '}') {
			copies *= MAX(bound, (u64)1);
			bound = 0;
		} else {
			bound = 0;
		}
		if (copies > REGEX_COPIES_MAX)
			return false;
	}
	return true;
}

static int take_pattern(struct waiter *w, const json_t *json)
{
	const char *text = json_string_value(json_object_get(json, "text"));
	const char *regex = json_string_value(json_object_get(json, "regex"));
	char why[200];
	int ret;

	if (!text == !regex || !*(text ? text : regex))
		return bad(w, "exactly one of 'text' and 'regex' must be given, and not be empty");
	if (strlen(text ? text : regex) > PATTERN_MAX)
		return bad(w, "'text' or 'regex' is longer than 4096 bytes");
	w->text = text;
	if (text)
		return 0;
	if (!regex_ok(regex))
		return bad(w, "'regex' has back-references, more than 32 groups, or bounds whose "
			      "product is above 1000");
	ret = regcomp(&w->regex, regex, REG_EXTENDED | REG_NOSUB);
	if (ret) {
		regerror(ret, &w->regex, why, sizeof(why));
		http_reply_error(w->call->req, 400, "invalid_request", NULL,
				 "'regex' is not a POSIX extended regular expression: %s", why);
		return -EINVAL;
	}
	w->with_regex = true;
	return 0;
}

static int take_request(struct waiter *w, const json_t *json)
{
	static const char *const fields[] = {"text",   "regex",	     "stream",
					     "cursor", "timeout_ms", NULL};
	const json_t *stream = json_object_get(json, "stream");
	const json_t *cursor = json_object_get(json, "cursor");
	const json_t *timeout = json_object_get(json, "timeout_ms");
	const char *name = json_string_value(stream);
	json_int_t timeout_ms = timeout ? json_integer_value(timeout) : WAIT_MS;

	if (http_json_known(w->call->req, json, fields))
		return -EINVAL;
	if (stream && (!name || (strcmp(name, "stdout") && strcmp(name, "stderr"))))
		return bad(w, "'stream' must be \"stdout\" or \"stderr\"");
	if (name)
		w->stream = !strcmp(name, "stdout") ? EXEC_STDOUT : EXEC_STDERR;
	if (cursor && (!json_is_integer(cursor) || json_integer_value(cursor) < 0))
		return bad(w, "'cursor' must be a number");
	if (cursor)
		w->cursor = (u64)json_integer_value(cursor);
	if ((timeout && !json_is_integer(timeout)) || timeout_ms < 0 || timeout_ms > WAIT_MAX_MS)
		return bad(w, "'timeout_ms' must be a number from 0 to 600000");
	w->until_ns = clock_now_ns() + (u64)timeout_ms * 1000000u;
	return take_pattern(w, json);
}

/* The line is complete. */
static void check_line(struct waiter *w, struct line *line)
{
	const char *encoding;
	size_t len = line->len;

	/* A terminal's lines end in CR LF. */
	if (len && line->text[len - 1] == '\r')
		len--;
	line->text[len] = '\0';
	if (w->text)
		w->matched = memmem(line->text, len, w->text, strlen(w->text));
	else
		w->matched = !regexec(&w->regex, line->text, 0, NULL, 0);
	if (w->matched) {
		/* It must be a JSON string: what is not UTF-8 is shown as Latin-1's '?'. */
		if (!exec_utf8_ok((const u8 *)line->text, len))
			for (size_t i = 0; i < len; i++)
				if ((u8)line->text[i] >= 0x80)
					line->text[i] = '?';
		w->line = exec_bytes_json((const u8 *)line->text, len, true, &encoding);
		w->line_cursor = line->cursor;
	}
	line->len = 0;
}

static int add_chunk(struct waiter *w, const struct exec_log_chunk *chunk)
{
	struct line *line = &w->lines[chunk->stream];
	size_t at = 0;

	if (w->stream && chunk->stream != w->stream)
		return 0;
	if (!line->text)
		line->text = malloc(LINE_MAX_BYTES + 1);
	if (!line->text)
		return -ENOMEM;
	/* What is missing may have had the end of the line. */
	if (chunk->skipped)
		line->len = 0;
	while (at < chunk->len_bytes && !w->matched) {
		const char *start = w->chunk + at;
		const char *end = memchr(start, '\n', chunk->len_bytes - at);
		size_t len = end ? (size_t)(end - start) : chunk->len_bytes - at;
		size_t take = MIN(len, LINE_MAX_BYTES - line->len);

		if (!line->len)
			line->cursor = chunk->cursor + at;
		memcpy(line->text + line->len, start, take);
		line->len += take;
		if (end)
			check_line(w, line);
		at += len + (end ? 1 : 0);
	}
	return 0;
}

/* What is there. Return: 0 or -errno. */
static int look(struct waiter *w)
{
	struct exec_call *call = w->call;
	struct exec_log_chunk chunk;
	struct kept_view view;
	int ret = 0;
	ssize_t n = 0;

	/* The view first: of one that had ended, all is there. */
	kept_view(call->kept, &call->reader, &view);
	while (!w->matched && !ret &&
	       (n = kept_read(&call->reader, w->chunk, sizeof(w->chunk), &chunk)) > 0)
		ret = add_chunk(w, &chunk);
	w->ended = view.state == KEPT_ENDED;
	for (int i = EXEC_STDOUT; i <= EXEC_STDERR && w->ended && !w->matched && !ret; i++)
		if (w->lines[i].len)
			check_line(w, &w->lines[i]);
	return n < 0 ? (int)n : ret;
}

static void wait_for_line(struct waiter *w)
{
	struct exec_call *call = w->call;
	unsigned int woken;
	u64 now_ns;
	int ret;

	for (;;) {
		ret = look(w);
		now_ns = clock_now_ns();
		if (ret || w->matched || w->ended || now_ns >= w->until_ns)
			break;
		woken = kept_wait(&call->reader, call->req, -1, 0,
				  (int)((w->until_ns - now_ns) / 1000000u + 1));
		if (woken & (KEPT_WOKEN_LEFT | KEPT_WOKEN_STOP))
			break;
	}
	if (ret)
		http_reply_error(call->req, 500, "internal", NULL, "reading the log: %s",
				 strerror(-ret));
	else
		http_reply_json(call->req, 200,
				json_pack("{s:b, s:o, s:o, s:b}", "matched", w->matched, "line",
					  w->line ? json_incref(w->line) : json_null(), "cursor",
					  w->matched ? json_integer((json_int_t)w->line_cursor)
						     : json_null(),
					  "ended", w->ended));
}

void api_exec_wait_for_log(struct thawd *thawd, struct http_req *req)
{
	struct waiter *w = NULL;
	struct exec_call call;
	json_t *json = NULL;
	int ret;

	if (exec_call_begin_read(&call, thawd, req))
		goto out;
	json = http_body_json(req, 64 * KIB);
	if (!json)
		goto out;
	w = malloc(sizeof(*w));
	if (!w) {
		http_reply_error(req, 500, "internal", NULL, "out of memory");
		goto out;
	}
	memset(w, 0, offsetof(struct waiter, chunk));
	w->call = &call;
	if (take_request(w, json))
		goto out;
	ret = kept_reader_open(&call.reader, call.kept, w->cursor, false);
	if (ret)
		http_reply_error(req, 500, "internal", NULL, "its log: %s", strerror(-ret));
	else
		wait_for_line(w);
out:
	if (w) {
		if (w->with_regex)
			regfree(&w->regex);
		for (int i = EXEC_STDOUT; i <= EXEC_STDERR; i++)
			free(w->lines[i].text);
		json_decref(w->line);
	}
	free(w);
	json_decref(json);
	exec_call_end(&call);
}
