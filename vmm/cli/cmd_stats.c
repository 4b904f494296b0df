// SPDX-License-Identifier: Apache-2.0
// `thaw stats` and `thaw top`: what sandboxes use, what runs in one.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/json_out.h"
#include "vmm/cli/verb.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define STATS_BOXES_MAX	  1024
#define STATS_INTERVAL_NS 2000000000ull
#define TOP_OUTPUT_BYTES  (4 << 20)
#define TOP_TIMEOUT_MS	  30000

struct stats_opts {
	bool json, once;
	u64 interval_ns;
};

#define FIELD(field) offsetof(struct stats_opts, field)

static const struct optparse_spec stats_specs[] = {
	{"no-stream", 0, NULL, optparse_flag, FIELD(once),
	 "once, as it is when stdout is no terminal", NULL},
	{"interval", 0, "TIME", optparse_duration, FIELD(interval_ns),
	 "of the live view (default 2s)", NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "once, as a JSON list", NULL},
};

const struct optparse_command stats_command = {
	.usage = "thaw stats [NAME]... [OPTION]...",
	.summary = "What running sandboxes use, all of them unless some are named; live on a "
		   "terminal.",
	.specs = stats_specs,
	.nspecs = ARRAY_SIZE(stats_specs),
	.positional_max = OPTPARSE_POSITIONAL_MAX,
	.positional_name = "NAME",
	.completes = "sandbox",
};

/* One that is looked at, and what it had used when it was looked at before. */
struct watched {
	char name[CLIENT_NAME_BYTES];
	u64 cpu_us, at_ns;
};

struct stats {
	struct stats_opts opts;
	struct client client;
	struct watched boxes[STATS_BOXES_MAX];
	size_t count;
};

static int name_all(struct stats *stats)
{
	struct client_target target;
	json_t *all, *box;
	size_t i;
	int ret;

	client_target(&target, "/v1/sandboxes");
	client_target_query(&target, "state", "running");
	ret = client_list(&stats->client, &target, "sandboxes", &all);
	if (ret)
		return ret;
	json_array_foreach(all, i, box)
	{
		if (stats->count < STATS_BOXES_MAX)
			snprintf(stats->boxes[stats->count++].name, CLIENT_NAME_BYTES, "%s",
				 client_string(box, "name"));
	}
	json_decref(all);
	return 0;
}

static u64 field(const json_t *object, const char *name)
{
	return (u64)MAX(json_integer_value(json_object_get(object, name)), (json_int_t)0);
}

static void print_line(struct watched *box, const json_t *use)
{
	const u64 total = field(use, "memory_total_bytes"), now_ns = clock_now_ns();
	const u64 used = total - MIN(total, field(use, "memory_available_bytes"));
	const u64 disk = field(use, "disk_total_bytes") -
			 MIN(field(use, "disk_total_bytes"), field(use, "disk_free_bytes"));
	const u64 cpu_us = field(use, "cpu_usage_us");
	char text[4][16], percent[16] = "-";

	if (box->at_ns && cpu_us >= box->cpu_us && now_ns > box->at_ns)
		snprintf(percent, sizeof(percent), "%.1f%%",
			 (double)(cpu_us - box->cpu_us) * 100000.0 / (double)(now_ns - box->at_ns));
	box->cpu_us = cpu_us;
	box->at_ns = now_ns;
	printf("%-24s %7s %9.1fs %6s / %-6s %8s %8s %6llu\n", box->name, percent,
	       (double)cpu_us / 1e6, verb_bytes(used, text[0], sizeof(text[0])),
	       verb_bytes(total, text[1], sizeof(text[1])),
	       verb_bytes(disk, text[2], sizeof(text[2])),
	       json_is_integer(json_object_get(use, "vmm_memory_bytes"))
		       ? verb_bytes(field(use, "vmm_memory_bytes"), text[3], sizeof(text[3]))
		       : "-",
	       (unsigned long long)field(use, "processes"));
}

/** @list: NULL: print lines. Return: 0 or -errno (logged). */
static int look(struct stats *stats, json_t *list, bool live)
{
	struct client_target target;
	int ret = 0;

	if (!list)
		printf("%s%-24s %7s %10s %15s %8s %8s %6s\n", live ? "\033[H\033[J" : "", "NAME",
		       "CPU", "CPU TIME", "MEMORY", "DISK", "HOST MEM", "PIDS");
	for (size_t i = 0; i < stats->count; i++) {
		struct watched *box = &stats->boxes[i];
		json_t *use;
		int one;

		client_target_box(&target, box->name, "stats");
		/* On the live view one that has stopped is just missing. */
		stats->client.quiet = live;
		one = client_call(&stats->client, "GET", &target, NULL, &use);
		if (one == -EREMOTEIO && live)
			continue;
		if (one) {
			ret = one;
			continue;
		}
		if (!list)
			print_line(box, use);
		else if (json_object_set_new(use, "name", json_string(box->name)) ||
			 json_array_append(list, use))
			ret = -ENOMEM;
		json_decref(use);
	}
	return ret;
}

static int show(struct stats *stats, const struct optparse_result *result)
{
	const bool live = !stats->opts.json && !stats->opts.once && isatty(STDOUT_FILENO);
	json_t *list = stats->opts.json ? json_array() : NULL;
	int ret = 0;

	for (int i = 0; !ret && i < result->npositional; i++) {
		ret = client_find_name(&stats->client, result->positional[i],
				       stats->boxes[stats->count].name);
		stats->count++;
	}
	do {
		if (!result->npositional) {
			stats->count = 0;
			ret = name_all(stats);
		}
		if (!ret)
			ret = look(stats, list, live);
		if (live && !ret) {
			ret = cli_flush();
			poll(NULL, 0, (int)MIN(stats->opts.interval_ns / 1000000, (u64)86400000));
		}
	} while (live && !ret);
	if (!ret && list)
		ret = json_print(list);
	json_decref(list);
	return ret;
}

int stats_main(struct cli *cli, int argc, char **argv)
{
	static struct stats stats = {.opts = {.interval_ns = STATS_INTERVAL_NS}};
	struct optparse_result result;
	int status, ret;

	(void)cli;
	status = cli_parse(&stats_command, &stats.opts, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (client_want(&stats.client, "stats"))
		return CLI_FAILED;
	ret = show(&stats, &result);
	client_close(&stats.client);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}

static const struct optparse_spec top_specs[] = {
	{"output", 'o', "json", optparse_json, 0, "a JSON list of processes", NULL},
};

const struct optparse_command top_command = {
	.usage = "thaw top NAME [OPTION]...",
	.summary = "List the processes in a running sandbox.",
	.specs = top_specs,
	.nspecs = ARRAY_SIZE(top_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "NAME",
	.completes = "sandbox",
};

/* Nothing but a shell is needed in the guest: pid, parent, user, state, kilobytes, command line;
 * the fields of a line are parted by tabs. */
static const char top_script[] =
	"for d in /proc/[0-9]*; do\n"
	"  p= u= s= r=0 c= n=\n"
	"  while read -r k v rest; do case $k in Name:) n=$v;; State:) s=$v;; PPid:) p=$v;;\n"
	"    Uid:) u=$v;; VmRSS:) r=$v;; esac; done 2>/dev/null <$d/status || continue\n"
	"  c=$(tr '\\0\\n\\t' '   ' <$d/cmdline 2>/dev/null)\n"
	"  printf '%s\\t%s\\t%s\\t%s\\t%s\\t%s\\n' \"${d#/proc/}\" \"$p\" \"$u\" \"$s\" \"$r\" "
	"\"${c:-[$n]}\"\n"
	"done\n";

static json_t *top_line(char *line)
{
	static const char *const names[] = {"pid", "ppid", "uid", "state", "rss_kib", "command"};
	json_t *object = json_object();

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		const char *value = strsep(&line, "\t");
		u64 number;

		if (!value)
			break;
		if (i != 3 && i != 5 && !parse_u64(value, 0, INT64_MAX, &number))
			json_object_set_new(object, names[i], json_integer((json_int_t)number));
		else
			json_object_set_new(object, names[i], json_string(value));
	}
	return object;
}

static void print_process(const json_t *one)
{
	char text[4096];

	printf("%7llu %7llu %6llu %-5s %8llu %s\n", (unsigned long long)field(one, "pid"),
	       (unsigned long long)field(one, "ppid"), (unsigned long long)field(one, "uid"),
	       client_string(one, "state"), (unsigned long long)field(one, "rss_kib"),
	       client_printable(client_string(one, "command"), text, sizeof(text)));
}

static int top(struct client *client, const char *box, bool json)
{
	json_t *answer, *list = json_array(), *one;
	char *rest, *text, *line;
	size_t i;
	int ret;

	ret = verb_post(client, box, "exec",
			json_pack("{s:[s,s,s], s:i, s:i}", "argv", "/bin/sh", "-c", top_script,
				  "max_output_bytes", TOP_OUTPUT_BYTES, "timeout_ms",
				  TOP_TIMEOUT_MS),
			&answer);
	if (ret) {
		json_decref(list);
		return ret;
	}
	text = rest = strdup(client_string(answer, "stdout"));
	while (rest && (line = strsep(&rest, "\n"))) {
		if (*line)
			json_array_append_new(list, top_line(line));
	}
	free(text);
	json_decref(answer);
	if (json) {
		ret = json_print(list);
	} else {
		printf("%7s %7s %6s %-5s %8s %s\n", "PID", "PPID", "UID", "STATE", "RSS KiB",
		       "COMMAND");
		json_array_foreach(list, i, one)
		{
			print_process(one);
		}
	}
	json_decref(list);
	return ret;
}

int top_main(struct cli *cli, int argc, char **argv)
{
	struct optparse_result result;
	char name[CLIENT_NAME_BYTES];
	struct client client;
	bool json = false;
	int status, ret;

	(void)cli;
	status = cli_parse(&top_command, &json, argc, argv, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (client_want(&client, "top"))
		return CLI_FAILED;
	ret = client_find_name(&client, result.positional[0], name);
	if (!ret)
		ret = top(&client, name, json);
	client_close(&client);
	return ret || cli_flush() ? CLI_FAILED : CLI_OK;
}
