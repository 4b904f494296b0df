// SPDX-License-Identifier: Apache-2.0
// `thaw logs` and `thaw attach`: what a command that thawd keeps has printed, and taking part in
// it.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "vmm/cli/base64.h"
#include "vmm/cli/commands.h"
#include "vmm/cli/exec_api.h"
#include "vmm/cli/exec_status.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/tty.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define EXEC_ID_CHARS 32

struct logs_opts {
	const char *exec_id;
	u64 tail_lines;
	s64 since_s;
	bool follow, timestamps, json, no_stdin, tail_given;
};

static int parse_tail(void *dest, const char *value, const char **why)
{
	struct logs_opts *opts = dest;

	*why = "expected a number of lines, or all";
	opts->tail_given = strcmp(value, "all") != 0;
	return opts->tail_given ? parse_u64(value, 0, UINT32_MAX, &opts->tail_lines) : 0;
}

static int parse_since(void *dest, const char *value, const char **why)
{
	u64 ago_ns;

	*why = "expected a time such as 2026-11-29T12:00:00Z, or how long ago: 10m";
	*(s64 *)dest = verb_time(value);
	if (*(s64 *)dest < 0) {
		if (parse_duration(value, &ago_ns))
			return -EINVAL;
		*(s64 *)dest = (s64)time(NULL) - (s64)(ago_ns / 1000000000ull);
	}
	return 0;
}

#define FIELD(field) offsetof(struct logs_opts, field)

static const struct optparse_spec logs_specs[] = {
	{"exec", 0, "ID", optparse_string, FIELD(exec_id),
	 "of this command ('thaw exec -d' has printed its id, the\nstart of it will do) instead of the entrypoint",
	 NULL},
	{"follow", 'f', NULL, optparse_flag, FIELD(follow), "go on until the command ends", NULL},
	{"tail", 'n', "LINES", parse_tail, 0, "the last ones alone", NULL},
	{"since", 0, "TIME", parse_since, FIELD(since_s), "what was printed after TIME", NULL},
	{"timestamps", 't', NULL, optparse_flag, FIELD(timestamps), "put the time before each line",
	 NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "one JSON object a piece of output",
	 NULL},
};

const struct optparse_command logs_command = {
	.usage = "thaw logs NAME [OPTION]...",
	.summary = "Print what the entrypoint of a sandbox, or another command, has printed.",
	.details = "Also when it has ended, or its sandbox has. thawd keeps the last of it, 16 MiB "
		   "unless its settings say\notherwise.",
	.specs = logs_specs,
	.nspecs = ARRAY_SIZE(logs_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
	.completes = "sandbox",
};

static const struct optparse_spec attach_specs[] = {
	{"exec", 0, "ID", optparse_string, FIELD(exec_id),
	 "to this command (the start of its id will do) instead of\nthe entrypoint", NULL},
	{"no-stdin", 0, NULL, optparse_flag, FIELD(no_stdin), "look on: pass no input", NULL},
};

const struct optparse_command attach_command = {
	.usage = "thaw attach NAME [OPTION]...",
	.summary = "Take part in a command that runs: its output from here on, and your input.",
	.details = "ctrl-p ctrl-q leaves it running, if it has a terminal. Exit status: the "
		   "command's, as with thaw exec.",
	.specs = attach_specs,
	.nspecs = ARRAY_SIZE(attach_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
	.completes = "sandbox",
};

/* One look at a command's output. */
struct logs {
	struct logs_opts opts;
	struct client client;
	char box[CLIENT_NAME_BYTES], id[64];
	json_t *entries; /* with --tail: all, until the last lines are known */
	bool line_begun[2];
	int exit_code;
};

/** The entrypoint of the last start. Return: 0 or -errno (logged). */
static int find_entrypoint(struct client *client, const char *box, char id[64])
{
	struct client_target target;
	json_t *object;
	int ret;

	client_target_box(&target, box, NULL);
	ret = client_call(client, "GET", &target, NULL, &object);
	if (ret)
		return ret;
	snprintf(id, 64, "%s", client_string(object, "entrypoint_exec"));
	json_decref(object);
	if (id[0])
		return 0;
	log_err("sandbox %s has no entrypoint: name a command with --exec", box);
	return -ENOENT;
}

/** The only one whose id begins with what was given. Return: 0 or -errno (logged). */
static int find_exec(struct client *client, const char *box, const char *given, char id[64])
{
	struct client_target target;
	json_t *all, *one, *found = NULL;
	size_t i, count = 0;
	int ret;

	client_target_box(&target, box, "execs");
	ret = client_call(client, "GET", &target, NULL, &all);
	if (ret)
		return ret;
	json_array_foreach(json_object_get(all, "execs"), i, one)
	{
		if (strncmp(client_string(one, "id"), given, strlen(given)) != 0)
			continue;
		count++;
		found = one;
	}
	if (count == 1)
		snprintf(id, 64, "%s", client_string(found, "id"));
	else
		log_err("sandbox %s: %s command '%.40s'", box, count ? "more than one" : "no",
			given);
	json_decref(all);
	if (count == 1)
		return 0;
	return count ? -EINVAL : -ENOENT;
}

/** The command that --exec means, or else the entrypoint. */
static int find_command(struct client *client, const char *box, const char *given, char id[64])
{
	/* A whole id needs no list, which only a running sandbox has. */
	if (given && strlen(given) == EXEC_ID_CHARS) {
		snprintf(id, 64, "%s", given);
		return 0;
	}
	return given ? find_exec(client, box, given, id) : find_entrypoint(client, box, id);
}

/** With the time before each line. */
static int print_lines(struct logs *logs, int fd, const char *time, const char *data, size_t len)
{
	bool *begun = &logs->line_begun[fd == STDERR_FILENO];
	int ret = 0;

	while (len && !ret) {
		const char *end = memchr(data, '\n', len);
		const size_t part = end ? (size_t)(end - data) + 1 : len;

		if (!*begun)
			ret = fd_write_full(fd, time, strlen(time));
		if (!ret && !*begun)
			ret = fd_write_full(fd, " ", 1);
		if (!ret)
			ret = fd_write_full(fd, data, part);
		*begun = !end;
		data += part;
		len -= part;
	}
	return ret;
}

static int print_bytes(struct logs *logs, const json_t *entry, const char *data, size_t len)
{
	const int fd = strcmp(client_string(entry, "stream"), "stderr") == 0 ? STDERR_FILENO
									     : STDOUT_FILENO;

	if (logs->opts.timestamps)
		return print_lines(logs, fd, client_string(entry, "time"), data, len);
	return fd_write_full(fd, data, len);
}

/** @skip_lines: at its start, of those that are not wanted. */
static int print_entry(struct logs *logs, const json_t *entry, u64 skip_lines)
{
	const json_t *text = json_object_get(entry, "data");
	const char *data = json_string_value(text), *end;
	size_t len = json_string_length(text);
	u8 *decoded = NULL;
	int ret = 0;

	if (!data || (logs->opts.since_s && verb_time(client_string(entry, "time")) >= 0 &&
		      verb_time(client_string(entry, "time")) < logs->opts.since_s))
		return 0;
	if (logs->opts.json) {
		char *line = json_dumps(entry, JSON_COMPACT | JSON_ENSURE_ASCII);

		ret = line && printf("%s\n", line) > 0 ? cli_flush() : -EIO;
		free(line);
		return ret;
	}
	if (!strcmp(client_string(entry, "encoding"), "base64")) {
		decoded = base64_decode(data, len, &len);
		data = (const char *)decoded;
		if (!decoded)
			return -EPROTO;
	}
	for (; skip_lines && (end = memchr(data, '\n', len)); skip_lines--) {
		len -= (size_t)(end - data) + 1;
		data = end + 1;
	}
	ret = skip_lines ? 0 : print_bytes(logs, entry, data, len);
	free(decoded);
	return ret;
}

/** Lines that end in @entry. */
static u64 count_lines(const json_t *entry)
{
	const json_t *text = json_object_get(entry, "data");
	const char *data = json_string_value(text), *at;
	size_t len = json_string_length(text);
	u8 *decoded = NULL;
	u64 count = 0;

	if (data && !strcmp(client_string(entry, "encoding"), "base64")) {
		decoded = base64_decode(data, len, &len);
		data = (const char *)decoded;
	}
	for (at = data; at && (at = memchr(at, '\n', len - (size_t)(at - data))); at++)
		count++;
	free(decoded);
	return count;
}

/** Does the output end in the middle of a line? */
static bool ends_open(const json_t *entries)
{
	const size_t count = json_array_size(entries);
	const json_t *last = count ? json_array_get(entries, count - 1) : NULL;
	const json_t *text = json_object_get(last, "data");
	const size_t len = json_string_length(text);

	/* Of base64 the last byte is not asked for: a line too many is no harm. */
	return len && strcmp(client_string(last, "encoding"), "base64") != 0 &&
	       json_string_value(text)[len - 1] != '\n';
}

static int print_tail(struct logs *logs)
{
	u64 total = ends_open(logs->entries), skip, lines;
	json_t *entry;
	size_t i;
	int ret = 0;

	json_array_foreach(logs->entries, i, entry) total += count_lines(entry);
	skip = total - MIN(total, logs->opts.tail_lines);
	json_array_foreach(logs->entries, i, entry)
	{
		lines = count_lines(entry);
		if (!ret && (!skip || lines >= skip))
			ret = print_entry(logs, entry, skip);
		skip -= MIN(skip, lines);
	}
	return ret;
}

static void tell_dropped(const json_t *object)
{
	const json_int_t dropped = json_integer_value(json_object_get(object, "dropped_bytes"));

	if (dropped > 0)
		log_warn("%lld bytes of output before this were not kept", (long long)dropped);
}

/** What there is now, page by page. @cursor: where it ends then. */
static int print_until_now(struct logs *logs, u64 *cursor, bool *ended)
{
	struct client_target target;
	json_t *page, *entry;
	u64 before;
	size_t i;
	int ret;

	*cursor = 0;
	do {
		before = *cursor;
		client_target_box(&target, logs->box, "execs");
		client_target_add(&target, logs->id);
		client_target_add(&target, "logs");
		if (before)
			client_target_u64(&target, "cursor", before);
		ret = client_call(&logs->client, "GET", &target, NULL, &page);
		if (ret)
			return ret;
		tell_dropped(page);
		*cursor = (u64)json_integer_value(json_object_get(page, "next_cursor"));
		*ended = json_is_true(json_object_get(page, "ended"));
		json_array_foreach(json_object_get(page, "entries"), i, entry)
		{
			if (logs->entries)
				json_array_append(logs->entries, entry);
			else if (!ret)
				ret = print_entry(logs, entry, 0);
		}
		json_decref(page);
	} while (!ret && *cursor > before);
	return ret || !logs->entries ? ret : print_tail(logs);
}

static int on_event(void *opaque, const char *event, const char *id, const json_t *data)
{
	struct logs *logs = opaque;
	json_t *entry;
	int ret;

	(void)id;
	if (!strcmp(event, "ping"))
		return 0;
	if (!strcmp(event, "exit"))
		return 1;
	if (!strcmp(event, "dropped")) {
		tell_dropped(data);
		return 0;
	}
	if (!strcmp(event, "error")) {
		char text[512];

		log_err("logs: %s",
			client_printable(client_string(json_object_get(data, "error"), "message"),
					 text, sizeof(text)));
		return -EREMOTEIO;
	}
	entry = json_copy((json_t *)(uintptr_t)data);
	if (!entry || json_object_set_new(entry, "stream", json_string(event)) ||
	    json_object_set_new(entry, "encoding", json_string("base64"))) {
		json_decref(entry);
		return -ENOMEM;
	}
	ret = print_entry(logs, entry, 0);
	json_decref(entry);
	return ret;
}

static int print_logs(struct logs *logs)
{
	struct client_target target;
	bool ended = false;
	u64 cursor;
	int ret;

	ret = find_command(&logs->client, logs->box, logs->opts.exec_id, logs->id);
	if (!ret)
		ret = print_until_now(logs, &cursor, &ended);
	if (ret || ended || !logs->opts.follow)
		return ret;
	client_target_box(&target, logs->box, "execs");
	client_target_add(&target, logs->id);
	client_target_add(&target, "logs");
	client_target_u64(&target, "cursor", cursor);
	client_target_u64(&target, "follow", 1);
	return client_events(&logs->client, &target, on_event, logs);
}

int logs_main(struct cli *cli, int argc, char **argv)
{
	struct logs logs = {0};
	struct optparse_result result;
	int status, ret;

	(void)cli;
	status = cli_parse(&logs_command, &logs.opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (client_want(&logs.client, "logs"))
		return CLI_FAILED;
	logs.entries = logs.opts.tail_given ? json_array() : NULL;
	ret = client_find_name(&logs.client, result.positional[0], logs.box);
	if (!ret)
		ret = print_logs(&logs);
	if (ret && ret != -EPIPE && ret != -EREMOTEIO)
		log_debug("logs: %s", strerror(-ret));
	json_decref(logs.entries);
	client_close(&logs.client);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

/** Return: exit status. */
static int attach(struct client *client, const char *box, const struct logs_opts *opts)
{
	struct exec_api api = {.client = client, .box = box};
	struct exec_request request = {.argv = (char *[]){"attach", NULL}};
	struct exec_io io = {.stdin_fd = opts->no_stdin ? -1 : STDIN_FILENO,
			     .stdout_fd = STDOUT_FILENO,
			     .stderr_fd = STDERR_FILENO,
			     .watch_fd = -1,
			     .tty_fd = STDIN_FILENO};
	struct client_target target;
	struct exec_result result;
	json_t *object = NULL;
	int ret, signal_number;

	ret = find_command(client, box, opts->exec_id, api.id);
	if (!ret) {
		client_target_box(&target, box, "execs");
		client_target_add(&target, api.id);
		ret = client_call(client, "GET", &target, NULL, &object);
	}
	if (ret)
		return CLI_RUN_FAILED;
	io.tty = json_is_true(json_object_get(object, "pty")) && !opts->no_stdin &&
		 isatty(STDIN_FILENO);
	io.detach_keys = io.tty;
	json_decref(object);
	io.signal_fd = exec_open_signals(io.tty);
	if (io.signal_fd < 0)
		return CLI_RUN_FAILED;
	ret = exec_begin_tty(&io);
	if (!ret)
		ret = exec_api_attach(&api, -1, &io, &result);
	tty_restore();
	fd_close(&io.signal_fd);
	if (ret)
		return CLI_RUN_FAILED;
	return exec_exit_status(&request, &result, &signal_number);
}

int attach_main(struct cli *cli, int argc, char **argv)
{
	struct logs_opts opts = {0};
	struct optparse_result result;
	char name[CLIENT_NAME_BYTES];
	struct client client;
	int status;

	(void)cli;
	status = cli_parse(&attach_command, &opts, argc, argv, &result, CLI_RUN_FAILED);
	if (status >= 0)
		return status;
	if (client_want(&client, "attach"))
		return CLI_RUN_FAILED;
	status = client_find_name(&client, result.positional[0], name)
			 ? CLI_RUN_FAILED
			 : attach(&client, name, &opts);
	client_close(&client);
	return status;
}
