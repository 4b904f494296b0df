// SPDX-License-Identifier: Apache-2.0
// `thaw pool`: machines of a template that have done everything but run, for `thaw run` to take.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "vmm/cli/commands.h"
#include "vmm/cli/optparse.h"
#include "vmm/cli/pool_internal.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define POOL_SIZE_DEFAULT 4
#define POOL_IDLE_NS	  300000000000ull

static int parse_pool_size(void *dest, const char *value, const char **why)
{
	u64 size;

	if (parse_u64(value, 1, POOL_SIZE_MAX, &size)) {
		*why = "expected 1 to 128";
		return -EINVAL;
	}
	*(u32 *)dest = (u32)size;
	return 0;
}

/** 0 is a time here: never. */
static int parse_idle(void *dest, const char *value, const char **why)
{
	if (!strcmp(value, "0")) {
		*(u64 *)dest = 0;
		return 0;
	}
	return optparse_duration(dest, value, why);
}

static int parse_jail(void *dest, const char *value, const char **why)
{
	*why = "expected full or no-cgroup";
	return sandbox_jail_parse(value, dest) ? 0 : -EINVAL;
}

#define FIELD(field) offsetof(struct pool_opts, field)

static const struct optparse_spec pool_specs[] = {
	{"size", 0, "N", parse_pool_size, FIELD(size),
	 "how many to keep ready (1 to 128; default 4)", NULL},
	{"populate", 0, NULL, optparse_flag, FIELD(populate),
	 "make the pages that a first command needs ready ahead;\neach machine holds that memory while it waits",
	 NULL},
	{"idle-timeout", 0, "TIME", parse_idle, FIELD(idle_ns),
	 "keep only one when nothing was claimed for TIME (default\n5m; 0: never), until the next claim",
	 NULL},
	{"jail", 0, "full|no-cgroup", parse_jail, FIELD(jail),
	 "as root: each machine in a jail of its own; no-cgroup: on\na host without cgroup v2",
	 NULL},
	{"status", 0, NULL, optparse_flag, FIELD(status), "ask the pool that runs how it is doing",
	 NULL},
	{"output", 'o', "json", optparse_json, FIELD(json), "with --status: as JSON", NULL},
	{"json", 0, NULL, optparse_flag, FIELD(json), "the same", NULL},
};

const struct optparse_command pool_command = {
	.usage = "thaw pool TEMPLATE [OPTION]...",
	.summary = "Keep N machines of TEMPLATE ready; 'thaw run' takes one instead of making it.",
	.details = "Runs until SIGTERM, SIGINT or SIGHUP, which end all machines that are not in "
		   "use.\nPrints one line when the pool is filled for the first time.",
	.specs = pool_specs,
	.nspecs = ARRAY_SIZE(pool_specs),
	.positional_min = 1,
	.positional_max = 1,
	.positional_name = "TEMPLATE",
};

/** Proportional share of memory, in KiB; -1: unknown (it has just ended, or is another user's). */
static s64 process_pss_kib(pid_t pid)
{
	char path[64], line[256];
	long long kib;
	s64 pss_kib = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	while (pss_kib < 0 && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "Pss: %lld kB", &kib) == 1)
			pss_kib = kib;
	}
	(void)fclose(file);
	return pss_kib;
}

static int print_status(const struct pool_opts *opts, const struct pool_msg *msg)
{
	s64 zygote_kib = msg->zygote_pid ? process_pss_kib(msg->zygote_pid) : 0, shells_kib = 0;
	json_t *object;
	int ret;

	for (u32 i = 0; i < msg->npids; i++)
		shells_kib += MAX(process_pss_kib(msg->pids[i]), (s64)0);
	if (!opts->json) {
		printf("template   %s\nstrategy   %s\nsize       %u%s\nready      %u\n"
		       "starting   %u\nhits       %llu\nmisses     %llu\n"
		       "pss        %lld KiB machines, %lld KiB zygote\n",
		       opts->name, msg->strategy, msg->size,
		       msg->target < msg->size ? " (idle: 1)" : "", msg->ready, msg->starting,
		       (unsigned long long)msg->hits, (unsigned long long)msg->misses,
		       (long long)shells_kib, (long long)MAX(zygote_kib, (s64)0));
		return fflush(stdout) ? -EIO : 0;
	}
	object = json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I}", "template",
			   opts->name, "strategy", msg->strategy, "size", (int)msg->size, "target",
			   (int)msg->target, "ready", (int)msg->ready, "starting",
			   (int)msg->starting, "hits", (json_int_t)msg->hits, "misses",
			   (json_int_t)msg->misses, "pss_kib", (json_int_t)shells_kib,
			   "zygote_pss_kib", (json_int_t)MAX(zygote_kib, (s64)0));
	ret = object ? json_print(object) : -ENOMEM;
	json_decref(object);
	return ret;
}

static int status(const struct pool_opts *opts)
{
	struct pool_msg msg;
	struct state state;
	int fd, ret;

	ret = state_init(&state);
	if (ret)
		return ret;
	fd = pool_connect(&state, opts->name);
	if (fd == -ENOENT) {
		log_err("no pool of '%s' runs", opts->name);
		return fd;
	}
	ret = fd < 0 ? fd : pool_status(fd, &msg);
	if (ret)
		log_err("pool of '%s': %s", opts->name, strerror(-ret));
	else
		ret = print_status(opts, &msg);
	fd_close(&fd);
	return ret;
}

static int open_signals(struct pool *pool)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (signal(SIGPIPE, SIG_IGN) == SIG_ERR || sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	pool->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return pool->signal_fd < 0 ? -errno : 0;
}

static int serve(struct pool *pool)
{
	int ret;

	ret = state_init(&pool->state);
	ret = ret ?: pool_lock(pool);
	if (ret)
		return ret;
	ret = open_signals(pool);
	if (ret) {
		log_err("signals: %s", strerror(-ret));
		return ret;
	}
	pool->listen_fd = pool_listen(&pool->state, pool->opts.name);
	if (pool->listen_fd == -EADDRINUSE)
		log_err("a pool of '%s' runs already", pool->opts.name);
	else if (pool->listen_fd < 0)
		log_err("%s/pools/%s.sock: %s", pool->state.root, pool->opts.name,
			strerror(-pool->listen_fd));
	if (pool->listen_fd < 0)
		return pool->listen_fd;
	ret = pool_serve(pool);
	/* First, so that nobody is refused by a socket that is there. */
	pool_unlink(&pool->state, pool->opts.name);
	pool_end_all(pool);
	return ret;
}

int pool_main(struct cli *cli, int argc, char **argv)
{
	static struct pool pool = {.opts = {.size = POOL_SIZE_DEFAULT, .idle_ns = POOL_IDLE_NS},
				   .lock_fd = -1,
				   .listen_fd = -1,
				   .signal_fd = -1,
				   .zygote = {.ctl_fd = -1, .log_fd = -1, .accept_fd = -1}};
	struct optparse_result result;
	const char *why;
	long ncpus;
	int ret;

	(void)cli;
	ret = cli_parse(&pool_command, &pool.opts, argc, argv, &result, CLI_USAGE);
	if (ret >= 0)
		return ret;
	if (optparse_name(&pool.opts.name, result.positional[0], &why)) {
		log_err("'%.60s' is not a template's name: %s", result.positional[0], why);
		return CLI_USAGE;
	}
	if (pool.opts.json && !pool.opts.status) {
		log_err("--json goes with --status");
		return CLI_USAGE;
	}
	if (pool.opts.jail && geteuid() != 0) {
		log_err("--jail: only root can make a jail");
		return CLI_USAGE;
	}
	/* Shells that are this process's children end unseen. */
	if (pool.opts.jail)
		(void)signal(SIGCHLD, SIG_IGN);
	if (pool.opts.status)
		return status(&pool.opts) ? CLI_FAILED : CLI_OK;
	ncpus = sysconf(_SC_NPROCESSORS_ONLN);
	pool.at_once = ncpus > 0 ? (u32)MIN(ncpus, (long)POOL_SIZE_MAX) : 1;
	pool.target = pool.opts.size;
	pool.strategy = pool.opts.populate ? "ws" : "mmap";
	for (unsigned int i = 0; i < POOL_CLIENTS_MAX; i++)
		pool.clients[i] = -1;
	ret = serve(&pool);
	fd_close(&pool.listen_fd);
	fd_close(&pool.signal_fd);
	fd_close(&pool.lock_fd);
	return ret ? CLI_FAILED : CLI_OK;
}
