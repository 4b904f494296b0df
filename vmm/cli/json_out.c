// SPDX-License-Identifier: Apache-2.0
// JSON results.
#include "vmm/cli/json_out.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/util/log.h"
#include "vmm/util/util.h"

/** Nanoseconds to milliseconds with 3 decimals: rounded here, so that the printed number is exact.
 */
static json_t *clock_json(u64 from_ns, u64 to_ns)
{
	u64 us;

	if (!from_ns || !to_ns || to_ns < from_ns)
		return json_null();
	us = (to_ns - from_ns + 500) / 1000;
	return json_real((double)us / 1000.0);
}

static json_t *counter_json(s64 value)
{
	return value < 0 ? json_null() : json_integer(value);
}

json_t *run_result_json(const struct run_result *result)
{
	const struct ctl_clocks *clocks = &result->clocks;
	bool exited = result->signal == 0;

	return json_pack("{s:s, s:s, s:s, s:s, s:{s:o, s:o, s:o, s:o, s:o}, s:{s:o, s:o}, s:o, "
			 "s:{s:o, s:o}}",
			 "template", result->template_name, "strategy", result->strategy, "pool",
			 result->pool, "kvm", result->kvm, "clocks_ms", "c1",
			 clock_json(clocks->first_ioctl_ns, clocks->state_set_ns), "c2",
			 clock_json(clocks->start_ns, clocks->run_ns), "c3",
			 clock_json(clocks->start_ns, clocks->resumed_ns), "c4",
			 clock_json(clocks->start_ns, result->exit_ns), "c5",
			 clock_json(result->client_start_ns, result->exit_ns), "faults", "minor",
			 counter_json(result->faults_minor), "major",
			 counter_json(result->faults_major), "bytes_read",
			 counter_json(result->bytes_read), "exit", "code",
			 exited ? json_integer(result->code) : json_null(), "signal",
			 exited ? json_null() : json_integer(result->signal));
}

json_t *start_clocks_json(const struct ctl_clocks *clocks)
{
	return json_pack("{s:o, s:o, s:o}", "c1",
			 clock_json(clocks->first_ioctl_ns, clocks->state_set_ns), "c2",
			 clock_json(clocks->start_ns, clocks->run_ns), "c3",
			 clock_json(clocks->start_ns, clocks->resumed_ns));
}

/*
 * 17 significant digits would print 12.3 as 12.300000000000001. 15 are always exact for a decimal
 * number of that many digits, and no clock has more.
 */
#define JSON_OUT_FLAGS (JSON_INDENT(1) | JSON_REAL_PRECISION(15))

static char *dump_line(const json_t *value, size_t *len_bytes)
{
	char *text = json_dumps(value, JSON_OUT_FLAGS), *line;

	if (!text)
		return NULL;
	*len_bytes = strlen(text) + 1;
	line = realloc(text, *len_bytes + 1);
	if (!line) {
		free(text);
		return NULL;
	}
	line[*len_bytes - 1] = '\n';
	line[*len_bytes] = '\0';
	return line;
}

/**
 * A device, a pipe, or a link such as /dev/stdout is written to, not replaced: a rename onto it
 * would take it away from the whole machine.
 */
static bool is_special(const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0 || S_ISREG(st.st_mode))
		return false;
	return !S_ISLNK(st.st_mode) || !strncmp(path, "/dev/", 5) || !strncmp(path, "/proc/", 6);
}

/** Return: 0 or -errno. @tmp: the file to rename afterwards; "" when @path itself was written. */
static int write_text(const char *path, const char *text, size_t len_bytes, char tmp[PATH_MAX])
{
	int fd, n, ret;

	if (is_special(path)) {
		tmp[0] = '\0';
		fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	} else {
		n = snprintf(tmp, PATH_MAX, "%s.%d.tmp", path, (int)getpid());
		if (n < 0 || n >= PATH_MAX)
			return -ENAMETOOLONG;
		/* Of a process of this number that was killed: nobody else's has it. */
		if (unlink(tmp) < 0 && errno != ENOENT)
			return -errno;
		fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
	}
	if (fd < 0)
		return -errno;
	ret = fd_write_full(fd, text, len_bytes);
	/* An error that shows up only when the file is closed (quota, network file system) counts
	 * too. */
	if (close(fd) < 0 && !ret)
		ret = -errno;
	if (!ret && tmp[0] && rename(tmp, path) < 0)
		ret = -errno;
	if (ret && tmp[0])
		unlink(tmp);
	return ret;
}

int json_write_file(const char *path, const json_t *value)
{
	char tmp[PATH_MAX];
	size_t len_bytes;
	char *text;
	int ret;

	text = dump_line(value, &len_bytes);
	ret = text ? write_text(path, text, len_bytes, tmp) : -ENOMEM;
	free(text);
	if (ret)
		log_err("%s: can't write: %s", path, strerror(-ret));
	return ret;
}

int json_print(const json_t *value)
{
	size_t len_bytes;
	char *text = dump_line(value, &len_bytes);
	int ret;

	if (!text) {
		log_err("JSON: out of memory");
		return -ENOMEM;
	}
	ret = fd_write_full(STDOUT_FILENO, text, len_bytes);
	free(text);
	if (ret)
		log_err("stdout: %s", strerror(-ret));
	return ret;
}

int proc_stat_faults(const char *text, s64 *out_minor, s64 *out_major)
{
	/* The second field is the program's name, which may hold blanks and brackets: fields are
	 * counted from the last bracket. */
	const char *fields = strrchr(text, ')');
	long long minor, major;

	if (!fields ||
	    sscanf(fields + 1, " %*c %*d %*d %*d %*d %*d %*u %lld %*d %lld", &minor, &major) != 2)
		return -EINVAL;
	if (minor < 0 || major < 0)
		return -EINVAL;
	*out_minor = minor;
	*out_major = major;
	return 0;
}

/** Files of /proc have no size: file_read_all() is not for them. */
static int read_proc(int pid, const char *name, char *buf, size_t buf_bytes)
{
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = read(fd, buf, buf_bytes - 1);
	close(fd);
	if (n < 0)
		return -EIO;
	buf[n] = '\0';
	return 0;
}

void proc_counters_read(int pid, struct proc_counters *out)
{
	long long bytes;
	char buf[1024];
	const char *line;

	*out = (struct proc_counters){-1, -1, -1};
	if (!read_proc(pid, "stat", buf, sizeof(buf)) &&
	    proc_stat_faults(buf, &out->faults_minor, &out->faults_major))
		log_debug("/proc/%d/stat: not understood", pid);
	if (read_proc(pid, "io", buf, sizeof(buf)))
		return;
	line = strstr(buf, "\nread_bytes: ");
	if (line && sscanf(line, " read_bytes: %lld", &bytes) == 1 && bytes >= 0)
		out->bytes_read = bytes;
}
