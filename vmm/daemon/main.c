// SPDX-License-Identifier: Apache-2.0
// thawd: starts its parts in order, waits for signals, stops them in the reverse order. Sandboxes
// outlive it.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "vmm/cli/cli.h"
#include "vmm/cli/optparse.h"
#include "vmm/daemon/sdnotify.h"
#include "vmm/daemon/thawd.h"
#include "vmm/util/log.h"
#include "vmm/util/util.h"

#define TICK_MS	     500
#define LOCK_WAIT_MS 2000 /* for a thawd that was killed to be gone */
#define LOCK_STEP_MS 50

struct options {
	const char *config, *socket;
	bool version, check;
};

static const struct optparse_spec specs[] = {
	{"config", 'c', "FILE", optparse_string, offsetof(struct options, config),
	 "settings, see thaw.conf(5); default " CONF_DEFAULT_PATH ",\nwhich need not exist", NULL},
	{"socket", 's', "PATH", optparse_string, offsetof(struct options, socket),
	 "listen there; in place of the setting socket", NULL},
	{"check", 0, NULL, optparse_flag, offsetof(struct options, check),
	 "check the settings, print them all, and end", NULL},
	{"version", 0, NULL, optparse_flag, offsetof(struct options, version),
	 "print the version, and end", NULL},
};

static const struct optparse_command command = {
	.usage = "thawd [OPTION]...",
	.summary = "Serve thaw's API: sandboxes by name, commands in them, their files and ports.",
	.details = "SIGTERM and SIGINT end thawd, not its sandboxes; the next thawd finds them. "
		   "SIGHUP reads\nthe settings and tokens again and reopens the audit log.",
	.specs = specs,
	.nspecs = ARRAY_SIZE(specs),
};

static int load_conf(struct thawd *thawd, const struct options *options)
{
	char why[256];
	int ret;

	thawd->conf_path = options->config ? options->config : CONF_DEFAULT_PATH;
	ret = conf_load(&thawd->conf, thawd->conf_path, options->config != NULL);
	if (ret || !options->socket)
		return ret;
	ret = conf_set(&thawd->conf, "socket", options->socket, why, sizeof(why));
	if (!ret)
		return 0;
	log_err("--%s", why);
	conf_free(&thawd->conf);
	return ret;
}

/** lock_state() - two thawds of one state folder would end each other's machines. */
static int lock_state(struct thawd *thawd)
{
	char path[PATH_MAX];
	int fd, ret;

	state_path(&thawd->state, "thawd.lock", NULL, NULL, path);
	fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	ret = fd < 0 ? -errno : flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
	for (int ms = 0; ret == -EWOULDBLOCK && ms < LOCK_WAIT_MS; ms += LOCK_STEP_MS) {
		nanosleep(&(struct timespec){.tv_nsec = LOCK_STEP_MS * 1000000}, NULL);
		ret = flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
	}
	if (!ret) {
		thawd->state_lock_fd = fd;
		return 0;
	}
	log_err("%s: %s", path,
		ret == -EWOULDBLOCK ? "another thawd serves this state folder: end it, or give "
				      "this one its own (setting state_folder)"
				    : strerror(-ret));
	fd_close(&fd);
	return ret;
}

static int prepare_state(struct thawd *thawd)
{
	int ret;

	if (*thawd->conf.state_folder && setenv("THAW_STATE", thawd->conf.state_folder, 1) < 0)
		return -errno;
	ret = state_init(&thawd->state);
	ret = ret ? ret : state_make(&thawd->state);
	return ret ? ret : lock_state(thawd);
}

static const struct part {
	const char *name;
	int (*start)(struct thawd *thawd);
	void (*stop)(struct thawd *thawd);
} parts[] = {
	{"state folder", prepare_state, NULL}, {"notes", notes_start, notes_stop},
	{"execs", execs_start, execs_stop},    {"boxes", boxes_start, boxes_stop},
	{"http", http_start, http_stop},
};

/** Return: how many parts are to be stopped; *@ret: 0 or what failed. */
static size_t start_parts(struct thawd *thawd, int *ret)
{
	size_t count = 0;

	*ret = 0;
	while (!*ret && count < ARRAY_SIZE(parts)) {
		*ret = parts[count].start(thawd);
		if (*ret)
			log_err("%s: not started: %s", parts[count].name, strerror(-*ret));
		count++;
	}
	return count;
}

static void stop_parts(struct thawd *thawd, size_t count)
{
	while (count--) {
		if (parts[count].stop)
			parts[count].stop(thawd);
	}
}

static void reload(struct thawd *thawd)
{
	int ret;

	sd_reloading();
	ret = conf_reload(&thawd->conf, thawd->conf_path);
	if (!ret)
		ret = http_reload(thawd);
	notes_reload(thawd);
	log_write(ret ? LOG_ERROR : LOG_INFO, "settings read again%s",
		  ret ? ": with errors; the old ones stay" : "");
	sd_say("READY=1");
}

/** take_signal() - Return: is it one to end at? */
static bool take_signal(struct thawd *thawd, int fd)
{
	struct signalfd_siginfo info;

	if (read(fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return false;
	if (info.ssi_signo == SIGHUP) {
		reload(thawd);
		return false;
	}
	log_info("%s from pid %u: thawd ends, sandboxes stay", strsignal((int)info.ssi_signo),
		 info.ssi_pid);
	return true;
}

/** wait_for_end() - the main thread's whole work. */
static void wait_for_end(struct thawd *thawd, int fd)
{
	struct pollfd pollfd = {.fd = fd, .events = POLLIN};
	u64 watchdog_ms = sd_watchdog_ms(), said_ns = clock_now_ns();
	bool end = false;

	while (!end) {
		if (poll(&pollfd, 1, TICK_MS) > 0)
			end = take_signal(thawd, fd);
		http_tick(thawd);
		if (watchdog_ms && clock_now_ns() - said_ns >= watchdog_ms * 1000000) {
			said_ns = clock_now_ns();
			sd_say("WATCHDOG=1");
		}
	}
}

static int block_signals(void)
{
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int serve(struct thawd *thawd)
{
	int ret, signals = block_signals();
	size_t started;

	if (signals < 0) {
		log_err("signals: %s", strerror(errno));
		return CLI_FAILED;
	}
	started = start_parts(thawd, &ret);
	if (!ret) {
		log_info("serves %s", thawd->conf.socket_path);
		sd_say("READY=1\nSTATUS=serving");
		wait_for_end(thawd, signals);
		sd_say("STOPPING=1");
		http_drain(thawd);
	}
	stop_parts(thawd, started);
	fd_close(&signals);
	return ret ? CLI_FAILED : CLI_OK;
}

int main(int argc, char **argv)
{
	struct thawd thawd = {.start_ns = clock_now_ns()};
	struct optparse_result result;
	struct options options = {0};
	int status;

	log_init("thawd");
	heap_prepare();
	status = cli_parse(&command, &options, argc - 1, argv + 1, &result, CLI_USAGE);
	if (status >= 0)
		return status;
	if (options.version) {
		printf("thawd %s\n", THAW_VERSION);
		return cli_flush() ? CLI_FAILED : CLI_OK;
	}
	if (load_conf(&thawd, &options))
		return CLI_FAILED;
	if (options.check) {
		conf_print(&thawd.conf, stdout);
		status = cli_flush() ? CLI_FAILED : CLI_OK;
	} else {
		status = serve(&thawd);
	}
	conf_free(&thawd.conf);
	return status;
}
